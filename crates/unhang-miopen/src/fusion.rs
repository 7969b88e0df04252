//! Fusion plans. They have no getters, so a plan's contents are noted when callers set them.
//!
//! Where a convolution of the caller's would not be MIOpen's, neither is one inside of a plan: the plan is computed in parts, the convolution
//! by the session and everything behind it by one kernel. A batch normalisation in a plan is computed as outside of one. Other plans
//! with a convolution are refused when they are compiled, with the status that MIOpen has for plans without a kernel.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use unhang_conv::Direction;
use unhang_gpu::normalization::{Activation, ActivationKind, Buffers, Operation};
use unhang_miopen_api::{
    ALGORITHM_DIRECT, BAD_PARAMETER, NOT_IMPLEMENTED, Opaque, SUCCESS, Status, UNSUPPORTED_OPERATION,
};
use unhang_session::{Decision, Failure, Normalizing, Planned, say_once as say};

use crate::calls::{answer, guarded};
use crate::describe::{Described, Tensor, Window, read_tensor};
use crate::face::{Memory, Process, decide_described, execute_beside, operate, process};
use crate::normalization::{self, SPATIAL};
use crate::real::{self, Real};

/// An operator, as it was put into a plan.
#[derive(Debug, Clone, Copy)]
enum Operator {
    Convolution(Option<(Window, Tensor)>),
    Bias(Option<Tensor>),
    Activation(c_int),
    ActivationBackward(c_int),
    /// Mode, and what scale, bias, mean and variance are.
    Infer(c_int, Option<Tensor>),
    /// Mode, and whether running statistics are kept.
    Train(c_int, bool),
    Backward(c_int),
}

/// A plan: what goes into it, and its operators with the objects that stand for them.
#[derive(Debug, Clone, Default)]
struct Plan {
    input: Option<Tensor>,
    operators: Vec<(usize, Operator)>,
}

/// An operator's arguments for an execution.
#[derive(Debug, Clone, Copy)]
enum Given {
    /// Where the filter is.
    Filter(u64),
    /// Where is what is added.
    Addend(u64),
    /// The activation's numbers.
    Activation([f64; 3]),
    /// Buffers of a normalisation, epsilon, and the share of new statistics.
    Normalization(Buffers, f64, f64),
}

/// The plans and their operators' arguments, by MIOpen's objects for them.
#[derive(Default)]
struct Noted {
    plans: HashMap<usize, Plan>,
    arguments: HashMap<usize, HashMap<usize, Given>>,
}

static NOTED: Mutex<Option<Noted>> = Mutex::new(None);

fn noted<T>(change: impl FnOnce(&mut Noted) -> T) -> T {
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    change(noted.get_or_insert_with(Noted::default))
}

/// Notes an operator that MIOpen has made.
fn note(status: Status, plan: Opaque, object: *mut Opaque, operator: Operator) -> Status {
    if status == SUCCESS && !object.is_null() && !real::is_inside() {
        // SAFETY: MIOpen has written it.
        let object = unsafe { *object } as usize;
        noted(|all| all.plans.entry(plan as usize).or_default().operators.push((object, operator)));
    }
    status
}

/// Notes an operator's arguments.
fn give(status: Status, arguments: Opaque, operator: Opaque, given: Given) -> Status {
    if !real::is_inside() {
        noted(|all| all.arguments.entry(arguments as usize).or_default().insert(operator as usize, given));
    }
    status
}

/// Whether a call that would compute a convolution of any kind is refused.
pub(crate) fn is_endangered(real: &Real, what: &str) -> bool {
    let refused = !real::is_inside() && process(real).is_some_and(|process| process.is_endangered());
    if refused {
        say(&format!("{what} is refused: MIOpen's own convolutions are not proven on this card"));
    }
    refused
}

/// A plan as we compute it: a convolution or nothing, a bias or nothing, a normalisation or nothing, an activation or nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Recipe {
    convolution: Option<(usize, Window, Tensor)>,
    bias: Option<(usize, Tensor)>,
    norm: Option<(usize, Operator)>,
    activation: Option<(usize, ActivationKind)>,
}

impl Plan {
    fn has_convolution(&self) -> bool {
        self.operators.iter().any(|(_, operator)| matches!(operator, Operator::Convolution(_)))
    }

    /// `None` if we do not compute it.
    fn recipe(&self) -> Option<Recipe> {
        let mut recipe = Recipe::default();
        let mut stage = 0;
        let kind_of = |mode: c_int| ActivationKind::ALL.get(usize::try_from(mode).ok()?).copied();
        for &(object, operator) in &self.operators {
            let is_new = |taken: bool| if taken { 0 } else { stage + 1 };
            let next = match operator {
                Operator::Convolution(known) => {
                    let (window, w) = known?;
                    recipe.convolution = Some((object, window, w));
                    1
                }
                // A bias is added to what a convolution leaves; before a normalisation alone it is MIOpen's.
                Operator::Bias(known) if recipe.convolution.is_some() => {
                    recipe.bias = Some((object, known?));
                    2
                }
                Operator::Infer(_, known) => {
                    known?;
                    recipe.norm = Some((object, operator));
                    3
                }
                Operator::Train(..) if recipe.convolution.is_none() => {
                    recipe.norm = Some((object, operator));
                    3
                }
                // In either order: gradients go through the activation first.
                Operator::Backward(_) => {
                    let next = is_new(recipe.norm.is_some());
                    recipe.norm = Some((object, operator));
                    next
                }
                Operator::Activation(mode) => {
                    recipe.activation = Some((object, kind_of(mode)?));
                    4
                }
                Operator::ActivationBackward(mode) => {
                    let next = is_new(recipe.activation.is_some());
                    recipe.activation = Some((object, kind_of(mode)?));
                    next
                }
                Operator::Bias(_) | Operator::Train(..) => return None,
            };
            if next <= stage {
                return None;
            }
            stage = next;
        }
        let backwards = |wanted: bool| {
            self.operators.iter().all(|(_, operator)| {
                matches!(operator, Operator::Backward(_) | Operator::ActivationBackward(_)) == wanted
            })
        };
        let has_work = recipe.convolution.is_some() || recipe.norm.is_some();
        (has_work && (backwards(true) || backwards(false))).then_some(recipe)
    }
}

/// What becomes of a plan.
enum Verdict {
    /// It is the real library's.
    Forward,
    Refuse,
    Ours(Box<Recipe>, Option<Decision>),
}

/// Decides on a plan for an input and an output; without an output, for its convolution's.
fn decide(real: &Real, plan: &Plan, input: Option<Tensor>, output: Option<Tensor>) -> Verdict {
    let Some(process) = process(real).filter(|process| process.is_endangered() && !real::is_inside()) else {
        return Verdict::Forward;
    };
    let refuse = |why: &str| {
        if !plan.has_convolution() {
            return Verdict::Forward;
        }
        say(&format!("a fusion plan with a convolution is refused: {why}, and MIOpen is not proven on this card"));
        Verdict::Refuse
    };
    let Some(recipe) = plan.recipe() else { return refuse("its operators are not supported in this order") };
    let Some((_, window, w)) = recipe.convolution else { return Verdict::Ours(Box::new(recipe), None) };
    let described = input.and_then(|x| {
        let y = output.or_else(|| window.result_of(&x, &w))?;
        Described::of(Direction::Forward, &window, [x, w, y])
    });
    let Some(described) = described else { return refuse("its descriptors are not supported") };
    match decide_described(process, real, described) {
        Decision::Forward(_) => Verdict::Forward,
        Decision::Refuse => Verdict::Refuse,
        ours => Verdict::Ours(Box::new(recipe), Some(ours)),
    }
}

/// An execution: its handle, descriptors and memory.
pub(crate) struct Execution {
    pub(crate) real: &'static Real,
    pub(crate) handle: Opaque,
    pub(crate) x: (Opaque, Opaque),
    pub(crate) y: (Opaque, Opaque),
    pub(crate) workspace: (Opaque, usize),
}

/// The steps after a convolution: factor, addend, normalisation and activation.
#[derive(Default)]
pub(crate) struct Epilogue {
    /// The factor of the convolution's result.
    pub(crate) factor: Option<f64>,
    /// A tensor to add, its factor, and its address.
    pub(crate) added: Option<(Tensor, f64, Opaque)>,
    /// A bias.
    pub(crate) bias: Option<(Tensor, Opaque)>,
    pub(crate) activation: Activation,
}

impl Execution {
    /// Runs the convolution of a route.
    ///
    /// # Safety
    /// Memory as the descriptors say.
    pub(crate) unsafe fn convolve(&self, process: &Process, route: Planned<'_>, filter: Opaque) -> Status {
        let memory =
            Memory { tensors: [self.x.1, filter, self.y.1], workspace: self.workspace.0, bytes: self.workspace.1 };
        let vendors_own = || Err(Failure::Declined("MIOpen cannot compute a single part of a fusion plan".to_owned()));
        // SAFETY: the caller's promise.
        unsafe { execute_beside(process, self.real, route, self.handle, memory, &vendors_own) }
    }

    /// Runs the following steps on the result in place.
    ///
    /// # Safety
    /// As [`Execution::convolve`].
    pub(crate) unsafe fn finish(&self, process: &Process, y: Tensor, epilogue: &Epilogue) -> Status {
        let is_nothing = epilogue.factor.is_none() && epilogue.added.is_none() && epilogue.bias.is_none();
        if is_nothing && epilogue.activation.kind == ActivationKind::Identity {
            return SUCCESS;
        }
        let parameters = epilogue.bias.map_or_else(|| y.as_channels(), |(tensor, _)| Some(tensor));
        let z = epilogue.added.map_or(y, |(tensor, ..)| tensor);
        let what = parameters
            .and_then(|it| normalization::describe(Operation::Apply, SPATIAL, [y, y, z], [it; 4], epilogue.activation));
        let Some(what) = what else { return self.refuse() };
        let factors = [epilogue.factor.unwrap_or(1.0), epilogue.added.map_or(0.0, |(_, factor, _)| factor)];
        let at = Buffers {
            x: self.y.1 as u64,
            y: self.y.1 as u64,
            z: epilogue.added.map_or(0, |(.., at)| at as u64),
            addend: epilogue.bias.map_or(0, |(_, at)| at as u64),
            ..Buffers::default()
        };
        // SAFETY: the caller's promise.
        unsafe { self.normalized(process, &Normalizing { factors, ..what }, &at) }
    }

    fn refuse(&self) -> Status {
        say("a fusion is refused (not implemented): what follows its convolution is not supported");
        NOT_IMPLEMENTED
    }

    /// # Safety
    /// As [`Execution::convolve`].
    unsafe fn normalized(&self, process: &Process, what: &Normalizing, at: &Buffers) -> Status {
        // SAFETY: the caller's promise.
        unsafe { operate(process, self.real, self.handle, what, at) }.unwrap_or(NOT_IMPLEMENTED)
    }

    /// Computes a plan in parts. `None` if that is the real library's.
    ///
    /// # Safety
    /// Memory as the descriptors say, and arguments that were given to the plan's operators.
    unsafe fn run(&self, plan: Opaque, arguments: Opaque) -> Option<Status> {
        let real = self.real;
        let (plan, given) =
            noted(|all| (all.plans.get(&(plan as usize)).cloned(), all.arguments.get(&(arguments as usize)).cloned()));
        let (plan, given) = (plan?, given.unwrap_or_default());
        let (x, y) = (read_tensor(real, self.x.0), read_tensor(real, self.y.0));
        let (recipe, decision) = match decide(real, &plan, x, y) {
            Verdict::Forward => return None,
            Verdict::Refuse => return Some(UNSUPPORTED_OPERATION),
            Verdict::Ours(recipe, decision) => (recipe, decision),
        };
        let (process, x, y) = (process(real)?, x?, y?);
        if self.x.1.is_null() || self.y.1.is_null() {
            return Some(BAD_PARAMETER);
        }
        let missing = || {
            say("a fusion plan is not executed: one of its operators was given nothing");
            BAD_PARAMETER
        };
        let activation = match recipe.activation.map(|(object, kind)| (kind, given.get(&object))) {
            None => Activation::default(),
            Some((kind, Some(&Given::Activation([alpha, beta, gamma])))) => Activation { kind, alpha, beta, gamma },
            Some(_) => return Some(missing()),
        };
        let mut source = (x, self.x.1);
        let planned = decision.as_ref().and_then(Decision::planned);
        if let (Some(route), Some((object, ..))) = (planned, recipe.convolution) {
            let Some(&Given::Filter(filter)) = given.get(&object) else { return Some(missing()) };
            // SAFETY: the caller's promise.
            match unsafe { self.convolve(process, route, filter as Opaque) } {
                SUCCESS => source = (y, self.y.1),
                status => return Some(status),
            }
        }
        let last = if recipe.norm.is_none() { activation } else { Activation::default() };
        let bias = match recipe.bias.map(|(object, tensor)| (tensor, given.get(&object))) {
            None => None,
            Some((tensor, Some(&Given::Addend(at)))) => Some((tensor, at as Opaque)),
            Some(_) => return Some(missing()),
        };
        if recipe.convolution.is_some() {
            // SAFETY: as above.
            match unsafe { self.finish(process, y, &Epilogue { bias, activation: last, ..Epilogue::default() }) } {
                SUCCESS => {}
                status => return Some(status),
            }
        }
        let Some((object, operator)) = recipe.norm else { return Some(SUCCESS) };
        let Some(&Given::Normalization(at, epsilon, momentum)) = given.get(&object) else { return Some(missing()) };
        let (operation, mode, parameters) = match operator {
            Operator::Infer(mode, parameters) => (Operation::Apply, mode, parameters?),
            Operator::Train(mode, _) => (Operation::Train, mode, x.parameters(mode)?),
            Operator::Backward(mode) => (Operation::Backward, mode, x.parameters(mode)?),
            _ => return None,
        };
        // A backward plan's input is the gradient of the output, and its output that of x.
        let (tensors, at) = match operation {
            Operation::Backward => ([x, y, x], Buffers { y: self.y.1 as u64, z: self.x.1 as u64, ..at }),
            _ => ([source.0, y, y], Buffers { x: source.1 as u64, y: self.y.1 as u64, ..at }),
        };
        let at = match operator {
            Operator::Train(_, false) => Buffers { running_mean: 0, running_variance: 0, ..at },
            _ => at,
        };
        let what = normalization::describe(operation, mode, tensors, [parameters; 4], activation);
        let Some(what) = what else { return Some(self.refuse()) };
        // SAFETY: as above.
        Some(unsafe { self.normalized(process, &Normalizing { epsilon, momentum, ..what }, &at) })
    }
}

/// Convolution, bias and activation in one call: `x`, filter and window, then the addend. `None` if that is the real
/// library's.
///
/// # Safety
/// Memory as the descriptors say.
pub(crate) unsafe fn convolve_and_activate(
    execution: &Execution,
    w: Opaque,
    filter: Opaque,
    convolution: Opaque,
    epilogue: impl FnOnce(&Real) -> Option<Epilogue>,
) -> Option<Status> {
    let real = execution.real;
    let process = process(real).filter(|process| process.is_endangered() && !real::is_inside())?;
    let read = |descriptor: Opaque| read_tensor(real, descriptor);
    let (Some(x), Some(w), Some(y), Some(window)) =
        (read(execution.x.0), read(w), read(execution.y.0), Window::read(real, convolution))
    else {
        return Some(BAD_PARAMETER);
    };
    let decided = Described::of(Direction::Forward, &window, [x, w, y]).map(|it| decide_described(process, real, it));
    if matches!(decided, Some(Decision::Forward(_))) {
        return None;
    }
    let Some(route) = decided.as_ref().and_then(Decision::planned) else { return Some(UNSUPPORTED_OPERATION) };
    let Some(epilogue) = epilogue(real) else { return Some(UNSUPPORTED_OPERATION) };
    // SAFETY: the caller's promise.
    Some(unsafe {
        match execution.convolve(process, route, filter) {
            SUCCESS => execution.finish(process, y, &epilogue),
            status => status,
        }
    })
}

/// The buffers of a normalisation in a plan.
#[rustfmt::skip]
fn buffers(scale: Opaque, bias: Opaque, mean: Opaque, variance: Opaque) -> Buffers {
    Buffers { scale: scale as u64, bias: bias as u64, mean: mean as u64, variance: variance as u64, ..Buffers::default() }
}

// SAFETY for what follows: as `calls.rs` says.
#[rustfmt::skip]
pub(crate) mod calls {
    use super::*;

    /// The real library's answer to a request for an operator.
    macro_rules! operator {
        ($function:ident, $plan:ident, $object:ident, [$($argument:expr),*], $real:ident => $operator:expr) => {
            guarded(|$real| note(forward!($real.functions.$function, $plan, $object $(, $argument)*), $plan, $object, $operator))
        };
    }

    exported! {
        /// A fusion plan.
        miopenCreateFusionPlan(plan: *mut Opaque, direction: c_int, input: Opaque) {
            guarded(|real| {
                let status = forward!(real.functions.create_plan, plan, direction, input);
                if status == SUCCESS && !plan.is_null() && !real::is_inside() {
                    let input = read_tensor(real, input);
                    // SAFETY: MIOpen has written it.
                    let plan = unsafe { *plan } as usize;
                    noted(|all| all.plans.insert(plan, Plan { input, operators: Vec::new() }));
                }
                status
            })
        }
        /// Puts a convolution into a plan.
        miopenCreateOpConvForward(plan: Opaque, object: *mut Opaque, convolution: Opaque, w: Opaque) {
            operator!(operator_convolution, plan, object, [convolution, w], real => {
                Operator::Convolution(Window::read(real, convolution).zip(read_tensor(real, w)))
            })
        }
        /// Puts an activation into a plan.
        miopenCreateOpActivationForward(plan: Opaque, object: *mut Opaque, mode: c_int) {
            operator!(operator_activation, plan, object, [mode], real => Operator::Activation(mode))
        }
        /// Puts the backward pass of an activation into a plan.
        miopenCreateOpActivationBackward(plan: Opaque, object: *mut Opaque, mode: c_int) {
            operator!(operator_activation_backward, plan, object, [mode], real => Operator::ActivationBackward(mode))
        }
        /// Puts a bias into a plan.
        miopenCreateOpBiasForward(plan: Opaque, object: *mut Opaque, b: Opaque) {
            operator!(operator_bias, plan, object, [b], real => Operator::Bias(read_tensor(real, b)))
        }
        /// Puts an inference batch normalisation into a plan.
        miopenCreateOpBatchNormInference(plan: Opaque, object: *mut Opaque, mode: c_int, parameters: Opaque) {
            operator!(operator_infer, plan, object, [mode, parameters], real => Operator::Infer(mode, read_tensor(real, parameters)))
        }
        /// Puts a training batch normalisation into a plan.
        miopenCreateOpBatchNormForward(plan: Opaque, object: *mut Opaque, mode: c_int, running: bool) {
            operator!(operator_train, plan, object, [mode, running], real => Operator::Train(mode, running))
        }
        /// Puts the gradients of a batch normalisation into a plan.
        miopenCreateOpBatchNormBackward(plan: Opaque, object: *mut Opaque, mode: c_int) {
            operator!(operator_backward, plan, object, [mode], real => Operator::Backward(mode))
        }
        /// Compiles a plan: torch checks this status, not that of the execution.
        miopenCompileFusionPlan(handle: Opaque, plan: Opaque) {
            guarded(|real| {
                let known = noted(|all| all.plans.get(&(plan as usize)).cloned()).filter(|_| !real::is_inside());
                match known.map_or(Verdict::Forward, |known| decide(real, &known, known.input, None)) {
                    Verdict::Forward => forward!(real.functions.compile_plan, handle, plan),
                    Verdict::Refuse => UNSUPPORTED_OPERATION,
                    Verdict::Ours(..) => SUCCESS,
                }
            })
        }
        /// The workspace of a plan.
        miopenFusionPlanGetWorkSpaceSize(handle: Opaque, plan: Opaque, bytes: *mut usize, algorithm: c_int) {
            guarded(|real| {
                let known = noted(|all| all.plans.get(&(plan as usize)).cloned()).filter(|_| !real::is_inside());
                match known.map_or(Verdict::Forward, |known| decide(real, &known, known.input, None)) {
                    Verdict::Forward => forward!(real.functions.plan_workspace_size, handle, plan, bytes, algorithm),
                    Verdict::Refuse => UNSUPPORTED_OPERATION,
                    Verdict::Ours(_, decision) => answer(bytes, || {
                        decision.as_ref().and_then(Decision::planned).map_or(0, |route| route.workspace_bytes() as usize)
                    }),
                }
            })
        }
        /// The algorithms of a plan's convolution.
        miopenFusionPlanConvolutionGetAlgo(plan: Opaque, most: c_int, count: *mut c_int, algorithms: *mut c_int) {
            guarded(|real| {
                let known = noted(|all| all.plans.get(&(plan as usize)).cloned()).filter(|_| !real::is_inside());
                match known.map_or(Verdict::Forward, |known| decide(real, &known, known.input, None)) {
                    Verdict::Ours(_, Some(_)) if most > 0 && !algorithms.is_null() => {
                        answer(algorithms, || ALGORITHM_DIRECT);
                        answer(count, || 1)
                    }
                    _ => forward!(real.functions.plan_algorithms, plan, most, count, algorithms),
                }
            })
        }
        /// Chooses the algorithm of a plan's convolution.
        miopenFusionPlanConvolutionSetAlgo(plan: Opaque, algorithm: c_int) {
            guarded(|real| {
                let known = noted(|all| all.plans.get(&(plan as usize)).cloned()).filter(|_| !real::is_inside());
                match known.map_or(Verdict::Forward, |known| decide(real, &known, known.input, None)) {
                    Verdict::Ours(_, Some(_)) => SUCCESS,
                    _ => forward!(real.functions.set_plan_algorithm, plan, algorithm),
                }
            })
        }
        /// Ends a plan.
        miopenDestroyFusionPlan(plan: Opaque) {
            guarded(|real| {
                noted(|all| all.plans.remove(&(plan as usize)));
                forward!(real.functions.destroy_plan, plan)
            })
        }
        /// Ends arguments.
        miopenDestroyOperatorArgs(arguments: Opaque) {
            guarded(|real| {
                noted(|all| all.arguments.remove(&(arguments as usize)));
                forward!(real.functions.destroy_arguments, arguments)
            })
        }
        /// The filter of a convolution.
        miopenSetOpArgsConvForward(arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, w: Opaque) {
            guarded(|real| {
                let status = forward!(real.functions.set_convolution_arguments, arguments, object, alpha, beta, w);
                give(status, arguments, object, Given::Filter(w as u64))
            })
        }
        /// The parameters of an activation.
        miopenSetOpArgsActivForward(arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, a: f64, b: f64, g: f64) {
            guarded(|real| {
                let status = forward!(real.functions.set_activation_arguments, arguments, object, alpha, beta, a, b, g);
                give(status, arguments, object, Given::Activation([a, b, g]))
            })
        }
        /// The parameters of an activation's backward pass.
        miopenSetOpArgsActivBackward(
            arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, y: Opaque, reserved: Opaque, a: f64, b: f64, g: f64,
        ) {
            guarded(|real| {
                let status = forward!(real.functions.set_activation_backward_arguments, arguments, object, alpha, beta, y, reserved, a, b, g);
                give(status, arguments, object, Given::Activation([a, b, g]))
            })
        }
        /// The arguments of an inference normalisation.
        miopenSetOpArgsBatchNormInference(
            arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, scale: Opaque, bias: Opaque, mean: Opaque, variance: Opaque, epsilon: f64,
        ) {
            guarded(|real| {
                let status = forward!(real.functions.set_infer_arguments, arguments, object, alpha, beta, scale, bias, mean, variance, epsilon);
                give(status, arguments, object, Given::Normalization(buffers(scale, bias, mean, variance), epsilon, 0.0))
            })
        }
        /// The arguments of a training normalisation.
        miopenSetOpArgsBatchNormForward(
            arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, scale: Opaque, bias: Opaque, mean: Opaque, inverse: Opaque,
            running_mean: Opaque, running_variance: Opaque, factor: f64, epsilon: f64,
        ) {
            guarded(|real| {
                let status = forward!(real.functions.set_train_arguments, arguments, object, alpha, beta, scale, bias, mean, inverse, running_mean,
                    running_variance, factor, epsilon);
                let at = Buffers { running_mean: running_mean as u64, running_variance: running_variance as u64, ..buffers(scale, bias, mean, inverse) };
                give(status, arguments, object, Given::Normalization(at, epsilon, factor))
            })
        }
        /// The arguments of a normalisation's gradients.
        miopenSetOpArgsBatchNormBackward(
            arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, x: Opaque, scale: Opaque, bias: Opaque, dscale: Opaque, dbias: Opaque,
            mean: Opaque, inverse: Opaque,
        ) {
            guarded(|real| {
                let status = forward!(real.functions.set_backward_arguments, arguments, object, alpha, beta, x, scale, bias, dscale, dbias, mean, inverse);
                let at = Buffers { x: x as u64, scale_gradient: dscale as u64, bias_gradient: dbias as u64, ..buffers(scale, bias, mean, inverse) };
                give(status, arguments, object, Given::Normalization(at, 0.0, 0.0))
            })
        }
        /// What a bias is given.
        miopenSetOpArgsBiasForward(arguments: Opaque, object: Opaque, alpha: *const c_void, beta: *const c_void, b: Opaque) {
            guarded(|real| {
                let status = forward!(real.functions.set_bias_arguments, arguments, object, alpha, beta, b);
                give(status, arguments, object, Given::Addend(b as u64))
            })
        }
        /// Executes a plan.
        miopenExecuteFusionPlan(handle: Opaque, plan: Opaque, input: Opaque, x: Opaque, output: Opaque, y: Opaque, arguments: Opaque) {
            guarded(|real| {
                let execution = Execution { real, handle, x: (input, x), y: (output, y), workspace: (std::ptr::null_mut(), 0) };
                // SAFETY: see above.
                unsafe { execution.run(plan, arguments) }
                    .unwrap_or_else(|| forward!(real.functions.execute_plan, handle, plan, input, x, output, y, arguments))
            })
        }
        /// Executes a plan in a workspace.
        miopenExecuteFusionPlan_v2(
            handle: Opaque, plan: Opaque, input: Opaque, x: Opaque, output: Opaque, y: Opaque, arguments: Opaque, workspace: Opaque, bytes: usize,
        ) {
            guarded(|real| {
                let execution = Execution { real, handle, x: (input, x), y: (output, y), workspace: (workspace, bytes) };
                // SAFETY: see above.
                unsafe { execution.run(plan, arguments) }.unwrap_or_else(|| {
                    forward!(real.functions.execute_plan_in, handle, plan, input, x, output, y, arguments, workspace, bytes)
                })
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(operators: &[Operator]) -> Plan {
        Plan { input: None, operators: operators.iter().copied().enumerate().collect() }
    }

    #[test]
    fn operators_are_taken_in_the_order_in_which_we_compute_them() {
        let tensor = Some(Tensor::default());
        let infer = Operator::Infer(1, tensor);
        assert!(plan(&[infer, Operator::Activation(3)]).recipe().is_some());
        assert!(plan(&[Operator::Train(1, true), Operator::Activation(3)]).recipe().is_some());
        assert!(plan(&[Operator::ActivationBackward(3), Operator::Backward(1)]).recipe().is_some());
        assert!(plan(&[Operator::Backward(1), Operator::ActivationBackward(3)]).recipe().is_some());
        assert!(plan(&[Operator::Backward(1), Operator::Backward(1)]).recipe().is_none());
        assert!(plan(&[Operator::Activation(3), infer]).recipe().is_none(), "an activation before a normalisation");
        assert!(plan(&[Operator::Activation(3), Operator::Backward(1)]).recipe().is_none());
        assert!(plan(&[Operator::Activation(3)]).recipe().is_none(), "nothing but an activation is MIOpen's");
        assert!(plan(&[Operator::Convolution(None)]).recipe().is_none(), "descriptors that could not be read");
        for norm in [Operator::Train(1, true), infer] {
            assert!(plan(&[Operator::Bias(tensor), norm]).recipe().is_none(), "a bias that no convolution takes");
        }
    }
}
