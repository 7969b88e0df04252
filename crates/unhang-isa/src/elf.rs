//! Code objects: the ELF files that hold machine code for one chip.
//!
//! Read with care, since they come from anywhere: every offset and count is checked, nothing is copied.

use std::sync::OnceLock;

use thiserror::Error;

use crate::Chip;
use crate::kernel_limits::workgroup_limits;
use crate::opcode::{S_CODE_END, S_NOP};

/// Why bytes are not a code object that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElfError {
    /// No ELF magic.
    #[error("not an ELF file")]
    NotElf,
    /// Not a 64-bit little-endian ELF for the AMD GPU machine.
    #[error("an ELF file, but not an AMD GPU code object (machine {machine}, class {class})")]
    NotGpu {
        /// `e_machine`.
        machine: u16,
        /// 1 for 32 bits, 2 for 64.
        class: u8,
    },
    /// A table or section is outside of the file.
    #[error("the ELF file is damaged: {what} is outside of its {size} bytes")]
    OutOfBounds {
        /// What is outside.
        what: &'static str,
        /// The length of the file.
        size: usize,
    },
}

/// `EM_AMDGPU`.
pub const MACHINE_AMDGPU: u16 = 224;

/// The padding of the ELF identification, which readers ignore: `unhang`, then an `EF_AMDGPU_MACH` number.
const MARK: std::ops::Range<usize> = 9..16;
const MARK_NAME: &[u8] = b"unhang";

/// Marks an object whose flags name another chip than the one that its code was compiled for.
pub fn mark(object: &mut [u8], chip: Chip) {
    if let Some(place) = object.get_mut(MARK) {
        place[..MARK_NAME.len()].copy_from_slice(MARK_NAME);
        place[MARK_NAME.len()] = chip.machine();
    }
}

/// A code object.
#[derive(Clone, Debug)]
pub struct CodeObject<'a> {
    bytes: &'a [u8],
    /// The ELF flags: the chip in the low byte, then xnack and sramecc.
    pub flags: u32,
    /// The functions: kernels and their callees.
    pub functions: Vec<Function<'a>>,
    /// The note with the metadata (msgpack), if there is one.
    pub metadata: Option<&'a [u8]>,
    /// Every kernel descriptor, including those of kernels that share their code with another one.
    pub(crate) descriptors: Vec<KernelDescriptor>,
    /// The mode of functions that are called.
    called: Mode,
    /// The most lanes of workgroups by kernel name, read on demand.
    workgroup_limits: OnceLock<Vec<(Box<str>, u32)>>,
}

/// A segment that a loader copies into memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The virtual address.
    pub address: u64,
    /// Bytes in memory; what the file lacks is zero.
    pub memory_size: u64,
    /// Bytes of the file.
    pub contents: &'a [u8],
}

/// A function in a code object.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// The name in the symbol table.
    pub name: &'a str,
    /// The virtual address.
    pub address: u64,
    /// Its bytes.
    pub code: &'a [u8],
    /// Where the bytes lie in the file.
    pub file_offset: usize,
    /// The descriptor, if it is a kernel.
    pub descriptor: Option<KernelDescriptor>,
}

/// The 64 bytes from which the command processor starts a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDescriptor {
    /// Bytes of local data share that it always takes.
    pub group_segment_size: u32,
    /// Bytes of scratch a lane.
    pub private_segment_size: u32,
    /// Bytes of arguments.
    pub kernarg_size: u32,
    /// From the descriptor to the first instruction.
    pub entry_offset: i64,
    /// `COMPUTE_PGM_RSRC3`.
    pub resource3: u32,
    /// `COMPUTE_PGM_RSRC1`: register counts, float modes, WGP mode.
    pub resource1: u32,
    /// `COMPUTE_PGM_RSRC2`: which values are set up in registers.
    pub resource2: u32,
    /// `KERNEL_CODE_PROPERTIES`.
    pub properties: u16,
    /// Where the descriptor is in the file.
    pub file_offset: usize,
    /// Its virtual address.
    pub address: u64,
}

impl KernelDescriptor {
    /// The length of a descriptor.
    pub const SIZE: usize = 64;
    /// Where `kernel_code_entry_byte_offset` is in it.
    pub(crate) const ENTRY_OFFSET: usize = 16;
    /// Where `COMPUTE_PGM_RSRC1` is in it.
    pub(crate) const RESOURCE1: usize = 48;
    /// The bit of `COMPUTE_PGM_RSRC1` for workgroup-processor mode.
    pub(crate) const WORKGROUP_PROCESSOR_MODE: u32 = 1 << 29;

    /// Reads a descriptor; `None` if fewer than its 64 bytes are there.
    pub fn parse(bytes: &[u8], file_offset: usize, address: u64) -> Option<KernelDescriptor> {
        Some(KernelDescriptor {
            group_segment_size: u32_at(bytes, 0)?,
            private_segment_size: u32_at(bytes, 4)?,
            kernarg_size: u32_at(bytes, 8)?,
            entry_offset: u64_at(bytes, KernelDescriptor::ENTRY_OFFSET)? as i64,
            resource3: u32_at(bytes, 44)?,
            resource1: u32_at(bytes, KernelDescriptor::RESOURCE1)?,
            resource2: u32_at(bytes, 52)?,
            properties: u16_at(bytes, 56)?,
            file_offset,
            address,
        })
    }

    /// The address of the kernel's first instruction.
    pub fn entry_address(&self) -> u64 {
        self.address.wrapping_add(self.entry_offset as u64)
    }

    /// Whether waves have 64 lanes and not 32.
    pub fn wave64(&self) -> bool {
        self.properties & (1 << 10) == 0
    }

    /// Whether workgroups span both compute units of a workgroup processor; else one unit.
    pub fn workgroup_processor_mode(&self) -> bool {
        self.resource1 & KernelDescriptor::WORKGROUP_PROCESSOR_MODE != 0
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[derive(Clone, Copy)]
pub(crate) struct Section {
    kind: u32,
    address: u64,
    pub offset: u64,
    size: u64,
    link: u32,
}

impl Section {
    pub(crate) fn is_symbol_table(&self) -> bool {
        matches!(self.kind, SYMBOL_TABLE | DYNAMIC_SYMBOL_TABLE)
    }

    pub(crate) fn is_relocations(&self) -> bool {
        self.kind == RELOCATIONS
    }
}

/// How the code of a function is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Whether workgroups span both compute units of a workgroup processor.
    pub workgroup_processor: bool,
    /// Whether waves have 64 lanes.
    pub wave64: bool,
}

const SYMBOL_TABLE: u32 = 2;
const RELOCATIONS: u32 = 4;
const NOTE: u32 = 7;
const NO_BITS: u32 = 8;
const DYNAMIC_SYMBOL_TABLE: u32 = 11;

impl<'a> CodeObject<'a> {
    /// Reads a code object.
    pub fn parse(bytes: &'a [u8]) -> Result<CodeObject<'a>, ElfError> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let outside = |what| ElfError::OutOfBounds { what, size: bytes.len() };
        let class = *bytes.get(4).ok_or(outside("the header"))?;
        let machine = u16_at(bytes, 18).ok_or(outside("the header"))?;
        if class != 2 || bytes.get(5) != Some(&1) || machine != MACHINE_AMDGPU {
            return Err(ElfError::NotGpu { machine, class });
        }
        let flags = u32_at(bytes, 48).ok_or(outside("the header"))?;
        let sections = section_headers(bytes).ok_or(outside("the section table"))?;
        let called = Mode { workgroup_processor: false, wave64: false };
        let mut object = CodeObject {
            bytes,
            flags,
            functions: Vec::new(),
            metadata: None,
            descriptors: Vec::new(),
            called,
            workgroup_limits: OnceLock::new(),
        };
        // The full symbol table names local functions too; without it (stripped) the dynamic one has the kernels.
        let symbols = [SYMBOL_TABLE, DYNAMIC_SYMBOL_TABLE]
            .into_iter()
            .find_map(|kind| sections.iter().find(|section| section.kind == kind));
        if let Some(symbols) = symbols {
            object.read_symbols(&sections, symbols).ok_or(outside("the symbol table"))?;
        }
        let descriptors = || object.functions.iter().filter_map(|function| function.descriptor);
        object.called = Mode {
            workgroup_processor: descriptors().any(|descriptor| descriptor.workgroup_processor_mode()),
            wave64: descriptors().count() > 0 && descriptors().all(|descriptor| descriptor.wave64()),
        };
        for section in sections.iter().filter(|section| section.kind == NOTE) {
            if let Some(metadata) = object.section_bytes(section).and_then(find_metadata) {
                object.metadata = Some(metadata);
            }
        }
        Ok(object)
    }

    /// The chip that a code object's header names, without reading the rest; `None` if it is not of the gfx10 family,
    /// or no code object.
    pub fn chip_of(bytes: &[u8]) -> Option<Chip> {
        let gpu = bytes.starts_with(b"\x7fELF\x02\x01") && u16_at(bytes, 18)? == MACHINE_AMDGPU;
        Chip::from_machine(u32_at(bytes, 48).filter(|_| gpu)? as u8)
    }

    /// The true chip of a retagged object's code, if [`mark`] recorded it.
    pub fn marked_chip(bytes: &[u8]) -> Option<Chip> {
        let (name, machine) = bytes.get(MARK)?.split_at_checked(MARK_NAME.len())?;
        Chip::from_machine(*machine.first()?).filter(|_| name == MARK_NAME)
    }

    /// The chip for which the code was compiled; `None` if it is not of the gfx10 family.
    pub fn chip(&self) -> Option<Chip> {
        Chip::from_machine(self.flags as u8)
    }

    /// The mode in which a function runs. Callees run in their callers' mode; if those differ, the mode in which more
    /// can go wrong is used.
    pub fn mode_of(&self, function: &Function<'_>) -> Mode {
        function.descriptor.map_or(self.called, |descriptor| Mode {
            workgroup_processor: descriptor.workgroup_processor_mode(),
            wave64: descriptor.wave64(),
        })
    }

    /// The most lanes of a kernel's workgroup, from the metadata; 1024 if it does not say.
    pub(crate) fn workgroup_limit(&self, kernel: &str) -> u32 {
        const MOST: u32 = 1024;
        let limits = self.workgroup_limits.get_or_init(|| self.metadata.map(workgroup_limits).unwrap_or_default());
        let place = limits.binary_search_by_key(&kernel, |(kernel, _)| kernel);
        place.map_or(MOST, |place| limits[place].1.clamp(1, MOST))
    }

    /// The whole file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What a loader copies into memory; what is outside of the file is left out.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        const LOAD: u32 = 1;
        let bytes = self.bytes;
        let start = u64_at(bytes, 32).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let size = u16_at(bytes, 54).unwrap_or(0).max(56) as usize;
        let count = u16_at(bytes, 56).unwrap_or(0) as usize;
        (0..count).filter_map(move |number| {
            let entry = bytes.get(start.checked_add(number * size)?..)?.get(..56)?;
            if u32_at(entry, 0)? != LOAD {
                return None;
            }
            let offset = usize::try_from(u64_at(entry, 8)?).ok()?;
            let length = usize::try_from(u64_at(entry, 32)?).ok()?;
            let contents = bytes.get(offset..offset.checked_add(length)?)?;
            Some(Segment { address: u64_at(entry, 16)?, memory_size: u64_at(entry, 40)?, contents })
        })
    }

    pub(crate) fn section_bytes(&self, section: &Section) -> Option<&'a [u8]> {
        if section.kind == NO_BITS {
            return Some(&[]);
        }
        let start = usize::try_from(section.offset).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(section.size).ok()?)?)
    }

    fn read_symbols(&mut self, sections: &[Section], symbols: &Section) -> Option<()> {
        let table = self.section_bytes(symbols)?;
        let names = self.section_bytes(sections.get(symbols.link as usize)?)?;
        let mut descriptors: Vec<(&'a str, KernelDescriptor)> = Vec::new();
        let ends = ends_of_functions(sections, table);
        for entry in table.chunks_exact(24) {
            let kind = entry[4] & 15;
            let place = u16_at(entry, 6)? as usize;
            if !is_in_a_section(place) || !matches!(kind, OBJECT | FUNCTION | OLD_KERNEL) {
                continue;
            }
            let Some(name) = string_at(names, u32_at(entry, 0)? as usize) else { continue };
            let Some(section) = sections.get(place) else { continue };
            let (address, size) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
            let Some(within) = address.checked_sub(section.address).and_then(|at| usize::try_from(at).ok()) else {
                continue;
            };
            let Some(contents) = self.section_bytes(section) else { continue };
            let Ok(mut size) = usize::try_from(size) else { continue };
            if kind == FUNCTION && size == 0 {
                size = size_up_to_the_next(&ends, place, address, within, contents);
            }
            let Some(bytes) = within.checked_add(size).and_then(|end| contents.get(within..end)) else { continue };
            let file_offset = section.offset as usize + within;
            if let (OBJECT, Some(kernel)) = (kind, name.strip_suffix(".kd")) {
                if let Some(descriptor) = KernelDescriptor::parse(bytes, file_offset, address) {
                    descriptors.push((kernel, descriptor));
                }
            } else if kind == FUNCTION && !bytes.is_empty() {
                self.functions.push(Function { name, address, code: bytes, file_offset, descriptor: None });
            }
        }
        descriptors.sort_by_key(|(name, _)| *name);
        for function in &mut self.functions {
            if let Ok(place) = descriptors.binary_search_by_key(&function.name, |(name, _)| name) {
                function.descriptor = Some(descriptors[place].1);
            }
        }
        self.descriptors = descriptors.into_iter().map(|(_, descriptor)| descriptor).collect();
        // The same code is examined once under all of its names; a hostile table could name it a million times.
        self.functions.sort_by_key(|function| (function.address, std::cmp::Reverse(function.code.len())));
        let mut end = 0;
        self.functions.retain(|function| {
            let apart = function.address >= end;
            if apart {
                end = function.address.saturating_add(function.code.len() as u64);
            }
            apart
        });
        Some(())
    }
}

/// Kinds of symbols: `STT_OBJECT`, `STT_FUNC`, and `STT_AMDGPU_HSA_KERNEL` of the first code objects.
const OBJECT: u8 = 1;
pub(crate) const FUNCTION: u8 = 2;
const OLD_KERNEL: u8 = 10;

/// 0 is undefined; from 0xff00 on the numbers are not sections.
fn is_in_a_section(place: usize) -> bool {
    place != 0 && place < 0xff00
}

/// The starts of functions and data, by section and address, if a function lacks its size; otherwise nothing.
fn ends_of_functions(sections: &[Section], table: &[u8]) -> Vec<(usize, u64)> {
    let symbols = || {
        table.chunks_exact(24).filter_map(|entry| {
            let (kind, place) = (entry[4] & 15, u16_at(entry, 6)? as usize);
            let known = is_in_a_section(place) && place < sections.len() && matches!(kind, OBJECT | FUNCTION);
            known.then_some((kind, place, u64_at(entry, 8)?, u64_at(entry, 16)?))
        })
    };
    if !symbols().any(|(kind, _, _, size)| kind == FUNCTION && size == 0) {
        return Vec::new();
    }
    let mut ends: Vec<(usize, u64)> = symbols().map(|(_, place, address, _)| (place, address)).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The length of a function whose symbol has none, as hand-written assembly leaves it (all of Tensile's kernels): up to
/// the next function or data of its section, or to the section's end, without the padding: linkers pad with zeros,
/// assemblers with `s_nop`, compilers with `s_code_end`.
fn size_up_to_the_next(ends: &[(usize, u64)], place: usize, address: u64, within: usize, contents: &[u8]) -> usize {
    let next = ends.partition_point(|&end| end <= (place, address));
    let limit = ends.get(next).filter(|end| end.0 == place).and_then(|end| usize::try_from(end.1 - address).ok());
    let rest = contents.get(within..).unwrap_or_default();
    let code = &rest[..limit.unwrap_or(usize::MAX).min(rest.len()) & !3];
    let padding = [0, S_NOP.with_immediate(0), S_CODE_END.with_immediate(0)].map(u32::to_le_bytes);
    code.chunks_exact(4).rev().skip_while(|word| padding.iter().any(|it| it == word)).count() * 4
}

pub(crate) fn section_headers(bytes: &[u8]) -> Option<Vec<Section>> {
    let start = usize::try_from(u64_at(bytes, 40)?).ok()?;
    let entry_size = u16_at(bytes, 58)? as usize;
    let count = u16_at(bytes, 60)? as usize;
    if count == 0 {
        return Some(Vec::new());
    }
    if entry_size < 64 {
        return None;
    }
    let table = bytes.get(start..start.checked_add(entry_size * count)?)?;
    table
        .chunks_exact(entry_size)
        .map(|entry| {
            Some(Section {
                kind: u32_at(entry, 4)?,
                address: u64_at(entry, 16)?,
                offset: u64_at(entry, 24)?,
                size: u64_at(entry, 32)?,
                link: u32_at(entry, 40)?,
            })
        })
        .collect()
}

fn string_at(table: &[u8], at: usize) -> Option<&str> {
    let rest = table.get(at..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|&byte| byte == 0)?]).ok()
}

/// The descriptor of the note of type 32 (`NT_AMDGPU_METADATA`) by `AMDGPU`.
fn find_metadata(mut notes: &[u8]) -> Option<&[u8]> {
    while notes.len() >= 12 {
        let name_size = u32_at(notes, 0)? as usize;
        let size = u32_at(notes, 4)? as usize;
        let kind = u32_at(notes, 8)?;
        let name_end = 12usize.checked_add(name_size)?;
        let start = name_end.checked_next_multiple_of(4)?;
        let end = start.checked_add(size)?;
        let contents = notes.get(start..end)?;
        if kind == 32 && notes.get(12..name_end)?.starts_with(b"AMDGPU") {
            return Some(contents);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}
