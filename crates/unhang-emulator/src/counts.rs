//! What was executed, by the unit that executes it, and the cycles of issue by a simple model.

use std::fmt;
use std::ops::{AddAssign, Index};

use unhang_isa::{Class, Format, Instruction};

/// The unit that executes an instruction, as far as issue rates differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Vector arithmetic at full rate, including packed halves.
    Vector,
    /// Reciprocal, square root, exponential, logarithm, sine, cosine.
    Transcendental,
    /// Vector arithmetic on 64-bit floats.
    DoublePrecision,
    /// Products of 32-bit integers.
    WideInteger,
    /// Scalar arithmetic.
    Scalar,
    /// Branches, calls, barriers, the end.
    Flow,
    /// Waiting for counters, and hints to the hardware.
    Wait,
    /// Scalar loads.
    ScalarMemory,
    /// Global, flat, buffer and scratch accesses.
    VectorMemory,
    /// The local data share.
    Local,
    /// Exports: graphics only.
    Export,
}

impl Unit {
    /// All of them.
    pub const ALL: [Unit; 11] = [
        Unit::Vector,
        Unit::Transcendental,
        Unit::DoublePrecision,
        Unit::WideInteger,
        Unit::Scalar,
        Unit::Flow,
        Unit::Wait,
        Unit::ScalarMemory,
        Unit::VectorMemory,
        Unit::Local,
        Unit::Export,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Vector => "vector",
            Unit::Transcendental => "transcendental",
            Unit::DoublePrecision => "double precision",
            Unit::WideInteger => "wide integer",
            Unit::Scalar => "scalar",
            Unit::Flow => "flow",
            Unit::Wait => "wait",
            Unit::ScalarMemory => "scalar memory",
            Unit::VectorMemory => "vector memory",
            Unit::Local => "local",
            Unit::Export => "export",
        }
    }

    /// Cycles for which one instruction of a wave of 32 lanes holds its unit, by the model. A SIMD of RDNA1 has 32
    /// lanes and takes a vector instruction per cycle. Transcendental functions and 32-bit products run at a quarter of
    /// that rate. Double precision runs at a sixteenth (609 of 9754 GFLOP/s on an RX 5700 XT). Everything else takes
    /// one cycle to issue; the time of memory accesses and of waiting for them is not modelled.
    pub const fn issue_cycles(self) -> u64 {
        match self {
            Unit::Transcendental | Unit::WideInteger => 4,
            Unit::DoublePrecision => 16,
            _ => 1,
        }
    }

    /// Whether each active lane counts as an operation.
    pub(crate) const fn has_lanes(self) -> bool {
        !matches!(self, Unit::Scalar | Unit::Flow | Unit::Wait | Unit::ScalarMemory)
    }

    /// The unit of an instruction.
    pub fn of(instruction: &Instruction) -> Unit {
        let name = instruction.definition.base_name();
        match instruction.class() {
            Class::Vector => vector_unit(name),
            Class::Scalar if instruction.format() == Format::Sopp => match name {
                "s_endpgm" | "s_barrier" => Unit::Flow,
                name if name.contains("branch") => Unit::Flow,
                _ => Unit::Wait,
            },
            Class::Scalar => match name {
                "s_setpc_b64" | "s_swappc_b64" | "s_call_b64" => Unit::Flow,
                name if name.starts_with("s_waitcnt") => Unit::Wait,
                _ => Unit::Scalar,
            },
            Class::ScalarMemory => Unit::ScalarMemory,
            Class::VectorMemory | Class::Flat | Class::Segment => Unit::VectorMemory,
            Class::Local => Unit::Local,
            Class::Export => Unit::Export,
        }
    }
}

fn vector_unit(name: &str) -> Unit {
    let approximate = ["v_rcp_", "v_rsq_", "v_sqrt_", "v_exp_", "v_log_", "v_sin_", "v_cos_"];
    if name.contains("f64") {
        Unit::DoublePrecision
    } else if approximate.iter().any(|start| name.starts_with(start)) {
        Unit::Transcendental
    } else if ["v_mul_lo_u32", "v_mul_lo_i32", "v_mul_hi_u32", "v_mul_hi_i32"].contains(&name)
        || ["v_mad_u64_u32", "v_mad_i64_i32"].contains(&name)
    {
        Unit::WideInteger
    } else {
        Unit::Vector
    }
}

/// What was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Vector, memory and local instructions times their active lanes.
    pub lane_operations: u64,
    /// Words that DS instructions requested beyond the LDS of their workgroup, if that does not stop the kernel.
    pub beyond_local: u64,
    by_unit: [u64; Unit::ALL.len()],
}

impl Counts {
    /// Instructions of all waves.
    pub fn instructions(&self) -> u64 {
        self.by_unit.iter().sum()
    }

    /// Cycles of issue, by [`Unit::issue_cycles`]: a model of one SIMD without stalls.
    pub fn issue_cycles(&self) -> u64 {
        Unit::ALL.iter().map(|&unit| self[unit] * unit.issue_cycles()).sum()
    }

    #[inline]
    pub(crate) fn note(&mut self, unit: Unit, lanes: u32) {
        self.by_unit[unit as usize] += 1;
        if unit.has_lanes() {
            self.lane_operations += lanes as u64;
        }
    }
}

impl Index<Unit> for Counts {
    type Output = u64;

    /// Instructions of a unit.
    fn index(&self, unit: Unit) -> &u64 {
        &self.by_unit[unit as usize]
    }
}

impl AddAssign for Counts {
    // Stretches are counted with it.
    #[inline(always)]
    fn add_assign(&mut self, other: Counts) {
        self.lane_operations += other.lane_operations;
        self.beyond_local += other.beyond_local;
        for (sum, count) in self.by_unit.iter_mut().zip(other.by_unit) {
            *sum += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (instructions, lanes, cycles) = (self.instructions(), self.lane_operations, self.issue_cycles());
        write!(f, "{instructions} instructions, {lanes} lane operations, {cycles} cycles of issue by the model (")?;
        let used = Unit::ALL.into_iter().filter(|&unit| self[unit] > 0);
        for (place, unit) in used.enumerate() {
            write!(f, "{}{} {}", if place == 0 { "" } else { ", " }, unit.name(), self[unit])?;
        }
        f.write_str(")")
    }
}
