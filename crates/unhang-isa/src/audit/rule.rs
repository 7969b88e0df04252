//! The rules, the certainty of their findings, and what they know apart from the code.

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// `s_inst_prefetch`, which hangs the shader.
    InstructionPrefetch,
    /// A vector comparison writes EXEC while an earlier reader of EXEC may not have read it yet.
    CompareExec,
    /// Local data share and vector memory on the two sides of a branch.
    LocalBranchMemory,
    /// A scalar instruction overwrites a register that a memory instruction may not have read yet.
    MemoryToScalarWrite,
    /// A vector instruction overwrites a scalar register that a scalar load may not have read yet.
    ScalarMemoryToVectorWrite,
    /// A branch with the offset 0x3f.
    BranchOffset3f,
    /// A flat access with an offset.
    FlatOffset,
    /// A wide access to the local data share at an address that is not a multiple of its width.
    LocalMisaligned,
    /// A lane permutation right after a comparison that writes EXEC.
    ComparePermlane,
    /// A buffer access right after an image instruction with scattered address registers.
    ImageToMemory,
    /// An image instruction with scattered address registers inside a clause.
    ImageClause,
    /// An image instruction with more than five scattered address registers.
    ImageAddresses,
    /// A scratch access with a negative offset that is not a multiple of four.
    ScratchOffset,
    /// A buffer whose descriptor puts every access out of range.
    BufferRange,
    /// An instruction that the chip does not have, or has with another meaning.
    Illegal,
}

/// How certain a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// It depends on something that the code does not show, such as an address.
    Possible,
    /// The hardware may misbehave here, depending on timing.
    High,
    /// The hardware misbehaves whenever this is executed.
    Certain,
}

impl Severity {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Possible => "possible",
            Severity::High => "high",
            Severity::Certain => "certain",
        }
    }
}

impl Rule {
    /// All rules, in the order of reports.
    pub const ALL: [Rule; 15] = [
        Rule::InstructionPrefetch,
        Rule::CompareExec,
        Rule::LocalBranchMemory,
        Rule::MemoryToScalarWrite,
        Rule::ScalarMemoryToVectorWrite,
        Rule::BranchOffset3f,
        Rule::FlatOffset,
        Rule::LocalMisaligned,
        Rule::ComparePermlane,
        Rule::ImageToMemory,
        Rule::ImageClause,
        Rule::ImageAddresses,
        Rule::ScratchOffset,
        Rule::BufferRange,
        Rule::Illegal,
    ];
}

/// What is known about the program apart from its code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// Whether its workgroups span a workgroup processor. Misaligned access to the local data share fails only there.
    pub workgroup_processor_mode: bool,
}
