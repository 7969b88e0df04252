//! What is known about the cards and RDNA1's units, with the source of each figure and its certainty.

/// How certain a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The vendor's specification or driver.
    Vendor,
    /// LLVM's or Mesa's model of the chip.
    Compiler,
    /// Measured by others on such a chip.
    Measured,
    /// Derived from others' measurements, or taken over from RDNA2.
    Inferred,
}

impl Ground {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Ground::Vendor => "vendor",
            Ground::Compiler => "compiler",
            Ground::Measured => "measured by others",
            Ground::Inferred => "inferred",
        }
    }
}

/// A figure of the model, for readers who want to see what a prediction rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// How certain it is.
    pub ground: Ground,
    /// Its source.
    pub source: &'static str,
}

const fn figure(name: &'static str, value: f64, ground: Ground, source: &'static str) -> Figure {
    Figure { name, value, ground, source }
}

/// A card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Its name.
    pub name: &'static str,
    /// Compute units, two in a workgroup processor.
    pub compute_units: u32,
    /// Hertz: the boost clock, for which the peak of operations is stated. The clock that a card sustains under load is
    /// lower.
    pub clock: f64,
    /// Bytes per second of its memory, by specification.
    pub bandwidth: f64,
    /// Bytes of L2.
    pub l2_bytes: u64,
    /// The source of these.
    pub source: &'static str,
}

/// The cards that predictions are made for, and the two with measurements by others that test the model.
pub const CARDS: [Card; 4] = [
    Card {
        name: "RX 5600 XT",
        compute_units: 36,
        clock: 1.56e9,
        bandwidth: 288e9,
        l2_bytes: 3 << 20,
        source: "vendor: 36 units, 1560 MHz boost, 288 GB/s as launched (later BIOS: 1750 MHz, 336 GB/s); L2 3 or 4 MB by source",
    },
    Card {
        name: "RX 5700 XT",
        compute_units: 40,
        clock: 1.905e9,
        bandwidth: 448e9,
        l2_bytes: 4 << 20,
        source: "vendor: 40 units, 1905 MHz boost, 448 GB/s, 4 MB L2",
    },
    Card {
        name: "RX 5600M",
        compute_units: 36,
        clock: 1.265e9,
        bandwidth: 288e9,
        l2_bytes: 3 << 20,
        source: "vendor: 36 units, 1265 MHz boost, 288 GB/s; whether a laptop held 1265 or 1500 MHz is not known",
    },
    Card {
        name: "BC-250",
        compute_units: 40,
        clock: 2.0e9,
        bandwidth: 448e9,
        l2_bytes: 4 << 20,
        source: "owners: gfx1013 with 40 units unlocked at 2.0 GHz; 359 GB/s were measured",
    },
];

impl Card {
    /// A card by its name.
    pub fn named(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name.eq_ignore_ascii_case(name))
    }

    /// Peak f32 operations per second; a multiply-add counts as two.
    pub fn flops(&self) -> f64 {
        f64::from(self.compute_units) * 128.0 * self.clock
    }
}

/// Lanes of a wave, and of a SIMD.
pub(crate) const LANES: u32 = 32;
/// SIMDs of a compute unit.
pub(crate) const SIMDS: usize = 2;
/// Waves that a SIMD holds.
pub(crate) const WAVES: u32 = 20;
/// Vector registers of a lane in a SIMD, allocated in eights.
pub(crate) const VECTOR_REGISTERS: u32 = 1024;
/// Bytes of LDS of a compute unit, allocated in units of 512.
pub(crate) const LOCAL_BYTES: u32 = 64 << 10;
/// Workgroups with barriers that a compute unit holds.
pub(crate) const BARRIERS: u32 = 16;
/// Bytes of a cache line at every level.
pub(crate) const LINE: u64 = 128;
/// Bytes of the first cache of a compute unit.
pub(crate) const L0_BYTES: u64 = 16 << 10;
/// Bytes of the cache of a shader array.
pub(crate) const L1_BYTES: u64 = 128 << 10;
/// Shader arrays of Navi 10.
pub(crate) const ARRAYS: usize = 4;
/// The associativity of every cache.
pub(crate) const CACHE_WAYS: usize = 16;
/// Banks of LDS. Each delivers a word per cycle.
pub(crate) const BANKS: usize = 32;

/// Figures, in cycles unless stated otherwise. The constants below read them by position in this table, so the model
/// uses exactly what is documented.
pub(crate) const FIGURES: [Figure; 18] = [
    figure("vector result to its use", 5.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("64-bit integer result to its use", 6.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("quarter-rate result to its use", 8.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("transcendental result to its use", 10.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("f64 result to its use", 22.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("scalar result to its use", 2.0, Ground::Compiler, "LLVM SISchedule.td"),
    figure("taken branch", 8.0, Ground::Inferred, "between Mesa's 3 and LLVM's 32"),
    figure("scalar load", 50.0, Ground::Inferred, "between Mesa's 20 to 30 for a hit and 200 for a miss"),
    figure("LDS load", 36.0, Ground::Inferred, "19.5 ns on RDNA2, at 1.85 GHz"),
    figure("L0 hit", 110.0, Ground::Measured, "NaviSim (PACT 2022), RX 5500 XT at 1845 MHz"),
    figure("L1 hit", 160.0, Ground::Inferred, "between L0 and L2"),
    figure("L2 hit", 230.0, Ground::Inferred, "66 ns more than L0 on RDNA2"),
    figure("DRAM, nanoseconds", 250.0, Ground::Inferred, "226 on RDNA2, 270 measured on gfx1013"),
    figure("L2 bytes a cycle, whole chip", 450.0, Ground::Measured, "830 to 948 GB/s at 2.0 GHz on gfx1013"),
    figure("DRAM bandwidth that is reached, share", 0.82, Ground::Measured, "RX 5600M 81 to 84 %, gfx1013 80 %"),
    figure("LDS bytes a cycle, one or two words a lane", 128.0, Ground::Inferred, "32 banks of a word"),
    figure("LDS bytes a cycle, three or four words a lane", 64.0, Ground::Measured, "61 with float4 on gfx1013"),
    figure(
        "launch, microseconds",
        5.0,
        Ground::Inferred,
        "RADV on an RX 5600M 5.5 and 4.9 with a barrier; OpenCL on gfx1013 2.1",
    ),
];

pub(crate) const VECTOR_LATENCY: u64 = FIGURES[0].value as u64;
pub(crate) const WIDE_LATENCY: u64 = FIGURES[1].value as u64;
pub(crate) const QUARTER_LATENCY: u64 = FIGURES[2].value as u64;
pub(crate) const TRANSCENDENTAL_LATENCY: u64 = FIGURES[3].value as u64;
pub(crate) const DOUBLE_LATENCY: u64 = FIGURES[4].value as u64;
pub(crate) const SCALAR_LATENCY: u64 = FIGURES[5].value as u64;
pub(crate) const BRANCH_CYCLES: u64 = FIGURES[6].value as u64;
pub(crate) const SCALAR_LOAD_LATENCY: u64 = FIGURES[7].value as u64;
pub(crate) const LOCAL_LATENCY: u64 = FIGURES[8].value as u64;
pub(crate) const L0_LATENCY: u64 = FIGURES[9].value as u64;
pub(crate) const L1_LATENCY: u64 = FIGURES[10].value as u64;
pub(crate) const L2_LATENCY: u64 = FIGURES[11].value as u64;
pub(crate) const DRAM_NANOSECONDS: f64 = FIGURES[12].value;
pub(crate) const L2_BYTES_PER_CYCLE: f64 = FIGURES[13].value;
pub(crate) const DRAM_SHARE: f64 = FIGURES[14].value;
pub(crate) const LOCAL_BYTES_PER_CYCLE: [f64; 2] = [FIGURES[15].value, FIGURES[16].value];
pub(crate) const LAUNCH_SECONDS: f64 = FIGURES[17].value * 1e-6;

impl Figure {
    /// Every figure of the microarchitecture that the model uses, apart from RDNA1's sizes.
    pub fn all() -> &'static [Figure] {
        &FIGURES
    }
}

/// Cycles for which a load or store of that many words per lane holds the path to L0. On an RX 5700 XT, L0 hits took
/// 1.9, 2.9, 4.0 and 4.9 cycles for one to four words. These are from sebbbi/perftest, raw buffers at an assumed 1.905
/// GHz.
pub(crate) fn vector_memory_cycles(words: u32) -> f64 {
    0.9 + f64::from(words.max(1))
}
