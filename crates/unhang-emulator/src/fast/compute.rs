//! The effect of resolved instructions on a wave's registers.
//!
//! Vector instructions of waves of 64 lanes run half by half, as in [`crate::wave64`]. `half` is 0 in waves of 32,
//! which costs nothing, since everything here is inlined into the loop over instructions. `WIDE` says whether AVX-512
//! is used, `HALVES` how many halves a wave has.

use std::cell::Cell;

use super::comparisons::FastCompare;
use super::halves::HalvesOperation;
use super::op::{Carry, OpKind};
use super::operands::{IN_ROOM, ScalarOperand, TwoRows};
use super::wide;
use crate::host::{FastRow, Vectors};
use crate::registers::ROOMS;
use crate::semantics::RowSource;
use crate::surroundings::Surroundings;
use crate::wave::{EXEC, LANES, NULL, Wave};

/// A mask for each half.
type Masks = [u32; 2];

// Macros, because closures are not inlined into the loop that this is a part of.

/// Runs it for each half, or returns at the half that needs the plain path.
macro_rules! each_half {
    ($wave:ident, $halves:expr, $half:ident, $done:expr) => {
        for $half in 0..$halves {
            if !$done {
                $wave.half = $half;
                return false;
            }
        }
    };
}

/// Runs it for each half.
macro_rules! all_halves {
    ($halves:expr, $half:ident, $done:expr) => {
        for $half in 0..$halves {
            $done;
        }
    };
}

/// The masks of all halves, written once both are known.
macro_rules! masks {
    ($wave:ident, $halves:ident, $half:ident, $register:expr, $mask:expr) => {{
        let mut masks = [0; 2];
        for $half in 0..$halves {
            masks[$half] = $mask;
        }
        $wave.set_masks::<$halves>($register, masks);
    }};
}

impl Wave {
    /// Executes a resolved instruction. Returns `false` if it needs the plain path; [`Wave::half`] then says which half
    /// is not done. If the operation [is for one float mode only](super::op::Op::usual_only), that mode must be set.
    ///
    /// # Safety
    ///
    /// The registers must be the wave's: [`Op::registers`](super::op::Op) of the instruction is within
    /// [`Wave::registers`].
    #[inline(always)]
    pub(crate) unsafe fn compute<const WIDE: bool, const HALVES: usize>(
        &mut self,
        vectors: Vectors<WIDE>,
        kind: &OpKind,
        around: &mut Surroundings<'_>,
        checks_alignment: bool,
    ) -> bool {
        match *kind {
            OpKind::Rows { run, rows } => {
                // SAFETY: the registers are the wave's, as required.
                all_halves!(HALVES, half, unsafe { self.fast_rows(run, rows, half) });
            }
            OpKind::FilledRows { run, rows, ref sources } => {
                // SAFETY: the registers are the wave's, as required.
                all_halves!(HALVES, half, unsafe { self.fast_filled_rows(run, rows, sources, half) });
            }
            OpKind::Halves(ref operation) => {
                // SAFETY: the registers are the wave's, as required.
                all_halves!(HALVES, half, unsafe { self.fast_halves(operation, half) });
            }
            OpKind::Nothing => {}
            OpKind::Local(ref access) => {
                // SAFETY: the registers are the wave's, as required.
                each_half!(self, HALVES, half, unsafe {
                    self.fast_local(vectors, access, around, checks_alignment, half)
                });
            }
            OpKind::Global(ref access) => {
                // SAFETY: the registers are the wave's, as required.
                each_half!(self, HALVES, half, unsafe { self.fast_global(vectors, access, around, half) });
            }
            OpKind::Scalar { run, sources, destination, wide } => self.fast_scalar(run, sources, destination, wide),
            OpKind::SaveExec { run, source, destination, wide } => self.fast_save_exec(run, source, destination, wide),
            OpKind::Pairs(ref operation) => {
                all_halves!(HALVES, half, self.fast_pairs(vectors, operation, half));
            }
            OpKind::ComparePairs(ref compare) => {
                masks!(self, HALVES, half, compare.destination, self.fast_pairs_mask(compare, half));
            }
            OpKind::MultiplyAdd(ref operation) => {
                masks!(self, HALVES, half, operation.mask, self.fast_multiply_add(vectors, operation, half));
            }
            OpKind::Buffer(ref access) => {
                // SAFETY: the registers are the wave's, as required.
                each_half!(self, HALVES, half, unsafe { self.fast_buffer(vectors, access, around, half) });
            }
            OpKind::ScalarLoad(ref load) => return self.fast_scalar_load(load, around),
            OpKind::ScalarCompare { holds, sources } => {
                self.scc = holds(self.operand(sources[0]), self.operand(sources[1]));
            }
            OpKind::ScalarConstant { run, constant, destination } => {
                let value = run(self, self.scalar(destination), constant);
                self.set_scalar(destination, value);
            }
            OpKind::ConstantCompare { holds, source, constant } => {
                self.scc = holds(self.operand(source) as u32, constant);
            }
            OpKind::FirstLane { source, destination } => self.fast_first_lane(source, destination),
            OpKind::Compare { run, outcomes, ref operands, destination } => {
                masks!(self, HALVES, half, destination, self.fast_mask(run, outcomes, operands, half));
            }
            OpKind::Select { ref operands, mask, destination } => {
                all_halves!(HALVES, half, self.fast_select(vectors, operands, mask, destination, half));
            }
            OpKind::Carry(ref carry) => {
                masks!(self, HALVES, half, carry.carry_out, self.fast_carry(vectors, carry, half));
            }
            OpKind::Plain | OpKind::Branch { .. } => return false,
        }
        true
    }

    /// Writes the mask of each half once both are known: the second may have read what the first writes.
    #[inline(always)]
    fn set_masks<const HALVES: usize>(&mut self, register: u8, masks: Masks) {
        for (half, &mask) in masks.iter().enumerate().take(HALVES) {
            if register as usize != NULL {
                self.set_scalar((register + half as u8) & 127, mask);
            }
        }
    }

    #[inline(always)]
    fn fast_scalar(
        &mut self,
        run: fn(&mut Wave, u64, u64) -> u64,
        sources: [ScalarOperand; 2],
        destination: u8,
        wide: bool,
    ) {
        let (a, b) = (self.operand(sources[0]), self.operand(sources[1]));
        let value = run(self, a, b);
        match wide {
            true => self.set_scalar64(destination, value),
            false => self.set_scalar(destination, value as u32),
        }
    }

    #[inline(always)]
    fn fast_first_lane(&mut self, source: u8, destination: u8) {
        let lane = self.exec64().trailing_zeros() as usize % (2 * LANES);
        let row = self.row_at(source as u16, lane / LANES);
        self.set_scalar(destination, self.vectors[row][lane % LANES]);
    }

    #[inline(always)]
    fn fast_save_exec(&mut self, run: fn(u64, u64) -> u64, source: ScalarOperand, destination: u8, wide: bool) {
        let (old, source) = (self.scalar64(EXEC as u8), self.operand(source));
        let new = run(old, source);
        if wide {
            self.set_scalar64(destination, old);
            self.set_scalar64(EXEC as u8, new);
            self.scc = new != 0;
        } else {
            self.set_scalar(destination, old as u32);
            self.scalars[EXEC] = new as u32;
            self.scc = new as u32 != 0;
        }
    }

    /// Computes a row from others.
    ///
    /// # Safety
    ///
    /// As for [`Wave::compute`]. This also applies to the next two.
    #[inline(always)]
    unsafe fn fast_rows(&mut self, run: FastRow, rows: [u16; 4], half: usize) {
        let on = self.on(half);
        // One by one: `map` is not inlined into the loop that this is a part of.
        let places = (
            self.row_at(rows[0], half),
            self.row_at(rows[1], half),
            self.row_at(rows[2], half),
            self.row_at(rows[3], half),
        );
        let all = Cell::from_mut(&mut *self.vectors).as_slice_of_cells();
        debug_assert!([places.0, places.1, places.2, places.3].iter().all(|&place| place < all.len()));
        // SAFETY: registers of the wave, or the extra rows after them; the function was chosen for this host's
        // instructions.
        unsafe {
            let row = |place: usize| all.get_unchecked(place);
            run(row(places.3), row(places.0), row(places.1), row(places.2), on)
        };
    }

    #[inline(always)]
    unsafe fn fast_filled_rows(&mut self, run: FastRow, rows: [u16; 4], sources: &[RowSource; 3], half: usize) {
        self.fill(sources, &rows, half);
        // SAFETY: as required of the caller.
        unsafe { self.fast_rows(run, rows, half) };
    }

    /// Computes a row with sources that are extracted from halves.
    #[inline(always)]
    unsafe fn fast_halves(&mut self, operation: &HalvesOperation, half: usize) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in operation.sources.iter().enumerate() {
            let mut lanes = self.lanes_of(&source.whole(), half);
            source.take(&mut lanes);
            self.vectors[rooms + place] = lanes;
        }
        let rows = [IN_ROOM, IN_ROOM + 1, IN_ROOM + 2, operation.destination as u16];
        // SAFETY: as required of the caller.
        unsafe { self.fast_rows(operation.run, rows, half) };
    }

    /// Compares two registers and returns the active lanes with one of the outcomes.
    #[inline(always)]
    fn fast_mask(&mut self, run: FastCompare, outcomes: u8, operands: &TwoRows, half: usize) -> u32 {
        self.fill(&operands.sources, &operands.rows, half);
        let (a, b) = (self.row_at(operands.rows[0], half), self.row_at(operands.rows[1], half));
        // SAFETY: it was chosen for this host's instructions.
        let mask = unsafe { run(&self.vectors[a], &self.vectors[b], outcomes) };
        mask & self.on(half)
    }

    #[inline(always)]
    fn fast_select<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        operands: &TwoRows,
        mask: u8,
        destination: u8,
        half: usize,
    ) {
        self.fill(&operands.sources, &operands.rows, half);
        let (mask, on) = (self.mask(mask, half), self.on(half));
        let (a, b) = (self.row_at(operands.rows[0], half), self.row_at(operands.rows[1], half));
        let all = Cell::from_mut(&mut *self.vectors).as_slice_of_cells();
        let destination = &all[half * self.registers + destination as usize];
        wide::select(vectors, destination, [&all[a], &all[b]], mask, on);
    }

    /// Adds or subtracts; returns the carries of the active lanes.
    #[inline(always)]
    fn fast_carry<const WIDE: bool>(&mut self, vectors: Vectors<WIDE>, carry: &Carry, half: usize) -> u32 {
        self.fill(&carry.operands.sources, &carry.operands.rows, half);
        let on = self.on(half);
        let carry_in = match carry.carry_in {
            Some(register) => self.mask(register, half),
            None => 0,
        };
        let (a, b) = (self.row_at(carry.operands.rows[0], half), self.row_at(carry.operands.rows[1], half));
        let all = Cell::from_mut(&mut *self.vectors).as_slice_of_cells();
        let destination = &all[half * self.registers + carry.destination as usize];
        let sources = [&all[a], &all[b]];
        let carries = match carry.subtract {
            true => wide::subtract(vectors, destination, sources, carry_in, on),
            false => wide::add(vectors, destination, sources, carry_in, on),
        };
        carries & on
    }
}
