//! Loads and stores of words and their parts, checked once for all lanes: the lowest and the highest address must be in
//! one region. If they are not, the plain path finds out lane by lane what is wrong.

use std::sync::atomic::Ordering;

use unhang_isa::audit::wide_local_access;
use unhang_isa::{Field, Format, Instruction, OperandValue};

use super::addresses::Addresses;
use super::operands::{ScalarOperand, ZERO};
use super::words::{Span, Words};
use crate::access::{Access, WordPart};
use crate::host::Vectors;
use crate::surroundings::Surroundings;
use crate::wave::{Lanes, NULL, Wave};

/// Words of LDS.
#[derive(Clone, Copy)]
pub(crate) struct LocalAccess {
    address: u8,
    words: Words,
    /// The alignment that addresses plus an offset need if a workgroup spans both compute units.
    alignment: (u32, u32),
}

impl LocalAccess {
    pub(crate) fn of(instruction: &Instruction, access: Access) -> Option<LocalAccess> {
        if instruction.format() != Format::Ds {
            return None;
        }
        let words = match Moved::of(access) {
            Some(Moved { store, part, .. }) if part != WordPart::Word => {
                let register = instruction.high_bits(if store { 8 } else { 24 }, 8) as u8;
                Words::part(store, part, register, instruction.bits(0, 16))
            }
            _ => local_words(instruction, access)?,
        };
        let alignment = wide_local_access(instruction).unwrap_or((1, 0));
        let address = instruction.high_bits(0, 8) as u8;
        Some(LocalAccess { address, words, alignment })
    }
}

/// The whole words of an access to LDS.
fn local_words(instruction: &Instruction, access: Access) -> Option<Words> {
    let field = |low| instruction.high_bits(low, 8) as u8;
    let (store, pair, count, stride) = match access {
        Access::Load { count, .. } => (false, false, count, 0),
        Access::Store { count, .. } => (true, false, count, 0),
        Access::LoadTwo { count, stride } => (false, true, count, stride),
        Access::StoreTwo { count, stride } => (true, true, count, stride),
        _ => return None,
    };
    let (mut registers, mut offsets) = ([0; 4], [0; 4]);
    for place in 0..count << pair as u8 {
        // The second of a pair has its own offset, and stored data its own register.
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
    Some(Words::new(store, count << pair as u8, registers, offsets))
}

/// Words of global memory, through 64-bit addresses or a base with offsets.
#[derive(Clone, Copy)]
pub(crate) struct GlobalAccess {
    address: u8,
    base: Option<u8>,
    offset: i32,
    words: Words,
    /// Flat addresses may be in LDS or private memory.
    flat: bool,
}

impl GlobalAccess {
    pub(crate) fn of(instruction: &Instruction, access: Access) -> Option<GlobalAccess> {
        let flat = match instruction.format() {
            Format::Global => false,
            Format::Flat => true,
            _ => return None,
        };
        let moved = Moved::of(access)?;
        let field = |low| instruction.high_bits(low, 8) as u8;
        let scalar = instruction.high_bits(16, 7) as u8;
        let base = if flat || matches!(scalar, 0x7d | 0x7f) { None } else { Some(scalar) };
        let words = moved.words(if moved.store { field(8) } else { field(24) })?;
        Some(GlobalAccess { address: field(0), base, offset: instruction.flat_offset(), words, flat })
    }
}

/// What an access moves per lane: contiguous words, or a part of one.
#[derive(Clone, Copy)]
struct Moved {
    store: bool,
    count: u8,
    part: WordPart,
}

impl Moved {
    fn of(access: Access) -> Option<Moved> {
        match access {
            Access::Load { count, part } => Some(Moved { store: false, count, part }),
            Access::Store { count, part } => Some(Moved { store: true, count, part }),
            _ => None,
        }
    }

    /// The words, starting at a register.
    fn words(self, register: u8) -> Option<Words> {
        if self.part != WordPart::Word {
            return Some(Words::part(self.store, self.part, register, 0));
        }
        register.checked_add(self.count)?;
        let registers = std::array::from_fn(|place| register.saturating_add(place as u8));
        Some(Words::new(self.store, self.count, registers, [0, 4, 8, 12]))
    }
}

/// Words of a buffer without an index.
#[derive(Clone, Copy)]
pub(crate) struct BufferAccess {
    resource: u8,
    /// The register of the lanes' offsets, if any; a constant offset, and one for all lanes.
    address: Option<u8>,
    offset: u16,
    scalar: ScalarOperand,
    words: Words,
    /// One more than the highest vector register.
    registers: u16,
}

impl BufferAccess {
    pub(crate) fn of(instruction: &Instruction, access: Access) -> Option<BufferAccess> {
        if instruction.format() != Format::Mubuf || instruction.bits(13, 1) == 1 {
            return None;
        }
        let moved = Moved::of(access)?;
        let register = instruction.high_bits(8, 8) as u8;
        let address = (instruction.bits(12, 1) == 1).then(|| instruction.high_bits(0, 8) as u8);
        let scalar = match OperandValue::from_field(instruction.high_bits(24, 8) as u16, 0)? {
            OperandValue::Scalar(125) => ScalarOperand::Constant(0),
            OperandValue::Scalar(register) => ScalarOperand::Register(register),
            OperandValue::Integer(value) => ScalarOperand::Constant(value as i32 as u32 as u64),
            _ => return None,
        };
        Some(BufferAccess {
            resource: (instruction.high_bits(16, 5) * 4) as u8,
            address,
            offset: instruction.bits(0, 12) as u16,
            scalar,
            words: moved.words(register)?,
            registers: (register as u16 + moved.count as u16).max(address.map_or(0, |address| address as u16 + 1)),
        })
    }
}

/// Words that a scalar load reads.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLoad {
    base: u8,
    /// Whether the base is a buffer, which has its own limit.
    buffer: bool,
    /// The register of an offset, and a constant one.
    register: u8,
    offset: i32,
    count: u8,
    destination: u8,
}

impl ScalarLoad {
    pub(crate) fn of(instruction: &Instruction, count: u8) -> Option<ScalarLoad> {
        Some(ScalarLoad {
            base: instruction.bits(0, 6) as u8 * 2,
            buffer: instruction.definition.mnemonic.starts_with("s_buffer"),
            register: instruction.high_bits(25, 7) as u8,
            offset: (instruction.second_word() << 11) as i32 >> 11,
            count,
            destination: Wave::destination(instruction, Field::Destination)?,
        })
    }
}

impl Wave {
    /// Loads words into scalar registers; `false` if they are not all available.
    #[inline(always)]
    pub(super) fn fast_scalar_load(&mut self, load: &ScalarLoad, around: &mut Surroundings<'_>) -> bool {
        let register = self.scalar(load.register) as u64;
        let offset = (load.offset as i64 as u64).wrapping_add(register);
        let mut base = self.scalar64(load.base);
        if load.buffer {
            base &= 0xffff_ffff_ffff;
            // Each word past the buffer's end is zero.
            let size = self.buffer_resource(load.base).scalar_size();
            if offset.checked_add(load.count as u64 * 4).is_none_or(|end| end > size) {
                return false;
            }
        }
        // The plain path ignores the two lowest bits of each part.
        if (base | offset | register) & 3 != 0 {
            return false;
        }
        let address = base.wrapping_add(offset);
        let Some(words) = around.global.words(address, load.count as u64 * 4) else { return false };
        for (place, word) in words.iter().enumerate() {
            if load.destination as usize != NULL {
                self.set_scalar((load.destination + place as u8) & 127, word.load(Ordering::Relaxed));
            }
        }
        true
    }

    /// Loads or stores words of LDS; `false` if a check fails.
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
        checks_alignment: bool,
        half: usize,
    ) -> bool {
        let on = self.on(half);
        if on == 0 {
            return true;
        }
        // SAFETY: the registers are the wave's, and the wave stays alive.
        let (rows, addresses) = unsafe {
            let rows = self.vectors.as_mut_ptr().add(half * self.registers);
            (rows, Addresses::new(rows.add(access.address as usize), on))
        };
        let (size, offset) = access.alignment;
        if checks_alignment && size > 1 && !addresses.are_aligned(vectors, size, offset) {
            return false;
        }
        // An address that wraps around is past the end as well. LDS has 64 KiB, so offsets are small.
        match around.local.len().checked_sub(access.words.reach as usize) {
            Some(limit) if addresses.are_within(vectors, limit as u32) => {}
            _ => return false,
        }
        // SAFETY: the sum of each address and the highest offset is within LDS, which belongs to this thread. The
        // registers are the wave's.
        unsafe { addresses.transfer(vectors, around.local.as_mut_ptr(), 0, &access.words, rows) };
        true
    }

    /// Loads or stores words of global memory; `false` if a check fails.
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
        // Upper halves of addresses may be past the registers of an invalid kernel.
        let needed = access.address as usize + access.base.is_none() as usize;
        if needed >= self.registers {
            return false;
        }
        // SAFETY: the registers are the wave's, and the wave stays alive.
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
        if access.flat {
            let ends = [span.lowest, span.highest].map(|end| base.wrapping_add(end as u64) >> 32);
            if self.apertures.iter().any(|aperture| ends.contains(&(aperture >> 32))) {
                return false;
            }
        }
        // SAFETY: the registers are the wave's, as required.
        unsafe { transfer_global(vectors, base, &addresses, span, &access.words, around, rows) }
    }

    /// Loads or stores words of a buffer; `false` if a check fails, or a lane is out of range.
    ///
    /// # Safety
    ///
    /// As for [`Wave::compute`].
    #[inline(always)]
    pub(super) unsafe fn fast_buffer<const WIDE: bool>(
        &mut self,
        vectors: Vectors<WIDE>,
        access: &BufferAccess,
        around: &mut Surroundings<'_>,
        half: usize,
    ) -> bool {
        let on = self.on(half);
        if on == 0 {
            return true;
        }
        let resource = self.buffer_resource(access.resource);
        // Swizzled buffers take the plain path: private memory, in which the words of all lanes alternate.
        let Some(limit) = resource.linear_reach() else { return false };
        if access.registers as usize > self.registers {
            return false;
        }
        let place = self.row_at(access.address.map_or(ZERO, u16::from), half);
        // SAFETY: registers of the wave, or the row of zeros after them; the wave stays alive.
        let (rows, addresses) = unsafe {
            let all = self.vectors.as_mut_ptr();
            (all.add(half * self.registers), Addresses::new(all.add(place), on))
        };
        let span = addresses.span(vectors);
        let scalar = self.operand(access.scalar);
        let end = span.highest as u64 + access.offset as u64 + access.words.reach as u64;
        if end + if resource.is_raw() { scalar } else { 0 } > limit {
            return false;
        }
        let start = resource.base.wrapping_add(scalar);
        let base = start.wrapping_add(access.offset as u64);
        // SAFETY: the registers are the wave's, as required.
        unsafe { transfer_global(vectors, base, &addresses, span, &access.words, around, rows) }
    }
}

/// Moves words between registers and addresses relative to a base. Returns `false` and moves nothing unless everything
/// is in one region, and whole words are aligned.
///
/// # Safety
///
/// The registers of `words` must be among `rows`.
#[inline(always)]
unsafe fn transfer_global<const WIDE: bool>(
    vectors: Vectors<WIDE>,
    base: u64,
    addresses: &Addresses,
    span: Span,
    words: &Words,
    around: &mut Surroundings<'_>,
    rows: *mut Lanes,
) -> bool {
    // A wave that spans over 2 GiB at once takes the plain path: offsets have 31 bits.
    let whole = words.part == WordPart::Word;
    if whole && !(base as u32 | span.bits).is_multiple_of(4) || span.highest - span.lowest > i32::MAX as u32 - 64 {
        return false;
    }
    let (lowest, highest) = (base.checked_add(span.lowest as u64), base.checked_add(span.highest as u64));
    let (Some(lowest), Some(highest)) = (lowest, highest) else { return false };
    let found = around.global.bytes(lowest, highest, words.reach as u64, words.store);
    let Some(found) = found else { return false };
    let at = found.as_ptr().cast_mut().cast::<u8>();
    // Each word moves in one piece. No card promises that for unaligned parts.
    if whole && !at.cast::<u32>().is_aligned() {
        return false;
    }
    // SAFETY: everything from the lowest address to the end of the highest access is in the region. The region outlives
    // this, is made of atomics, and was requested as writable if it is stored to. The registers are the wave's.
    unsafe { addresses.transfer(vectors, at, span.lowest, words, rows) };
    true
}
