//! `unhang run`: runs a program with the right environment, unhang in every Python that it starts, and a watchdog.

mod boundary;
pub(super) mod child;
pub(super) mod environment;
mod folder;
pub(super) mod shield;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use unhang_guard::PrivateFolder;
use unhang_machine::profile::Profile;
use unhang_machine::unrepaired::{self, Unrepaired};
use unhang_machine::{Verdict, examine, quoted};
use unhang_plan::Strategy;
use unhang_watchdog::HangReport;
use unhang_watchdog::report::{HANG_IN_CALL, HANG_OUTSIDE};

use self::child::{Ended, Signals};
use self::environment::{Action, Decision};
use self::folder::{Repairs, RunFolder};
use super::machine_arguments::MachineArguments;
use super::python::options;
use super::text::{counted, deadline, duration, print_safe_json, print_text, wrapped};
use crate::output::{inform, printable, say, tell_more};

/// As in shells: the command exists but cannot be run; it does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The time to reset a hung GPU: nine seconds until its queues are given up, and the reset itself.
const RESET: Duration = Duration::from_secs(15);

/// How long the shield lets a program's queues make no progress.
const QUEUE_DEADLINE: &str = "UNHANG_QUEUE_DEADLINE";
/// The watchdogs that know convolutions go first, because they can say more.
const AFTER_OTHER_WATCHDOGS: Duration = Duration::from_secs(10);

/// Run a program with the right environment, unhang in every Python, and a hang watchdog.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang run -- python train.py
  unhang run --restarts 3 -- python train.py
  unhang run -- torchrun --nproc-per-node 2 train.py
  unhang run --everywhere -- python train.py      # on a card that is not RDNA1
  unhang run --dry-run -- python train.py

Nothing is installed; only evidence and caches stay. Variables that you set win; --dry-run shows what would be set.

Exit codes:
  the program's own; if it dies of a signal, `unhang run` dies of it too
  2    wrong usage, or could not begin
  86   a convolution hung
  87   something else on the GPU hung
  126  the command cannot be run
  127  the command was not found")]
pub(crate) struct Run {
    /// How long a convolution may take on the GPU before it counts as a hang, such as 90s or 5m [default: 60s, among
    /// several ranks 30m].
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    hang_deadline: Option<Duration>,
    /// How long other GPU work may make no progress before it counts as a hang [default: ten times --hang-deadline, among
    /// several ranks the same].
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    outside_deadline: Option<Duration>,
    /// How long a convolution's call may take while the GPU is idle, for example to compile [default: 1h].
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    host_deadline: Option<Duration>,
    /// Restart the program after a hang, at most N times, without what hung; UNHANG_RESTART counts the restarts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// The command for a restart, as a line for sh, for example one that resumes from a checkpoint.
    #[arg(long, value_name = "CMD", requires = "restarts")]
    restart_cmd: Option<String>,
    /// How long to wait before a restart [default: 15s on an affected card, whose driver resets it first].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    restart_delay: Option<Duration>,
    /// The environment profile to set.
    #[arg(long, value_enum, default_value = "auto")]
    profile: ProfileName,
    /// Plan with this strategy: auto, implicit_gemm, cpu_fallback, selective, aten, jit or tiled.
    #[arg(long, value_name = "NAME")]
    strategy: Option<Strategy>,
    /// Compute convolutions with unhang's own kernels on any AMD or NVIDIA GPU, not only on RDNA1 cards; the same as
    /// --strategy jit.
    #[arg(long, conflicts_with = "strategy")]
    everywhere: bool,
    /// Turn the watchdog off.
    #[arg(long)]
    no_watchdog: bool,
    /// Let CPU tensors play the card that --root describes; every output says that it is a rehearsal.
    #[arg(long)]
    rehearse: bool,
    /// Show what would be set, and do not run the program.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long, requires = "dry_run")]
    json: bool,
    #[command(flatten)]
    machine: MachineArguments,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// What fits this machine; nothing without an RDNA1 card.
    Auto,
    /// No variables.
    None,
    #[value(name = "rocm5.2")]
    Rocm52,
    #[value(name = "rocm5.7")]
    Rocm57,
    NoSpoof,
    JaxTensorflow,
}

impl Run {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (decisions, protection) = self.decide()?;
        let is_affected = protection.is_affected;
        if self.dry_run {
            return self.show(&decisions);
        }
        for decision in decisions.iter().filter(|it| it.action == Action::Kept) {
            say(&decision.to_string());
        }
        match protection.in_words(&self, &decisions) {
            Some(line) => inform(&line),
            None if decisions.is_empty() => tell_more("unhang: no RDNA1 card was found: nothing is set for one"),
            None => {}
        }
        for decision in decisions.iter().filter(|it| it.action != Action::Kept) {
            tell_more(&format!("unhang: {decision}"));
        }
        let signals = Signals::catch().context("cannot catch signals")?;
        let folder = RunFolder::create().map_err(|reason| self.say_without_folder(&reason)).ok();
        let delay = match self.restart_delay {
            Some(delay) => delay,
            None if is_affected && !self.rehearse => RESET,
            None => Duration::ZERO,
        };
        let mut hangs: Vec<HangReport> = Vec::new();
        for attempt in 0.. {
            let mut command = self.command(attempt);
            self.set_environment(&mut command, &decisions, folder.as_ref(), &hangs, attempt)?;
            let ended = match child::run(command, &signals, folder.as_ref()) {
                Ok(ended) => ended,
                Err(error) => return Ok(ExitCode::from(cannot_start("unhang run", &self.command[0], &error))),
            };
            self.sum_up(folder.as_ref());
            let found = folder.as_ref().map(RunFolder::take_reports).unwrap_or_default();
            if ended == Ended::Exited(0) || found.is_empty() {
                return Ok(end_likewise(ended, folder));
            }
            let code = if found.iter().any(HangReport::is_in_call) { HANG_IN_CALL } else { HANG_OUTSIDE };
            hangs.extend(found);
            if ended == Ended::Unkillable {
                return Ok(ExitCode::from(code));
            }
            if attempt >= self.restarts {
                if self.restarts > 0 {
                    let restarts = counted(self.restarts, "restart");
                    say(&format!("it hung again after {restarts}: giving up"));
                }
                return Ok(ExitCode::from(code));
            }
            say(&format!("starting it again ({} of {})", attempt + 1, self.restarts));
            if let Some(signal) = signals.wait(delay) {
                return Ok(end_likewise(Ended::Signalled(signal), folder));
            }
        }
        unreachable!("attempts are counted")
    }

    /// Prints one line about what was computed and repaired. What could not be repaired is kept for the doctor.
    fn sum_up(&self, folder: Option<&RunFolder>) {
        let Some(folder) = folder else { return };
        let repairs = folder.take_repairs();
        let said = folder.take_summaries().into_iter().chain(repairs.as_ref().map(Repairs::in_words));
        let said: Vec<String> = said.collect();
        if !said.is_empty() {
            inform(&said.join("; "));
        }
        if let Some(repairs) = repairs
            && let Err(reason) = self.keep_for_the_doctor(repairs)
        {
            tell_more(&format!("unhang: could not record for `unhang doctor` which kernels stay unsafe: {reason}"));
        }
    }

    /// The record of the last run with a shield: written if something remains unsafe, otherwise removed.
    fn keep_for_the_doctor(&self, repairs: Repairs) -> Result<(), String> {
        let home = unhang_evidence::home().ok_or("neither UNHANG_HOME nor HOME is set")?;
        if repairs.left.is_empty() && !home.join(unrepaired::FILE).exists() {
            return Ok(());
        }
        let home = PrivateFolder::open(&home).map_err(|error| error.to_string())?;
        if repairs.left.is_empty() {
            home.remove(unrepaired::FILE);
            return Ok(());
        }
        let program = Path::new(&self.command[0]).file_name().unwrap_or_default();
        let record = Unrepaired {
            program: program.to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernels: repairs.left,
        };
        let text = serde_json::to_vec_pretty(&record).map_err(|error| error.to_string())?;
        home.write(unrepaired::FILE, &text).map_err(|error| error.to_string())
    }

    /// Sets whether programs are watched, and the deadlines.
    fn set_watchdog(&self, command: &mut Command, say: impl Fn(&str)) {
        command.env("UNHANG_WATCHDOG", if self.is_watched() { "1" } else { "0" });
        for (name, value) in self.deadlines_asked_for() {
            command.env(name, value);
        }
        if self.is_watched() {
            command.env(QUEUE_DEADLINE, self.queue_deadline(say).as_secs_f64().to_string());
        } else {
            // An outer run may have set it.
            command.env_remove(QUEUE_DEADLINE);
        }
    }

    /// An empty variable means off, as in Python.
    fn is_watched(&self) -> bool {
        let is_on = |value: &OsString| !value.is_empty() && value != "0";
        !self.no_watchdog && std::env::var_os("UNHANG_WATCHDOG").as_ref().is_none_or(is_on)
    }

    /// How long queues may make no progress: from flags, or else from the variable, which may be an outer run's.
    fn queue_deadline(&self, say: impl Fn(&str)) -> Duration {
        let default = self.deadlines(&say).outside_deadline + AFTER_OTHER_WATCHDOGS;
        let is_asked_for = self.hang_deadline.or(self.outside_deadline).is_some();
        let variable = std::env::var_os(QUEUE_DEADLINE).filter(|value| !value.is_empty() && !is_asked_for);
        let Some(variable) = variable else { return default };
        deadline(&variable.to_string_lossy()).unwrap_or_else(|reason| {
            say(&format!("{QUEUE_DEADLINE}: {reason}; using {}s", default.as_secs_f64()));
            default
        })
    }

    /// The deadlines from flags, as variables.
    fn deadlines_asked_for(&self) -> Vec<(&'static str, String)> {
        let named = [
            ("UNHANG_HANG_DEADLINE", self.hang_deadline),
            ("UNHANG_OUTSIDE_DEADLINE", self.outside_deadline),
            ("UNHANG_HOST_DEADLINE", self.host_deadline),
        ];
        let named = named.into_iter().filter_map(|(name, deadline)| Some((name, deadline?)));
        named.map(|(name, deadline)| (name, deadline.as_secs_f64().to_string())).collect()
    }

    /// The deadlines that apply; a variable with an invalid value is reported.
    fn deadlines(&self, say: impl Fn(&str)) -> unhang_session::WatchSettings {
        let asked = self.deadlines_asked_for();
        let of_flag = |name: &str| asked.iter().find(|(it, _)| *it == name).map(|(_, value)| value.clone());
        unhang_session::deadlines(|name| of_flag(name).or_else(|| std::env::var(name).ok()), |nonsense| say(&nonsense))
    }

    /// The requested strategy.
    fn strategy(&self) -> Option<Strategy> {
        self.strategy.or(self.everywhere.then_some(Strategy::Jit))
    }

    /// What to set and why, and what there is to protect.
    fn decide(&self) -> anyhow::Result<(Vec<Decision>, Protection)> {
        let system = self.machine.system()?;
        if self.rehearse && !system.is_folder() {
            bail!("a rehearsal needs a machine to play: name its folder with --root or UNHANG_ROOT");
        }
        let pythons = environment::python_of(&self.command[0]);
        let examination = examine(&system, &options(&system, pythons));
        let is_affected = examination.machine.affected();
        let profile = match self.profile {
            ProfileName::None => None,
            ProfileName::Auto if !is_affected => None,
            ProfileName::Auto => {
                let (profile, reason) = Profile::automatic(&examination);
                Some((profile, format!("profile chosen because {reason}")))
            }
            ProfileName::Rocm52 => Profile::named("rocm5.2").map(|it| (it, "asked for".to_owned())),
            ProfileName::Rocm57 => Profile::named("rocm5.7").map(|it| (it, "asked for".to_owned())),
            ProfileName::NoSpoof => Profile::named("no-spoof").map(|it| (it, "asked for".to_owned())),
            ProfileName::JaxTensorflow => Profile::named("jax-tensorflow").map(|it| (it, "asked for".to_owned())),
        };
        let mut decisions = Vec::new();
        if let Some((profile, why)) = &profile {
            decisions = environment::of_profile(profile, why, |name| std::env::var(name).ok());
            decisions.extend(environment::caches(&decisions, |name| std::env::var(name).ok()));
        }
        let card = examination.machine.gpus.iter().find(|gpu| gpu.affected);
        let spoof = environment::settle_override(&mut decisions, card.and_then(|gpu| gpu.gfx.as_deref()));
        let is_spoofed = spoof.is_some() || examination.machine.spoofed();
        if is_affected && (is_spoofed || (self.is_watched() && !self.rehearse)) {
            decisions.extend(shield::decide(is_spoofed, |name| std::env::var(name).ok()));
        }
        // MIOpen is AMD's, so nothing is preloaded on other machines.
        let is_amd = examination.machine.gpus.iter().any(|gpu| gpu.vendor_id == unhang_machine::chips::AMD);
        if !self.rehearse && (is_affected || (is_amd && self.strategy().is_some())) {
            decisions.extend(boundary::decide(|name| std::env::var(name).ok()));
        }
        if let Some(strategy) = self.strategy() {
            let flag = if self.everywhere { "--everywhere" } else { "--strategy" };
            decisions.push(Decision::set("UNHANG_STRATEGY", strategy.to_string(), &format!("asked for by {flag}")));
        }
        let told = spoof.or_else(|| {
            let spoofed = examination.machine.gpus.iter().find(|gpu| gpu.affected && gpu.spoofed());
            spoofed.and_then(|gpu| gpu.reported_gfx.clone())
        });
        let has_native_code = examination.verdict == Verdict::Healthy;
        Ok((decisions, Protection { is_affected, has_native_code, card: card.map(|gpu| gpu.name.clone()), told }))
    }

    fn show(&self, decisions: &[Decision]) -> anyhow::Result<ExitCode> {
        if self.json {
            let command: Vec<_> = self.command.iter().map(|it| it.to_string_lossy()).collect();
            print_safe_json(&json!({ "schema": 1, "command": command, "variables": decisions }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = String::new();
        if decisions.is_empty() {
            let nothing = "no variable would be set: no RDNA1 card was found, or --profile none was given";
            let _ = writeln!(text, "{}", wrapped(nothing, 0, 4));
        }
        for decision in decisions {
            let _ = writeln!(text, "{}", wrapped(&printable(&decision.to_string()), 0, 4));
        }
        print_text(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Without its own folder, a run still has its variables, the shield, and unhang if it is installed.
    fn say_without_folder(&self, reason: &str) {
        let rest = match shield::installed_autoload() {
            Some(_) => "Pythons use the installed unhang, and only their exit codes report hangs",
            None => "only programs that import unhang use it; variables are still set",
        };
        say(&format!(
            "no private folder for this run ({reason}): {rest}. Set XDG_RUNTIME_DIR to a folder that only you can write"
        ));
    }

    fn command(&self, attempt: u32) -> Command {
        match &self.restart_cmd {
            Some(line) if attempt > 0 => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(line);
                command
            }
            _ => {
                let mut command = Command::new(&self.command[0]);
                command.args(&self.command[1..]);
                command
            }
        }
    }

    fn set_environment(
        &self,
        command: &mut Command,
        decisions: &[Decision],
        folder: Option<&RunFolder>,
        hangs: &[HangReport],
        attempt: u32,
    ) -> anyhow::Result<()> {
        for decision in decisions {
            match decision.action {
                Action::Set => command.env(decision.name, decision.value.as_deref().unwrap_or_default()),
                Action::Kept => command,
            };
        }
        let autoload = folder.map(|folder| folder.path().to_owned()).or_else(shield::installed_autoload);
        if let Some(autoload) = autoload {
            let mut path = autoload.into_os_string();
            if let Some(before) = std::env::var_os("PYTHONPATH").filter(|it| !it.is_empty()) {
                path.push(":");
                path.push(before);
            }
            command.env("PYTHONPATH", path);
        }
        match folder {
            Some(folder) => command.env(folder::VARIABLE, folder.path()),
            None => command.env_remove(folder::VARIABLE),
        };
        self.set_watchdog(command, |nonsense| {
            if attempt == 0 {
                say(nonsense);
            }
        });
        command.env("UNHANG_RESTART", attempt.to_string());
        let pairs: Vec<String> = hangs.iter().flat_map(HangReport::pairs).collect();
        if !pairs.is_empty() {
            command.env("UNHANG_QUARANTINE", pairs.join(" "));
        }
        if self.rehearse {
            command.env("UNHANG_REHEARSE", "1");
        }
        if let Some(root) = self.machine.description().filter(|it| it.is_dir()) {
            command.env("UNHANG_ROOT", std::path::absolute(root)?);
        }
        Ok(())
    }
}

/// What there is to protect.
struct Protection {
    is_affected: bool,
    /// Whether every installed torch has code for the card, and nothing is wrong.
    has_native_code: bool,
    /// The RDNA1 card.
    card: Option<String>,
    /// The chip that the runtime takes it for.
    told: Option<String>,
}

impl Protection {
    /// One line for the owner of a card. On other machines nothing is printed, because the program's streams are its
    /// own.
    fn in_words(&self, run: &Run, decisions: &[Decision]) -> Option<String> {
        let card = self.card.as_deref()?;
        let mut parts = vec![match &self.told {
            Some(told) => format!("{card} passes for {told}"),
            None if self.has_native_code => format!("{card} with native code"),
            None => format!("{card}, no spoof"),
        }];
        if self.told.is_some() {
            let is_on = decisions.iter().any(|it| it.name == "HSA_TOOLS_LIB" && it.holds_a_value());
            parts.push(if is_on { "shield on" } else { "no shield" }.to_owned());
        }
        // An invalid variable is reported once, where it is set.
        let deadline = run.deadlines(|_| {}).deadline.as_secs_f64();
        parts.push(if run.is_watched() { format!("watchdog {deadline} s") } else { "no watchdog".to_owned() });
        if run.rehearse {
            parts.push("a rehearsal: CPU tensors stand for the card's".to_owned());
        }
        Some(parts.join("; "))
    }
}

/// Says why a program cannot be run and what to do, and returns the exit code that shells use for it.
pub(super) fn cannot_start(command: &str, program: &OsString, error: &std::io::Error) -> u8 {
    let is_missing = error.kind() == ErrorKind::NotFound;
    let name = program.to_string_lossy();
    say(&format!("cannot run {name}: {error}"));
    if let Some(hint) = how_to_start(command, Path::new(program), error.kind()) {
        say(&format!("hint: {hint}"));
    }
    if is_missing { NOT_FOUND } else { CANNOT_RUN }
}

/// What was probably meant by a name that cannot be run.
fn how_to_start(command: &str, path: &Path, error: ErrorKind) -> Option<String> {
    if path.is_dir() {
        return Some("it is a folder: name a program before it".to_owned());
    }
    if !path.is_file() {
        return None;
    }
    let name = quoted(&path.to_string_lossy());
    let is_python = path.extension().is_some_and(|ending| ending == "py");
    let is_executable = std::fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o111 != 0);
    Some(match (is_python, is_executable, name.contains('/')) {
        (true, _, _) => format!("`{command} -- python {name}` runs the script"),
        (false, true, false) => format!("`./{name}` is the file here; a name alone is looked up in PATH"),
        (false, true, true) if error != ErrorKind::NotFound || !names_interpreter(path) => return None,
        (false, true, true) => {
            "the file is executable, but its first line names an interpreter that does not exist".to_owned()
        }
        (false, false, _) => format!("`chmod +x {name}` makes the file executable; or put its interpreter before it"),
    })
}

fn names_interpreter(script: &Path) -> bool {
    let mut start = [0; 2];
    std::fs::File::open(script).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// Ends as the program did. If it died of a signal, this process dies of it too.
pub(super) fn end_likewise(ended: Ended, folder: Option<RunFolder>) -> ExitCode {
    drop(folder);
    match ended {
        Ended::Exited(code) => ExitCode::from(code),
        Ended::Signalled(signal) => {
            child::die_of(signal);
            ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or_default()))
        }
        Ended::Unkillable => ExitCode::from(HANG_OUTSIDE),
    }
}
