//! Packed filters, kept from one call to the next.
//!
//! A filter is known by where it is and how it is packed, and recognised by its contents: every call takes a
//! fingerprint of all numbers of the filter, and what was packed from other numbers is packed again. So nothing stale
//! is ever used, however a filter changes: by an optimizer's step, a write past autograd, or other numbers at the
//! address of a filter that is gone. A fingerprint has 64 bits; it reads each number once, where packing reads and
//! writes each and moves it to another place.

use std::sync::{Arc, Mutex};

use super::workspace::Workspace;
use unhang_simd::Kernels;

/// Numbers that are kept in all: 64 MiB.
const LIMIT: usize = 16 * 1024 * 1024;
/// A filter that has been used within this many calls is not dropped for another. A model whose filters do not all fit
/// keeps some of them, rather than each only until just before it is needed again.
const RECENT: u64 = 500;
/// Pixels from which on packing is too small a part of the work to be spared.
const FEW_PIXELS: usize = 12_000;
/// Numbers of a filter that is not worth looking up.
const SMALL: usize = 4 * 1024;

/// A packed filter.
struct Entry {
    /// Where the filter is, its length, and how it is packed.
    key: (usize, usize, u64),
    fingerprint: u64,
    /// The call that used it last.
    used: u64,
    packed: Arc<Workspace>,
}

struct Cache {
    entries: Vec<Entry>,
    calls: u64,
}

static CACHE: Mutex<Cache> = Mutex::new(Cache { entries: Vec::new(), calls: 0 });

/// Whether a filter that packs to this many numbers, and is used for this many pixels of results, is worth keeping.
pub(super) fn is_worth_keeping(numbers: usize, pixels: usize) -> bool {
    (SMALL..=LIMIT / 2).contains(&numbers) && pixels <= FEW_PIXELS
}

/// The packed form of a filter: what is kept if it was packed from the same numbers in the same way, else what `pack`
/// writes. `signature` stands for the way.
pub(super) fn packed(
    kernels: &Kernels,
    weight: &[f32],
    signature: u64,
    length: usize,
    pack: impl FnOnce(&mut [f32]),
) -> Arc<Workspace> {
    // SAFETY: a slice, and the kernels are those of instructions that the machine has.
    let fingerprint = unsafe { (kernels.fingerprint)(weight.as_ptr(), weight.len()) };
    let key = (weight.as_ptr() as usize, weight.len(), signature);
    if let Some(packed) = find(key, fingerprint) {
        return packed;
    }
    let mut packed = Workspace::take(length);
    pack(&mut packed);
    let packed = Arc::new(packed);
    keep(Entry { key, fingerprint, used: 0, packed: Arc::clone(&packed) });
    packed
}

// Nobody waits for the lock: a forked child may find it held for ever by a thread that it does not have. Whoever does
// not get it packs for itself.

fn find(key: (usize, usize, u64), fingerprint: u64) -> Option<Arc<Workspace>> {
    let mut cache = CACHE.try_lock().ok()?;
    cache.calls += 1;
    let now = cache.calls;
    let entry = cache.entries.iter_mut().find(|entry| entry.key == key && entry.fingerprint == fingerprint)?;
    entry.used = now;
    Some(Arc::clone(&entry.packed))
}

fn keep(mut entry: Entry) {
    let Ok(mut cache) = CACHE.try_lock() else { return };
    entry.used = cache.calls;
    cache.entries.retain(|kept| kept.key != entry.key);
    while cache.numbers() + entry.packed.len() > LIMIT {
        let oldest = cache.entries.iter().enumerate().min_by_key(|(_, kept)| kept.used);
        match oldest.map(|(index, kept)| (index, kept.used)) {
            Some((index, used)) if used + RECENT < entry.used => cache.entries.swap_remove(index),
            _ => return,
        };
    }
    cache.entries.push(entry);
}

impl Cache {
    fn numbers(&self) -> usize {
        self.entries.iter().map(|entry| entry.packed.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unhang_simd::Isa;

    /// Packs by copying; says whether it had to.
    fn copied(weight: &[f32], signature: u64) -> (Vec<f32>, bool) {
        let mut had_to = false;
        let packed = packed(Kernels::of(Isa::detect()), weight, signature, weight.len(), |to| {
            to.copy_from_slice(weight);
            had_to = true;
        });
        (packed.to_vec(), had_to)
    }

    #[test]
    fn any_changed_number_is_noticed() {
        let mut weight: Vec<f32> = (0..5003).map(|number| number as f32).collect();
        assert!(copied(&weight, 1).1);
        for index in (0..weight.len()).step_by(101).chain([5002]) {
            let before = weight[index];
            weight[index] = -before - 1.0;
            let (packed, _) = copied(&weight, 1);
            assert_eq!(packed, weight);
            // Signs of zero and exchanged numbers count too.
            weight[index] = before;
            weight.swap(index, (index + 64) % 5003);
            assert_eq!(copied(&weight, 1).0, weight);
        }
        assert_eq!(copied(&weight, 2), (weight.clone(), true), "packed in another way");
    }

    #[test]
    fn fingerprints_tell_small_changes_apart_in_every_set_of_kernels() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let kernels = Kernels::of(isa);
            // SAFETY: a slice, and the machine has the instructions.
            let fingerprint = |numbers: &[f32]| unsafe { (kernels.fingerprint)(numbers.as_ptr(), numbers.len()) };
            for length in [0, 1, 7, 63, 64, 65, 640, 1000] {
                let numbers = vec![0.0f32; length];
                let mut seen = vec![fingerprint(&numbers)];
                for index in 0..length {
                    let mut other = numbers.clone();
                    other[index] = -0.0;
                    seen.push(fingerprint(&other));
                    other[index] = f32::from_bits(1);
                    seen.push(fingerprint(&other));
                }
                let all = seen.len();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), all, "{isa}: {length} numbers");
            }
        }
    }

    #[test]
    fn it_stays_within_its_bound() {
        let weights: Vec<Vec<f32>> = (0..5).map(|seed| vec![seed as f32; LIMIT / 4]).collect();
        for weight in &weights {
            copied(weight, 3);
            let numbers = CACHE.lock().map_or(0, |cache| cache.numbers());
            assert!(numbers <= LIMIT, "{numbers}");
        }
        CACHE.lock().expect("no test panics with it").entries.clear();
    }
}
