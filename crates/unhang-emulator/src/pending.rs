//! What is pending in a wave, hazards and loads in flight, and where it leads.
//!
//! Loops come by the same places with the same things pending again and again. So each state that was met gets a number,
//! and what a stretch or an instruction makes of it is looked up from the second time on. Numbers are those of one thread; what
//! it has learned is kept with the decoded code for later launches. Where there are too many different states, each wave goes
//! on with its own.

use std::collections::HashMap;

use unhang_isa::audit::PathWatch;

use crate::waits::{Flights, FlightsInShort};
use crate::wave::Wave;

/// What is pending.
#[derive(Clone, Default)]
pub(crate) struct Pending {
    pub watch: PathWatch,
    /// What is pending since the last call or return, if there was one.
    pub watch_since_call: Option<PathWatch>,
    pub flights: Flights,
}

/// A state of which only the wave knows.
pub(crate) const UNKNOWN: u32 = u32::MAX;
/// Where a step leads that cannot be taken as a whole.
const NOWHERE: u32 = u32::MAX - 1;
/// States of one thread at most, and steps between them.
const MOST_STATES: usize = 1 << 13;
const MOST_STEPS: usize = 1 << 16;

/// [`Pending`] in little space.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Short {
    watch: PathWatch,
    watch_since_call: Option<PathWatch>,
    flights: FlightsInShort,
}

/// A state, the place in the code at which the wave is, and the lanes that are on if that makes a difference.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Step {
    place: u64,
    lanes: u64,
    state: u32,
}

/// Where steps lead: a table in which one is found where its hash says, or a little behind.
struct Steps {
    /// A power of two of them, at least half of them free; those have no state.
    slots: Vec<(Step, u32)>,
    count: usize,
}

impl Steps {
    const FREE: (Step, u32) = (Step { place: 0, lanes: 0, state: UNKNOWN }, UNKNOWN);
    const FIRST: usize = 1 << 10;

    fn new() -> Steps {
        Steps { slots: vec![Steps::FREE; Steps::FIRST], count: 0 }
    }

    /// The slot of a step, or the free one in which it belongs.
    #[inline(always)]
    fn slot(&self, step: &Step) -> usize {
        let mixed =
            (step.place ^ step.lanes.rotate_left(27) ^ (step.state as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (mixed >> 40) as usize & (self.slots.len() - 1);
        while self.slots[slot].0 != *step && self.slots[slot].0.state != UNKNOWN {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Where a step leads, if that is known.
    #[inline(always)]
    fn get(&self, step: &Step) -> Option<u32> {
        let (found, next) = self.slots[self.slot(step)];
        (found.state != UNKNOWN).then_some(next)
    }

    /// Keeps a step that is not known yet, if there is room.
    fn insert(&mut self, step: Step, next: u32) {
        if self.count >= MOST_STEPS {
            return;
        }
        self.count += 1;
        if self.count * 2 > self.slots.len() {
            let larger = vec![Steps::FREE; self.slots.len() * 2];
            for old in std::mem::replace(&mut self.slots, larger) {
                if old.0.state != UNKNOWN {
                    let slot = self.slot(&old.0);
                    self.slots[slot] = old;
                }
            }
        }
        let slot = self.slot(&step);
        self.slots[slot] = (step, next);
    }
}

/// The states that one thread has met, and the steps between them.
pub(crate) struct KnownStates {
    most: usize,
    /// Whether hazards were checked: where a step leads depends on it.
    hazards: bool,
    states: Vec<Short>,
    numbers: HashMap<Short, u32>,
    steps: Steps,
}

impl KnownStates {
    /// With `keep` off nothing is remembered: each step is taken anew.
    pub fn new(keep: bool, hazards: bool) -> KnownStates {
        KnownStates {
            most: if keep { MOST_STATES } else { 0 },
            hazards,
            states: Vec::new(),
            numbers: HashMap::new(),
            steps: Steps::new(),
        }
    }

    /// Whether a launch can go on with it: it remembers, has the same checks on, and has room for more.
    pub fn serves(&self, hazards: bool) -> bool {
        self.hazards == hazards && self.states.len() < self.most / 2 && self.steps.count < MOST_STEPS / 2
    }

    /// Takes what is pending past a [place](crate::code::Function::places); `false` if it cannot be taken so, and then nothing has
    /// changed but for waits. `take` must depend on nothing but what is pending, the place and the lanes.
    #[inline(always)]
    pub fn pass(&mut self, wave: &mut Wave, place: u64, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        if wave.known != UNKNOWN
            && let Some(next) = self.steps.get(&Step { place, lanes, state: wave.known })
        {
            if next == NOWHERE {
                return false;
            }
            wave.known = next;
            return true;
        }
        self.pass_anew(wave, place, lanes, take)
    }

    #[cold]
    #[inline(never)]
    fn pass_anew(&mut self, wave: &mut Wave, place: u64, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        if wave.known == UNKNOWN {
            wave.known = self.number(&wave.pending);
            if wave.known == UNKNOWN {
                return take(&mut wave.pending);
            }
            return self.pass(wave, place, lanes, take);
        }
        let step = Step { place, lanes, state: wave.known };
        self.restore(wave);
        if !take(&mut wave.pending) {
            self.steps.insert(step, NOWHERE);
            wave.known = step.state;
            return false;
        }
        wave.known = self.number(&wave.pending);
        if wave.known != UNKNOWN {
            self.steps.insert(step, wave.known);
        }
        // Without a number, the wave goes on with its own state.
        true
    }

    /// The number of a state, a new one if there is none.
    fn number(&mut self, pending: &Pending) -> u32 {
        if self.most == 0 {
            return UNKNOWN;
        }
        let Pending { watch, watch_since_call, ref flights } = *pending;
        let short = Short { watch, watch_since_call, flights: flights.in_short() };
        if let Some(&number) = self.numbers.get(&short) {
            return number;
        }
        if self.states.len() >= self.most {
            return UNKNOWN;
        }
        let number = self.states.len() as u32;
        self.states.push(short.clone());
        self.numbers.insert(short, number);
        number
    }

    /// Gives a wave its state, to be looked at and changed.
    pub fn restore<'w>(&self, wave: &'w mut Wave) -> &'w mut Pending {
        if let Some(short) = self.states.get(wave.known as usize) {
            let Short { watch, watch_since_call, ref flights } = *short;
            wave.pending = Pending { watch, watch_since_call, flights: Flights::of(flights) };
            wave.known = UNKNOWN;
        }
        &mut wave.pending
    }
}
