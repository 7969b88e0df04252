//! What is watched.

use unhang_conv::Problem;
use unhang_engine::EngineName;

/// What is watched: a convolution on an engine, or kernels of ours that compute none. If one call computes two
/// gradients, it has two convolutions.
#[derive(Debug)]
pub struct Subject {
    /// The convolutions; empty for a kernel family.
    pub problems: Vec<Problem>,
    /// Who computes them.
    pub engine: EngineName,
    /// Which candidate is being measured; empty for the engine's own choice.
    pub candidate: String,
    /// Whether the CPU plays the card.
    pub rehearsed: bool,
    /// What it is, if it is not a convolution.
    pub family: Option<WatchedFamily>,
}

/// Kernels of ours that compute no convolution.
#[derive(Debug)]
pub struct WatchedFamily {
    /// What they compute, in words.
    pub what: String,
    /// The key of their verdict, or the candidate's: what hangs is not used again.
    pub canary: String,
}

impl Subject {
    /// One convolution, by the engine's own choice.
    pub fn new(problem: &Problem, engine: EngineName, rehearsed: bool) -> Subject {
        Subject { problems: vec![problem.clone()], engine, candidate: String::new(), rehearsed, family: None }
    }

    /// Kernels of a family of ours.
    pub fn of_family(what: &str, canary: String, rehearsed: bool) -> Subject {
        let family = Some(WatchedFamily { what: what.to_owned(), canary });
        Subject { problems: Vec::new(), engine: EngineName::Jit, candidate: String::new(), rehearsed, family }
    }
}
