//! What resolved instructions do to a wave's registers.
//!
//! Vector instructions of waves of 64 lanes are done half by half, as in [`crate::wave64`]; `half` is 0 in waves of 32, which costs
//! nothing since everything here is compiled into the loop over instructions. `WIDE` says whether AVX-512 is used,
//! `HALVES` how many halves a wave has.

use std::cell::Cell;

use super::halves::HalvesOperation;
use super::registers::ROOMS;
use super::rows::{FastCompare, FastRow, Vectors};
use super::{Carry, IN_ROOM, Kind, ScalarOperand, TwoRows, wide};
use crate::memory_access::Surroundings;
use crate::semantics::{RowOperand, RowSource};
use crate::wave::{EXEC, LANES, Lanes, NULL, Wave};

/// A mask for each half.
type Masks = [u32; 2];

impl Wave {
    /// Executes a resolved instruction; `false`, and [`Wave::half`] says which half is not done, if it has to go the plain way. The
    /// float mode must be the one for which it was resolved if the operation [is for that alone](super::Op::usual_only).
    ///
    /// # Safety
    ///
    /// The registers must be the wave's: [`Op::registers`](super::Op) of the instruction is within [`Wave::registers`].
    #[inline(always)]
    pub unsafe fn compute<const WIDE: bool, const HALVES: usize>(
        &mut self,
        vectors: Vectors<WIDE>,
        kind: &Kind,
        around: &mut Surroundings<'_>,
        minds_alignment: bool,
    ) -> bool {
        match *kind {
            Kind::Rows { run, rows } => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    unsafe { self.fast_rows(run, rows, half) };
                }
            }
            Kind::FilledRows { run, rows, ref sources } => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    unsafe { self.fast_filled_rows(run, rows, sources, half) };
                }
            }
            Kind::Halves(ref operation) => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    unsafe { self.fast_halves(operation, half) };
                }
            }
            Kind::Nothing => {}
            Kind::Local(ref access) => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    if !unsafe { self.fast_local(vectors, access, around, minds_alignment, half) } {
                        self.half = half;
                        return false;
                    }
                }
            }
            Kind::Global(ref access) => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    if !unsafe { self.fast_global(vectors, access, around, half) } {
                        self.half = half;
                        return false;
                    }
                }
            }
            Kind::Scalar { run, sources, destination, wide } => {
                let value = self.fast_scalar(run, sources);
                match wide {
                    true => self.set_scalar64(destination, value),
                    false => self.set_scalar(destination, value as u32),
                }
            }
            Kind::SaveExec { run, source, destination, wide } => self.fast_save_exec(run, source, destination, wide),
            Kind::Pairs(ref operation) => {
                for half in 0..HALVES {
                    self.fast_pairs(vectors, operation, half);
                }
            }
            Kind::ComparePairs(ref compare) => {
                let mut masks = [0; 2];
                for half in 0..HALVES {
                    masks[half] = self.fast_pairs_mask(compare, half);
                }
                self.set_masks::<HALVES>(compare.destination, masks);
            }
            Kind::MultiplyAdd(ref operation) => {
                let mut masks = [0; 2];
                for half in 0..HALVES {
                    masks[half] = self.fast_multiply_add(vectors, operation, half);
                }
                self.set_masks::<HALVES>(operation.mask, masks);
            }
            Kind::Buffer(ref access) => {
                for half in 0..HALVES {
                    // SAFETY: the registers are the wave's, as asked for here.
                    if !unsafe { self.fast_buffer(vectors, access, around, half) } {
                        self.half = half;
                        return false;
                    }
                }
            }
            Kind::ScalarLoad(ref load) => return self.fast_scalar_load(load, around),
            Kind::ScalarCompare { holds, sources } => {
                self.scc = holds(self.operand(sources[0]), self.operand(sources[1]));
            }
            Kind::ScalarConstant { run, constant, destination } => {
                let value = run(self, self.scalar(destination), constant);
                self.set_scalar(destination, value);
            }
            Kind::ConstantCompare { holds, source, constant } => {
                self.scc = holds(self.operand(source) as u32, constant);
            }
            Kind::FirstLane { source, destination } => self.fast_first_lane(source, destination),
            Kind::Compare { run, outcomes, ref operands, destination } => {
                let mut masks = [0; 2];
                for half in 0..HALVES {
                    masks[half] = self.fast_mask(run, outcomes, operands, half);
                }
                self.set_masks::<HALVES>(destination, masks);
            }
            Kind::Select { ref operands, mask, destination } => {
                for half in 0..HALVES {
                    self.fast_select(vectors, operands, mask, destination, half);
                }
            }
            Kind::Carry(ref carry) => {
                let mut masks = [0; 2];
                for half in 0..HALVES {
                    masks[half] = self.fast_carry(vectors, carry, half);
                }
                self.set_masks::<HALVES>(carry.carry_out, masks);
            }
            Kind::Plain | Kind::Branch { .. } => return false,
        }
        true
    }

    #[inline(always)]
    pub(super) fn on(&self, half: usize) -> u32 {
        self.scalars[EXEC + half]
    }

    /// Writes the mask of each half, once both are known: the second may have read what the first writes.
    #[inline(always)]
    fn set_masks<const HALVES: usize>(&mut self, register: u8, masks: Masks) {
        for (half, &mask) in masks.iter().enumerate().take(HALVES) {
            if register as usize != NULL {
                self.set_scalar((register + half as u8) & 127, mask);
            }
        }
    }

    /// The mask of a half in a register or a pair.
    #[inline(always)]
    fn mask(&self, register: u8, half: usize) -> u32 {
        if register as usize == NULL { 0 } else { self.scalars[(register as usize + half) & 127] }
    }

    #[inline(always)]
    pub(super) fn operand(&self, operand: ScalarOperand) -> u64 {
        match operand {
            ScalarOperand::Register(register) => self.scalars[(register & 127) as usize] as u64,
            ScalarOperand::Pair(register) => self.scalar64(register),
            ScalarOperand::Constant(value) => value,
        }
    }

    #[inline(always)]
    fn fast_scalar(&mut self, run: fn(&mut Wave, u64, u64) -> u64, sources: [ScalarOperand; 2]) -> u64 {
        let (a, b) = (self.operand(sources[0]), self.operand(sources[1]));
        run(self, a, b)
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

    /// Where a row is: a register of a half, or a room behind all of them.
    #[inline(always)]
    pub(super) fn row_at(&self, row: u16, half: usize) -> usize {
        if row >= IN_ROOM {
            self.vectors.len() - ROOMS + (row - IN_ROOM) as usize
        } else {
            half * self.registers + row as usize
        }
    }

    /// A source as a whole register.
    #[inline(always)]
    pub(super) fn lanes_of(&self, source: &RowSource, half: usize) -> Lanes {
        let mut lanes = match source.from {
            RowOperand::Vector(register) => self.vectors[self.row_at(register as u16, half)],
            RowOperand::Scalar(register) => [self.scalar(register); LANES],
            RowOperand::Constant(value) => [value; LANES],
        };
        if source.keep != u32::MAX || source.flip != 0 {
            for lane in &mut lanes {
                *lane = (*lane & source.keep) ^ source.flip;
            }
        }
        lanes
    }

    /// Computes a row from others.
    ///
    /// # Safety
    ///
    /// As for [`Wave::compute`]; so for the next two.
    #[inline(always)]
    unsafe fn fast_rows(&mut self, run: FastRow, rows: [u16; 4], half: usize) {
        let on = self.on(half);
        // One by one: `map` is not compiled into the loop that this is a part of.
        let places = (
            self.row_at(rows[0], half),
            self.row_at(rows[1], half),
            self.row_at(rows[2], half),
            self.row_at(rows[3], half),
        );
        let all = Cell::from_mut(&mut *self.vectors).as_slice_of_cells();
        debug_assert!([places.0, places.1, places.2, places.3].iter().all(|&place| place < all.len()));
        // SAFETY: registers of the wave, or rooms behind them; the function was chosen for the instructions that this host has.
        unsafe {
            let row = |place: usize| all.get_unchecked(place);
            run(row(places.3), row(places.0), row(places.1), row(places.2), on)
        };
    }

    /// Fills the rooms of sources that are no registers.
    #[inline(always)]
    fn fill(&mut self, sources: &[RowSource], rows: &[u16], half: usize) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in sources.iter().enumerate() {
            if rows[place] == IN_ROOM + place as u16 {
                self.vectors[rooms + place] = self.lanes_of(source, half);
            }
        }
    }

    #[inline(always)]
    unsafe fn fast_filled_rows(&mut self, run: FastRow, rows: [u16; 4], sources: &[RowSource; 3], half: usize) {
        self.fill(sources, &rows, half);
        // SAFETY: as asked for here.
        unsafe { self.fast_rows(run, rows, half) };
    }

    /// Computes a row with sources that are taken out of halves.
    #[inline(always)]
    unsafe fn fast_halves(&mut self, operation: &HalvesOperation, half: usize) {
        let rooms = self.vectors.len() - ROOMS;
        for (place, source) in operation.sources.iter().enumerate() {
            let mut lanes = self.lanes_of(&source.whole(), half);
            source.take(&mut lanes);
            self.vectors[rooms + place] = lanes;
        }
        let rows = [IN_ROOM, IN_ROOM + 1, IN_ROOM + 2, operation.destination as u16];
        // SAFETY: as asked for here.
        unsafe { self.fast_rows(operation.run, rows, half) };
    }

    /// Compares two registers: the lanes that are on and for which one of the outcomes holds.
    #[inline(always)]
    fn fast_mask(&mut self, run: FastCompare, outcomes: u8, operands: &TwoRows, half: usize) -> u32 {
        self.fill(&operands.sources, &operands.rows, half);
        let (a, b) = (self.row_at(operands.rows[0], half), self.row_at(operands.rows[1], half));
        // SAFETY: it was chosen for the instructions that this host has.
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

    /// Adds or subtracts; returns the carries of the lanes that are on.
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
