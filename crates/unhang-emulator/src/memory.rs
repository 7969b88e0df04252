//! Global memory: allocations with addresses of their own, checked at every access.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::FaultKind;

/// The first address that is handed out; below it nothing is ever valid.
const FIRST: u64 = 0x1_0000_0000;
/// Allocations lie apart, so that running over the end of one does not land in the next.
const GAP: u64 = 1 << 16;

/// Words are atomics because workgroups run in parallel and may share memory, as on the card; relaxed order is as much
/// as the card promises.
struct Allocation {
    base: u64,
    size: u64,
    words: Vec<AtomicU32>,
}

/// The global memory of a machine.
pub struct Memory {
    allocations: Vec<Allocation>,
    next: u64,
    /// 64-bit atomics span two words: one at a time.
    wide_updates: Mutex<()>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { allocations: Vec::new(), next: FIRST, wide_updates: Mutex::default() }
    }
}

impl Memory {
    /// Allocates `size` bytes of zeros and returns their address, a multiple of 256.
    pub fn allocate(&mut self, size: usize) -> u64 {
        let base = self.next;
        self.next = (base + size as u64 + GAP).next_multiple_of(256);
        let words = (0..size.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        self.allocations.push(Allocation { base, size: size as u64, words });
        base
    }

    /// Allocates memory with these contents.
    pub fn allocate_bytes(&mut self, bytes: &[u8]) -> u64 {
        let address = self.allocate(bytes.len());
        // It was allocated to hold them.
        let _ = self.write(address, bytes);
        address
    }

    /// Frees an allocation by its address. Addresses are not handed out again: using one later is a fault.
    pub fn free(&mut self, address: u64) -> Result<(), FaultKind> {
        let place = self.allocations.binary_search_by_key(&address, |allocation| allocation.base);
        let place = place.map_err(|_| FaultKind::Memory { address, size: 0 })?;
        self.allocations.remove(place);
        Ok(())
    }

    /// A place to come back to with [`Memory::release`].
    pub(crate) fn mark(&self) -> (usize, u64) {
        (self.allocations.len(), self.next)
    }

    /// Frees what was allocated since the mark.
    pub(crate) fn release(&mut self, (count, next): (usize, u64)) {
        self.allocations.truncate(count);
        self.next = next;
    }

    fn find(&self, address: u64, size: u32) -> Result<(&Allocation, u64), FaultKind> {
        let place = self.allocations.partition_point(|allocation| allocation.base <= address);
        let fault = FaultKind::Memory { address, size };
        let allocation = place.checked_sub(1).and_then(|place| self.allocations.get(place)).ok_or(fault.clone())?;
        let offset = address - allocation.base;
        if offset.checked_add(size as u64).is_none_or(|end| end > allocation.size) {
            return Err(fault);
        }
        Ok((allocation, offset))
    }

    /// Copies bytes in.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), FaultKind> {
        let size = bytes.len().min(u32::MAX as usize) as u32;
        let (allocation, offset) = self.find(address, size)?;
        for (at, &byte) in bytes.iter().enumerate() {
            allocation.store_part(offset + at as u64, byte as u32, 0xff);
        }
        Ok(())
    }

    /// Copies bytes out.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), FaultKind> {
        let size = bytes.len().min(u32::MAX as usize) as u32;
        let (allocation, offset) = self.find(address, size)?;
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = allocation.load(offset + at as u64) as u8;
        }
        Ok(())
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

/// The view of one workgroup: the allocation that was used last is looked at first.
pub(crate) struct Window<'m> {
    memory: &'m Memory,
    last: Option<&'m Allocation>,
}

impl<'m> Window<'m> {
    pub fn new(memory: &'m Memory) -> Window<'m> {
        Window { memory, last: None }
    }

    #[inline]
    fn find(&mut self, address: u64, size: u32) -> Result<(&'m Allocation, u64), FaultKind> {
        if let Some(last) = self.last {
            let offset = address.wrapping_sub(last.base);
            if offset.saturating_add(size as u64) <= last.size {
                return Ok((last, offset));
            }
        }
        let (allocation, offset) = self.memory.find(address, size)?;
        self.last = Some(allocation);
        Ok((allocation, offset))
    }

    /// `size` bytes (1, 2 or 4) as a number.
    #[inline]
    pub fn load(&mut self, address: u64, size: u32) -> Result<u32, FaultKind> {
        let (allocation, offset) = self.find(address, size)?;
        let value = allocation.load(offset);
        Ok(if size >= 4 { value } else { value & ((1 << (size * 8)) - 1) })
    }

    /// Stores `size` bytes (1, 2 or 4).
    #[inline]
    pub fn store(&mut self, address: u64, size: u32, value: u32) -> Result<(), FaultKind> {
        let (allocation, offset) = self.find(address, size)?;
        let mask = if size >= 4 { u32::MAX } else { (1 << (size * 8)) - 1 };
        allocation.store_part(offset, value, mask);
        Ok(())
    }

    /// Replaces 32 or 64 bits by a function of them, at once, and returns what they were.
    pub fn update(&mut self, address: u64, wide: bool, update: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        let size = if wide { 8 } else { 4 };
        let (allocation, offset) = self.find(address, size)?;
        if offset % size as u64 != 0 {
            return Err(FaultKind::Memory { address, size });
        }
        let place = (offset / 4) as usize;
        if wide {
            let _one = self.memory.wide_updates.lock().unwrap_or_else(PoisonError::into_inner);
            let [low, high] = [&allocation.words[place], &allocation.words[place + 1]];
            let old = low.load(Ordering::Relaxed) as u64 | (high.load(Ordering::Relaxed) as u64) << 32;
            let new = update(old);
            low.store(new as u32, Ordering::Relaxed);
            high.store((new >> 32) as u32, Ordering::Relaxed);
            return Ok(old);
        }
        let word = &allocation.words[place];
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let new = update(old as u64) as u32;
            match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(old as u64),
                Err(now) => old = now,
            }
        }
    }
}

impl Allocation {
    /// Four bytes from any offset on; past the last word come zeros, which no checked access asks for.
    fn load(&self, offset: u64) -> u32 {
        let (word, shift) = ((offset / 4) as usize, (offset % 4) * 8);
        let low = self.words[word].load(Ordering::Relaxed);
        if shift == 0 {
            return low;
        }
        let high = self.words.get(word + 1).map_or(0, |word| word.load(Ordering::Relaxed));
        low >> shift | high << (32 - shift)
    }

    fn store_part(&self, offset: u64, value: u32, mask: u32) {
        let (word, shift) = ((offset / 4) as usize, (offset % 4) * 8);
        if shift == 0 && mask == u32::MAX {
            self.words[word].store(value, Ordering::Relaxed);
            return;
        }
        let wide_mask = (mask as u64) << shift;
        let wide_value = ((value & mask) as u64) << shift;
        for (place, half) in [(word, 0), (word + 1, 32)] {
            let (mask, value) = ((wide_mask >> half) as u32, (wide_value >> half) as u32);
            if mask != 0
                && let Some(word) = self.words.get(place)
            {
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !mask | value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(Window::new(&memory).update(at, false, |old| old + 1), Ok(0xaa03_0201));
    }
}
