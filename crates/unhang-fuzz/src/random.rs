//! Random numbers. A seed gives the same numbers in every version, because a failing seed must keep its meaning.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// One of several.
    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// True once in this many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A word that is useful in tests: small, a power of two or near one, all ones, a float, or anything.
    pub fn word(&mut self) -> u32 {
        const SPECIAL: [u32; 16] = [
            0,
            1,
            2,
            u32::MAX,
            0x8000_0000,
            0x7fff_ffff,
            0xffff,
            0x8000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x0080_0000,
            0x007f_ffff,
            0x3f80_0000,
            0xbf80_0000,
            0x4f80_0000,
        ];
        match self.below(8) {
            0 => SPECIAL[self.below(SPECIAL.len())],
            1 => self.below(300) as u32,
            2 => (1u32 << self.below(32)).wrapping_add(self.below(3) as u32).wrapping_sub(1),
            // A float between 2^-20 and 2^20.
            3 | 4 => (107 + self.below(40) as u32) << 23 | self.bits() as u32 & 0x807f_ffff,
            _ => self.bits() as u32,
        }
    }
}
