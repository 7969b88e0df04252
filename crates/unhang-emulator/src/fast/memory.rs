//! Loads and stores of whole words, checked once for all lanes: the lowest and the highest address must lie in one place.
//! Where they do not, the plain path finds out lane by lane what is wrong.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use unhang_isa::{Format, Instruction};

use super::rows::{FastGather, gather};
use crate::access::{Access, Part};
use crate::memory_access::Surroundings;
use crate::wave::{EXEC, LANES, Lanes, Wave};

/// Whole words of LDS.
#[derive(Clone, Copy)]
pub(crate) struct LocalAccess {
    store: bool,
    address: u8,
    /// The register of each word, and its offset.
    registers: [u8; 4],
    offsets: [u32; 4],
    count: u8,
    gather: FastGather,
}

impl LocalAccess {
    /// Whether a lane's words lie together.
    #[inline(always)]
    pub fn is_wide(&self) -> bool {
        self.count > 1
    }

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
        let mut found = LocalAccess {
            store,
            address: field(0),
            registers: [0; 4],
            offsets: [0; 4],
            count: count << pair as u8,
            gather: gather(),
        };
        for place in 0..found.count {
            // The second of a pair has its own offset, and what is stored its own register.
            let (second, word) = (place / count, place % count);
            let offset = match (pair, second) {
                (false, _) => instruction.bits(0, 16),
                (true, 0) => instruction.bits(0, 8) * stride,
                (true, _) => instruction.bits(8, 8) * stride,
            };
            found.offsets[place as usize] = offset + word as u32 * 4;
            found.registers[place as usize] = match (store, second) {
                (true, 0) => field(8).checked_add(word)?,
                (true, _) => field(16).checked_add(word)?,
                (false, _) => field(24).checked_add(place)?,
            };
        }
        Some(found)
    }
}

/// Whole words of global memory, through 64-bit addresses or a base with offsets.
#[derive(Clone, Copy)]
pub(crate) struct GlobalAccess {
    store: bool,
    address: u8,
    base: Option<u8>,
    offset: i32,
    register: u8,
    count: u8,
    gather: FastGather,
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
        Some(GlobalAccess {
            store,
            address: field(0),
            base,
            offset: instruction.flat_offset(),
            register,
            count,
            gather: gather(),
        })
    }
}

impl Wave {
    /// Loads or stores words of LDS; `false` if something is not in order.
    #[inline(always)]
    pub fn fast_local(&mut self, access: &LocalAccess, around: &mut Surroundings<'_>) -> bool {
        let on = self.scalars[EXEC];
        // Lanes that are off look at the first byte, and nobody at what they find there.
        let mut addresses: Lanes = self.vectors[access.address as usize];
        let mut highest = 0;
        for lane in 0..LANES {
            addresses[lane] &= lane_mask(on, lane);
            highest = highest.max(addresses[lane]);
        }
        let count = access.count as usize;
        let reach = access.offsets[..count].iter().max().map_or(0, |&offset| offset as u64 + 4);
        // What wraps around is past the end as well.
        if highest as u64 + reach > around.local.len() as u64 {
            return false;
        }
        let local = around.local.as_mut_ptr();
        if access.store {
            // Lane after lane: where they meet, the last one's words stay.
            each(on, |lane| {
                for place in 0..count {
                    let value = self.vectors[access.registers[place] as usize][lane].to_le();
                    let at = addresses[lane] as usize + access.offsets[place] as usize;
                    // SAFETY: the sum of the highest address and the highest offset is within LDS, which is this thread's.
                    unsafe { local.add(at).cast::<u32>().write_unaligned(value) };
                }
            });
            return true;
        }
        for place in 0..count {
            // SAFETY: as above.
            let base = unsafe { local.add(access.offsets[place] as usize) };
            let row = Cell::from_mut(&mut self.vectors[access.registers[place] as usize]);
            // SAFETY: as above; it was chosen for this host.
            unsafe { (access.gather)(base, &addresses, row, on) };
        }
        true
    }

    /// Loads or stores words of global memory; `false` if something is not in order.
    #[inline(always)]
    pub fn fast_global(&mut self, access: &GlobalAccess, around: &mut Surroundings<'_>) -> bool {
        let on = self.scalars[EXEC];
        if on == 0 {
            return true;
        }
        let low = &self.vectors[access.address as usize];
        let offset = access.offset as i64 as u64;
        let mut addresses = [0u64; LANES];
        match access.base {
            Some(base) => {
                let base = self.scalar64(base).wrapping_add(offset);
                for lane in 0..LANES {
                    addresses[lane] = base.wrapping_add(low[lane] as u64);
                }
            }
            None => {
                let Some(high) = self.vectors.get(access.address as usize + 1) else { return false };
                for lane in 0..LANES {
                    addresses[lane] = (low[lane] as u64 | (high[lane] as u64) << 32).wrapping_add(offset);
                }
            }
        }
        // Lanes that are off look where the first one that is on does.
        let first = addresses[on.trailing_zeros() as usize & 31];
        let (mut lowest, mut highest, mut bits) = (u64::MAX, 0, 0);
        for lane in 0..LANES {
            addresses[lane] = if on >> lane & 1 == 1 { addresses[lane] } else { first };
            lowest = lowest.min(addresses[lane]);
            highest = highest.max(addresses[lane]);
            bits |= addresses[lane];
        }
        if bits % 4 != 0 {
            return false;
        }
        let size = access.count as u64 * 4;
        let Some(words) = around.global.words(lowest, highest, size, access.store) else { return false };
        let first = access.register as usize;
        // A wave that reaches over 2 GiB at once goes the plain way: offsets have 31 bits.
        if highest - lowest > i32::MAX as u64 - 64 {
            return false;
        }
        let mut offsets = [0u32; LANES];
        for lane in 0..LANES {
            offsets[lane] = (addresses[lane] - lowest) as u32;
        }
        if access.store {
            each(on, |lane| {
                for word in 0..access.count as usize {
                    words[offsets[lane] as usize / 4 + word].store(self.vectors[first + word][lane], Ordering::Relaxed);
                }
            });
            return true;
        }
        for word in 0..access.count as usize {
            let row = Cell::from_mut(&mut self.vectors[first + word]);
            // SAFETY: from the lowest address to `size` bytes behind the highest all is in the region, which outlives this.
            unsafe { (access.gather)(words.as_ptr().cast::<u8>().add(word * 4), &offsets, row, on) };
        }
        true
    }
}

#[inline(always)]
fn lane_mask(on: u32, lane: usize) -> u32 {
    ((on >> lane & 1) as i32).wrapping_neg() as u32
}

/// Calls a function with each lane that is on, in order.
#[inline(always)]
fn each(on: u32, mut run: impl FnMut(usize)) {
    if on == u32::MAX {
        for lane in 0..LANES {
            run(lane);
        }
        return;
    }
    let mut left = on;
    while left != 0 {
        run(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}
