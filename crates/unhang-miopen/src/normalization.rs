//! Batch normalisation on cards where MIOpen's own kernels are not proven: natively on gfx1010 MIOpen's do not even compile.

use std::ffi::{c_int, c_void};

use unhang_gpu::normalization::{Activation, ActivationKind, Buffers, Operation};
use unhang_miopen_api::{BAD_PARAMETER, Opaque, SUCCESS, Status};
use unhang_session::Normalizing;

use crate::calls::guarded;
use crate::describe::{Tensor, read_tensor};
use crate::face::{operate, process};
use crate::real::{self, Real};

/// `miopenBNPerActivation` of `miopenBatchNormMode_t`.
const PER_ACTIVATION: c_int = 0;
/// `miopenBNSpatial`.
pub(crate) const SPATIAL: c_int = 1;

/// A call, as it was made.
struct Call {
    handle: Opaque,
    operation: Operation,
    mode: c_int,
    /// Alphas and betas: ones and zeros, in turn.
    scalars: [*const c_void; 4],
    /// Descriptors of x, the result, and a second operand.
    tensors: [Opaque; 3],
    /// Of scale, bias, mean and variance.
    parameters: [Opaque; 4],
    at: Buffers,
    epsilon: f64,
    momentum: f64,
    /// The descriptor of an activation, or null.
    activation: Option<Opaque>,
}

/// The task, from tensors and parameters whose descriptors were read; `None` if we do not compute it.
pub(crate) fn describe(
    operation: Operation,
    mode: c_int,
    tensors: [Tensor; 3],
    parameters: [Tensor; 4],
    activation: Activation,
) -> Option<Normalizing> {
    let [(data_type, x), y, z] = [tensors[0].placed()?, tensors[1].placed()?, tensors[2].placed()?];
    let [scale, bias, mean, variance] =
        [parameters[0].placed()?, parameters[1].placed()?, parameters[2].placed()?, parameters[3].placed()?];
    let alike = [bias, mean, variance].iter().all(|it| it.1 == scale.1) && y.0 == data_type && z.0 == data_type;
    let what = Normalizing {
        operation,
        per_activation: mode == PER_ACTIVATION,
        data_type,
        tensors: [x, y.1, z.1],
        parameters: scale.1,
        types: [scale.0, bias.0, mean.0, variance.0],
        epsilon: 0.0,
        momentum: 0.0,
        factors: [1.0, 0.0],
        activation,
    };
    (alike && (PER_ACTIVATION..=SPATIAL).contains(&mode) && what.check().is_ok()).then_some(what)
}

/// An activation's descriptor; `None` if it cannot be read.
pub(crate) fn read_activation(real: &Real, descriptor: Opaque) -> Option<Activation> {
    let (mut mode, mut alpha, mut beta, mut gamma) = (0, 0.0, 0.0, 0.0);
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: the caller's descriptor, and places for the numbers.
    let status = unsafe { real.functions.activation?(descriptor, &mut mode, &mut alpha, &mut beta, &mut gamma) };
    let kind = ActivationKind::ALL.get(usize::try_from(mode).ok()?).copied()?;
    (status == SUCCESS).then_some(Activation { kind, alpha, beta, gamma })
}

impl Call {
    /// `None` if it is the real library's.
    ///
    /// # Safety
    /// Memory as the descriptors say.
    unsafe fn ours(&self, real: &Real) -> Option<Status> {
        if real::is_inside() {
            return None;
        }
        let process = process(real).filter(|process| process.is_endangered())?;
        if !self.is_complete() {
            return Some(BAD_PARAMETER);
        }
        let mut tensors = [Tensor::default(); 3];
        let mut parameters = [Tensor::default(); 4];
        for (to, from) in tensors.iter_mut().zip(self.tensors).chain(parameters.iter_mut().zip(self.parameters)) {
            *to = read_tensor(real, from)?;
        }
        let activation = match self.activation {
            Some(descriptor) => read_activation(real, descriptor)?,
            None => Activation::default(),
        };
        let what = describe(self.operation, self.mode, tensors, parameters, activation)?;
        let what = Normalizing { epsilon: self.epsilon, momentum: self.momentum, ..what };
        // SAFETY: the caller's promise.
        unsafe { operate(process, real, self.handle, &what, &self.at) }
    }

    /// Whether all required operands are present, and the scalars are those of a plain normalisation: MIOpen supports
    /// no others either. They are floats for every type of tensor.
    fn is_complete(&self) -> bool {
        let Buffers { x, y, z, scale, bias, .. } = self.at;
        let is_backward = matches!(self.operation, Operation::Backward | Operation::BackwardAnew);
        let descriptors = self.tensors.iter().chain(&self.parameters).chain([&self.handle]);
        let needs = [x, y, scale, if is_backward { z } else { bias }];
        // SAFETY: the caller's scalars, as the interface has them.
        let is = |at: *const c_void, value: f32| !at.is_null() && unsafe { at.cast::<f32>().read_unaligned() } == value;
        let [a, b, c, d] = self.scalars;
        descriptors.into_iter().all(|it| !it.is_null())
            && needs.iter().all(|&it| it != 0)
            && is(a, 1.0)
            && is(b, 0.0)
            && (!is_backward || (is(c, 1.0) && is(d, 0.0)))
    }
}

/// The saved statistics, if both are present; otherwise MIOpen saves none.
fn both(one: Opaque, other: Opaque) -> (u64, u64) {
    if one.is_null() || other.is_null() { (0, 0) } else { (one as u64, other as u64) }
}

#[rustfmt::skip]
struct Train { handle: Opaque, mode: c_int, scalars: [*const c_void; 2], x: [Opaque; 2], y: [Opaque; 2], parameters: [Opaque; 4], scale: Opaque, bias: Opaque,
    factor: f64, running: [Opaque; 2], epsilon: f64, saved: [Opaque; 2], activation: Option<Opaque> }

impl Train {
    fn call(&self) -> Call {
        let (mean, variance) = both(self.saved[0], self.saved[1]);
        let (running_mean, running_variance) = both(self.running[0], self.running[1]);
        let ([x, xp], [y, yp], null) = (self.x, self.y, std::ptr::null());
        Call {
            handle: self.handle,
            operation: Operation::Train,
            mode: self.mode,
            scalars: [self.scalars[0], self.scalars[1], null, null],
            tensors: [x, y, y],
            parameters: self.parameters,
            at: Buffers {
                x: xp as u64,
                y: yp as u64,
                scale: self.scale as u64,
                bias: self.bias as u64,
                mean,
                variance,
                running_mean,
                running_variance,
                ..Buffers::default()
            },
            epsilon: self.epsilon,
            momentum: self.factor,
            activation: self.activation,
        }
    }
}

#[rustfmt::skip]
struct Infer { handle: Opaque, mode: c_int, scalars: [*const c_void; 2], x: [Opaque; 2], y: [Opaque; 2], parameters: [Opaque; 4], scale: Opaque, bias: Opaque,
    estimated: [Opaque; 2], epsilon: f64, activation: Option<Opaque> }

impl Infer {
    /// Without estimates, the batch's own statistics are used, as in MIOpen.
    fn call(&self) -> Call {
        let Infer { handle, mode, scalars, x, y, parameters, scale, bias, epsilon, activation, .. } = *self;
        let null = std::ptr::null_mut();
        let train = Train {
            handle,
            mode,
            scalars,
            x,
            y,
            parameters,
            scale,
            bias,
            factor: 0.0,
            running: [null; 2],
            epsilon,
            saved: [null; 2],
            activation,
        };
        let call = train.call();
        match both(self.estimated[0], self.estimated[1]) {
            (0, 0) => call,
            (mean, variance) => Call { operation: Operation::Apply, at: Buffers { mean, variance, ..call.at }, ..call },
        }
    }
}

#[rustfmt::skip]
struct Backward { handle: Opaque, mode: c_int, scalars: [*const c_void; 4], x: [Opaque; 2], dy: [Opaque; 2], dx: [Opaque; 2], parameters: [Opaque; 4],
    scale: Opaque, bias: Opaque, gradients: [Opaque; 2], epsilon: f64, saved: [Opaque; 2], activation: Option<Opaque> }

impl Backward {
    fn call(&self) -> Call {
        let (mean, variance) = both(self.saved[0], self.saved[1]);
        let ([x, xp], [dy, dyp], [dx, dxp]) = (self.x, self.dy, self.dx);
        Call {
            handle: self.handle,
            operation: if mean == 0 { Operation::BackwardAnew } else { Operation::Backward },
            mode: self.mode,
            scalars: self.scalars,
            tensors: [x, dx, dy],
            parameters: self.parameters,
            at: Buffers {
                x: xp as u64,
                y: dxp as u64,
                z: dyp as u64,
                scale: self.scale as u64,
                bias: self.bias as u64,
                mean,
                variance,
                scale_gradient: self.gradients[0] as u64,
                bias_gradient: self.gradients[1] as u64,
                ..Buffers::default()
            },
            epsilon: self.epsilon,
            momentum: 0.0,
            activation: self.activation,
        }
    }
}

// SAFETY for what follows: as `calls.rs` says.
#[rustfmt::skip]
pub(crate) mod calls {
    use super::*;

    macro_rules! ours_or {
        ($call:expr, $real:ident, $forward:expr) => {{
            let call = $call.call();
            // SAFETY: see above.
            guarded(|$real| unsafe { call.ours($real) }.unwrap_or_else(|| $forward))
        }};
    }

    exported! {
        /// Training batch normalisation.
        miopenBatchNormalizationForwardTraining(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque,
            scale: Opaque, bias: Opaque, factor: f64, running_mean: Opaque, running_variance: Opaque, epsilon: f64, saved_mean: Opaque, saved_inverse: Opaque,
        ) {
            ours_or!(
                Train { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p; 4], scale, bias, factor,
                    running: [running_mean, running_variance], epsilon, saved: [saved_mean, saved_inverse], activation: None },
                real,
                forward!(real.functions.batch_norm_train, handle, mode, alpha, beta, x, xp, y, yp, p, scale, bias, factor, running_mean, running_variance,
                    epsilon, saved_mean, saved_inverse)
            )
        }
        /// Training batch normalisation, with descriptors of each parameter.
        miopenBatchNormalizationForwardTraining_V2(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque, q: Opaque, r: Opaque,
            s: Opaque, scale: Opaque, bias: Opaque, factor: f64, running_mean: Opaque, running_variance: Opaque, epsilon: f64, saved_mean: Opaque,
            saved_inverse: Opaque,
        ) {
            ours_or!(
                Train { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p, q, r, s], scale, bias, factor,
                    running: [running_mean, running_variance], epsilon, saved: [saved_mean, saved_inverse], activation: None },
                real,
                forward!(real.functions.batch_norm_train_2, handle, mode, alpha, beta, x, xp, y, yp, p, q, r, s, scale, bias, factor, running_mean,
                    running_variance, epsilon, saved_mean, saved_inverse)
            )
        }
        /// Training batch normalisation, and an activation.
        miopenBatchNormForwardTrainingActivation(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque, q: Opaque, r: Opaque,
            s: Opaque, scale: Opaque, bias: Opaque, factor: f64, running_mean: Opaque, running_variance: Opaque, epsilon: f64, saved_mean: Opaque,
            saved_inverse: Opaque, activation: Opaque,
        ) {
            ours_or!(
                Train { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p, q, r, s], scale, bias, factor,
                    running: [running_mean, running_variance], epsilon, saved: [saved_mean, saved_inverse], activation: Some(activation) },
                real,
                forward!(real.functions.batch_norm_train_3, handle, mode, alpha, beta, x, xp, y, yp, p, q, r, s, scale, bias, factor, running_mean,
                    running_variance, epsilon, saved_mean, saved_inverse, activation)
            )
        }
        /// Inference batch normalisation.
        miopenBatchNormalizationForwardInference(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque,
            scale: Opaque, bias: Opaque, mean: Opaque, variance: Opaque, epsilon: f64,
        ) {
            ours_or!(
                Infer { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p; 4], scale, bias, estimated: [mean, variance], epsilon,
                    activation: None },
                real,
                forward!(real.functions.batch_norm_infer, handle, mode, alpha, beta, x, xp, y, yp, p, scale, bias, mean, variance, epsilon)
            )
        }
        /// Inference batch normalisation, with descriptors of each parameter.
        miopenBatchNormalizationForwardInference_V2(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque, q: Opaque, r: Opaque,
            s: Opaque, scale: Opaque, bias: Opaque, mean: Opaque, variance: Opaque, epsilon: f64,
        ) {
            ours_or!(
                Infer { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p, q, r, s], scale, bias, estimated: [mean, variance],
                    epsilon, activation: None },
                real,
                forward!(real.functions.batch_norm_infer_2, handle, mode, alpha, beta, x, xp, y, yp, p, q, r, s, scale, bias, mean, variance, epsilon)
            )
        }
        /// Inference batch normalisation, and an activation.
        miopenBatchNormForwardInferenceActivation(
            handle: Opaque, mode: c_int, alpha: *const c_void, beta: *const c_void, x: Opaque, xp: Opaque, y: Opaque, yp: Opaque, p: Opaque, q: Opaque, r: Opaque,
            s: Opaque, scale: Opaque, bias: Opaque, mean: Opaque, variance: Opaque, epsilon: f64, activation: Opaque,
        ) {
            ours_or!(
                Infer { handle, mode, scalars: [alpha, beta], x: [x, xp], y: [y, yp], parameters: [p, q, r, s], scale, bias, estimated: [mean, variance],
                    epsilon, activation: Some(activation) },
                real,
                forward!(real.functions.batch_norm_infer_3, handle, mode, alpha, beta, x, xp, y, yp, p, q, r, s, scale, bias, mean, variance, epsilon,
                    activation)
            )
        }
        /// The gradients of a batch normalisation.
        miopenBatchNormalizationBackward(
            handle: Opaque, mode: c_int, a: *const c_void, b: *const c_void, c: *const c_void, d: *const c_void, x: Opaque, xp: Opaque, dy: Opaque, dyp: Opaque,
            dx: Opaque, dxp: Opaque, p: Opaque, scale: Opaque, dscale: Opaque, dbias: Opaque, epsilon: f64, mean: Opaque, inverse: Opaque,
        ) {
            ours_or!(
                Backward { handle, mode, scalars: [a, b, c, d], x: [x, xp], dy: [dy, dyp], dx: [dx, dxp], parameters: [p; 4], scale,
                    bias: std::ptr::null_mut(), gradients: [dscale, dbias], epsilon, saved: [mean, inverse], activation: None },
                real,
                forward!(real.functions.batch_norm_backward, handle, mode, a, b, c, d, x, xp, dy, dyp, dx, dxp, p, scale, dscale, dbias, epsilon, mean, inverse)
            )
        }
        /// The gradients of a batch normalisation, with descriptors of each parameter.
        miopenBatchNormalizationBackward_V2(
            handle: Opaque, mode: c_int, a: *const c_void, b: *const c_void, c: *const c_void, d: *const c_void, x: Opaque, xp: Opaque, dy: Opaque, dyp: Opaque,
            dx: Opaque, dxp: Opaque, p: Opaque, q: Opaque, r: Opaque, s: Opaque, scale: Opaque, dscale: Opaque, dbias: Opaque, epsilon: f64, mean: Opaque,
            inverse: Opaque,
        ) {
            ours_or!(
                Backward { handle, mode, scalars: [a, b, c, d], x: [x, xp], dy: [dy, dyp], dx: [dx, dxp], parameters: [p, q, r, s], scale,
                    bias: std::ptr::null_mut(), gradients: [dscale, dbias], epsilon, saved: [mean, inverse], activation: None },
                real,
                forward!(real.functions.batch_norm_backward_2, handle, mode, a, b, c, d, x, xp, dy, dyp, dx, dxp, p, q, r, s, scale, dscale, dbias, epsilon,
                    mean, inverse)
            )
        }
        /// The gradients of a batch normalisation through an activation, which needs the bias.
        miopenBatchNormBackwardActivation(
            handle: Opaque, mode: c_int, a: *const c_void, b: *const c_void, c: *const c_void, d: *const c_void, x: Opaque, xp: Opaque, dy: Opaque, dyp: Opaque,
            dx: Opaque, dxp: Opaque, p: Opaque, q: Opaque, r: Opaque, s: Opaque, scale: Opaque, bias: Opaque, dscale: Opaque, dbias: Opaque, epsilon: f64,
            mean: Opaque, inverse: Opaque, activation: Opaque,
        ) {
            ours_or!(
                Backward { handle, mode, scalars: [a, b, c, d], x: [x, xp], dy: [dy, dyp], dx: [dx, dxp], parameters: [p, q, r, s], scale, bias,
                    gradients: [dscale, dbias], epsilon, saved: [mean, inverse], activation: Some(activation) },
                real,
                forward!(real.functions.batch_norm_backward_3, handle, mode, a, b, c, d, x, xp, dy, dyp, dx, dxp, p, q, r, s, scale, bias, dscale, dbias,
                    epsilon, mean, inverse, activation)
            )
        }
    }
}
