//! Many long sums side by side, in chains that are added in pairs: how a weight gradient stays exact over many pixels.

use super::workspace::Workspace;
use crate::plain::CHAIN;
use unhang_simd::Kernels;

/// Many long sums side by side: chains of at most [`CHAIN`] terms, added in pairs.
pub(super) struct PairwiseSums {
    kernels: &'static Kernels,
    length: usize,
    chain: Workspace,
    terms: usize,
    chains: usize,
    /// Sums of 2ⁿ chains each, the longest first: the binary digits of `chains`.
    levels: Vec<Workspace>,
    spare: Vec<Workspace>,
}

impl PairwiseSums {
    /// Room for that many sums.
    pub(super) fn new(kernels: &'static Kernels, length: usize) -> PairwiseSums {
        let chain = Workspace::take(length);
        PairwiseSums { kernels, length, chain, terms: 0, chains: 0, levels: Vec::new(), spare: Vec::new() }
    }

    /// Announces this many terms more; true if with them a new chain begins, whose sums start from zero.
    pub(super) fn begin_chunk(&mut self, terms: usize) -> bool {
        let begins = self.terms == 0 || self.terms + terms > CHAIN;
        if begins && self.terms > 0 {
            let next = self.spare.pop().unwrap_or_else(|| Workspace::take(self.length));
            self.levels.push(std::mem::replace(&mut self.chain, next));
            for _ in 0..self.chains.trailing_ones() {
                self.merge();
            }
            self.chains += 1;
            self.terms = 0;
        }
        self.terms += terms;
        begins
    }

    /// Adds the last level to the one before it.
    fn merge(&mut self) {
        if let (Some(last), Some(before)) = (self.levels.pop(), self.levels.last_mut()) {
            // SAFETY: both hold `length` numbers.
            unsafe { (self.kernels.add)(last.as_ptr(), before.as_mut_ptr(), self.length) };
            self.spare.push(last);
        }
    }

    /// A part of the chain's sums.
    pub(super) fn chain(&mut self, at: usize, length: usize) -> &mut [f32] {
        &mut self.chain[at..][..length]
    }

    /// The sums of all chains.
    pub(super) fn finish(mut self) -> Workspace {
        self.levels.push(self.chain);
        self.chain = Workspace::take(0);
        while self.levels.len() > 1 {
            self.merge();
        }
        self.levels.pop().expect("one is left")
    }
}
