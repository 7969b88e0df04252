//! The vector registers of a wave.

use std::ops::{Deref, DerefMut};

/// Lanes of a wave, or of half a wave of 64.
pub(crate) const LANES: usize = 32;
/// One value a lane.
pub(crate) type Lanes = [u32; LANES];

/// Rows behind the registers for operands that are not registers: one for each source, and one that is always zero.
pub(crate) const ROOMS: usize = 4;
/// Among the rooms, the one that is always zero.
pub(crate) const ZERO_ROOM: usize = 3;

/// A row that begins where a line of the host's cache does, so that none of its halves is on two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line(Lanes);

/// The rows of a wave: its registers, and rooms behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registers(Vec<Line>);

impl Registers {
    /// That many registers that hold a value, and their rooms.
    pub(crate) fn new(count: usize, value: u32) -> Registers {
        let mut lines = vec![Line([value; LANES]); count];
        lines.resize(count + ROOMS, Line([0; LANES]));
        Registers(lines)
    }

    /// Zeros everywhere, as in new ones.
    pub(crate) fn clear(&mut self) {
        self.0.fill(Line([0; LANES]));
    }
}

impl Deref for Registers {
    type Target = [Lanes];

    #[inline(always)]
    fn deref(&self) -> &[Lanes] {
        // SAFETY: a line is its lanes and nothing else: 128 bytes, a multiple of its alignment.
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
