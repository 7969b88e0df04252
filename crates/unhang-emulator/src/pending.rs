//! What is pending in a wave, hazards and loads in flight, and where it leads.
//!
//! Loops come by the same places with the same things pending again and again. So each state that was met gets a number,
//! and what a stretch or an instruction makes of it is looked up from the second time on. Numbers are those of one thread of
//! one launch. Where there are too many different states, each wave goes on with its own.

use std::collections::HashMap;

use unhang_isa::audit::PathWatch;

use crate::waits::{Flights, FlightsInShort};
use crate::wave::Wave;

/// What is pending.
#[derive(Clone, Default)]
pub(crate) struct Pending {
    pub watch: PathWatch,
    /// The same from the last call or return on, if there was one.
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
/// Steps that are found at once; a power of two.
const RECENT: usize = 1 << 10;

/// [`Pending`] in little space.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Short {
    watch: PathWatch,
    watch_since_call: Option<PathWatch>,
    flights: FlightsInShort,
}

/// A state, the function and the place in it at which the wave is, and the lanes that are on if that makes a difference.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Step {
    state: u32,
    function: u32,
    place: u32,
    lanes: u64,
}

impl Step {
    const NONE: Step = Step { state: UNKNOWN, function: 0, place: 0, lanes: 0 };

    #[inline(always)]
    fn slot(&self) -> usize {
        let mixed = (self.state as u64 ^ (self.place as u64) << 20 ^ (self.function as u64) << 44)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 48) as usize % RECENT
    }
}

/// The states that one thread has met, and the steps between them.
pub(crate) struct KnownStates {
    most: usize,
    states: Vec<Short>,
    numbers: HashMap<Short, u32>,
    steps: HashMap<Step, u32>,
    recent: Vec<(Step, u32)>,
}

impl KnownStates {
    /// With `keep` off nothing is remembered: each step is taken anew.
    pub fn new(keep: bool) -> KnownStates {
        KnownStates {
            most: if keep { MOST_STATES } else { 0 },
            states: Vec::new(),
            numbers: HashMap::new(),
            steps: HashMap::new(),
            recent: vec![(Step::NONE, UNKNOWN); if keep { RECENT } else { 0 }],
        }
    }

    /// Takes what is pending past a place; `false` if it cannot be taken so, and then nothing has changed but for waits.
    /// `take` must depend on nothing but what is pending, the place and the lanes.
    #[inline(always)]
    pub fn pass(&mut self, wave: &mut Wave, place: u32, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        if wave.known != UNKNOWN {
            let step = Step { state: wave.known, function: wave.function, place, lanes };
            let (last, next) = self.recent[step.slot()];
            if last == step {
                if next == NOWHERE {
                    return false;
                }
                wave.known = next;
                return true;
            }
        }
        self.pass_anew(wave, place, lanes, take)
    }

    #[cold]
    #[inline(never)]
    fn pass_anew(&mut self, wave: &mut Wave, place: u32, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        if wave.known == UNKNOWN {
            wave.known = self.number(&wave.pending);
        }
        if wave.known == UNKNOWN {
            return take(&mut wave.pending);
        }
        let step = Step { state: wave.known, function: wave.function, place, lanes };
        let next = match self.steps.get(&step) {
            Some(&next) => next,
            None => {
                self.restore(wave);
                if take(&mut wave.pending) {
                    match self.number(&wave.pending) {
                        // No more numbers: the wave goes on with its own state.
                        UNKNOWN => return true,
                        next => next,
                    }
                } else {
                    NOWHERE
                }
            }
        };
        if self.steps.len() < MOST_STEPS {
            self.steps.insert(step, next);
        }
        self.recent[step.slot()] = (step, next);
        if next == NOWHERE {
            wave.known = step.state;
            return false;
        }
        wave.known = next;
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
