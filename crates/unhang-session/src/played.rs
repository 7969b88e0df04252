//! A card for tests: the host's memory, and kernels that do what a test says.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use unhang_engine::{EngineName, Verdict};
use unhang_evidence::Store;
use unhang_gpu::compiler::{CompileError, Compiler};
use unhang_gpu::driver::{Description, Driver, DriverError, Function, StreamEvent};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::sources::Kernel;
use unhang_gpu::{GpuEngine, GpuSettings};
use unhang_machine::{Environment, Machine, System};
use unhang_plan::{CanaryFact, ProcessSettings};
use unhang_probe::canary::Families;

use crate::canaries::PARTS;
use crate::card::Card;
use crate::device::Device;
use crate::operation::Operation;
use crate::process::{Face, Process};
use crate::session::Session;
use crate::watchdog::Watchdog;

/// A stream that records a graph.
pub(crate) const RECORDING: u64 = 7;

/// What a kernel does with its addresses.
pub(crate) type Play = fn(&[*mut c_void]);

/// A device whose kernels do `play`, or fail to compile without it; a counter of their launches; and a session without
/// any verdict on them.
pub(crate) fn device(play: Option<Play>) -> (Device, Arc<AtomicUsize>, Session) {
    device_with(play, usize::MAX)
}

/// A device on a card that gives at most that many bytes at once.
pub(crate) fn device_with(play: Option<Play>, most_bytes: usize) -> (Device, Arc<AtomicUsize>, Session) {
    let launches = Arc::new(AtomicUsize::new(0));
    let description = Description {
        name: "played".into(),
        reported_architecture: "host".into(),
        true_architecture: "host".into(),
        driver: "host".into(),
        model: DeviceModel::rx_5600_xt(),
    };
    let settings = GpuSettings { workspace_limit: None, cache_folder: None, cache_limit: 0, shipped_folder: None };
    let driver = Played { description, play, most_bytes, launches: launches.clone() };
    let session = session();
    let card = Card::at(session.machine(), 0, String::new);
    let device = Device::new(0, card, GpuEngine::new(Box::new(driver), settings));
    let passed = |part: &str| CanaryFact {
        engine: EngineName::Jit,
        part: part.to_owned(),
        ended: Some((Verdict::Works, String::new())),
    };
    assert!(device.canaries.set(PARTS.map(passed).into()).is_ok());
    (device, launches, session)
}

/// A session on a machine without cards that has learned nothing.
pub(crate) fn session() -> Session {
    session_with(Store::none())
}

/// A session that knows what a store has.
pub(crate) fn session_with(store: Store) -> Session {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::inspect(&System::new(folder.path(), Environment::default()));
    Session::new(machine, "a machine".to_owned(), Arc::new(store))
}

/// A process with that session, which tunes or does not.
pub(crate) fn process(session: Session, tune: bool) -> Process<PlayedFace> {
    Process::of(PlayedFace, session, ProcessSettings { tune, ..ProcessSettings::default() })
}

/// A face that has nothing but a process.
pub(crate) struct PlayedFace;

impl Face for PlayedFace {
    type Key = u8;

    fn device(&self) -> i32 {
        0
    }

    fn absent(&self) -> Vec<(EngineName, String)> {
        Vec::new()
    }

    fn shipped_kernels(&self) -> Option<PathBuf> {
        None
    }

    fn only_families(&self) -> Option<Vec<String>> {
        None
    }

    fn try_in_child(&self, _: i32, _: &[String], _: Duration) -> Families {
        unreachable!("canaries have passed")
    }

    fn caller(&self) -> String {
        String::new()
    }

    fn watchdog(&self, _: &Session) -> Option<&'static Watchdog> {
        None
    }
}

thread_local! {
    /// The device's time in seconds, made up by kernels that take some.
    static TIME: Cell<f64> = const { Cell::new(0.0) };
    /// The times of events.
    static EVENTS: RefCell<Vec<f64>> = const { RefCell::new(Vec::new()) };
}

/// A kernel takes that many seconds.
pub(crate) fn take(seconds: f64) {
    TIME.set(TIME.get() + seconds);
}

/// A number of the structure that is a kernel's last argument.
pub(crate) fn number_of_shape(arguments: &[*mut c_void], at: usize) -> i32 {
    // SAFETY: structures of launches begin with numbers.
    unsafe { arguments[arguments.len() - 1].cast::<i32>().add(at).read_unaligned() }
}

/// Host memory for numbers, never freed.
pub(crate) fn place(numbers: &[f32]) -> u64 {
    numbers.to_vec().leak().as_mut_ptr() as u64
}

/// Numbers at an address.
pub(crate) fn numbers(at: u64, count: usize) -> Vec<f64> {
    // SAFETY: an address from above, of as many numbers.
    let all = unsafe { std::slice::from_raw_parts(at as *const f32, count) };
    all.iter().map(|&it| f64::from(it)).collect()
}

/// Writes a number to an address.
pub(crate) fn write(at: u64, number: f64) {
    // SAFETY: an address from above.
    unsafe { *(at as *mut f32) = number as f32 };
}

/// An address that a kernel is given.
pub(crate) fn address(arguments: &[*mut c_void], at: usize) -> u64 {
    // SAFETY: addresses come first.
    unsafe { *arguments[at].cast::<u64>() }
}

/// Computes an operation on memory from above.
pub(crate) fn compute<O: Operation>(session: &Session, device: &Device, what: &O, at: &O::Buffers) {
    // SAFETY: memory of these sizes, which stays.
    assert!(unsafe { crate::operation::compute(session, device, what, at, 0) }.is_ok());
}

struct Played {
    description: Description,
    play: Option<Play>,
    most_bytes: usize,
    launches: Arc<AtomicUsize>,
}

struct PlayedCompiler(bool);

impl Compiler for PlayedCompiler {
    fn version(&self) -> String {
        "played".to_owned()
    }

    fn options(&self, kernel: &Kernel, _: &str) -> Vec<String> {
        kernel.definitions()
    }

    fn compile(&self, kernel: &Kernel, _: &[String]) -> Result<Vec<u8>, CompileError> {
        let failed = || CompileError::Failed {
            call: "played",
            code: 1,
            meaning: "it does not compile".to_owned(),
            kernel: kernel.to_string(),
            log: String::new(),
        };
        if self.0 { Ok(vec![1]) } else { Err(failed()) }
    }
}

impl Driver for Played {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::new(PlayedCompiler(self.play.is_some()))
    }

    fn load(&self, _: &[u8], _: &str) -> Result<Function, DriverError> {
        Ok(Function(1))
    }

    unsafe fn launch(
        &self,
        _: Function,
        _: [u32; 3],
        _: u32,
        arguments: &mut [*mut c_void],
        _: u64,
    ) -> Result<(), DriverError> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.play.unwrap()(arguments);
        Ok(())
    }

    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        Ok(stream == RECORDING)
    }

    fn create_event(&self) -> Result<StreamEvent, DriverError> {
        Ok(StreamEvent(EVENTS.with_borrow_mut(|all| {
            all.push(f64::NAN);
            all.len() as u64 - 1
        })))
    }

    fn record(&self, event: StreamEvent, _: u64) -> Result<(), DriverError> {
        EVENTS.with_borrow_mut(|all| all[event.0 as usize] = TIME.get());
        Ok(())
    }

    fn elapsed(&self, from: StreamEvent, to: StreamEvent) -> Result<Option<f32>, DriverError> {
        Ok(EVENTS.with_borrow(|all| Some((1e3 * (all[to.0 as usize] - all[from.0 as usize])) as f32)))
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        if bytes > self.most_bytes {
            return Err(DriverError::Call { call: "allocate", code: 2, meaning: "out of memory".to_owned() });
        }
        Ok(vec![0u128; bytes.div_ceil(16)].leak().as_mut_ptr() as u64)
    }

    unsafe fn free(&self, _: u64) -> Result<(), DriverError> {
        Ok(())
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, _: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise; it is the host's memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn write(&self, to: u64, from: &[u8], _: u64) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }
}
