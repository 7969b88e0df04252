//! The real MIOpen: found among what is mapped, whoever loaded it and however.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::api::{Opaque, Performance, Solution, Status};
use crate::lookup;

/// A query of one direction: handle, two operands, convolution, result, and what is asked.
type Query<T> = unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, T) -> Status;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal as $type:ty;)*) => {
        /// The functions that are called. One that the library does not have is none.
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $name: Option<$type>,)*
        }

        impl Functions {
            fn load(library: *mut c_void) -> Functions {
                Functions {
                    $($name: {
                        let found = lookup::real_dlsym(library, $symbol);
                        // SAFETY: the type is that of the function of this name in MIOpen's header; null is none.
                        unsafe { std::mem::transmute::<*mut c_void, Option<$type>>(found) }
                    },)*
                }
            }
        }
    };
}

/// The eight calls of one direction.
pub(crate) struct DirectionCalls {
    pub(crate) workspace_size: Option<Query<*mut usize>>,
    pub(crate) find: Option<Find>,
    pub(crate) execute: Option<Execute>,
    pub(crate) solution_count: Option<Query<*mut usize>>,
    pub(crate) solution: Option<GetSolution>,
    pub(crate) solution_workspace_size: Option<SolutionWorkspaceSize>,
    pub(crate) compile_solution: Option<Query<u64>>,
    pub(crate) immediate: Option<Immediate>,
}

pub(crate) type Find = unsafe extern "C" fn(
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    *mut c_int,
    *mut Performance,
    Opaque,
    usize,
    bool,
) -> Status;
pub(crate) type Execute = unsafe extern "C" fn(
    Opaque,
    *const c_void,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    *const c_void,
    Opaque,
    Opaque,
    Opaque,
    usize,
) -> Status;
pub(crate) type GetSolution =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, usize, *mut usize, *mut Solution) -> Status;
pub(crate) type SolutionWorkspaceSize =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, u64, *mut usize) -> Status;
pub(crate) type Immediate =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, usize, u64) -> Status;
pub(crate) type Bias =
    unsafe extern "C" fn(Opaque, *const c_void, Opaque, Opaque, *const c_void, Opaque, Opaque) -> Status;
pub(crate) type BiasActivation = unsafe extern "C" fn(
    Opaque,
    *const c_void,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    Opaque,
    usize,
    *const c_void,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
) -> Status;

functions! {
    create: c"miopenCreate" as unsafe extern "C" fn(*mut Opaque) -> Status;
    create_with_stream: c"miopenCreateWithStream" as unsafe extern "C" fn(*mut Opaque, Opaque) -> Status;
    version: c"miopenGetVersion" as unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> Status;
    stream: c"miopenGetStream" as unsafe extern "C" fn(Opaque, *mut Opaque) -> Status;
    tensor_size: c"miopenGetTensorDescriptorSize" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    tensor: c"miopenGetTensorDescriptor" as unsafe extern "C" fn(Opaque, *mut c_int, *mut c_int, *mut c_int) -> Status;
    tensor_bytes: c"miopenGetTensorNumBytes" as unsafe extern "C" fn(Opaque, *mut usize) -> Status;
    spatial: c"miopenGetConvolutionSpatialDim" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    convolution: c"miopenGetConvolutionNdDescriptor" as unsafe extern "C" fn(Opaque, c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
    groups: c"miopenGetConvolutionGroupCount" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    algorithm_of: c"miopenGetSolverIdConvAlgorithm" as unsafe extern "C" fn(u64, *mut c_int) -> Status;
    forward_bias: c"miopenConvolutionForwardBias" as Bias;
    backward_bias: c"miopenConvolutionBackwardBias" as Bias;
    bias_activation: c"miopenConvolutionBiasActivationForward" as BiasActivation;
    operator_convolution: c"miopenCreateOpConvForward" as unsafe extern "C" fn(Opaque, *mut Opaque, Opaque, Opaque) -> Status;
    compile_plan: c"miopenCompileFusionPlan" as unsafe extern "C" fn(Opaque, Opaque) -> Status;
    execute_plan: c"miopenExecuteFusionPlan" as unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque) -> Status;
    execute_plan_in: c"miopenExecuteFusionPlan_v2" as unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, usize) -> Status;
    destroy_plan: c"miopenDestroyFusionPlan" as unsafe extern "C" fn(Opaque) -> Status;
    convolution_problem: c"miopenCreateConvProblem" as unsafe extern "C" fn(*mut Opaque, Opaque, c_int) -> Status;
    find_solutions: c"miopenFindSolutions" as unsafe extern "C" fn(Opaque, Opaque, Opaque, *mut Opaque, *mut usize, usize) -> Status;
    load_solution: c"miopenLoadSolution" as unsafe extern "C" fn(*mut Opaque, *const std::ffi::c_char, usize) -> Status;
    destroy_problem: c"miopenDestroyProblem" as unsafe extern "C" fn(Opaque) -> Status;
    forward_size: c"miopenConvolutionForwardGetWorkSpaceSize" as Query<*mut usize>;
    forward_find: c"miopenFindConvolutionForwardAlgorithm" as Find;
    forward_execute: c"miopenConvolutionForward" as Execute;
    forward_count: c"miopenConvolutionForwardGetSolutionCount" as Query<*mut usize>;
    forward_solution: c"miopenConvolutionForwardGetSolution" as GetSolution;
    forward_solution_size: c"miopenConvolutionForwardGetSolutionWorkspaceSize" as SolutionWorkspaceSize;
    forward_compile: c"miopenConvolutionForwardCompileSolution" as Query<u64>;
    forward_immediate: c"miopenConvolutionForwardImmediate" as Immediate;
    data_size: c"miopenConvolutionBackwardDataGetWorkSpaceSize" as Query<*mut usize>;
    data_find: c"miopenFindConvolutionBackwardDataAlgorithm" as Find;
    data_execute: c"miopenConvolutionBackwardData" as Execute;
    data_count: c"miopenConvolutionBackwardDataGetSolutionCount" as Query<*mut usize>;
    data_solution: c"miopenConvolutionBackwardDataGetSolution" as GetSolution;
    data_solution_size: c"miopenConvolutionBackwardDataGetSolutionWorkspaceSize" as SolutionWorkspaceSize;
    data_compile: c"miopenConvolutionBackwardDataCompileSolution" as Query<u64>;
    data_immediate: c"miopenConvolutionBackwardDataImmediate" as Immediate;
    weights_size: c"miopenConvolutionBackwardWeightsGetWorkSpaceSize" as Query<*mut usize>;
    weights_find: c"miopenFindConvolutionBackwardWeightsAlgorithm" as Find;
    weights_execute: c"miopenConvolutionBackwardWeights" as Execute;
    weights_count: c"miopenConvolutionBackwardWeightsGetSolutionCount" as Query<*mut usize>;
    weights_solution: c"miopenConvolutionBackwardWeightsGetSolution" as GetSolution;
    weights_solution_size: c"miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize" as SolutionWorkspaceSize;
    weights_compile: c"miopenConvolutionBackwardWeightsCompileSolution" as Query<u64>;
    weights_immediate: c"miopenConvolutionBackwardWeightsImmediate" as Immediate;
}

/// One mapped MIOpen.
pub(crate) struct Real {
    pub(crate) functions: Functions,
    /// Its file.
    pub(crate) path: String,
    /// Where it is mapped: what tells two of them apart.
    pub(crate) base: usize,
    /// Forward, backward-data, backward-weights.
    pub(crate) directions: [DirectionCalls; 3],
}

macro_rules! direction_calls {
    ($functions:ident, $size:ident, $find:ident, $execute:ident, $count:ident, $solution:ident, $solution_size:ident, $compile:ident, $immediate:ident) => {
        DirectionCalls {
            workspace_size: $functions.$size,
            find: $functions.$find,
            execute: $functions.$execute,
            solution_count: $functions.$count,
            solution: $functions.$solution,
            solution_workspace_size: $functions.$solution_size,
            compile_solution: $functions.$compile,
            immediate: $functions.$immediate,
        }
    };
}

impl Real {
    fn load(path: &CStr, base: usize) -> Option<Real> {
        // SAFETY: the file is mapped already; this only counts a reference, which is never given back.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let getter = lookup::real_dlsym(library, c"miopenGetTensorDescriptor");
        // A proxy has the name of MIOpen and none of its functions: they are in the library that it needs.
        if library.is_null() || lookup::object_at(getter as usize).is_none_or(|(_, defined)| defined != base) {
            return None;
        }
        let functions = Functions::load(library);
        let f = &functions;
        let directions = [
            direction_calls!(
                f,
                forward_size,
                forward_find,
                forward_execute,
                forward_count,
                forward_solution,
                forward_solution_size,
                forward_compile,
                forward_immediate
            ),
            direction_calls!(
                f,
                data_size,
                data_find,
                data_execute,
                data_count,
                data_solution,
                data_solution_size,
                data_compile,
                data_immediate
            ),
            direction_calls!(
                f,
                weights_size,
                weights_find,
                weights_execute,
                weights_count,
                weights_solution,
                weights_solution_size,
                weights_compile,
                weights_immediate
            ),
        ];
        Some(Real { functions, path: path.to_string_lossy().into_owned(), base, directions })
    }
}

/// All that were found; they stay mapped, since each is held.
static KNOWN: Mutex<Vec<&'static Real>> = Mutex::new(Vec::new());
/// The one that is there, as long as it is the only one.
static ONLY: AtomicPtr<Real> = AtomicPtr::new(std::ptr::null_mut());
/// The one that each caller is linked to, by where the caller is mapped.
static OF_CALLERS: Mutex<Option<HashMap<usize, &'static Real>>> = Mutex::new(None);

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the C library hands over its entry and the place that was given to it below.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Vec<(CString, usize)>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a C string of the loader's, alive during this call.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if file.starts_with(b"libMIOpen") && file.windows(3).any(|it| it == b".so") {
        found.push((name.to_owned(), info.dlpi_addr as usize));
    }
    0
}

/// Looks at what is mapped now. Called where a library begins to be used: when a handle is made, and when none is known.
pub(crate) fn scan() {
    let mut found: Vec<(CString, usize)> = Vec::new();
    // SAFETY: the function above, with the place that it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for (path, base) in found {
        if known.iter().all(|real| real.base != base)
            && let Some(real) = Real::load(&path, base)
        {
            // Never given back: callers hold it.
            known.push(Box::leak(Box::new(real)));
        }
    }
    let only = if let [only] = known[..] { std::ptr::from_ref(only).cast_mut() } else { std::ptr::null_mut() };
    ONLY.store(only, Ordering::Release);
}

/// The MIOpen that whoever called us would have called; none where none is mapped.
pub(crate) fn of_caller() -> Option<&'static Real> {
    let only = ONLY.load(Ordering::Acquire);
    if !only.is_null() {
        // SAFETY: set from a reference that lives for ever.
        return Some(unsafe { &*only });
    }
    if KNOWN.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        scan();
        let only = ONLY.load(Ordering::Acquire);
        if !only.is_null() {
            // SAFETY: as above.
            return Some(unsafe { &*only });
        }
    }
    among_several()
}

/// Of several the one that the caller's own library is linked to, else the one in which functions were looked up last.
fn among_several() -> Option<&'static Real> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let first = known.first().copied()?;
    let Some((caller, base)) = lookup::caller() else { return Some(first) };
    let mut of_callers = OF_CALLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_callers = of_callers.get_or_insert_with(HashMap::new);
    if let Some(real) = of_callers.get(&base) {
        return Some(real);
    }
    crate::talk::say(&format!(
        "{} MIOpen libraries are in this process: each caller's own is used ({})",
        known.len(),
        known.iter().map(|real| real.path.as_str()).collect::<Vec<_>>().join(", ")
    ));
    let linked = lookup::definition_for(&caller, c"miopenGetTensorDescriptor").or(Some(lookup::looked_up()));
    let real = linked.and_then(|at| known.iter().find(|real| real.base == at)).copied().unwrap_or(first);
    of_callers.insert(base, real);
    Some(real)
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside of the real library, or of a call that another face has planned: what comes in then is
/// passed on. MIOpen calls some of its own functions through the table that leads here.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Calls the real library.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
        }
    }
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let _leave = Leave;
    call()
}

/// For the face in torch's dispatcher: what this thread asks MIOpen from now on was planned already; with 0, no more.
#[unsafe(no_mangle)]
pub extern "C" fn unhang_miopen_planned(planned: c_int) {
    DEPTH.with(|depth| {
        let now = depth.get();
        depth.set(if planned != 0 { now + 1 } else { now.saturating_sub(1) });
    });
}
