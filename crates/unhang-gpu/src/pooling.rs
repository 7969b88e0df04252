//! Pooling over up to three axes of space, forward and backward.

mod definition;

pub use definition::{Pooling, PoolingKind};

use unhang_conv::DataType;

use crate::launches::{Launches, Stage, THREADS, Way};
use crate::plan_parts::checked_ints;
use crate::shapes::{Divisor, PoolingAxis, PoolingShape};
use crate::sources::{Kernel, SourceFile};

/// What the kernels of this module are called where families of kernels are named.
pub const FAMILY: &str = "pooling";

/// Neighbours in a row of a gradient that a thread makes, as in `pooling.cu`.
const ROW_ELEMENTS: usize = 4;

/// How large an index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum IndexType {
    U8,
    U16,
    U32,
    U64,
}

impl IndexType {
    /// All of them, each at the number that MIOpen has for it.
    pub const ALL: [IndexType; 4] = [IndexType::U8, IndexType::U16, IndexType::U32, IndexType::U64];

    /// Bytes of an index.
    pub const fn bytes(self) -> usize {
        1 << self as usize
    }

    /// Whether that many different indices fit. As in MIOpen, the type's largest value is not an index.
    pub const fn holds(self, indices: usize) -> bool {
        (indices as u128) < (1u128 << (8 * self.bytes())) - 1
    }
}

/// A pooling as it is in memory. Indices are in the order of y's axes, without gaps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// Its sizes.
    pub sizes: Pooling,
    /// Whether the gradient of x is computed from that of y.
    pub backward: bool,
    /// The type of the tensors.
    pub data_type: DataType,
    /// Elements from one to the next along each axis of x, or of its gradient.
    pub x: [usize; 5],
    /// Those of y, or of its gradient.
    pub y: [usize; 5],
    /// How large an index is.
    pub index: IndexType,
    /// What the result and what was in its place are multiplied with.
    pub factors: [f64; 2],
}

/// Device memory of a pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffers {
    /// x, or the gradient of y.
    pub from: u64,
    /// y, or the gradient of x.
    pub to: u64,
    /// Indices of the largest elements; 0 where none are wanted.
    pub indices: u64,
}

impl Buffers {
    /// All addresses, as [`GpuEngine::launch_all`](crate::GpuEngine::launch_all) takes them.
    pub fn addresses(&self) -> [u64; 3] {
        [self.from, self.to, self.indices]
    }
}

impl From<[u64; 3]> for Buffers {
    fn from([from, to, indices]: [u64; 3]) -> Buffers {
        Buffers { from, to, indices }
    }
}

impl Task {
    /// The launch; `None` if elements cannot be counted with 31 bits.
    pub fn launches(&self) -> Option<Launches> {
        self.launches_by(self.way())
    }

    /// The order of its threads, unless another one was measured to be faster: that of the result in memory.
    pub fn way(&self) -> Way {
        let result = if self.backward { self.x } else { self.y };
        Way { lane_bits: 0, chunks: 1, in_quads: false, along: result[1] == 1 }
    }

    /// The launch with threads in that order.
    pub fn launches_by(&self, way: Way) -> Option<Launches> {
        let sizes = &self.sizes;
        for (space, strides) in [(sizes.input, self.x), (sizes.output, self.y)] {
            let all = [sizes.batch, sizes.channels, space[0], space[1], space[2]];
            let far = all
                .iter()
                .zip(strides)
                .try_fold(0usize, |far, (&size, stride)| far.checked_add(size.checked_sub(1)?.checked_mul(stride)?))?;
            (far < i32::MAX as usize && all.iter().product::<usize>() < i32::MAX as usize).then_some(())?;
        }
        let has_indices = sizes.kind == PoolingKind::Largest;
        let entry = match (has_indices, self.backward) {
            (true, false) => "pooling_largest",
            (false, false) => "pooling_mean",
            (true, true) => "pooling_largest_backward",
            (false, true) => "pooling_mean_backward",
        };
        let shape = self.shape(way)?;
        let stage = Stage {
            kernel: Kernel::of_type(SourceFile::Pooling, entry, self.data_type),
            grid: [(shape.elements as u32).div_ceil(THREADS), 1, 1],
            shape: shape.into(),
            operands: (0..if has_indices { 3 } else { 2 }).map(|operand| (operand, 0)).collect(),
        };
        Some(Launches { stages: vec![stage], workspace_bytes: 0 })
    }

    fn shape(&self, way: Way) -> Option<PoolingShape> {
        let int = |number: usize| i32::try_from(number).ok();
        let sizes = &self.sizes;
        let [_, height, width] = if sizes.index_in_window { sizes.window } else { sizes.input };
        let places = [height.checked_mul(width)?, width, 1];
        let axis = |axis: usize| {
            let (stride, output) = (sizes.stride[axis], sizes.output[axis]);
            let reach = output.checked_mul(stride)?.checked_add(sizes.window[axis])?.checked_add(sizes.input[axis])?;
            int(reach.checked_add(2 * sizes.padding[axis])?)?;
            Some(PoolingAxis {
                input: int(sizes.input[axis])?,
                output: int(output)?,
                window: int(sizes.window[axis])?,
                stride: int(stride)?,
                padding: int(sizes.padding[axis])?,
                x: int(self.x[axis + 2])?,
                y: int(self.y[axis + 2])?,
                place: int(places[axis])?,
                by_stride: Divisor::new(stride),
            })
        };
        let ([depth, height, width], each) =
            if self.backward { (sizes.input, ROW_ELEMENTS) } else { (sizes.output, 1) };
        // Threads of a row.
        let across = width.div_ceil(each);
        int(sizes.window[0].checked_mul(places[0])?)?;
        Some(PoolingShape {
            elements: int(sizes.batch * sizes.channels * depth * height * across)?,
            channels_last: i32::from(way.along && sizes.channels > 1 && depth * height * width > 1),
            by_channels: Divisor::new(sizes.channels),
            by_depth: Divisor::new(depth),
            by_height: Divisor::new(height),
            by_width: Divisor::new(across),
            x: checked_ints([self.x[0], self.x[1]])?,
            y: checked_ints([self.y[0], self.y[1]])?,
            d: axis(0)?,
            h: axis(1)?,
            w: axis(2)?,
            index_bits: self.index as i32,
            index_in_window: i32::from(sizes.index_in_window),
            taps: int(sizes.taps())?,
            inclusive: i32::from(sizes.kind == PoolingKind::InclusiveMean),
            inverse_taps: (1.0 / sizes.taps() as f64).into(),
            alpha: self.factors[0].into(),
            beta: self.factors[1].into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::Shape;

    fn task() -> Task {
        let sizes = Pooling {
            kind: PoolingKind::Largest,
            batch: 2,
            channels: 5,
            input: [1, 9, 9],
            output: [1, 4, 4],
            window: [1, 3, 3],
            stride: [1, 2, 2],
            padding: [0, 0, 0],
            index_in_window: true,
        };
        let (x, y) = ([405, 81, 81, 9, 1], [80, 16, 16, 4, 1]);
        Task { sizes, backward: false, data_type: DataType::F32, x, y, index: IndexType::U8, factors: [1.0, 0.0] }
    }

    #[test]
    fn neighbours_of_the_result_are_neighbouring_threads() {
        let shape = |task: &Task| match task.launches().unwrap().stages[0].shape {
            Shape::Pooling(shape) => shape,
            other => panic!("{other:?}"),
        };
        assert_eq!((shape(&task()).channels_last, shape(&task()).elements), (0, 160));
        let last = Task { y: [80, 1, 80, 20, 5], ..task() };
        assert_eq!(shape(&last).channels_last, 1);
        let backward = Task { backward: true, ..last };
        // A row of nine elements is three fours.
        assert_eq!((shape(&backward).channels_last, shape(&backward).elements), (0, 270));
    }

    #[test]
    fn an_index_type_holds_all_numbers_but_its_last() {
        assert!(IndexType::U8.holds(254) && !IndexType::U8.holds(255));
        assert!(IndexType::U16.holds(65534) && !IndexType::U16.holds(65535));
        assert!(IndexType::U32.holds(1 << 31) && IndexType::U64.holds(usize::MAX / 2));
    }

    #[test]
    fn what_cannot_be_counted_is_declined() {
        let sizes = Pooling { batch: 1 << 16, channels: 1 << 16, ..task().sizes };
        assert_eq!(Task { sizes, ..task() }.launches(), None);
        let far = Task { x: [1 << 31, 81, 81, 9, 1], ..task() };
        assert_eq!(far.launches(), None);
    }
}
