//! Memory instructions, by name.

use unhang_isa::{Format, Instruction};

use crate::buffer_format::{Packing, Typed};

/// Which memory an instruction touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The local data share.
    Local,
    /// Global memory, by vector instructions.
    Global,
    /// A lane's own memory, addressed as global memory.
    Private,
    /// Global memory, by scalar loads.
    Scalar,
}

/// How an atomic changes memory: from the old value, the new one, and one to compare with.
pub(crate) type Update = fn(u64, u64, u64) -> u64;

/// A memory instruction.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// Cache control, which has no effect here.
    Nothing,
    ScalarLoad {
        count: u8,
    },
    Clock,
    /// A load of `count` words, or of a part of one.
    Load {
        count: u8,
        part: WordPart,
    },
    Store {
        count: u8,
        part: WordPart,
    },
    /// A word, or a part of one, from a buffer to local memory, where the lanes' words follow each other.
    LoadToLocal {
        part: WordPart,
    },
    /// An element of a buffer in a data format.
    TypedLoad(Typed),
    /// Its first component, to local memory.
    TypedLoadToLocal(Typed),
    TypedStore(Typed),
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
        /// 64 bits, not 32.
        wide: bool,
        returns: bool,
        compare: Comparison,
    },
    /// Lanes exchange values; local memory is not touched.
    Swizzle,
    Permute {
        backward: bool,
    },
}

/// Where the comparison value of an atomic instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    None,
    /// After the new value.
    BehindData,
    /// In the first data register; the new value is in the second.
    FirstData,
}

/// The part of a word that is loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordPart {
    Word,
    Byte {
        signed: bool,
    },
    Half {
        signed: bool,
    },
    /// Into or out of half a register; the other half is unchanged.
    InHalf {
        byte: bool,
        signed: bool,
        high: bool,
    },
}

impl WordPart {
    pub(crate) fn size(self) -> u32 {
        match self {
            WordPart::Word => 4,
            WordPart::Byte { .. } | WordPart::InHalf { byte: true, .. } => 1,
            WordPart::Half { .. } | WordPart::InHalf { .. } => 2,
        }
    }
}

impl Access {
    /// What an instruction does to memory.
    pub(crate) fn of(instruction: &Instruction) -> Option<Access> {
        let name = instruction.definition.mnemonic;
        match instruction.format() {
            Format::Smem => scalar_access(name),
            Format::Ds => local_access(name),
            Format::Flat | Format::Global | Format::Scratch | Format::Mubuf => {
                let rest = name.split_once('_')?.1;
                if name.starts_with("buffer_gl") {
                    return Some(Access::Nothing);
                }
                if instruction.format() == Format::Mubuf {
                    return buffer_access(rest, instruction);
                }
                global_access(rest, instruction)
            }
            Format::Mtbuf => buffer_access(name.split_once('_')?.1, instruction),
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

/// The effect of an atomic instruction on 32 or 64 bits.
fn update(name: &str, wide: bool) -> Option<Update> {
    macro_rules! by_width {
        (|$old:ident: $narrow:ty | $wide:ty, $value:ident, $compare:ident| $body:expr) => {
            if wide {
                |old, value, compare| {
                    let ($old, $value, $compare) = (old as $wide, value as $wide, compare as $wide);
                    let _ = ($old, $value, $compare);
                    ($body) as u64
                }
            } else {
                |old, value, compare| {
                    let ($old, $value, $compare) =
                        (old as u32 as $narrow, value as u32 as $narrow, compare as u32 as $narrow);
                    let _ = ($old, $value, $compare);
                    ($body) as u32 as u64
                }
            }
        };
    }
    macro_rules! float {
        (|$old:ident, $value:ident, $compare:ident| $body:expr) => {
            if wide {
                |old, value, compare| {
                    let [$old, $value, $compare] = [old, value, compare].map(f64::from_bits);
                    let _ = ($old, $value, $compare);
                    f64::to_bits($body)
                }
            } else {
                |old, value, compare| {
                    let [$old, $value, $compare] = [old, value, compare].map(|bits| f32::from_bits(bits as u32));
                    let _ = ($old, $value, $compare);
                    f32::to_bits($body) as u64
                }
            }
        };
    }
    Some(match name {
        "add" => by_width!(|old: u32| u64, value, _compare | old.wrapping_add(value)),
        "sub" => by_width!(|old: u32| u64, value, _compare | old.wrapping_sub(value)),
        "rsub" => by_width!(|old: u32| u64, value, _compare | value.wrapping_sub(old)),
        "csub" => by_width!(|old: u32| u64, value, _compare | old.saturating_sub(value)),
        "and" => by_width!(|old: u32| u64, value, _compare | old & value),
        "or" => by_width!(|old: u32| u64, value, _compare | old | value),
        "xor" => by_width!(|old: u32| u64, value, _compare | old ^ value),
        "umin" => by_width!(|old: u32| u64, value, _compare | old.min(value)),
        "umax" => by_width!(|old: u32| u64, value, _compare | old.max(value)),
        "smin" => by_width!(|old: i32| i64, value, _compare | old.min(value)),
        "smax" => by_width!(|old: i32| i64, value, _compare | old.max(value)),
        "inc" => by_width!(|old: u32| u64, value, _compare | if old >= value { 0 } else { old + 1 }),
        "dec" => by_width!(|old: u32| u64, value, _compare | if old == 0 || old > value { value } else { old - 1 }),
        "swap" => by_width!(|_old: u32| u64, value, _compare | value),
        "cmpswap" => by_width!(|old: u32| u64, value, compare | if old == compare { value } else { old }),
        "fadd" => float!(|old, value, _compare| old + value),
        "fmin" => float!(|old, value, _compare| old.min(value)),
        "fmax" => float!(|old, value, _compare| old.max(value)),
        "fcmpswap" => float!(|old, value, compare| if old == compare { value } else { old }),
        _ => return None,
    })
}

fn parts(name: &str) -> Option<(u8, WordPart)> {
    Some(match name {
        "ubyte" => (1, WordPart::Byte { signed: false }),
        "sbyte" => (1, WordPart::Byte { signed: true }),
        "ushort" => (1, WordPart::Half { signed: false }),
        "sshort" => (1, WordPart::Half { signed: true }),
        "dword" => (1, WordPart::Word),
        "dwordx2" => (2, WordPart::Word),
        "dwordx3" => (3, WordPart::Word),
        "dwordx4" => (4, WordPart::Word),
        "byte" => (1, WordPart::Byte { signed: false }),
        "short" => (1, WordPart::Half { signed: false }),
        "byte_d16_hi" | "ubyte_d16_hi" => (1, WordPart::InHalf { byte: true, signed: false, high: true }),
        "short_d16_hi" => (1, WordPart::InHalf { byte: false, signed: false, high: true }),
        "ubyte_d16" => (1, WordPart::InHalf { byte: true, signed: false, high: false }),
        "sbyte_d16" => (1, WordPart::InHalf { byte: true, signed: true, high: false }),
        "sbyte_d16_hi" => (1, WordPart::InHalf { byte: true, signed: true, high: true }),
        "short_d16" => (1, WordPart::InHalf { byte: false, signed: false, high: false }),
        _ => return None,
    })
}

/// An access to a buffer. TFE, which requests a word about the residency of pages, is not supported.
fn buffer_access(name: &str, instruction: &Instruction) -> Option<Access> {
    if instruction.high_bits(23, 1) == 1 {
        return None;
    }
    let typed = instruction.format() == Format::Mtbuf;
    let to_local = !typed && instruction.bits(16, 1) == 1;
    let format = typed.then(|| instruction.bits(19, 7) as u8);
    let access = match (name.strip_prefix("load_format_"), name.strip_prefix("store_format_")) {
        (Some(rest), _) => Access::TypedLoad(Typed::named(rest, format)?),
        (_, Some(rest)) => Access::TypedStore(Typed::named(rest, format)?),
        _ => global_access(name, instruction)?,
    };
    match access {
        Access::Load { count: 1, part } if to_local && !matches!(part, WordPart::InHalf { .. }) => {
            Some(Access::LoadToLocal { part })
        }
        Access::TypedLoad(typed @ Typed { components: 1, packing: Packing::Words, .. }) if to_local => {
            Some(Access::TypedLoadToLocal(typed))
        }
        _ if to_local => None,
        access => Some(access),
    }
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
    let (rest, wide) = rest.strip_suffix("_x2").map_or((rest, false), |rest| (rest, true));
    let compare = if rest.ends_with("cmpswap") { Comparison::BehindData } else { Comparison::None };
    Some(Access::Atomic { update: update(rest, wide)?, wide, returns, compare })
}

fn local_access(name: &str) -> Option<Access> {
    let load = |count, part| Some(Access::Load { count, part });
    let store = |count, part| Some(Access::Store { count, part });
    match name {
        "ds_nop" => Some(Access::Nothing),
        "ds_read_b32" => load(1, WordPart::Word),
        "ds_read_b64" => load(2, WordPart::Word),
        "ds_read_b96" => load(3, WordPart::Word),
        "ds_read_b128" => load(4, WordPart::Word),
        "ds_read_u8" => load(1, WordPart::Byte { signed: false }),
        "ds_read_i8" => load(1, WordPart::Byte { signed: true }),
        "ds_read_u16" => load(1, WordPart::Half { signed: false }),
        "ds_read_i16" => load(1, WordPart::Half { signed: true }),
        "ds_read_u8_d16" => load(1, WordPart::InHalf { byte: true, signed: false, high: false }),
        "ds_read_u8_d16_hi" => load(1, WordPart::InHalf { byte: true, signed: false, high: true }),
        "ds_read_i8_d16" => load(1, WordPart::InHalf { byte: true, signed: true, high: false }),
        "ds_read_i8_d16_hi" => load(1, WordPart::InHalf { byte: true, signed: true, high: true }),
        "ds_read_u16_d16" => load(1, WordPart::InHalf { byte: false, signed: false, high: false }),
        "ds_read_u16_d16_hi" => load(1, WordPart::InHalf { byte: false, signed: false, high: true }),
        "ds_write_b32" => store(1, WordPart::Word),
        "ds_write_b64" => store(2, WordPart::Word),
        "ds_write_b96" => store(3, WordPart::Word),
        "ds_write_b128" => store(4, WordPart::Word),
        "ds_write_b8" => store(1, WordPart::Byte { signed: false }),
        "ds_write_b16" => store(1, WordPart::Half { signed: false }),
        "ds_write_b8_d16_hi" => store(1, WordPart::InHalf { byte: true, signed: false, high: true }),
        "ds_write_b16_d16_hi" => store(1, WordPart::InHalf { byte: false, signed: false, high: true }),
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
            let (operation, rest) = name.strip_prefix("ds_")?.split_once('_')?;
            let kind = rest.strip_prefix("rtn_").unwrap_or(rest);
            let wide = kind.ends_with("64");
            let (operation, compare) = match (operation, kind) {
                ("min", "i32" | "i64") => ("smin", Comparison::None),
                ("max", "i32" | "i64") => ("smax", Comparison::None),
                ("min", "u32" | "u64") => ("umin", Comparison::None),
                ("max", "u32" | "u64") => ("umax", Comparison::None),
                ("min", "f32" | "f64") => ("fmin", Comparison::None),
                ("max", "f32" | "f64") => ("fmax", Comparison::None),
                ("add", "f32") => ("fadd", Comparison::None),
                ("wrxchg", "b32" | "b64") => ("swap", Comparison::None),
                ("cmpst", "b32" | "b64") => ("cmpswap", Comparison::FirstData),
                ("cmpst", "f32" | "f64") => ("fcmpswap", Comparison::FirstData),
                ("add" | "sub" | "rsub" | "inc" | "dec", "u32" | "u64") => (operation, Comparison::None),
                ("and" | "or" | "xor", "b32" | "b64") => (operation, Comparison::None),
                _ => return None,
            };
            Some(Access::Atomic { update: update(operation, wide)?, wide, returns, compare })
        }
    }
}
