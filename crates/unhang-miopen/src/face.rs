//! MIOpen's boundary as a face of the session: what only this library knows about its process.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unhang_conv::{DataType, Direction};
use unhang_engine::{EngineName, Verdict};
use unhang_miopen_api::{
    ALLOCATION_FAILED, BAD_PARAMETER, INTERNAL_ERROR, NAIVE_SOLVERS, NOT_IMPLEMENTED, Opaque, SUCCESS, Status, index_of,
};
use unhang_probe::canary::Families;
use unhang_session::{
    Decision, Device, Face, Failure, NotComputed, Operation, Planned, Session, Subject, Watchdog, compute,
    say_once as say, tune_operation,
};

use crate::describe::{Call, Described};
use crate::real::Real;
use crate::{canary, loader, real, watch};

/// The face.
pub(crate) struct Miopen {
    get_device: Option<GetNumber>,
}

/// A runtime function that writes a number.
type GetNumber = unsafe extern "C" fn(*mut c_int) -> c_int;

pub(crate) type Process = unhang_session::Process<Miopen>;

impl Face for Miopen {
    /// Card, library and what descriptors say.
    type Key = (i32, usize, Described);

    fn device(&self) -> i32 {
        let mut ordinal = 0;
        if let Some(get_device) = self.get_device {
            // SAFETY: a place for the number.
            unsafe { get_device(&mut ordinal) };
        }
        ordinal
    }

    fn absent(&self) -> Vec<(EngineName, String)> {
        vec![(EngineName::Aten, "it is torch's, and this is MIOpen's boundary".to_owned())]
    }

    fn shipped_kernels(&self) -> Option<PathBuf> {
        loader::shipped_kernels()
    }

    fn only_families(&self) -> Option<Vec<String>> {
        canary::only()
    }

    fn try_in_child(&self, device: i32, families: &[String], deadline: Duration) -> Families {
        canary::run(device, families, deadline)
    }

    fn caller(&self) -> String {
        loader::caller().map(|(path, _)| path.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn watchdog(&self, session: &Session) -> Option<&'static Watchdog> {
        watch::watchdog(session)
    }
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// This process's session; `None` if unhang is switched off, and in a forked child, whose runtime is its parent's.
pub(crate) fn process(real: &Real) -> Option<&'static Process> {
    let make = || {
        let is_off = std::env::var("UNHANG_MIOPEN").is_ok_and(|value| value == "0");
        Process::new(&software(real), is_off, |machine| Miopen {
            get_device: if machine.gpus.len() > 1 { hip(c"hipGetDevice") } else { None },
        })
    };
    let process = PROCESS.get_or_init(make);
    process.is_active().then_some(process)
}

/// The session, if a convolution was asked for before.
pub(crate) fn known() -> Option<&'static Process> {
    PROCESS.get().filter(|process| process.is_own())
}

/// The library and the runtime below it, as `unhang probe` names them.
fn software(real: &Real) -> String {
    let (mut major, mut minor, mut patch, mut runtime) = (0, 0, 0, 0);
    if let Some(version) = real.functions.version {
        // SAFETY: places for the numbers.
        unsafe { version(&mut major, &mut minor, &mut patch) };
    }
    if let Some(runtime_version) = hip(c"hipRuntimeGetVersion") {
        // SAFETY: HIP's function takes a place for a number.
        unsafe { runtime_version(&mut runtime) };
    }
    format!("MIOpen {major}.{minor}.{patch} on HIP {runtime}")
}

fn hip(name: &CStr) -> Option<GetNumber> {
    let path = CString::new(loader::mapped(&["libamdhip64"]).into_iter().next()?).ok()?;
    // SAFETY: the file is mapped already.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let found = loader::real_dlsym(library, name);
    // SAFETY: both functions have this type; null means that the library lacks it.
    unsafe { std::mem::transmute::<*mut c_void, Option<GetNumber>>(found) }
}

/// The decision for a call, or the status to return.
pub(crate) fn decide(process: &Process, real: &Real, call: &Call) -> Result<Decision, Status> {
    let decision = match Described::read(real, call) {
        Some(described) => decide_described(process, real, described),
        None if [call.convolution, call.x, call.w, call.y].iter().any(|it| it.is_null()) => {
            return Err(BAD_PARAMETER);
        }
        None => process.not_ours("its descriptors are not supported"),
    };
    if matches!(decision, Decision::Refuse) { Err(NOT_IMPLEMENTED) } else { Ok(decision) }
}

/// The decision for a convolution whose descriptors were read.
pub(crate) fn decide_described(process: &Process, real: &Real, described: Described) -> Decision {
    let key = (process.device_number(), real.base, described);
    process.decide(key, || described.asked())
}

/// The stream of a handle.
pub(crate) fn stream_of(real: &Real, handle: Opaque) -> Option<u64> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the caller's handle, and a place for the stream.
    (!handle.is_null() && unsafe { real.functions.stream?(handle, &mut stream) } == SUCCESS).then_some(stream as u64)
}

/// Computes something other than a convolution on the process's device and the handle's stream, and watches it. `None`
/// if it is left to the real library.
///
/// # Safety
/// Memory as the operation says.
pub(crate) unsafe fn operate<O: Operation>(
    process: &Process,
    real: &Real,
    handle: Opaque,
    operation: &O,
    at: &O::Buffers,
) -> Option<Status> {
    let what = O::NAME;
    let left = |reason: String| say(&format!("a {what} is left to MIOpen: {reason}"));
    let device = process.device_now().map_err(left).ok()?;
    // The canaries, once.
    if device.canaries.get().is_none() {
        process.situation(&device);
    }
    let Some(stream) = stream_of(real, handle) else { return Some(BAD_PARAMETER) };
    tune_operation(process, &device, operation, at, stream);
    let subject = || subject_of(process, &device, what, O::FAMILY);
    // SAFETY: the caller's promise.
    let run = || unsafe { compute(process.session(), &device, operation, at, stream) };
    match process.watched(|| Some(stream), subject, run) {
        Ok(()) => Some(SUCCESS),
        Err(Failure::Declined(reason) | Failure::Misaligned(reason)) => {
            left(reason);
            None
        }
        Err(Failure::NoMemory(reason)) => {
            say(&format!("no memory for a {what}: {reason}"));
            Some(ALLOCATION_FAILED)
        }
        Err(failure) => {
            say(&format!("a {what} failed: {}", failure.reason()));
            Some(INTERNAL_ERROR)
        }
    }
}

/// What the watchdog says and quarantines if kernels of a family hang; `None` where they may not run.
pub(crate) fn subject_of(process: &Process, device: &Device, what: &str, family: &str) -> Option<Arc<Subject>> {
    let named = || {
        let canary = device.card.name_of_family(&device.engine, family);
        Arc::new(Subject::of_family(what, canary, process.session().machine().emulated))
    };
    device.may_run(family).then(named)
}

/// Whether the scalars are those of a plain convolution: 1 and 0. MIOpen supports no others either.
///
/// # Safety
/// Scalars that are not null must be what the interface says: doubles for doubles, else floats.
pub(crate) unsafe fn scalars(data_type: DataType, alpha: *const c_void, beta: *const c_void) -> Status {
    if alpha.is_null() || beta.is_null() {
        return BAD_PARAMETER;
    }
    let is_wide = data_type == DataType::F64;
    // SAFETY: the caller's promise.
    let read = |at: *const c_void| unsafe {
        if is_wide { at.cast::<f64>().read_unaligned() } else { f64::from(at.cast::<f32>().read_unaligned()) }
    };
    if read(alpha) == 1.0 && read(beta) == 0.0 { SUCCESS } else { NOT_IMPLEMENTED }
}

/// The caller's memory: x, w, y, and a workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) tensors: [Opaque; 3],
    pub(crate) workspace: Opaque,
    pub(crate) bytes: usize,
}

/// Computes a convolution with our engines.
///
/// # Safety
/// The memory must be what the call's descriptors say.
pub(crate) unsafe fn execute(
    process: &Process,
    real: &Real,
    route: Planned<'_>,
    call: &Call,
    memory: Memory,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { execute_beside(process, real, route, call.handle, memory, &|| naive(real, call, memory)) }
}

/// Computes a convolution with our engines, or with `vendors_own` if the plan falls back to that.
///
/// # Safety
/// The memory must be what the route's convolution says.
pub(crate) unsafe fn execute_beside(
    process: &Process,
    real: &Real,
    route: Planned<'_>,
    handle: Opaque,
    memory: Memory,
    vendors_own: &dyn Fn() -> Result<(), Failure>,
) -> Status {
    if memory.tensors.iter().any(|it| it.is_null()) {
        return BAD_PARAMETER;
    }
    let Some(stream) = stream_of(real, handle) else { return BAD_PARAMETER };
    let ours = unhang_session::Call {
        operands: route.in_order(memory.tensors).map(|it| it as u64),
        workspace: memory.workspace as u64,
        bytes: memory.bytes as u64,
        stream,
    };
    // SAFETY: the caller's promise.
    match unsafe { route.execute(process, ours, vendors_own) } {
        Ok(()) => SUCCESS,
        Err(NotComputed::Declined) => NOT_IMPLEMENTED,
        Err(NotComputed::NoMemory) => ALLOCATION_FAILED,
        Err(NotComputed::Failed) => INTERNAL_ERROR,
    }
}

/// The real library's naive solver, which needs neither a search nor a workspace: used if the plan falls back to MIOpen
/// after we answered the search.
///
/// # Safety
/// As [`execute`].
unsafe fn naive(real: &Real, call: &Call, memory: Memory) -> Result<(), Failure> {
    let none = || Failure::Declined("this MIOpen has no immediate mode".to_owned());
    let immediate = real.functions.of(call.direction).immediate.ok_or_else(none)?;
    let ([x, w, y], [xp, wp, yp]) = ([call.x, call.w, call.y], memory.tensors);
    // Queries and immediate mode have the forward direction's operands in reverse order.
    let [a, ap, b, bp, c, cp] = match call.direction {
        Direction::Forward => [w, wp, x, xp, y, yp],
        Direction::BackwardData => [y, yp, w, wp, x, xp],
        Direction::BackwardWeights => [y, yp, x, xp, w, wp],
    };
    let id = NAIVE_SOLVERS[index_of(call.direction)];
    // SAFETY: the caller's descriptors and memory.
    let status = real::inside(|| unsafe {
        immediate(call.handle, a, ap, b, bp, call.convolution, c, cp, memory.workspace, memory.bytes, id)
    });
    if status == SUCCESS { Ok(()) } else { Err(Failure::Failed(Verdict::Error, format!("MIOpen returned {status}"))) }
}
