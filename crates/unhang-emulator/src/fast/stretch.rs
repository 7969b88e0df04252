//! Stretches: instructions that always execute one after another, with the same lanes active.
//!
//! Per-instruction checks (hazards, waits, counts, the budget) are summed up for a stretch when code is decoded, and
//! checked once at its start. If a sum cannot decide, the instructions run one by one, which shows where and why.

use unhang_isa::{Effects, ScalarSet};

use super::op::{Op, OpKind};
use crate::access::Access;
use crate::function::{Function, NOWHERE};
use crate::pending::{Pending, PendingSum, Tracker};
use crate::plain::Checks;
use crate::scalar::ScalarOperation;
use crate::semantics::Semantics;
use crate::wave::Wave;
use crate::{Counts, Unit};

/// Instructions that execute together. The last may branch or turn lanes on and off.
pub(crate) struct Stretch {
    /// Their combined effect on what is pending.
    pub sum: PendingSum,
    /// One more than the highest vector register that any of them names.
    registers: u16,
    /// Instructions by unit, and how many of them count lanes.
    counts: Counts,
    with_lanes: u64,
}

/// Where in a stretch an instruction may be.
enum Position {
    Inside,
    Last,
    /// In no stretch: it leaves the function, stops, waits for other waves, changes the float mode, or reads the clock.
    Alone,
}

fn position(op: &Op, semantics: &Semantics, effects: &Effects) -> Position {
    let writes_exec = || (effects.writes | effects.mask_writes).meets(ScalarSet::EXEC);
    match semantics {
        Semantics::Unsupported | Semantics::Hole(_) | Semantics::Memory(Access::Clock) => Position::Alone,
        Semantics::Scalar(operation) => match operation {
            ScalarOperation::Branch(_) if matches!(op.kind, OpKind::Branch { .. }) => Position::Last,
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
            | ScalarOperation::SetMode(_) => Position::Alone,
            ScalarOperation::SaveExec(_) | ScalarOperation::WriteExec(_) | ScalarOperation::MoveRelative { .. } => {
                Position::Last
            }
            _ if writes_exec() => Position::Last,
            _ => Position::Inside,
        },
        Semantics::Compare { to_exec: true, .. } | Semantics::Class { to_exec: true, .. } => Position::Last,
        _ if writes_exec() => Position::Last,
        _ => Position::Inside,
    }
}

/// Cuts a function into stretches. The second value says which one starts at each instruction.
pub(crate) fn cut(function: &Function, ops: &[Op]) -> (Vec<Stretch>, Vec<u32>) {
    let count = ops.len();
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
        let position = position(&ops[index], &function.semantics[index], &function.effects[index]);
        if matches!(position, Position::Alone) {
            stretches.extend(open.take());
            continue;
        }
        let stretch = open.get_or_insert_with(|| {
            starts[index] = stretches.len() as u32;
            Stretch::at(index)
        });
        stretch.push(function, &ops[index], index);
        if matches!(position, Position::Last) {
            stretches.extend(open.take());
        }
    }
    stretches.extend(open);
    (stretches, starts)
}

impl Stretch {
    fn at(index: usize) -> Stretch {
        Stretch { sum: PendingSum::at(index), registers: 0, counts: Counts::default(), with_lanes: 0 }
    }

    fn push(&mut self, function: &Function, op: &Op, index: usize) {
        self.sum.push(function, index);
        self.registers = self.registers.max(op.registers);
        let unit: Unit = function.units[index];
        self.counts.note(unit, 0);
        self.with_lanes += unit.has_lanes() as u64;
    }

    /// Checks and counts the whole stretch; `false` if its instructions must run one by one.
    #[inline(always)]
    pub(crate) fn enter(
        &self,
        wave: &mut Wave,
        function: &Function,
        checks: Checks<'_>,
        tracker: &mut Tracker<'_>,
        counts: &mut Counts,
    ) -> bool {
        let sum = &self.sum;
        let executed = wave.executed + (sum.end - sum.first) as u64;
        if self.registers as usize > wave.registers || executed > checks.budget {
            return false;
        }
        // If nothing is loaded, it does not matter which lanes are active.
        let lanes = if sum.loads { wave.exec64() } else { 0 };
        if checks.waits {
            let take = |pending: &mut Pending| pending.take_sum(function, sum, checks.hazards, lanes);
            if !tracker.pass((function.places + sum.first as u64) * 2, lanes, take) {
                return false;
            }
        }
        wave.executed = executed;
        *counts += self.counts;
        counts.lane_operations += self.with_lanes * wave.lanes_on() as u64;
        true
    }
}
