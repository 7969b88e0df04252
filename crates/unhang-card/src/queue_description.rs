//! The runtime's description of a queue (`amd_queue_t`), from which the packet processor reads what packets do not say.

use std::sync::atomic::{AtomicU32, Ordering};

use unhang_emulator::Scratch;

/// Where fields lie, in bytes. The layout is the one of AMD's `amd_hsa_queue.h`; it is the same in ROCm 5.2 to 7.2 as far as
/// it is used here. The size of all private memory at 168 is not: ROCm 7.2 leaves it zero (reserved in the first version of
/// the structure, meant for newer packet processors in the second).
mod field {
    pub(super) const APERTURES: u64 = 64;
    pub(super) const READ_INDEX: u64 = 128;
    pub(super) const TEMPORARY_RING: u64 = 140;
    pub(super) const SCRATCH_ADDRESS: u64 = 160;
    pub(super) const PROPERTIES: u64 = 180;
    pub(super) const INACTIVE_SIGNAL: u64 = 192;
}

/// Bytes of the description.
#[cfg(test)]
const SIZE: usize = 256;
/// The property that private memory may be used for one dispatch only.
const USE_SCRATCH_ONCE: u32 = 1 << 4;

/// The description of a queue, in the program's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueDescription {
    base: u64,
}

impl QueueDescription {
    /// The description around a read index, which is what the driver knows of it.
    ///
    /// # Safety
    /// The runtime keeps the description, 256 bytes that start at a multiple of 64, for as long as this is used.
    pub(crate) unsafe fn around(read_index: *const u64) -> QueueDescription {
        QueueDescription { base: read_index as u64 - field::READ_INDEX }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.base
    }

    /// The bases of LDS and of private memory in flat addresses.
    pub(crate) fn apertures(&self) -> [u64; 2] {
        [0, 4].map(|offset| u64::from(self.word(field::APERTURES + offset)) << 32)
    }

    /// Private memory for the queue's waves.
    ///
    /// Its size is what the hardware goes by: `COMPUTE_TMPRING_SIZE` holds the number of waves that have a place (bits 0
    /// to 11). It also holds the size of a place in units of 1 KiB (bits 12 to 24). Every runtime fills it, and never
    /// with more than it has allocated.
    pub(crate) fn scratch(&self) -> Scratch {
        let ring = self.word(field::TEMPORARY_RING);
        let (waves, bytes_per_wave) = (u64::from(ring & 0xfff), u64::from(ring >> 12 & 0x1fff) << 10);
        Scratch { address: self.wide(field::SCRATCH_ADDRESS), size: waves * bytes_per_wave, bytes_per_wave }
    }

    /// Whether private memory may be used for one dispatch only.
    pub(crate) fn uses_scratch_once(&self) -> bool {
        self.word(field::PROPERTIES) & USE_SCRATCH_ONCE != 0
    }

    /// The address of the signal that receives errors.
    pub(crate) fn inactive_signal(&self) -> u64 {
        self.wide(field::INACTIVE_SIGNAL)
    }

    fn word(&self, offset: u64) -> u32 {
        let address = (self.base + offset) as *mut u32;
        // SAFETY: `around` was promised the description, and every offset is a multiple of four within it.
        unsafe { AtomicU32::from_ptr(address) }.load(Ordering::Acquire)
    }

    fn wide(&self, offset: u64) -> u64 {
        u64::from(self.word(offset)) | u64::from(self.word(offset + 4)) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The description of a queue whose waves have places of 4 KiB, 1280 of them, as ROCr writes it for 40 compute units.
    #[repr(C, align(64))]
    struct Image([u8; SIZE]);

    const ADDRESS: u64 = 0x7f12_3456_7000;
    const BYTES: u64 = 1280 * 4096;

    fn image(byte_size: u64, lane_bytes: u32) -> Image {
        let mut image = Image([0; SIZE]);
        let mut put = |offset: u64, bytes: &[u8]| image.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        put(field::APERTURES, &0x1_0000u32.to_le_bytes());
        put(field::APERTURES + 4, &0x2_0000u32.to_le_bytes());
        put(field::TEMPORARY_RING, &(1280u32 | 4 << 12).to_le_bytes());
        // The buffer descriptor has the size too, with wrapping in its upper bits, and is not read.
        put(144, &[0xff; 16]);
        put(field::SCRATCH_ADDRESS, &ADDRESS.to_le_bytes());
        put(168, &byte_size.to_le_bytes());
        put(176, &lane_bytes.to_le_bytes());
        put(field::INACTIVE_SIGNAL, &0x5500u64.to_le_bytes());
        image
    }

    fn described(image: &Image) -> QueueDescription {
        // SAFETY: the image is aligned and outlives the description in every test.
        unsafe { QueueDescription::around(image.0[field::READ_INDEX as usize..].as_ptr().cast()) }
    }

    #[test]
    fn private_memory_is_found_whether_or_not_the_runtime_writes_its_size() {
        // ROCr 5.2 and 6.4 write the size at 168; ROCr 7.2 leaves it zero, and so does a runtime for reserved words.
        for image in [image(BYTES, 64), image(0, 64), image(0, 0)] {
            let found = described(&image).scratch();
            assert_eq!(found, Scratch { address: ADDRESS, size: BYTES, bytes_per_wave: 4096 });
        }
    }

    #[test]
    fn the_ring_is_read_field_by_field() {
        let mut image = image(0, 0);
        let mut ring = |value: u32| {
            image.0[field::TEMPORARY_RING as usize..][..4].copy_from_slice(&value.to_le_bytes());
            described(&image).scratch()
        };
        assert_eq!((ring(0).size, ring(0).bytes_per_wave), (0, 0));
        // The largest of each field, with bits above them that mean nothing.
        let most = ring(0xffff_ffff);
        assert_eq!((most.size, most.bytes_per_wave), (0xfff * 0x1fff * 1024, 0x1fff * 1024));
        assert_eq!(ring(3 | 1 << 12).size, 3072);
    }

    #[test]
    fn the_other_fields_are_where_the_header_says() {
        let mut image = image(BYTES, 64);
        assert_eq!(described(&image).apertures(), [1 << 48, 2 << 48]);
        assert_eq!(described(&image).inactive_signal(), 0x5500);
        assert_eq!(described(&image).address(), image.0.as_ptr() as u64);
        assert!(!described(&image).uses_scratch_once());
        image.0[field::PROPERTIES as usize] = 0x12;
        assert!(described(&image).uses_scratch_once());
    }
}
