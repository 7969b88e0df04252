//! Whether the queues of this process move, for `unhang run`.
//!
//! Watchdogs that know convolutions see only programs that ask for some. The runtime's table shows every program's queues: which
//! there are, how far each was filled and how far the card has read it. Where queues hold packets and none of them moves for as
//! long as other work may take, that is a hang. It is written down and said with the kernel at which a queue stands, and the
//! process ends. A launch costs nothing: a thread looks at two numbers of each queue twice a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What is known of a queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// How many packets were put in.
    pub(crate) written: u64,
    /// How many of them the card has taken out.
    pub(crate) read: u64,
}

/// Since when each queue stands, by its address. Time is what the caller counts.
#[derive(Default)]
pub(crate) struct Stands {
    since: HashMap<usize, (Reading, Duration)>,
}

impl Stands {
    /// Takes notice of a reading; for how long the queue has held packets without moving.
    pub(crate) fn note(&mut self, queue: usize, now: Duration, reading: Reading) -> Duration {
        let is_empty = reading.read >= reading.written;
        let (before, since) = *self.since.entry(queue).or_insert((reading, now));
        // What is put in behind something that hangs does not move it.
        if is_empty || before.read != reading.read || before.read >= before.written {
            self.since.insert(queue, (reading, now));
            return Duration::ZERO;
        }
        now.saturating_sub(since)
    }

    /// Forgets queues that are gone: another may be made at the same address.
    pub(crate) fn keep(&mut self, is_there: impl Fn(usize) -> bool) {
        self.since.retain(|queue, _| is_there(*queue));
    }
}

/// Kernels by the address that a dispatch packet holds.
static KERNELS: Mutex<Option<HashMap<u64, String>>> = Mutex::new(None);

/// Keeps the name of a kernel that was loaded.
pub(crate) fn remember_kernel(object: u64, name: String) {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(object, name);
}

/// The kernel of a dispatch packet, as people read it.
pub(crate) fn kernel_name(object: u64) -> Option<String> {
    let kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = kernels.as_ref()?.get(&object)?;
    Some(name.strip_suffix(".kd").unwrap_or(name).chars().take(200).collect())
}

/// After how long queues that do not move are a hang, as `unhang run` says; `None` where nothing is watched. Ranks of one job
/// wait for each other on the accelerator, and have watchdogs that know of each other's deadlines.
pub(crate) fn deadline(variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let text = variable("UNHANG_QUEUE_DEADLINE").filter(|text| !text.is_empty())?;
    let explained = |error| crate::log::line(format_args!("queues are not watched: UNHANG_QUEUE_DEADLINE: {error}"));
    let deadline = unhang_guard::time::deadline(&text).map_err(explained).ok()?;
    let is_together = variable("WORLD_SIZE").and_then(|ranks| ranks.parse::<u32>().ok()).is_some_and(|it| it > 1);
    (!is_together).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_stands_only_while_it_holds_packets_that_are_not_taken() {
        let at = Duration::from_secs;
        let mut stands = Stands::default();
        let mut note = |seconds, written, read| stands.note(7, at(seconds), Reading { written, read }).as_secs();
        assert_eq!(note(0, 5, 5), 0);
        assert_eq!(note(100, 5, 5), 0, "an idle queue does not hang");
        assert_eq!(note(101, 6, 5), 0, "time counts from the first packet on");
        assert_eq!(note(111, 6, 5), 10);
        assert_eq!(note(121, 9, 5), 20, "more packets behind it change nothing");
        assert_eq!(note(122, 9, 6), 0, "it moved");
        assert_eq!(note(132, 9, 6), 10);
        assert_eq!(note(133, 9, 9), 0);
        stands.keep(|_| false);
        assert_eq!(
            stands.note(7, at(500), Reading { written: 4, read: 1 }).as_secs(),
            0,
            "another at the same address"
        );
    }

    #[test]
    fn nobody_watches_unasked_or_among_ranks() {
        let find = |variables: &[(&str, &str)]| {
            deadline(|name| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[("UNHANG_QUEUE_DEADLINE", "1.5")]), Some(Duration::from_millis(1500)));
        assert_eq!(find(&[("UNHANG_QUEUE_DEADLINE", "5m")]), Some(Duration::from_secs(300)));
        assert_eq!(find(&[("UNHANG_QUEUE_DEADLINE", "1.5"), ("WORLD_SIZE", "1")]), Some(Duration::from_millis(1500)));
        assert_eq!(find(&[("UNHANG_QUEUE_DEADLINE", "1.5"), ("WORLD_SIZE", "2")]), None);
        for nonsense in ["", "0", "-1", "soon", "inf", "NaN"] {
            assert_eq!(find(&[("UNHANG_QUEUE_DEADLINE", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn kernels_are_named_by_their_symbol() {
        remember_kernel(0x1000, "axpy.kd".to_owned());
        assert_eq!(kernel_name(0x1000).as_deref(), Some("axpy"));
        assert_eq!(kernel_name(0x1040), None);
    }
}
