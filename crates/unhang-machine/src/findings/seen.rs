//! The facts about the machine, for every family of findings.

use serde::Serialize;

use crate::finding::Severity;
use crate::leftovers::Leftover;
use crate::machine::Machine;
use crate::software::Software;
use crate::system::System;
use crate::unrepaired::Unrepaired;

/// A variable of the environment, and what its value does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What that does.
    pub effect: String,
}

/// What the families of findings look at.
pub(super) struct Seen<'a> {
    pub(super) system: &'a System,
    pub(super) machine: &'a Machine,
    pub(super) software: &'a Software,
    pub(super) leftovers: &'a [Leftover],
    pub(super) own_profiles: &'a [Leftover],
    pub(super) unrepaired: Option<&'a Unrepaired>,
    pub(super) program: &'a str,
    pub(super) wheel: &'a str,
}

impl Seen<'_> {
    /// The severity of a problem that can hang an RDNA1 card and only costs time on another.
    pub(super) fn error_if_affected(&self) -> Severity {
        if self.machine.affected() { Severity::Error } else { Severity::Warning }
    }

    /// Whether a torch here is built for AMD's GPUs.
    pub(super) fn has_torch_for_amd(&self) -> bool {
        self.software.torch.iter().any(|torch| torch.hip.is_some())
    }
}
