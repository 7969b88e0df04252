//! The memory that a wave's instructions reach: global, local and private memory and buffers, with one kind of address.

use crate::FaultKind;
use crate::buffer::BufferPlace;
use crate::memory::Window;
use crate::races::{Deed, Races, Where};

/// The memory of a workgroup, apart from registers.
pub(crate) struct Surroundings<'a> {
    pub global: Window<'a>,
    pub local: &'a mut [u8],
    /// Records accesses, if races are checked.
    pub races: Option<&'a mut Races>,
    pub bounds: LocalBounds,
}

/// The treatment of accesses beyond the LDS of a workgroup.
#[derive(Default)]
pub(crate) struct LocalBounds {
    /// Whether those of DS instructions read zero and write nothing, as on the card. Accesses by flat addresses are
    /// violations there, too.
    pub forgiven: bool,
    /// Whether the current instruction is one of these.
    pub forgives: bool,
    /// The number of forgiven words.
    pub beyond: u64,
}

impl LocalBounds {
    pub(crate) fn new(stop: bool) -> LocalBounds {
        LocalBounds { forgiven: !stop, ..LocalBounds::default() }
    }
}

impl Surroundings<'_> {
    pub(crate) fn local_fault(&self, address: u32, size: u32) -> FaultKind {
        FaultKind::Local { address, size, limit: self.local.len() as u32 }
    }

    /// An access beyond LDS: a fault, or nothing.
    #[cold]
    fn beyond_local(&mut self, address: u32, size: u32) -> Result<(), FaultKind> {
        if !self.bounds.forgives {
            return Err(self.local_fault(address, size));
        }
        self.bounds.beyond += 1;
        Ok(())
    }

    /// Records an access, if races are checked.
    #[inline]
    fn note(&mut self, target: Target, size: u32, deed: Deed) -> Result<(), FaultKind> {
        let Some(races) = self.races.as_deref_mut() else { return Ok(()) };
        match target {
            target if target.is_private() => Ok(()),
            Target::Local(address) => races.touch(Where::Local(address), size, deed),
            target => target.global(size).map_or(Ok(()), |address| races.touch(Where::Global(address), size, deed)),
        }
    }

    #[inline]
    pub(crate) fn load(&mut self, target: Target, size: u32) -> Result<u32, FaultKind> {
        self.note(target, size, Deed::Read)?;
        self.load_unnoted(target, size)
    }

    #[inline]
    pub(crate) fn store(&mut self, target: Target, size: u32, value: u32) -> Result<(), FaultKind> {
        self.note(target, size, Deed::Write)?;
        self.store_unnoted(target, size, value)
    }

    /// Loads an element of a buffer, which is in range as a whole or not at all.
    pub(crate) fn load_element(&mut self, place: BufferPlace, bytes: u32) -> Result<Option<u128>, FaultKind> {
        if place.in_range(bytes).is_none() {
            return Ok(None);
        }
        let mut element = 0;
        for (low, size) in pieces(bytes) {
            element |= (self.load(Target::Global(place.plus(low).address()), size)? as u128) << (low * 8);
        }
        Ok(Some(element))
    }

    /// Stores an element of a buffer, if it is in range.
    pub(crate) fn store_element(&mut self, place: BufferPlace, bytes: u32, element: u128) -> Result<(), FaultKind> {
        if place.in_range(bytes).is_none() {
            return Ok(());
        }
        pieces(bytes).try_for_each(|(low, size)| {
            self.store(Target::Global(place.plus(low).address()), size, (element >> (low * 8)) as u32)
        })
    }

    #[inline]
    fn load_unnoted(&mut self, target: Target, size: u32) -> Result<u32, FaultKind> {
        match target {
            Target::Local(address) => {
                let start = address as usize;
                let Some(bytes) = self.local.get(start..start + size as usize) else {
                    return self.beyond_local(address, size).map(|()| 0);
                };
                Ok(match *bytes {
                    [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                    [a, b] => u16::from_le_bytes([a, b]) as u32,
                    _ => bytes.first().copied().unwrap_or(0) as u32,
                })
            }
            // A word of the lane's memory ends, and the next one comes after those of all other lanes.
            target if target.is_split(size) => (0..size).try_fold(0, |value, byte| {
                let found = target.plus(byte).global(1).map_or(Ok(0), |address| self.global.load(address, 1))?;
                Ok(value | found << (byte * 8))
            }),
            target => target.global(size).map_or(Ok(0), |address| self.global.load(address, size)),
        }
    }

    #[inline]
    fn store_unnoted(&mut self, target: Target, size: u32, value: u32) -> Result<(), FaultKind> {
        match target {
            Target::Local(address) => {
                let start = address as usize;
                let Some(bytes) = self.local.get_mut(start..start + size as usize) else {
                    return self.beyond_local(address, size);
                };
                bytes.copy_from_slice(&value.to_le_bytes()[..size as usize]);
                Ok(())
            }
            target if target.is_split(size) => (0..size).try_for_each(|byte| {
                let part = value >> (byte * 8) & 0xff;
                target.plus(byte).global(1).map_or(Ok(()), |address| self.global.store(address, 1, part))
            }),
            target => target.global(size).map_or(Ok(()), |address| self.global.store(address, size, value)),
        }
    }

    pub(crate) fn update(&mut self, target: Target, wide: bool, update: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        self.note(target, if wide { 8 } else { 4 }, Deed::Atomic)?;
        match target {
            Target::Local(_) => {
                let high = if wide { self.load_unnoted(target.plus(4), 4)? } else { 0 };
                let old = self.load_unnoted(target, 4)? as u64 | (high as u64) << 32;
                let (new, beyond) = (update(old), self.bounds.beyond);
                self.store_unnoted(target, 4, new as u32)?;
                if wide {
                    self.store_unnoted(target.plus(4), 4, (new >> 32) as u32)?;
                }
                // These are the same words again.
                self.bounds.beyond = beyond;
                Ok(old)
            }
            target => {
                let address = target.global(if wide { 8 } else { 4 });
                address.map_or(Ok(0), |address| self.global.update(address, wide, update))
            }
        }
    }
}

/// An address in one of the memories.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Global(u64),
    Local(u32),
    /// Private memory of a lane, relative to a wave's base.
    Private {
        base: u64,
        offset: u32,
        /// The lane, and the number of lanes of the wave.
        lane: u8,
        lanes: u8,
    },
    /// In a buffer. Out of range, loads give zero and stores are lost.
    Buffer(BufferPlace),
}

impl Target {
    pub(crate) fn plus(self, bytes: u32) -> Target {
        match self {
            Target::Global(address) => Target::Global(address.wrapping_add(bytes as u64)),
            Target::Local(address) => Target::Local(address.wrapping_add(bytes)),
            Target::Private { base, offset, lane, lanes } => {
                Target::Private { base, offset: offset.wrapping_add(bytes), lane, lanes }
            }
            Target::Buffer(place) => Target::Buffer(place.plus(bytes)),
        }
    }

    /// Whether it is a lane's own memory.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Target::Private { .. } => true,
            Target::Buffer(place) => place.resource.is_private(),
            Target::Global(_) | Target::Local(_) => false,
        }
    }

    /// Whether a contiguous word ends within this many bytes, so that the next one is elsewhere.
    fn is_split(&self, size: u32) -> bool {
        match self {
            Target::Private { offset, .. } => offset % 4 + size > 4,
            Target::Buffer(place) => place.is_split(size),
            Target::Global(_) | Target::Local(_) => false,
        }
    }

    /// The address in global memory, unless it is local; `None` outside a buffer's range.
    #[inline]
    pub(crate) fn global(self, size: u32) -> Option<u64> {
        match self {
            Target::Global(address) => Some(address),
            Target::Local(address) => Some(address as u64),
            Target::Private { base, offset, lane, lanes } => Some(base.wrapping_add(swizzled(offset, lane, lanes))),
            Target::Buffer(place) => place.in_range(size),
        }
    }
}

/// The position of a lane's byte among those of all lanes, whose words alternate.
fn swizzled(offset: u32, lane: u8, lanes: u8) -> u64 {
    (offset as u64 / 4 * lanes as u64 + lane as u64) * 4 + offset as u64 % 4
}

/// The words of an element, or the part of a word that it is: the start and size of each.
fn pieces(bytes: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..bytes).step_by(4).map(move |low| (low, (bytes - low).min(4)))
}
