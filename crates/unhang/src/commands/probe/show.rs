//! The output of a probe: progress while it runs, and its findings.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Realm, Record, time};
use unhang_machine::quoted;
use unhang_probe::{Attempt, End, ProbeEvent, Probed, Tried};
use unhang_report::{Cells, table_in_parts};

use super::super::knowledge::Knowledge;
use super::super::text::{print_safe_json, print_text, width, wrapped};
use crate::output::{CANNOT_TELL, Colour, FOUND_ERRORS, Style, printable, tell};

/// The exit code if the GPU no longer computes.
const GPU_LOST: u8 = 4;
/// The exit code of an interrupted command: 128 plus the number of SIGINT.
pub(super) const INTERRUPTED: u8 = 130;
/// How often to print a line without a terminal to draw on.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// The most bad verdicts to list; the rest is counted.
const LISTED: usize = 40;

/// What to do after the card was lost.
const AFTER_A_LOSS: &str = "What was found is kept. Restart the machine (a reset of the card may not be enough), then start \
                            the same probe again: it continues after the convolution that did this.";

/// Whether a verdict keeps an engine from being used.
pub(super) fn is_bad(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Hangs | Verdict::Crashes | Verdict::Wrong)
}

/// Progress on standard error: a bar on a terminal, a line now and then elsewhere.
pub(super) struct Progress {
    bar: ProgressBar,
    drawn: bool,
    rehearsal: bool,
    total: usize,
    state: Mutex<Count>,
}

struct Count {
    began: Instant,
    last_line: Instant,
    done: usize,
    counts: BTreeMap<&'static str, usize>,
}

impl Progress {
    /// Progress of that many attempts. Hangs and crashes are printed as they happen, if `talkative`.
    pub(super) fn new(total: usize, rehearsal: bool, talkative: bool) -> Progress {
        let drawn = std::io::stderr().is_terminal();
        let bar = if drawn && total > 0 { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
        let template = if rehearsal { "rehearsal " } else { "" }.to_owned()
            + "{bar:24} {pos}/{len} {elapsed} eta {eta} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        let now = Instant::now();
        let state = Count { began: now, last_line: now, done: 0, counts: BTreeMap::new() };
        Progress { bar, drawn: drawn && talkative, rehearsal, total, state: Mutex::new(state) }
    }

    /// Shows an event. Called from the workers' threads.
    pub(super) fn show(&self, event: &ProbeEvent<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            ProbeEvent::Began(attempt) if self.drawn => {
                self.bar.set_message(format!("{} {}", counts(&state.counts), name(attempt)));
            }
            ProbeEvent::Began(_) => {}
            ProbeEvent::Recovering(wait) if !wait.is_zero() => self.say(&format!(
                "a child was ended; the GPU has {} s to recover, then a canary is tried",
                wait.as_secs()
            )),
            ProbeEvent::Recovering(_) => {}
            ProbeEvent::Ended(tried) => {
                state.done += 1;
                *state.counts.entry(tried.verdict.name()).or_default() += 1;
                self.bar.inc(1);
                if self.drawn && is_bad(tried.verdict) {
                    self.say(&one_line(tried));
                }
                if !self.bar.is_hidden() || state.last_line.elapsed() < LINE_EVERY {
                    return;
                }
                state.last_line = Instant::now();
                let left = self.total.saturating_sub(state.done) as f64;
                let eta = state.began.elapsed().as_secs_f64() / state.done as f64 * left;
                let rehearsal = if self.rehearsal { "rehearsal: " } else { "" };
                let counted = counts(&state.counts);
                let done = state.done;
                tell(&format!("{rehearsal}{done} of {} tried, {counted}, about {eta:.0} s left", self.total));
            }
        }
    }

    fn say(&self, text: &str) {
        if self.drawn {
            self.bar.println(printable(text));
        } else {
            tell(text);
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn counts(counts: &BTreeMap<&'static str, usize>) -> String {
    let words: Vec<String> = counts.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
    words.join(", ")
}

fn name(attempt: &Attempt) -> String {
    match attempt.variant.as_str() {
        "" => format!("{} {}", attempt.engine, attempt.problem),
        variant => format!("{}/{variant} {}", attempt.engine, attempt.problem),
    }
}

/// A verdict on one line.
pub(super) fn one_line(tried: &Tried) -> String {
    format!("{} {}: {}", tried.verdict, name(&tried.attempt), tried.detail)
}

/// The findings of a probe, with what was known before.
pub(super) struct Found {
    order: HashMap<Attempt, usize>,
    entries: Vec<(Tried, bool)>,
    left: Vec<(Attempt, String)>,
    end: End,
    suspects: usize,
    rehearsal: Option<String>,
    children: u64,
    unwritten: usize,
    seconds: f64,
}

impl Found {
    /// For these attempts; that many are culprits of an earlier crash.
    pub(super) fn new(attempts: &[Attempt], suspects: usize, rehearsal: Option<String>) -> Found {
        Found {
            order: attempts.iter().cloned().enumerate().map(|(index, attempt)| (attempt, index)).collect(),
            entries: Vec::new(),
            left: Vec::new(),
            end: End::Complete,
            suspects,
            rehearsal,
            children: 0,
            unwritten: 0,
            seconds: 0.0,
        }
    }

    /// Adds a finding from before.
    pub(super) fn add_earlier(&mut self, record: Record) {
        let tried = Tried {
            attempt: Attempt { problem: record.problem, engine: record.engine, variant: record.variant },
            verdict: record.verdict,
            stage: None,
            seconds: record.seconds,
            first_seconds: record.first_seconds,
            relative_error: None,
            not_numbers: None,
            signal: None,
            detail: record.detail,
            elapsed: 0.0,
            unix_seconds: record.unix_seconds,
        };
        self.entries.push((tried, true));
    }

    /// Adds the findings of this probe.
    pub(super) fn add(&mut self, probed: Probed, seconds: f64) {
        self.entries.extend(probed.tried.into_iter().map(|tried| (tried, false)));
        self.entries.sort_by_key(|(tried, _)| self.order.get(&tried.attempt).copied());
        self.left = probed.left;
        self.end = probed.end;
        self.children = probed.children;
        self.unwritten = probed.unwritten;
        self.seconds = seconds;
    }

    /// The command's exit code, from new and earlier findings.
    pub(super) fn exit_code(&self) -> u8 {
        match self.end {
            End::Lost(_) => GPU_LOST,
            End::Interrupted => INTERRUPTED,
            _ if self.entries.iter().any(|(tried, _)| is_bad(tried.verdict)) => FOUND_ERRORS,
            _ if !self.left.is_empty() => CANNOT_TELL,
            // An engine that always fails was not really tried: nothing is known, and that is not success.
            _ if self.are_errors_alone(|_| true) || self.are_errors_alone(|&is_earlier| !is_earlier) => CANNOT_TELL,
            _ => 0,
        }
    }

    /// Whether there are such entries and each of them is an error.
    fn are_errors_alone(&self, wanted: impl Fn(&bool) -> bool) -> bool {
        let mut entries = self.entries.iter().filter(|(_, is_earlier)| wanted(is_earlier)).peekable();
        entries.peek().is_some() && entries.all(|(tried, _)| tried.verdict == Verdict::Error)
    }

    fn now(&self) -> usize {
        self.entries.iter().filter(|(_, earlier)| !earlier).count()
    }

    /// Prints it.
    pub(super) fn print(
        &self,
        as_json: bool,
        knowledge: &Knowledge,
        machine: &str,
        remarks: &[String],
    ) -> anyhow::Result<()> {
        if as_json {
            print_safe_json(&self.to_json(knowledge, remarks))
        } else {
            print_text(&self.to_text(knowledge, machine))
        }
    }

    fn to_json(&self, knowledge: &Knowledge, remarks: &[String]) -> Value {
        let record = |(tried, earlier): &(Tried, bool)| {
            json!({
                "problem": tried.attempt.problem.to_string(),
                "engine": tried.attempt.engine.name(),
                "variant": tried.attempt.variant,
                "verdict": tried.verdict.name(),
                "seconds": tried.seconds,
                "first_seconds": tried.first_seconds,
                "elapsed": (!earlier).then_some(tried.elapsed),
                "stage": tried.stage.map(|stage| stage.name()),
                "signal": tried.signal,
                "relative_error": tried.relative_error,
                "not_numbers": tried.not_numbers,
                "detail": tried.detail,
                "rehearsal": knowledge.evidence.realm() == Realm::Rehearsal,
                "earlier": earlier,
                "unix_seconds": tried.unix_seconds,
            })
        };
        let left = |(attempt, why): &(Attempt, String)| {
            json!({
                "problem": attempt.problem.to_string(),
                "engine": attempt.engine.name(),
                "variant": attempt.variant,
                "why": why,
            })
        };
        let mut summary = json!({
            "ended": match &self.end {
                End::Complete => "complete",
                End::Budget => "budget",
                End::Interrupted => "interrupted",
                End::Lost(_) => "gpu-lost",
            },
            "why": match &self.end { End::Lost(why) => Some(why), _ => None },
            "tried": self.now(),
            "known_before": self.entries.len() - self.now(),
            "suspects": self.suspects,
            "not_tried": self.left.len(),
            "not_written": self.unwritten,
            "children": self.children,
            "seconds": self.seconds,
        });
        for verdict in Verdict::ALL {
            summary[verdict.name()] = self.entries.iter().filter(|(it, _)| it.verdict == verdict).count().into();
        }
        json!({
            "rehearsal": self.rehearsal,
            "machine": knowledge.to_json(),
            "remarks": remarks,
            "records": self.entries.iter().map(record).collect::<Vec<_>>(),
            "not_tried": self.left.iter().map(left).collect::<Vec<_>>(),
            "summary": summary,
        })
    }

    fn to_text(&self, knowledge: &Knowledge, machine: &str) -> String {
        let style = Style::for_stream(&std::io::stdout());
        let mut text = String::new();
        let line = |text: &mut String, words: &str| {
            let _ = writeln!(text, "{}", wrapped(&printable(words), 0, 2));
        };
        match &self.rehearsal {
            Some(name) => line(&mut text, &format!("REHEARSAL of {name}: no real card was tried")),
            None => line(&mut text, &knowledge.description()),
        }
        let _ = writeln!(text, "\n{}\n", self.summary_table());
        self.list_failures(&mut text, &style);
        if self.suspects > 0 {
            let left = plural(self.suspects, "attempt was left", "attempts were left");
            let why = "by a probe that did not finish, and may have caused that (--again tries again)";
            line(&mut text, &format!("{left} {why}"));
        }
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, why) in &self.left {
            *reasons.entry(why).or_default() += 1;
        }
        for (why, count) in reasons {
            line(&mut text, &format!("not tried: {count} ({why})"));
        }
        let known = self.entries.len() - self.now();
        let again = if known > 0 { " (--again tries them too)" } else { "" };
        let children = plural(self.children as usize, "child", "children");
        let (now, seconds) = (self.now(), self.seconds);
        line(&mut text, &format!("{now} tried in {seconds:.1} s with {children}; {known} known from before{again}"));
        if self.unwritten > 0 {
            line(&mut text, &format!("{} could not be written to the store: keep this output", self.unwritten));
        }
        self.tell_the_end(&mut text, &style);
        // Without torch, verdicts are kept under what was tried in its place, and the report needs that fingerprint.
        let mut which = match &self.rehearsal {
            Some(_) => " --rehearsed".to_owned(),
            None if machine != knowledge.fingerprint => format!(" --machine {}", printable(machine)),
            None => String::new(),
        };
        if let Some(folder) = &knowledge.machine.described_by {
            let _ = write!(which, " --root {}", printable(&quoted(folder)));
        }
        let place = if knowledge.is_about_an_emulated_card() { ", inside the same `unhang card run`" } else { "" };
        // Commands stay whole, because people copy them.
        let _ = writeln!(
            text,
            "the map{place}:\n       unhang report{which}\nas a page:\n       unhang report{which} --html hang-map.html"
        );
        text
    }

    /// The failures, up to a limit.
    fn list_failures(&self, text: &mut String, style: &Style) {
        let mut listed = 0;
        let wanted = |verdict| is_bad(verdict) || verdict == Verdict::Error;
        for (tried, _) in self.entries.iter().filter(|(tried, _)| wanted(tried.verdict)) {
            listed += 1;
            if listed <= LISTED {
                let verdict = style.paint(tried.verdict.name(), Colour::Red);
                let detail = printable(&tried.detail);
                let line = format!("{verdict} {}: {detail}", name(&tried.attempt));
                let _ = writeln!(text, "{}", wrapped(&line, 2, 6));
            }
        }
        if listed > LISTED {
            let _ = writeln!(text, "  and {} more: see --json", listed - LISTED);
        }
        if listed > 0 {
            text.push('\n');
        }
    }

    /// How the probe ended, if it did not complete.
    fn tell_the_end(&self, text: &mut String, style: &Style) {
        let said = match &self.end {
            End::Lost(why) => {
                let head = "The GPU is lost";
                let said = wrapped(&format!("{head}: {}", printable(why)), 0, 2);
                let _ = writeln!(text, "{}", said.replacen(head, &style.paint(head, Colour::Red), 1));
                wrapped(AFTER_A_LOSS, 2, 2)
            }
            End::Interrupted => {
                wrapped("interrupted; what was found is kept. Run the same command again to continue", 0, 2)
            }
            End::Budget => wrapped("the time is up. Run the same command again to continue", 0, 2),
            End::Complete => return,
        };
        let _ = writeln!(text, "{said}");
    }

    fn summary_table(&self) -> String {
        let mut rows: BTreeMap<(EngineName, String), (Vec<usize>, Vec<f64>)> = BTreeMap::new();
        for (tried, _) in &self.entries {
            let key = (tried.attempt.engine, tried.attempt.variant.clone());
            let (counts, times) = rows.entry(key).or_insert_with(|| (vec![0; Verdict::ALL.len()], Vec::new()));
            counts[Verdict::ALL.iter().position(|it| *it == tried.verdict).unwrap_or_default()] += 1;
            times.extend(tried.seconds.filter(|_| tried.verdict.is_good()));
        }
        let mut header = vec!["engine".to_owned()];
        header.extend(Verdict::ALL.map(|verdict| verdict.to_string()));
        header.push("median".to_owned());
        let mut lines = vec![header];
        for ((engine, variant), (counts, mut times)) in rows {
            let mut row = vec![if variant.is_empty() { engine.to_string() } else { format!("{engine}/{variant}") }];
            row.extend(counts.iter().map(|count| if *count == 0 { "·".to_owned() } else { count.to_string() }));
            times.sort_by(f64::total_cmp);
            row.push(times.get(times.len() / 2).map_or("·".to_owned(), |seconds| time::duration(*seconds)));
            lines.push(row);
        }
        table_in_parts(width(), &lines, Cells::Numbers)
    }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
