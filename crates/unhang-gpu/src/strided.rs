//! Tensors that lie otherwise than our kernels read them: copied into that order and back; planes of 3-d tensors; and a
//! convolution's bias.

use unhang_conv::{DataType, Layout, Planes, TensorShape};

use crate::driver::Function;
use crate::plan::{Pointer, Stage};
use crate::plan_parts::{checked_ints, divisors, grid_x};
use crate::shapes::{Divisor, PlanesShape, Shape, StridedShape};
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

    /// Copies planes of a 3-d tensor with these strides into a 2-d tensor without gaps, zeros where there is no such plane.
    pub fn gather(data_type: DataType, planes: &Planes, layout: Layout, strides: [usize; 5]) -> Option<Move> {
        let loops = planes.loops(layout.strides(planes.shape()), strides, false);
        let axes = loops.loops.iter().map(|it| [it.count as i64, it.volume, it.folded as i64, it.depth]);
        Move::of_planes(data_type, axes, [loops.start, 0, loops.depth, loops.planes])
    }

    /// Copies a 2-d tensor without gaps into planes of a 3-d one with these strides.
    pub fn scatter(data_type: DataType, planes: &Planes, layout: Layout, strides: [usize; 5]) -> Option<Move> {
        let loops = planes.loops(layout.strides(planes.shape()), strides, true);
        let axes = loops.loops.iter().map(|it| [it.count as i64, it.folded as i64, it.volume, 0]);
        Move::of_planes(data_type, axes, [0, loops.start, 0, 1])
    }

    /// Fills planes of a 3-d tensor with zeros; what it reads from does not matter.
    pub fn clear(data_type: DataType, planes: &Planes, layout: Layout, strides: [usize; 5]) -> Option<Move> {
        let loops = planes.loops(layout.strides(planes.shape()), strides, true);
        let axes = loops.loops.iter().map(|it| [it.count as i64, 0, it.volume, 0]);
        Move::of_planes(data_type, axes, [0, loops.start, 0, 0])
    }

    /// Axes are size, stride in `from` and in `to`, and planes in between, the slowest first. Then come the places
    /// where both tensors begin, the first plane, and how many there are.
    fn of_planes(
        data_type: DataType,
        axes: impl Iterator<Item = [i64; 4]>,
        [from_start, to_start, depth, planes]: [i64; 4],
    ) -> Option<Move> {
        let mut all: Vec<[i64; 4]> = axes.collect();
        while all.len() < 6 {
            all.insert(0, [1, 0, 0, 0]);
        }
        let elements = all.iter().try_fold(1i64, |product, axis| product.checked_mul(axis[0]))?;
        // No place, and no sum on the way to one, passes 31 bits. What is left of the first plane is never read.
        for which in 1..4 {
            let start = [from_start, to_start, depth][which - 1];
            let far = |axis: &[i64; 4]| axis[which].checked_mul(axis[0] - 1).map(i64::abs);
            let far = all.iter().try_fold(start.abs(), |sum, axis| sum.checked_add(far(axis)?))?;
            i32::try_from(far).ok()?;
        }
        let int = |number: i64| i32::try_from(number).ok();
        let numbers = |which: usize| -> Option<[i32; 6]> {
            let found: Vec<i32> = all.iter().map(|axis| int(axis[which])).collect::<Option<_>>()?;
            found.try_into().ok()
        };
        let by = |axis: usize| Divisor::new(all[axis][0] as usize);
        let shape = PlanesShape {
            elements: int(elements)?,
            from_start: int(from_start)?,
            to_start: int(to_start)?,
            depth: int(depth)?,
            planes: int(planes)?,
            from: numbers(1)?,
            to: numbers(2)?,
            depths: numbers(3)?,
            by: [1, 2, 3, 4, 5].map(by),
        };
        Some(Move(stage("copy_planes", data_type, grid_x(elements as u64, 256), shape.into())))
    }

    /// What the launch compiles.
    pub fn kernel(&self) -> &Kernel {
        &self.0.kernel
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

/// `Some` if every element of a tensor can be addressed.
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
        let shape = StridedShape {
            elements: i32::try_from(self.elements).ok()?,
            from: checked_ints(self.from)?,
            to: checked_ints(self.to)?,
            by: divisors(self.sizes),
        };
        Some(stage(entry, data_type, grid, shape.into()))
    }
}

fn stage(entry: &'static str, data_type: DataType, grid: [u32; 3], shape: Shape) -> Stage {
    Stage {
        kernel: Kernel::of_type(SourceFile::Strided, entry, data_type),
        grid,
        block: 256,
        pointers: vec![Pointer::First, Pointer::Result],
        shape,
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
    use unhang_conv::Volume;

    #[test]
    fn the_axis_that_is_written_densest_is_the_fastest() {
        let Move(stage) = Move::copy(DataType::F32, [2, 3, 5, 7], [105, 35, 7, 1], [105, 1, 21, 3]).unwrap();
        let crate::shapes::Shape::Strided(shape) = stage.shape else { panic!("another shape") };
        assert_eq!(shape.to, [105, 21, 3, 1]);
        assert_eq!(shape.from, [105, 7, 1, 35]);
        assert_eq!(shape.by.map(|it| it.value), [5, 7, 3]);
        assert_eq!(shape.elements, 210);
    }

    #[test]
    fn what_cannot_be_counted_is_declined() {
        assert_eq!(Move::copy(DataType::F16, [1 << 20, 1 << 20, 1, 1], [1 << 20, 1, 1, 1], [1; 4]), None);
        assert_eq!(Move::add(DataType::F16, [2, 1, 1, 1], [usize::MAX, 0, 0, 0], [1; 4]), None);
        assert_eq!(Move::copy(DataType::F32, [0, 1, 1, 1], [1; 4], [1; 4]), None);
        let volume: Volume = "forward:f16:ncdhw:1x2000x40x200x200:8x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1".parse().unwrap();
        let planes = volume.fold(1).unwrap().parts[0].planes[0];
        let strides = Volume::dense_strides(volume.input_shape(), Layout::Nchw);
        assert_eq!(Move::gather(DataType::F16, &planes, Layout::Nchw, strides), None, "3.2 billion elements");
    }

    #[test]
    fn what_lies_in_one_line_is_one_axis() {
        let volume: Volume = "forward:f32:ncdhw:2x3x5x7x8:8x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1".parse().unwrap();
        let planes = volume.fold(usize::MAX).unwrap().parts[0].planes[0];
        let strides = Volume::dense_strides(volume.input_shape(), Layout::Nchw);
        let Move(stage) = Move::gather(DataType::F32, &planes, Layout::Nchw, strides).unwrap();
        let crate::shapes::Shape::Planes(shape) = stage.shape else { panic!("another shape") };
        // Images, depths, channels, taps, and all of a plane.
        assert_eq!(shape.by.map(|it| it.value), [2, 5, 3, 3, 56]);
        assert_eq!([shape.depth, shape.planes, shape.depths[2], shape.depths[4]], [-1, 5, 1, 1]);
        assert_eq!((shape.elements, shape.from_start), (2 * 5 * 9 * 56, -56));
    }
}
