//! Tensors in a caller's memory.

use unhang_conv::{Layout, Problem, TensorShape};
use unhang_gpu::strided::Strides;

/// A tensor with its place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Its sizes.
    pub shape: TensorShape,
    /// Elements from one to the next along each axis.
    pub strides: Strides,
}

impl View {
    /// How many it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements from the first to past the last.
    pub fn span(&self) -> usize {
        1 + self.shape.iter().zip(self.strides).map(|(&size, stride)| (size - 1) * stride).sum::<usize>()
    }

    /// The strides of a tensor of that shape without gaps.
    pub fn dense_strides(shape: TensorShape, layout: Layout) -> Strides {
        layout.strides(shape)
    }

    /// Whether it has those strides; an axis of one element may have any stride.
    pub fn is_dense(&self, layout: Layout) -> bool {
        let dense = View::dense_strides(self.shape, layout);
        self.shape
            .iter()
            .zip(self.strides.iter().zip(dense))
            .all(|(&size, (&found, dense))| size == 1 || found == dense)
    }
}

/// A convolution as the caller asked for it, as an ordinary one that our engines support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// What is computed.
    pub problem: Problem,
    /// The problem's operands in its own order: first, second, result.
    pub views: [View; 3],
    /// Which of the caller's three tensors each of them is.
    pub order: [usize; 3],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_last_and_gaps_are_told_apart() {
        let view = View { shape: [1, 3, 4, 5], strides: [7, 1, 15, 3] };
        assert!(view.is_dense(Layout::Nhwc) && !view.is_dense(Layout::Nchw));
        let gaps = View { shape: [2, 3, 4, 5], strides: [100, 30, 6, 1] };
        assert!(!gaps.is_dense(Layout::Nhwc) && !gaps.is_dense(Layout::Nchw));
        assert_eq!(gaps.span(), 1 + 100 + 60 + 18 + 4);
    }
}
