//! Built-in rules: what five reports about one RX 5600 XT ("the seeds", `docs/internals/seeds.md`) claim about MIOpen
//! on RDNA1.
//!
//! The reports contradict each other. So each rule states its source, the versions, and what contradicts it. A rule
//! makes a combination suspect. It never proves that something hangs, and no rule says that something works. Nobody
//! has repeated these observations on a card.

use std::fmt;

use unhang_conv::Problem;
use unhang_engine::EngineName;

/// One claim about an engine on an affected card.
#[derive(Clone, Copy)]
pub struct Rule {
    /// A short, stable name.
    pub name: &'static str,
    /// The engine that it concerns.
    pub engine: EngineName,
    /// The claim.
    pub claim: &'static str,
    /// The document that makes the claim.
    pub document: &'static str,
    /// The versions that the claim covers.
    pub versions: &'static str,
    /// Evidence to the contrary.
    pub contradicted_by: &'static str,
    applies: fn(&Problem) -> bool,
}

impl Rule {
    /// Whether the claim covers this convolution. The reports observed forward convolutions in fp32. A rule also
    /// covers backward ones and other types, because nothing says that they fare better.
    pub fn applies(&self, problem: &Problem) -> bool {
        (self.applies)(problem)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {} ({}, {})", self.name, self.claim, self.document, self.versions)
    }
}

fn larger_side(problem: &Problem) -> usize {
    let [height, width] = problem.in_size();
    height.max(width)
}

/// Every rule.
pub const ALL: [Rule; 4] = [
    Rule {
        name: "size-over-42",
        engine: EngineName::Miopen,
        claim: "inputs larger than 42×42 hang for ever, 42×42 and smaller work",
        document: "seed 004, \"MIOpen Bypass for RDNA1 GPUs\", and seed 002, \"gfx1010 Conv2d Working Fully\"",
        versions: "ROCm 5.2.0 with torch 1.13.1+rocm5.2 and 2.2.2+rocm5.7, spoofed as gfx1030",
        contradicted_by: "the two disagree on the culprit (direct convolution, or GEMM); seed 002 sees all sizes to \
                          512×512 work with implicit GEMM; seed 003 sees 3→16 work at any size and puts the limit for \
                          others at 32×32; seed 000 sees 16→32 at 64×64 work in 0.22 s once MIOPEN_FIND_ENFORCE=3 is gone",
        applies: |problem| larger_side(problem) > 42,
    },
    Rule {
        name: "powers-of-two-over-32",
        engine: EngineName::Miopen,
        claim: "input and output channels that are powers of two, from 16 up, hang with inputs larger than 32×32",
        document: "seed 003, \"MIOpen GEMM Hang Bug - ROCm 5.7 + RDNA1\"",
        versions: "ROCm 5.7 with torch 2.2.2+rocm5.7, GEMM solvers only, spoofed as gfx1030",
        contradicted_by: "seed 001 puts the limit at 48×48 for 32→64 and at 64×64 for 64→128; seed 004 sees sizes to \
                          42×42 work; seed 000 sees 16→32 at 64×64 work in 0.22 s; seed 002 sees 64→128 and 256→512 \
                          work with implicit GEMM",
        applies: |problem| {
            let channels = [problem.in_channels(), problem.out_channels()];
            // Depthwise convolutions are reported to work (seeds 001 and 003).
            !problem.is_depthwise()
                && channels.iter().all(|&count| count >= 16 && count.is_power_of_two())
                && larger_side(problem) > 32
        },
    },
    Rule {
        name: "doubling-channels-over-their-limit",
        engine: EngineName::Miopen,
        claim: "16→32 hangs over 32×32, 32→64 over 48×48, 64→128 over 64×64",
        document: "seed 001, \"Final Investigation Summary - RDNA1 Conv2d Status\"",
        versions: "ROCm 5.7 with torch 2.2.2+rocm5.7, GEMM solvers only, spoofed as gfx1030",
        contradicted_by: "seed 003 puts one limit, 32×32, on all of them; seed 000 sees 16→32 at 64×64 work in 0.22 s; \
                          seed 002 sees 64→128 work with implicit GEMM",
        applies: |problem| match (problem.in_channels(), problem.out_channels()) {
            (16, 32) => larger_side(problem) > 32,
            (32, 64) => larger_side(problem) > 48,
            (64, 128) => larger_side(problem) > 64,
            _ => false,
        },
    },
    Rule {
        name: "equal-64-of-resnet",
        engine: EngineName::Miopen,
        claim: "the 64→64 convolutions of ResNet-50 are likely to hang",
        document: "seed 003, \"MIOpen GEMM Hang Bug - ROCm 5.7 + RDNA1\", table of models",
        versions: "ROCm 5.7 with torch 2.2.2+rocm5.7, GEMM solvers only, spoofed as gfx1030",
        contradicted_by: "the report itself says \"likely\": it was not tried; seed 002 calls ResNet usable with \
                          implicit GEMM",
        applies: |problem| {
            (problem.in_channels(), problem.out_channels(), problem.groups()) == (64, 64, 1)
                && larger_side(problem) > 32
        },
    },
];

/// The rules that make the engine suspect for the convolution on an affected card.
pub fn suspicions(problem: &Problem, engine: EngineName) -> impl Iterator<Item = &'static Rule> {
    ALL.iter().filter(move |rule| rule.engine == engine && rule.applies(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, expected: &[&str]) {
        let problem: Problem = key.parse().unwrap();
        let names: Vec<&str> = suspicions(&problem, EngineName::Miopen).map(|rule| rule.name).collect();
        assert_eq!(names, expected, "{key}");
        for engine in [EngineName::Cpu, EngineName::Jit, EngineName::Aten] {
            assert_eq!(suspicions(&problem, engine).count(), 0);
        }
    }

    #[test]
    fn the_seeds_own_cases() {
        let over_42 = "size-over-42";
        let powers = "powers-of-two-over-32";
        let doubling = "doubling-channels-over-their-limit";
        check("forward:f32:nchw:1x16x32x32:32x3x3:s1x1:p1x1:d1x1:g1", &[]);
        check("forward:f32:nchw:1x16x48x48:32x3x3:s1x1:p1x1:d1x1:g1", &[over_42, powers, doubling]);
        check("forward:f32:nchw:1x16x40x33:32x3x3:s1x1:p1x1:d1x1:g1", &[powers, doubling]);
        check("forward:f32:nchw:1x32x48x48:64x3x3:s1x1:p1x1:d1x1:g1", &[over_42, powers]);
        check("forward:f32:nchw:1x3x42x42:16x3x3:s1x1:p1x1:d1x1:g1", &[]);
        check("forward:f32:nchw:1x3x44x44:16x3x3:s1x1:p1x1:d1x1:g1", &[over_42]);
        check("backward-data:f32:nchw:4x64x33x33:64x3x3:s1x1:p1x1:d1x1:g1", &[powers, "equal-64-of-resnet"]);
        check("forward:f32:nchw:1x32x40x40:32x3x3:s1x1:p1x1:d1x1:g32", &[]);
    }

    #[test]
    fn every_rule_says_where_it_comes_from() {
        for rule in ALL {
            assert!(rule.document.contains("seed"), "{rule:?}");
            assert!(rule.versions.contains("ROCm"), "{rule:?}");
            assert!(!rule.contradicted_by.is_empty(), "{rule:?}");
        }
    }
}
