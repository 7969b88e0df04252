//! Races: two waves of a workgroup that touch the same bytes without anything that orders them.
//!
//! Each wave has a vector clock. A barrier joins the clocks of all waves. An atomic joins the wave's clock with that of
//! its word, as if it acquired and released. An access can race with an earlier one of another wave to the same bytes
//! if one of them writes and not both are atomic. It does race if the wave's clock does not know the earlier one. Lanes
//! of a wave run in step and do not race; scalar loads and private memory are not checked.
//!
//! If waits are checked, an access happens only when its wave has waited for it. A barrier may be reached with an
//! access in flight. After it, stored data may not have arrived yet, and data to be loaded may be overwritten. `vmcnt`
//! counts returns from global memory, `vscnt` stores to it, `lgkmcnt` accesses to LDS; each in order. A flat access is
//! counted by both sides, and has arrived when the memory that it went to says so. Barriers do not wait for memory on
//! gfx10: compilers put a wait before each.

use std::collections::HashMap;

use crate::waits::{Counter, Flight};
use crate::{FaultKind, Race};

/// The most waves of a workgroup: 1024 work-items in waves of 32.
const WAVES: usize = 32;

type Clock = [u32; WAVES];

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Read,
    Write,
    Atomic,
}

impl Deed {
    fn name(self) -> &'static str {
        match self {
            Deed::Read => "reads",
            Deed::Write => "writes",
            Deed::Atomic => "updates",
        }
    }
}

/// The target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Where {
    Local(u32),
    Global(u64),
}

/// An access that others may still race with.
#[derive(Clone, Copy)]
struct Record {
    wave: u8,
    time: u32,
    deed: Deed,
    /// The bytes of the word, as a mask.
    bytes: u8,
    /// The instruction's address.
    instruction: u64,
    /// The counter for it, and how many were counted with it.
    line: Line,
    place_in_line: u64,
}

/// The accesses that one counter counts; they arrive in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    VectorLoads,
    VectorStores,
    Local,
}

/// The progress of a wave's accesses in one line.
#[derive(Clone, Default)]
struct Arrivals {
    issued: u64,
    /// How many had arrived, and the wave's own time when it had waited for them.
    waits: Vec<(u64, u32)>,
}

impl Arrivals {
    fn arrived(&self) -> u64 {
        self.waits.last().map_or(0, |&(arrived, _)| arrived)
    }

    /// Waits until no more than this many are in flight.
    fn wait(&mut self, limit: u8, time: u32) {
        let arrived = self.issued.saturating_sub(limit as u64);
        if limit != u8::MAX && arrived > self.arrived() {
            self.waits.push((arrived, time));
        }
    }

    /// The time at which the wave had waited for an access; `None` if it is in flight.
    fn time_of(&self, place: u64) -> Option<u32> {
        let first = self.waits.partition_point(|&(arrived, _)| arrived < place);
        self.waits.get(first).map(|&(_, time)| time)
    }
}

/// What a workgroup has done to memory.
pub(crate) struct Races {
    clocks: Vec<Clock>,
    /// For each wave, by [`Line`]; empty if waits are not checked.
    arrivals: Vec<[Arrivals; 3]>,
    /// The counter of the current instruction, if it goes to global memory.
    global_line: Line,
    /// Accesses by word: LDS, and global memory.
    words: HashMap<Where, Vec<Record>>,
    /// The clocks that atomics left at words.
    released: HashMap<Where, Clock>,
    /// The running wave, and its current instruction.
    wave: u8,
    instruction: u64,
}

impl Races {
    pub(crate) fn new(waves: usize, checks_waits: bool) -> Races {
        let mut clocks = vec![[0; WAVES]; waves.min(WAVES)];
        clocks.iter_mut().enumerate().for_each(|(wave, clock)| clock[wave] = 1);
        Races {
            arrivals: vec![Default::default(); if checks_waits { clocks.len() } else { 0 }],
            clocks,
            global_line: Line::VectorLoads,
            words: HashMap::new(),
            released: HashMap::new(),
            wave: 0,
            instruction: 0,
        }
    }

    /// An instruction is about to execute: its wave, its address, and its effect on the counters.
    pub(crate) fn begin(&mut self, wave: u8, instruction: u64, flight: Flight) {
        (self.wave, self.instruction) = (wave, instruction);
        let Some(arrivals) = self.arrivals.get_mut(wave as usize) else { return };
        let time = self.clocks[wave as usize][wave as usize];
        let mut issue = |line: Line| arrivals[line as usize].issued += 1;
        match flight {
            Flight::None => {}
            Flight::Wait { vector, other, store } => {
                // Scalar loads arrive in any order. At least all but this many of the others have arrived.
                let lines = [(Line::VectorLoads, vector), (Line::VectorStores, store), (Line::Local, other)];
                lines.into_iter().for_each(|(line, limit)| arrivals[line as usize].wait(limit, time));
            }
            Flight::Load { counter, .. } => {
                match counter {
                    Counter::Vector | Counter::Flat => issue(Line::VectorLoads),
                    Counter::Store | Counter::FlatStore => issue(Line::VectorStores),
                    Counter::Local | Counter::Scalar => {}
                }
                if matches!(counter, Counter::Local | Counter::Flat | Counter::FlatStore) {
                    issue(Line::Local);
                }
                let stores = matches!(counter, Counter::Store | Counter::FlatStore);
                self.global_line = if stores { Line::VectorStores } else { Line::VectorLoads };
            }
        }
    }

    /// The time at which an access had happened, by the clock of its wave; `None` if it is in flight.
    fn happened(arrivals: &[[Arrivals; 3]], record: &Record) -> Option<u32> {
        match arrivals.get(record.wave as usize) {
            Some(lines) => lines[record.line as usize].time_of(record.place_in_line),
            None => Some(record.time),
        }
    }

    /// All waves have reached a barrier, so everything done before is known to all.
    pub(crate) fn barrier(&mut self) {
        let mut all = [0; WAVES];
        self.clocks.iter().for_each(|clock| join(&mut all, clock));
        for (wave, clock) in self.clocks.iter_mut().enumerate() {
            *clock = all;
            clock[wave] += 1;
        }
        // Earlier accesses can race with later ones only if they are still in flight.
        let arrivals = &self.arrivals;
        self.words.retain(|_, records| {
            records.retain(|record| Races::happened(arrivals, record).is_none());
            !records.is_empty()
        });
        for line in self.arrivals.iter_mut().flatten() {
            let last = line.waits.len().saturating_sub(1);
            line.waits.drain(..last);
        }
    }

    /// Records an access of up to 8 bytes.
    pub(crate) fn touch(&mut self, place: Where, size: u32, deed: Deed) -> Result<(), FaultKind> {
        let start = match place {
            Where::Local(address) => address as u64,
            Where::Global(address) => address,
        };
        let end = start.saturating_add(size as u64);
        let mut word = start & !3;
        while word < end {
            let key = match place {
                Where::Local(_) => Where::Local(word as u32),
                Where::Global(_) => Where::Global(word),
            };
            let first = start.max(word) - word;
            let last = end.min(word + 4) - word;
            let bytes = ((1u32 << last) - (1u32 << first)) as u8;
            self.touch_word(key, bytes, deed)?;
            word += 4;
        }
        Ok(())
    }

    fn touch_word(&mut self, key: Where, bytes: u8, deed: Deed) -> Result<(), FaultKind> {
        let wave = self.wave as usize;
        let Some(clock) = self.clocks.get_mut(wave) else { return Ok(()) };
        if deed == Deed::Atomic {
            let released = self.released.entry(key).or_insert([0; WAVES]);
            join(clock, released);
        }
        let arrivals = &self.arrivals;
        let records = self.words.entry(key).or_default();
        for record in records.iter() {
            let both = (record.deed, deed);
            let harmless = matches!(both, (Deed::Read, Deed::Read) | (Deed::Atomic, Deed::Atomic));
            let other = record.wave as usize;
            if other == wave || harmless || record.bytes & bytes == 0 {
                continue;
            }
            let happened = Races::happened(arrivals, record);
            if happened.is_none_or(|time| time > clock[other]) {
                let place = match key {
                    Where::Local(address) => format!("LDS at {address:#x}"),
                    Where::Global(address) => format!("global memory at {address:#x}"),
                };
                return Err(FaultKind::Race(Box::new(Race {
                    place,
                    wave: wave as u32,
                    deed: deed.name(),
                    other_wave: other as u32,
                    other_deed: record.deed.name(),
                    distance: self.instruction.wrapping_sub(record.instruction) as i64,
                    in_flight: record.time <= clock[other],
                })));
            }
        }
        // A known access that is not stronger than this one cannot race before this one does.
        let time = clock[wave];
        let line = if matches!(key, Where::Local(_)) { Line::Local } else { self.global_line };
        records.retain(|record| {
            let happened = Races::happened(arrivals, record);
            // Within one line, the later access is in flight for longer.
            let of_the_wave = record.wave as usize == wave && (record.line == line || happened.is_some());
            let known = of_the_wave || happened.is_some_and(|time| time <= clock[record.wave as usize]);
            let weaker = deed == Deed::Write || record.deed == deed;
            !(known && weaker && record.bytes & !bytes == 0)
        });
        let place_in_line = arrivals.get(wave).map_or(0, |lines| lines[line as usize].issued);
        let instruction = self.instruction;
        records.push(Record { wave: wave as u8, time, deed, bytes, instruction, line, place_in_line });
        if deed == Deed::Atomic {
            self.released.insert(key, *clock);
            clock[wave] += 1;
        }
        Ok(())
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    for (time, other) in clock.iter_mut().zip(other) {
        *time = (*time).max(*other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn races() -> Races {
        Races::new(3, false)
    }

    fn touch(races: &mut Races, wave: u8, at: u32, size: u32, deed: Deed) -> bool {
        races.begin(wave, 0, Flight::None);
        races.touch(Where::Local(at), size, deed).is_ok()
    }

    #[test]
    fn a_write_and_another_waves_read_need_a_barrier() {
        let mut races = races();
        assert!(touch(&mut races, 0, 4, 4, Deed::Write));
        assert!(touch(&mut races, 0, 4, 4, Deed::Read), "the wave itself");
        assert!(!touch(&mut races, 1, 4, 4, Deed::Read));
        races.barrier();
        assert!(touch(&mut races, 1, 4, 4, Deed::Read));
        assert!(touch(&mut races, 2, 4, 4, Deed::Read), "readers do not race");
        assert!(!touch(&mut races, 0, 4, 4, Deed::Write), "but a writer does, with each");
    }

    #[test]
    fn only_the_same_bytes_race() {
        let mut races = races();
        assert!(touch(&mut races, 0, 4, 1, Deed::Write));
        assert!(touch(&mut races, 1, 5, 1, Deed::Write));
        assert!(touch(&mut races, 2, 6, 2, Deed::Write));
        assert!(!touch(&mut races, 2, 2, 4, Deed::Read), "across two words");
    }

    #[test]
    fn atomics_do_not_race_and_order_what_stands_around_them() {
        let mut races = races();
        assert!(touch(&mut races, 0, 0, 4, Deed::Write));
        assert!(touch(&mut races, 0, 8, 4, Deed::Atomic));
        assert!(touch(&mut races, 1, 8, 4, Deed::Atomic));
        assert!(touch(&mut races, 1, 0, 4, Deed::Read), "the first released what the second acquired");
        assert!(touch(&mut races, 2, 8, 4, Deed::Atomic));
        assert!(!touch(&mut races, 0, 8, 4, Deed::Write), "a plain write races with them");
    }

    const STORE: Flight = Flight::Load { counter: Counter::Store, first: 0, count: 0 };
    const LOAD: Flight = Flight::Load { counter: Counter::Vector, first: 0, count: 1 };
    const LOCAL: Flight = Flight::Load { counter: Counter::Local, first: 0, count: 1 };
    const FLAT_STORE: Flight = Flight::Load { counter: Counter::FlatStore, first: 0, count: 0 };

    /// A wave's access, then a wait, a barrier, and another wave's access to the same bytes.
    fn with_wait(flight: Flight, place: Where, deed: Deed, wait: [u8; 3], then: Deed) -> Result<(), bool> {
        let mut races = Races::new(2, true);
        races.begin(0, 0, flight);
        races.touch(place, 4, deed).unwrap();
        let [vector, other, store] = wait;
        races.begin(0, 8, Flight::Wait { vector, other, store });
        races.barrier();
        races.begin(1, 16, if then == Deed::Write { STORE } else { LOAD });
        races.touch(place, 4, then).map_err(|fault| match fault {
            FaultKind::Race(race) => race.in_flight,
            other => panic!("{other}"),
        })
    }

    const NOT: u8 = u8::MAX;

    #[test]
    fn what_is_in_flight_at_a_barrier_is_not_behind_it() {
        let (global, local) = (Where::Global(0x1000), Where::Local(8));
        let store = |wait| with_wait(STORE, global, Deed::Write, wait, Deed::Read);
        assert_eq!(store([NOT, NOT, 0]), Ok(()));
        assert_eq!(store([0, 0, NOT]), Err(true), "stores have a separate counter");
        assert_eq!(store([NOT, NOT, 1]), Err(true), "one may be in flight");
        // Memory is overwritten before a load of it was waited for.
        let load = |wait| with_wait(LOAD, global, Deed::Read, wait, Deed::Write);
        assert_eq!(load([0, NOT, NOT]), Ok(()));
        assert_eq!(load([NOT, 0, 0]), Err(true));
        let write = |wait| with_wait(LOCAL, local, Deed::Write, wait, Deed::Read);
        assert_eq!(write([NOT, 0, NOT]), Ok(()));
        assert_eq!(write([0, NOT, 0]), Err(true));
        // A flat access is in the memory that it went to.
        let flat = |place, wait| with_wait(FLAT_STORE, place, Deed::Write, wait, Deed::Read);
        assert_eq!((flat(global, [NOT, NOT, 0]), flat(global, [0, 0, NOT])), (Ok(()), Err(true)));
        assert_eq!((flat(local, [NOT, 0, NOT]), flat(local, [0, NOT, 0])), (Ok(()), Err(true)));
    }

    #[test]
    fn a_wait_behind_the_barrier_orders_what_the_next_one_does() {
        let mut races = Races::new(2, true);
        let place = Where::Local(0);
        races.begin(0, 0, LOCAL);
        races.touch(place, 4, Deed::Write).unwrap();
        races.barrier();
        races.begin(0, 4, Flight::Wait { vector: NOT, other: 0, store: NOT });
        races.begin(1, 4, LOCAL);
        assert!(races.touch(place, 4, Deed::Read).is_err(), "waited for, but nobody knows");
        races.barrier();
        assert!(races.touch(place, 4, Deed::Read).is_ok());
    }
}
