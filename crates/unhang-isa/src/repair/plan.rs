//! What repair plans for a function, and what it reports.

use super::reason::Reason;
use super::relayout::{Layout, PlacedReference};
use crate::Chip;
use crate::audit::Hazards;

/// How a code object is to be repaired.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The chip on which the code will run.
    pub chip: Chip,
    /// Whether its size must stay: then no function is rebuilt, and some findings stay.
    pub keep_size: bool,
}

/// What was done with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Nothing: there was nothing to repair, or it could not be.
    Untouched,
    /// Words were changed where they stand.
    InPlace,
    /// It was laid out anew.
    Moved,
}

impl Treatment {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Treatment::Untouched => "untouched",
            Treatment::InPlace => "repaired in place",
            Treatment::Moved => "given a new layout",
        }
    }
}

/// What was found and done in one function.
#[derive(Clone, Debug)]
pub struct FunctionRepair {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel, not a function that kernels call.
    pub is_kernel: bool,
    /// What was done.
    pub treatment: Treatment,
    /// Whether workgroup-processor mode was turned off.
    pub mode_changed: bool,
    /// How many instructions were inserted.
    pub inserted: u32,
    /// The findings before.
    pub before: Hazards,
    /// The findings that are left.
    pub after: Hazards,
    /// Why findings are left, if some are, or why it was not looked at.
    pub reason: Option<Reason>,
}

/// A function's repair, ready to be put into a copy of the object by [`assemble`].
#[derive(Clone, Debug)]
pub struct FunctionPlan {
    /// What was found and done.
    pub report: FunctionRepair,
    pub(super) change: Change,
    /// The new `COMPUTE_PGM_RSRC1` of the descriptor.
    pub(super) resource1: Option<u32>,
    /// Addresses that code which stays computes from its own.
    pub(super) references: Vec<PlacedReference>,
}

/// What happens to a function's code.
#[derive(Clone, Debug)]
pub(super) enum Change {
    None,
    /// The code, as long as it was.
    Code(Vec<u8>),
    Layout(Layout),
}

/// A code object after its repair.
#[derive(Clone, Debug)]
pub struct ObjectRepair {
    /// The chip for which it was compiled; `None` if it is outside the gfx10 family, and then nothing was looked at.
    pub target: Option<Chip>,
    /// The repaired object; `None` if nothing was changed.
    pub bytes: Option<Vec<u8>>,
    /// Its functions in the order of their addresses.
    pub functions: Vec<FunctionRepair>,
}
