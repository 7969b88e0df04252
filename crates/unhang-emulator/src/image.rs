//! Names of kernels, from the code object that a loader has put into memory: its first segment has the ELF header and
//! the dynamic symbols.

use unhang_isa::Chip;

use crate::Memory;

/// How far before a kernel its code object may begin.
const FAR: u64 = 256 << 20;
const PAGE: u64 = 4096;
/// `EM_AMDGPU`.
const MACHINE: u16 = 224;

/// A code object in memory.
pub(crate) struct Image<'a> {
    memory: &'a Memory,
    base: u64,
}

impl<'a> Image<'a> {
    /// The code object that contains an address: the nearest ELF header before it at the start of a page.
    pub(crate) fn around(memory: &'a Memory, address: u64) -> Option<Image<'a>> {
        let mut base = address & !(PAGE - 1);
        let last = base.saturating_sub(FAR);
        loop {
            let mut header = [0; 20];
            // The search ends at unmapped memory: a code object is in one piece.
            memory.read(base, &mut header).ok()?;
            if header.starts_with(b"\x7fELF\x02\x01") && u16::from_le_bytes([header[18], header[19]]) == MACHINE {
                return Some(Image { memory, base });
            }
            if base <= last {
                return None;
            }
            base = base.checked_sub(PAGE)?;
        }
    }

    fn u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn u32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(address, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    /// The chip for which it was compiled, according to its header.
    pub(crate) fn chip(&self) -> Option<Chip> {
        Chip::from_machine(self.u32(self.base + 48)? as u8)
    }

    /// The address in memory of an entry of the dynamic table.
    fn dynamic(&self, wanted: u64) -> Option<u64> {
        const DYNAMIC: u32 = 2;
        let headers = self.base.checked_add(self.u64(self.base + 32)?)?;
        let count = (self.u32(self.base + 56)? & 0xffff) as u64;
        let header = (0..count.min(64)).map(|place| headers + place * 56).find(|&at| self.u32(at) == Some(DYNAMIC))?;
        let table = self.base.checked_add(self.u64(header + 16)?)?;
        for place in 0..128 {
            match self.u64(table + place * 16)? {
                0 => return None,
                tag if tag == wanted => return self.base.checked_add(self.u64(table + place * 16 + 8)?),
                _ => {}
            }
        }
        None
    }

    /// The name of the kernel whose descriptor is at an address.
    pub(crate) fn kernel(&self, descriptor: u64) -> Option<String> {
        let [symbols, strings, hash] = [6, 5, 4].map(|tag| self.dynamic(tag));
        let (symbols, strings) = (symbols?, strings?);
        // The hash table gives the number of symbols; without it, the strings follow them.
        let count = hash.and_then(|at| self.u32(at + 4)).map_or(strings.saturating_sub(symbols) / 24, u64::from);
        let wanted = descriptor.checked_sub(self.base)?;
        let symbol =
            (0..count.min(1 << 20)).map(|place| symbols + place * 24).find(|&at| self.u64(at + 8) == Some(wanted))?;
        let mut name = vec![0; 4096];
        let length = self.memory.read_some(strings.checked_add(self.u32(symbol)? as u64)?, &mut name);
        let end = name[..length].iter().position(|&byte| byte == 0)?;
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        Some(name.strip_suffix(".kd").unwrap_or(&name).to_owned())
    }
}
