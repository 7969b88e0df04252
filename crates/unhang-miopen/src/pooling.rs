//! Pooling on cards where MIOpen's own kernels are not proven.

use std::ffi::{c_int, c_void};

use unhang_gpu::pooling::{Buffers, IndexType, Pooling, PoolingKind, Task};
use unhang_miopen_api::{BAD_PARAMETER, Opaque, SUCCESS, Status};

use crate::calls::guarded;
use crate::describe::{Tensor, read_tensor};
use crate::face::{operate, process};
use crate::real::{self, Real};

/// `miopenPoolingMode_t`, in its order.
const KINDS: [PoolingKind; 3] = [PoolingKind::Largest, PoolingKind::Mean, PoolingKind::InclusiveMean];
/// `miopenPoolingWorkspaceIndexMask`: an index counts in its window.
const INDEX_IN_WINDOW: c_int = 0;

/// The contents of a pooling's descriptor, for depth, height and width.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    kind: PoolingKind,
    axes: c_int,
    window: [usize; 3],
    padding: [usize; 3],
    stride: [usize; 3],
    index: IndexType,
    index_in_window: bool,
}

impl Window {
    /// Reads a descriptor; `None` if the getters cannot.
    fn read(real: &Real, descriptor: Opaque) -> Option<Window> {
        let f = &real.functions;
        let (mut mode, mut axes, mut index, mut counts_in) = (0, 0, 0, 0);
        let [mut window, mut padding, mut stride] = [[0; 3]; 3];
        if descriptor.is_null() {
            return None;
        }
        // The getter copies as many numbers as it is asked for, without checking that it has them: ask for none at
        // first.
        // SAFETY: the caller's descriptor, and places for what is asked for.
        unsafe {
            let get = f.pooling?;
            for turn in 0..2 {
                let [w, p, s] = [&mut window, &mut padding, &mut stride].map(|it| it.as_mut_ptr());
                let asked = if turn == 0 { 0 } else { axes };
                if get(descriptor, asked, &mut mode, &mut axes, w, p, s) != SUCCESS || !(1..=3).contains(&axes) {
                    return None;
                }
            }
            if f.pooling_index_type?(descriptor, &mut index) != SUCCESS
                || f.pooling_index_mode?(descriptor, &mut counts_in) != SUCCESS
            {
                return None;
            }
        }
        let of_space = |numbers: [c_int; 3], otherwise: usize| {
            let mut all = [otherwise; 3];
            for axis in 0..axes as usize {
                all[axis + 3 - axes as usize] = usize::try_from(numbers[axis]).ok()?;
            }
            Some(all)
        };
        Some(Window {
            kind: *KINDS.get(usize::try_from(mode).ok()?)?,
            axes,
            window: of_space(window, 1)?,
            padding: of_space(padding, 0)?,
            stride: of_space(stride, 1)?,
            index: *IndexType::ALL.get(usize::try_from(index).ok()?)?,
            index_in_window: counts_in == INDEX_IN_WINDOW,
        })
    }

    /// The pooling of tensors x and y, or of their gradients; `None` if these do not fit.
    fn task(&self, backward: bool, x: &Tensor, y: &Tensor, factors: [f64; 2]) -> Option<Task> {
        let ((data_type, placed_x), (y_type, placed_y)) = (x.placed()?, y.placed()?);
        let ([batch, channels, d, h, w], [y_batch, y_channels, yd, yh, yw]) = (placed_x.sizes, placed_y.sizes);
        let alike = (data_type, batch, channels) == (y_type, y_batch, y_channels);
        let Window { kind, axes, window, padding, stride, index, index_in_window } = *self;
        let (input, output) = ([d, h, w], [yd, yh, yw]);
        let sizes = Pooling { kind, batch, channels, input, output, window, stride, padding, index_in_window };
        let task = Task { sizes, backward, data_type, x: placed_x.strides, y: placed_y.strides, index, factors };
        (alike && x.axes == axes + 2 && y.axes == x.axes).then_some(task)
    }
}

/// A call, as it was made.
struct Call {
    handle: Opaque,
    pooling: Opaque,
    backward: bool,
    scalars: [*const c_void; 2],
    /// Descriptors of x and y, or of their gradients.
    tensors: [Opaque; 2],
    /// The source and the result.
    memory: [Opaque; 2],
    /// Whether indices of the largest elements are stored or read, their address, and the caller's size in bytes.
    keeps_indices: bool,
    workspace: (Opaque, usize),
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
        let all = self.tensors.iter().chain(&self.memory).chain([&self.handle, &self.pooling]);
        if all.into_iter().any(|it| it.is_null()) || self.scalars.iter().any(|it| it.is_null()) {
            return Some(BAD_PARAMETER);
        }
        // SAFETY: the caller's scalars, floats whatever the tensors are.
        let factors = self.scalars.map(|at| f64::from(unsafe { at.cast::<f32>().read_unaligned() }));
        let [x, y] = self.tensors.map(|it| read_tensor(real, it));
        let task = Window::read(real, self.pooling)?.task(self.backward, &x?, &y?, factors)?;
        let (place, bytes) = self.workspace;
        let keeps_indices = task.sizes.kind == PoolingKind::Largest && self.keeps_indices;
        // A size of 0 means nothing: AMD's own driver program passes it.
        let is_small = bytes != 0 && bytes < task.sizes.outputs() * task.index.bytes();
        if keeps_indices && (place.is_null() || is_small) {
            return Some(BAD_PARAMETER);
        }
        let [from, to] = self.memory.map(|it| it as u64);
        let at = Buffers { from, to, indices: if keeps_indices { place as u64 } else { 0 } };
        // SAFETY: the caller's promise.
        unsafe { operate(process, real, self.handle, &task, &at) }
    }
}

// SAFETY for what follows: as `calls.rs` says.
#[rustfmt::skip]
pub(crate) mod calls {
    use super::*;

    exported! {
        /// Pooling, with the indices of the largest elements if a backward pass will follow.
        miopenPoolingForward(
            handle: Opaque, pooling: Opaque, alpha: *const c_void, x: Opaque, xp: Opaque, beta: *const c_void, y: Opaque, yp: Opaque, keeps_indices: bool,
            workspace: Opaque, bytes: usize,
        ) {
            let call = Call { handle, pooling, backward: false, scalars: [alpha, beta], tensors: [x, y], memory: [xp, yp], keeps_indices,
                workspace: (workspace, bytes) };
            // SAFETY: see above.
            guarded(|real| unsafe { call.ours(real) }.unwrap_or_else(|| forward!(
                real.functions.pooling_forward, handle, pooling, alpha, x, xp, beta, y, yp, keeps_indices, workspace, bytes
            )))
        }
        /// The gradient of a pooling.
        miopenPoolingBackward(
            handle: Opaque, pooling: Opaque, alpha: *const c_void, y: Opaque, yp: Opaque, dy: Opaque, dyp: Opaque, x: Opaque, xp: Opaque,
            beta: *const c_void, dx: Opaque, dxp: Opaque, workspace: Opaque,
        ) {
            let call = Call { handle, pooling, backward: true, scalars: [alpha, beta], tensors: [dx, dy], memory: [dyp, dxp],
                keeps_indices: true, workspace: (workspace, 0) };
            // SAFETY: see above.
            guarded(|real| unsafe { call.ours(real) }.unwrap_or_else(|| forward!(
                real.functions.pooling_backward, handle, pooling, alpha, y, yp, dy, dyp, x, xp, beta, dx, dxp, workspace
            )))
        }
    }
}
