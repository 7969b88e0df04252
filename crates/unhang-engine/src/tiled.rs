//! Engines built on another engine: one computes in tiles with halo, one pads the channels.

use unhang_conv::reference::Indexer;
use unhang_conv::tile::{self, Tile};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification, TensorShape};

use crate::operands::Typed;
use crate::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};

/// Computes with another engine in tiles of at most `limit` × `limit` output pixels, exact to the last pixel.
///
/// It avoids a size that hangs by computing smaller ones. Single and double precision only, because backward sums
/// stay in the operands' type.
#[derive(Debug)]
pub struct Tiled<E> {
    inner: E,
    limit: usize,
}

impl<E: Engine> Tiled<E> {
    /// Computes with `inner`, in tiles of at most `limit` × `limit` output pixels (at least one).
    pub fn new(inner: E, limit: usize) -> Tiled<E> {
        Tiled { inner, limit: limit.max(1) }
    }
}

/// Computes with another engine, and pads input and output channels with zeros to the next count that is not a power
/// of two. This is the seeds' workaround for sizes that hang at powers of two; the model stays as it is.
#[derive(Debug)]
pub struct PaddedChannels<E> {
    inner: E,
}

impl<E: Engine> PaddedChannels<E> {
    /// Computes with `inner`.
    pub fn new(inner: E) -> PaddedChannels<E> {
        PaddedChannels { inner }
    }

    /// The problem with padded channels: one more per group where the count is a power of two above one.
    pub fn padded(problem: &Problem) -> Problem {
        let groups = problem.groups();
        let pad = |channels: usize| {
            let in_group = channels / groups;
            (if in_group > 1 && in_group.is_power_of_two() { in_group + 1 } else { in_group }) * groups
        };
        let specification = Specification {
            in_channels: pad(problem.in_channels()) as i64,
            out_channels: pad(problem.out_channels()) as i64,
            ..problem.specification()
        };
        // One more channel fails only if a size is at the limit of what can be addressed.
        Problem::new(specification).unwrap_or_else(|_| problem.clone())
    }
}

/// Calls `$body` with the operands as slices of f32 or of f64.
macro_rules! for_real_numbers {
    ($engine:expr, $problem:expr, $operands:expr, $body:ident $(, $extra:expr)*) => {{
        let Operands { first, second, bias, result } = $operands;
        match (first, second, result) {
            (Elements::F32(first), Elements::F32(second), ElementsMut::F32(result)) => {
                let bias = match bias { Some(Elements::F32(bias)) => Some(bias), _ => None };
                $body($engine, $problem, first, second, bias, result $(, $extra)*)
            }
            (Elements::F64(first), Elements::F64(second), ElementsMut::F64(result)) => {
                let bias = match bias { Some(Elements::F64(bias)) => Some(bias), _ => None };
                $body($engine, $problem, first, second, bias, result $(, $extra)*)
            }
            _ => unreachable!("supports() takes f32 and f64 only, and operands were validated"),
        }
    }};
}

fn only_real_numbers(problem: &Problem) -> Result<(), Unsupported> {
    match problem.data_type() {
        DataType::F32 | DataType::F64 => Ok(()),
        other => Err(Unsupported {
            engine: EngineName::Tiled,
            reason: format!("tiles are summed in the operands' own type, which {other} is too coarse for"),
        }),
    }
}

impl<E: Engine> Engine for Tiled<E> {
    fn name(&self) -> EngineName {
        EngineName::Tiled
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        only_real_numbers(problem)?;
        self.inner.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        self.supports(problem)?;
        for_real_numbers!(&self.inner, problem, operands, run_tiled, self.limit)
    }
}

impl<E: Engine> Engine for PaddedChannels<E> {
    fn name(&self) -> EngineName {
        EngineName::Tiled
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        only_real_numbers(problem)?;
        self.inner.supports(&PaddedChannels::<E>::padded(problem))
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        self.supports(problem)?;
        for_real_numbers!(&self.inner, problem, operands, run_padded, &PaddedChannels::<E>::padded(problem))
    }
}

/// An element type in which tiles can be summed.
trait Real: Typed + std::ops::AddAssign {}

impl Real for f32 {}
impl Real for f64 {}

fn run_tiled<T: Real>(
    engine: &dyn Engine,
    problem: &Problem,
    first: &[T],
    second: &[T],
    bias: Option<&[T]>,
    result: &mut [T],
    limit: usize,
) -> Result<(), EngineError> {
    let lowered = problem.lower();
    let (first, second) = if lowered.operands_exchanged { (second, first) } else { (first, second) };
    let problem = &lowered.problem;
    let layout = problem.layout();
    result.fill(T::default());
    for tile in tile::tiles(problem, limit) {
        let part = tile::tile_problem(problem, &tile).map_err(|error| EngineError::Failed {
            engine: EngineName::Tiled,
            message: format!("a tile of {problem} is not a convolution: {error}"),
        })?;
        let input = input_window(problem, &tile);
        let output = output_window(problem, &tile);
        let mut partial = vec![T::default(); part.operand_shapes()[2].iter().product()];
        let mut compute = |first: &[T], second: &[T]| {
            engine.run(
                &part,
                Operands {
                    first: T::elements(first),
                    second: T::elements(second),
                    bias: None,
                    result: T::elements_mut(&mut partial),
                },
            )
        };
        match problem.direction() {
            Direction::Forward => {
                compute(&gather(first, &input, part.input_shape(), layout), second)?;
                scatter_add(&partial, part.output_shape(), result, &output, layout);
            }
            Direction::BackwardData => {
                compute(&gather(first, &output, part.output_shape(), layout), second)?;
                scatter_add(&partial, part.input_shape(), result, &input, layout);
            }
            Direction::BackwardWeights => {
                let x = gather(first, &input, part.input_shape(), layout);
                compute(&x, &gather(second, &output, part.output_shape(), layout))?;
                for (sum, &share) in result.iter_mut().zip(&partial) {
                    *sum += share;
                }
            }
        }
    }
    // There is a bias only if the problem was forward before lowering. The result is then the output.
    add_bias(result, bias, problem.operand_shapes()[2], layout);
    Ok(())
}

fn run_padded<T: Real>(
    engine: &dyn Engine,
    problem: &Problem,
    first: &[T],
    second: &[T],
    bias: Option<&[T]>,
    result: &mut [T],
    padded: &Problem,
) -> Result<(), EngineError> {
    let layout = problem.layout();
    let groups = problem.groups();
    let pairs: Vec<(TensorShape, TensorShape)> =
        problem.operand_shapes().into_iter().zip(padded.operand_shapes()).collect();
    // The groups are on a filter's first axis, and on the second axis of activations. This says which operand is the
    // filter.
    let filter = match problem.direction() {
        Direction::Forward | Direction::BackwardData => 1,
        Direction::BackwardWeights => 2,
    };
    let axis = |operand: usize| if operand == filter { 0 } else { 1 };
    let first = regroup(first, pairs[0].0, pairs[0].1, groups, axis(0), layout);
    let second = regroup(second, pairs[1].0, pairs[1].1, groups, axis(1), layout);
    let mut whole = vec![T::default(); pairs[2].1.iter().product()];
    engine.run(
        padded,
        Operands {
            first: T::elements(&first),
            second: T::elements(&second),
            bias: None,
            result: T::elements_mut(&mut whole),
        },
    )?;
    result.copy_from_slice(&regroup(&whole, pairs[2].1, pairs[2].0, groups, axis(2), layout));
    add_bias(result, bias, problem.operand_shapes()[2], layout);
    Ok(())
}

/// Adds a bias along the channels of a tensor of that shape.
fn add_bias<T: Real>(result: &mut [T], bias: Option<&[T]>, shape: TensorShape, layout: Layout) {
    let Some(bias) = bias else { return };
    let at = Indexer::new(shape, layout);
    for_each_position(shape, |position| result[at.index(position)] += bias[position[1]]);
}

/// A window of a tensor, with all images and channels: where its rows and columns start, after that many zeros.
struct Window {
    shape: TensorShape,
    start: [usize; 2],
    length: [usize; 2],
    pad_before: [usize; 2],
}

fn input_window(problem: &Problem, tile: &Tile) -> Window {
    Window {
        shape: problem.input_shape(),
        start: [tile[0].in_start, tile[1].in_start],
        length: [tile[0].in_length, tile[1].in_length],
        pad_before: [tile[0].pad_before, tile[1].pad_before],
    }
}

fn output_window(problem: &Problem, tile: &Tile) -> Window {
    Window {
        shape: problem.output_shape(),
        start: [tile[0].out_start, tile[1].out_start],
        length: [tile[0].out_length, tile[1].out_length],
        pad_before: [0, 0],
    }
}

fn for_each_position(shape: TensorShape, mut visit: impl FnMut([usize; 4])) {
    for n in 0..shape[0] {
        for c in 0..shape[1] {
            for h in 0..shape[2] {
                for w in 0..shape[3] {
                    visit([n, c, h, w]);
                }
            }
        }
    }
}

/// Copies a window of a tensor into one of `shape`, with zeros around it.
fn gather<T: Real>(whole: &[T], window: &Window, shape: TensorShape, layout: Layout) -> Vec<T> {
    let mut part = vec![T::default(); shape.iter().product()];
    let (from, to) = (Indexer::new(window.shape, layout), Indexer::new(shape, layout));
    for_each_position([shape[0], shape[1], window.length[0], window.length[1]], |[n, c, h, w]| {
        let source = from.index([n, c, window.start[0] + h, window.start[1] + w]);
        part[to.index([n, c, window.pad_before[0] + h, window.pad_before[1] + w])] = whole[source];
    });
    part
}

/// Adds a tensor of `shape` to a window of another. Skips what falls on the window's zeros.
fn scatter_add<T: Real>(part: &[T], shape: TensorShape, whole: &mut [T], window: &Window, layout: Layout) {
    let (from, to) = (Indexer::new(shape, layout), Indexer::new(window.shape, layout));
    for_each_position([shape[0], shape[1], window.length[0], window.length[1]], |[n, c, h, w]| {
        let target = to.index([n, c, window.start[0] + h, window.start[1] + w]);
        whole[target] += part[from.index([n, c, window.pad_before[0] + h, window.pad_before[1] + w])];
    });
}

/// Copies a tensor into one with other channel counts, group by group. Elements without a counterpart are zero or
/// dropped. `grouped_axis` is the axis that the groups divide.
fn regroup<T: Real>(
    source: &[T],
    from: TensorShape,
    to: TensorShape,
    groups: usize,
    grouped_axis: usize,
    layout: Layout,
) -> Vec<T> {
    let mut result = vec![T::default(); to.iter().product()];
    let (read, write) = (Indexer::new(from, layout), Indexer::new(to, layout));
    let map = |axis: usize, index: usize| {
        let parts = if axis == grouped_axis { groups } else { 1 };
        let (old, new) = (from[axis] / parts, to[axis] / parts);
        let (group, within) = (index / old, index % old);
        (within < new).then_some(group * new + within)
    };
    for_each_position(from, |[a, b, h, w]| {
        if let (Some(first), Some(second)) = (map(0, a), map(1, b)) {
            result[write.index([first, second, h, w])] = source[read.index([a, b, h, w])];
        }
    });
    result
}
