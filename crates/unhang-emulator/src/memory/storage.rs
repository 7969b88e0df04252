//! The emulator's own memory behind its regions. Freed storage is kept for the next region: requesting pages from the
//! host costs several times as much as filling them.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// 64-bit words, so that aligned device addresses are aligned here.
type Words = Box<[AtomicU64]>;

/// Words of zeros, which the host provides without writing them.
fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    let words: Box<[u64]> = vec![0; count].into_boxed_slice();
    // SAFETY: an atomic has the size, alignment and bits of its number.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

/// The initial contents of storage.
#[derive(Clone, Copy)]
pub(crate) enum Contents<'a> {
    /// The same byte everywhere.
    Fill(u8),
    Bytes(&'a [u8]),
}

/// The storage of one region. It becomes spare again when nobody holds the region any more.
pub(crate) struct Storage {
    words: Words,
    spare: Arc<SpareStorage>,
}

impl Storage {
    pub(super) fn new(spare: &Arc<SpareStorage>, size: usize, contents: Contents<'_>) -> Storage {
        let count = size.div_ceil(8).max(1);
        let mut words = match (spare.take(count), contents) {
            (Some(words), _) => words,
            // The host provides zeros.
            (None, Contents::Fill(0)) => {
                let words = zeroed_words(count);
                return Storage { words, spare: spare.clone() };
            }
            (None, _) => zeroed_words(count),
        };
        match contents {
            Contents::Fill(byte) => {
                words[..count].iter_mut().for_each(|word| *word.get_mut() = u64::from_le_bytes([byte; 8]));
            }
            Contents::Bytes(bytes) => {
                let (chunks, rest) = bytes.as_chunks::<8>();
                for (word, &chunk) in words.iter_mut().zip(chunks) {
                    *word.get_mut() = u64::from_le_bytes(chunk);
                }
                if let Some(word) = words.get_mut(chunks.len()) {
                    let mut last = [0; 8];
                    last[..rest.len()].copy_from_slice(rest);
                    *word.get_mut() = u64::from_le_bytes(last);
                }
            }
        }
        Storage { words, spare: spare.clone() }
    }

    /// At least as many bytes as requested.
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.spare.keep(std::mem::take(&mut self.words));
    }
}

/// Freed storage.
#[derive(Default)]
pub(crate) struct SpareStorage(Mutex<Vec<Words>>);

impl SpareStorage {
    /// The sizes, in words, that are kept: the host is quick with small ones, and should get large ones back.
    const KEPT: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 21;
    /// The most that are kept.
    const MOST: usize = 16;

    fn all(&self) -> MutexGuard<'_, Vec<Words>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest that is large enough, unless it is far too large.
    fn take(&self, count: usize) -> Option<Words> {
        if !Self::KEPT.contains(&count) {
            return None;
        }
        let mut all = self.all();
        let fitting = all.iter().enumerate().filter(|(_, words)| (count..=count * 2).contains(&words.len()));
        let place = fitting.min_by_key(|(_, words)| words.len())?.0;
        Some(all.swap_remove(place))
    }

    fn keep(&self, words: Words) {
        let mut all = self.all();
        if Self::KEPT.contains(&words.len()) {
            // The one that has been unused for longest goes first.
            if all.len() == Self::MOST {
                all.remove(0);
            }
            all.push(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn bytes(storage: &Storage, size: usize) -> Vec<u8> {
        let words = storage.words().iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        words.flatten().take(size).collect()
    }

    #[test]
    fn storage_that_was_freed_is_used_again_and_holds_what_is_asked_for() {
        let spare = Arc::default();
        let first = Storage::new(&spare, 10_001, Contents::Fill(7));
        assert_eq!(bytes(&first, 10_001), [7; 10_001]);
        let place = first.words().as_ptr();
        drop(first);
        let second = Storage::new(&spare, 9_000, Contents::Fill(0));
        assert_eq!(second.words().as_ptr(), place, "the same storage");
        assert_eq!(bytes(&second, 9_000), [0; 9_000]);
        let third = Storage::new(&spare, 9_000, Contents::Fill(0));
        assert_ne!(third.words().as_ptr(), place, "that of a living region is nobody else's");
        drop(second);
        let given: Vec<u8> = (0..9_003).map(|place| place as u8).collect();
        assert_eq!(bytes(&Storage::new(&spare, given.len(), Contents::Bytes(&given)), given.len()), given);
    }

    #[test]
    fn little_is_kept() {
        let spare: Arc<SpareStorage> = Arc::default();
        let count = |size| {
            let many: Vec<Storage> = (0..40).map(|_| Storage::new(&spare, size, Contents::Fill(1))).collect();
            drop(many);
            spare.all().len()
        };
        assert_eq!(count(100), 0, "what is small is the host's business");
        assert_eq!(count(10_000), SpareStorage::MOST);
        assert!(Storage::new(&spare, 1 << 25, Contents::Fill(1)).words().len() > *SpareStorage::KEPT.end());
        assert_eq!(spare.all().len(), SpareStorage::MOST);
    }
}
