//! Kernels that the shield could not repair, which the last `unhang run` with a shield recorded for the doctor.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::system::{SMALL, System};

/// The record's name in the folder of unhang's data.
pub const FILE: &str = "unrepaired.json";

/// A kernel that was loaded and stays unsafe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnrepairedKernel {
    /// Its name.
    pub name: String,
    /// Why it could not be repaired.
    pub reason: String,
    /// Which switch avoids it, in words.
    pub remedy: String,
}

/// What stayed unsafe in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrepaired {
    /// The program that was run, without its folder.
    pub program: String,
    /// The version of unhang that repaired the rest: a later one may repair more.
    pub version: String,
    /// The kernels.
    pub kernels: Vec<UnrepairedKernel>,
}

/// The record in the folder of unhang's data on a machine, if there is one that can be read.
pub(crate) fn read(system: &System, folder: &Path) -> Option<Unrepaired> {
    let path = folder.join(FILE);
    let bytes = system.exists(&path).then(|| system.bytes(path, SMALL).ok())??;
    serde_json::from_slice(&bytes).ok()
}
