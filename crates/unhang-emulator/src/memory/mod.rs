//! Global memory: regions with their own addresses, checked at every access.

mod host;
mod storage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32};

use crate::FaultKind;
pub use host::HostRegion;
use host::Region;
use storage::{Contents, SpareStorage, Storage};

/// The first address to allocate; nothing is allocated below it.
const FIRST: u64 = 0x1_0000_0000;
/// The gap between allocations, so that an overrun of one does not reach the next.
const GAP: u64 = 1 << 16;

/// The global memory of a machine: what was allocated here, and what was mapped from the process's own memory.
///
/// A clone is a snapshot: it shows the same bytes, but later allocations, mappings and frees affect only one of the
/// two. A kernel runs on a snapshot, so nothing that it uses disappears under it.
#[derive(Clone)]
pub struct Memory {
    /// In the order of their addresses.
    regions: Arc<Vec<Region>>,
    next: u64,
    /// Shared by all snapshots.
    spare: Arc<SpareStorage>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { regions: Arc::default(), next: FIRST, spare: Arc::default() }
    }
}

impl Memory {
    /// Allocates `size` bytes of zeros and returns their address, a multiple of 256.
    pub fn allocate(&mut self, size: usize) -> u64 {
        self.allocate_filled(size, 0)
    }

    /// Allocates `size` bytes, all with this value.
    pub fn allocate_filled(&mut self, size: usize, byte: u8) -> u64 {
        self.allocate_with(size, Contents::Fill(byte))
    }

    /// Allocates memory with these contents.
    pub fn allocate_bytes(&mut self, bytes: &[u8]) -> u64 {
        self.allocate_with(bytes.len(), Contents::Bytes(bytes))
    }

    fn allocate_with(&mut self, size: usize, contents: Contents<'_>) -> u64 {
        let mut base = self.next;
        // Avoids memory of the process that is mapped.
        while let Some(end) = self.overlap(base, size as u64 + GAP) {
            base = (end + GAP).next_multiple_of(256);
        }
        self.next = (base + size as u64 + GAP).next_multiple_of(256);
        self.insert(Region::own(base, size as u64, Storage::new(&self.spare, size, contents)));
        base
    }

    /// Frees an allocation by its address. Addresses are not reused: using one later is a fault.
    pub fn free(&mut self, address: u64) -> Result<(), FaultKind> {
        if self.remove(address) { Ok(()) } else { Err(FaultKind::Memory { address, size: 0 }) }
    }

    /// Maps memory of this process at an address of the device, for kernels. It replaces an earlier mapping in the same
    /// place.
    ///
    /// # Safety
    ///
    /// Until `region.keep` is dropped, its memory must stay mapped, readable, and writable if it says so. No Rust
    /// reference to it may be alive, because kernels and the host change it at any time.
    pub unsafe fn map_host(&mut self, region: HostRegion) {
        // SAFETY: the caller guarantees what is required here.
        if let Some(region) = unsafe { Region::host(region) } {
            self.remove(region.base);
            self.insert(region);
        }
    }

    /// Removes a mapping by its address, and returns whether there was one. Snapshots keep it.
    pub fn unmap_host(&mut self, address: u64) -> bool {
        self.remove(address)
    }

    fn insert(&mut self, region: Region) {
        let place = self.regions.partition_point(|other| other.base <= region.base);
        Arc::make_mut(&mut self.regions).insert(place, region);
    }

    fn remove(&mut self, address: u64) -> bool {
        let found = self.regions.binary_search_by_key(&address, |region| region.base);
        found.is_ok_and(|place| {
            Arc::make_mut(&mut self.regions).remove(place);
            true
        })
    }

    /// The end of a region that overlaps a range.
    fn overlap(&self, base: u64, size: u64) -> Option<u64> {
        let place = self.regions.partition_point(|region| region.base < base.saturating_add(size));
        let region = self.regions.get(place.checked_sub(1)?)?;
        let end = region.base + region.size;
        (end > base).then_some(end)
    }

    /// The region that contains an address.
    fn region(&self, address: u64) -> Option<&Region> {
        let place = self.regions.partition_point(|region| region.base <= address);
        let region = self.regions.get(place.checked_sub(1)?)?;
        (address - region.base < region.size).then_some(region)
    }

    /// Copies bytes in.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), FaultKind> {
        let fault = || memory_fault(address, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let region = self.region(address).ok_or_else(fault)?;
        if !region.writable {
            return Err(FaultKind::ReadOnly { address, size: bytes.len().min(u32::MAX as usize) as u32 });
        }
        region.write(address - region.base, bytes).ok_or_else(fault)
    }

    /// Copies bytes out.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), FaultKind> {
        let size = bytes.len();
        if size == 0 {
            return Ok(());
        }
        let region = self.region(address);
        region.and_then(|region| region.read(address - region.base, bytes)).ok_or_else(|| memory_fault(address, size))
    }

    /// Copies out as many bytes as there are, up to the end of the region, and returns their number.
    pub(crate) fn read_some(&self, address: u64, bytes: &mut [u8]) -> usize {
        let Some(region) = self.region(address) else { return 0 };
        let offset = address - region.base;
        let count = (region.size - offset).min(bytes.len() as u64) as usize;
        region.read(offset, &mut bytes[..count]).map_or(0, |()| count)
    }

    /// Reads floats.
    pub fn read_floats(&self, address: u64, count: usize) -> Result<Vec<f32>, FaultKind> {
        let mut bytes = vec![0; count * 4];
        self.read(address, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect())
    }

    /// Allocates memory with these floats.
    pub fn allocate_floats(&mut self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.allocate_bytes(&bytes)
    }
}

#[cold]
fn memory_fault(address: u64, size: usize) -> FaultKind {
    FaultKind::Memory { address, size: size.min(u32::MAX as usize) as u32 }
}

/// The view of one workgroup, which tries the most recently used region first.
pub(crate) struct Window<'m> {
    memory: &'m Memory,
    last: Option<&'m Region>,
}

impl<'m> Window<'m> {
    pub(crate) fn new(memory: &'m Memory) -> Window<'m> {
        Window { memory, last: None }
    }

    #[inline]
    fn find(&mut self, address: u64, size: u32) -> Result<(&'m Region, u64), FaultKind> {
        if let Some(last) = self.last {
            let offset = address.wrapping_sub(last.base);
            if offset.saturating_add(size as u64) <= last.size {
                return Ok((last, offset));
            }
        }
        let region = self.memory.region(address).ok_or_else(|| memory_fault(address, size as usize))?;
        self.last = Some(region);
        Ok((region, address - region.base))
    }

    fn find_writable(&mut self, address: u64, size: u32) -> Result<(&'m Region, u64), FaultKind> {
        let (region, offset) = self.find(address, size)?;
        if region.writable { Ok((region, offset)) } else { Err(FaultKind::ReadOnly { address, size }) }
    }

    /// The words from an address on, if they are all in one region and aligned.
    #[inline]
    pub(crate) fn words(&mut self, address: u64, size: u64) -> Option<&'m [AtomicU32]> {
        let (region, offset) = self.find(address, 4).ok()?;
        region.words(offset, offset.checked_add(size)?)
    }

    /// The bytes from the lowest of several addresses to the end of `size` bytes at the highest, if they are all in one
    /// region.
    #[inline]
    pub(crate) fn bytes(&mut self, lowest: u64, highest: u64, size: u64, to_write: bool) -> Option<&'m [AtomicU8]> {
        let (region, offset) = self.find(lowest, size as u32).ok()?;
        if to_write && !region.writable {
            return None;
        }
        region.bytes(offset, offset.checked_add(highest - lowest)?.checked_add(size)?)
    }

    /// `size` bytes (1, 2 or 4) as a number.
    #[inline]
    pub(crate) fn load(&mut self, address: u64, size: u32) -> Result<u32, FaultKind> {
        let (region, offset) = self.find(address, size)?;
        region.load(offset, size).ok_or_else(|| memory_fault(address, size as usize))
    }

    /// Stores `size` bytes (1, 2 or 4).
    #[inline]
    pub(crate) fn store(&mut self, address: u64, size: u32, value: u32) -> Result<(), FaultKind> {
        let (region, offset) = self.find_writable(address, size)?;
        region.store(offset, size, value).ok_or_else(|| memory_fault(address, size as usize))
    }

    /// Replaces 32 or 64 bits by a function of them, atomically, and returns the old ones.
    pub(crate) fn update(&mut self, address: u64, wide: bool, update: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        let size = if wide { 8 } else { 4 };
        let (region, offset) = self.find_writable(address, size)?;
        let old = if wide {
            region.update_wide(offset, update)
        } else {
            region.update(offset, |old| update(old as u64) as u32).map(u64::from)
        };
        old.ok_or_else(|| memory_fault(address, size as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn accesses_are_checked_to_the_byte() {
        let mut memory = Memory::default();
        let at = memory.allocate_bytes(&[1, 2, 3, 4, 5, 6, 7]);
        let mut window = Window::new(&memory);
        assert_eq!(window.load(at + 1, 4), Ok(0x0504_0302));
        assert_eq!(window.load(at + 5, 2), Ok(0x0706));
        assert_eq!(window.load(at + 4, 4), Err(FaultKind::Memory { address: at + 4, size: 4 }));
        assert!(window.load(at - 1, 1).is_err());
        assert!(window.load(u64::MAX, 4).is_err());
        window.store(at + 3, 2, 0xbbaa).unwrap();
        let mut bytes = [0; 7];
        memory.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 0xaa, 0xbb, 6, 7]);
        assert_eq!(Window::new(&memory).update(at, false, |old| old + 1), Ok(0xaa03_0201), "the old value is returned");
    }

    /// Words of the host that a region keeps alive.
    fn host_words(memory: &mut Memory, address: u64, writable: bool) -> Arc<Vec<AtomicU64>> {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(AtomicU64::new).collect());
        let host = words.as_ptr().cast_mut().cast();
        // SAFETY: the words live in `keep`, and are atomics.
        unsafe { memory.map_host(HostRegion { address, size: 32, host, writable, keep: words.clone() }) };
        words
    }

    #[test]
    fn memory_of_the_host_is_shared_and_checked_to_the_byte() {
        let mut memory = Memory::default();
        let words = host_words(&mut memory, 0x7000_0000, true);
        let mut window = Window::new(&memory);
        assert_eq!(window.load(0x7000_0008, 4), Ok(1));
        window.store(0x7000_001c, 4, 7).unwrap();
        assert_eq!(words[3].load(Ordering::Relaxed), 7 << 32 | 3);
        assert!(window.load(0x7000_001d, 4).is_err());
        assert_eq!(window.update(0x7000_0010, true, |old| old + 5), Ok(2));
        assert_eq!(words[2].load(Ordering::Relaxed), 7);
        assert!(window.update(0x7000_0011, false, |old| old).is_err(), "atomics are aligned");
    }

    #[test]
    fn memory_that_may_only_be_read_is_not_written() {
        let mut memory = Memory::default();
        let words = host_words(&mut memory, 0x7000_0000, false);
        let fault = Err(FaultKind::ReadOnly { address: 0x7000_0000, size: 4 });
        assert_eq!(Window::new(&memory).store(0x7000_0000, 4, 9), fault);
        assert!(memory.write(0x7000_0000, &[1]).is_err());
        assert_eq!(words[0].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_snapshot_keeps_what_is_unmapped_afterwards() {
        let mut memory = Memory::default();
        let words = host_words(&mut memory, 0x7000_0000, true);
        let snapshot = memory.clone();
        assert!(memory.unmap_host(0x7000_0000));
        assert!(!memory.unmap_host(0x7000_0000));
        assert!(Window::new(&memory).load(0x7000_0000, 4).is_err());
        assert_eq!(Window::new(&snapshot).load(0x7000_0008, 4), Ok(1));
        assert_eq!(Arc::strong_count(&words), 2);
        drop(snapshot);
        assert_eq!(Arc::strong_count(&words), 1, "nobody holds the region any more");
    }
}
