//! Reductions on cards where MIOpen's own kernels do not compile or are not proven.

use std::ffi::{c_int, c_void};

use unhang_conv::DataType;
use unhang_gpu::reduction::{AXES, Axis, Buffers, INDEX_BYTES, ReductionKind, Task};
use unhang_miopen_api::{BAD_PARAMETER, Opaque, SUCCESS, Status, data_type_of};

use crate::calls::guarded;
use crate::describe::read_axes;
use crate::face::{operate, process};
use crate::real::{self, Real};

/// `MIOPEN_PROPAGATE_NAN`.
const PROPAGATES: c_int = 1;
/// `MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES`.
const WITH_INDICES: c_int = 1;

/// The contents of a reduction's descriptor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Described {
    kind: ReductionKind,
    /// The type that is computed in.
    compute_type: DataType,
    propagates: bool,
    with_indices: bool,
}

impl Described {
    /// Reads a descriptor; `None` if the getter cannot, or if it says something that MIOpen does not have.
    fn read(real: &Real, descriptor: Opaque) -> Option<Described> {
        let [mut kind, mut compute_type, mut nan, mut indices, mut index_type] = [0; 5];
        if descriptor.is_null() {
            return None;
        }
        // SAFETY: the caller's descriptor, and places for what is returned.
        let status = unsafe {
            real.functions.reduction?(descriptor, &mut kind, &mut compute_type, &mut nan, &mut indices, &mut index_type)
        };
        let kind = *ReductionKind::ALL.get(usize::try_from(kind).ok()?)?;
        let with_indices = indices == WITH_INDICES && kind.is_extreme();
        // MIOpen has no indices of other types than its first.
        (status == SUCCESS && (!with_indices || index_type == 0)).then_some(())?;
        let compute_type = data_type_of(compute_type)?;
        Some(Described { kind, compute_type, propagates: nan == PROPAGATES, with_indices })
    }
}

/// A tensor of up to six axes.
struct Tensor {
    data_type: DataType,
    /// Sizes and strides.
    axes: Vec<(usize, usize)>,
}

impl Tensor {
    /// Reads a descriptor; `None` if the getters cannot, or truncated something.
    fn read(real: &Real, descriptor: Opaque) -> Option<Tensor> {
        let [mut sizes, mut strides] = [[0; AXES]; 2];
        let (count, data_type, bytes) = read_axes(real, descriptor, 1, &mut sizes, &mut strides)?;
        let data_type = data_type_of(data_type)?;
        let number = |number: c_int| usize::try_from(number).ok();
        let axis = |(&size, &stride): (&c_int, &c_int)| Some((number(size).filter(|&size| size > 0)?, number(stride)?));
        let axes: Vec<(usize, usize)> =
            sizes.iter().zip(&strides).take(count as usize).map(axis).collect::<Option<_>>()?;
        let far: usize = axes.iter().map(|(size, stride)| (size - 1) * stride).sum();
        ((far + 1) * data_type.size() == bytes).then_some(Tensor { data_type, axes })
    }
}

/// The reduction of tensor x to y; `None` if these do not fit, or nothing is reduced.
fn task_of(what: &Described, x: &Tensor, y: &Tensor, factors: [f64; 2]) -> Option<Task> {
    let (mut kept, mut reduced) = (Vec::new(), Vec::new());
    for (&(size, x), &(result, y)) in x.axes.iter().zip(&y.axes) {
        match result {
            1 => reduced.push(Axis { size, x, y: 0 }),
            _ if result == size => kept.push(Axis { size, x, y }),
            _ => return None,
        }
    }
    (x.axes.len() == y.axes.len() && !reduced.is_empty()).then_some(())?;
    let &Described { kind, compute_type, propagates, .. } = what;
    let [none, also_none] = [[Axis { size: 1, x: 0, y: 0 }; AXES]; 2];
    let task = Task {
        kind,
        propagates,
        data_type: x.data_type,
        result_type: y.data_type,
        in_double: compute_type == DataType::F64,
        kept: none,
        reduced: also_none,
        factors,
    };
    Some(task.with_axes(&kept, &reduced))
}

/// A call, as it was made.
struct Call {
    handle: Opaque,
    reduction: Opaque,
    indices: (Opaque, usize),
    scalars: [*const c_void; 2],
    /// Descriptors and addresses of x and y.
    tensors: [Opaque; 2],
    memory: [Opaque; 2],
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
        let all = self.tensors.iter().chain(&self.memory).chain([&self.handle, &self.reduction]);
        if all.into_iter().any(|it| it.is_null()) || self.scalars.iter().any(|it| it.is_null()) {
            return Some(BAD_PARAMETER);
        }
        let [x, y] = self.tensors.map(|it| Tensor::read(real, it));
        let (what, x, y) = (Described::read(real, self.reduction)?, x?, y?);
        let is_wide = x.data_type == DataType::F64;
        // SAFETY: the caller's scalars: doubles where x is of doubles, else floats.
        let read = |at: *const c_void| unsafe {
            if is_wide { at.cast::<f64>().read_unaligned() } else { f64::from(at.cast::<f32>().read_unaligned()) }
        };
        let task = task_of(&what, &x, &y, self.scalars.map(read))?;
        let (place, bytes) = self.indices;
        let [_, span] = task.spans()?;
        if what.with_indices && (place.is_null() || bytes < span * INDEX_BYTES) {
            return Some(BAD_PARAMETER);
        }
        let [x, y] = self.memory.map(|it| it as u64);
        let at = Buffers { x, y, indices: if what.with_indices { place as u64 } else { 0 } };
        // SAFETY: the caller's promise.
        unsafe { operate(process, real, self.handle, &task, &at) }
    }
}

// SAFETY for what follows: as `calls.rs` says.
#[rustfmt::skip]
pub(crate) mod calls {
    use super::*;

    exported! {
        /// Sums, products, norms, the least and the largest along axes of a tensor. Our kernels need no workspace of the caller's.
        miopenReduceTensor(
            handle: Opaque, reduction: Opaque, indices: Opaque, index_bytes: usize, workspace: Opaque, bytes: usize, alpha: *const c_void,
            x: Opaque, xp: Opaque, beta: *const c_void, y: Opaque, yp: Opaque,
        ) {
            let call = Call { handle, reduction, indices: (indices, index_bytes), scalars: [alpha, beta], tensors: [x, y], memory: [xp, yp] };
            // SAFETY: see above.
            guarded(|real| unsafe { call.ours(real) }.unwrap_or_else(|| forward!(
                real.functions.reduce, handle, reduction, indices, index_bytes, workspace, bytes, alpha, x, xp, beta, y, yp
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: Described =
        Described { kind: ReductionKind::Largest, compute_type: DataType::F32, propagates: true, with_indices: true };

    fn tensor(axes: &[(usize, usize)]) -> Tensor {
        Tensor { data_type: DataType::F32, axes: axes.to_vec() }
    }

    #[test]
    fn axes_of_size_one_in_the_result_are_reduced() {
        let (x, y) = (tensor(&[(2, 60), (3, 20), (20, 1)]), tensor(&[(1, 3), (3, 1), (1, 1)]));
        let task = task_of(&LARGEST, &x, &y, [1.0, 0.0]).unwrap();
        assert_eq!((task.units(), task.count(), task.propagates, task.in_double), (3, 40, true, false));
        assert_eq!((task.unit(1), task.element(21), task.spans()), ([20, 1], 61, Some([120, 3])));
        let in_double = Described { compute_type: DataType::F64, ..LARGEST };
        assert!(task_of(&in_double, &x, &y, [1.0, 0.0]).unwrap().in_double);
    }

    #[test]
    fn what_does_not_fit_or_reduces_nothing_is_left() {
        let x = tensor(&[(2, 60), (3, 20), (20, 1)]);
        for y in [&[(2, 3), (2, 1), (1, 1)][..], &[(2, 60), (3, 20), (20, 1)], &[(2, 3), (3, 1)]] {
            assert_eq!(task_of(&LARGEST, &x, &tensor(y), [1.0, 0.0]), None, "{y:?}");
        }
    }
}
