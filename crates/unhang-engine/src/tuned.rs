//! Measurements of an engine's different ways to compute one problem.

use unhang_conv::Problem;

/// The fastest measured way to compute a problem on a device, and the one that the model would have chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The problem.
    pub problem: Problem,
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
