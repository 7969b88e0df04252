//! A card as this process uses it: our kernels on it, and our own memory for callers that give none.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;

use unhang_conv::{DataType, Direction, Planes, Volume, VolumeSpecification};
use unhang_engine::Verdict;
use unhang_engine::tolerance::Tolerance;
use unhang_evidence::Store;
use unhang_gpu::driver::{Driver, hip_pci_address};
use unhang_gpu::strided::Move;
use unhang_gpu::{GpuEngine, GpuError, GpuSettings, Way};
use unhang_machine::Machine;
use unhang_plan::CanaryFact;

use crate::card::Card;
use crate::contest::take_tunings;
use crate::hip::open_hip;
use crate::host::Numbers;
use crate::remembered::Remembered;
use crate::session::locked;
use crate::view::View;

/// One card.
pub struct Device {
    /// Its number in the runtime.
    pub ordinal: i32,
    /// Whether it is an RDNA1 card.
    pub affected: bool,
    /// Whether the runtime treats it as another chip.
    pub spoofed: bool,
    /// The card, as canaries know it.
    pub card: Card,
    /// Our kernels on it.
    pub engine: GpuEngine,
    /// Its canaries' verdicts, read once for the process.
    pub canaries: OnceLock<Vec<CanaryFact>>,
    /// Verdicts on first results other than convolutions, by the hash of the request.
    pub(crate) first_results: Remembered<Result<(), String>>,
    /// How each operation other than a convolution is divided, by the hash of the request.
    pub(crate) ways: Remembered<Chosen>,
    scratch: Mutex<Scratches>,
}

/// How an operation is divided among workgroups and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) way: Way,
    /// Whether it was measured, now or in an earlier process, or could not be.
    pub(crate) is_settled: bool,
}

/// HIP's handle for each thread's own stream: one number that means a different stream in each thread.
const STREAM_PER_THREAD: u64 = 2;

/// Memory of our own for one stream.
#[derive(Default)]
pub struct Scratch {
    address: u64,
    bytes: u64,
}

impl Scratch {
    /// Its address, with at least that many bytes. Not while a graph is recorded.
    pub fn at_least(&mut self, driver: &dyn Driver, bytes: u64) -> Result<u64, GpuError> {
        if self.bytes < bytes {
            // Queued work may still use the old memory, so it stays allocated. Doubling keeps the sum of it below what
            // is used; where there is no memory for that, what is needed has to do.
            let doubled = bytes.next_power_of_two();
            let allocated = driver.allocate(doubled as usize).map(|address| (address, doubled));
            let exactly = || driver.allocate(bytes as usize).map(|address| (address, bytes));
            (self.address, self.bytes) =
                allocated.or_else(|error| if error.is_out_of_memory() { exactly() } else { Err(error) })?;
        }
        Ok(self.address)
    }
}

/// A stream; and its thread, if each thread has its own stream under that handle.
type Lane = (u64, Option<ThreadId>);

/// The memory of each stream.
#[derive(Default)]
struct Scratches {
    all: HashMap<Lane, Arc<Mutex<Scratch>>>,
    /// The living threads that have their own streams here.
    threads: HashMap<ThreadId, Weak<()>>,
}

thread_local! {
    /// Dropped when its thread ends.
    static LIVES: Arc<()> = Arc::default();
}

impl Scratches {
    /// The memory of a stream, and the memory that threads left behind when they ended.
    fn of(&mut self, stream: u64) -> (Arc<Mutex<Scratch>>, Vec<Arc<Mutex<Scratch>>>) {
        let thread = (stream == STREAM_PER_THREAD).then(|| std::thread::current().id());
        if let Some(known) = self.all.get(&(stream, thread)) {
            return (known.clone(), Vec::new());
        }
        let mut left_behind = Vec::new();
        if let Some(thread) = thread {
            let all = &mut self.all;
            self.threads.retain(|&ended, lives| {
                let is_alive = lives.strong_count() > 0;
                if !is_alive {
                    left_behind.extend(all.remove(&(stream, Some(ended))));
                }
                is_alive
            });
            self.threads.insert(thread, LIVES.with(Arc::downgrade));
        }
        (self.all.entry((stream, thread)).or_default().clone(), left_behind)
    }
}

impl Device {
    /// Opens a card of AMD's runtime; an error says why our kernels cannot use it. `shipped_folder` has the general
    /// kernels that came with the package.
    pub fn open(
        ordinal: i32,
        machine: &Machine,
        store: Option<&Store>,
        shipped_folder: Option<PathBuf>,
    ) -> Result<Device, String> {
        let driver = open_hip(ordinal, machine, None)?;
        let address = hip_pci_address(ordinal).map_err(|error| error.to_string())?;
        let affected = machine.gpu_at(&address)?.0.affected;
        let description = driver.description();
        let spoofed = description.reported_architecture != description.true_architecture;
        let engine = GpuEngine::new(Box::new(driver), GpuSettings { shipped_folder, ..GpuSettings::default() });
        if let Some(store) = store {
            take_tunings(&engine, store);
        }
        let card = Card::at(machine, ordinal, || address.clone());
        Ok(Device { affected, spoofed, ..Device::new(ordinal, card, engine) })
    }

    /// A card of which nothing is known.
    pub(crate) fn new(ordinal: i32, card: Card, engine: GpuEngine) -> Device {
        Device {
            ordinal,
            affected: false,
            spoofed: false,
            card,
            engine,
            canaries: OnceLock::new(),
            first_results: Remembered::default(),
            ways: Remembered::default(),
            scratch: Mutex::default(),
        }
    }

    /// Whether the canary of a kernel family passed.
    pub fn may_run(&self, family: &str) -> bool {
        let works = |it: &CanaryFact| it.part == family && matches!(it.ended, Some((Verdict::Works, _)));
        self.canaries.get().is_some_and(|all| all.iter().any(works))
    }

    /// Memory for one stream, kept for the next call. Hold it until all launches are queued: otherwise threads that
    /// share a stream could interleave their launches.
    pub fn scratch(&self, stream: u64) -> Arc<Mutex<Scratch>> {
        let (found, left_behind) = locked(&self.scratch).of(stream);
        for old in left_behind {
            let old = locked(&old);
            if old.bytes > 0 {
                // SAFETY: allocated by the driver, and the thread whose stream used it has ended; the driver waits for work that is queued.
                let _ = unsafe { self.engine.driver().free(old.address) };
            }
        }
        found
    }

    /// The types that these kernels are tried in. An emulated card computes slowly, and one type shows that it can.
    fn types_of_trial(&self) -> &'static [DataType] {
        let emulated = self.engine.driver().description().is_emulated();
        if emulated { &[DataType::F32] } else { &DataType::ALL }
    }

    /// Compiles and loads what [`Device::try_strided`] runs, so that its limit is the kernels' own.
    pub fn prepare_strided(&self) {
        let trial = PlanesTrial::new();
        for &data_type in self.types_of_trial() {
            let of_planes = trial.iter().filter_map(|trial| trial.moves(data_type));
            for launch in moves_of_trial(data_type).into_iter().flatten().chain(of_planes.flatten()) {
                // An error here happens again in the trial, which reports it.
                let _ = self.engine.load_move(launch, 0);
            }
        }
    }

    /// Tries the kernels that copy tensors of any strides and planes of 3-d ones, add a bias and sum one. Returns their
    /// error as a share of the tolerance. Waits for the device.
    pub fn try_strided(&self) -> Result<f64, GpuError> {
        let mut worst = 0.0f64;
        for &data_type in self.types_of_trial() {
            let error = self.try_moves(data_type).and_then(|error| Ok(error.max(self.try_planes(data_type)?)));
            worst = match error {
                // A kernel that is not there does not run; single precision is what nobody does without.
                Err(GpuError::Compile(_) | GpuError::Object(_)) if data_type != DataType::F32 => worst,
                error => worst.max(error?),
            };
        }
        Ok(worst)
    }

    fn try_moves(&self, data_type: DataType) -> Result<f64, GpuError> {
        let (shape, view) = (TRIED.shape, TRIED);
        let dense = View::dense_strides(shape, unhang_conv::Layout::Nchw);
        let (spread, elements) = (view.span(), view.elements());
        let memory = Memory::new(&self.engine, data_type, [spread, elements, shape[1]])?;
        let [from, to, bias] = memory.places;
        let driver = self.engine.driver();
        let mut numbers = Numbers::random(data_type, spread, 1);
        let Some(moves) = moves_of_trial(data_type) else { return Ok(f64::INFINITY) };
        let [copy, sum, add] = moves.map(|it| self.engine.load_move(it, 0));
        let (copy, sum, add) = (copy?, sum?, add?);
        // SAFETY: memory of these sizes, alive until the results were read.
        let (copied, summed) = unsafe {
            numbers.write(driver, from, 0)?;
            self.engine.launch_move(&copy, from, to, 0)?;
            self.engine.launch_move(&sum, from, bias, 0)?;
            self.engine.launch_move(&add, bias, to, 0)?;
            (Numbers::read(driver, data_type, elements, to, 0)?, Numbers::read(driver, data_type, shape[1], bias, 0)?)
        };
        let gathered = numbers.gathered(&view, dense);
        let pixels = shape[2] * shape[3];
        let (mut worst, mut largest) = (0.0f64, 0.0f64);
        for channel in 0..shape[1] {
            let of_channel = |at: &usize| at / pixels % shape[1] == channel;
            let sum: f64 = (0..elements).filter(of_channel).map(|at| gathered.get(at)).sum();
            worst = worst.max((summed.get(channel) - sum).abs());
            largest = largest.max(sum.abs());
            let off = |at: usize| (copied.get(at) - gathered.get(at) - summed.get(channel)).abs();
            worst = (0..elements).filter(of_channel).map(off).fold(worst, f64::max);
        }
        Ok(worst / (Tolerance::of(data_type).max * largest))
    }

    /// Tries the kernel that gathers planes of 3-d tensors and puts them back: 0 if every element is right, otherwise
    /// infinity.
    fn try_planes(&self, data_type: DataType) -> Result<f64, GpuError> {
        let Some(trial) = PlanesTrial::new() else { return Ok(f64::INFINITY) };
        let Some([gather, scatter]) = trial.moves(data_type) else { return Ok(f64::INFINITY) };
        let (layout, strides) = (trial.volume.layout(), trial.strides());
        let [planes, back] = &trial.planes;
        let [whole, narrow, _] = trial.volume.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let folded: usize = planes.shape().iter().product();
        let (gather, scatter) = (self.engine.load_move(gather, 0)?, self.engine.load_move(scatter, 0)?);
        let memory = Memory::new(&self.engine, data_type, [whole, folded, narrow])?;
        let [from, to, narrowed] = memory.places;
        let driver = self.engine.driver();
        let mut numbers = Numbers::random(data_type, whole, 2);
        // SAFETY: memory of these sizes, alive until the results were read; the tensor that is put back is the smaller one.
        let (gathered, scattered) = unsafe {
            numbers.write(driver, from, 0)?;
            self.engine.launch_move(&gather, from, to, 0)?;
            self.engine.launch_move(&scatter, from, narrowed, 0)?;
            (Numbers::read(driver, data_type, folded, to, 0)?, Numbers::read(driver, data_type, narrow, narrowed, 0)?)
        };
        let mut is_right = true;
        let loops = |planes: &Planes, strides| planes.loops(layout.strides(planes.shape()), strides, false);
        loops(planes, strides[0]).visit(|at, source, (count, step, far)| {
            for turn in 0..count {
                let place = source.map(|source| (source as i64 + turn as i64 * far) as usize);
                is_right &= gathered.get(at + turn * step) == place.map_or(0.0, |place| numbers.get(place));
            }
        });
        loops(back, strides[1]).visit(|at, target, (count, step, far)| {
            for turn in 0..count {
                let place = target.map_or(0, |target| (target as i64 + turn as i64 * far) as usize);
                is_right &= scattered.get(place) == numbers.get(at + turn * step);
            }
        });
        Ok(if is_right { 0.0 } else { f64::INFINITY })
    }
}

/// A tensor with gaps, in an order that no layout has.
const TRIED: View = View { shape: [2, 3, 4, 5], strides: [100, 1, 21, 4] };

/// A copy of that tensor, the sum of its channels, and the sum added to the copy.
fn moves_of_trial(data_type: DataType) -> Option<[Move; 3]> {
    let View { shape, strides } = TRIED;
    let dense = View::dense_strides(shape, unhang_conv::Layout::Nchw);
    Some([
        Move::copy(data_type, shape, strides, dense)?,
        Move::sum_over_channels(data_type, shape, strides, 1)?,
        Move::add(data_type, shape, [0, 1, 0, 0], dense)?,
    ])
}

/// A 3-d convolution of which planes are gathered, and planes put back.
struct PlanesTrial {
    volume: Volume,
    planes: [Planes; 2],
}

impl PlanesTrial {
    fn new() -> Option<PlanesTrial> {
        let volume = Volume::new(VolumeSpecification {
            batch: 2,
            in_channels: 3,
            in_size: [4, 5, 6],
            out_channels: 2,
            kernel: [3, 1, 3],
            stride: [2, 1, 1],
            padding: [1, 0, 1],
            direction: Direction::BackwardWeights,
            ..VolumeSpecification::default()
        });
        let volume = volume.ok()?;
        let fold = volume.fold(usize::MAX).ok()?;
        let [planes, back, ..] = &fold.parts.first()?.planes;
        let planes = [*planes, *back];
        Some(PlanesTrial { volume, planes })
    }

    fn strides(&self) -> [[usize; 5]; 3] {
        self.volume.operand_shapes().map(|shape| Volume::dense_strides(shape, self.volume.layout()))
    }

    /// What gathers them, and what puts them back.
    fn moves(&self, data_type: DataType) -> Option<[Move; 2]> {
        let (layout, strides) = (self.volume.layout(), self.strides());
        let [planes, back] = &self.planes;
        Some([
            Move::gather(data_type, planes, layout, strides[0])?,
            Move::scatter(data_type, back, layout, strides[1])?,
        ])
    }
}

/// Device memory, freed on drop.
struct Memory<'a> {
    engine: &'a GpuEngine,
    /// 0 until it is allocated.
    places: [u64; 3],
}

impl<'a> Memory<'a> {
    fn new(engine: &'a GpuEngine, data_type: DataType, counts: [usize; 3]) -> Result<Memory<'a>, GpuError> {
        let mut memory = Memory { engine, places: [0; 3] };
        for (place, count) in memory.places.iter_mut().zip(counts) {
            *place = engine.driver().allocate((count * data_type.size()).max(1))?;
        }
        Ok(memory)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for place in self.places.into_iter().filter(|place| *place != 0) {
            // SAFETY: allocated above; everything that used it was waited for, or failed.
            let _ = unsafe { self.engine.driver().free(place) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_twice_as_much_is_not_to_be_had_what_is_needed_is_taken() {
        let (device, ..) = crate::played::device_with(None, 3 << 20);
        let driver = device.engine.driver();
        let mut scratch = Scratch::default();
        assert!(scratch.at_least(driver, 5 << 19).is_ok());
        assert_eq!(scratch.bytes, 5 << 19, "not 4 MiB");
        let error = scratch.at_least(driver, 7 << 19).unwrap_err();
        assert!(matches!(error, GpuError::Driver(error) if error.is_out_of_memory()));
    }

    #[test]
    fn the_memory_of_threads_that_have_ended_is_given_back_and_no_other() {
        let scratches = Mutex::new(Scratches::default());
        let of = |stream| scratches.lock().unwrap().of(stream);
        let (here, nothing) = of(STREAM_PER_THREAD);
        assert!(nothing.is_empty());
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| of(STREAM_PER_THREAD).0).join().unwrap());
        assert!(!Arc::ptr_eq(&here, &elsewhere), "streams of the same name that are not the same");
        let (_, left_behind) = std::thread::scope(|scope| scope.spawn(|| of(STREAM_PER_THREAD)).join().unwrap());
        assert_eq!(left_behind.len(), 1);
        assert!(Arc::ptr_eq(&left_behind[0], &elsewhere));
        assert!(Arc::ptr_eq(&of(STREAM_PER_THREAD).0, &here));
        assert!(Arc::ptr_eq(&of(7).0, &of(7).0), "of other streams threads share what is there");
    }
}
