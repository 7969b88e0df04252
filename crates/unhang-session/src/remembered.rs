//! What is known of each request, found by its hash, in memory of a limited size.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{PoisonError, RwLock};

/// A program with ever new sizes must not fill its memory with verdicts.
const MOST: usize = 10_000;

/// What finds a request.
pub(crate) fn hash_of(request: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(request)
}

/// Something about each request.
pub(crate) struct Remembered<T>(RwLock<HashMap<u64, T>>);

impl<T> Default for Remembered<T> {
    fn default() -> Remembered<T> {
        Remembered(RwLock::default())
    }
}

impl<T: Clone> Remembered<T> {
    pub(crate) fn get(&self, hash: u64) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned()
    }

    pub(crate) fn keep(&self, hash: u64, found: T) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(hash, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ever_new_requests_do_not_fill_the_memory() {
        let all = Remembered::default();
        (0..=MOST as u64).for_each(|hash| all.keep(hash, hash));
        assert_eq!((all.get(MOST as u64), all.get(0)), (Some(MOST as u64), None));
    }
}
