//! The rules by name, and in words.

use std::fmt;

use super::rules;

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
    /// A branch with the distance 0x3f.
    BranchOffset3f,
    /// A flat access with an offset.
    FlatOffset,
    /// A wide access to the local data share at an address that is not a multiple of its width.
    LocalMisaligned,
    /// A lane permutation right behind a comparison that writes EXEC.
    ComparePermlane,
    /// A buffer access right behind an image instruction with scattered address registers.
    ImageToMemory,
    /// An image instruction with scattered address registers inside a clause.
    ImageClause,
    /// A scratch access with a negative offset that is no multiple of four.
    ScratchOffset,
    /// A buffer whose descriptor puts every access out of range.
    BufferRange,
    /// An instruction that the chip does not have, or has with another meaning.
    Illegal,
}

/// How sure a finding is.
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
    /// All rules, in the order in which they are reported.
    pub const ALL: [Rule; 14] = [
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
        Rule::ScratchOffset,
        Rule::BufferRange,
        Rule::Illegal,
    ];

    /// The name of the rule, after LLVM's name for the hardware bug where it is one.
    pub fn name(self) -> &'static str {
        rules::handler(self).name
    }

    /// How sure a finding of it is.
    pub fn severity(self) -> Severity {
        rules::handler(self).severity
    }

    /// What goes wrong, and what a compiler for the chip would have done.
    pub fn explanation(self) -> &'static str {
        rules::handler(self).explanation
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Findings counted by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hazards {
    counts: [u64; Rule::ALL.len()],
}

impl Hazards {
    /// Counts findings.
    pub fn count(findings: &[super::Finding]) -> Hazards {
        let mut hazards = Hazards::default();
        for finding in findings {
            hazards.counts[finding.rule as usize] += 1;
        }
        hazards
    }

    /// The number of findings of a rule.
    pub fn get(&self, rule: Rule) -> u64 {
        self.counts[rule as usize]
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Hazards) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// The number of all findings.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
