//! Measurements of an engine's different ways to compute one problem.

use std::fmt;
use std::str::FromStr;

use unhang_conv::{KeyError, Problem};

/// What is computed in several ways.
#[derive(Debug, Clone, PartialEq)]
pub enum TunedProblem {
    /// A convolution.
    Convolution(Problem),
    /// Another operation: its family, a space, and its sizes, strides and types.
    Operation(String),
}

impl TunedProblem {
    /// The convolution, if it is one.
    pub fn convolution(&self) -> Option<&Problem> {
        match self {
            TunedProblem::Convolution(problem) => Some(problem),
            TunedProblem::Operation(_) => None,
        }
    }
}

impl From<Problem> for TunedProblem {
    fn from(problem: Problem) -> TunedProblem {
        TunedProblem::Convolution(problem)
    }
}

impl fmt::Display for TunedProblem {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunedProblem::Convolution(problem) => problem.fmt(to),
            TunedProblem::Operation(name) => name.fmt(to),
        }
    }
}

impl FromStr for TunedProblem {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<TunedProblem, KeyError> {
        // No convolution's key has a space.
        if text.contains(' ') {
            return Ok(TunedProblem::Operation(text.to_owned()));
        }
        text.parse().map(TunedProblem::Convolution)
    }
}

/// The fastest measured way to compute a problem on a device, and the one that the model would have chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The problem.
    pub problem: TunedProblem,
    /// The device, by name and chip. A measurement on one says nothing about another.
    pub device: String,
    /// Identifies the kernels' sources. With other kernels the measurement is out of date.
    pub kernels: String,
    /// The compiler of the kernels, with its version.
    pub compiler: String,
    /// The driver that ran them, with its version.
    pub driver: String,
    /// The fastest way.
    pub choice: String,
    /// The median of its times, in seconds.
    pub seconds: f64,
    /// The spread of its times, as a share of the median.
    pub spread: f64,
    /// The model's choice.
    pub model_choice: String,
    /// The median of that choice's times, in seconds, measured in the same rounds.
    pub model_seconds: f64,
    /// The number of ways that were timed.
    pub candidates: u32,
    /// Other observations in words, such as candidates that failed.
    pub detail: String,
}

impl Tuned {
    /// The speed of the model's choice relative to the fastest: 1 if the model was right.
    pub fn share(&self) -> f64 {
        if self.model_seconds > 0.0 { (self.seconds / self.model_seconds).min(1.0) } else { 1.0 }
    }
}
