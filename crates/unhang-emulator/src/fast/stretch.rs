//! Stretches: instructions that are always executed one after another, with the same lanes on.
//!
//! What is checked for each instruction (hazards, waits, counts, the budget) is summed up for a stretch when code is decoded,
//! and asked for once at its start. Whatever a sum cannot settle goes instruction by instruction, which says where and why.

use unhang_isa::audit::StretchSummary;
use unhang_isa::{Effects, ScalarSet};

use super::Op;
use crate::access::Access;
use crate::code::{Function, NOWHERE};
use crate::pending::{KnownStates, Pending};
use crate::scalar::ScalarOperation;
use crate::semantics::Semantics;
use crate::waits::{Flight, Flights, Touch, VectorSet};
use crate::wave::Wave;
use crate::{Counts, Unit};

/// Instructions that are executed together. The last may branch or turn lanes on and off.
pub(crate) struct Stretch {
    pub first: u32,
    pub end: u32,
    /// One more than the highest vector register that one of them names.
    registers: u16,
    /// What they do to loads in flight, from wait to wait.
    parts: Vec<Part>,
    /// One of them is a load.
    loads: bool,
    hazards: StretchSummary,
    /// Instructions by unit, and how many of them count lanes.
    counts: Counts,
    with_lanes: u64,
}

/// Instructions of a stretch of which only the first may wait.
#[derive(Default)]
struct Part {
    /// Registers that they touch.
    vectors: VectorSet,
    scalars: ScalarSet,
    /// Registers that their loads own.
    owned: (VectorSet, ScalarSet),
    /// One of them touches what a load of another one owns.
    meets_itself: bool,
    /// What they do to loads in flight, in order, with their addresses.
    flights: Vec<(Flight, u64)>,
}

/// Which checks are on; checking hazards includes checking waits.
#[derive(Clone, Copy)]
pub(crate) struct Checks {
    pub hazards: bool,
    pub waits: bool,
    pub budget: u64,
}

/// Where an instruction may stand.
enum Place {
    Inside,
    Last,
    /// In no stretch: it leaves the function, stops, waits for other waves, changes the float mode, or reads the clock.
    Alone,
}

fn place(op: &Op, semantics: &Semantics, effects: &Effects) -> Place {
    let writes_exec = || (effects.writes | effects.mask_writes).meets(ScalarSet::EXEC);
    match semantics {
        Semantics::Unsupported | Semantics::Hole(_) | Semantics::Memory(Access::Clock) => Place::Alone,
        Semantics::Scalar(operation) => match operation {
            ScalarOperation::Branch(_) if matches!(op.kind, super::Kind::Branch { .. }) => Place::Last,
            ScalarOperation::Branch(_)
            | ScalarOperation::Barrier
            | ScalarOperation::End
            | ScalarOperation::Trap
            | ScalarOperation::SetProgramCounter
            | ScalarOperation::SwapProgramCounter
            | ScalarOperation::Call
            | ScalarOperation::GetRegister
            | ScalarOperation::SetRegister
            | ScalarOperation::SetRegisterConstant
            | ScalarOperation::SetMode(_) => Place::Alone,
            ScalarOperation::SaveExec(_) | ScalarOperation::WriteExec(_) | ScalarOperation::MoveRelative { .. } => {
                Place::Last
            }
            _ if writes_exec() => Place::Last,
            _ => Place::Inside,
        },
        Semantics::Compare { to_exec: true, .. } | Semantics::Class { to_exec: true, .. } => Place::Last,
        _ if writes_exec() => Place::Last,
        _ => Place::Inside,
    }
}

/// Cuts a function into stretches; the second says which one starts at each instruction.
pub(crate) fn cut(function: &Function) -> (Vec<Stretch>, Vec<u32>) {
    let count = function.ops.len();
    let mut is_target = vec![false; count];
    for &target in function.targets.iter().filter(|&&target| target != NOWHERE) {
        is_target[target as usize] = true;
    }
    if let Some(entry) = function.index_at(function.entry) {
        is_target[entry as usize] = true;
    }
    let (mut stretches, mut starts) = (Vec::new(), vec![NOWHERE; count]);
    let mut open: Option<Stretch> = None;
    for index in 0..count {
        if is_target[index]
            && let Some(stretch) = open.take()
        {
            stretches.push(stretch);
        }
        let place = place(&function.ops[index], &function.semantics[index], &function.effects[index]);
        if matches!(place, Place::Alone) {
            stretches.extend(open.take());
            continue;
        }
        let stretch = open.get_or_insert_with(|| {
            starts[index] = stretches.len() as u32;
            Stretch::at(index)
        });
        stretch.push(function, index);
        if matches!(place, Place::Last) {
            stretches.extend(open.take());
        }
    }
    stretches.extend(open);
    (stretches, starts)
}

impl Stretch {
    fn at(index: usize) -> Stretch {
        Stretch {
            first: index as u32,
            end: index as u32,
            registers: 0,
            parts: vec![Part::default()],
            loads: false,
            hazards: StretchSummary::EMPTY,
            counts: Counts::default(),
            with_lanes: 0,
        }
    }

    fn push(&mut self, function: &Function, index: usize) {
        let touch = &function.touches[index];
        self.end = index as u32 + 1;
        self.registers = self.registers.max(function.ops[index].registers);
        if touch.flight.waits() && self.end - self.first > 1 {
            self.parts.push(Part::default());
        }
        if let Some(part) = self.parts.last_mut() {
            part.push(touch, function.effects[index].touched(), function.addresses[index]);
        }
        self.loads |= touch.flight.is_counted();
        self.hazards.push(&function.transfers[index]);
        let unit: Unit = function.units[index];
        self.counts.note(unit, 0);
        self.with_lanes += unit.has_lanes() as u64;
    }
}

impl Part {
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
    /// Waits as a part of a stretch does; says whether it touches nothing that a load owns.
    fn is_free_for(&mut self, part: &Part) -> bool {
        // A wait stands first: whoever goes through it again waits for nothing more.
        if let Some(&(flight @ Flight::Wait { .. }, address)) = part.flights.first() {
            self.note(flight, address, 0);
        }
        !part.meets_itself && !self.may_meet(&part.vectors, part.scalars)
    }

    fn note_part(&mut self, part: &Part, lanes: u64) {
        part.flights.iter().for_each(|&(flight, address)| self.note(flight, address, lanes));
    }
}

impl Pending {
    /// Checks a whole stretch at once; `false`, and nothing has changed but for waits, if it has to go instruction by instruction.
    fn take_stretch(&mut self, function: &Function, stretch: &Stretch, checks: Checks, lanes: u64) -> bool {
        if stretch.parts.len() == 1 && self.take_sums(stretch, checks, lanes) {
            return true;
        }
        let mut copy = self.clone();
        let mut taken = stretch.parts.len() > 1 && copy.take_sums(stretch, checks, lanes);
        // What sums do not settle its instructions do; without a load in it the lanes are not known here.
        if !taken && stretch.loads {
            copy = self.clone();
            let mut places = stretch.first as usize..stretch.end as usize;
            taken = places.all(|index| copy.take(function, index, checks.hazards, lanes).is_ok());
        }
        if taken {
            *self = copy;
        }
        taken
    }

    /// Checks a stretch by its sums; of several parts the first may have been gone through where it fails.
    fn take_sums(&mut self, stretch: &Stretch, checks: Checks, lanes: u64) -> bool {
        let [first, later @ ..] = &stretch.parts[..] else { return false };
        if !self.flights.is_free_for(first) {
            return false;
        }
        if checks.hazards {
            if !self.watch.pass_all(&stretch.hazards) {
                return false;
            }
            if let Some(watch) = &mut self.watch_since_call {
                // No more is pending there.
                watch.pass_all(&stretch.hazards);
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

impl Wave {
    /// Checks a whole stretch, and counts it; `false` if it has to go instruction by instruction.
    #[inline(always)]
    pub fn enter(
        &mut self,
        (function, stretch): (&Function, &Stretch),
        checks: Checks,
        known: &mut KnownStates,
        counts: &mut Counts,
    ) -> bool {
        let executed = self.executed + (stretch.end - stretch.first) as u64;
        if stretch.registers as usize > self.registers || executed > checks.budget {
            return false;
        }
        // Where nothing is loaded, it does not matter which lanes are on.
        let lanes = if stretch.loads { self.exec64() } else { 0 };
        if checks.waits {
            let take = |pending: &mut Pending| pending.take_stretch(function, stretch, checks, lanes);
            if !known.pass(self, (function.places + stretch.first as u64) * 2, lanes, take) {
                return false;
            }
        }
        self.executed = executed;
        *counts += stretch.counts;
        counts.lane_operations += stretch.with_lanes * self.lanes_on() as u64;
        true
    }
}
