//! `unhang bench --tune`: candidates timed in a watched child, winners kept, and the model's choices held against them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use unhang_conv::{DataType, Direction, Layout, Problem, table};
use unhang_gpu::cache::Cache;
use unhang_gpu::choice::{Choice, half_candidates};
use unhang_gpu::driver::{Cuda, Driver, Hip, HipChip};
use unhang_gpu::tuning::{Bench, Tuning, Winner, shortlist};
use unhang_gpu::{GpuEngine, Settings};
use unhang_machine::{Environment, Machine, System};

use crate::output::{self, FOUND_ERRORS};

/// The layers that everything here is measured on.
const LAYERS: &str = include_str!("../../../../unhang-suite/layers.tsv");
/// Runs that a time is the mean of.
const REPEATS: u32 = 20;

#[derive(Args)]
pub struct Tune {
    /// A layer table: name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups.
    #[arg(long, value_name = "FILE")]
    layers: Option<PathBuf>,
    /// The type of the numbers: f32, f16 or bf16.
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    data_type: DataType,
    /// How tensors lie in memory: nchw or nhwc (channels_last).
    #[arg(long, default_value = "nchw", value_name = "LAYOUT")]
    layout: Layout,
    /// How many of the model's first candidates are timed, beside the first of each other kernel family.
    #[arg(long, default_value_t = 4, value_name = "N")]
    candidates: usize,
    /// Time f16 kernels with products in pairs too: faster, and less exact. They are never taken otherwise.
    #[arg(long)]
    packed_half: bool,
    /// The least geometric mean of the model's choices' speed over the fastest ones' that is well.
    #[arg(long, default_value_t = 0.85, value_name = "SHARE")]
    at_least: f64,
    /// Seconds without a sign of life after which the child is ended.
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// The watched child: reads tasks, times them.
    #[arg(long, hide = true)]
    worker: bool,
}

/// One problem for the child, and the choices that did not come back before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Task {
    problem: String,
    without: BTreeSet<String>,
}

/// What the child says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Device { name: String, architecture: String },
    Trying { choice: String },
    Timed { choice: String, seconds: f64 },
    Failed { choice: String, reason: String },
    Done,
}

/// What came out for one problem.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Outcome {
    layer: String,
    problem: String,
    /// What the model would have taken, and its seconds.
    first: String,
    first_seconds: f64,
    best: String,
    best_seconds: f64,
    /// The fastest's seconds over the first's: 1 where the model was right.
    share: f64,
}

#[derive(Serialize)]
struct Report {
    device: String,
    architecture: String,
    /// The geometric mean of the shares.
    geometric_mean: f64,
    at_least: f64,
    outcomes: Vec<Outcome>,
    /// What failed or did not come back, in words.
    failures: Vec<String>,
}

impl Tune {
    pub fn run(self, json: bool) -> anyhow::Result<ExitCode> {
        if self.worker {
            return self.work();
        }
        let text = match &self.layers {
            Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
            None => LAYERS.to_owned(),
        };
        let layers = table::parse(&text).context("this is not a layer table")?;
        let problems: Vec<(String, Problem)> = layers
            .iter()
            .flat_map(|layer| {
                let problem = layer.problem.with_data_type(self.data_type).with_layout(self.layout);
                Direction::ALL.map(|direction| (layer.name.clone(), problem.with_direction(direction)))
            })
            .collect();
        let program = std::env::current_exe().context("this program does not find itself")?;
        let report = self.measure(&problems, &|| {
            let mut command = Command::new(&program);
            command.args(["bench", "--tune", "--worker", "--candidates", &self.candidates.to_string()]);
            if self.packed_half {
                command.arg("--packed-half");
            }
            command
        })?;
        if json {
            output::print_json(&report)?;
        } else {
            super::super::text::print_text(&words(&report))?;
        }
        let well = report.geometric_mean >= self.at_least;
        Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(FOUND_ERRORS) })
    }

    /// Has all problems timed by children, one after the other as they fail to come back.
    fn measure(&self, problems: &[(String, Problem)], child: &dyn Fn() -> Command) -> anyhow::Result<Report> {
        let mut report = Report {
            device: String::new(),
            architecture: String::new(),
            geometric_mean: 1.0,
            at_least: self.at_least,
            outcomes: Vec::new(),
            failures: Vec::new(),
        };
        let mut tasks: VecDeque<(String, Task)> = problems
            .iter()
            .map(|(layer, problem)| (layer.clone(), Task { problem: problem.to_string(), without: BTreeSet::new() }))
            .collect();
        let mut ended_without_a_word = 0;
        while !tasks.is_empty() {
            let mut watched = Watched::start(child(), &tasks)?;
            let mut timed: Vec<(String, f64)> = Vec::new();
            let mut trying: Option<String> = None;
            loop {
                match watched.next(Duration::from_secs(self.patience)) {
                    Some(Event::Device { name, architecture }) => {
                        (report.device, report.architecture) = (name, architecture);
                        ended_without_a_word = 0;
                    }
                    Some(Event::Trying { choice }) => trying = Some(choice),
                    Some(Event::Timed { choice, seconds }) => timed.push((choice, seconds)),
                    Some(Event::Failed { choice, reason }) => {
                        report.failures.push(format!("{choice} on {}: {reason}", front(&tasks)));
                    }
                    Some(Event::Done) => {
                        trying = None;
                        if let Some((layer, task)) = tasks.pop_front() {
                            report.outcomes.extend(outcome(layer, task.problem, &std::mem::take(&mut timed)));
                            progress(report.outcomes.len(), problems.len());
                        }
                        if tasks.is_empty() {
                            break;
                        }
                    }
                    None => break,
                }
            }
            let said = watched.finish();
            if tasks.is_empty() {
                break;
            }
            if report.device.is_empty() {
                bail!("no GPU was measured: {}", if said.is_empty() { "the child said nothing" } else { &said });
            }
            ended_without_a_word += 1;
            if ended_without_a_word > 3 {
                bail!("the child ended three times without finding the device again: {said}");
            }
            // Whatever was being tried did not come back: the next child does without it.
            if let Some((_, task)) = tasks.front_mut() {
                match trying {
                    Some(choice) => {
                        let problem = task.problem.clone();
                        report.failures.push(format!("{choice} on {problem}: did not come back and was ended"));
                        task.without.insert(choice);
                    }
                    None => {
                        report.failures.push(format!("{}: the child ended before it tried anything", task.problem));
                        tasks.pop_front();
                    }
                }
            }
        }
        if let (true, Some(failure)) = (report.outcomes.is_empty(), report.failures.first()) {
            bail!("{} was found, and nothing could be timed on it: {failure}", report.device);
        }
        report.geometric_mean = geometric_mean(&report.outcomes);
        Ok(report)
    }

    /// The child: opens the GPU, times what it is given, keeps the winners.
    fn work(&self) -> anyhow::Result<ExitCode> {
        let engine = GpuEngine::new(open_driver()?, Settings::default());
        let folder = Cache::default_folder().context("hint: set HOME or XDG_CACHE_HOME: there is no cache folder")?;
        let cache = Cache::open(&folder, 512 << 20).with_context(|| format!("cannot use {}", folder.display()))?;
        let description = engine.driver().description();
        say(&Event::Device { name: description.name.clone(), architecture: description.true_architecture.clone() })?;
        for line in io::stdin().lock().lines() {
            let task: Task = serde_json::from_str(&line.context("cannot read the tasks")?).context("no task")?;
            let problem: Problem = task.problem.parse().context("no problem")?;
            self.time(&engine, &cache, &problem, &task.without)?;
            say(&Event::Done)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn time(
        &self,
        engine: &GpuEngine,
        cache: &Cache,
        problem: &Problem,
        without: &BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let mut candidates = shortlist(engine.candidates(problem), self.candidates);
        if self.packed_half {
            let half = half_candidates(problem, &engine.driver().description().model, 1 << 30);
            candidates.extend(half.into_iter().take(self.candidates));
        }
        candidates.retain(|candidate| !without.contains(&candidate.choice.to_string()));
        // Compiled side by side; what fails to compile says so again below, one by one.
        std::thread::scope(|scope| {
            for candidate in &candidates {
                scope.spawn(|| engine.compile(&candidate.plan).ok());
            }
        });
        let bench = Bench::new(engine, problem)?;
        let mut best: Option<(Choice, f64)> = None;
        for candidate in &candidates {
            let choice = candidate.choice.to_string();
            say(&Event::Trying { choice: choice.clone() })?;
            match bench.seconds(candidate.choice, REPEATS) {
                Ok(seconds) => {
                    say(&Event::Timed { choice, seconds })?;
                    if best.is_none_or(|(_, least)| seconds < least) {
                        best = Some((candidate.choice, seconds));
                    }
                }
                Err(error) => say(&Event::Failed { choice, reason: error.to_string() })?,
            }
        }
        if let Some((choice, seconds)) = best {
            let tuning = Tuning { winners: BTreeMap::from([(problem.clone(), Winner { choice, seconds })]) };
            tuning.keep(cache, engine.driver()).context("the winner cannot be kept")?;
        }
        Ok(())
    }
}

/// A child that says what it does, and is ended with this.
struct Watched {
    child: Child,
    events: Receiver<Event>,
    errors: std::thread::JoinHandle<String>,
}

impl Watched {
    fn start(mut command: Command, tasks: &VecDeque<(String, Task)>) -> anyhow::Result<Watched> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("the child that would use the GPU does not start")?;
        let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let lines: Vec<String> = tasks.iter().map(|(_, task)| serde_json::to_string(task)).collect::<Result<_, _>>()?;
        // A child that has ended reads nothing: that shows below.
        std::thread::spawn(move || {
            if let Some(input) = &mut input {
                let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
            }
        });
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for event in lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(event).is_err() {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let lines = errors.into_iter().flat_map(|errors| BufReader::new(errors).lines());
            lines.map_while(Result::ok).take(40).collect::<Vec<_>>().join("; ")
        });
        Ok(Watched { child, events, errors })
    }

    /// What the child says next; nothing where it ended, or was silent for too long.
    fn next(&mut self, patience: Duration) -> Option<Event> {
        self.events.recv_timeout(patience).ok()
    }

    /// Ends the child and returns what it said to standard error, if it could be ended.
    fn finish(mut self) -> String {
        let _ = self.child.kill();
        // A process that waits for a GPU may not die at once, or ever: it is not waited for without end.
        for _ in 0..150 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return self.errors.join().unwrap_or_default().replace("error: ", "");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        "the child cannot be ended: it waits for the GPU".into()
    }
}

fn front(tasks: &VecDeque<(String, Task)>) -> &str {
    tasks.front().map_or("", |(_, task)| &task.problem)
}

fn say(event: &Event) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(event)?)?;
    Ok(out.flush()?)
}

fn progress(done: usize, all: usize) {
    use std::io::IsTerminal;
    if io::stderr().is_terminal() {
        let end = if done == all { "\n" } else { "" };
        let _ = write!(io::stderr().lock(), "\rmeasured {done} of {all}{end}");
    }
}

/// The first GPU that can be used: NVIDIA's, or AMD's whose chip the kernel driver knows.
fn open_driver() -> anyhow::Result<Box<dyn Driver>> {
    let cuda = match Cuda::open(0) {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(error) => error,
    };
    let hip = match open_hip() {
        Ok(driver) => return Ok(Box::new(driver)),
        Err(reason) => reason,
    };
    Err(anyhow::anyhow!("hint: --tune needs the GPU itself; `unhang kernels list` needs only the compiler")
        .context(format!("AMD: {hip}"))
        .context(format!("NVIDIA: {cuda}"))
        .context("there is no GPU here that can be used"))
}

/// The runtime's first device, compiled for as the chip that the kernel driver says is there: the runtime may be spoofed.
fn open_hip() -> Result<Hip, String> {
    let address = Hip::pci_address(0).map_err(|error| error.to_string())?;
    let machine = Machine::inspect(&System::new("/".as_ref(), Environment::of_this_process()));
    let (gpu, gfx) = machine.gpu_at(&address)?;
    let chip = HipChip {
        reported_architecture: gpu.reported_gfx.clone().unwrap_or_else(|| gfx.to_owned()),
        true_architecture: gfx.to_owned(),
        compute_units: gpu.compute_units.unwrap_or(0) as usize,
        clock_mhz: 0,
        bandwidth: 0,
    };
    Hip::open(0, &chip).map_err(|error| error.to_string())
}

/// The first choice is the model's; nothing where nothing was timed.
fn outcome(layer: String, problem: String, timed: &[(String, f64)]) -> Option<Outcome> {
    // What is never taken unasked is no yardstick for the model.
    let unasked: Vec<&(String, f64)> = timed.iter().filter(|(choice, _)| !choice.starts_with("half:")).collect();
    let (first, first_seconds) = (*unasked.first()?).clone();
    let (best, best_seconds) = (*unasked.iter().min_by(|a, b| a.1.total_cmp(&b.1))?).clone();
    let share = if first_seconds > 0.0 { best_seconds / first_seconds } else { 1.0 };
    Some(Outcome { layer, problem, first, first_seconds, best, best_seconds, share })
}

fn geometric_mean(outcomes: &[Outcome]) -> f64 {
    let sum: f64 = outcomes.iter().map(|outcome| outcome.share.ln()).sum();
    if outcomes.is_empty() { 1.0 } else { (sum / outcomes.len() as f64).exp() }
}

fn words(report: &Report) -> String {
    let mut text = format!("{} ({})\n\n", report.device, report.architecture);
    for outcome in &report.outcomes {
        text += &format!(
            "{:20} {:16} {:>9.1} µs {:42} {:>5.2}\n",
            outcome.layer,
            outcome.problem.split(':').next().unwrap_or_default(),
            outcome.best_seconds * 1e6,
            outcome.best,
            outcome.share
        );
    }
    let mut worst: Vec<&Outcome> = report.outcomes.iter().filter(|outcome| outcome.share < 0.9).collect();
    worst.sort_by(|a, b| a.share.total_cmp(&b.share));
    for outcome in worst.iter().take(10) {
        text += &format!(
            "\nthe model fell behind on {}: {} took {:.1} µs, {} {:.1} µs",
            outcome.problem,
            outcome.first,
            outcome.first_seconds * 1e6,
            outcome.best,
            outcome.best_seconds * 1e6
        );
    }
    for failure in &report.failures {
        text += &format!("\nleft out: {failure}");
    }
    text + &format!(
        "\n{} problems; the model's own choices run at {:.3} of the fastest ones' speed (geometric mean, at least {} is \
         asked for). The fastest are kept and are taken from the next start on.\n",
        report.outcomes.len(),
        report.geometric_mean,
        report.at_least
    )
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
            patience: 8,
            worker: false,
        }
    }

    fn problems() -> Vec<(String, Problem)> {
        table::parse(LAYERS).unwrap().into_iter().take(2).map(|layer| (layer.name, layer.problem)).collect()
    }

    /// A child that is a shell script: it stands in for a GPU that answers, or does not.
    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn the_model_is_held_against_the_fastest() {
        let report = tune()
            .measure(&problems(), &|| {
                script(
                    r#"echo '{"device":{"name":"a script","architecture":"none"}}'
                    for us in 4e-6 2e-6; do
                    echo '{"timed":{"choice":"plain","seconds":4e-6}}'
                    echo "{\"timed\":{\"choice\":\"narrow:4\",\"seconds\":$us}}"
                    echo '"done"'
                    done; sleep 5"#,
                )
            })
            .unwrap();
        assert_eq!(report.outcomes.iter().map(|it| it.share).collect::<Vec<_>>(), [1.0, 0.5]);
        assert!((report.geometric_mean - 0.5f64.sqrt()).abs() < 1e-12);
        assert_eq!((report.outcomes[1].first.as_str(), report.outcomes[1].best.as_str()), ("plain", "narrow:4"));
        assert!(words(&report).contains("the model fell behind on"), "{}", words(&report));
    }

    #[test]
    fn what_does_not_come_back_is_named_and_left_out() {
        // The first child hangs in its second choice; the next one is told to do without it.
        let report = tune()
            .measure(&problems()[..1], &|| {
                script(
                    r#"echo '{"device":{"name":"a script","architecture":"none"}}'
                    read task; case "$task" in
                    *narrow:4*) echo '{"timed":{"choice":"plain","seconds":4e-6}}'; echo '"done"';;
                    *) echo '{"trying":{"choice":"narrow:4"}}';;
                    esac; exec sleep 30"#,
                )
            })
            .unwrap();
        assert_eq!(report.outcomes.len(), 1);
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].contains("narrow:4") && report.failures[0].contains("did not come back"));
    }

    #[test]
    fn without_a_gpu_it_says_so() {
        let failed = tune().measure(&problems(), &|| script("echo 'error: no GPU' >&2; exit 2")).err().unwrap();
        assert_eq!(failed.to_string(), "no GPU was measured: no GPU");
    }
}
