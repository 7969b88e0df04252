//! An engine built on another engine: it computes in tiles with halo.

use unhang_conv::reference::Indexer;
use unhang_conv::tile::{self, Tile};
use unhang_conv::{DataType, Direction, Layout, Problem, TensorShape};

use crate::operands::Typed;
use crate::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};

/// Computes with another engine in tiles of at most `limit` × `limit` output pixels, exact to the last pixel.
///
/// It avoids a size that hangs by computing smaller ones. It accepts single and double precision only, because backward
/// sums stay in the operands' type.
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

impl<E: Engine> Engine for Tiled<E> {
    fn name(&self) -> EngineName {
        EngineName::Tiled
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        match problem.data_type() {
            DataType::F32 | DataType::F64 => self.inner.supports(problem),
            other => Err(Unsupported {
                engine: EngineName::Tiled,
                reason: format!("tiles are summed in the operands' own type, which {other} is too coarse for"),
            }),
        }
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        self.supports(problem)?;
        let Operands { first, second, bias, result } = operands;
        match (first, second, result) {
            (Elements::F32(first), Elements::F32(second), ElementsMut::F32(result)) => {
                let bias = if let Some(Elements::F32(bias)) = bias { Some(bias) } else { None };
                run_tiled(&self.inner, problem, first, second, bias, result, self.limit)
            }
            (Elements::F64(first), Elements::F64(second), ElementsMut::F64(result)) => {
                let bias = if let Some(Elements::F64(bias)) = bias { Some(bias) } else { None };
                run_tiled(&self.inner, problem, first, second, bias, result, self.limit)
            }
            _ => unreachable!("supports() takes f32 and f64 only, and operands were validated"),
        }
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
            let (first, second) = (T::elements(first), T::elements(second));
            engine.run(&part, Operands { first, second, bias: None, result: T::elements_mut(&mut partial) })
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
