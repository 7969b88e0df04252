//! The types of MIOpen's functions, and the functions, looked up by name.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use unhang_conv::Direction;

use crate::{Opaque, Performance, Solution, Status, index_of};

/// Creates something and writes its handle.
pub type Create = unsafe extern "C" fn(*mut Opaque) -> Status;
/// Destroys something.
pub type Destroy = unsafe extern "C" fn(Opaque) -> Status;
/// A query of one direction: handle, two operands, convolution, result, and room for the answer.
pub type Query<T> = unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, T) -> Status;
/// Handle, descriptor and address of both operands, convolution, descriptor and address of the result. Then room for
/// how many algorithms, their number, the algorithms, workspace, its bytes, whether the search is exhaustive.
#[rustfmt::skip]
pub type Find = unsafe extern "C" fn(
    Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut c_int, *mut Performance, Opaque, usize, bool,
) -> Status;
/// Handle, alpha, descriptor and address of both operands, convolution, algorithm, beta, descriptor and address of the result,
/// workspace, its bytes.
#[rustfmt::skip]
pub type Execute = unsafe extern "C" fn(
    Opaque, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *const c_void, Opaque, Opaque, Opaque, usize,
) -> Status;
/// A query with room for how many solutions, their number, and the solutions.
pub type GetSolution =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, usize, *mut usize, *mut Solution) -> Status;
/// A query with the solver's id, for the size of its workspace in bytes.
pub type SolutionWorkspaceSize =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, u64, *mut usize) -> Status;
/// Handle, descriptor and address of both operands, convolution, descriptor and address of the result, workspace, its bytes,
/// the solver's id.
pub type Immediate =
    unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, usize, u64) -> Status;
/// Handle, alpha, descriptor and address of the source, beta, descriptor and address of the result.
pub type Bias = unsafe extern "C" fn(Opaque, *const c_void, Opaque, Opaque, *const c_void, Opaque, Opaque) -> Status;
/// [`Execute`] up to the algorithm, workspace, its bytes, then a scalar and a tensor to add, bias, activation and result.
#[rustfmt::skip]
pub type BiasActivation = unsafe extern "C" fn(
    Opaque, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, Opaque, usize, *const c_void, Opaque, Opaque, Opaque,
    Opaque, Opaque, Opaque, Opaque,
) -> Status;

/// Handle, mode, alpha, beta, descriptor and address of x and y. Then the descriptor of the parameters, scale, bias,
/// the share of the new statistics, running mean and variance, epsilon, saved mean and inverse deviation.
#[rustfmt::skip]
pub type BatchNormTrain = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64, Opaque, Opaque, f64, Opaque, Opaque,
) -> Status;
/// [`BatchNormTrain`] with descriptors of scale, bias, mean and variance.
#[rustfmt::skip]
pub type BatchNormTrain2 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64, Opaque, Opaque,
    f64, Opaque, Opaque,
) -> Status;
/// [`BatchNormTrain2`] and an activation.
#[rustfmt::skip]
pub type BatchNormTrain3 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64, Opaque, Opaque,
    f64, Opaque, Opaque, Opaque,
) -> Status;
/// Handle, mode, alpha, beta, descriptor and address of x and y, then the descriptor of the parameters, scale, bias,
/// mean, variance, epsilon.
#[rustfmt::skip]
pub type BatchNormInfer = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64,
) -> Status;
/// [`BatchNormInfer`] with descriptors of scale, bias, mean and variance.
#[rustfmt::skip]
pub type BatchNormInfer2 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64,
) -> Status;
/// [`BatchNormInfer2`] and an activation.
#[rustfmt::skip]
pub type BatchNormInfer3 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64,
    Opaque,
) -> Status;
/// Handle, mode, four scalars, descriptor and address of x, dy and dx. Then the descriptor of the parameters, scale,
/// the gradients of scale and bias, epsilon, saved mean and inverse deviation.
#[rustfmt::skip]
pub type BatchNormBackward = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque,
    Opaque, f64, Opaque, Opaque,
) -> Status;
/// [`BatchNormBackward`] with descriptors of scale, bias, mean and variance.
#[rustfmt::skip]
pub type BatchNormBackward2 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque,
    Opaque, Opaque, Opaque, Opaque, f64, Opaque, Opaque,
) -> Status;
/// [`BatchNormBackward2`] with the bias after the scale, and an activation.
#[rustfmt::skip]
pub type BatchNormBackward3 = unsafe extern "C" fn(
    Opaque, c_int, *const c_void, *const c_void, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque,
    Opaque, Opaque, Opaque, Opaque, Opaque, f64, Opaque, Opaque, Opaque,
) -> Status;

/// Handle, pooling, alpha, descriptor and address of x, beta, those of y, whether to keep indices, the workspace for
/// them, its bytes.
#[rustfmt::skip]
pub type PoolingForward = unsafe extern "C" fn(
    Opaque, Opaque, *const c_void, Opaque, Opaque, *const c_void, Opaque, Opaque, bool, Opaque, usize,
) -> Status;
/// Handle, pooling, alpha, descriptor and address of y, dy and x, beta, those of dx, the workspace with indices.
#[rustfmt::skip]
pub type PoolingBackward = unsafe extern "C" fn(
    Opaque, Opaque, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, *const c_void, Opaque, Opaque, Opaque,
) -> Status;

/// Handle, reduction, indices and their bytes, workspace and its bytes, alpha, descriptor and address of x, beta, those of
/// y.
#[rustfmt::skip]
pub type Reduce = unsafe extern "C" fn(
    Opaque, Opaque, Opaque, usize, Opaque, usize, *const c_void, Opaque, Opaque, *const c_void, Opaque, Opaque,
) -> Status;

/// `miopenTensorArgument_t`: a tensor of a "find 2.0" problem.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TensorArgument {
    /// Which one: 1, 2 and 3 are a convolution's x, w and y.
    pub id: c_int,
    /// A pointer to a descriptor that replaces the problem's, or null.
    pub descriptor: *const Opaque,
    /// Its address.
    pub buffer: Opaque,
}

/// Looks a name up in a library; null if it is missing.
type LookUp<'a> = &'a dyn Fn(&CStr) -> *mut c_void;

/// The function with that name.
///
/// # Safety
/// `T` is an `Option` of a function pointer of that function's type.
unsafe fn function<T>(look_up: LookUp<'_>, name: &str) -> T {
    let found = CString::new(name).map_or(std::ptr::null_mut(), |name| look_up(&name));
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: guaranteed by the caller; null means `None`.
    unsafe { std::mem::transmute_copy::<*mut c_void, T>(&found) }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal as $type:ty;)*) => {
        /// The functions, and those of each direction. A function that the library lacks is `None`.
        #[derive(Debug)]
        pub struct Functions {
            $($(#[$doc])* #[doc = concat!("`", $symbol, "`.")] pub $name: Option<$type>,)*
            directions: [DirectionFunctions; 3],
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Safety
            /// `look_up` finds MIOpen's functions under their names, and they stay loaded.
            pub unsafe fn load(look_up: LookUp<'_>) -> Functions {
                // SAFETY: the types are those of MIOpen's header.
                unsafe {
                    Functions {
                        $($name: function(look_up, $symbol),)*
                        directions: ["Forward", "BackwardData", "BackwardWeights"]
                            .map(|direction| DirectionFunctions::load(look_up, direction)),
                    }
                }
            }
        }
    };
}

macro_rules! direction_functions {
    ($($name:ident: $before:literal .. $after:literal as $type:ty;)*) => {
        /// The functions that every direction has; `…` stands for its name.
        #[derive(Debug)]
        pub struct DirectionFunctions {
            $(#[doc = concat!("`", $before, "…", $after, "`.")] pub $name: Option<$type>,)*
        }

        impl DirectionFunctions {
            /// # Safety
            /// As [`Functions::load`].
            unsafe fn load(look_up: LookUp<'_>, direction: &str) -> DirectionFunctions {
                // SAFETY: the types are those of MIOpen's header, equal in all directions.
                unsafe {
                    DirectionFunctions {
                        $($name: function(look_up, &[$before, direction, $after].concat()),)*
                    }
                }
            }
        }
    };
}

functions! {
    create: "miopenCreate" as Create;
    create_with_stream: "miopenCreateWithStream" as unsafe extern "C" fn(*mut Opaque, Opaque) -> Status;
    version: "miopenGetVersion" as unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> Status;
    stream: "miopenGetStream" as unsafe extern "C" fn(Opaque, *mut Opaque) -> Status;
    create_tensor: "miopenCreateTensorDescriptor" as Create;
    set_tensor: "miopenSetTensorDescriptor" as unsafe extern "C" fn(Opaque, c_int, c_int, *const c_int, *const c_int) -> Status;
    tensor_size: "miopenGetTensorDescriptorSize" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    tensor: "miopenGetTensorDescriptor" as unsafe extern "C" fn(Opaque, *mut c_int, *mut c_int, *mut c_int) -> Status;
    tensor_bytes: "miopenGetTensorNumBytes" as unsafe extern "C" fn(Opaque, *mut usize) -> Status;
    destroy_tensor: "miopenDestroyTensorDescriptor" as Destroy;
    create_convolution: "miopenCreateConvolutionDescriptor" as Create;
    set_convolution: "miopenInitConvolutionDescriptor" as unsafe extern "C" fn(Opaque, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> Status;
    set_groups: "miopenSetConvolutionGroupCount" as unsafe extern "C" fn(Opaque, c_int) -> Status;
    spatial: "miopenGetConvolutionSpatialDim" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    convolution: "miopenGetConvolutionNdDescriptor" as unsafe extern "C" fn(Opaque, c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
    groups: "miopenGetConvolutionGroupCount" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    destroy_convolution: "miopenDestroyConvolutionDescriptor" as Destroy;
    algorithm_of: "miopenGetSolverIdConvAlgorithm" as unsafe extern "C" fn(u64, *mut c_int) -> Status;
    forward_bias: "miopenConvolutionForwardBias" as Bias;
    backward_bias: "miopenConvolutionBackwardBias" as Bias;
    bias_activation: "miopenConvolutionBiasActivationForward" as BiasActivation;
    operator_convolution: "miopenCreateOpConvForward" as unsafe extern "C" fn(Opaque, *mut Opaque, Opaque, Opaque) -> Status;
    compile_plan: "miopenCompileFusionPlan" as unsafe extern "C" fn(Opaque, Opaque) -> Status;
    execute_plan: "miopenExecuteFusionPlan" as unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque) -> Status;
    execute_plan_in: "miopenExecuteFusionPlan_v2" as unsafe extern "C" fn(Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, usize) -> Status;
    destroy_plan: "miopenDestroyFusionPlan" as Destroy;
    create_plan: "miopenCreateFusionPlan" as unsafe extern "C" fn(*mut Opaque, c_int, Opaque) -> Status;
    plan_workspace_size: "miopenFusionPlanGetWorkSpaceSize" as unsafe extern "C" fn(Opaque, Opaque, *mut usize, c_int) -> Status;
    plan_algorithms: "miopenFusionPlanConvolutionGetAlgo" as unsafe extern "C" fn(Opaque, c_int, *mut c_int, *mut c_int) -> Status;
    set_plan_algorithm: "miopenFusionPlanConvolutionSetAlgo" as unsafe extern "C" fn(Opaque, c_int) -> Status;
    operator_activation: "miopenCreateOpActivationForward" as unsafe extern "C" fn(Opaque, *mut Opaque, c_int) -> Status;
    operator_activation_backward: "miopenCreateOpActivationBackward" as unsafe extern "C" fn(Opaque, *mut Opaque, c_int) -> Status;
    operator_bias: "miopenCreateOpBiasForward" as unsafe extern "C" fn(Opaque, *mut Opaque, Opaque) -> Status;
    operator_infer: "miopenCreateOpBatchNormInference" as unsafe extern "C" fn(Opaque, *mut Opaque, c_int, Opaque) -> Status;
    operator_train: "miopenCreateOpBatchNormForward" as unsafe extern "C" fn(Opaque, *mut Opaque, c_int, bool) -> Status;
    operator_backward: "miopenCreateOpBatchNormBackward" as unsafe extern "C" fn(Opaque, *mut Opaque, c_int) -> Status;
    destroy_arguments: "miopenDestroyOperatorArgs" as Destroy;
    set_convolution_arguments: "miopenSetOpArgsConvForward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque) -> Status;
    set_activation_arguments: "miopenSetOpArgsActivForward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, f64, f64, f64) -> Status;
    set_activation_backward_arguments: "miopenSetOpArgsActivBackward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque, Opaque, f64, f64, f64) -> Status;
    set_infer_arguments: "miopenSetOpArgsBatchNormInference" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, f64) -> Status;
    set_train_arguments: "miopenSetOpArgsBatchNormForward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, f64, f64) -> Status;
    set_backward_arguments: "miopenSetOpArgsBatchNormBackward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque) -> Status;
    set_bias_arguments: "miopenSetOpArgsBiasForward" as unsafe extern "C" fn(Opaque, Opaque, *const c_void, *const c_void, Opaque) -> Status;
    activation: "miopenGetActivationDescriptor" as unsafe extern "C" fn(Opaque, *mut c_int, *mut f64, *mut f64, *mut f64) -> Status;
    batch_norm_train: "miopenBatchNormalizationForwardTraining" as BatchNormTrain;
    batch_norm_train_2: "miopenBatchNormalizationForwardTraining_V2" as BatchNormTrain2;
    batch_norm_train_3: "miopenBatchNormForwardTrainingActivation" as BatchNormTrain3;
    batch_norm_infer: "miopenBatchNormalizationForwardInference" as BatchNormInfer;
    batch_norm_infer_2: "miopenBatchNormalizationForwardInference_V2" as BatchNormInfer2;
    batch_norm_infer_3: "miopenBatchNormForwardInferenceActivation" as BatchNormInfer3;
    batch_norm_backward: "miopenBatchNormalizationBackward" as BatchNormBackward;
    batch_norm_backward_2: "miopenBatchNormalizationBackward_V2" as BatchNormBackward2;
    batch_norm_backward_3: "miopenBatchNormBackwardActivation" as BatchNormBackward3;
    pooling: "miopenGetNdPoolingDescriptor" as unsafe extern "C" fn(Opaque, c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
    pooling_index_type: "miopenGetPoolingIndexType" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    pooling_index_mode: "miopenGetPoolingWorkSpaceIndexMode" as unsafe extern "C" fn(Opaque, *mut c_int) -> Status;
    pooling_forward: "miopenPoolingForward" as PoolingForward;
    pooling_backward: "miopenPoolingBackward" as PoolingBackward;
    reduction: "miopenGetReduceTensorDescriptor" as unsafe extern "C" fn(Opaque, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
    reduce: "miopenReduceTensor" as Reduce;
    set_problem_tensor: "miopenSetProblemTensorDescriptor" as unsafe extern "C" fn(Opaque, c_int, Opaque) -> Status;
    set_workspace_limit: "miopenSetFindOptionWorkspaceLimit" as unsafe extern "C" fn(Opaque, usize) -> Status;
    destroy_options: "miopenDestroyFindOptions" as Destroy;
    fuse_problems: "miopenFuseProblems" as unsafe extern "C" fn(Opaque, Opaque) -> Status;
    run_solution: "miopenRunSolution" as unsafe extern "C" fn(Opaque, Opaque, usize, *const TensorArgument, Opaque, usize) -> Status;
    destroy_solution: "miopenDestroySolution" as Destroy;
    save_solution: "miopenSaveSolution" as unsafe extern "C" fn(Opaque, *mut c_char) -> Status;
    solution_size: "miopenGetSolutionSize" as unsafe extern "C" fn(Opaque, *mut usize) -> Status;
    solution_workspace: "miopenGetSolutionWorkspaceSize" as unsafe extern "C" fn(Opaque, *mut usize) -> Status;
    solution_time: "miopenGetSolutionTime" as unsafe extern "C" fn(Opaque, *mut f32) -> Status;
    solution_solver: "miopenGetSolutionSolverId" as unsafe extern "C" fn(Opaque, *mut u64) -> Status;
    convolution_problem: "miopenCreateConvProblem" as unsafe extern "C" fn(*mut Opaque, Opaque, c_int) -> Status;
    find_solutions: "miopenFindSolutions" as unsafe extern "C" fn(Opaque, Opaque, Opaque, *mut Opaque, *mut usize, usize) -> Status;
    load_solution: "miopenLoadSolution" as unsafe extern "C" fn(*mut Opaque, *const c_char, usize) -> Status;
    destroy_problem: "miopenDestroyProblem" as Destroy;
}

direction_functions! {
    workspace_size: "miopenConvolution" .. "GetWorkSpaceSize" as Query<*mut usize>;
    find: "miopenFindConvolution" .. "Algorithm" as Find;
    execute: "miopenConvolution" .. "" as Execute;
    solution_count: "miopenConvolution" .. "GetSolutionCount" as Query<*mut usize>;
    solution: "miopenConvolution" .. "GetSolution" as GetSolution;
    solution_workspace_size: "miopenConvolution" .. "GetSolutionWorkspaceSize" as SolutionWorkspaceSize;
    compile_solution: "miopenConvolution" .. "CompileSolution" as Query<u64>;
    immediate: "miopenConvolution" .. "Immediate" as Immediate;
}

impl Functions {
    /// The functions of a direction.
    pub fn of(&self, direction: Direction) -> &DirectionFunctions {
        &self.directions[index_of(direction)]
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn every_name_is_looked_up_once_and_what_is_not_there_is_none() {
        let names = RefCell::new(Vec::new());
        let look_up = |name: &CStr| {
            names.borrow_mut().push(name.to_str().unwrap().to_owned());
            std::ptr::null_mut()
        };
        // SAFETY: no function is found.
        let functions = unsafe { Functions::load(&look_up) };
        assert!(functions.create.is_none() && functions.of(Direction::BackwardData).find.is_none());
        let mut names = names.into_inner();
        for name in
            ["miopenConvolutionForward", "miopenFindConvolutionBackwardDataAlgorithm", "miopenConvolutionForwardBias"]
        {
            assert!(names.iter().any(|it| it == name), "{name}");
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
