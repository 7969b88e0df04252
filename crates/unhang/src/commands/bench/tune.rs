//! `unhang bench --tune`: times candidates in a watched child, keeps winners as evidence, and compares the model's
//! choices with them.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use unhang_conv::{DataType, Direction, Layout, Problem};
use unhang_engine::Tuned;
use unhang_evidence::{Realm, RecordSource, Tuning, time};
use unhang_gpu::candidates::half_candidates;
use unhang_gpu::tuning::{self, Bench, shortlist};
use unhang_gpu::{GpuEngine, GpuSettings};
use unhang_machine::System;
use unhang_probe::{ChildOutcome, Ended, Launch, TalkingChild, answer};
use unhang_session::{Contest, Effort};

use super::super::knowledge::{open_store, say_notices};
use super::super::shapes;
use super::super::text::{counted, deadline, entry, print_text, wrapped};
use super::super::whole_file::read_layers;
use super::device::open_driver;
use crate::output::{self, FOUND_ERRORS, Progress};

#[derive(Args)]
#[command(next_help_heading = "With --tune")]
pub(super) struct Tune {
    /// A layer table: name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups.
    #[arg(long, value_name = "FILE")]
    layers: Option<PathBuf>,
    /// The data type: f32, f16 or bf16.
    #[arg(long = "dtype", visible_alias = "data-type", default_value = "f32", value_name = "TYPE", value_parser = shapes::data_type)]
    data_type: DataType,
    /// The tensors' layout in memory: nchw or nhwc (channels_last).
    #[arg(long, default_value = "nchw", value_name = "LAYOUT", value_parser = shapes::layout)]
    layout: Layout,
    /// How many of the model's best candidates to time, in addition to the best of each other kernel family.
    #[arg(long, default_value_t = Effort::BENCH.candidates, value_name = "N")]
    candidates: usize,
    /// Also time f16 kernels that multiply in pairs: faster, and less exact. They are never used otherwise.
    #[arg(long)]
    packed_half: bool,
    /// How fast the model's choices must be to pass, as a share of the fastest ones' speed (geometric mean).
    #[arg(long, default_value_t = 0.85, value_name = "SHARE")]
    at_least: f64,
    /// How long the child may be silent before it is killed.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = deadline)]
    patience: Duration,
    /// The watched child: reads tasks, times them.
    #[arg(long, hide = true)]
    worker: bool,
}

/// One problem for the child, and the choices that hung before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Task {
    problem: String,
    without: BTreeSet<String>,
}

/// The child's messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TuneEvent {
    /// The device that it measures on, as evidence is filed.
    Device {
        name: String,
        architecture: String,
        #[serde(default)]
        compiler: String,
        #[serde(default)]
        driver: String,
    },
    Trying {
        choice: String,
    },
    Timed {
        choice: String,
        seconds: f64,
        #[serde(default)]
        spread: f64,
    },
    Failed {
        choice: String,
        reason: String,
    },
    Done,
}

/// The result for one problem.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct TuneOutcome {
    layer: String,
    problem: String,
    /// The model's choice, and its seconds.
    first: String,
    first_seconds: f64,
    best: String,
    best_seconds: f64,
    /// The spread of the fastest's times, as a share of their median.
    spread: f64,
    /// The fastest's seconds divided by the first's: 1 if the model was right.
    share: f64,
}

/// The times of one choice.
struct Timed {
    choice: String,
    seconds: f64,
    spread: f64,
}

#[derive(Default, Serialize)]
struct Report {
    device: String,
    architecture: String,
    compiler: String,
    driver: String,
    /// The geometric mean of the shares.
    geometric_mean: f64,
    at_least: f64,
    /// The smallest share, and its layer.
    worst: Option<(f64, String)>,
    outcomes: Vec<TuneOutcome>,
    /// Failures and hangs, in words.
    failures: Vec<String>,
}

impl Tune {
    pub(super) fn run(self, json: bool) -> anyhow::Result<ExitCode> {
        if self.worker {
            return self.work();
        }
        let layers = read_layers(self.layers.as_deref())?;
        let problems: Vec<(String, Problem)> = layers
            .iter()
            .flat_map(|layer| {
                let problem = layer.problem.with_data_type(self.data_type).with_layout(self.layout);
                Direction::ALL.map(|direction| (layer.name.clone(), problem.with_direction(direction)))
            })
            .collect();
        let program = std::env::current_exe().context("cannot find this program to start it as a child")?;
        let store = open_store();
        let source = Realm::of_machine(System::host().has_emulated_card()).source(RecordSource::Probe);
        let keep = |tuned: Tuned| {
            store.keep_tuning(Tuning { tuned, source, unix_seconds: time::now() });
        };
        let candidates = self.candidates.to_string();
        let mut command = vec![program.display().to_string()];
        command.extend(["bench", "--tune", "--worker", "--candidates", &candidates].map(str::to_owned));
        command.extend(self.packed_half.then(|| "--packed-half".to_owned()));
        let report = self.measure(&problems, &keep, &Launch { command, environment: Vec::new() })?;
        store.flush(Duration::from_secs(10));
        say_notices(&store);
        if json {
            output::print_json(&report)?;
        } else {
            print_text(&words(&report))?;
        }
        let well = report.geometric_mean >= self.at_least;
        Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(FOUND_ERRORS) })
    }

    /// Times all problems in children; each child that hangs is replaced.
    fn measure(&self, problems: &[(String, Problem)], keep: &dyn Fn(Tuned), launch: &Launch) -> anyhow::Result<Report> {
        let task = |problem: &Problem| Task { problem: problem.to_string(), without: BTreeSet::new() };
        let mut open = OpenTasks {
            report: Report { at_least: self.at_least, ..Report::default() },
            tasks: problems.iter().map(|(layer, problem)| (layer.clone(), task(problem))).collect(),
            keep,
            progress: Progress::new("measured"),
            all: problems.len(),
        };
        let mut ended_without_a_word = 0;
        while !open.tasks.is_empty() {
            let mut child = TalkingChild::start(launch).context("the child that would use the GPU does not start")?;
            let heard = open.listen(&mut child, self.patience)?;
            let said = words_of(&child.finish());
            if open.tasks.is_empty() {
                break;
            }
            if open.report.device.is_empty() {
                bail!("no GPU was measured: {}", if said.is_empty() { "the child printed nothing" } else { &said });
            }
            ended_without_a_word = if heard.found_device { 1 } else { ended_without_a_word + 1 };
            if ended_without_a_word > 3 {
                bail!("the child ended three times without finding the device again: {said}");
            }
            open.leave_out(heard.trying);
        }
        open.report.summed_up()
    }

    /// The child: opens the GPU and times what it receives.
    fn work(&self) -> anyhow::Result<ExitCode> {
        unhang_probe::child::end_with_parent();
        let engine = GpuEngine::new(open_driver()?, GpuSettings::default());
        let description = engine.driver().description();
        say(&TuneEvent::Device {
            name: tuning::device(description),
            architecture: description.true_architecture.clone(),
            compiler: engine.driver().compiler().version(),
            driver: description.driver.clone(),
        })?;
        for line in io::stdin().lock().lines() {
            let task: Task = serde_json::from_str(&line.context("cannot read the tasks")?).context("no task")?;
            let problem: Problem = task.problem.parse().context("no problem")?;
            self.time(&engine, &problem, &task.without)?;
            say(&TuneEvent::Done)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn time(&self, engine: &GpuEngine, problem: &Problem, without: &BTreeSet<String>) -> anyhow::Result<()> {
        let mut candidates = shortlist(engine.candidates(problem), self.candidates);
        if self.packed_half {
            let half = half_candidates(problem, &engine.driver().description().model, 1 << 30);
            candidates.extend(half.into_iter().take(self.candidates));
        }
        candidates.retain(|candidate| !without.contains(&candidate.choice.to_string()));
        // Compiled in parallel. A failed compilation is reported below, one by one.
        std::thread::scope(|scope| {
            for candidate in &candidates {
                scope.spawn(|| engine.compile(&candidate.plan).ok());
            }
        });
        let bench = Bench::new(engine, problem)?;
        let effort = Effort { candidates: self.candidates, ..Effort::BENCH };
        let mut contest = Contest::new(effort, candidates.iter().map(|candidate| candidate.choice));
        while let Some(round) = contest.next_round() {
            for choice in round.turns {
                say(&TuneEvent::Trying { choice: choice.to_string() })?;
                match bench.seconds(choice, round.repeats) {
                    Ok(seconds) => contest.took(choice, seconds),
                    Err(error) => {
                        say(&TuneEvent::Failed { choice: choice.to_string(), reason: error.to_string() })?;
                        contest.leave_out(choice, &error.to_string());
                    }
                }
            }
        }
        for times in contest.times_of_sound() {
            let (seconds, spread) = times.median_and_spread();
            say(&TuneEvent::Timed { choice: times.choice, seconds, spread })?;
        }
        Ok(())
    }
}

impl Report {
    /// The complete report, once everything is measured.
    fn summed_up(mut self) -> anyhow::Result<Report> {
        if let (true, Some(failure)) = (self.outcomes.is_empty(), self.failures.first()) {
            bail!("{} was found, and nothing could be timed on it: {failure}", self.device);
        }
        self.geometric_mean = geometric_mean(&self.outcomes);
        let worst = self.outcomes.iter().min_by(|a, b| a.share.total_cmp(&b.share));
        self.worst = worst.map(|it| (it.share, format!("{} {}", it.layer, it.problem)));
        Ok(self)
    }

    /// The result for one problem, as evidence. It includes f16 products in pairs if they were requested.
    fn tuned(&self, problem: &str, timed: &[Timed], detail: &str) -> Option<Tuned> {
        let (first, best) = (timed.first()?, timed.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?);
        Some(Tuned {
            problem: problem.parse().ok()?,
            device: self.device.clone(),
            kernels: tuning::kernels(),
            compiler: self.compiler.clone(),
            driver: self.driver.clone(),
            choice: best.choice.clone(),
            seconds: best.seconds,
            spread: best.spread,
            model_choice: first.choice.clone(),
            model_seconds: first.seconds,
            candidates: u32::try_from(timed.len()).unwrap_or(u32::MAX),
            detail: detail.to_owned(),
        })
    }
}

/// What is not measured yet, and what is.
struct OpenTasks<'a> {
    report: Report,
    tasks: VecDeque<(String, Task)>,
    keep: &'a dyn Fn(Tuned),
    progress: Progress,
    /// The total number.
    all: usize,
}

/// How far a child got.
#[derive(Default)]
struct Heard {
    found_device: bool,
    /// The choice that it was trying when it sent its last message.
    trying: Option<String>,
}

impl OpenTasks<'_> {
    /// Gives a child one task after another until all are done, or it has ended or was silent for too long.
    fn listen(&mut self, child: &mut TalkingChild, patience: Duration) -> anyhow::Result<Heard> {
        let mut heard = Heard::default();
        let (mut timed, mut failed) = (Vec::new(), Vec::new());
        self.give_next(child)?;
        while let Some(line) = child.next(patience) {
            match serde_json::from_str(&line).context("the child answered with something unknown")? {
                TuneEvent::Device { name, architecture, compiler, driver } => {
                    (self.report.device, self.report.architecture) = (name, architecture);
                    (self.report.compiler, self.report.driver) = (compiler, driver);
                    heard.found_device = true;
                }
                TuneEvent::Trying { choice } => heard.trying = Some(choice),
                TuneEvent::Timed { choice, seconds, spread } => timed.push(Timed { choice, seconds, spread }),
                TuneEvent::Failed { choice, reason } => {
                    failed.push(format!("{choice}: {reason}"));
                    let problem = self.tasks.front().map_or("", |(_, task)| &task.problem);
                    self.report.failures.push(format!("{choice} on {problem}: {reason}"));
                }
                TuneEvent::Done => {
                    heard.trying = None;
                    self.finish_first(std::mem::take(&mut timed), std::mem::take(&mut failed));
                    if self.tasks.is_empty() {
                        break;
                    }
                    self.give_next(child)?;
                }
            }
        }
        Ok(heard)
    }

    fn give_next(&self, child: &mut TalkingChild) -> anyhow::Result<()> {
        if let Some((_, task)) = self.tasks.front() {
            // A child that has ended takes no task; listening to it shows that.
            let _ = child.give(&serde_json::to_string(task)?);
        }
        Ok(())
    }

    /// Marks the first task as done.
    fn finish_first(&mut self, timed: Vec<Timed>, mut failed: Vec<String>) {
        let Some((layer, task)) = self.tasks.pop_front() else { return };
        failed.extend(task.without.iter().map(|it| format!("{it}: did not return")));
        if let Some(tuned) = self.report.tuned(&task.problem, &timed, &failed.join("; ")) {
            (self.keep)(tuned);
        }
        self.report.outcomes.extend(outcome(layer, task.problem, &timed));
        self.progress.at(self.report.outcomes.len(), self.all);
    }

    /// Whatever was being tried hangs, so the next child skips it.
    fn leave_out(&mut self, trying: Option<String>) {
        let Some((_, task)) = self.tasks.front_mut() else { return };
        match trying {
            Some(choice) => {
                let problem = &task.problem;
                self.report.failures.push(format!("{choice} on {problem}: did not return and was ended"));
                task.without.insert(choice);
            }
            None => {
                self.report.failures.push(format!("{}: the child ended before it tried anything", task.problem));
                self.tasks.pop_front();
            }
        }
    }
}

/// A child's output that was not meant for us.
fn words_of(ending: &ChildOutcome) -> String {
    match ending.ended {
        Ended::Unkillable => "the child process cannot be killed: it waits for the GPU".into(),
        _ => ending.other_words().take(40).collect::<Vec<_>>().join("\n").replace("error: ", ""),
    }
}

fn say(event: &TuneEvent) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // A library's own message may be in the middle of a line, because standard error goes to the same place.
    writeln!(out, "\n{}", answer::line(&serde_json::to_string(event)?))?;
    Ok(out.flush()?)
}

/// The first choice is the model's. `None` if nothing was timed.
fn outcome(layer: String, problem: String, timed: &[Timed]) -> Option<TuneOutcome> {
    // Choices that are used only on request do not count for the model.
    let unasked: Vec<&Timed> = timed.iter().filter(|it| !it.choice.starts_with("half:")).collect();
    let (first, best) = (*unasked.first()?, *unasked.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?);
    let share = if first.seconds > 0.0 { best.seconds / first.seconds } else { 1.0 };
    Some(TuneOutcome {
        layer,
        problem,
        first: first.choice.clone(),
        first_seconds: first.seconds,
        best: best.choice.clone(),
        best_seconds: best.seconds,
        spread: best.spread,
        share,
    })
}

fn geometric_mean(outcomes: &[TuneOutcome]) -> f64 {
    let sum: f64 = outcomes.iter().map(|outcome| outcome.share.ln()).sum();
    if outcomes.is_empty() { 1.0 } else { (sum / outcomes.len() as f64).exp() }
}

fn words(report: &Report) -> String {
    let mut text = format!("{}\n\n", report.device);
    for outcome in &report.outcomes {
        let direction = outcome.problem.split(':').next().unwrap_or_default();
        let model = if outcome.first == outcome.best {
            "the model's own choice".to_owned()
        } else {
            let took = time::duration(outcome.first_seconds);
            format!("the model's {} took {took}, a share of {:.2}", outcome.first, outcome.share)
        };
        let fastest = format!("{} took {}", outcome.best, time::duration(outcome.best_seconds));
        let spread = format!("spread {:.0} %", outcome.spread * 100.0);
        text += &entry(&format!("{} {direction}", outcome.layer), &[&fastest, &spread, &model], "");
    }
    let mut worst: Vec<&TuneOutcome> = report.outcomes.iter().filter(|outcome| outcome.share < 0.9).collect();
    worst.sort_by(|a, b| a.share.total_cmp(&b.share));
    for outcome in worst.iter().take(10) {
        let (first, best) = (time::duration(outcome.first_seconds), time::duration(outcome.best_seconds));
        let behind = format!(
            "the model fell behind on {}: {} took {first}, {} {best}",
            outcome.problem, outcome.first, outcome.best
        );
        text += &format!("\n{}", wrapped(&behind, 0, 4));
    }
    for failure in &report.failures {
        text += &format!("\n{}", wrapped(&format!("left out: {failure}"), 0, 4));
    }
    let worst = report.worst.as_ref().map_or(String::new(), |(share, which)| format!("; worst {share:.3}, {which}"));
    let end = format!(
        "{}; the model's own choices run at {:.3} of the fastest ones' speed (geometric mean, at least {} is asked \
         for{worst}). The fastest are kept as evidence (`unhang evidence tunings`) and are used from the next start on.",
        counted(report.outcomes.len(), "problem"),
        report.geometric_mean,
        report.at_least
    );
    format!("{text}\n{}\n", wrapped(&end, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tune() -> Tune {
        Tune {
            layers: None,
            data_type: DataType::F32,
            layout: Layout::Nchw,
            candidates: 2,
            packed_half: false,
            at_least: 0.9,
            patience: Duration::from_secs(8),
            worker: false,
        }
    }

    fn problems() -> Vec<(String, Problem)> {
        read_layers(None).unwrap().into_iter().take(2).map(|layer| (layer.name, layer.problem)).collect()
    }

    /// A shell script as the child: it stands in for a GPU that answers, or does not.
    fn script(text: &str) -> Launch {
        let command = ["sh", "-c", &format!("say() {{ echo \"$UNHANG_CHILD_NONCE $1\"; }}\n{text}")];
        Launch { command: command.map(str::to_owned).to_vec(), environment: Vec::new() }
    }

    #[test]
    fn the_model_is_held_against_the_fastest() {
        let kept = std::cell::RefCell::new(Vec::new());
        let report = tune()
            .measure(
                &problems(),
                &|tuned| kept.borrow_mut().push(tuned),
                &script(
                    r#"say '{"device":{"name":"a script","architecture":"none"}}'
                    for us in 4e-6 2e-6; do
                    say '{"timed":{"choice":"plain","seconds":4e-6}}'
                    say "{\"timed\":{\"choice\":\"narrow:4\",\"seconds\":$us}}"
                    say '"done"'
                    done; sleep 5"#,
                ),
            )
            .unwrap();
        assert_eq!(report.outcomes.iter().map(|it| it.share).collect::<Vec<_>>(), [1.0, 0.5]);
        assert!((report.geometric_mean - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!((report.outcomes[1].first.as_str(), report.outcomes[1].best.as_str()), ("plain", "narrow:4"));
        assert!(words(&report).contains("the model fell behind on"), "{}", words(&report));
        let unwrapped = words(&report).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unwrapped.contains("worst 0.500"), "{unwrapped}");
        assert!(words(&report).lines().all(|line| line.chars().count() <= 100), "{}", words(&report));
        let kept = kept.into_inner();
        assert_eq!(kept.iter().map(|it| it.choice.as_str()).collect::<Vec<_>>(), ["plain", "narrow:4"]);
        assert_eq!((kept[1].model_choice.as_str(), kept[1].candidates), ("plain", 2));
        assert_eq!((kept[1].share(), kept[1].device.as_str()), (0.5, "a script"));
    }

    #[test]
    fn what_does_not_come_back_is_named_and_left_out() {
        let kept = std::cell::RefCell::new(Vec::new());
        // The first child hangs in its second choice; the next one skips it.
        let report = tune()
            .measure(
                &problems()[..1],
                &|tuned| kept.borrow_mut().push(tuned),
                &script(
                    r#"say '{"device":{"name":"a script","architecture":"none"}}'
                    read task; case "$task" in
                    *narrow:4*) say '{"timed":{"choice":"plain","seconds":4e-6}}'; say '"done"';;
                    *) say '{"trying":{"choice":"narrow:4"}}';;
                    esac; exec sleep 30"#,
                ),
            )
            .unwrap();
        assert_eq!(report.outcomes.len(), 1);
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].contains("narrow:4") && report.failures[0].contains("did not return"));
        assert_eq!(kept.into_inner()[0].detail, "narrow:4: did not return");
    }

    #[test]
    fn without_a_gpu_it_says_so() {
        let failed = tune().measure(&problems(), &|_| (), &script("echo 'error: no GPU' >&2; exit 2")).err().unwrap();
        assert_eq!(failed.to_string(), "no GPU was measured: no GPU");
    }
}
