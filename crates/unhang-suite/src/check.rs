//! One check for every engine.

use std::fmt;

use unhang_conv::{DataType, Direction, Problem, Volume, reference};
use unhang_engine::tolerance::Tolerance;
use unhang_engine::{Engine, EngineError, Operands, run_volume};

use crate::data::Tensor;

/// How far a result was from the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// Relative error in the L2 norm.
    pub l2: f64,
    /// Largest error of one element, relative to the largest element of the reference.
    pub max: f64,
    /// The number of elements that are not finite where the reference's are.
    pub not_finite: usize,
    /// The offset of the largest error in memory.
    pub worst: usize,
}

impl Errors {
    /// Whether the result is right.
    pub fn within(&self, tolerance: Tolerance) -> bool {
        self.not_finite == 0 && self.l2 <= tolerance.l2 && self.max <= tolerance.max
    }
}

/// Compares a result with the reference.
///
/// # Panics
/// If the lengths differ.
pub fn compare(result: &[f64], expected: &[f64]) -> Errors {
    assert_eq!(result.len(), expected.len(), "a result has as many numbers as its reference");
    let (mut squares, mut norm, mut largest, mut scale) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    let (mut not_finite, mut worst) = (0, 0);
    for (index, (&got, &want)) in result.iter().zip(expected).enumerate() {
        if !got.is_finite() && want.is_finite() {
            not_finite += 1;
            continue;
        }
        let error = (got - want).abs();
        squares += error * error;
        norm += want * want;
        scale = scale.max(want.abs());
        if error > largest {
            (largest, worst) = (error, index);
        }
    }
    let relative = |value: f64, by: f64| if value == 0.0 { 0.0 } else { value / by.max(f64::MIN_POSITIVE) };
    Errors { l2: relative(squares.sqrt(), norm.sqrt()), max: relative(largest, scale), not_finite, worst }
}

/// Why an engine did not pass.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckFailure {
    /// It returned an error.
    Engine(EngineError),
    /// Its result is wrong.
    Wrong {
        /// The problem's key.
        problem: String,
        /// The errors.
        errors: Errors,
        /// The tolerance that they exceed.
        tolerance: Tolerance,
    },
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckFailure::Engine(error) => write!(f, "{error}"),
            CheckFailure::Wrong { problem, errors, tolerance } => write!(
                f,
                "{problem}: wrong by {:.2e} in L2 (allowed {:.0e}) and {:.2e} at most (allowed {:.0e}, at offset {}), {} numbers not finite",
                errors.l2, tolerance.l2, errors.max, tolerance.max, errors.worst, errors.not_finite
            ),
        }
    }
}

/// Runs an engine on random values and compares with the reference. Forward problems get a bias if the seed is odd.
pub fn check(engine: &dyn Engine, problem: &Problem, seed: u64) -> Result<Errors, CheckFailure> {
    let trial = Trial {
        name: problem.to_string(),
        data_type: problem.data_type(),
        lengths: problem.operand_shapes().map(|shape| shape.iter().product::<usize>()),
        bias: if problem.direction() == Direction::Forward { problem.out_channels() } else { 0 },
    };
    trial.run(
        seed,
        |operands| engine.run(problem, operands),
        |first, second, bias| reference::compute(problem, first, second, bias),
    )
}

/// Runs an engine on a 3-d convolution, as [`check`] does on a 2-d one.
pub fn check_volume(engine: &dyn Engine, volume: &Volume, seed: u64) -> Result<Errors, CheckFailure> {
    let trial = Trial {
        name: volume.to_string(),
        data_type: volume.data_type(),
        lengths: volume.operand_shapes().map(|shape| shape.iter().product::<usize>()),
        bias: if volume.direction() == Direction::Forward { volume.out_channels() } else { 0 },
    };
    trial.run(
        seed,
        |operands| run_volume(engine, volume, operands),
        |first, second, bias| reference::compute_volume(volume, first, second, bias),
    )
}

/// One trial.
struct Trial {
    name: String,
    data_type: DataType,
    /// Elements of first, second and result.
    lengths: [usize; 3],
    /// Elements of a bias; 0 for none.
    bias: usize,
}

impl Trial {
    fn run(
        self,
        seed: u64,
        compute: impl FnOnce(Operands<'_>) -> Result<(), EngineError>,
        expect: impl FnOnce(&[f64], &[f64], Option<&[f64]>) -> Vec<f64>,
    ) -> Result<Errors, CheckFailure> {
        let (data_type, [first, second, result]) = (self.data_type, self.lengths);
        let first = Tensor::random(data_type, first, seed);
        let second = Tensor::random(data_type, second, seed ^ 0x5eed);
        let with_bias = seed % 2 == 1 && self.bias > 0;
        let bias = with_bias.then(|| Tensor::random(data_type, self.bias, seed ^ 0xb1a5));
        let mut result = Tensor::unwritten(data_type, result);
        compute(Operands {
            first: first.elements(),
            second: second.elements(),
            bias: bias.as_ref().map(Tensor::elements),
            result: result.elements_mut(),
        })
        .map_err(CheckFailure::Engine)?;
        let bias = bias.map(|bias| bias.to_f64());
        let expected = expect(&first.to_f64(), &second.to_f64(), bias.as_deref());
        let errors = compare(&result.to_f64(), &expected);
        let tolerance = Tolerance::of(data_type);
        if errors.within(tolerance) {
            Ok(errors)
        } else {
            Err(CheckFailure::Wrong { problem: self.name, errors, tolerance })
        }
    }
}
