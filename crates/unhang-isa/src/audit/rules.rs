//! The rules by name, and in words.

use std::fmt;

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
    pub const ALL: [Rule; 13] = [
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
        Rule::Illegal,
    ];

    /// The name of the rule, after LLVM's name for the hardware bug.
    pub fn name(self) -> &'static str {
        match self {
            Rule::InstructionPrefetch => "inst-fwd-prefetch",
            Rule::CompareExec => "vcmpx-exec-war",
            Rule::LocalBranchMemory => "lds-branch-vmem-war",
            Rule::MemoryToScalarWrite => "vmem-to-scalar-write",
            Rule::ScalarMemoryToVectorWrite => "smem-to-vector-write",
            Rule::BranchOffset3f => "offset-3f",
            Rule::FlatOffset => "flat-segment-offset",
            Rule::LocalMisaligned => "lds-misaligned",
            Rule::ComparePermlane => "vcmpx-permlane",
            Rule::ImageToMemory => "nsa-to-vmem",
            Rule::ImageClause => "nsa-clause",
            Rule::ScratchOffset => "negative-unaligned-scratch-offset",
            Rule::Illegal => "illegal-instruction",
        }
    }

    /// What goes wrong, and what a compiler for the chip would have done.
    pub fn explanation(self) -> &'static str {
        match self {
            Rule::InstructionPrefetch => {
                "s_inst_prefetch hangs the shader on this chip; compilers for it never emit the instruction."
            }
            Rule::CompareExec => {
                "This comparison writes EXEC while an earlier instruction outside the vector unit may still have to \
                 read it, so that instruction can see the wrong lanes. A compiler for this chip puts \
                 `s_waitcnt_depctr 0xfffe` before it."
            }
            Rule::LocalBranchMemory => {
                "An access to the local data share and one to vector memory stand on two sides of a branch; this chip \
                 can let the second overtake the first. A compiler for it puts `s_waitcnt_vscnt null, 0` before it."
            }
            Rule::MemoryToScalarWrite => {
                "This scalar instruction overwrites a register that an earlier memory instruction reads; this chip \
                 does not wait until it was read. A compiler for it puts `s_waitcnt_depctr 0xffe3` before it."
            }
            Rule::ScalarMemoryToVectorWrite => {
                "This vector instruction overwrites a scalar register that an earlier scalar load reads as its \
                 address; the load can go to a wrong address and fault. A compiler for this chip puts \
                 `s_mov_b32 null, 0` before it."
            }
            Rule::BranchOffset3f => {
                "A branch by exactly 0x3f words is mishandled by this chip; compilers for it insert an `s_nop` so that \
                 the distance is another one."
            }
            Rule::FlatOffset => {
                "This flat access has an offset, which this chip ignores when the address lies in global memory."
            }
            Rule::LocalMisaligned => {
                "This access to the local data share is wider than its alignment, which this chip gets wrong when a \
                 workgroup spans two compute units."
            }
            Rule::ComparePermlane => {
                "A lane permutation follows a comparison that writes EXEC with no other vector instruction between; it \
                 can permute with the old lanes. A compiler for this chip puts a `v_mov_b32` between."
            }
            Rule::ImageToMemory => {
                "A buffer access with this offset follows an image instruction with scattered address registers, which \
                 this chip gets wrong. A compiler for it puts an `s_nop` between."
            }
            Rule::ImageClause => {
                "An image instruction with scattered address registers stands inside a clause, which this chip gets \
                 wrong; compilers for it leave it out of clauses."
            }
            Rule::ScratchOffset => {
                "This chip gets scratch accesses wrong whose offset is negative and no multiple of four; compilers for \
                 it add the offset to the address."
            }
            Rule::Illegal => "This chip does not have the instruction, or does something else under its number.",
        }
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
