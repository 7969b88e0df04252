//! Operations other than convolutions, on a face's memory: by our kernels in the caller's stream, or on the CPU through
//! copies. Kernels compute for the caller once a result of theirs was equal to the CPU's.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::PoisonError;

use unhang_conv::DataType;
use unhang_engine::tolerance;
use unhang_gpu::{GpuEngine, GpuError, Launches, LoadedLaunches, Way};

use crate::device::{Chosen, Device};
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::first::{self, First, few};
use crate::host::Numbers;
use crate::placed::{Brought, Memory, Placed};
use crate::remembered::hash_of;
use crate::session::Session;

/// What an operand consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Numbers of a type.
    Numbers(DataType),
    /// Indices of that many bytes.
    Indices(usize),
}

impl Content {
    pub(crate) fn size(self) -> usize {
        match self {
            Content::Numbers(data_type) => data_type.size(),
            Content::Indices(bytes) => bytes,
        }
    }
}

/// An operand of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// What it consists of.
    pub content: Content,
    /// Its sizes and strides.
    pub placed: Placed,
    /// Whether it is a result.
    pub is_written: bool,
    /// Whether kernels take four elements of it at once if its address allows that.
    pub in_fours: bool,
}

impl Operand {
    /// Whether it begins where four of its elements cannot be taken at once, and kernels care.
    fn is_apart(&self, address: u64) -> bool {
        self.in_fours && !address.is_multiple_of(4 * self.content.size() as u64)
    }
}

/// An operation with its sizes, types and layouts, without its memory.
pub trait Operation: Copy + Debug {
    /// Its name in words.
    const NAME: &'static str;
    /// The family of its kernels.
    const FAMILY: &'static str;
    /// The least size that the largest of its results is taken to have: results near zero may be so by chance.
    const SCALE: f64 = f64::MIN_POSITIVE;
    /// The addresses of its operands; 0 for one that is absent.
    type Buffers: Copy;
    /// Everything that distinguishes one first result from another, except which operands are present.
    type Key: Hash + Debug;

    /// Why it cannot be computed by anybody.
    fn check(&self, at: &Self::Buffers) -> Result<(), String>;
    /// See [`Operation::Key`].
    fn key(&self) -> Self::Key;
    /// How our kernels divide it, unless another way was measured to be faster; `None` if they do not take it.
    fn way(&self, compute_units: usize) -> Option<Way>;
    /// The launches of our kernels in a way, divided among workgroups by way of a workspace or not; `None` if they do
    /// not take it.
    fn launches(&self, in_chunks: bool, way: Way) -> Option<Launches>;
    /// The addresses of all operands.
    fn addresses(at: &Self::Buffers) -> Vec<u64>;
    /// The same addresses as buffers.
    fn buffers(addresses: &[u64]) -> Self::Buffers;
    /// Its operands, in the order of the addresses.
    fn operands(&self) -> Vec<Operand>;
    /// How many parts there are that the CPU can compute one by one.
    fn parts(&self) -> usize;
    /// One of them.
    fn part(&self, number: usize, at: &Self::Buffers) -> (Self, Self::Buffers);
    /// Of how many slices it is, and how many elements each has.
    fn slices(&self) -> (usize, usize);
    /// The same operation on the first of them.
    fn of_slices(&self, count: usize) -> Self;
    /// The same operation with factors that hide no error of a kernel.
    fn for_trial(&self) -> Self {
        *self
    }
    /// Changes random numbers between -1 and 1 to what an operand should have in a trial.
    fn fill(&self, _operand: usize, _numbers: &mut Numbers) {}
    /// The bytes of indices that are read, for a trial.
    fn indices(&self, _seed: u64) -> Vec<u8> {
        Vec::new()
    }
    /// Whether its first result is discontinuous: a small change of an operand may change it by a lot.
    fn leaps(&self) -> bool {
        false
    }
    /// Operations that leave a wrong result in the same memory, one after the other.
    fn spoiled(&self, at: &Self::Buffers) -> Vec<(Self, Self::Buffers)>;
    /// Small ones of every kind, with addresses that say which operands are present. An emulated card, a thousand times
    /// slower, gets only those in single precision.
    fn trials(is_emulated: bool) -> Vec<(Self, Self::Buffers)>;
    /// Computes it on the host: copies the operands there, computes by the definition, and copies the results back.
    ///
    /// # Safety
    /// Device memory as the operands say must lie at the buffers, until the stream has come behind it.
    unsafe fn on_host(&self, engine: &GpuEngine, at: &Self::Buffers, stream: u64) -> Result<(), Failure>;
}

/// Computes an operation: by our kernels if their canary passed and their first result was right, otherwise on the CPU.
///
/// # Safety
/// As [`Operation::on_host`].
pub unsafe fn compute<O: Operation>(
    session: &Session,
    device: &Device,
    what: &O,
    at: &O::Buffers,
    stream: u64,
) -> Result<(), Failure> {
    what.check(at).map_err(Failure::Declined)?;
    let by_kernels = prepare(session, device, what, at, stream)?;
    // SAFETY: the caller's promise.
    unsafe {
        if is_wrong_on_purpose() {
            return what.spoiled(at).iter().try_for_each(|(what, at)| match &by_kernels {
                Some(_) => launch::<O>(device, &load(device, what, planned(device, what)?, stream)?, at, stream),
                None => what.on_host(&device.engine, at, stream),
            });
        }
        match by_kernels {
            Some(loaded) => launch::<O>(device, &loaded, at, stream),
            None => what.on_host(&device.engine, at, stream),
        }
    }
}

/// Its kernels, loaded and with a first result that was right; `None` if the CPU must compute.
fn prepare<O: Operation>(
    session: &Session,
    device: &Device,
    what: &O,
    at: &O::Buffers,
    stream: u64,
) -> Result<Option<LoadedLaunches>, Failure> {
    if device.engine.has_kernels().is_err() || !device.may_run(O::FAMILY) {
        return Ok(None);
    }
    let given = Given::new(what, at);
    let found = given.chosen(device).and_then(|Chosen { way, .. }| {
        let loaded = load(device, what, way, stream)?;
        given.prove(session, device, way, stream)?;
        Ok(loaded)
    });
    first::or_the_cpu(O::NAME, found)
}

/// An operation with the operands that a caller has.
pub(crate) struct Given<'a, O: Operation> {
    pub(crate) what: &'a O,
    at: &'a O::Buffers,
    /// Everything that distinguishes one first result from another.
    key: (O::Key, Vec<Mark>),
}

impl<'a, O: Operation> Given<'a, O> {
    pub(crate) fn new(what: &'a O, at: &'a O::Buffers) -> Given<'a, O> {
        Given { what, at, key: (what.key(), marks(&what.operands(), &O::addresses(at))) }
    }

    /// What measurements of it are kept under.
    pub(crate) fn name(&self) -> String {
        format!("{} {:?}", O::FAMILY, self.key)
    }

    /// The ways to divide it that differ, the planned one first.
    pub(crate) fn ways(&self, device: &Device) -> Vec<Way> {
        let mut known = Vec::new();
        let is_new = |way: &Way| {
            let launches = self.what.launches(true, *way);
            let is_new = launches.is_some() && !known.contains(&launches);
            known.push(launches);
            is_new
        };
        planned(device, self.what).map_or(Vec::new(), |way| way.near().into_iter().filter(is_new).collect())
    }

    /// How it is divided: as was measured in an earlier process, or as planned.
    pub(crate) fn chosen(&self, device: &Device) -> Result<Chosen, Failure> {
        let hash = hash_of(&self.key);
        if let Some(known) = device.ways.get(hash) {
            return Ok(known);
        }
        let measured = device.engine.preferred_way(&self.name());
        let measured = measured.and_then(|name| self.ways(device).into_iter().find(|way| way.to_string() == name));
        let found = match measured {
            Some(way) => Chosen { way, is_settled: true },
            None => Chosen { way: planned(device, self.what)?, is_settled: false },
        };
        device.ways.keep(hash, found);
        Ok(found)
    }

    /// Divides it so from now on.
    pub(crate) fn settle(&self, device: &Device, way: Way) {
        device.ways.keep(hash_of(&self.key), Chosen { way, is_settled: true });
    }

    /// An error unless the first result in that way was right, here or in an earlier process.
    pub(crate) fn prove(&self, session: &Session, device: &Device, way: Way, stream: u64) -> Result<(), Failure> {
        let trial = || {
            let trial = of_few_slices(self.what, way);
            try_one(device, &trial, way, self.at, &few(trial.parts()), 1, stream)
        };
        let (family, key) = (O::FAMILY, &self.key);
        match planned(device, self.what)? == way {
            true => session.prove(device, &First { family, key, stream }, trial),
            false => session.prove(device, &First { family, key: &(key, way), stream }, trial),
        }
    }

    /// What a verdict on that way is kept under, which is not the planned one.
    pub(crate) fn name_of_verdict(&self, device: &Device, way: Way) -> String {
        First { family: O::FAMILY, key: &(&self.key, way), stream: 0 }.name(device)
    }
}

/// Memory of our own for an operation with the operands that a caller has, to time it.
pub(crate) struct Bench<'a, O: Operation> {
    device: &'a Device,
    at: O::Buffers,
    _memory: Memory<'a>,
}

impl<'a, O: Operation> Bench<'a, O> {
    pub(crate) fn new(device: &'a Device, given: &Given<'_, O>) -> Result<Bench<'a, O>, Failure> {
        let mut memory = Memory::new(device);
        let at = O::buffers(&place(&given.what.operands(), &O::addresses(given.at), &mut memory)?);
        Ok(Bench { device, at, _memory: memory })
    }

    /// Seconds of one run. Waits for the device.
    pub(crate) fn seconds(&self, loaded: &LoadedLaunches, stream: u64, repeats: u32) -> Result<f64, Failure> {
        // SAFETY: memory of the operation's sizes, given back after the work on it is done. What is in it does not matter.
        let run = || unsafe { launch::<O>(self.device, loaded, &self.at, stream) };
        self.device.engine.measure_calls(stream, repeats, run)
    }
}

fn declined() -> Failure {
    Failure::Declined("they do not take tensors of such sizes, types and layouts".to_owned())
}

/// How our kernels divide it where nothing was measured.
pub(crate) fn planned<O: Operation>(device: &Device, what: &O) -> Result<Way, Failure> {
    what.way(device.engine.driver().description().model.compute_units).ok_or_else(declined)
}

/// The most elements of a first result's trial that has more than a few slices.
const TRIAL_ELEMENTS: usize = 1 << 20;
const TRIAL_SLICES: usize = 4;

/// An operation by the same kernels on as few slices as make a fair trial: all of them would need the memory again, and
/// seconds.
pub(crate) fn of_few_slices<O: Operation>(what: &O, way: Way) -> O {
    let path = |it: &O| [true, false].map(|in_chunks| Some(it.launches(in_chunks, way)?.path()));
    let what = what.for_trial();
    let (slices, elements) = what.slices();
    let enough = TRIAL_ELEMENTS.div_ceil(elements).max(TRIAL_SLICES);
    let fewer = std::iter::successors(Some(enough), |count| Some(2 * count)).take_while(|&count| count < slices);
    fewer.map(|count| what.of_slices(count)).find(|few| path(few) == path(&what)).unwrap_or(what)
}

/// The first operand at an operand's address, if it is present at all, and whether that is aligned: what is, is read in
/// fours.
type Mark = Option<(usize, bool)>;

/// Those of all operands.
fn marks(operands: &[Operand], addresses: &[u64]) -> Vec<Mark> {
    let mark = |(operand, &place): (&Operand, &u64)| {
        let twin = addresses.iter().position(|&other| other == place)?;
        (place != 0).then(|| (twin, operand.is_apart(place)))
    };
    operands.iter().zip(addresses).map(mark).collect()
}

/// The launches of an operation in a way, with their kernels.
pub(crate) fn load<O: Operation>(device: &Device, what: &O, way: Way, stream: u64) -> Result<LoadedLaunches, Failure> {
    // A recorded graph may be replayed at any time, so it must not share memory with other calls.
    let in_chunks = !device.engine.driver().is_capturing(stream)?;
    load_in(device, what, in_chunks, way, stream)
}

fn load_in<O: Operation>(
    device: &Device,
    what: &O,
    in_chunks: bool,
    way: Way,
    stream: u64,
) -> Result<LoadedLaunches, Failure> {
    let launches = what.launches(in_chunks, way).ok_or_else(declined)?;
    device.engine.load_launches(launches, stream).map_err(Failure::from)
}

/// By our kernels.
///
/// # Safety
/// As [`compute`].
unsafe fn launch<O: Operation>(
    device: &Device,
    loaded: &LoadedLaunches,
    at: &O::Buffers,
    stream: u64,
) -> Result<(), Failure> {
    let engine = &device.engine;
    let mut addresses = O::addresses(at);
    if loaded.workspace_bytes() == 0 {
        addresses.push(0);
        // SAFETY: the caller's promise.
        return unsafe { engine.launch_all(loaded, &addresses, stream) }.map_err(Failure::from);
    }
    let scratch = device.scratch(stream);
    let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
    addresses.push(scratch.at_least(engine.driver(), loaded.workspace_bytes())?);
    // SAFETY: as above; nobody else puts launches for this memory between these.
    unsafe { engine.launch_all(loaded, &addresses, stream) }.map_err(Failure::from)
}

/// The kernels of an operation, as a canary tries them.
pub(crate) struct Proof {
    /// Their family.
    pub(crate) family: &'static str,
    /// Compiles and loads them before somebody waits for their results.
    pub(crate) prepare: fn(&Device) -> Result<(), GpuError>,
    /// Tries them, and returns their largest difference from the CPU's results as a share of the tolerance. Waits for
    /// the device.
    pub(crate) run: fn(&Device) -> Result<f64, String>,
}

impl Proof {
    pub(crate) const fn of<O: Operation>() -> Proof {
        Proof { family: O::FAMILY, prepare: prepare_all::<O>, run: try_all::<O> }
    }
}

fn trials_of<O: Operation>(device: &Device) -> Vec<(O, O::Buffers)> {
    O::trials(device.engine.driver().description().is_emulated())
}

fn prepare_all<O: Operation>(device: &Device) -> Result<(), GpuError> {
    for (trial, _) in trials_of::<O>(device) {
        let Ok(way) = planned(device, &trial) else { continue };
        for launches in [false, true].into_iter().filter_map(|in_chunks| trial.launches(in_chunks, way)) {
            device.engine.load_launches(launches, 0)?;
        }
    }
    Ok(())
}

fn try_all<O: Operation>(device: &Device) -> Result<f64, String> {
    trials_of::<O>(device).iter().enumerate().try_fold(0.0f64, |worst, (seed, (trial, like))| {
        let parts: Vec<usize> = (0..trial.parts()).collect();
        let tried = planned(device, trial).and_then(|way| try_one(device, trial, way, like, &parts, seed as u64, 0));
        Ok(worst.max(tried.map_err(|failure| failure.reason().to_owned())?))
    })
}

/// Computes an operation on generated numbers with the operands that `like` has, and compares some parts with the CPU's
/// results: the largest difference as a share of the tolerance. If a recorded graph takes another path, tries that too.
fn try_one<O: Operation>(
    device: &Device,
    trial: &O,
    way: Way,
    like: &O::Buffers,
    parts: &[usize],
    seed: u64,
    stream: u64,
) -> Result<f64, Failure> {
    let both = [load_in(device, trial, true, way, stream)?, load_in(device, trial, false, way, stream)?];
    let is_same = both[0].workspace_bytes() == both[1].workspace_bytes();
    let mut memory = Memory::new(device);
    let addresses = place(&trial.operands(), &O::addresses(like), &mut memory)?;
    let at = O::buffers(&addresses);
    let bring = || parts.iter().map(|&part| results(device, trial, part, &at, stream)).collect::<Result<Vec<_>, _>>();
    fill(device, trial, &addresses, seed, stream)?;
    for &part in parts {
        let (one, at) = trial.part(part, &at);
        // SAFETY: memory of a trial's sizes, alive until the results were read.
        unsafe { one.on_host(&device.engine, &at, stream)? };
    }
    let right = bring()?;
    let mut worst = 0.0f64;
    for loaded in both.iter().take(if is_same { 1 } else { 2 }) {
        fill(device, trial, &addresses, seed, stream)?;
        // SAFETY: as above.
        unsafe { launch::<O>(device, loaded, &at, stream)? };
        worst = worst.max(share(trial, &bring()?, &right));
    }
    Ok(worst)
}

/// Memory for the operands that have an address. Those that share memory there share it here, and those that are not
/// aligned there begin at the second element here.
fn place(operands: &[Operand], wanted: &[u64], memory: &mut Memory<'_>) -> Result<Vec<u64>, Failure> {
    let alike = |at: usize, other: usize| {
        let (one, other_one) = (operands[at], operands[other]);
        wanted[other] == wanted[at] && (one.content, one.placed) == (other_one.content, other_one.placed)
    };
    let mut found = vec![0; wanted.len()];
    for at in 0..wanted.len() {
        found[at] = match (0..at).find(|&other| alike(at, other)) {
            _ if wanted[at] == 0 => 0,
            Some(twin) => found[twin],
            None => {
                let size = operands[at].content.size();
                let shift = if operands[at].is_apart(wanted[at]) { size } else { 0 };
                memory.allocate(operands[at].placed.span() * size + shift)? + shift as u64
            }
        };
    }
    Ok(found)
}

/// Writes generated numbers to all operands.
fn fill<O: Operation>(device: &Device, trial: &O, addresses: &[u64], seed: u64, stream: u64) -> Result<(), Failure> {
    let driver = device.engine.driver();
    for (number, operand) in trial.operands().into_iter().enumerate() {
        let to = addresses[number];
        if to == 0 || addresses[..number].contains(&to) {
            continue;
        }
        // SAFETY: memory of a trial's sizes.
        unsafe {
            match operand.content {
                Content::Numbers(data_type) => {
                    let mut numbers = Numbers::random(data_type, operand.placed.span(), seed + number as u64);
                    trial.fill(number, &mut numbers);
                    numbers.write(driver, to, stream)?;
                }
                Content::Indices(bytes) => {
                    let indices = trial.indices(seed);
                    assert_eq!(indices.len(), operand.placed.span() * bytes, "indices of {trial:?}");
                    driver.write(to, &indices, stream)?;
                }
            }
        }
    }
    Ok(())
}

/// What operands consist of, and the numbers that are there.
type Results = Vec<(Content, Vec<f64>)>;

/// The results of one part that are present.
fn results<O: Operation>(
    device: &Device,
    trial: &O,
    part: usize,
    at: &O::Buffers,
    stream: u64,
) -> Result<Results, Failure> {
    let (one, at) = trial.part(part, at);
    let all = one.operands().into_iter().zip(O::addresses(&at));
    let written = all.filter(|(operand, at)| operand.is_written && *at != 0);
    let read = |(operand, at): (Operand, u64)| {
        // SAFETY: memory of a trial's sizes.
        let numbers = unsafe {
            match operand.content {
                Content::Numbers(data_type) => {
                    Brought::new(&device.engine, data_type, operand.placed, at, stream)?.all()
                }
                Content::Indices(bytes) => {
                    let mut raw = vec![0; operand.placed.span() * bytes];
                    device.engine.driver().read(&mut raw, at, stream)?;
                    raw.chunks(bytes).map(|raw| index_of(raw) as f64).collect()
                }
            }
        };
        Ok::<_, Failure>((operand.content, numbers))
    };
    written.map(read).collect()
}

/// Factors of the result and of what was in its place, for a trial: the caller's could hide an error.
pub(crate) fn factors_in_trials(factors: [f64; 2]) -> [f64; 2] {
    match factors {
        // Kernels may leave such factors out.
        [1.0, 0.0] => factors,
        [_, 0.0] => [0.5, 0.0],
        _ => [0.5, 0.25],
    }
}

/// The index that its bytes are.
pub(crate) fn index_of(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |index, &byte| index << 8 | u64::from(byte))
}

/// The largest error as a share of the tolerance. An index is right or wrong.
fn share<O: Operation>(trial: &O, found: &[Results], right: &[Results]) -> f64 {
    let mut worst = 0.0f64;
    for output in 0..right.first().map_or(0, Vec::len) {
        let all = || right.iter().flat_map(|part| &part[output].1);
        let allowed = match right[0][output].0 {
            Content::Numbers(data_type) => {
                let finite = all().filter(|it| it.is_finite());
                tolerance::canary(data_type) * finite.fold(O::SCALE, |most, it| most.max(it.abs()))
            }
            Content::Indices(_) => 0.0,
        };
        let pairs = found.iter().flat_map(|part| &part[output].1).zip(all());
        let shares: Vec<f64> = pairs.map(|(&found, &right)| first::share(found, right, allowed)).collect();
        let off = shares.iter().filter(|share| **share > 1.0).count();
        // Next to a discontinuity, rounding decides a few elements.
        if output == 0 && trial.leaps() && off * 1000 <= shares.len() {
            continue;
        }
        worst = shares.into_iter().fold(worst, f64::max);
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_what_is_present_shared_and_aligned() {
        let numbers = Content::Numbers(DataType::F16);
        let operand = |in_fours| Operand { content: numbers, placed: Placed::row(9), is_written: false, in_fours };
        let operands = [true, true, true, true, false, true].map(operand);
        let found = marks(&operands, &[32, 0, 32, 36, 36, 40]);
        let of = |twin, is_apart| Some((twin, is_apart));
        assert_eq!(found, [of(0, false), None, of(0, false), of(3, true), of(3, false), of(5, false)]);
    }

    #[test]
    fn factors_that_a_kernel_could_leave_out_have_a_trial_of_their_own() {
        assert_eq!(factors_in_trials([1.0, 0.0]), [1.0, 0.0]);
        for factors in [[2.0, 0.0], [1.0, 1.0], [3.0, -1.0]] {
            let trial = factors_in_trials(factors);
            assert!(trial[0] != 1.0 && (trial[1] == 0.0) == (factors[1] == 0.0), "{factors:?}: {trial:?}");
        }
    }

    #[test]
    fn bytes_of_an_index_are_in_the_order_of_memory() {
        assert_eq!((index_of(&[1, 2]), index_of(&[7]), index_of(&[0, 0, 1, 0])), (513, 7, 65536));
    }
}
