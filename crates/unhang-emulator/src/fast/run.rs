//! The loop over instructions, compiled for the host's vectors.

use unhang_isa::audit::{PathWatch, Rule};

use super::function::FastFunction;
use super::op::OpKind;
use super::stretch::Stretch;
use crate::function::Function;
use crate::host::{Host, Vectors};
use crate::launch::Launch;
use crate::pending::Tracker;
use crate::plain::{Checks, run_plain, step};
use crate::scalar::Next;
use crate::semantics::Semantics;
use crate::settings::Mode;
use crate::surroundings::Surroundings;
use crate::wave::{Standing, Wave};
use crate::{Counts, FaultKind};

/// What a wave's turn within one function needs, in addition to the wave.
pub(crate) struct Turn<'t, 'm> {
    pub launch: &'t Launch<'t>,
    pub around: &'t mut Surroundings<'m>,
    pub function: &'t FastFunction,
    pub tracker: Tracker<'t>,
    pub counts: &'t mut Counts,
    /// The wave's instruction count at which the turn ends.
    pub end: u64,
}

/// Runs a wave within one function. Returns its jump target when it leaves the function.
pub(crate) fn run_function(wave: &mut Wave, turn: Turn<'_, '_>) -> Result<Option<u64>, FaultKind> {
    match Host::get() {
        // SAFETY: the host has these instructions.
        #[cfg(target_arch = "x86_64")]
        Host::Avx512 if wave.wave64 => unsafe { with_avx512::<2>(wave, turn) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx512 => unsafe { with_avx512::<1>(wave, turn) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx2 if wave.wave64 => unsafe { with_avx2::<2>(wave, turn) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Host::Avx2 => unsafe { with_avx2::<1>(wave, turn) },
        _ if wave.wave64 => run::<false, 2>(Vectors::PORTABLE, wave, turn),
        _ => run::<false, 1>(Vectors::PORTABLE, wave, turn),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx512<const HALVES: usize>(wave: &mut Wave, turn: Turn<'_, '_>) -> Result<Option<u64>, FaultKind> {
    run::<true, HALVES>(Vectors::avx512(), wave, turn)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_avx2<const HALVES: usize>(wave: &mut Wave, turn: Turn<'_, '_>) -> Result<Option<u64>, FaultKind> {
    run::<false, HALVES>(Vectors::PORTABLE, wave, turn)
}

/// `WIDE` says whether AVX-512 is used, `HALVES` how many halves of 32 lanes the wave has.
#[inline(always)]
fn run<const WIDE: bool, const HALVES: usize>(
    vectors: Vectors<WIDE>,
    wave: &mut Wave,
    turn: Turn<'_, '_>,
) -> Result<Option<u64>, FaultKind> {
    let Turn { launch, around, function, mut tracker, counts, end } = turn;
    let plain = &function.plain;
    let checks = Checks {
        hazards: launch.checks_hazards(),
        waits: matches!(launch.mode, Mode::Hazards(_)),
        budget: launch.budget,
        observer: launch.observer,
    };
    while wave.executed < end {
        let Some(&start) = function.starts.get(wave.index as usize) else {
            return Err(FaultKind::Jump { address: plain.entry });
        };
        if launch.fast
            && let Some(stretch) = function.stretches.get(start as usize)
            && stretch.enter(wave, plain, checks, &mut tracker, counts)
        {
            run_stretch::<WIDE, HALVES>(vectors, wave, around, function, stretch, checks.hazards)?;
            continue;
        }
        match step(wave, around, plain, &mut tracker, checks, counts)? {
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
                if plain.instructions[wave.index as usize].is_call() {
                    tracker.restore().watch_since_call = Some(PathWatch::default());
                }
                wave.index = plain.target(wave.index as usize)?;
            }
            Next::Absolute(target) => {
                tracker.restore().watch_since_call = Some(PathWatch::default());
                return Ok(Some(target));
            }
            Next::Trap(number) => return Err(FaultKind::Trap { number }),
        }
    }
    Ok(None)
}

/// Executes a stretch that was [entered](Stretch::enter).
#[inline(always)]
fn run_stretch<const WIDE: bool, const HALVES: usize>(
    vectors: Vectors<WIDE>,
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &FastFunction,
    stretch: &Stretch,
    hazards: bool,
) -> Result<(), FaultKind> {
    let (first, end) = (stretch.sum.first as usize, stretch.sum.end as usize);
    let checks_alignment = hazards && wave.spans_units;
    for (place, op) in function.ops[first..end].iter().enumerate() {
        if let OpKind::Branch { taken } = op.kind {
            if taken(wave) {
                wave.index = (first + place) as u32;
                wave.index = function.plain.target(first + place)?;
                return Ok(());
            }
            continue;
        }
        let usual = wave.usual_mode || !op.usual_only;
        // SAFETY: the stretch was entered, so all its registers are the wave's.
        if !usual || !unsafe { wave.compute::<WIDE, HALVES>(vectors, &op.kind, around, checks_alignment) } {
            plain_in_stretch(wave, around, &function.plain, first + place, checks_alignment)?;
        }
    }
    wave.index = stretch.sum.end;
    Ok(())
}

/// Executes an instruction of a stretch by the plain path, starting at the half that is not done, and continues with
/// the next instruction.
#[inline(never)]
fn plain_in_stretch(
    wave: &mut Wave,
    around: &mut Surroundings<'_>,
    function: &Function,
    index: usize,
    checks_alignment: bool,
) -> Result<(), FaultKind> {
    wave.index = index as u32;
    let instruction = &function.instructions[index];
    // Its address is known only now.
    let half = wave.half;
    let misaligned = checks_alignment
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
