//! Work shared among threads: units are claimed one by one, so that who computes a unit never changes what comes out.
//!
//! The threads are those of a team that the process has anyway ([`crate::use_openmp_of`]), or of our own pools.
//! Pools are made at first use and belong to the process that made them: a forked child has none of its parent's
//! threads, so pools are looked up by process id. The caller works too, so that a pool holds one thread fewer than
//! asked for, and one thread touches no pool at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::openmp::run_on_team;

/// The threads that can run at once in this process: what affinity and the cgroup's quota of processor time (version 1
/// and 2, both of which the standard library reads) leave of the machine's. Asked once.
pub fn available_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The threads that a computation uses when nobody says: `OMP_NUM_THREADS`, but no more than can run at once.
pub fn default_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let asked = std::env::var("OMP_NUM_THREADS").ok();
        // OpenMP allows a list, one number for each level of nesting; the first is ours.
        let asked = asked.and_then(|text| text.split(',').next().and_then(|word| word.trim().parse::<usize>().ok()));
        asked.filter(|&threads| threads > 0).map_or(available_threads(), |threads| threads.min(available_threads()))
    })
}

/// Calls `work` for every unit in `0..units`, each once, on up to `threads` threads.
pub fn for_each_unit(threads: usize, units: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let claim = || {
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return;
            }
            work(unit);
        }
    };
    let helpers = threads.min(units).saturating_sub(1);
    if helpers > 0 && run_on_team(threads, &claim) {
        return;
    }
    match if helpers == 0 { None } else { pool(threads - 1) } {
        None => claim(),
        Some(pool) => pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| claim());
            }
            claim();
        }),
    }
}

/// Calls `work` with every chunk of a slice and its number, on up to `threads` threads.
pub fn for_each_chunk<T: Send>(threads: usize, slice: &mut [T], chunk: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let units = slice.len().div_ceil(chunk);
    let chunks = Mutex::new(slice.chunks_mut(chunk).enumerate());
    for_each_unit(threads, units, |_| {
        let claimed = chunks.lock().map(|mut chunks| chunks.next()).unwrap_or(None);
        if let Some((number, chunk)) = claimed {
            work(number, chunk);
        }
    });
}

/// The pool of this process with that many helpers; none where it cannot be had, and then the caller works alone.
fn pool(helpers: usize) -> Option<&'static ThreadPool> {
    type Pools = Vec<((u32, usize), &'static ThreadPool)>;
    static POOLS: Mutex<Pools> = Mutex::new(Vec::new());
    let key = (std::process::id(), helpers);
    // A child may have been forked while another thread held the lock, which then is never opened: do not wait for it.
    // Threads that come at the same time are not worth waiting for either, after a few tries.
    let mut pools = (0..1000).find_map(|_| {
        POOLS.try_lock().ok().or_else(|| {
            std::thread::yield_now();
            None
        })
    })?;
    if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == key) {
        return Some(pool);
    }
    let built = ThreadPoolBuilder::new()
        .num_threads(helpers)
        .thread_name(|number| format!("unhang-cpu-{number}"))
        .build()
        .ok()?;
    // Pools live as long as the process: dropping a parent's pool in a forked child would wait for threads that are
    // not there.
    let pool: &'static ThreadPool = Box::leak(Box::new(built));
    pools.push((key, pool));
    Some(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_done_once() {
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            for_each_unit(threads, counts.len(), |unit| {
                counts[unit].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn one_thread_stays_on_the_callers() {
        let caller = std::thread::current().id();
        for_each_unit(1, 10, |_| assert_eq!(std::thread::current().id(), caller));
    }

    #[test]
    fn chunks_are_numbered_in_order() {
        let mut numbers = vec![0; 103];
        for_each_chunk(3, &mut numbers, 10, |number, chunk| chunk.fill(number));
        assert!(numbers.iter().enumerate().all(|(index, &number)| number == index / 10));
    }
}
