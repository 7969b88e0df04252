//! Memory instructions: scalar loads, local memory, global and flat memory, raw buffers.

use unhang_isa::{Field, Format, Instruction};

use crate::wave::{LANES, Wave};
use crate::{FaultKind, Memory};

/// How a value changes what is in memory.
type Update = fn(u32, u32, u32) -> u32;

/// What a memory instruction does.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Cache control: nothing is cached here.
    Nothing,
    ScalarLoad {
        count: u8,
    },
    Clock,
    /// A load of `count` words, or of a part of one.
    Load {
        count: u8,
        part: Part,
    },
    Store {
        count: u8,
        part: Part,
    },
    /// Two loads or stores through one address, `stride` bytes apart by offset.
    LoadTwo {
        count: u8,
        stride: u32,
    },
    StoreTwo {
        count: u8,
        stride: u32,
    },
    Atomic {
        update: Update,
        returns: bool,
        compare: bool,
    },
    /// Lanes exchange values; local memory is not touched.
    Swizzle,
    Permute {
        backward: bool,
    },
}

/// The part of a word that is loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Word,
    Byte {
        signed: bool,
    },
    Half {
        signed: bool,
    },
    /// Into or out of half a register, the other half left alone.
    InHalf {
        byte: bool,
        signed: bool,
        high: bool,
    },
}

impl Part {
    fn size(self) -> u32 {
        match self {
            Part::Word => 4,
            Part::Byte { .. } | Part::InHalf { byte: true, .. } => 1,
            Part::Half { .. } | Part::InHalf { .. } => 2,
        }
    }
}

/// The memory of a workgroup beside the registers.
pub(crate) struct Surroundings<'a> {
    pub memory: &'a Memory,
    pub local: &'a mut [u8],
}

impl Access {
    /// Finds what an instruction does.
    pub fn of(instruction: &Instruction) -> Option<Access> {
        let name = instruction.definition.mnemonic;
        match instruction.format() {
            Format::Smem => scalar_access(name),
            Format::Ds => local_access(name),
            Format::Flat | Format::Global | Format::Mubuf => {
                let rest = name.split_once('_')?.1;
                if name.starts_with("buffer_gl") {
                    return Some(Access::Nothing);
                }
                if instruction.format() == Format::Mubuf
                    && (instruction.bits(16, 1) == 1 || instruction.high_bits(23, 1) == 1)
                {
                    return None;
                }
                global_access(rest, instruction)
            }
            _ => None,
        }
    }
}

fn scalar_access(name: &str) -> Option<Access> {
    Some(match name {
        "s_load_dword" | "s_buffer_load_dword" => Access::ScalarLoad { count: 1 },
        "s_load_dwordx2" | "s_buffer_load_dwordx2" => Access::ScalarLoad { count: 2 },
        "s_load_dwordx4" | "s_buffer_load_dwordx4" => Access::ScalarLoad { count: 4 },
        "s_load_dwordx8" | "s_buffer_load_dwordx8" => Access::ScalarLoad { count: 8 },
        "s_load_dwordx16" | "s_buffer_load_dwordx16" => Access::ScalarLoad { count: 16 },
        "s_memtime" | "s_memrealtime" => Access::Clock,
        "s_dcache_inv" | "s_gl1_inv" | "s_dcache_wb" => Access::Nothing,
        _ => return None,
    })
}

fn update(name: &str) -> Option<Update> {
    Some(match name {
        "add" => |old, value, _| old.wrapping_add(value),
        "sub" => |old, value, _| old.wrapping_sub(value),
        "and" => |old, value, _| old & value,
        "or" => |old, value, _| old | value,
        "xor" => |old, value, _| old ^ value,
        "umin" => |old, value, _| old.min(value),
        "umax" => |old, value, _| old.max(value),
        "smin" => |old, value, _| (old as i32).min(value as i32) as u32,
        "smax" => |old, value, _| (old as i32).max(value as i32) as u32,
        "inc" => |old, value, _| if old >= value { 0 } else { old + 1 },
        "dec" => |old, value, _| if old == 0 || old > value { value } else { old - 1 },
        "swap" => |_, value, _| value,
        "fadd" => |old, value, _| (f32::from_bits(old) + f32::from_bits(value)).to_bits(),
        "fmin" => |old, value, _| f32::from_bits(old).min(f32::from_bits(value)).to_bits(),
        "fmax" => |old, value, _| f32::from_bits(old).max(f32::from_bits(value)).to_bits(),
        // The first value is new, the second is what must be there.
        "cmpswap" => |old, value, compare| if old == compare { value } else { old },
        _ => return None,
    })
}

fn parts(name: &str) -> Option<(u8, Part)> {
    Some(match name {
        "ubyte" => (1, Part::Byte { signed: false }),
        "sbyte" => (1, Part::Byte { signed: true }),
        "ushort" => (1, Part::Half { signed: false }),
        "sshort" => (1, Part::Half { signed: true }),
        "dword" => (1, Part::Word),
        "dwordx2" => (2, Part::Word),
        "dwordx3" => (3, Part::Word),
        "dwordx4" => (4, Part::Word),
        "byte" => (1, Part::Byte { signed: false }),
        "short" => (1, Part::Half { signed: false }),
        "byte_d16_hi" | "ubyte_d16_hi" => (1, Part::InHalf { byte: true, signed: false, high: true }),
        "short_d16_hi" => (1, Part::InHalf { byte: false, signed: false, high: true }),
        "ubyte_d16" => (1, Part::InHalf { byte: true, signed: false, high: false }),
        "sbyte_d16" => (1, Part::InHalf { byte: true, signed: true, high: false }),
        "sbyte_d16_hi" => (1, Part::InHalf { byte: true, signed: true, high: true }),
        "short_d16" => (1, Part::InHalf { byte: false, signed: false, high: false }),
        _ => return None,
    })
}

fn global_access(name: &str, instruction: &Instruction) -> Option<Access> {
    if let Some(rest) = name.strip_prefix("load_") {
        let (count, part) = parts(rest)?;
        return Some(Access::Load { count, part });
    }
    if let Some(rest) = name.strip_prefix("store_") {
        let (count, part) = parts(rest)?;
        return Some(Access::Store { count, part });
    }
    let rest = name.strip_prefix("atomic_")?;
    let returns = match instruction.format() {
        Format::Mubuf => instruction.bits(14, 1) == 1,
        _ => instruction.bits(16, 1) == 1,
    };
    Some(Access::Atomic { update: update(rest)?, returns, compare: rest == "cmpswap" })
}

fn local_access(name: &str) -> Option<Access> {
    let load = |count, part| Some(Access::Load { count, part });
    let store = |count, part| Some(Access::Store { count, part });
    match name {
        "ds_nop" => Some(Access::Nothing),
        "ds_read_b32" => load(1, Part::Word),
        "ds_read_b64" => load(2, Part::Word),
        "ds_read_b96" => load(3, Part::Word),
        "ds_read_b128" => load(4, Part::Word),
        "ds_read_u8" => load(1, Part::Byte { signed: false }),
        "ds_read_i8" => load(1, Part::Byte { signed: true }),
        "ds_read_u16" => load(1, Part::Half { signed: false }),
        "ds_read_i16" => load(1, Part::Half { signed: true }),
        "ds_read_u16_d16" => load(1, Part::InHalf { byte: false, signed: false, high: false }),
        "ds_read_u16_d16_hi" => load(1, Part::InHalf { byte: false, signed: false, high: true }),
        "ds_write_b32" => store(1, Part::Word),
        "ds_write_b64" => store(2, Part::Word),
        "ds_write_b96" => store(3, Part::Word),
        "ds_write_b128" => store(4, Part::Word),
        "ds_write_b8" => store(1, Part::Byte { signed: false }),
        "ds_write_b16" => store(1, Part::Half { signed: false }),
        "ds_write_b16_d16_hi" => store(1, Part::InHalf { byte: false, signed: false, high: true }),
        "ds_read2_b32" => Some(Access::LoadTwo { count: 1, stride: 4 }),
        "ds_read2_b64" => Some(Access::LoadTwo { count: 2, stride: 8 }),
        "ds_read2st64_b32" => Some(Access::LoadTwo { count: 1, stride: 256 }),
        "ds_read2st64_b64" => Some(Access::LoadTwo { count: 2, stride: 512 }),
        "ds_write2_b32" => Some(Access::StoreTwo { count: 1, stride: 4 }),
        "ds_write2_b64" => Some(Access::StoreTwo { count: 2, stride: 8 }),
        "ds_write2st64_b32" => Some(Access::StoreTwo { count: 1, stride: 256 }),
        "ds_write2st64_b64" => Some(Access::StoreTwo { count: 2, stride: 512 }),
        "ds_swizzle_b32" => Some(Access::Swizzle),
        "ds_permute_b32" => Some(Access::Permute { backward: false }),
        "ds_bpermute_b32" => Some(Access::Permute { backward: true }),
        _ => {
            let returns = name.contains("_rtn_");
            let operation = match name.strip_prefix("ds_")?.split_once('_')? {
                ("min", rest) if rest.ends_with("i32") => "smin",
                ("max", rest) if rest.ends_with("i32") => "smax",
                ("min", rest) if rest.ends_with("u32") => "umin",
                ("max", rest) if rest.ends_with("u32") => "umax",
                ("min", rest) if rest.ends_with("f32") => "fmin",
                ("max", rest) if rest.ends_with("f32") => "fmax",
                ("add", rest) if rest.ends_with("f32") => "fadd",
                ("wrxchg", rest) if rest.ends_with("b32") => "swap",
                (name @ ("add" | "sub" | "inc" | "dec" | "and" | "or" | "xor"), rest)
                    if rest.ends_with("32") && !rest.contains("src2") =>
                {
                    name
                }
                _ => return None,
            };
            Some(Access::Atomic { update: update(operation)?, returns, compare: false })
        }
    }
}

impl Surroundings<'_> {
    fn local_fault(&self, address: u32, size: u32) -> FaultKind {
        FaultKind::Local { address, size, limit: self.local.len() as u32 }
    }

    fn load(&self, target: Target, size: u32) -> Result<u32, FaultKind> {
        match target {
            Target::Global(address) => self.memory.load(address, size),
            Target::Local(address) => {
                let start = address as usize;
                let bytes =
                    self.local.get(start..start + size as usize).ok_or_else(|| self.local_fault(address, size))?;
                Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | byte as u32))
            }
        }
    }

    fn store(&mut self, target: Target, size: u32, value: u32) -> Result<(), FaultKind> {
        match target {
            Target::Global(address) => self.memory.store(address, size, value),
            Target::Local(address) => {
                let fault = self.local_fault(address, size);
                let start = address as usize;
                let bytes = self.local.get_mut(start..start + size as usize).ok_or(fault)?;
                bytes.copy_from_slice(&value.to_le_bytes()[..size as usize]);
                Ok(())
            }
        }
    }

    fn update(&mut self, target: Target, update: impl Fn(u32) -> u32) -> Result<u32, FaultKind> {
        match target {
            Target::Global(address) => self.memory.update(address, update),
            Target::Local(_) => {
                let old = self.load(target, 4)?;
                self.store(target, 4, update(old))?;
                Ok(old)
            }
        }
    }
}

/// An address in one of the memories.
#[derive(Clone, Copy, Debug)]
enum Target {
    Global(u64),
    Local(u32),
}

impl Target {
    fn plus(self, bytes: u32) -> Target {
        match self {
            Target::Global(address) => Target::Global(address.wrapping_add(bytes as u64)),
            Target::Local(address) => Target::Local(address.wrapping_add(bytes)),
        }
    }
}

/// The high half of addresses in the local aperture, as `src_shared_base` gives it.
const LOCAL_APERTURE: u64 = 0x1_0000;

impl Wave {
    /// Executes a memory instruction.
    pub fn run_memory(
        &mut self,
        instruction: &Instruction,
        access: Access,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
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
            Access::Load { count, part } => {
                for lane in lanes {
                    let target = self.target(instruction, lane, around)?;
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
                    let target = self.target(instruction, lane, around)?;
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
            Access::Atomic { update, returns, compare } => {
                for lane in lanes {
                    let target = self.target(instruction, lane, around)?;
                    let value = self.vector_lane(data, lane);
                    let expected = if compare { self.vector_lane(data + 1, lane) } else { 0 };
                    let old = around.update(target, |old| update(old, value, expected))?;
                    if returns {
                        self.set_vector_lane(destination, lane, old);
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

    fn scalar_load(
        &mut self,
        instruction: &Instruction,
        count: u8,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        let base = instruction.bits(0, 6) as u8 * 2;
        let offset = (((instruction.second_word() << 11) as i32) >> 11) as i64;
        let register = self.scalar(instruction.high_bits(25, 7) as u8) as u64;
        let buffer = instruction.definition.mnemonic.starts_with("s_buffer");
        let start = if buffer { self.scalar64(base) & 0xffff_ffff_ffff } else { self.scalar64(base) };
        let relative = (offset as u64).wrapping_add(register);
        let address = start.wrapping_add(relative) & !3;
        let destination = Wave::destination(instruction, Field::Destination).unwrap_or(125);
        for word in 0..count {
            let limit = if buffer { self.scalar(base + 2) as u64 } else { u64::MAX };
            let inside = relative.wrapping_add(word as u64 * 4 + 4) <= limit;
            let value = if inside { around.memory.load(address + word as u64 * 4, 4)? } else { 0 };
            if destination != 125 {
                self.set_scalar((destination + word) & 127, value);
            }
        }
        Ok(())
    }

    /// Where a lane's access goes.
    fn target(&self, instruction: &Instruction, lane: usize, around: &Surroundings<'_>) -> Result<Target, FaultKind> {
        let address = instruction.high_bits(0, 8) as usize;
        let low = self.vector_lane(address, lane);
        match instruction.format() {
            Format::Ds => Ok(Target::Local(low.wrapping_add(instruction.bits(0, 16)))),
            Format::Mubuf => self.buffer_target(instruction, lane),
            _ => {
                let offset = instruction.flat_offset() as i64 as u64;
                let scalar = instruction.high_bits(16, 7) as u8;
                let pair = low as u64 | (self.vector_lane(address + 1, lane) as u64) << 32;
                let base = match (instruction.format(), scalar) {
                    (Format::Global, 0x7d | 0x7f) | (Format::Flat, _) => pair,
                    _ => self.scalar64(scalar).wrapping_add(low as u64),
                };
                let full = base.wrapping_add(offset);
                if instruction.format() == Format::Flat && full >> 32 == LOCAL_APERTURE {
                    let _ = around;
                    return Ok(Target::Local(full as u32));
                }
                Ok(Target::Global(full))
            }
        }
    }

    /// Raw buffers: no stride, no swizzle.
    fn buffer_target(&self, instruction: &Instruction, lane: usize) -> Result<Target, FaultKind> {
        let resource = (instruction.high_bits(16, 5) * 4) as u8;
        let base = self.scalar64(resource) & 0xffff_ffff_ffff;
        let stride = self.scalar(resource + 1) >> 16 & 0x3fff;
        if stride != 0 || instruction.bits(13, 1) == 1 {
            return Err(FaultKind::Unsupported);
        }
        let vector =
            if instruction.bits(12, 1) == 1 { self.vector_lane(instruction.high_bits(0, 8) as usize, lane) } else { 0 };
        let scalar = match unhang_isa::Source::from_field(instruction.high_bits(24, 8) as u16, 0) {
            Some(source) => self.uniform(source, crate::wave::Type::Bits32, false) as u32,
            None => return Err(FaultKind::Unsupported),
        };
        let offset = vector as u64 + scalar as u64 + instruction.bits(0, 12) as u64;
        Ok(Target::Global(base.wrapping_add(offset)))
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

fn widen(value: u32, part: Part, old: u32) -> u32 {
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
