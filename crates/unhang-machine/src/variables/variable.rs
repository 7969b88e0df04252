//! The description of a variable.

use serde::Serialize;

/// Whose variable it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Owner {
    /// unhang's own.
    Unhang,
    /// AMD's library of convolutions.
    MIOpen,
    /// The HSA runtime (ROCr and libhsakmt), below everything.
    Hsa,
    /// The HIP runtime.
    Hip,
    /// rocBLAS.
    RocBlas,
    /// PyTorch.
    PyTorch,
    /// Triton, the compiler of kernels written in Python.
    Triton,
    /// The dynamic linker and other parts of the system.
    System,
}

impl Owner {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Owner::Unhang => "unhang",
            Owner::MIOpen => "MIOpen",
            Owner::Hsa => "HSA runtime",
            Owner::Hip => "HIP runtime",
            Owner::RocBlas => "rocBLAS",
            Owner::PyTorch => "PyTorch",
            Owner::Triton => "Triton",
            Owner::System => "System",
        }
    }
}

/// When a variable is read. Setting it later does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Read {
    /// When unhang starts, or is imported.
    UnhangStart,
    /// At MIOpen's first use in the process.
    MIOpenFirstUse,
    /// When the HSA runtime starts: at the first use of a GPU.
    RuntimeStart,
    /// When torch is imported.
    TorchImport,
    /// When Triton compiles a kernel.
    TritonCompile,
    /// When the process starts, often by the dynamic linker; setting it inside Python is too late.
    ProcessStart,
    /// Only when torch is *built*; an installed torch does not read it.
    BuildTime,
}

impl Read {
    /// How it is written.
    pub fn words(self) -> &'static str {
        match self {
            Read::UnhangStart => "when unhang starts or is imported",
            Read::MIOpenFirstUse => "at MIOpen's first use in the process",
            Read::RuntimeStart => "at the first use of a GPU",
            Read::TorchImport => "when torch is imported",
            Read::TritonCompile => "when Triton compiles a kernel",
            Read::ProcessStart => "when the process starts; setting it inside Python is too late",
            Read::BuildTime => "only when torch is built",
        }
    }
}

/// How a value acts, as far as the doctor judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VariableKind {
    /// Nothing special.
    Plain,
    /// On unless it is 0: setting it to 1 is the same as not setting it.
    OnUnlessZero,
    /// Off unless it is 1: setting it to 0 is the same as not setting it.
    OffUnlessOne,
}

/// One environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Whose it is.
    pub owner: Owner,
    /// What it does.
    pub meaning: &'static str,
    /// What it can be set to.
    pub values: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// When it is read.
    pub read: Read,
    /// How values act.
    pub kind: VariableKind,
}
