//! The proof that our kernels give before they compute for the user: families in a child process (the canary), then the
//! first result of every kernel. Every limit and every comparison is written here.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use unhang_conv::{DataType, Direction, Problem};
use unhang_engine::{Engine, EngineError, Operands, Reference, Verdict, tolerance};
use unhang_gpu::choice::Choice;
use unhang_gpu::{FromHost, GpuEngine, GpuError, Prepared};
use unhang_probe::canary;

use crate::host::Numbers;
use crate::sample::Sample;

/// How long one family may take in the canary's child, once everything is compiled.
const FAMILY_LIMIT: Duration = Duration::from_secs(10);
/// The limit on an emulated card, which is a thousand times slower, and slower still on a busy machine. It is below the
/// child's own deadline, so that a family that hangs is known by its name.
const EMULATED_FAMILY_LIMIT: Duration = Duration::from_secs(170);
/// How many kernels a canary's child compiles at once.
const COMPILED_AT_ONCE: usize = 4;

/// A kernel family: its best choice for each of the canary's problems.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// A problem, and how this family would compute it.
    pub tries: Vec<(Problem, Choice)>,
}

/// The kernel families that a canary tries on a device, the plainest first.
pub fn families(engine: &GpuEngine) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for problem in canary::kernel_problems(engine.driver().description().is_emulated()) {
        let mut seen = BTreeSet::new();
        for candidate in engine.candidates(&problem) {
            let name = candidate.choice.family();
            if seen.insert(name) {
                let one = (problem.clone(), candidate.choice);
                match families.iter_mut().find(|family| family.name == name) {
                    Some(family) => family.tries.push(one),
                    None => families.push(Family { name: name.to_owned(), tries: vec![one] }),
                }
            }
        }
    }
    families.sort_by_key(|family| (family.name != "plain", family.name.clone()));
    families
}

/// A convolution on generated numbers, with the right result.
pub struct Trial {
    problem: Problem,
    operands: [Numbers; 2],
    bias: Option<Numbers>,
    expected: Numbers,
}

impl Trial {
    /// Generated numbers for a problem, and the right result by the definition. For small ones: the definition is slow.
    pub fn new(problem: &Problem) -> Result<Trial, EngineError> {
        let data_type = problem.data_type();
        let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let operands = [Numbers::random(data_type, first, 1), Numbers::random(data_type, second, 2)];
        let bias = problem.direction() == Direction::Forward;
        let bias = bias.then(|| Numbers::random(data_type, problem.out_channels(), 3));
        let expected = Numbers::zeros(data_type, result);
        let mut trial = Trial { problem: problem.clone(), operands, bias, expected };
        trial.expected = trial.result_of(|operands| Reference.run(problem, operands))?;
        Ok(trial)
    }

    fn result_of<E>(&self, compute: impl FnOnce(Operands<'_>) -> Result<(), E>) -> Result<Numbers, E> {
        // NaN until written, so that an element left out is noticed.
        let mut result = Numbers::filled(self.problem.data_type(), self.expected.len(), f64::NAN);
        compute(Operands {
            first: self.operands[0].elements(),
            second: self.operands[1].elements(),
            bias: self.bias.as_ref().map(Numbers::elements),
            result: result.elements_mut(),
        })?;
        Ok(result)
    }

    /// The largest error of a result, relative to the largest number of the right one. Infinite if a number is not
    /// finite.
    pub fn error<E>(&self, compute: impl FnOnce(Operands<'_>) -> Result<(), E>) -> Result<f64, E> {
        Ok(self.error_of(&self.result_of(compute)?))
    }

    fn error_of(&self, found: &Numbers) -> f64 {
        let (error, not_numbers) =
            unhang_probe::child::compare((0..found.len()).map(|at| (found.get(at), self.expected.get(at))));
        if not_numbers > 0 { f64::INFINITY } else { error.unwrap_or(f64::INFINITY) }
    }
}

/// Tries one of our engines on a few convolutions, judged by the definition: for a child with a deadline. `spoil` makes
/// the result wrong, for a rehearsal.
pub fn judged(engine: &dyn Engine, problems: &[Problem], spoil: bool) -> (Verdict, String) {
    match largest_error(engine, problems, spoil) {
        Ok(Some((worst, problem))) => {
            let limit = tolerance::Tolerance::of(problem.data_type()).max;
            if worst <= limit {
                (Verdict::Works, format!("largest relative error {worst:.1e} in {problem}"))
            } else {
                (Verdict::Wrong, format!("relative error {worst:.1e} in {problem}"))
            }
        }
        Ok(None) => (Verdict::Error, "nothing was tried".to_owned()),
        Err(error) => (Verdict::Error, error.to_string()),
    }
}

/// The largest error over all of these problems, and its problem.
fn largest_error(
    engine: &dyn Engine,
    problems: &[Problem],
    spoil: bool,
) -> Result<Option<(f64, Problem)>, EngineError> {
    let mut worst: Option<(f64, Problem)> = None;
    for problem in problems {
        let trial = Trial::new(problem)?;
        let mut found = trial.result_of(|operands| engine.run(problem, operands))?;
        if spoil {
            found.set(0, found.get(0) + 1.0);
        }
        let error = trial.error_of(&found);
        if worst.as_ref().is_none_or(|(known, _)| error > *known) {
            worst = Some((error, problem.clone()));
        }
    }
    Ok(worst)
}

/// In a canary's child: tries families one after another, each within a limit, and prints each verdict on standard
/// output. Returns the overall verdict. `name_of` is the key of a family's verdict. `try_part` tries a family that
/// computes no convolution and returns its error as a share of the tolerance.
pub fn try_families(
    engine: &GpuEngine,
    families: &[Family],
    name_of: &dyn Fn(&str) -> String,
    try_part: &dyn Fn(&str) -> Result<f64, String>,
) -> (Verdict, String) {
    let description = engine.driver().description();
    let limit = if description.is_emulated() { EMULATED_FAMILY_LIMIT } else { FAMILY_LIMIT };
    // Everything is compiled before anything runs: a hang after that is the kernels', not the compiler's.
    let all: Vec<&(Problem, Choice)> = families.iter().flat_map(|family| &family.tries).collect();
    for some in all.chunks(COMPILED_AT_ONCE) {
        std::thread::scope(|scope| {
            for (problem, choice) in some {
                scope.spawn(|| engine.prepare_as(problem, Some(*choice)).ok());
            }
        });
    }
    let ready: Vec<_> = families.iter().map(|family| prepare(engine, family)).collect();
    tell(&canary::begin_line(canary::MEMORY));
    let within = Limit::new(canary::MEMORY, &name_of(canary::MEMORY), limit);
    match FromHost::new(engine).copies() {
        Ok(true) => {}
        Ok(false) => return (Verdict::Error, "data copied to the card and back are not the same".to_owned()),
        Err(error) => return (Verdict::Error, words(error)),
    }
    drop(within);
    let (mut worst, mut bad, mut failed) = (0.0f64, Vec::new(), Vec::new());
    for (family, ready) in families.iter().zip(ready) {
        let name = name_of(&family.name);
        tell(&canary::begin_line(&family.name));
        let within = Limit::new(&family.name, &name, limit);
        let error = ready.and_then(|ready| {
            let part = if family.tries.is_empty() { try_part(&family.name)? } else { 0.0 };
            ready.iter().try_fold(part, |worst, (trial, prepared)| Ok(worst.max(share_of(engine, trial, prepared)?)))
        });
        drop(within);
        let (verdict, detail) = match error {
            Ok(error) => {
                worst = worst.max(error);
                let verdict = if error <= 1.0 { Verdict::Works } else { Verdict::Wrong };
                (verdict, format!("largest error {error:.2} of what rounding explains"))
            }
            Err(reason) => (Verdict::Error, reason),
        };
        match verdict {
            Verdict::Works => {}
            Verdict::Wrong => bad.push(family.name.as_str()),
            _ => failed.push(format!("{}: {detail}", family.name)),
        }
        tell(&canary::family_line(&family.name, &name, verdict, &detail));
    }
    let detail = format!("largest error {worst:.2} of what rounding explains, on {}", description.name);
    match (bad.is_empty(), failed.is_empty()) {
        (false, _) => (Verdict::Wrong, format!("{}: {detail}", bad.join(", "))),
        (true, false) => (Verdict::Error, failed.join("; ")),
        (true, true) => (Verdict::Works, detail),
    }
}

type Ready = Vec<(Trial, std::sync::Arc<Prepared>)>;

fn prepare(engine: &GpuEngine, family: &Family) -> Result<Ready, String> {
    let one = |(problem, choice): &(Problem, Choice)| {
        let prepared = engine.prepare_as(problem, Some(*choice)).map_err(words)?;
        Ok((Trial::new(problem).map_err(|error| error.to_string())?, prepared))
    };
    family.tries.iter().map(one).collect()
}

/// The error of kernels as a share of a canary's tolerance.
fn share_of(engine: &GpuEngine, trial: &Trial, prepared: &Prepared) -> Result<f64, String> {
    let error = trial.error(|operands| FromHost::new(engine).run_prepared(prepared, operands)).map_err(words)?;
    Ok(error / tolerance::canary(trial.problem.data_type()))
}

fn words(error: GpuError) -> String {
    error.to_string()
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader judges by the lines that arrive.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Ends the child when a family takes too long, unless dropped before.
struct Limit(Sender<()>);

impl Limit {
    fn new(family: &str, name: &str, limit: Duration) -> Limit {
        let (sender, receiver) = channel::<()>();
        let (family, name) = (family.to_owned(), name.to_owned());
        // Without a thread the parent's own deadline holds.
        let _ = std::thread::Builder::new().spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let detail = format!("no answer within {} s", limit.as_secs());
                tell(&canary::family_line(&family, &name, Verdict::Hangs, &detail));
                tell(&canary::answer_line(Verdict::Hangs, &format!("{family}: {detail}")));
                signal_hook::low_level::exit(1);
            }
        });
        Limit(sender)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Whether a first result is right, and its error. `None` if the numbers prove nothing: zeros, or not finite.
pub fn compare(problem: &Problem, operands: [&Numbers; 2], result: &Numbers) -> Option<(bool, String)> {
    let sample = Sample::new(problem, false);
    let (right, detail) = sample.finding(sample.parcel(problem, [operands[0], operands[1], result]).elements());
    right.map(|right| (right, detail))
}

/// Computes a problem by loaded kernels on generated numbers, and compares the result. `None` if the numbers prove
/// nothing. Waits for the device.
pub fn try_kernels(engine: &GpuEngine, prepared: &Prepared) -> Result<Option<(bool, String)>, GpuError> {
    let problem = prepared.problem();
    let data_type: DataType = problem.data_type();
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let (first, second) = (Numbers::random(data_type, first, 1), Numbers::random(data_type, second, 2));
    let mut found = Numbers::zeros(data_type, result);
    let operands =
        Operands { first: first.elements(), second: second.elements(), bias: None, result: found.elements_mut() };
    FromHost::new(engine).run_prepared(prepared, operands)?;
    Ok(compare(problem, [&first, &second], &found))
}

#[cfg(test)]
mod tests {
    use unhang_conv::reference;
    use unhang_engine::{EngineName, Unsupported};

    use super::*;

    fn numbers(count: usize, seed: usize) -> Numbers {
        Numbers::F32((0..count).map(|at| ((at * 37 + seed * 11) % 23) as f32 - 11.0).collect())
    }

    #[test]
    fn every_direction_agrees_with_the_reference_and_a_wrong_element_is_found() {
        for key in [
            "2x6x9x8:4x3x2:s2x1:p1x0:d1x2:g2",
            "1x3x5x5:3x3x3:s1x1:p1x1:d1x1:g3",
            "1x2x7x7:5x1x1:s2x2:p0x0:d1x1:g1",
            "2x6x17x16:4x1x1:s3x2:p0x0:d1x1:g1",
            "1x2x3x3:3x3x3:s1x1:p3x2:d1x1:g1",
            "2x6x9x8:10x3x3:s2x2:p1x1:d1x1:g1:t:o1x1",
            "2x6x5x7:8x4x3:s3x1:p0x1:d1x2:g2:t:o0x0",
        ] {
            for direction in Direction::ALL {
                for layout in ["nchw", "nhwc"] {
                    let problem: Problem = format!("{direction}:f32:{layout}:{key}").parse().unwrap();
                    let [first, second, result] = problem.operand_shapes().map(|it| it.iter().product::<usize>());
                    let operands = [numbers(first, 1), numbers(second, 2)];
                    let (Numbers::F32(a), Numbers::F32(b)) = (&operands[0], &operands[1]) else { unreachable!() };
                    let right = reference::compute(&problem, a, b, None);
                    let mut right = Numbers::F32(right.iter().map(|&it| it as f32).collect());
                    let operands = [&operands[0], &operands[1]];
                    let (is_right, detail) = compare(&problem, operands, &right).unwrap();
                    assert!(is_right, "{problem}: {detail}");
                    right.set(result - 1, right.get(result - 1) + 1.0);
                    assert!(!compare(&problem, operands, &right).unwrap().0, "{problem}");
                    let zeros = [Numbers::zeros(DataType::F32, first), Numbers::zeros(DataType::F32, second)];
                    let none = compare(&problem, [&zeros[0], &zeros[1]], &Numbers::zeros(DataType::F32, result));
                    assert_eq!(none, None, "zeros prove nothing");
                }
            }
        }
    }

    /// An engine that writes nothing.
    struct Idle;

    impl Engine for Idle {
        fn name(&self) -> EngineName {
            EngineName::Cpu
        }

        fn supports(&self, _: &Problem) -> Result<(), Unsupported> {
            Ok(())
        }

        fn run(&self, _: &Problem, _: Operands<'_>) -> Result<(), EngineError> {
            Ok(())
        }
    }

    #[test]
    fn what_is_left_out_is_seen() {
        let keys = [
            "forward:f32:nchw:2x6x9x8:4x3x2:s2x1:p1x0:d1x2:g2",
            "backward-data:f32:nhwc:1x3x5x5:3x3x3:s1x1:p1x1:d1x1:g3",
        ];
        let problems: Vec<Problem> = keys.iter().map(|key| key.parse().unwrap()).collect();
        assert_eq!(largest_error(&Idle, &problems, false).unwrap().unwrap().0, f64::INFINITY);
        assert_eq!(judged(&Idle, &problems, false).0, Verdict::Wrong);
        assert_eq!(largest_error(&Reference, &problems, false).unwrap().unwrap().0, 0.0);
        assert_eq!(judged(&Reference, &problems, false).0, Verdict::Works);
        assert_eq!(judged(&Reference, &problems, true).0, Verdict::Wrong);
    }

    #[test]
    fn a_familys_limit_ends_before_the_childs_deadline() {
        let deadline = canary::deadline(EngineName::Jit);
        assert!(FAMILY_LIMIT < deadline && EMULATED_FAMILY_LIMIT < deadline);
    }
}
