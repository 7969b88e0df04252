//! Buffer resources of gfx10: the meaning of a descriptor's four words, where an element is, and what is out of range.
//!
//! Bit positions and the meaning of OOB_SELECT are Mesa's (`ac_descriptors.c`, `radv_buffer_view.c`). The addresses of
//! swizzled buffers are those of AMD's "RDNA Instruction Set Architecture", "Buffer Addressing".
//! `docs/internals/emulator-sources.md` lists the places.

/// When an access is out of range: OOB_SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeCheck {
    /// 0: index against NUM_RECORDS, offset against the stride. Without a stride nothing is in range.
    IndexAndOffset,
    /// 1: index against NUM_RECORDS.
    Index,
    /// 2: only an empty buffer is out of range.
    Empty,
    /// 3: offset, or swizzled address, against NUM_RECORDS in bytes.
    Raw,
}

/// The fields of a buffer descriptor. Fields without influence on compute code are left out: cache swizzling, the
/// resource level and the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferResource {
    pub base: u64,
    pub stride: u32,
    pub swizzles: bool,
    /// NUM_RECORDS: bytes for [`RangeCheck::Raw`], otherwise elements.
    pub records: u32,
    /// The number of elements that are interleaved in a swizzled buffer.
    pub index_stride: u32,
    /// Whether a lane's number in its wave is added to the index.
    pub adds_lane: bool,
    pub check: RangeCheck,
    /// The unified number of the data format.
    pub format: u8,
    /// Which component of an element each component of a typed load reads.
    pub selects: [u8; 4],
}

/// Contiguous bytes in a swizzled buffer; fixed on these chips.
const ELEMENT: u64 = 4;

impl BufferResource {
    pub(crate) fn new([low, high, records, last]: [u32; 4]) -> BufferResource {
        BufferResource {
            base: low as u64 | (high as u64 & 0xffff) << 32,
            stride: high >> 16 & 0x3fff,
            swizzles: high >> 31 == 1,
            records,
            index_stride: 8 << (last >> 21 & 3),
            adds_lane: last >> 23 & 1 == 1,
            check: match last >> 28 & 3 {
                0 => RangeCheck::IndexAndOffset,
                1 => RangeCheck::Index,
                2 => RangeCheck::Empty,
                _ => RangeCheck::Raw,
            },
            format: (last >> 12 & 0x7f) as u8,
            selects: [0, 3, 6, 9].map(|low| (last >> low & 7) as u8),
        }
    }

    /// Whether it stands for no buffer: loads give zeros, and stores do nothing.
    pub(crate) fn is_unbound(&self) -> bool {
        *self == BufferResource::new([0; 4])
    }

    /// Whether it has the layout of private memory: the words of all lanes alternate, and each lane has its own.
    pub(crate) fn is_private(&self) -> bool {
        self.swizzles && self.adds_lane
    }

    /// Whether it is a plain range of bytes whose number is NUM_RECORDS.
    pub(crate) fn is_raw(&self) -> bool {
        self.check == RangeCheck::Raw && !self.swizzles
    }

    /// The distance of an offset in an element from the base.
    pub(crate) fn distance(&self, index: u64, offset: u64) -> u64 {
        let stride = self.stride as u64;
        if !self.swizzles {
            return (index * stride).wrapping_add(offset);
        }
        let together = self.index_stride as u64;
        let row = (index / together * stride).wrapping_add(offset / ELEMENT * ELEMENT);
        row.wrapping_mul(together).wrapping_add(index % together * ELEMENT + offset % ELEMENT)
    }

    /// Whether bytes at an offset in an element are in range.
    pub(crate) fn holds(&self, index: u64, offset: u64, size: u64) -> bool {
        let records = self.records as u64;
        match self.check {
            RangeCheck::IndexAndOffset => index < records && offset < self.stride as u64,
            RangeCheck::Index => index < records,
            RangeCheck::Empty => records != 0,
            RangeCheck::Raw if self.swizzles => self.distance(index, offset).saturating_add(size) <= records,
            RangeCheck::Raw => offset.saturating_add(size) <= records,
        }
    }

    /// The number of bytes from the base that are all in range for accesses without an index, if these are contiguous.
    pub(crate) fn linear_reach(&self) -> Option<u64> {
        if self.swizzles || self.adds_lane {
            return None;
        }
        Some(match self.check {
            RangeCheck::Raw => self.records as u64,
            _ if self.records == 0 => 0,
            RangeCheck::IndexAndOffset => self.stride as u64,
            RangeCheck::Index | RangeCheck::Empty => u64::MAX,
        })
    }

    /// The bytes that scalar loads can read: they know elements with a stride, or bytes, but no OOB_SELECT.
    pub(crate) fn scalar_size(&self) -> u64 {
        self.records as u64 * self.stride.max(1) as u64
    }
}

/// A position in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferPlace {
    pub resource: BufferResource,
    /// An offset for all lanes. It is never swizzled, and checked only in raw buffers.
    pub scalar_offset: u32,
    pub index: u64,
    pub offset: u64,
}

impl BufferPlace {
    pub(crate) fn plus(self, bytes: u32) -> BufferPlace {
        BufferPlace { offset: self.offset + bytes as u64, ..self }
    }

    /// Its address in memory, in range or not.
    pub(crate) fn address(&self) -> u64 {
        let start = self.resource.base.wrapping_add(self.scalar_offset as u64);
        start.wrapping_add(self.resource.distance(self.index, self.offset))
    }

    /// Its address in memory, if this many bytes are in range.
    pub(crate) fn in_range(&self, size: u32) -> Option<u64> {
        let offset = self.offset + if self.resource.is_raw() { self.scalar_offset as u64 } else { 0 };
        self.resource.holds(self.index, offset, size as u64).then(|| self.address())
    }

    /// Whether a contiguous word ends within this many bytes, so that the next one is elsewhere.
    pub(crate) fn is_split(&self, size: u32) -> bool {
        self.resource.swizzles && self.offset % ELEMENT + size as u64 > ELEMENT
    }
}
