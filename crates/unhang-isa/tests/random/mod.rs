//! Numbers that neither repeat soon nor differ between runs. Tests of machine code draw instructions and operands from them.

/// A linear congruential generator; the upper bits of its state are the good ones.
pub(crate) struct Random(pub u64);

impl Random {
    /// 31 bits.
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}
