//! A code object with repaired functions: the changes put into a copy of the file.

use super::plan::{Change, FunctionPlan, ObjectRepair, Treatment};
use super::reason::Reason;
use crate::elf::{CodeObject, FUNCTION, KernelDescriptor, section_headers, u16_at, u32_at, u64_at};
use crate::opcode::S_CODE_END;

const LOAD: u32 = 1;
const PROGRAM_HEADER: u32 = 6;
const GNU_STACK: u32 = 0x6474_e551;
const PAGE: u64 = 4096;
/// Where the hardware can start a kernel.
const ENTRY_ALIGNMENT: usize = 256;
/// `s_code_end`: what stands behind code, since instructions are fetched before it is known that they are not reached.
const CODE_END: u32 = S_CODE_END.with_immediate(0);
/// `R_AMDGPU_RELATIVE64`
const RELATIVE64: u32 = 13;

/// Puts planned repairs into a copy of the object. The plans must be for its functions, in their order.
pub fn assemble(object: &CodeObject<'_>, mut plans: Vec<FunctionPlan>) -> ObjectRepair {
    let target = object.chip();
    let mut bytes = None;
    let moves = plans.iter().any(|plan| matches!(plan.change, Change::Layout(_)));
    if moves {
        match Rewriter::new(object).and_then(|rewriter| rewriter.append(&plans)) {
            Ok(appended) => bytes = Some(appended),
            Err(what) => plans.iter_mut().for_each(|plan| plan.leave(what)),
        }
    }
    let in_place = plans.iter().any(|plan| matches!(plan.change, Change::Code(_)));
    if bytes.is_none() && in_place {
        let mut copy = object.bytes().to_vec();
        put_code(&mut copy, object, &plans);
        bytes = Some(copy);
    }
    for (function, plan) in object.functions.iter().zip(&plans) {
        if let (Some(resource1), Some(descriptor)) = (plan.resource1, function.descriptor) {
            let copy = bytes.get_or_insert_with(|| object.bytes().to_vec());
            put(copy, descriptor.file_offset + KernelDescriptor::RESOURCE1, &resource1.to_le_bytes());
        }
    }
    ObjectRepair { target, bytes, functions: plans.into_iter().map(|plan| plan.report).collect() }
}

impl FunctionPlan {
    /// Gives up the move.
    fn leave(&mut self, what: &'static str) {
        if matches!(self.change, Change::Layout(_)) {
            self.change = Change::None;
            self.report.treatment = Treatment::Untouched;
            self.report.inserted = 0;
            self.report.after = self.report.before;
            self.report.reason = Some(Reason::NoSegment(what));
            self.report.mode_changed = false;
            self.resource1 = None;
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) {
        place.copy_from_slice(value);
    }
}

/// Puts functions that stay and were changed where they stand.
fn put_code(bytes: &mut [u8], object: &CodeObject<'_>, plans: &[FunctionPlan]) {
    for (function, plan) in object.functions.iter().zip(plans) {
        if let Change::Code(code) = &plan.change {
            put(bytes, function.file_offset, code);
        }
    }
}

/// A function that moves: from where, to where.
struct Move {
    from: u64,
    to: u64,
    size: u64,
}

struct Rewriter<'a> {
    object: &'a CodeObject<'a>,
    program_headers: usize,
    program_header_count: usize,
    section_headers: usize,
    section_count: usize,
    /// The end of memory as it was laid out.
    memory_end: u64,
    /// A program header that can become the new segment's: it stands behind every segment and means nothing to a GPU.
    spare: Option<usize>,
}

const PROGRAM_HEADER_SIZE: usize = 56;
const SECTION_HEADER_SIZE: usize = 64;

impl<'a> Rewriter<'a> {
    /// Looks at the tables of the file.
    fn new(object: &'a CodeObject<'a>) -> Result<Rewriter<'a>, &'static str> {
        let bytes = object.bytes();
        let number = |at| u64_at(bytes, at).and_then(|value| usize::try_from(value).ok());
        let count = |at| u16_at(bytes, at).map(usize::from);
        let headers = (|| Some((number(32)?, number(40)?, count(54)?, count(56)?, count(58)?, count(60)?)))();
        let Some((program_headers, section_headers, program_size, program_count, section_size, section_count)) =
            headers
        else {
            return Err("its header is cut off");
        };
        if program_size != PROGRAM_HEADER_SIZE || section_size != SECTION_HEADER_SIZE {
            return Err("its tables have entries of an unknown size");
        }
        // From 0xff00 on, numbers of sections mean something else.
        if section_count >= 0xfeff || program_count >= 0xfffe {
            return Err("its tables are full");
        }
        let mut rewriter = Rewriter {
            object,
            program_headers,
            program_header_count: program_count,
            section_headers,
            section_count,
            memory_end: 0,
            spare: None,
        };
        let mut loads = 0;
        for place in 0..program_count {
            let header = rewriter.program_header(place).ok_or("its program headers lie outside of it")?;
            match u32_at(header, 0) {
                Some(LOAD) => {
                    loads += 1;
                    rewriter.spare = None;
                    let end = u64_at(header, 16).zip(u64_at(header, 40)).and_then(|(at, size)| at.checked_add(size));
                    let end = end.ok_or("a segment ends past every address")?;
                    if end < rewriter.memory_end {
                        return Err("its segments are out of order");
                    }
                    rewriter.memory_end = end;
                }
                Some(GNU_STACK) => rewriter.spare = Some(place),
                _ => {}
            }
        }
        if loads == 0 {
            return Err("it has no segments; it was not linked");
        }
        if rewriter.memory_end > u64::MAX / 4 {
            return Err("its segments lie at the end of every address");
        }
        let end = section_headers.checked_add(section_count * SECTION_HEADER_SIZE);
        if end.is_none_or(|end| end > bytes.len()) {
            return Err("its section headers lie outside of it");
        }
        Ok(rewriter)
    }

    fn program_header(&self, place: usize) -> Option<&'a [u8]> {
        let at = self.program_headers.checked_add(place * PROGRAM_HEADER_SIZE)?;
        self.object.bytes().get(at..at.checked_add(PROGRAM_HEADER_SIZE)?)
    }

    /// The file with the moved functions behind it.
    fn append(&self, plans: &[FunctionPlan]) -> Result<Vec<u8>, &'static str> {
        let object = self.object;
        let bytes = object.bytes();
        let offset = bytes.len().next_multiple_of(PAGE as usize);
        let address = self.memory_end.next_multiple_of(PAGE);
        let mut code = Vec::new();
        let mut moves = Vec::new();
        for (function, plan) in object.functions.iter().zip(plans) {
            if let Change::Layout(layout) = &plan.change {
                moves.push(Move {
                    from: function.address,
                    to: address + code.len() as u64,
                    size: layout.code.len() as u64,
                });
                code.extend(&layout.code);
                let padded = (code.len() + 3 * 64).next_multiple_of(ENTRY_ALIGNMENT);
                pad(&mut code, padded);
            }
        }
        for (function, plan) in object.functions.iter().zip(plans) {
            let Change::Layout(layout) = &plan.change else { continue };
            let Some(moved) = find(&moves, function.address) else { continue };
            let start = (moved.to - address) as usize;
            for reference in &layout.references {
                let meant = function.address.wrapping_add(reference.target as u64);
                let target = find(&moves, meant).map_or(meant, |other| other.to);
                let distance = target.wrapping_sub(moved.to + reference.origin as u64) as i64;
                reference.aim(&mut code[start..start + moved.size as usize], distance);
            }
        }
        let mut out = Vec::with_capacity(offset + code.len() + (self.section_count + 1) * SECTION_HEADER_SIZE + 1024);
        out.extend(bytes);
        // Before callers are aimed: one that was changed where it stands may call one that moves.
        put_code(&mut out, object, plans);
        out.resize(offset, 0);
        out.extend(&code);
        self.aim_callers(&mut out, plans, &moves);
        self.aim_descriptors(&mut out, &moves);
        self.aim_symbols(&mut out, &moves);
        self.aim_relocations(&mut out, &moves);
        self.write_segment(&mut out, offset as u64, address, code.len() as u64);
        self.write_section(&mut out, offset as u64, address, code.len() as u64);
        Ok(out)
    }

    /// Functions that stay and call one that moves.
    fn aim_callers(&self, out: &mut [u8], plans: &[FunctionPlan], moves: &[Move]) {
        for (function, plan) in self.object.functions.iter().zip(plans) {
            for reference in &plan.references {
                let meant = function.address.wrapping_add(reference.target as u64);
                if let Some(moved) = find(moves, meant) {
                    let origin = function.address.wrapping_add(reference.origin as u64);
                    let end = function.file_offset + function.code.len();
                    reference.aim(&mut out[function.file_offset..end], moved.to.wrapping_sub(origin) as i64);
                }
            }
        }
    }

    /// Every kernel that starts with code that moved; several may share it.
    fn aim_descriptors(&self, out: &mut [u8], moves: &[Move]) {
        for descriptor in &self.object.descriptors {
            if let Some(moved) = find(moves, descriptor.entry_address()) {
                let distance = moved.to.wrapping_sub(descriptor.address);
                put(out, descriptor.file_offset + KernelDescriptor::ENTRY_OFFSET, &distance.to_le_bytes());
            }
        }
    }

    /// Every symbol of a function that moved, in every table. Functions that stay get their size if they had none:
    /// where it ended at the next function, that one may be gone now.
    fn aim_symbols(&self, out: &mut [u8], moves: &[Move]) {
        let functions = &self.object.functions;
        let size_of = |address: u64| {
            let place = functions.binary_search_by_key(&address, |function| function.address).ok()?;
            Some(functions[place].code.len() as u64)
        };
        for section in section_headers(self.object.bytes()).unwrap_or_default() {
            if !section.is_symbol_table() {
                continue;
            }
            let Some(table) = self.object.section_bytes(&section) else { continue };
            for (place, entry) in table.chunks_exact(24).enumerate() {
                let Some((address, size)) = u64_at(entry, 8).zip(u64_at(entry, 16)) else { continue };
                if entry[4] & 15 != FUNCTION || entry[6..8] == [0, 0] {
                    continue;
                }
                let at = section.offset as usize + place * 24;
                let Some(moved) = find(moves, address) else {
                    if let (0, Some(size)) = (size, size_of(address)) {
                        put(out, at + 16, &size.to_le_bytes());
                    }
                    continue;
                };
                put(out, at + 6, &(self.section_count as u16).to_le_bytes());
                put(out, at + 8, &moved.to.to_le_bytes());
                put(out, at + 16, &moved.size.to_le_bytes());
            }
        }
    }

    /// Pointers to functions in data, which the loader writes.
    fn aim_relocations(&self, out: &mut [u8], moves: &[Move]) {
        for section in section_headers(self.object.bytes()).unwrap_or_default() {
            if !section.is_relocations() {
                continue;
            }
            let Some(table) = self.object.section_bytes(&section) else { continue };
            for (place, entry) in table.chunks_exact(24).enumerate() {
                if u32_at(entry, 8) != Some(RELATIVE64) {
                    continue;
                }
                if let Some(moved) = u64_at(entry, 16).and_then(|address| find(moves, address)) {
                    put(out, section.offset as usize + place * 24 + 16, &moved.to.to_le_bytes());
                }
            }
        }
    }

    /// The program header of the new segment, behind those of all others: loaders take the last one's end for the end of
    /// everything.
    fn write_segment(&self, out: &mut Vec<u8>, offset: u64, address: u64, size: u64) {
        const READ_AND_EXECUTE: u32 = 5;
        let mut header = Vec::with_capacity(PROGRAM_HEADER_SIZE);
        header.extend(LOAD.to_le_bytes());
        header.extend(READ_AND_EXECUTE.to_le_bytes());
        for value in [offset, address, address, size, size, PAGE] {
            header.extend(value.to_le_bytes());
        }
        if let Some(place) = self.spare {
            put(out, self.program_headers + place * PROGRAM_HEADER_SIZE, &header);
            return;
        }
        // No spare: the whole table moves behind the code. Its address in memory is no longer true, so none is given.
        let start = self.program_headers;
        let mut table = out[start..start + self.program_header_count * PROGRAM_HEADER_SIZE].to_vec();
        for entry in table.chunks_exact_mut(PROGRAM_HEADER_SIZE) {
            if u32_at(entry, 0) == Some(PROGRAM_HEADER) {
                entry[..4].fill(0);
            }
        }
        table.extend(&header);
        out.resize(out.len().next_multiple_of(8), 0);
        let at = out.len() as u64;
        out.extend(&table);
        put(out, 32, &at.to_le_bytes());
        put(out, 56, &(self.program_header_count as u16 + 1).to_le_bytes());
    }

    /// A section over the new segment, so that tools and the symbols find the code. The table moves to the end.
    fn write_section(&self, out: &mut Vec<u8>, offset: u64, address: u64, size: u64) {
        const PROGRAM_BITS: u32 = 1;
        const ALLOCATED_AND_EXECUTABLE: u64 = 6;
        let start = self.section_headers;
        let table = out[start..start + self.section_count * SECTION_HEADER_SIZE].to_vec();
        let mut header = Vec::with_capacity(SECTION_HEADER_SIZE);
        header.extend(self.section_name().to_le_bytes());
        header.extend(PROGRAM_BITS.to_le_bytes());
        for value in [ALLOCATED_AND_EXECUTABLE, address, offset, size, 0, ENTRY_ALIGNMENT as u64, 0] {
            header.extend(value.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(8), 0);
        let at = out.len() as u64;
        out.extend(&table);
        out.extend(&header);
        put(out, 40, &at.to_le_bytes());
        put(out, 60, &(self.section_count as u16 + 1).to_le_bytes());
    }

    /// The name `text`, which is the end of `.text`: the table of names need not change, and nobody takes the new
    /// section for the old one.
    fn section_name(&self) -> u32 {
        let bytes = self.object.bytes();
        let names = u16_at(bytes, 62)
            .and_then(|place| section_headers(bytes)?.get(place as usize).copied())
            .and_then(|section| self.object.section_bytes(&section))
            .unwrap_or_default();
        names.windows(7).position(|window| window == b"\0.text\0").map_or(0, |at| at as u32 + 2)
    }
}

fn pad(code: &mut Vec<u8>, length: usize) {
    while code.len() < length {
        code.extend(CODE_END.to_le_bytes());
    }
}

/// The move of the function at an address; they are in the order of their addresses.
fn find(moves: &[Move], from: u64) -> Option<&Move> {
    moves.binary_search_by_key(&from, |it| it.from).ok().map(|place| &moves[place])
}
