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
pub(crate) fn default_threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let asked = std::env::var("OMP_NUM_THREADS").ok();
        // OpenMP allows a list, one number for each level of nesting; the first is ours.
        let asked = asked.and_then(|text| text.split(',').next().and_then(|word| word.trim().parse::<usize>().ok()));
        asked.filter(|&threads| threads > 0).map_or(available_threads(), |threads| threads.min(available_threads()))
    })
}

/// Calls `work` for every unit in `0..units`, each once, on up to `threads` threads.
pub(crate) fn for_each_unit(threads: usize, units: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    on_threads(threads.min(units), threads, || claim_units(&next, units, &work));
}

/// Calls `work` for every unit of every phase, given how many units each has: those of a phase after all of the phase before.
///
/// Threads come together once and not for each phase. One that gets no core meanwhile is not waited for unless it holds a unit:
/// where cores are busy, hundreds of short regions of a team took twelve times as long as one.
pub(crate) fn for_each_phase(threads: usize, phases: &[usize], work: impl Fn(usize, usize) + Sync) {
    let progress: Vec<[AtomicUsize; 2]> = phases.iter().map(|_| Default::default()).collect();
    let most = phases.iter().copied().max().unwrap_or(0);
    on_threads(threads.min(most), threads, || {
        for (phase, (&units, [next, done])) in phases.iter().zip(&progress).enumerate() {
            claim_units(next, units, &|unit| {
                // Counted even if it panics: the others must not wait for ever.
                let _done = CountAtEnd(done);
                work(phase, unit);
            });
            let mut looks = 0u32;
            while done.load(Ordering::Acquire) < units {
                looks += 1;
                if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    });
}

/// How often a thread looks whether a phase is done before it offers its core to others: some microseconds.
const LOOKS: u32 = 2000;

/// Counts one more when it goes.
struct CountAtEnd<'a>(&'a AtomicUsize);

impl Drop for CountAtEnd<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn claim_units(next: &AtomicUsize, units: usize, work: &impl Fn(usize)) {
    loop {
        let unit = next.fetch_add(1, Ordering::Relaxed);
        if unit >= units {
            return;
        }
        work(unit);
    }
}

/// Calls `work` on the caller's thread and on others, `useful` at most, from a team or a pool of `threads`.
fn on_threads(useful: usize, threads: usize, work: impl Fn() + Sync) {
    let helpers = useful.saturating_sub(1);
    let entered = AtomicUsize::new(0);
    // A team comes as a whole: those for whom there is nothing to do go at once.
    let work_if_useful = || {
        if entered.fetch_add(1, Ordering::Relaxed) < useful {
            work();
        }
    };
    if helpers > 0 && run_on_team(threads, &work_if_useful) {
        return;
    }
    match if helpers == 0 { None } else { pool(threads - 1) } {
        None => work(),
        Some(pool) => pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| work());
            }
            work();
        }),
    }
}

/// Calls `work` with every chunk of a slice and its number, on up to `threads` threads.
pub(crate) fn for_each_chunk<T: Send>(
    threads: usize,
    slice: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let units = slice.len().div_ceil(chunk);
    let chunks = Mutex::new(slice.chunks_mut(chunk).enumerate());
    for_each_unit(threads, units, |_| {
        let claimed = chunks.lock().map(|mut chunks| chunks.next()).unwrap_or(None);
        if let Some((number, chunk)) = claimed {
            work(number, chunk);
        }
    });
}

/// The pool of this process with that many helpers; none where it is not available, and then the caller works alone.
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
    fn a_phase_begins_when_the_one_before_it_is_done() {
        let phases = [3, 0, 1, 7, 2];
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = phases.iter().map(|_| AtomicUsize::new(0)).collect();
            for_each_phase(threads, &phases, |phase, unit| {
                assert!(unit < phases[phase]);
                let before = phase.checked_sub(1).map_or(0, |before| counts[before].load(Ordering::Relaxed));
                assert_eq!(before, phase.checked_sub(1).map_or(0, |before| phases[before]));
                std::thread::sleep(std::time::Duration::from_millis(unit as u64));
                counts[phase].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().zip(phases).all(|(count, units)| count.load(Ordering::Relaxed) == units));
        }
    }

    #[test]
    fn a_phase_that_panics_ends() {
        let ended = std::panic::catch_unwind(|| for_each_phase(3, &[4, 4], |_, unit| assert_ne!(unit, 2)));
        assert!(ended.is_err());
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
