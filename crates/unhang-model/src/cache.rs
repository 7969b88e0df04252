//! A cache of lines, and the path from a compute unit to memory.

use crate::card::{ARRAYS, CACHE_WAYS, Card, L0_BYTES, L1_BYTES, LINE};

/// A set-associative cache with least-recently-used replacement.
pub(crate) struct Cache {
    /// The lines of each set, the most recent last, and whether each is dirty.
    sets: Vec<Vec<(u64, bool)>>,
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Cache {
        let lines = (bytes / LINE) as usize;
        Cache { sets: vec![Vec::with_capacity(CACHE_WAYS); (lines / CACHE_WAYS).max(1)] }
    }

    pub(crate) fn first() -> Cache {
        Cache::new(L0_BYTES)
    }

    /// Looks a line up and keeps it. Returns whether it was there, and whether a dirty line was evicted.
    pub(crate) fn touch(&mut self, line: u64, writes: bool) -> (bool, bool) {
        // Spreads neighbouring lines of several streams over the sets.
        let count = self.sets.len() as u64;
        let set = &mut self.sets[((line ^ (line / count) ^ (line / (count * count))) % count) as usize];
        if let Some(place) = set.iter().position(|&(kept, _)| kept == line) {
            let (_, dirty) = set.remove(place);
            set.push((line, dirty || writes));
            return (true, false);
        }
        let evicted = set.len() == CACHE_WAYS && set.remove(0).1;
        set.push((line, writes));
        (false, evicted)
    }

    /// The number of dirty lines.
    pub(crate) fn dirty(&self) -> u64 {
        self.sets.iter().flatten().filter(|(_, dirty)| *dirty).count() as u64
    }
}

/// Which level served each line, while all workgroups of a card issue loads side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    pub l0_hits: u64,
    pub l1_hits: u64,
    pub l2_hits: u64,
    pub memory_reads: u64,
    pub stores: u64,
    pub memory_writes: u64,
}

/// The lines that a vector memory instruction touches.
pub(crate) struct Lines<'a> {
    pub lines: &'a [u64],
    pub writes: bool,
}

/// The caches of a card.
pub(crate) struct Caches {
    l0: Vec<Cache>,
    l1: Vec<Cache>,
    l2: Cache,
    pub traffic: Traffic,
}

impl Caches {
    pub(crate) fn of(card: &Card) -> Caches {
        Caches {
            l0: (0..card.compute_units).map(|_| Cache::first()).collect(),
            l1: (0..ARRAYS).map(|_| Cache::new(L1_BYTES)).collect(),
            l2: Cache::new(card.l2_bytes),
            traffic: Traffic::default(),
        }
    }

    /// Plays a workgroup's instruction. Workgroups are handed out in turn, first over the arrays.
    pub(crate) fn touch(&mut self, workgroup: usize, what: &Lines<'_>) {
        let (unit, array) = (workgroup % self.l0.len(), workgroup % ARRAYS);
        for &line in what.lines {
            if what.writes {
                // Stores and atomics bypass the first two levels.
                self.traffic.stores += 1;
                self.traffic.memory_writes += u64::from(self.l2.touch(line, true).1);
            } else if self.l0[unit].touch(line, false).0 {
                self.traffic.l0_hits += 1;
            } else if self.l1[array].touch(line, false).0 {
                self.traffic.l1_hits += 1;
            } else {
                let (hit, evicted) = self.l2.touch(line, false);
                self.traffic.memory_writes += u64::from(evicted);
                if hit { self.traffic.l2_hits += 1 } else { self.traffic.memory_reads += 1 }
            }
        }
    }

    /// Starts counting here. Earlier accesses have warmed the caches.
    pub(crate) fn restart(&mut self) {
        self.traffic = Traffic { memory_writes: 0, ..Traffic::default() };
    }

    /// Lines that still have to be written to memory.
    pub(crate) fn pending_writes(&self) -> u64 {
        self.l2.dirty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_read_from_memory_once_and_what_does_not_every_time() {
        for (lines, expected) in [(64u64, 64u64), (100_000, 200_000)] {
            let mut caches = Caches::of(&crate::CARDS[0]);
            for _ in 0..2 {
                for line in 0..lines {
                    caches.touch(0, &Lines { lines: &[line], writes: false });
                }
            }
            assert_eq!(caches.traffic.memory_reads, expected, "{lines} lines");
        }
    }

    #[test]
    fn workgroups_share_the_second_level_and_not_the_first() {
        let mut caches = Caches::of(&crate::CARDS[0]);
        for workgroup in [0, 4, 1] {
            caches.touch(workgroup, &Lines { lines: &[7], writes: false });
        }
        let Traffic { l0_hits, l1_hits, l2_hits, memory_reads, .. } = caches.traffic;
        assert_eq!((l0_hits, l1_hits, l2_hits, memory_reads), (0, 1, 1, 1), "0 and 4 are in one array, 1 is not");
    }

    #[test]
    fn what_is_written_reaches_memory_when_it_has_to_go() {
        let mut caches = Caches::of(&crate::CARDS[0]);
        let lines = crate::CARDS[0].l2_bytes / LINE * 2;
        for line in 0..lines {
            caches.touch(0, &Lines { lines: &[line], writes: true });
        }
        assert_eq!(caches.traffic.memory_writes + caches.pending_writes(), lines);
    }
}
