//! "find 2.0": its objects have no getters, so a convolution's problem is noted when callers set it. Solutions for
//! convolutions that we compute are objects of ours; every other object is the real library's.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use unhang_conv::Direction;
use unhang_miopen_api::{
    BAD_PARAMETER, NAIVE_SOLVERS, NOT_IMPLEMENTED, Opaque, SUCCESS, Status, TensorArgument, index_of,
};
use unhang_session::{Decision, Failure, say_once as say};

use crate::calls::{answer, guarded};
use crate::describe::{Described, Tensor, Window, read_tensor};
use crate::face::{Memory, decide_described, execute_beside, process, stream_of};
use crate::real::{self, Real};

/// How a saved solution of ours begins.
const MAGIC: &str = "unhang-solution-1 ";
/// `miopenProblemDirection_t`.
const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeights];

/// A convolution's problem, as far as callers have set it.
#[derive(Debug, Clone, Copy)]
struct Problem {
    direction: Direction,
    window: Option<Window>,
    /// x, w and y.
    tensors: [Option<Tensor>; 3],
    /// Whether another problem was joined to it.
    is_fused: bool,
}

/// A solution of ours: what it computes, and what callers are answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Solution {
    direction: usize,
    window: Window,
    tensors: [Tensor; 3],
    workspace: usize,
    milliseconds: f32,
}

/// Objects by where they are.
struct Objects<T>(Mutex<Option<HashMap<usize, T>>>);

impl<T: Clone> Objects<T> {
    const fn none() -> Objects<T> {
        Objects(Mutex::new(None))
    }

    fn with<R>(&self, change: impl FnOnce(&mut HashMap<usize, T>) -> R) -> R {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.get_or_insert_with(HashMap::new))
    }

    fn get(&self, at: Opaque) -> Option<T> {
        self.with(|all| all.get(&(at as usize)).cloned())
    }

    fn put(&self, at: Opaque, object: T) {
        self.with(|all| all.insert(at as usize, object));
    }

    fn forget(&self, at: Opaque) -> Option<T> {
        self.with(|all| all.remove(&(at as usize)))
    }
}

static PROBLEMS: Objects<Problem> = Objects::none();
static SOLUTIONS: Objects<Arc<Solution>> = Objects::none();
/// The most bytes of workspace that options allow.
static LIMITS: Objects<usize> = Objects::none();

impl Solution {
    fn direction(&self) -> Option<Direction> {
        DIRECTIONS.get(self.direction).copied()
    }

    /// An object that programs hold.
    fn into_object(self) -> Opaque {
        // A unique address until the solution is destroyed.
        let at = Box::into_raw(Box::new(0u64)).cast();
        SOLUTIONS.put(at, Arc::new(self));
        at
    }

    fn text(&self) -> String {
        format!("{MAGIC}{}", serde_json::to_string(self).unwrap_or_default())
    }

    fn from_text(bytes: &[u8]) -> Option<Solution> {
        let solution: Solution = serde_json::from_slice(bytes.strip_prefix(MAGIC.as_bytes())?).ok()?;
        solution.direction().map(|_| solution)
    }
}

impl Problem {
    /// The result of a search; `None` if it is the real library's.
    fn decide(&self, real: &Real) -> Option<(Decision, Window, [Tensor; 3])> {
        let process = process(real)?;
        let [Some(x), Some(w), Some(y)] = self.tensors else { return None };
        let (window, tensors) = (self.window?, [x, w, y]);
        if self.is_fused {
            let refused = process.is_endangered();
            return refused.then(|| (process.not_ours("it is fused with other problems"), window, tensors));
        }
        let described = Described::of(self.direction, &window, tensors)?;
        Some((decide_described(process, real, described), window, tensors))
    }
}

/// Searches: returns one solution of ours. `None` if that is the real library's.
fn find(
    real: &Real,
    handle: Opaque,
    problem: Opaque,
    options: Opaque,
    solutions: *mut Opaque,
    count: *mut usize,
    most: usize,
) -> Option<Status> {
    let noted = PROBLEMS.get(problem).filter(|_| !real::is_inside())?;
    let (decision, window, tensors) = noted.decide(real)?;
    let told = |number: usize| if count.is_null() { SUCCESS } else { answer(count, || number) };
    match decision {
        Decision::Forward(_) => None,
        // Callers that ignore the status still read the number of solutions.
        Decision::Refuse => {
            told(0);
            Some(NOT_IMPLEMENTED)
        }
        ours => {
            let route = ours.planned()?;
            if solutions.is_null() || most == 0 {
                return Some(BAD_PARAMETER);
            }
            if let (Some(stream), Some(process)) = (stream_of(real, handle), process(real)) {
                route.tune(process, stream);
            }
            let limit = LIMITS.get(options).unwrap_or(usize::MAX);
            let solution = Solution {
                direction: index_of(noted.direction),
                window,
                tensors,
                workspace: (route.workspace_bytes() as usize).min(limit),
                milliseconds: route.milliseconds(),
            };
            answer(solutions, || solution.into_object());
            Some(told(1))
        }
    }
}

/// Computes with a solution of ours.
///
/// # Safety
/// Memory as the tensors say.
unsafe fn run(
    real: &Real,
    handle: Opaque,
    solution: &Solution,
    given: &[TensorArgument],
    workspace: Opaque,
    bytes: usize,
) -> Status {
    let (Some(process), Some(direction)) = (process(real), solution.direction()) else { return NOT_IMPLEMENTED };
    let mut tensors = solution.tensors;
    let mut memory = Memory { tensors: [std::ptr::null_mut(); 3], workspace, bytes };
    for argument in given {
        let Some(which) = usize::try_from(argument.id).ok().and_then(|id| id.checked_sub(1)).filter(|&it| it < 3)
        else {
            return BAD_PARAMETER;
        };
        memory.tensors[which] = argument.buffer;
        if !argument.descriptor.is_null() {
            // SAFETY: a place with a descriptor, as the interface says.
            match read_tensor(real, unsafe { *argument.descriptor }) {
                Some(tensor) => tensors[which] = tensor,
                None => return BAD_PARAMETER,
            }
        }
    }
    let Some(described) = Described::of(direction, &solution.window, tensors) else { return BAD_PARAMETER };
    let decision = decide_described(process, real, described);
    let Some(route) = decision.planned() else {
        say(
            "a solution of unhang's is not computed: its convolution is planned on MIOpen now, which has not searched for it",
        );
        return NOT_IMPLEMENTED;
    };
    let vendors_own = || Err(Failure::Declined("MIOpen does not know a solution of unhang's".to_owned()));
    // SAFETY: the caller's promise.
    unsafe { execute_beside(process, real, route, handle, memory, &vendors_own) }
}

// SAFETY for what follows: as `calls.rs` says.
#[rustfmt::skip]
pub(crate) mod calls {
    use super::*;

    exported! {
        /// A convolution's problem.
        miopenCreateConvProblem(problem: *mut Opaque, convolution: Opaque, direction: c_int) {
            guarded(|real| {
                let status = forward!(real.functions.convolution_problem, problem, convolution, direction);
                let direction = usize::try_from(direction).ok().and_then(|it| DIRECTIONS.get(it)).copied();
                if let (SUCCESS, false, false, Some(direction)) = (status, problem.is_null(), real::is_inside(), direction) {
                    let window = Window::read(real, convolution);
                    // SAFETY: MIOpen has written it.
                    PROBLEMS.put(unsafe { *problem }, Problem { direction, window, tensors: [None; 3], is_fused: false });
                }
                status
            })
        }
        /// A tensor of a problem.
        miopenSetProblemTensorDescriptor(problem: Opaque, id: c_int, descriptor: Opaque) {
            guarded(|real| {
                let status = forward!(real.functions.set_problem_tensor, problem, id, descriptor);
                if status == SUCCESS && !real::is_inside() {
                    let tensor = read_tensor(real, descriptor);
                    PROBLEMS.with(|all| {
                        if let (Some(noted), 1..=3) = (all.get_mut(&(problem as usize)), id) {
                            noted.tensors[id as usize - 1] = tensor;
                        }
                    });
                }
                status
            })
        }
        /// Joins a problem to another.
        miopenFuseProblems(one: Opaque, other: Opaque) {
            guarded(|real| {
                let status = forward!(real.functions.fuse_problems, one, other);
                if status == SUCCESS && !real::is_inside() {
                    let noted = PROBLEMS.get(one).or_else(|| PROBLEMS.get(other));
                    if let Some(noted) = noted {
                        PROBLEMS.put(one, Problem { is_fused: true, ..noted });
                    }
                }
                status
            })
        }
        /// Ends a problem.
        miopenDestroyProblem(problem: Opaque) {
            guarded(|real| {
                PROBLEMS.forget(problem);
                forward!(real.functions.destroy_problem, problem)
            })
        }
        /// The most bytes of workspace that a search may ask for.
        miopenSetFindOptionWorkspaceLimit(options: Opaque, bytes: usize) {
            guarded(|real| {
                LIMITS.put(options, bytes);
                forward!(real.functions.set_workspace_limit, options, bytes)
            })
        }
        /// Ends options.
        miopenDestroyFindOptions(options: Opaque) {
            guarded(|real| {
                LIMITS.forget(options);
                forward!(real.functions.destroy_options, options)
            })
        }
        /// The search.
        miopenFindSolutions(handle: Opaque, problem: Opaque, options: Opaque, solutions: *mut Opaque, count: *mut usize, most: usize) {
            guarded(|real| find(real, handle, problem, options, solutions, count, most).unwrap_or_else(|| {
                forward!(real.functions.find_solutions, handle, problem, options, solutions, count, most)
            }))
        }
        /// Computes by a solution.
        miopenRunSolution(handle: Opaque, solution: Opaque, count: usize, tensors: *const TensorArgument, workspace: Opaque, bytes: usize) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(_) if tensors.is_null() => BAD_PARAMETER,
                // SAFETY: as many arguments as the caller says.
                Some(ours) => unsafe { run(real, handle, &ours, std::slice::from_raw_parts(tensors, count), workspace, bytes) },
                None => forward!(real.functions.run_solution, handle, solution, count, tensors, workspace, bytes),
            })
        }
        /// Ends a solution.
        miopenDestroySolution(solution: Opaque) {
            guarded(|real| match SOLUTIONS.forget(solution) {
                Some(_) => {
                    // SAFETY: made by `into_object`, and forgotten just now: nobody else gives it back.
                    drop(unsafe { Box::from_raw(solution.cast::<u64>()) });
                    SUCCESS
                }
                None => forward!(real.functions.destroy_solution, solution),
            })
        }
        /// The bytes of a saved solution.
        miopenGetSolutionSize(solution: Opaque, bytes: *mut usize) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(ours) => answer(bytes, || ours.text().len()),
                None => forward!(real.functions.solution_size, solution, bytes),
            })
        }
        /// Saves a solution.
        miopenSaveSolution(solution: Opaque, data: *mut c_char) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(_) if data.is_null() => BAD_PARAMETER,
                Some(ours) => {
                    let text = ours.text();
                    // SAFETY: room for as many bytes as were answered.
                    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), data.cast::<u8>(), text.len()) };
                    SUCCESS
                }
                None => forward!(real.functions.save_solution, solution, data),
            })
        }
        /// A saved solution. One of MIOpen's would run MIOpen's solver.
        miopenLoadSolution(to: *mut Opaque, data: *const c_char, bytes: usize) {
            guarded(|real| {
                // SAFETY: as many bytes as the caller says.
                let text = if data.is_null() { &[][..] } else { unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) } };
                if let Some(ours) = Solution::from_text(text) {
                    return if to.is_null() { BAD_PARAMETER } else { answer(to, || ours.into_object()) };
                }
                if crate::fusion::is_endangered(real, "a stored solution of MIOpen's") {
                    return NOT_IMPLEMENTED;
                }
                forward!(real.functions.load_solution, to, data, bytes)
            })
        }
        /// The workspace of a solution.
        miopenGetSolutionWorkspaceSize(solution: Opaque, bytes: *mut usize) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(ours) => answer(bytes, || ours.workspace),
                None => forward!(real.functions.solution_workspace, solution, bytes),
            })
        }
        /// A solution's time in milliseconds.
        miopenGetSolutionTime(solution: Opaque, milliseconds: *mut f32) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(ours) => answer(milliseconds, || ours.milliseconds),
                None => forward!(real.functions.solution_time, solution, milliseconds),
            })
        }
        /// The solver of a solution.
        miopenGetSolutionSolverId(solution: Opaque, id: *mut u64) {
            guarded(|real| match SOLUTIONS.get(solution) {
                Some(ours) => answer(id, || NAIVE_SOLVERS[ours.direction]),
                None => forward!(real.functions.solution_solver, solution, id),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_solution_is_read_back_and_nothing_else_is() {
        let window: Window = serde_json::from_str(
            r#"{"spatial":2,"mode":0,"groups":1,"padding":[1,1,0],"stride":[1,1,0],"dilation":[1,1,0]}"#,
        )
        .unwrap();
        let solution =
            Solution { direction: 1, window, tensors: [Tensor::default(); 3], workspace: 4096, milliseconds: 0.5 };
        assert_eq!(Solution::from_text(solution.text().as_bytes()), Some(solution.clone()));
        assert_eq!(Solution::from_text(b"MIOPEN"), None);
        let another = Solution { direction: 7, ..solution };
        assert_eq!(Solution::from_text(another.text().as_bytes()), None);
    }

    #[test]
    fn an_object_is_known_until_it_is_destroyed() {
        let objects: Objects<u32> = Objects::none();
        let at = 0x1234_5678 as Opaque;
        assert_eq!(objects.get(at), None);
        objects.put(at, 7);
        assert_eq!((objects.get(at), objects.forget(at), objects.get(at)), (Some(7), Some(7), None));
    }
}
