//! Findings and their counts.

use super::rule::{Rule, Severity};

/// One unsafe place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that it breaks.
    pub rule: Rule,
    /// How certain it is that the hardware misbehaves when it reaches this place.
    pub severity: Severity,
    /// Bytes from the start of the function to the instruction.
    pub offset: u32,
    /// The instruction's index in the program.
    pub index: u32,
    /// The scalar register involved, if there is one.
    pub register: Option<u8>,
}

impl Finding {
    /// Explains the finding in plain words.
    pub fn explanation(&self) -> String {
        let words = self.rule.explanation();
        match self.register {
            Some(register) => format!("{words} The register is {}.", crate::scalar_name(register)),
            None => words.to_owned(),
        }
    }
}

/// Findings counted by rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hazards {
    counts: [u64; Rule::ALL.len()],
}

impl Hazards {
    /// Counts findings.
    pub fn count(findings: &[Finding]) -> Hazards {
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

    /// The total number of findings.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
