//! What was measured of an engine's several ways to compute one problem.

use unhang_conv::Problem;

/// The fastest way to compute a problem on a device that was measured, beside the one that a model would have taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The problem.
    pub problem: Problem,
    /// The device, by name and chip: what was measured on one says nothing of another.
    pub device: String,
    /// What the kernels are, by their sources: with others, this is out of date.
    pub kernels: String,
    /// The compiler that made them, with its version.
    pub compiler: String,
    /// The driver that ran them, with its version.
    pub driver: String,
    /// The fastest way.
    pub choice: String,
    /// The median of its seconds.
    pub seconds: f64,
    /// How far its times lay apart, as a share of the median.
    pub spread: f64,
    /// What the model would have taken.
    pub model_choice: String,
    /// The median of that one's seconds, in the same turns.
    pub model_seconds: f64,
    /// How many ways were timed.
    pub candidates: u32,
    /// What else was seen, in words: candidates that failed.
    pub detail: String,
}

impl Tuned {
    /// The speed of the model's own choice over the fastest one's: 1 where the model was right.
    pub fn share(&self) -> f64 {
        if self.model_seconds > 0.0 { (self.seconds / self.model_seconds).min(1.0) } else { 1.0 }
    }
}
