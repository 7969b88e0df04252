//! How a machine is set: which checks are enabled, and how far approximate results are off.

use unhang_isa::Chip;

/// Which checks are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only computes: what an ideal chip would do.
    Compute,
    /// Stops where this chip might hang or compute nonsense, and at instructions that it does not have.
    Hazards(Chip),
}

/// How approximate instructions (reciprocal, square root, exponential, logarithm, sine, cosine) come out. The card
/// promises one unit in the last place (2^29 of them in double precision); a result that is right under each of these
/// does not rest on more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Perturbation {
    /// As near as can be.
    #[default]
    None,
    /// As far from zero as the promise allows.
    Up,
    /// As near to zero as the promise allows.
    Down,
}
