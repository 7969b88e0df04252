//! Whether the queues of this process move, for `unhang run`.
//!
//! Watchdogs that know convolutions see only programs that ask for some. The runtime's table shows every program's queues: which
//! there are, how far each was filled and how far the card has read it. Where queues hold packets and none of them moves for as
//! long as other work may take, that is a hang. It is written down and said with the kernel at which a queue stands, and the
//! process ends. A launch costs nothing: a thread looks at two numbers of each queue twice a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The state of a queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// How many packets were put in.
    pub(crate) written: u64,
    /// How many of them the card has taken out.
    pub(crate) read: u64,
}

/// A packet of any kind: 64 bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Packet(pub(crate) [u64; 8]);

/// `HSA_PACKET_TYPE_VENDOR_SPECIFIC`, `…_INVALID` (what a packet becomes once the card has taken it), `…_KERNEL_DISPATCH`, `…_BARRIER_AND`,
/// `…_BARRIER_OR`.
const VENDOR: u8 = 0;
pub(crate) const TAKEN: u8 = 1;
pub(crate) const DISPATCH: u8 = 2;
const BARRIER_AND: u8 = 3;
const BARRIER_OR: u8 = 5;
/// `HSA_AMD_PACKET_TYPE_BARRIER_VALUE`, of AMD's own packets.
const BARRIER_VALUE: u8 = 2;

impl Packet {
    pub(crate) fn kind(&self) -> u8 {
        self.0[0] as u8
    }

    pub(crate) fn kernel_object(&self) -> u64 {
        self.0[4]
    }

    /// The signal that it will count down.
    fn completion(&self) -> u64 {
        self.0[7]
    }

    /// The signals that it still waits for; none if it is not a barrier, or has been released. `value` reads a
    /// signal.
    pub(crate) fn awaited(&self, value: impl Fn(u64) -> i64) -> Vec<u64> {
        let named = || self.0[1..6].iter().copied().filter(|signal| *signal != 0);
        match self.kind() {
            BARRIER_AND => named().filter(|signal| value(*signal) != 0).collect(),
            BARRIER_OR if named().any(|signal| value(signal) == 0) => Vec::new(),
            BARRIER_OR => named().collect(),
            VENDOR if (self.0[0] >> 16) as u8 == BARRIER_VALUE && self.0[1] != 0 => {
                let [_, signal, wanted, mask, condition, ..] = self.0;
                let (found, wanted) = (value(signal) & mask as i64, wanted as i64);
                let may_pass = match condition as u32 {
                    0 => found == wanted,
                    1 => found != wanted,
                    2 => found < wanted,
                    _ => found >= wanted,
                };
                if may_pass { Vec::new() } else { vec![signal] }
            }
            _ => Vec::new(),
        }
    }
}

/// A queue that can be looked into.
pub(crate) struct View<'a> {
    pub(crate) reading: Reading,
    pub(crate) packet: &'a dyn Fn(u64) -> Packet,
}

/// Whether the queue at this place waits at a barrier for a signal that no queue of the process will give: the host's,
/// which may take as long as it likes.
pub(crate) fn waits_for_the_host(queues: &[View<'_>], place: usize, value: impl Fn(u64) -> i64) -> bool {
    /// The most packets to look at; a fuller queue is not waiting for its host.
    const MOST: u64 = 4096;
    let this = &queues[place];
    let awaited = (this.packet)(this.reading.read).awaited(value);
    let is_owed = |signal: &u64| {
        queues.iter().enumerate().any(|(other, queue)| {
            // The last packet taken may still run. Nothing behind the barrier in the same queue can release it.
            let first = queue.reading.read.saturating_sub(1);
            let end = if other == place { queue.reading.read } else { queue.reading.written };
            (first..end.min(first.saturating_add(MOST))).any(|index| (queue.packet)(index).completion() == *signal)
        })
    };
    !awaited.is_empty() && !awaited.iter().any(is_owed)
}

/// Since when each queue has stood still, by its address. The caller counts the time.
#[derive(Default)]
pub(crate) struct Stands {
    since: HashMap<usize, (Reading, Duration)>,
}

impl Stands {
    /// Notes a reading; returns how long the queue has held packets without moving.
    pub(crate) fn note(&mut self, queue: usize, now: Duration, reading: Reading) -> Duration {
        let is_empty = reading.read >= reading.written;
        let (before, since) = *self.since.entry(queue).or_insert((reading, now));
        // Packets added behind a hang do not count as movement.
        if is_empty || before.read != reading.read || before.read >= before.written {
            self.since.insert(queue, (reading, now));
            return Duration::ZERO;
        }
        now.saturating_sub(since)
    }

    /// Forgets destroyed queues: a new one may get the same address.
    pub(crate) fn keep(&mut self, is_there: impl Fn(usize) -> bool) {
        self.since.retain(|queue, _| is_there(*queue));
    }
}

/// Kernels by the address that a dispatch packet holds.
static KERNELS: Mutex<Option<HashMap<u64, String>>> = Mutex::new(None);

/// Notes the name of a loaded kernel.
pub(crate) fn remember_kernel(object: u64, name: String) {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(object, name);
}

/// The kernel of a dispatch packet, with a readable name.
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

    fn packet(kind: u8, words: &[(usize, u64)]) -> Packet {
        let mut packet = Packet([u64::from(kind), 0, 0, 0, 0, 0, 0, 0]);
        for (place, word) in words {
            packet.0[*place] |= word;
        }
        packet
    }

    #[test]
    fn barriers_wait_for_signals_that_were_not_given() {
        // Signals 10 and 11 were given, 20 and 21 were not.
        let value = |signal: u64| i64::from(signal >= 20);
        let awaited = |packet: Packet| packet.awaited(value);
        assert_eq!(awaited(packet(BARRIER_AND, &[(1, 10), (3, 20), (5, 21)])), [20, 21]);
        assert!(awaited(packet(BARRIER_AND, &[(1, 10), (2, 11)])).is_empty());
        assert_eq!(awaited(packet(BARRIER_OR, &[(1, 20), (2, 21)])), [20, 21]);
        assert!(awaited(packet(BARRIER_OR, &[(1, 20), (2, 10)])).is_empty());
        assert!(awaited(packet(DISPATCH, &[(1, 20)])).is_empty());
        let wait_value = |condition: u64, wanted: u64| {
            packet(VENDOR, &[(0, u64::from(BARRIER_VALUE) << 16), (1, 20), (2, wanted), (3, u64::MAX), (4, condition)])
        };
        assert_eq!(awaited(wait_value(0, 7)), [20], "1 is not 7");
        assert!(awaited(wait_value(0, 1)).is_empty());
        assert!(awaited(wait_value(2, 7)).is_empty() && awaited(wait_value(1, 7)).is_empty());
        assert_eq!(awaited(wait_value(3, 7)), [20]);
    }

    #[test]
    fn only_a_barrier_that_no_queue_can_open_waits_for_the_host() {
        let value = |_| 1;
        let barrier = packet(BARRIER_AND, &[(1, 20)]);
        let behind = packet(DISPATCH, &[(7, 20)]);
        let kernel = |completion| packet(DISPATCH, &[(7, completion)]);
        let check = |own: [Packet; 3], other: [Packet; 2], read: u64| {
            let (own_packet, other_packet) = (|index| own[index as usize], |index| other[index as usize]);
            let queues = [
                View { reading: Reading { written: 3, read: 1 }, packet: &own_packet },
                View { reading: Reading { written: 2, read }, packet: &other_packet },
            ];
            waits_for_the_host(&queues, 0, value)
        };
        let nothing = [kernel(0); 2];
        assert!(check([kernel(0), barrier, behind], nothing, 2), "nothing behind a barrier opens it");
        assert!(!check([kernel(20), barrier, kernel(0)], nothing, 2), "the kernel before it may still run");
        assert!(!check([kernel(0), barrier, kernel(0)], [kernel(0), kernel(20)], 1), "another queue has it to do");
        assert!(!check([kernel(0), barrier, kernel(0)], [kernel(0), kernel(20)], 2), "and may still be doing it");
        assert!(check([kernel(0), barrier, kernel(0)], [kernel(20), kernel(0)], 2), "that was done long ago");
        assert!(!check([kernel(0), kernel(0), barrier], nothing, 2), "it stands at a kernel");
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
