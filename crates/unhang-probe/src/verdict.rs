//! Turns what happened into a verdict and its words.

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict, tolerance};
use unhang_evidence::{Record, RecordSource, time};

use crate::explain::{explain, shortened, signal};
use crate::process::Ended;
use crate::protocol::{Answer, CameBack, Stage};
use crate::session::{Failure, Fallen};

/// One convolution on one engine, to be tried.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The convolution.
    pub problem: Problem,
    /// The engine.
    pub engine: EngineName,
    /// The profile or solver family, or empty.
    pub variant: String,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// What was tried.
    pub attempt: Attempt,
    /// How it ended.
    pub verdict: Verdict,
    /// The stage in which it hung or crashed.
    pub stage: Option<Stage>,
    /// Seconds when warm.
    pub seconds: Option<f64>,
    /// Seconds of the first call, including compilation and search.
    pub first_seconds: Option<f64>,
    /// The largest error of one value, relative to the largest value of the CPU engine's result.
    pub relative_error: Option<f64>,
    /// The number of values that are not finite where the CPU engine's are.
    pub not_numbers: Option<u64>,
    /// The signal that killed the child.
    pub signal: Option<i32>,
    /// What happened, in words.
    pub detail: String,
    /// How long the attempt took altogether, in seconds.
    pub elapsed: f64,
    /// When it ended, in seconds since 1970.
    pub unix_seconds: i64,
}

impl Tried {
    fn new(attempt: Attempt, verdict: Verdict, elapsed: f64, detail: String) -> Tried {
        Tried {
            attempt,
            verdict,
            stage: None,
            seconds: None,
            first_seconds: None,
            relative_error: None,
            not_numbers: None,
            signal: None,
            detail,
            elapsed,
            unix_seconds: time::now(),
        }
    }

    /// The verdict on an attempt that ended by itself.
    pub(crate) fn answered(attempt: Attempt, answer: Answer, elapsed: f64) -> Tried {
        let detail = shortened(&answer.detail);
        match answer.ended {
            CameBack::Unsupported => Tried::new(attempt, Verdict::Unsupported, elapsed, detail),
            CameBack::Error => Tried::new(attempt, Verdict::Error, elapsed, explain(&answer.detail).unwrap_or(detail)),
            CameBack::Computed => {
                let limit = tolerance::nonsense(attempt.problem.data_type());
                let right = answer.not_numbers == 0 && answer.relative_error.is_some_and(|error| error <= limit);
                let error = answer.relative_error.map_or("no finite error".to_owned(), |it| format!("error {it:.1e}"));
                let mut words = vec![format!("largest relative {error}")];
                if answer.not_numbers > 0 {
                    words.push(format!("{} numbers are not finite", answer.not_numbers));
                }
                if !detail.is_empty() {
                    words.push(detail);
                }
                let verdict = if right { Verdict::Works } else { Verdict::Wrong };
                Tried {
                    seconds: answer.seconds,
                    first_seconds: answer.first_seconds,
                    relative_error: answer.relative_error,
                    not_numbers: Some(answer.not_numbers),
                    ..Tried::new(attempt, verdict, elapsed, words.join("; "))
                }
            }
        }
    }

    /// The verdict on an attempt whose child was lost; `None` if the prober itself gave it up.
    pub(crate) fn fallen(attempt: Attempt, fallen: &Fallen, elapsed: f64) -> Option<Tried> {
        let said = explain(&fallen.output).map(|line| format!("; it printed: {line}")).unwrap_or_default();
        let (verdict, stage, mut detail) = match &fallen.failure {
            Failure::Stopped => return None,
            Failure::CannotStart(error) => (Verdict::Error, Some(Stage::Start), error.to_string()),
            Failure::Hung { stage: stage @ (Stage::Prepare | Stage::Check), within, .. } => {
                let within = seconds(within.as_secs_f64());
                let detail = format!("the CPU did not finish its part ({stage}) within {within}");
                (Verdict::Error, Some(*stage), detail)
            }
            Failure::Hung { stage, within, silent } => {
                let heart = match silent {
                    Some(silent) if silent.as_secs() >= 3 => {
                        format!("; its heartbeats stopped {} before", seconds(silent.as_secs_f64()))
                    }
                    _ => String::new(),
                };
                let within = seconds(within.as_secs_f64());
                (Verdict::Hangs, Some(*stage), format!("no answer within {within} in {stage}{heart}{said}"))
            }
            Failure::Died { stage, ended } => {
                let how = match ended {
                    Ended::Signalled(number) => format!("died of {}", signal(*number)),
                    Ended::Exited(code) => format!("ended with code {code} and no answer"),
                    Ended::TimedOut | Ended::Unkillable => "ended".to_owned(),
                };
                (Verdict::Crashes, Some(*stage), format!("{how} in {stage}{said}"))
            }
            Failure::Closed { stage } => {
                (Verdict::Crashes, Some(*stage), format!("closed its connection in {stage} and did not end{said}"))
            }
            Failure::Garbage { stage, said: garbage } => (
                Verdict::Error,
                Some(*stage),
                format!("sent something that is not an answer in {stage}: {}", shortened(garbage)),
            ),
        };
        if let Some(state) = fallen.unkillable {
            let state = state.map(|letter| format!(" (state {letter})")).unwrap_or_default();
            detail = format!("{detail}; it cannot be killed{state}");
        }
        let signal = match &fallen.failure {
            Failure::Died { ended: Ended::Signalled(number), .. } => Some(*number),
            _ => None,
        };
        Some(Tried { stage, signal, ..Tried::new(attempt, verdict, elapsed, detail) })
    }

    /// Whether it says anything about the convolution. A child lost before or after it does not.
    pub fn is_evidence(&self) -> bool {
        !matches!(self.stage, Some(Stage::Start | Stage::Prepare | Stage::Check))
    }

    /// What the store keeps of it.
    pub fn record(&self, machine: &str, source: RecordSource) -> Record {
        Record {
            problem: self.attempt.problem.clone(),
            engine: self.attempt.engine,
            variant: self.attempt.variant.clone(),
            machine: machine.to_owned(),
            verdict: self.verdict,
            seconds: self.seconds,
            first_seconds: self.first_seconds,
            detail: self.detail.clone(),
            source,
            unix_seconds: self.unix_seconds,
        }
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}
