//! Tensors that lie otherwise than our kernels read them: copied into that order and back, and a convolution's bias.

use unhang_conv::{DataType, TensorShape};

use crate::driver::Function;
use crate::plan::{Pointer, Stage};
use crate::plan_parts::{grid_x, type_number};
use crate::shapes::{Divisor, StridedShape};
use crate::sources::{Kernel, SourceFile};
use crate::{DevicePointers, GpuEngine, GpuError};

/// What the kernels of this module are called where families of kernels are named.
pub const FAMILY: &str = "strided";

/// Elements from one to the next along each axis.
pub type Strides = [usize; 4];

/// A launch that reads one tensor and writes another.
#[derive(Debug, Clone, PartialEq)]
pub struct Move(Stage);

impl Move {
    /// Copies a tensor. None where its elements cannot be counted with 31 bits.
    pub fn copy(data_type: DataType, shape: TensorShape, from: Strides, to: Strides) -> Option<Move> {
        Move::of_each("copy_strided", data_type, shape, from, to)
    }

    /// Adds a tensor to another; where `from` has stride 0 it is repeated.
    pub fn add(data_type: DataType, shape: TensorShape, from: Strides, to: Strides) -> Option<Move> {
        Move::of_each("add_strided", data_type, shape, from, to)
    }

    /// Sums a tensor over all axes but the second into `to`, whose elements are `step` apart.
    pub fn sum_over_channels(data_type: DataType, shape: TensorShape, from: Strides, step: usize) -> Option<Move> {
        let [batch, channels, height, width] = shape;
        reaches(shape, from)?;
        let numbers = Numbers {
            sizes: [batch, height, width],
            from: [from[1], from[0], from[2], from[3]],
            to: [step, 0, 0, 0],
            elements: batch * height * width,
        };
        let grid = [u32::try_from(channels).ok()?, 1, 1];
        Some(Move(numbers.stage("sum_strided", data_type, grid)?))
    }

    fn of_each(
        entry: &'static str,
        data_type: DataType,
        shape: TensorShape,
        from: Strides,
        to: Strides,
    ) -> Option<Move> {
        reaches(shape, from)?;
        reaches(shape, to)?;
        // Neighbours in what is written are written by neighbours.
        let mut axes = [0, 1, 2, 3];
        axes.sort_by_key(|&axis| std::cmp::Reverse((to[axis], shape[axis])));
        let numbers = Numbers {
            sizes: [shape[axes[1]], shape[axes[2]], shape[axes[3]]],
            from: axes.map(|axis| from[axis]),
            to: axes.map(|axis| to[axis]),
            elements: shape.iter().product(),
        };
        let grid = grid_x(numbers.elements as u64, 256);
        Some(Move(numbers.stage(entry, data_type, grid)?))
    }
}

/// Whether every element of a tensor can be addressed: none where one cannot.
fn reaches(shape: TensorShape, strides: Strides) -> Option<()> {
    let far = shape
        .iter()
        .zip(strides)
        .try_fold(0usize, |far, (&size, stride)| far.checked_add(size.checked_sub(1)?.checked_mul(stride)?))?;
    let elements = shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size))?;
    (far.max(elements) < i32::MAX as usize).then_some(())
}

struct Numbers {
    /// Of all axes but the first.
    sizes: [usize; 3],
    from: Strides,
    to: Strides,
    elements: usize,
}

impl Numbers {
    fn stage(&self, entry: &'static str, data_type: DataType, grid: [u32; 3]) -> Option<Stage> {
        let int = |number: usize| i32::try_from(number).ok();
        let ([from_0, from_1, from_2, from_3], [to_0, to_1, to_2, to_3]) = (self.from, self.to);
        let shape = StridedShape {
            elements: int(self.elements)?,
            from_0: int(from_0)?,
            from_1: int(from_1)?,
            from_2: int(from_2)?,
            from_3: int(from_3)?,
            to_0: int(to_0)?,
            to_1: int(to_1)?,
            to_2: int(to_2)?,
            to_3: int(to_3)?,
            by_1: Divisor::new(self.sizes[0]),
            by_2: Divisor::new(self.sizes[1]),
            by_3: Divisor::new(self.sizes[2]),
        };
        let constants = vec![("TYPE", type_number(data_type))];
        Some(Stage {
            kernel: Kernel { source: SourceFile::Strided, entry, constants },
            grid,
            block: 256,
            pointers: vec![Pointer::First, Pointer::Result],
            shape: shape.into(),
        })
    }
}

/// A launch whose kernel is loaded.
#[derive(Debug, Clone)]
pub struct LoadedMove {
    stage: Stage,
    function: Function,
}

impl GpuEngine {
    /// Compiles and loads what a launch in a stream needs, from memory or the cache where it can. While that stream records a graph
    /// only what is loaded already is available.
    pub fn load_move(&self, launch: Move, stream: u64) -> Result<LoadedMove, GpuError> {
        if !self.is_loaded(&launch.0.kernel) && self.driver().is_capturing(stream)? {
            return Err(GpuError::Capturing);
        }
        let function = self.function(&launch.0.kernel)?;
        Ok(LoadedMove { stage: launch.0, function })
    }

    /// Starts it on a stream and returns.
    ///
    /// # Safety
    /// Device memory that holds the elements which the launch was made for must lie at both places, and stay valid until
    /// the work is done.
    pub unsafe fn launch_move(&self, launch: &LoadedMove, from: u64, to: u64, stream: u64) -> Result<(), GpuError> {
        let pointers = DevicePointers { first: from, result: to, ..DevicePointers::default() };
        // SAFETY: the caller's promise.
        unsafe { self.launch_stage(&launch.stage, launch.function, pointers, stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_that_is_written_densest_is_the_fastest() {
        let Move(stage) = Move::copy(DataType::F32, [2, 3, 5, 7], [105, 35, 7, 1], [105, 1, 21, 3]).unwrap();
        let crate::shapes::Shape::Strided(shape) = stage.shape else { panic!("another shape") };
        assert_eq!([shape.to_0, shape.to_1, shape.to_2, shape.to_3], [105, 21, 3, 1]);
        assert_eq!([shape.from_0, shape.from_1, shape.from_2, shape.from_3], [105, 7, 1, 35]);
        assert_eq!([shape.by_1.value, shape.by_2.value, shape.by_3.value], [5, 7, 3]);
        assert_eq!(shape.elements, 210);
    }

    #[test]
    fn what_cannot_be_counted_is_declined() {
        assert_eq!(Move::copy(DataType::F16, [1 << 20, 1 << 20, 1, 1], [1 << 20, 1, 1, 1], [1; 4]), None);
        assert_eq!(Move::add(DataType::F16, [2, 1, 1, 1], [usize::MAX, 0, 0, 0], [1; 4]), None);
        assert_eq!(Move::copy(DataType::F32, [0, 1, 1, 1], [1; 4], [1; 4]), None);
    }
}
