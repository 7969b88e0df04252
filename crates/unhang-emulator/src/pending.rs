//! What is pending in a wave (hazards and loads in flight), and where each step leads.
//!
//! Loops reach the same places with the same things pending again and again. So each state gets a number when it is
//! first met. From the second time on, the effect of a stretch or an instruction on it is looked up. Numbers belong to
//! one thread; what it has learned is kept with the decoded code for later launches. If there are too many different
//! states, each wave continues with its own.

use std::collections::HashMap;

use unhang_isa::ScalarSet;
use unhang_isa::audit::{PathWatch, StretchSummary};

use crate::FaultKind;
use crate::function::Function;
use crate::waits::{Flight, Flights, FlightsInShort, Touch, VectorSet};

/// What is pending.
#[derive(Clone, Default)]
pub(crate) struct Pending {
    pub watch: PathWatch,
    /// What is pending since the last call or return, if there was one.
    pub watch_since_call: Option<PathWatch>,
    pub flights: Flights,
}

/// What is pending in one wave: the state itself, or its number in [`KnownStates`].
pub(crate) struct Track {
    /// The state, if its number is unknown.
    pending: Pending,
    known: u32,
}

impl Default for Track {
    fn default() -> Track {
        Track { pending: Pending::default(), known: UNKNOWN }
    }
}

/// A wave's track, with the states that its thread knows.
pub(crate) struct Tracker<'a> {
    pub known: &'a mut KnownStates,
    pub track: &'a mut Track,
}

impl Tracker<'_> {
    /// [`KnownStates::pass`] for this wave.
    #[inline(always)]
    pub(crate) fn pass(&mut self, place: u64, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        self.known.pass(self.track, place, lanes, take)
    }

    /// The wave's state, for reading and changing.
    pub(crate) fn restore(&mut self) -> &mut Pending {
        self.known.restore(self.track)
    }
}

/// A state that only the wave knows.
const UNKNOWN: u32 = u32::MAX;
/// The result of a step that cannot be taken as a whole.
const NOWHERE: u32 = u32::MAX - 1;
/// The most states of one thread, and the most steps between them.
const MOST_STATES: usize = 1 << 13;
const MOST_STEPS: usize = 1 << 16;

/// A compact form of [`Pending`].
#[derive(Clone, PartialEq, Eq, Hash)]
struct Short {
    watch: PathWatch,
    watch_since_call: Option<PathWatch>,
    flights: FlightsInShort,
}

/// A state, the wave's position in the code, and the active lanes if they matter.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PendingStep {
    place: u64,
    lanes: u64,
    state: u32,
}

/// Where steps lead: a hash table with linear probing.
struct Steps {
    /// A power of two of slots, at least half of them free; a free slot has no state.
    slots: Vec<(PendingStep, u32)>,
    count: usize,
}

impl Steps {
    const FREE: (PendingStep, u32) = (PendingStep { place: 0, lanes: 0, state: UNKNOWN }, UNKNOWN);
    const FIRST: usize = 1 << 10;

    fn new() -> Steps {
        Steps { slots: vec![Steps::FREE; Steps::FIRST], count: 0 }
    }

    /// The slot of a step, or the free one where it belongs.
    #[inline(always)]
    fn slot(&self, step: &PendingStep) -> usize {
        let mixed =
            (step.place ^ step.lanes.rotate_left(27) ^ (step.state as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (mixed >> 40) as usize & (self.slots.len() - 1);
        while self.slots[slot].0 != *step && self.slots[slot].0.state != UNKNOWN {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Where a step leads, if known.
    #[inline(always)]
    fn get(&self, step: &PendingStep) -> Option<u32> {
        let (found, next) = self.slots[self.slot(step)];
        (found.state != UNKNOWN).then_some(next)
    }

    /// Keeps a new step, if there is room.
    fn insert(&mut self, step: PendingStep, next: u32) {
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
    /// Whether hazards were checked, because the result of a step depends on it.
    hazards: bool,
    states: Vec<Short>,
    numbers: HashMap<Short, u32>,
    steps: Steps,
}

impl KnownStates {
    /// Without `keep`, nothing is remembered and each step is taken again.
    pub(crate) fn new(keep: bool, hazards: bool) -> KnownStates {
        KnownStates {
            most: if keep { MOST_STATES } else { 0 },
            hazards,
            states: Vec::new(),
            numbers: HashMap::new(),
            steps: Steps::new(),
        }
    }

    /// Whether a launch can continue with it: it remembers, has the same checks enabled, and has room for more.
    pub(crate) fn serves(&self, hazards: bool) -> bool {
        self.hazards == hazards && self.states.len() < self.most / 2 && self.steps.count < MOST_STEPS / 2
    }

    /// Takes what is pending past a [place](crate::function::Function::places). Returns `false` if that is impossible
    /// as a whole; nothing has then changed except for waits. `take` must depend only on what is pending, the place and
    /// the lanes.
    #[inline(always)]
    fn pass(&mut self, track: &mut Track, place: u64, lanes: u64, take: impl FnOnce(&mut Pending) -> bool) -> bool {
        if track.known != UNKNOWN
            && let Some(next) = self.steps.get(&PendingStep { place, lanes, state: track.known })
        {
            if next == NOWHERE {
                return false;
            }
            track.known = next;
            return true;
        }
        self.pass_anew(track, place, lanes, take)
    }

    #[cold]
    #[inline(never)]
    fn pass_anew(
        &mut self,
        track: &mut Track,
        place: u64,
        lanes: u64,
        take: impl FnOnce(&mut Pending) -> bool,
    ) -> bool {
        if track.known == UNKNOWN {
            track.known = self.number(&track.pending);
            if track.known == UNKNOWN {
                return take(&mut track.pending);
            }
            return self.pass(track, place, lanes, take);
        }
        let step = PendingStep { place, lanes, state: track.known };
        self.restore(track);
        if !take(&mut track.pending) {
            self.steps.insert(step, NOWHERE);
            track.known = step.state;
            return false;
        }
        track.known = self.number(&track.pending);
        if track.known != UNKNOWN {
            self.steps.insert(step, track.known);
        }
        // Without a number, the wave continues with its own state.
        true
    }

    /// The number of a state. A new state gets the next one.
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

    /// Gives a wave its state, for reading and changing.
    fn restore<'t>(&self, track: &'t mut Track) -> &'t mut Pending {
        if let Some(short) = self.states.get(track.known as usize) {
            let Short { watch, watch_since_call, ref flights } = *short;
            track.pending = Pending { watch, watch_since_call, flights: Flights::of(flights) };
            track.known = UNKNOWN;
        }
        &mut track.pending
    }
}

/// The combined effect of consecutive instructions on what is pending.
pub(crate) struct PendingSum {
    /// The first instruction, and the one after the last.
    pub first: u32,
    pub end: u32,
    /// Their effect on loads in flight, from wait to wait.
    parts: Vec<SumPart>,
    /// Whether one of them is a load.
    pub loads: bool,
    hazards: StretchSummary,
}

/// Instructions of a sum. Only the first may wait.
#[derive(Default)]
struct SumPart {
    /// Registers that they touch.
    vectors: VectorSet,
    scalars: ScalarSet,
    /// Registers that their loads own.
    owned: (VectorSet, ScalarSet),
    /// Whether one of them touches what another one's load owns.
    meets_itself: bool,
    /// Their effects on loads in flight, in order, with their addresses.
    flights: Vec<(Flight, u64)>,
}

impl PendingSum {
    /// An empty sum before that instruction.
    pub(crate) fn at(index: usize) -> PendingSum {
        let index = index as u32;
        let hazards = StretchSummary::EMPTY;
        PendingSum { first: index, end: index, parts: vec![SumPart::default()], loads: false, hazards }
    }

    /// Adds the next instruction.
    pub(crate) fn push(&mut self, function: &Function, index: usize) {
        let touch = &function.touches[index];
        self.end = index as u32 + 1;
        if touch.flight.waits() && self.end - self.first > 1 {
            self.parts.push(SumPart::default());
        }
        if let Some(part) = self.parts.last_mut() {
            part.push(touch, function.effects[index].touched(), function.addresses[index]);
        }
        self.loads |= touch.flight.is_counted();
        self.hazards.push(&function.transfers[index]);
    }
}

impl SumPart {
    fn push(&mut self, touch: &Touch, scalars: ScalarSet, address: u64) {
        self.meets_itself |= self.owned.0.meets(&touch.registers) || self.owned.1.meets(scalars);
        let (vectors, scalars_loaded) = touch.loads();
        self.owned = (self.owned.0.union(&vectors), self.owned.1 | scalars_loaded);
        self.vectors = self.vectors.union(&touch.registers);
        self.scalars |= scalars;
        if touch.flight.waits() || touch.flight.is_counted() {
            self.flights.push((touch.flight, address));
        }
    }
}

impl Flights {
    /// Waits as a part of a sum does. Returns whether the part touches nothing that a load owns.
    fn is_free_for(&mut self, part: &SumPart) -> bool {
        // A wait comes first. Repeating it waits for nothing more.
        if let Some(&(flight @ Flight::Wait { .. }, address)) = part.flights.first() {
            self.note(flight, address, 0);
        }
        !part.meets_itself && !self.may_meet(&part.vectors, part.scalars)
    }

    fn note_part(&mut self, part: &SumPart, lanes: u64) {
        part.flights.iter().for_each(|&(flight, address)| self.note(flight, address, lanes));
    }
}

impl Pending {
    /// Checks an instruction. If it reports a fault, nothing has changed.
    pub(crate) fn take(
        &mut self,
        function: &Function,
        index: usize,
        hazards: bool,
        lanes: u64,
    ) -> Result<(), FaultKind> {
        let (touch, effects) = (&function.touches[index], &function.effects[index]);
        let (mut watch, mut since_call) = (self.watch, self.watch_since_call);
        if hazards {
            let broken = watch.pass(&function.transfers[index]);
            let broken_since_call = since_call.as_mut().map(|watch| watch.pass(&function.transfers[index]));
            if let Some((rule, _)) = broken {
                let across_calls = broken_since_call.is_some_and(|broken| broken.is_none());
                return Err(FaultKind::Hazard { rule, across_calls });
            }
        }
        if self.flights.may_meet(&touch.registers, effects.touched()) {
            let text = |address| match function.index_at(address) {
                Some(index) => function.instructions[index as usize].text(function.wave64()).to_string(),
                None => format!("a load at {address:#x}"),
            };
            let (instruction, semantics) = (&function.instructions[index], &function.semantics[index]);
            self.flights.check(instruction, semantics, effects, lanes, function.addresses[index], text)?;
        }
        (self.watch, self.watch_since_call) = (watch, since_call);
        self.flights.note(touch.flight, function.addresses[index], lanes);
        Ok(())
    }

    /// Checks many instructions at once. Returns `false` if they must be checked one by one; nothing has then changed
    /// except for waits.
    pub(crate) fn take_sum(&mut self, function: &Function, sum: &PendingSum, hazards: bool, lanes: u64) -> bool {
        if sum.parts.len() == 1 && self.take_parts(sum, hazards, lanes) {
            return true;
        }
        let mut copy = self.clone();
        let mut taken = sum.parts.len() > 1 && copy.take_parts(sum, hazards, lanes);
        // If the sums cannot decide, the instructions do. Without a load among them, the lanes are not known here.
        if !taken && sum.loads {
            copy = self.clone();
            let mut places = sum.first as usize..sum.end as usize;
            taken = places.all(|index| copy.take(function, index, hazards, lanes).is_ok());
        }
        if taken {
            *self = copy;
        }
        taken
    }

    /// Checks by sums alone. If a later part fails, earlier ones have already been taken.
    fn take_parts(&mut self, sum: &PendingSum, hazards: bool, lanes: u64) -> bool {
        let [first, later @ ..] = &sum.parts[..] else { return false };
        if !self.flights.is_free_for(first) {
            return false;
        }
        if hazards {
            if !self.watch.pass_all(&sum.hazards) {
                return false;
            }
            if let Some(watch) = &mut self.watch_since_call {
                // No more than that is pending there.
                watch.pass_all(&sum.hazards);
            }
        }
        self.flights.note_part(first, lanes);
        later.iter().all(|part| {
            let free = self.flights.is_free_for(part);
            self.flights.note_part(part, lanes);
            free
        })
    }
}
