//! The vector registers of a wave.

use std::ops::{Deref, DerefMut};

/// Lanes of a wave, or of half a wave of 64.
pub(crate) const LANES: usize = 32;
/// One value per lane.
pub(crate) type Lanes = [u32; LANES];

/// The number of extra rows ("rooms") after the registers, for operands that are not registers: one per source, and one
/// that is always zero.
pub(crate) const ROOMS: usize = 4;
/// The room that is always zero.
pub(crate) const ZERO_ROOM: usize = 3;

/// A row that starts at a cache line of the host, so that none of its halves spans two lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line(Lanes);

/// The rows of a wave: its registers, and the rooms after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registers(Vec<Line>);

impl Registers {
    /// That many registers with a value, and their rooms.
    pub(crate) fn new(count: usize, value: u32) -> Registers {
        let mut lines = vec![Line([value; LANES]); count];
        lines.resize(count + ROOMS, Line([0; LANES]));
        Registers(lines)
    }

    /// Sets everything to zero, as in new ones.
    pub(crate) fn clear(&mut self) {
        self.0.fill(Line([0; LANES]));
    }
}

impl Deref for Registers {
    type Target = [Lanes];

    #[inline(always)]
    fn deref(&self) -> &[Lanes] {
        // SAFETY: a line consists of its lanes only: 128 bytes, a multiple of its alignment.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}

impl DerefMut for Registers {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Lanes] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
    }
}
