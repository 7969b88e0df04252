//! What is watched.

use unhang_conv::Problem;
use unhang_engine::EngineName;

/// What is watched: a convolution on an engine. Gradients that one call computes are two convolutions.
#[derive(Debug)]
pub struct Subject {
    /// The convolutions.
    pub problems: Vec<Problem>,
    /// Who computes them.
    pub engine: EngineName,
    /// Which of its ways is being measured; empty for the engine's own choice.
    pub candidate: String,
    /// Whether the CPU plays the card.
    pub rehearsed: bool,
}

impl Subject {
    /// One convolution, by the engine's own choice.
    pub fn new(problem: &Problem, engine: EngineName, rehearsed: bool) -> Subject {
        Subject { problems: vec![problem.clone()], engine, candidate: String::new(), rehearsed }
    }
}
