//! Ranges of memory behind addresses: the emulator's own, or the process's, which others use at the same time.
//!
//! Only this module of the crate handles raw pointers to memory. Every access goes through [`Region::at`], which checks
//! it against the region's size. Accesses are relaxed atomic loads and stores: workgroups run in parallel and may share
//! memory, and the host reads and writes while kernels run. A card does not promise more either.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::storage::Storage;

/// Memory of this process that a kernel may use, at an address of the device.
pub struct HostRegion {
    /// Its address on the device.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its address in this process.
    pub host: *mut u8,
    /// Whether kernels may write to it.
    pub writable: bool,
    /// Keeps it alive. It is dropped when no snapshot of the memory holds the region any more. So memory that is freed
    /// while a kernel runs disappears when the kernel has ended.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A range of memory at an address.
#[derive(Clone)]
pub(crate) struct Region {
    pub base: u64,
    pub size: u64,
    pub writable: bool,
    host: NonNull<u8>,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory behind the pointer lives as long as `_keep`, whichever thread holds it, and is accessed only
// through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A region of the emulator's own memory. The storage must have that many bytes.
    pub(super) fn own(base: u64, size: u64, storage: Storage) -> Region {
        debug_assert!(size <= size_of_val(storage.words()) as u64);
        let host = NonNull::from(&storage.words()[0]).cast();
        Region { base, size, writable: true, host, _keep: Arc::new(storage) }
    }

    /// A region of the process's own memory; `None` if its pointer is null, or if it would end after the last address.
    ///
    /// # Safety
    ///
    /// Until `keep` is dropped, the memory must stay mapped, readable, and writable if it says so. Nobody may hold Rust
    /// references to it meanwhile.
    pub(super) unsafe fn host(region: HostRegion) -> Option<Region> {
        let HostRegion { address: base, size, host, writable, keep } = region;
        base.checked_add(size)?;
        Some(Region { base, size, writable, host: NonNull::new(host)?, _keep: keep })
    }

    /// A pointer to `size` bytes, if all of them are in the region.
    #[inline(always)]
    fn at(&self, offset: u64, size: u64) -> Option<*mut u8> {
        // SAFETY: the sum stays within the region, which is one mapping of `self.size` bytes.
        (offset <= self.size && size <= self.size - offset).then(|| unsafe { self.host.as_ptr().add(offset as usize) })
    }

    /// The bytes from one offset to another, if all are in the region.
    #[inline(always)]
    pub(super) fn bytes(&self, offset: u64, end: u64) -> Option<&[AtomicU8]> {
        let at = self.at(offset, end.checked_sub(offset)?)?;
        // SAFETY: the bytes are in the region and live as long as it does.
        Some(unsafe { std::slice::from_raw_parts(at.cast::<AtomicU8>(), (end - offset) as usize) })
    }

    /// The words from one offset to another, if all are in the region and aligned.
    #[inline(always)]
    pub(super) fn words(&self, offset: u64, end: u64) -> Option<&[AtomicU32]> {
        let at = self.at(offset, end.checked_sub(offset)?).filter(|at| at.cast::<u32>().is_aligned())?;
        // SAFETY: the bytes are in the region, aligned, and live as long as it does.
        Some(unsafe { std::slice::from_raw_parts(at.cast::<AtomicU32>(), ((end - offset) / 4) as usize) })
    }

    /// `size` bytes (1, 2 or 4) as a number.
    #[inline(always)]
    pub(super) fn load(&self, offset: u64, size: u32) -> Option<u32> {
        let at = self.at(offset, size as u64)?;
        // SAFETY: `at` checked the bytes; the alignment is checked before each wider access.
        unsafe {
            Some(match size {
                4 if at.cast::<u32>().is_aligned() => AtomicU32::from_ptr(at.cast()).load(Ordering::Relaxed),
                2 if at.cast::<u16>().is_aligned() => AtomicU16::from_ptr(at.cast()).load(Ordering::Relaxed) as u32,
                1 => AtomicU8::from_ptr(at).load(Ordering::Relaxed) as u32,
                _ => (0..size as usize).fold(0, |value, byte| {
                    value | (AtomicU8::from_ptr(at.add(byte)).load(Ordering::Relaxed) as u32) << (byte * 8)
                }),
            })
        }
    }

    /// Stores `size` bytes (1, 2 or 4) if they are in the region.
    #[inline(always)]
    pub(super) fn store(&self, offset: u64, size: u32, value: u32) -> Option<()> {
        let at = self.at(offset, size as u64)?;
        // SAFETY: as for `load`; the caller checked that the region is writable.
        unsafe {
            match size {
                4 if at.cast::<u32>().is_aligned() => AtomicU32::from_ptr(at.cast()).store(value, Ordering::Relaxed),
                2 if at.cast::<u16>().is_aligned() => {
                    AtomicU16::from_ptr(at.cast()).store(value as u16, Ordering::Relaxed);
                }
                1 => AtomicU8::from_ptr(at).store(value as u8, Ordering::Relaxed),
                _ => {
                    for byte in 0..size as usize {
                        AtomicU8::from_ptr(at.add(byte)).store((value >> (byte * 8)) as u8, Ordering::Relaxed);
                    }
                }
            }
        }
        Some(())
    }

    /// Replaces 32 bits by a function of them, atomically for the host and other queues, and returns the old ones.
    /// `None` if they are not all in the region, or not aligned.
    pub(super) fn update(&self, offset: u64, update: impl Fn(u32) -> u32) -> Option<u32> {
        let at = self.at(offset, 4).filter(|at| at.cast::<u32>().is_aligned())?;
        // SAFETY: in the region and aligned.
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(update(old))).ok()
    }

    /// Updates 64 bits atomically.
    pub(super) fn update_wide(&self, offset: u64, update: impl Fn(u64) -> u64) -> Option<u64> {
        let at = self.at(offset, 8).filter(|at| at.cast::<u64>().is_aligned())?;
        // SAFETY: in the region and aligned.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(update(old))).ok()
    }

    /// Copies bytes out, if all of them are in the region.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        let at = self.at(offset, bytes.len() as u64)?;
        let (chunks, rest) = bytes.as_chunks_mut::<8>();
        let count = chunks.len();
        // SAFETY: `at` checked the bytes; unaligned starts go byte by byte.
        unsafe {
            if at.cast::<u64>().is_aligned() {
                for (place, chunk) in chunks.iter_mut().enumerate() {
                    *chunk = AtomicU64::from_ptr(at.cast::<u64>().add(place)).load(Ordering::Relaxed).to_le_bytes();
                }
            } else {
                for (place, byte) in chunks.as_flattened_mut().iter_mut().enumerate() {
                    *byte = AtomicU8::from_ptr(at.add(place)).load(Ordering::Relaxed);
                }
            }
            for (place, byte) in rest.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(at.add(count * 8 + place)).load(Ordering::Relaxed);
            }
        }
        Some(())
    }

    /// Copies bytes in, if there is room for all of them.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        let at = self.at(offset, bytes.len() as u64)?;
        let (chunks, rest) = bytes.as_chunks::<8>();
        let count = chunks.len();
        // SAFETY: as for `read`.
        unsafe {
            if at.cast::<u64>().is_aligned() {
                for (place, &chunk) in chunks.iter().enumerate() {
                    AtomicU64::from_ptr(at.cast::<u64>().add(place))
                        .store(u64::from_le_bytes(chunk), Ordering::Relaxed);
                }
            } else {
                for (place, &byte) in chunks.as_flattened().iter().enumerate() {
                    AtomicU8::from_ptr(at.add(place)).store(byte, Ordering::Relaxed);
                }
            }
            for (place, &byte) in rest.iter().enumerate() {
                AtomicU8::from_ptr(at.add(count * 8 + place)).store(byte, Ordering::Relaxed);
            }
        }
        Some(())
    }
}
