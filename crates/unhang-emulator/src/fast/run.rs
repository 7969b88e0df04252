//! The loop over instructions, compiled for the host's vectors.

use unhang_isa::audit::{PathWatch, Rule};
use unhang_isa::{Class, Format, Instruction};

use super::Kind;
use super::rows::{Host, Vectors};
use super::stretch::{Checks, Stretch};
use crate::code::{Function, Hole, NOWHERE};
use crate::dispatch::Launch;
use crate::memory_access::Surroundings;
use crate::pending::{KnownStates, Pending};
use crate::scalar::Next;
use crate::semantics::Semantics;
use crate::wave::{Standing, Wave};
use crate::{Counts, FaultKind, Follow, Mode, Moment};

/// Runs a wave within one function; returns where it jumps when it leaves it.
pub(crate) fn run_function(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    match Host::get() {
        // SAFETY: the host has these instructions.
        #[cfg(target_arch = "x86_64")]
        Host::Avx512 if wave.wave64 => unsafe {
            with_avx512::<2>(launch, wave, around, (function, known), counts, end)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx512 => unsafe { with_avx512::<1>(launch, wave, around, (function, known), counts, end) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx2 if wave.wave64 => unsafe { with_avx2::<2>(launch, wave, around, (function, known), counts, end) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx2 => unsafe { with_avx2::<1>(launch, wave, around, (function, known), counts, end) },
        _ if wave.wave64 => run::<false, 2>(Vectors::PORTABLE, launch, wave, around, (function, known), counts, end),
        _ => run::<false, 1>(Vectors::PORTABLE, launch, wave, around, (function, known), counts, end),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx512<const HALVES: usize>(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    run::<true, HALVES>(Vectors::avx512(), launch, wave, around, (function, known), counts, end)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx2<const HALVES: usize>(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    run::<false, HALVES>(Vectors::PORTABLE, launch, wave, around, (function, known), counts, end)
}

/// `WIDE` says whether AVX-512 is used, `HALVES` how many halves of 32 lanes the wave has.
#[inline(always)]
fn run<const WIDE: bool, const HALVES: usize>(
    vectors: Vectors<WIDE>,
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    counts: &mut Counts,
    end: u64,
) -> Result<Option<u64>, FaultKind> {
    let checks = Checks {
        hazards: launch.checks_hazards(),
        waits: matches!(launch.mode, Mode::Hazards(_)),
        budget: launch.budget,
    };
    while wave.executed < end {
        let Some(&start) = function.starts.get(wave.index as usize) else {
            return Err(FaultKind::Jump { address: function.entry });
        };
        if launch.fast
            && let Some(stretch) = function.stretches.get(start as usize)
            && wave.enter((function, stretch), checks, known, counts)
        {
            run_stretch::<WIDE, HALVES>(vectors, wave, around, function, stretch, checks.hazards)?;
            continue;
        }
        match step(launch, wave, around, (function, known), checks, counts)? {
            Next::Continue => wave.index += 1,
            Next::End => {
                wave.standing = Standing::Ended;
                return Ok(None);
            }
            Next::Barrier => {
                wave.standing = Standing::AtBarrier;
                wave.index += 1;
                return Ok(None);
            }
            Next::Relative(_) => {
                if function.instructions[wave.index as usize].is_call() {
                    known.restore(wave).watch_since_call = Some(PathWatch::default());
                }
                wave.index = function.target(wave.index as usize)?;
            }
            Next::Absolute(target) => {
                known.restore(wave).watch_since_call = Some(PathWatch::default());
                return Ok(Some(target));
            }
            Next::Trap(number) => return Err(FaultKind::Trap { number }),
        }
    }
    Ok(None)
}

/// Executes one instruction the plain way, with every check that is on.
#[inline(never)]
fn step(
    launch: &Launch<'_>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    (function, known): (&Function, &mut KnownStates),
    checks: Checks,
    counts: &mut Counts,
) -> Result<Next, FaultKind> {
    let index = wave.index as usize;
    if let Some(observer) = launch.observer {
        let (instruction, address) = (&function.instructions[index], function.addresses[index]);
        let moment = Moment { wave, semantics: &function.semantics[index], instruction, address, entry: wave.entry };
        match observer.before(&moment) {
            Follow::On => {}
            Follow::Stop => return Err(FaultKind::Stopped),
            Follow::EndWave => return Ok(Next::End),
        }
    }
    if let Some(races) = around.races.as_deref_mut() {
        races.begin(wave.number as u8, function.addresses[index], function.touches[index].flight);
    }
    wave.executed += 1;
    if wave.executed > checks.budget {
        return Err(FaultKind::Budget { limit: checks.budget });
    }
    counts.note(function.units[index], wave.lanes_on());
    if checks.waits {
        let (place, lanes) = (function.places + index as u64, wave.exec64());
        if !known.pass(wave, place * 2 + 1, lanes, |it| it.take(function, index, checks.hazards, lanes).is_ok()) {
            known.restore(wave).take(function, index, checks.hazards, lanes)?;
        }
    }
    if checks.hazards {
        wave.mind_addresses(&function.instructions[index])?;
    }
    run_plain(wave, around, function, index)
}

/// Executes a stretch that was [entered](Wave::enter).
#[inline(always)]
fn run_stretch<const WIDE: bool, const HALVES: usize>(
    vectors: Vectors<WIDE>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    stretch: &Stretch,
    hazards: bool,
) -> Result<(), FaultKind> {
    let (first, end) = (stretch.first as usize, stretch.end as usize);
    let minds_alignment = hazards && wave.spans_units;
    for (place, op) in function.ops[first..end].iter().enumerate() {
        if let Kind::Branch { taken } = op.kind {
            if taken(wave) {
                wave.index = (first + place) as u32;
                wave.index = function.target(first + place)?;
                return Ok(());
            }
            continue;
        }
        let usual = wave.usual_mode || !op.usual_only;
        // SAFETY: the stretch was entered, so that all its registers are the wave's.
        if !usual || !unsafe { wave.compute::<WIDE, HALVES>(vectors, &op.kind, around, minds_alignment) } {
            plain_in_stretch(wave, around, function, first + place, minds_alignment)?;
        }
    }
    wave.index = stretch.end;
    Ok(())
}

/// Executes an instruction of a stretch the plain way, from the half that is not done on; it goes on with the next.
#[inline(never)]
fn plain_in_stretch(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    index: usize,
    minds_alignment: bool,
) -> Result<(), FaultKind> {
    wave.index = index as u32;
    let instruction = &function.instructions[index];
    // Which address it has is known only now.
    let half = wave.half;
    let misaligned = minds_alignment
        && (half..=wave.wave64 as usize).any(|half| {
            wave.half = half;
            wave.is_misaligned(instruction)
        });
    wave.half = 0;
    if misaligned {
        return Err(FaultKind::Hazard { rule: Rule::LocalMisaligned, across_calls: false });
    }
    match function.semantics[index] {
        // The lower half is done, and may have overwritten its addresses.
        Semantics::Memory(access) if half == 1 => {
            wave.half = half;
            let result = wave.run_memory(instruction, access, around);
            wave.half = 0;
            result
        }
        _ => run_plain(wave, around, function, index).map(|_| ()),
    }
}

/// Executes one instruction the plain way.
#[inline(never)]
fn run_plain(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    index: usize,
) -> Result<Next, FaultKind> {
    let (instruction, address) = (&function.instructions[index], function.addresses[index]);
    match function.semantics[index] {
        Semantics::Hole(Hole::Unmapped) => return Err(FaultKind::Memory { address, size: 4 }),
        Semantics::Hole(Hole::Word(_) | Hole::Illegal) => return Err(FaultKind::Illegal),
        Semantics::Hole(Hole::Overlaps) => return Err(FaultKind::Jump { address }),
        Semantics::Scalar(operation) => return Ok(wave.run_scalar(instruction, operation, address)),
        Semantics::Memory(access) => wave.run_memory_halves(instruction, access, around)?,
        semantics => wave.run_vector_halves(instruction, semantics)?,
    }
    Ok(Next::Continue)
}

impl Function {
    /// Where a relative branch goes.
    #[inline]
    fn target(&self, index: usize) -> Result<u32, FaultKind> {
        let instruction = &self.instructions[index];
        let after = self.addresses[index] + instruction.size() as u64;
        let distance = instruction.branch_distance().unwrap_or(0) as u64;
        match self.targets[index] {
            NOWHERE => Err(FaultKind::Jump { address: after.wrapping_add(distance) }),
            target => Ok(target),
        }
    }
}

impl Pending {
    /// Checks an instruction; where it says what is wrong, nothing has changed.
    pub fn take(&mut self, function: &Function, index: usize, hazards: bool, lanes: u64) -> Result<(), FaultKind> {
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
            let what = (&function.instructions[index], &function.semantics[index]);
            self.flights.check(what, effects, lanes, function.addresses[index], text)?;
        }
        (self.watch, self.watch_since_call) = (watch, since_call);
        self.flights.note(touch.flight, function.addresses[index], lanes);
        Ok(())
    }
}

impl Wave {
    /// The hazard rules that look at addresses.
    fn mind_addresses(&mut self, instruction: &Instruction) -> Result<(), FaultKind> {
        if instruction.format() == Format::Flat && instruction.flat_offset() != 0 {
            return Err(FaultKind::Hazard { rule: Rule::FlatOffset, across_calls: false });
        }
        if self.spans_units && instruction.class() == Class::Local {
            for half in 0..=self.wave64 as usize {
                self.half = half;
                let misaligned = self.is_misaligned(instruction);
                self.half = 0;
                if misaligned {
                    return Err(FaultKind::Hazard { rule: Rule::LocalMisaligned, across_calls: false });
                }
            }
        }
        Ok(())
    }
}
