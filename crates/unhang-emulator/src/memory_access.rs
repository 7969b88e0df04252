//! Memory instructions: scalar loads, local memory, global and flat memory, raw buffers.

use unhang_isa::{Field, Format, Instruction};

use crate::access::{Access, Comparison, Part};
use crate::memory::Window;
use crate::races::{Deed, Races, Where};
use crate::wave::{LANES, Wave};
use crate::{FaultKind, Space};

/// The memory of a workgroup beside the registers.
pub(crate) struct Surroundings<'a> {
    pub global: Window<'a>,
    pub local: &'a mut [u8],
    /// Where accesses are noted, if races are asked for.
    pub races: Option<&'a mut Races>,
    pub bounds: LocalBounds,
}

/// What becomes of accesses beyond the LDS of a workgroup.
#[derive(Default)]
pub(crate) struct LocalBounds {
    /// Whether those of DS instructions read zero and write nothing, as on the card; those by flat addresses are violations there, too.
    forgiven: bool,
    /// Whether the instruction under way is one of these.
    forgives: bool,
    /// Words that were forgiven.
    pub beyond: u64,
}

impl LocalBounds {
    pub fn new(stop: bool) -> LocalBounds {
        LocalBounds { forgiven: !stop, ..LocalBounds::default() }
    }
}

impl Surroundings<'_> {
    fn local_fault(&self, address: u32, size: u32) -> FaultKind {
        FaultKind::Local { address, size, limit: self.local.len() as u32 }
    }

    /// An access beyond LDS: a fault, or nothing.
    #[cold]
    fn beyond_local(&mut self, address: u32, size: u32) -> Result<(), FaultKind> {
        if !self.bounds.forgives {
            return Err(self.local_fault(address, size));
        }
        self.bounds.beyond += 1;
        Ok(())
    }

    /// Notes an access, if races are asked for.
    #[inline]
    fn note(&mut self, target: Target, size: u32, deed: Deed) -> Result<(), FaultKind> {
        let Some(races) = self.races.as_deref_mut() else { return Ok(()) };
        match target {
            Target::Private { .. } => Ok(()),
            Target::Local(address) => races.touch(Where::Local(address), size, deed),
            target => target.global(size).map_or(Ok(()), |address| races.touch(Where::Global(address), size, deed)),
        }
    }

    #[inline]
    fn load(&mut self, target: Target, size: u32) -> Result<u32, FaultKind> {
        self.note(target, size, Deed::Read)?;
        self.load_unnoted(target, size)
    }

    #[inline]
    fn store(&mut self, target: Target, size: u32, value: u32) -> Result<(), FaultKind> {
        self.note(target, size, Deed::Write)?;
        self.store_unnoted(target, size, value)
    }

    #[inline]
    fn load_unnoted(&mut self, target: Target, size: u32) -> Result<u32, FaultKind> {
        match target {
            Target::Local(address) => {
                let start = address as usize;
                let Some(bytes) = self.local.get(start..start + size as usize) else {
                    return self.beyond_local(address, size).map(|()| 0);
                };
                Ok(match *bytes {
                    [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                    [a, b] => u16::from_le_bytes([a, b]) as u32,
                    _ => bytes.first().copied().unwrap_or(0) as u32,
                })
            }
            // A word of the lane's memory ends, and the next one lies behind those of all other lanes.
            Target::Private { offset, .. } if offset % 4 + size > 4 => (0..size).try_fold(0, |value, byte| {
                let address = target.plus(byte).global(1).unwrap_or(0);
                Ok(value | self.global.load(address, 1)? << (byte * 8))
            }),
            target => target.global(size).map_or(Ok(0), |address| self.global.load(address, size)),
        }
    }

    #[inline]
    fn store_unnoted(&mut self, target: Target, size: u32, value: u32) -> Result<(), FaultKind> {
        match target {
            Target::Local(address) => {
                let start = address as usize;
                let Some(bytes) = self.local.get_mut(start..start + size as usize) else {
                    return self.beyond_local(address, size);
                };
                bytes.copy_from_slice(&value.to_le_bytes()[..size as usize]);
                Ok(())
            }
            Target::Private { offset, .. } if offset % 4 + size > 4 => (0..size).try_for_each(|byte| {
                let address = target.plus(byte).global(1).unwrap_or(0);
                self.global.store(address, 1, value >> (byte * 8) & 0xff)
            }),
            target => target.global(size).map_or(Ok(()), |address| self.global.store(address, size, value)),
        }
    }

    fn update(&mut self, target: Target, wide: bool, update: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        self.note(target, if wide { 8 } else { 4 }, Deed::Atomic)?;
        match target {
            Target::Local(_) => {
                let high = if wide { self.load_unnoted(target.plus(4), 4)? } else { 0 };
                let old = self.load_unnoted(target, 4)? as u64 | (high as u64) << 32;
                let (new, beyond) = (update(old), self.bounds.beyond);
                self.store_unnoted(target, 4, new as u32)?;
                if wide {
                    self.store_unnoted(target.plus(4), 4, (new >> 32) as u32)?;
                }
                // The same words again.
                self.bounds.beyond = beyond;
                Ok(old)
            }
            target => {
                let address = target.global(if wide { 8 } else { 4 });
                address.map_or(Ok(0), |address| self.global.update(address, wide, update))
            }
        }
    }
}

/// An address in one of the memories.
#[derive(Clone, Copy, Debug)]
enum Target {
    Global(u64),
    Local(u32),
    /// Private memory of a lane, from a wave's base on.
    Private {
        base: u64,
        offset: u32,
        /// The lane, and lanes of the wave.
        lane: u8,
        lanes: u8,
    },
    /// In a buffer, with this many bytes left in it; past them, loads are zero and stores are lost.
    Buffer {
        address: u64,
        left: u32,
    },
}

impl Target {
    fn plus(self, bytes: u32) -> Target {
        match self {
            Target::Global(address) => Target::Global(address.wrapping_add(bytes as u64)),
            Target::Local(address) => Target::Local(address.wrapping_add(bytes)),
            Target::Private { base, offset, lane, lanes } => {
                Target::Private { base, offset: offset.wrapping_add(bytes), lane, lanes }
            }
            Target::Buffer { address, left } => {
                Target::Buffer { address: address.wrapping_add(bytes as u64), left: left.saturating_sub(bytes) }
            }
        }
    }

    /// The address in global memory, unless it is local; `None` past the end of a buffer.
    #[inline]
    fn global(self, size: u32) -> Option<u64> {
        match self {
            Target::Global(address) => Some(address),
            Target::Local(address) => Some(address as u64),
            Target::Private { base, offset, lane, lanes } => Some(base.wrapping_add(swizzled(offset, lane, lanes))),
            Target::Buffer { address, left } => (size <= left).then_some(address),
        }
    }
}

/// Where a lane's byte lies among those of all lanes, whose words alternate.
fn swizzled(offset: u32, lane: u8, lanes: u8) -> u64 {
    (offset as u64 / 4 * lanes as u64 + lane as u64) * 4 + offset as u64 % 4
}

impl Wave {
    /// Executes a memory instruction.
    pub fn run_memory(
        &mut self,
        instruction: &Instruction,
        access: Access,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        around.bounds.forgives = around.bounds.forgiven && instruction.format() == Format::Ds;
        let exec = self.exec();
        let data = match instruction.format() {
            Format::Mubuf => instruction.high_bits(8, 8) as usize,
            _ => Wave::destination(instruction, Field::Source1).unwrap_or(0) as usize,
        };
        let second_data = Wave::destination(instruction, Field::Source2).unwrap_or(0) as usize;
        let destination = match instruction.format() {
            Format::Mubuf => data,
            _ => Wave::destination(instruction, Field::Destination).unwrap_or(0) as usize,
        };
        let lanes = (0..LANES).filter(move |lane| exec >> lane & 1 == 1);
        match access {
            Access::Nothing => {}
            Access::ScalarLoad { count } => return self.scalar_load(instruction, count, around),
            Access::Clock => {
                let register = Wave::destination(instruction, Field::Destination).unwrap_or(125);
                self.set_scalar64(register, self.executed);
            }
            // Most loads of a fast kernel: whole words out of local memory.
            Access::Load { count, part: Part::Word }
                if instruction.format() == Format::Ds && around.races.is_none() && !around.bounds.forgives =>
            {
                let addresses = self.vector(instruction.high_bits(0, 8) as u8);
                let (offset, size) = (instruction.bits(0, 16), count as usize * 4);
                for lane in lanes {
                    let address = addresses[lane].wrapping_add(offset);
                    let bytes = around.local.get(address as usize..address as usize + size);
                    let bytes = bytes.ok_or_else(|| around.local_fault(address, size as u32))?;
                    for (word, &chunk) in bytes.as_chunks().0.iter().enumerate() {
                        self.set_vector_lane(destination + word, lane, u32::from_le_bytes(chunk));
                    }
                }
            }
            Access::Load { count, part } => {
                for lane in lanes {
                    let target = self.target(instruction, lane)?;
                    for word in 0..count as u32 {
                        let value = around.load(target.plus(word * 4), part.size())?;
                        let register = destination + word as usize;
                        let old = self.vector_lane(register, lane);
                        self.set_vector_lane(register, lane, widen(value, part, old));
                    }
                }
            }
            Access::Store { count, part } => {
                for lane in lanes {
                    let target = self.target(instruction, lane)?;
                    for word in 0..count as u32 {
                        let mut value = self.vector_lane(data + word as usize, lane);
                        if let Part::InHalf { high: true, .. } = part {
                            value >>= 16;
                        }
                        around.store(target.plus(word * 4), part.size(), value)?;
                    }
                }
            }
            Access::LoadTwo { count, stride } => {
                let offsets = [instruction.bits(0, 8) * stride, instruction.bits(8, 8) * stride];
                for lane in lanes {
                    let base = self.vector_lane(instruction.high_bits(0, 8) as usize, lane);
                    let mut values = [0; 4];
                    for (place, value) in values.iter_mut().enumerate().take(count as usize * 2) {
                        let (pair, word) = (place / count as usize, (place % count as usize) as u32);
                        *value = around.load(Target::Local(base.wrapping_add(offsets[pair] + word * 4)), 4)?;
                    }
                    for (place, &value) in values.iter().enumerate().take(count as usize * 2) {
                        self.set_vector_lane(destination + place, lane, value);
                    }
                }
            }
            Access::StoreTwo { count, stride } => {
                let offsets = [instruction.bits(0, 8) * stride, instruction.bits(8, 8) * stride];
                for lane in lanes {
                    let base = self.vector_lane(instruction.high_bits(0, 8) as usize, lane);
                    for (pair, register) in [data, second_data].into_iter().enumerate() {
                        for word in 0..count as u32 {
                            let value = self.vector_lane(register + word as usize, lane);
                            around.store(Target::Local(base.wrapping_add(offsets[pair] + word * 4)), 4, value)?;
                        }
                    }
                }
            }
            Access::Atomic { update, wide, returns, compare } => {
                let number = |wave: &Wave, register: usize, lane| {
                    let high = if wide { wave.vector_lane(register + 1, lane) } else { 0 };
                    wave.vector_lane(register, lane) as u64 | (high as u64) << 32
                };
                let (new, expected) = match compare {
                    Comparison::None => (data, None),
                    Comparison::BehindData => (data, Some(data + 1 + wide as usize)),
                    Comparison::FirstData => (second_data, Some(data)),
                };
                for lane in lanes {
                    let target = self.target(instruction, lane)?;
                    let value = number(self, new, lane);
                    let expected = expected.map_or(0, |register| number(self, register, lane));
                    let old = around.update(target, wide, |old| update(old, value, expected))?;
                    if returns {
                        self.set_vector_lane(destination, lane, old as u32);
                        if wide {
                            self.set_vector_lane(destination + 1, lane, (old >> 32) as u32);
                        }
                    }
                }
            }
            Access::Swizzle => self.swizzle(instruction, destination),
            Access::Permute { backward } => {
                let addresses = self.vector(instruction.high_bits(0, 8) as u8);
                let values = self.vector(data as u8);
                let mut results = [0; LANES];
                let offset = instruction.bits(0, 16);
                for lane in 0..LANES {
                    let other = (addresses[lane].wrapping_add(offset) / 4) as usize % LANES;
                    if backward {
                        results[lane] = if exec >> other & 1 == 1 { values[other] } else { 0 };
                    } else if exec >> lane & 1 == 1 {
                        results[other] = values[lane];
                    }
                }
                for lane in lanes {
                    self.set_vector_lane(destination, lane, results[lane]);
                }
            }
        }
        Ok(())
    }

    /// Whether an access to local memory is wider than a lane's address is aligned.
    pub fn is_misaligned(&self, instruction: &Instruction) -> bool {
        let Some((size, offset)) = local_alignment(instruction) else { return false };
        let addresses = self.vector(instruction.high_bits(0, 8) as u8);
        (0..LANES).any(|lane| self.exec() >> lane & 1 == 1 && addresses[lane].wrapping_add(offset) % size != 0)
    }

    /// Where a scalar load reads, and how far that is from its base.
    pub fn scalar_address(&self, instruction: &Instruction) -> (u64, u64) {
        let base = instruction.bits(0, 6) as u8 * 2;
        let offset = (((instruction.second_word() << 11) as i32) >> 11) as i64;
        let register = self.scalar(instruction.high_bits(25, 7) as u8) as u64;
        let buffer = instruction.definition.mnemonic.starts_with("s_buffer");
        let start = if buffer { self.scalar64(base) & 0xffff_ffff_ffff } else { self.scalar64(base) };
        let relative = (offset as u64).wrapping_add(register);
        (start.wrapping_add(relative) & !3, relative)
    }

    /// In which memory, and where in it, a lane's access of this many bytes begins; nothing past the end of a buffer, or where
    /// it is a fault.
    pub fn place(&self, instruction: &Instruction, lane: usize, bytes: u32) -> Option<(Space, u64)> {
        let target = self.target(instruction, lane).ok()?;
        let space = match target {
            Target::Local(_) => Space::Local,
            Target::Private { .. } => Space::Private,
            Target::Global(_) | Target::Buffer { .. } => Space::Global,
        };
        Some((space, target.global(bytes)?))
    }

    fn scalar_load(
        &mut self,
        instruction: &Instruction,
        count: u8,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        let base = instruction.bits(0, 6) as u8 * 2;
        let buffer = instruction.definition.mnemonic.starts_with("s_buffer");
        let (address, relative) = self.scalar_address(instruction);
        let destination = Wave::destination(instruction, Field::Destination).unwrap_or(125);
        // Read once: what is loaded may overwrite it.
        let limit = if buffer { self.scalar(base + 2) as u64 } else { u64::MAX };
        for word in 0..count {
            let inside = relative.wrapping_add(word as u64 * 4 + 4) <= limit;
            let value = if inside { around.global.load(address + word as u64 * 4, 4)? } else { 0 };
            if destination != 125 {
                self.set_scalar((destination + word) & 127, value);
            }
        }
        Ok(())
    }

    /// Where a lane's access goes.
    fn target(&self, instruction: &Instruction, lane: usize) -> Result<Target, FaultKind> {
        let address = instruction.high_bits(0, 8) as usize;
        let low = self.vector_lane(address, lane);
        match instruction.format() {
            Format::Ds => Ok(Target::Local(low.wrapping_add(instruction.bits(0, 16)))),
            Format::Mubuf => self.buffer_target(instruction, lane),
            Format::Scratch => {
                let scalar = instruction.high_bits(16, 7) as u8;
                // One of both gives the offset.
                let base = if matches!(scalar, 0x7d | 0x7f) { low } else { self.scalar(scalar) };
                self.private_target(base.wrapping_add_signed(instruction.flat_offset()), lane)
            }
            _ => {
                let offset = instruction.flat_offset() as i64 as u64;
                let scalar = instruction.high_bits(16, 7) as u8;
                let pair = low as u64 | (self.vector_lane(address + 1, lane) as u64) << 32;
                let base = match (instruction.format(), scalar) {
                    (Format::Global, 0x7d | 0x7f) | (Format::Flat, _) => pair,
                    _ => self.scalar64(scalar).wrapping_add(low as u64),
                };
                let full = base.wrapping_add(offset);
                let [local, private] = self.apertures.map(|base| base >> 32);
                match instruction.format() {
                    Format::Flat if full >> 32 == local => Ok(Target::Local(full as u32)),
                    Format::Flat if full >> 32 == private => self.private_target(full as u32, lane),
                    _ => Ok(Target::Global(full)),
                }
            }
        }
    }

    /// A lane's own memory: words of all lanes lie side by side.
    fn private_target(&self, offset: u32, lane: usize) -> Result<Target, FaultKind> {
        let (base, size) = self.scratch;
        if offset >= size {
            return Err(FaultKind::Private { offset, limit: size });
        }
        Ok(self.private_place(base, offset, lane))
    }

    fn private_place(&self, base: u64, offset: u32, lane: usize) -> Target {
        let (lane, lanes) = (lane + self.half * LANES, if self.wave64 { 2 * LANES } else { LANES });
        Target::Private { base, offset, lane: lane as u8, lanes: lanes as u8 }
    }

    /// Raw buffers without stride; and the one of private memory, whose words of all lanes lie side by side.
    fn buffer_target(&self, instruction: &Instruction, lane: usize) -> Result<Target, FaultKind> {
        let resource = (instruction.high_bits(16, 5) * 4) as u8;
        let base = self.scalar64(resource) & 0xffff_ffff_ffff;
        let [second, last] = [1, 3].map(|word| self.scalar(resource + word));
        let (swizzles, adds_lane) = (second >> 31 == 1, last >> 23 & 1 == 1);
        if second >> 16 & 0x3fff != 0 || instruction.bits(13, 1) == 1 || swizzles != adds_lane {
            return Err(FaultKind::Unsupported);
        }
        let vector =
            if instruction.bits(12, 1) == 1 { self.vector_lane(instruction.high_bits(0, 8) as usize, lane) } else { 0 };
        let scalar = match unhang_isa::OperandValue::from_field(instruction.high_bits(24, 8) as u16, 0) {
            Some(source) => self.uniform(source, crate::wave::Type::Bits32, false) as u32,
            None => return Err(FaultKind::Unsupported),
        };
        let offset = vector.wrapping_add(instruction.bits(0, 12));
        let base = base.wrapping_add(scalar as u64);
        if swizzles {
            return Ok(self.private_place(base, offset, lane));
        }
        let left = self.scalar(resource + 2).saturating_sub(offset);
        Ok(Target::Buffer { address: base.wrapping_add(offset as u64), left })
    }

    fn swizzle(&mut self, instruction: &Instruction, destination: usize) {
        let exec = self.exec();
        let values = self.vector(instruction.high_bits(0, 8) as u8);
        let control = instruction.bits(0, 16) as usize;
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let from = if control & 0x8000 != 0 {
                lane & !3 | control >> ((lane & 3) * 2) & 3
            } else {
                ((lane & (control & 31)) | (control >> 5 & 31)) ^ (control >> 10 & 31)
            };
            let value = if exec >> from & 1 == 1 { values[from] } else { 0 };
            self.set_vector_lane(destination, lane, value);
        }
    }
}

/// What a lane's address in LDS should be a multiple of, and what is added to it first, for accesses wider than a word.
pub(crate) fn local_alignment(instruction: &Instruction) -> Option<(u32, u32)> {
    if instruction.format() != Format::Ds {
        return None;
    }
    match instruction.definition.mnemonic {
        // The offsets of pairs are multiples of their size.
        "ds_read2_b64" | "ds_write2_b64" => Some((8, 0)),
        "ds_read_b64" | "ds_write_b64" => Some((8, instruction.bits(0, 16))),
        "ds_read_b96" | "ds_write_b96" | "ds_read_b128" | "ds_write_b128" => Some((16, instruction.bits(0, 16))),
        _ => None,
    }
}

/// What becomes of a register whose lane loads a part of a word.
pub(crate) fn widen(value: u32, part: Part, old: u32) -> u32 {
    match part {
        Part::Word => value,
        Part::Byte { signed: true } => value as i8 as i32 as u32,
        Part::Half { signed: true } => value as i16 as i32 as u32,
        Part::Byte { signed: false } | Part::Half { signed: false } => value,
        Part::InHalf { byte, signed, high } => {
            let value = if byte && signed { value as i8 as i16 as u16 as u32 } else { value & 0xffff };
            if high { old & 0xffff | value << 16 } else { old & 0xffff_0000 | value }
        }
    }
}
