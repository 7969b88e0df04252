//! Races: two waves of a workgroup that touch the same bytes with nothing between them that orders them.
//!
//! Each wave has a vector clock. A barrier joins the clocks of all waves, an atomic joins the wave's with that of the word it
//! works on, as if it acquired and released. An access is a race with an earlier one of another wave to the same bytes if one
//! of them writes, not both are atomic, and the wave's clock does not know the earlier one. Lanes of a wave run in step and
//! do not race; scalar loads and private memory are not looked at.

use std::collections::HashMap;

use crate::{FaultKind, Race};

/// Waves of a workgroup: 1024 work-items in waves of 32.
const WAVES: usize = 32;

type Clock = [u32; WAVES];

/// What an access does.
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

/// Where an access goes.
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
    /// Which bytes of the word.
    bytes: u8,
    /// The instruction's address.
    instruction: u64,
}

/// What a workgroup has done to memory.
pub(crate) struct Races {
    clocks: Vec<Clock>,
    /// Accesses by word: LDS, and global memory.
    words: HashMap<Where, Vec<Record>>,
    /// The clocks that atomics left at words.
    released: HashMap<Where, Clock>,
    /// The wave that is running, and the instruction that it executes.
    pub wave: u8,
    pub instruction: u64,
}

impl Races {
    pub fn new(waves: usize) -> Races {
        let mut clocks = vec![[0; WAVES]; waves.min(WAVES)];
        clocks.iter_mut().enumerate().for_each(|(wave, clock)| clock[wave] = 1);
        Races { clocks, words: HashMap::new(), released: HashMap::new(), wave: 0, instruction: 0 }
    }

    /// All waves have come to a barrier: what was done before is known to all.
    pub fn barrier(&mut self) {
        let mut all = [0; WAVES];
        self.clocks.iter().for_each(|clock| join(&mut all, clock));
        for (wave, clock) in self.clocks.iter_mut().enumerate() {
            *clock = all;
            clock[wave] += 1;
        }
        // Nothing that was done before can race with what comes.
        self.words.clear();
    }

    /// Notes an access, of up to 8 bytes.
    pub fn touch(&mut self, place: Where, size: u32, deed: Deed) -> Result<(), FaultKind> {
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
        let records = self.words.entry(key).or_default();
        for record in records.iter() {
            let both = (record.deed, deed);
            let harmless = matches!(both, (Deed::Read, Deed::Read) | (Deed::Atomic, Deed::Atomic));
            let other = record.wave as usize;
            if other != wave && !harmless && record.bytes & bytes != 0 && record.time > clock[other] {
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
                })));
            }
        }
        // What is known, and not stronger than this access, will not be raced with before this one is.
        let time = clock[wave];
        records.retain(|record| {
            let known = record.wave as usize == wave || record.time <= clock[record.wave as usize];
            let weaker = deed == Deed::Write || record.deed == deed;
            !(known && weaker && record.bytes & !bytes == 0)
        });
        records.push(Record { wave: wave as u8, time, deed, bytes, instruction: self.instruction });
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
        Races::new(3)
    }

    fn touch(races: &mut Races, wave: u8, at: u32, size: u32, deed: Deed) -> bool {
        races.wave = wave;
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
}
