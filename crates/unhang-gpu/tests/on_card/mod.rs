//! The emulated card's memory, for whatever checks kernels there.

use unhang_gpu::driver::Emulated;

use crate::numbers::Memory;

/// The card's memory.
pub(crate) struct OnCard<'a>(pub &'a Emulated);

impl Memory for OnCard<'_> {
    fn put(&mut self, bytes: &[u8]) -> u64 {
        self.0.allocate(bytes)
    }

    fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.0.read(at, &mut found).unwrap();
        found
    }
}
