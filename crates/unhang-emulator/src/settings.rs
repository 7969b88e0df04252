//! The settings of a machine: which checks are enabled, and how far approximate results are off.

use unhang_isa::Chip;

/// Which checks are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only computes, like an ideal chip.
    Compute,
    /// Stops where this chip might hang or compute nonsense, and at instructions that it does not have.
    Hazards(Chip),
}

/// The outcome of approximate instructions (reciprocal, square root, exponential, logarithm, sine, cosine). The card
/// promises one unit in the last place (2^29 of them in double precision). A result that is right under each of these
/// relies on no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Perturbation {
    /// As accurate as possible.
    #[default]
    None,
    /// As far from zero as the promise allows.
    Up,
    /// As near to zero as the promise allows.
    Down,
}
