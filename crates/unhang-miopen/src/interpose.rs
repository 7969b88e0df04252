//! The functions of MIOpen's interface that this library replaces. Everything else is MIOpen's alone.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use unhang_conv::Direction;
use unhang_miopen_api::{
    ALGORITHM_DIRECT, BAD_PARAMETER, INTERNAL_ERROR, NAIVE_SOLVERS, NOT_IMPLEMENTED, NOT_INITIALIZED, Opaque,
    Performance, SUCCESS, Solution, Status, index_of,
};
use unhang_session::{Decision, Planned};

use crate::calls::{answer, guarded};
use crate::describe::{Call, read_tensor};
use crate::face::{self, Memory, Process, process, stream_of};
use crate::fusion::calls::*;
use crate::fusion::{Epilogue, Execution};
use crate::normalization::calls::*;
use crate::normalization::read_activation;
use crate::pooling::calls::*;
use crate::real::{self, Real};
use crate::reduction::calls::*;
use crate::solutions::calls::*;
use crate::{bias, fusion};

// SAFETY for the whole file: as `calls.rs` says.

/// Whether a call is a query, or puts work into the stream: a search or a convolution, which may never return.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Question,
    Work,
}

/// A call that is ours to answer.
struct Ours<'a> {
    process: &'a Process,
    real: &'static Real,
    route: Planned<'a>,
    call: &'a Call,
}

/// Decides on a convolution call, and either passes it on or answers it. Catches panics.
fn boundary(
    kind: CallKind,
    call: Call,
    forward: impl FnOnce(&Real) -> Status,
    ours: impl FnOnce(&Ours<'_>) -> Status,
) -> Status {
    let Some(real) = real::of_caller() else { return NOT_INITIALIZED };
    if real::is_inside() {
        return forward(real);
    }
    let decided = catch_unwind(AssertUnwindSafe(|| {
        let process = process(real)?;
        match face::decide(process, real, &call) {
            Ok(Decision::Forward(subject)) => Some(Err((process, subject))),
            Ok(decision) => Some(Ok(match decision.planned() {
                Some(route) => ours(&Ours { process, real, route, call: &call }),
                None => NOT_IMPLEMENTED,
            })),
            Err(status) => Some(Ok(status)),
        }
    }));
    match decided {
        Ok(None) => forward(real),
        Ok(Some(Ok(status))) => status,
        Ok(Some(Err((process, subject)))) if kind == CallKind::Work => {
            process.watched(|| stream_of(real, call.handle), || subject, || forward(real))
        }
        Ok(Some(Err(_))) => forward(real),
        Err(_) => INTERNAL_ERROR,
    }
}

/// What a search is to return.
struct Search {
    most: c_int,
    count: *mut c_int,
    results: *mut Performance,
}

fn find(ours: &Ours<'_>, memory: Memory, search: Search) -> Status {
    let missing = search.count.is_null() || search.results.is_null() || search.most < 1;
    if missing || memory.tensors.iter().any(|it| it.is_null()) {
        return BAD_PARAMETER;
    }
    let route = ours.route;
    if let Some(stream) = stream_of(ours.real, ours.call.handle) {
        route.tune(ours.process, stream);
    }
    answer(search.count, || 1);
    answer(search.results, || Performance {
        algorithm: ALGORITHM_DIRECT,
        milliseconds: route.milliseconds(),
        memory: route.workspace_bytes() as usize,
    })
}

/// Exactly one: torch reads the first unchecked.
fn solution(ours: &Ours<'_>, most: usize, count: *mut usize, to: *mut Solution) -> Status {
    let (route, call) = (ours.route, ours.call);
    if most > 0 {
        let status = answer(to, || Solution {
            milliseconds: route.milliseconds(),
            workspace: route.workspace_bytes() as usize,
            id: NAIVE_SOLVERS[index_of(call.direction)],
            algorithm: ALGORITHM_DIRECT,
        });
        if status != SUCCESS {
            return status;
        }
    }
    if count.is_null() { SUCCESS } else { answer(count, || most.min(1)) }
}

/// Whether MIOpen has a solver with this id: a framework may have stored one before unhang was installed.
fn check_id(ours: &Ours<'_>, id: u64) -> Status {
    if NAIVE_SOLVERS[index_of(ours.call.direction)] == id {
        return SUCCESS;
    }
    let mut algorithm = 0;
    match ours.real.functions.algorithm_of {
        // SAFETY: a place for the number.
        Some(algorithm_of) if unsafe { algorithm_of(id, &mut algorithm) } == SUCCESS => SUCCESS,
        _ => BAD_PARAMETER,
    }
}

/// The eight functions of a direction. They differ in which of x, w and y is the result, and in their order (in
/// searches and executions, in queries and immediate mode).
macro_rules! direction {
    (
        $direction:ident, $x:ident $w:ident $y:ident, $xp:ident $wp:ident $yp:ident,
        find($fa:ident $fap:ident, $fb:ident $fbp:ident), query($qa:ident $qap:ident, $qb:ident $qbp:ident), result($out:ident $outp:ident),
        $size:ident, $find:ident, $execute:ident, $count:ident, $solution:ident, $solution_size:ident, $compile:ident, $immediate:ident
    ) => {
        exported! {
            /// The workspace that a convolution may need.
            $size(handle: Opaque, $qa: Opaque, $qb: Opaque, convolution: Opaque, $out: Opaque, bytes: *mut usize) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Question,
                    call,
                    |real| forward!(real.functions.of(call.direction).workspace_size, handle, $qa, $qb, convolution, $out, bytes),
                    |ours| answer(bytes, || ours.route.workspace_bytes() as usize),
                )
            }
            /// The search for an algorithm.
            $find(
                handle: Opaque, $fa: Opaque, $fap: Opaque, $fb: Opaque, $fbp: Opaque, convolution: Opaque, $out: Opaque, $outp: Opaque,
                most: c_int, count: *mut c_int, results: *mut Performance, workspace: Opaque, bytes: usize, exhaustive: bool,
            ) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Work,
                    call,
                    |real| forward!(
                        real.functions.of(call.direction).find, handle, $fa, $fap, $fb, $fbp, convolution, $out, $outp, most,
                        count, results, workspace, bytes, exhaustive
                    ),
                    |ours| {
                        let memory = Memory { tensors: [$xp, $wp, $yp], workspace, bytes };
                        find(ours, memory, Search { most, count, results })
                    },
                )
            }
            /// The convolution.
            $execute(
                handle: Opaque, alpha: *const c_void, $fa: Opaque, $fap: Opaque, $fb: Opaque, $fbp: Opaque, convolution: Opaque,
                algorithm: c_int, beta: *const c_void, $out: Opaque, $outp: Opaque, workspace: Opaque, bytes: usize,
            ) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Work,
                    call,
                    |real| forward!(
                        real.functions.of(call.direction).execute, handle, alpha, $fa, $fap, $fb, $fbp, convolution, algorithm,
                        beta, $out, $outp, workspace, bytes
                    ),
                    |ours| {
                        let memory = Memory { tensors: [$xp, $wp, $yp], workspace, bytes };
                        // SAFETY: see above.
                        unsafe {
                            match face::scalars(ours.route.data_type(), alpha, beta) {
                                SUCCESS => face::execute(ours.process, ours.real, ours.route, ours.call, memory),
                                status => status,
                            }
                        }
                    },
                )
            }
            /// How many solutions there are.
            $count(handle: Opaque, $qa: Opaque, $qb: Opaque, convolution: Opaque, $out: Opaque, count: *mut usize) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Question,
                    call,
                    |real| forward!(real.functions.of(call.direction).solution_count, handle, $qa, $qb, convolution, $out, count),
                    |_| answer(count, || 1),
                )
            }
            /// The solutions.
            $solution(
                handle: Opaque, $qa: Opaque, $qb: Opaque, convolution: Opaque, $out: Opaque, most: usize, count: *mut usize,
                solutions: *mut Solution,
            ) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Question,
                    call,
                    |real| forward!(real.functions.of(call.direction).solution, handle, $qa, $qb, convolution, $out, most, count, solutions),
                    |ours| solution(ours, most, count, solutions),
                )
            }
            /// The workspace of a solution.
            $solution_size(handle: Opaque, $qa: Opaque, $qb: Opaque, convolution: Opaque, $out: Opaque, id: u64, bytes: *mut usize) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Question,
                    call,
                    |real| forward!(real.functions.of(call.direction).solution_workspace_size, handle, $qa, $qb, convolution, $out, id, bytes),
                    |ours| match check_id(ours, id) {
                        SUCCESS => answer(bytes, || ours.route.workspace_bytes() as usize),
                        status => status,
                    },
                )
            }
            /// Compiles a solution.
            $compile(handle: Opaque, $qa: Opaque, $qb: Opaque, convolution: Opaque, $out: Opaque, id: u64) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Work,
                    call,
                    |real| forward!(real.functions.of(call.direction).compile_solution, handle, $qa, $qb, convolution, $out, id),
                    |ours| check_id(ours, id),
                )
            }
            /// The convolution, by a solution.
            $immediate(
                handle: Opaque, $qa: Opaque, $qap: Opaque, $qb: Opaque, $qbp: Opaque, convolution: Opaque, $out: Opaque, $outp: Opaque,
                workspace: Opaque, bytes: usize, id: u64,
            ) {
                let call = Call { direction: Direction::$direction, handle, convolution, x: $x, w: $w, y: $y };
                boundary(
                    CallKind::Work,
                    call,
                    |real| forward!(
                        real.functions.of(call.direction).immediate, handle, $qa, $qap, $qb, $qbp, convolution, $out, $outp,
                        workspace, bytes, id
                    ),
                    |ours| {
                        let memory = Memory { tensors: [$xp, $wp, $yp], workspace, bytes };
                        match check_id(ours, id) {
                            // SAFETY: see above.
                            SUCCESS => unsafe { face::execute(ours.process, ours.real, ours.route, ours.call, memory) },
                            status => status,
                        }
                    },
                )
            }
        }
    };
}

direction! {
    Forward, x w y, xp wp yp, find(x xp, w wp), query(w wp, x xp), result(y yp),
    miopenConvolutionForwardGetWorkSpaceSize, miopenFindConvolutionForwardAlgorithm, miopenConvolutionForward,
    miopenConvolutionForwardGetSolutionCount, miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardGetSolutionWorkspaceSize, miopenConvolutionForwardCompileSolution, miopenConvolutionForwardImmediate
}

direction! {
    BackwardData, x w y, xp wp yp, find(y yp, w wp), query(y yp, w wp), result(x xp),
    miopenConvolutionBackwardDataGetWorkSpaceSize, miopenFindConvolutionBackwardDataAlgorithm, miopenConvolutionBackwardData,
    miopenConvolutionBackwardDataGetSolutionCount, miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataGetSolutionWorkspaceSize, miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate
}

direction! {
    BackwardWeights, x w y, xp wp yp, find(y yp, x xp), query(y yp, x xp), result(w wp),
    miopenConvolutionBackwardWeightsGetWorkSpaceSize, miopenFindConvolutionBackwardWeightsAlgorithm,
    miopenConvolutionBackwardWeights, miopenConvolutionBackwardWeightsGetSolutionCount,
    miopenConvolutionBackwardWeightsGetSolution, miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
    miopenConvolutionBackwardWeightsCompileSolution, miopenConvolutionBackwardWeightsImmediate
}

exported! {
    /// Creates a handle: from here on a library is in use.
    miopenCreate(handle: *mut Opaque) {
        real::scan();
        guarded(|real| forward!(real.functions.create, handle))
    }
    /// Creates a handle on a stream.
    miopenCreateWithStream(handle: *mut Opaque, stream: Opaque) {
        real::scan();
        guarded(|real| forward!(real.functions.create_with_stream, handle, stream))
    }
    /// Adds a bias to a convolution's result.
    miopenConvolutionForwardBias(
        handle: Opaque, alpha: *const c_void, numbers: Opaque, b: Opaque, beta: *const c_void, tensor: Opaque, y: Opaque,
    ) {
        guarded(|real| {
            let call = bias::Call { real, handle, bias: numbers, tensor, alpha, beta };
            // SAFETY: see above.
            unsafe { bias::add(&call, b, y) }
                .unwrap_or_else(|| forward!(real.functions.forward_bias, handle, alpha, numbers, b, beta, tensor, y))
        })
    }
    /// The gradient of a bias.
    miopenConvolutionBackwardBias(
        handle: Opaque, alpha: *const c_void, tensor: Opaque, dy: Opaque, beta: *const c_void, numbers: Opaque, db: Opaque,
    ) {
        guarded(|real| {
            let call = bias::Call { real, handle, bias: numbers, tensor, alpha, beta };
            // SAFETY: see above.
            unsafe { bias::sum(&call, dy, db) }
                .unwrap_or_else(|| forward!(real.functions.backward_bias, handle, alpha, tensor, dy, beta, numbers, db))
        })
    }
    /// Convolution, bias and activation in one.
    miopenConvolutionBiasActivationForward(
        handle: Opaque, alpha1: *const c_void, x: Opaque, xp: Opaque, w: Opaque, wp: Opaque, convolution: Opaque, algorithm: c_int,
        workspace: Opaque, bytes: usize, alpha2: *const c_void, z: Opaque, zp: Opaque, b: Opaque, bp: Opaque, activation: Opaque,
        y: Opaque, yp: Opaque,
    ) {
        guarded(|real| {
            let execution = Execution { real, handle, x: (x, xp), y: (y, yp), workspace: (workspace, bytes) };
            // SAFETY: the caller's scalars, floats whatever the tensors are; null is 1.
            let scalar = |at: *const c_void| if at.is_null() { 1.0 } else { f64::from(unsafe { at.cast::<f32>().read_unaligned() }) };
            let epilogue = |real: &Real| {
                let added = if zp.is_null() { None } else { Some((read_tensor(real, z)?, scalar(alpha2), zp)) };
                let bias = if bp.is_null() { None } else { Some((read_tensor(real, b)?, bp)) };
                let factor = Some(scalar(alpha1)).filter(|&factor| factor != 1.0);
                Some(Epilogue { factor, added, bias, activation: read_activation(real, activation)? })
            };
            // SAFETY: see above.
            unsafe { fusion::convolve_and_activate(&execution, w, wp, convolution, epilogue) }.unwrap_or_else(|| forward!(
                real.functions.bias_activation, handle, alpha1, x, xp, w, wp, convolution, algorithm, workspace, bytes, alpha2, z, zp,
                b, bp, activation, y, yp
            ))
        })
    }
}

macro_rules! table {
    ($($name:ident),* $(,)?) => {
        /// Every function of MIOpen's that is exported here, with its name.
        fn table(name: &str) -> *mut c_void {
            match name {
                $(stringify!($name) => $name as *mut c_void,)*
                _ => std::ptr::null_mut(),
            }
        }

        #[cfg(test)]
        const EXPORTED: &[&str] = &[$(stringify!($name)),*];
    };
}

table! {
    miopenConvolutionForwardGetWorkSpaceSize, miopenFindConvolutionForwardAlgorithm, miopenConvolutionForward,
    miopenConvolutionForwardGetSolutionCount, miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardGetSolutionWorkspaceSize, miopenConvolutionForwardCompileSolution, miopenConvolutionForwardImmediate,
    miopenConvolutionBackwardDataGetWorkSpaceSize, miopenFindConvolutionBackwardDataAlgorithm, miopenConvolutionBackwardData,
    miopenConvolutionBackwardDataGetSolutionCount, miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataGetSolutionWorkspaceSize, miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate, miopenConvolutionBackwardWeightsGetWorkSpaceSize,
    miopenFindConvolutionBackwardWeightsAlgorithm, miopenConvolutionBackwardWeights,
    miopenConvolutionBackwardWeightsGetSolutionCount, miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize, miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate, miopenCreate, miopenCreateWithStream, miopenConvolutionForwardBias,
    miopenConvolutionBackwardBias, miopenConvolutionBiasActivationForward, miopenCreateFusionPlan, miopenCreateOpConvForward,
    miopenCreateOpActivationForward, miopenCreateOpActivationBackward, miopenCreateOpBiasForward,
    miopenCreateOpBatchNormInference, miopenCreateOpBatchNormForward, miopenCreateOpBatchNormBackward,
    miopenCompileFusionPlan, miopenFusionPlanGetWorkSpaceSize, miopenFusionPlanConvolutionGetAlgo,
    miopenFusionPlanConvolutionSetAlgo, miopenDestroyFusionPlan, miopenDestroyOperatorArgs, miopenSetOpArgsConvForward,
    miopenSetOpArgsActivForward, miopenSetOpArgsActivBackward, miopenSetOpArgsBatchNormInference,
    miopenSetOpArgsBatchNormForward, miopenSetOpArgsBatchNormBackward, miopenSetOpArgsBiasForward, miopenExecuteFusionPlan,
    miopenExecuteFusionPlan_v2, miopenCreateConvProblem, miopenSetProblemTensorDescriptor, miopenFuseProblems,
    miopenFindSolutions, miopenRunSolution, miopenDestroySolution, miopenGetSolutionSize, miopenSaveSolution,
    miopenGetSolutionWorkspaceSize, miopenGetSolutionTime, miopenGetSolutionSolverId, miopenSetFindOptionWorkspaceLimit,
    miopenDestroyFindOptions,
    miopenLoadSolution, miopenDestroyProblem, miopenBatchNormalizationForwardTraining,
    miopenBatchNormalizationForwardTraining_V2, miopenBatchNormForwardTrainingActivation,
    miopenBatchNormalizationForwardInference, miopenBatchNormalizationForwardInference_V2,
    miopenBatchNormForwardInferenceActivation, miopenBatchNormalizationBackward, miopenBatchNormalizationBackward_V2,
    miopenBatchNormBackwardActivation, miopenPoolingForward, miopenPoolingBackward,
    miopenReduceTensor,
}

/// Our function with a name, for look-ups; `None` if it is MIOpen's alone.
pub(crate) fn exported(name: &CStr) -> Option<*mut c_void> {
    let found = table(name.to_str().ok()?);
    (!found.is_null()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exported_function_is_found_by_its_name() {
        for name in EXPORTED {
            let name = std::ffi::CString::new(*name).unwrap();
            assert!(exported(&name).is_some(), "{name:?}");
        }
        assert!(exported(c"miopenSoftmaxForward").is_none());
    }

    /// Rows of the table in the docs: functions in backquotes, then who computes.
    #[test]
    fn the_table_in_the_docs_names_exactly_the_functions_that_are_stood_before() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/miopen-bypass.md");
        let text = std::fs::read_to_string(page).unwrap();
        let section = text.split("## Every function").nth(1).unwrap().split("\n## ").next().unwrap();
        let (mut all, mut ours) = (Vec::new(), Vec::new());
        for row in section.lines().filter(|line| line.contains("`miopen")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let names = cells[2].split('`').filter(|it| it.starts_with("miopen"));
            if cells[3].starts_with("unhang") || cells[1].contains("where the real library is looked for") {
                ours.extend(names.clone());
            }
            all.extend(names);
        }
        let sorted = |mut names: Vec<&'static str>| {
            names.sort_unstable();
            names
        };
        let ours: Vec<&'static str> = ours.into_iter().map(|it| &*it.to_owned().leak()).collect();
        assert_eq!(sorted(ours), sorted(EXPORTED.to_vec()));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!((count, all.len()), (266, 266), "MIOpen 3.4 and 3.5.1 have 266 functions");
    }
}
