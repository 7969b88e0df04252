//! Loads and stores of whole words, checked once for all lanes: the lowest and the highest address must lie in one place.
//! Where they do not, the plain path finds out lane by lane what is wrong.

use std::sync::atomic::Ordering;

use unhang_isa::{Field, Format, Instruction};

use super::rows::Vectors;
use super::words::{Addresses, Words};
use crate::access::{Access, Part};
use crate::memory_access::{Surroundings, local_alignment};
use crate::wave::{NULL, Wave};

/// Whole words of LDS.
#[derive(Clone, Copy)]
pub(crate) struct LocalAccess {
    address: u8,
    words: Words,
    reach: u32,
    /// What addresses must be multiples of with an offset, where a workgroup spans both compute units.
    alignment: (u32, u32),
}

impl LocalAccess {
    pub fn of(instruction: &Instruction, access: Access) -> Option<LocalAccess> {
        if instruction.format() != Format::Ds {
            return None;
        }
        let field = |low| instruction.high_bits(low, 8) as u8;
        let (store, pair, count, stride) = match access {
            Access::Load { count, part: Part::Word } => (false, false, count, 0),
            Access::Store { count, part: Part::Word } => (true, false, count, 0),
            Access::LoadTwo { count, stride } => (false, true, count, stride),
            Access::StoreTwo { count, stride } => (true, true, count, stride),
            _ => return None,
        };
        let (mut registers, mut offsets) = ([0; 4], [0; 4]);
        for place in 0..count << pair as u8 {
            // The second of a pair has its own offset, and what is stored its own register.
            let (second, word) = (place / count, place % count);
            let offset = match (pair, second) {
                (false, _) => instruction.bits(0, 16),
                (true, 0) => instruction.bits(0, 8) * stride,
                (true, _) => instruction.bits(8, 8) * stride,
            };
            offsets[place as usize] = offset + word as u32 * 4;
            registers[place as usize] = match (store, second) {
                (true, 0) => field(8).checked_add(word)?,
                (true, _) => field(16).checked_add(word)?,
                (false, _) => field(24).checked_add(place)?,
            };
        }
        let words = Words::new(store, count << pair as u8, registers, offsets);
        let alignment = local_alignment(instruction).unwrap_or((1, 0));
        Some(LocalAccess { address: field(0), reach: words.reach(), words, alignment })
    }
}

/// Whole words of global memory, through 64-bit addresses or a base with offsets.
#[derive(Clone, Copy)]
pub(crate) struct GlobalAccess {
    address: u8,
    base: Option<u8>,
    offset: i32,
    words: Words,
}

impl GlobalAccess {
    pub fn of(instruction: &Instruction, access: Access) -> Option<GlobalAccess> {
        if instruction.format() != Format::Global {
            return None;
        }
        let (store, count) = match access {
            Access::Load { count, part: Part::Word } => (false, count),
            Access::Store { count, part: Part::Word } => (true, count),
            _ => return None,
        };
        let field = |low| instruction.high_bits(low, 8) as u8;
        let scalar = instruction.high_bits(16, 7) as u8;
        let base = if matches!(scalar, 0x7d | 0x7f) { None } else { Some(scalar) };
        let register = if store { field(8) } else { field(24) };
        register.checked_add(count)?;
        let registers = std::array::from_fn(|place| register.saturating_add(place as u8));
        let words = Words::new(store, count, registers, [0, 4, 8, 12]);
        Some(GlobalAccess { address: field(0), base, offset: instruction.flat_offset(), words })
    }
}

/// Words that a scalar load brings.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLoad {
    base: u8,
    /// The register of an offset, and a constant one.
    register: u8,
    offset: i32,
    count: u8,
    destination: u8,
}

impl ScalarLoad {
    /// Those through a buffer, which has an end of its own, are the plain path's.
    pub fn of(instruction: &Instruction, count: u8) -> Option<ScalarLoad> {
        if instruction.definition.mnemonic.starts_with("s_buffer") {
            return None;
        }
        Some(ScalarLoad {
            base: instruction.bits(0, 6) as u8 * 2,
            register: instruction.high_bits(25, 7) as u8,
            offset: (instruction.second_word() << 11) as i32 >> 11,
            count,
            destination: Wave::destination(instruction, Field::Destination)?,
        })
    }
}

impl Wave {
    /// Loads words into scalar registers; `false` if they are not all there.
    #[inline(always)]
    pub(super) fn fast_scalar_load(&mut self, load: &ScalarLoad, around: &mut Surroundings<'_>) -> bool {
        let offset = (load.offset as i64 as u64).wrapping_add(self.scalar(load.register) as u64);
        let address = self.scalar64(load.base).wrapping_add(offset) & !3;
        let Some(words) = around.global.words(address, address, load.count as u64 * 4, false) else { return false };
        for (place, word) in words.iter().enumerate() {
            if load.destination as usize != NULL {
                self.set_scalar((load.destination + place as u8) & 127, word.load(Ordering::Relaxed));
            }
        }
        true
    }

    /// Loads or stores words of LDS; `false` if something is not in order.
    ///
    /// # Safety
    ///
    /// As for [`Wave::compute`].
    #[inline(always)]
    pub(super) unsafe fn fast_local<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        access: &LocalAccess,
        around: &mut Surroundings<'_>,
        minds_alignment: bool,
        half: usize,
    ) -> bool {
        let on = self.on(half);
        if on == 0 {
            return true;
        }
        // SAFETY: the registers are the wave's, and the wave lives on.
        let (rows, addresses) = unsafe {
            let rows = self.vectors.as_mut_ptr().add(half * self.registers);
            (rows, Addresses::new(rows.add(access.address as usize), on))
        };
        let (size, offset) = access.alignment;
        if minds_alignment && size > 1 && !addresses.are_aligned(vectors, size, offset) {
            return false;
        }
        // What wraps around is past the end as well. LDS has 64 KiB, so that offsets are small.
        match around.local.len().checked_sub(access.reach as usize) {
            Some(limit) if addresses.are_within(vectors, limit as u32) => {}
            _ => return false,
        }
        // SAFETY: the sum of each address and the highest offset is within LDS, which is this thread's; the registers are the
        // wave's.
        unsafe { addresses.transfer(vectors, around.local.as_mut_ptr(), 0, &access.words, rows) };
        true
    }

    /// Loads or stores words of global memory; `false` if something is not in order.
    ///
    /// # Safety
    ///
    /// As for [`Wave::compute`].
    #[inline(always)]
    pub(super) unsafe fn fast_global<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        access: &GlobalAccess,
        around: &mut Surroundings<'_>,
        half: usize,
    ) -> bool {
        let on = self.on(half);
        if on == 0 {
            return true;
        }
        // Upper halves of addresses may lie past the registers of a kernel that is not in order.
        let needed = access.address as usize + access.base.is_none() as usize;
        if needed >= self.registers {
            return false;
        }
        // SAFETY: the registers are the wave's, and the wave lives on.
        let (rows, addresses, upper) = unsafe {
            let rows = self.vectors.as_mut_ptr().add(half * self.registers);
            let at = |register: usize| Addresses::new(rows.add(register), on);
            (rows, at(access.address as usize), at(needed))
        };
        let base = match access.base {
            Some(base) => self.scalar64(base),
            None => match upper.only(vectors) {
                Some(upper) => (upper as u64) << 32,
                None => return false,
            },
        };
        let base = base.wrapping_add(access.offset as i64 as u64);
        let span = addresses.span(vectors);
        // A wave that reaches over 2 GiB at once goes the plain way: offsets have 31 bits.
        if !(base as u32 | span.bits).is_multiple_of(4) || span.highest - span.lowest > i32::MAX as u32 - 64 {
            return false;
        }
        let (lowest, highest) = (base.checked_add(span.lowest as u64), base.checked_add(span.highest as u64));
        let (Some(lowest), Some(highest)) = (lowest, highest) else { return false };
        let words = around.global.words(lowest, highest, access.words.count as u64 * 4, access.words.store);
        let Some(words) = words else { return false };
        let at = words.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: from the lowest address to the last word behind the highest all is in the region, which outlives this, is
        // made of atomics and was asked for as writable to be stored to; the registers are the wave's.
        unsafe { addresses.transfer(vectors, at, span.lowest, &access.words, rows) };
        true
    }
}
