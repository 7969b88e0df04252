//! `unhang card`: AMD's own software on an emulated card.

mod program;
mod summary;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use unhang_machine::cards;

use self::summary::Summary;
use super::lasting_folder::{CARD_VARIABLE, LastingFolder, Purpose, no_place};
use super::run::child::{self, Signals};
use super::run::environment::find_on_path;
use super::run::{cannot_start, end_likewise, shield};
use super::text::{counted, print_safe_json, print_text, wrapped};
use super::whole_file::{check_folder, write_whole};
use crate::output::tell;

/// The column at which descriptions begin in a list of cards.
const NAME_COLUMN: usize = 13;

/// The library that intercepts calls to the kernel driver.
const LIBRARY: &str = "libunhang_card.so";

/// Run AMD's own software on an emulated card: no GPU, no root.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang card list
  unhang card run -- rocminfo
  unhang card run --card rx5700xt -- ./my-hip-program
  HSA_OVERRIDE_GFX_VERSION=10.3.0 unhang card run --log card.jsonl -- ./program

The card is emulated: results are exact, programs are slow, and times mean nothing.

Exit codes:
  0  done
  2  wrong usage, or not done")]
pub(crate) struct CardCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the cards that come with the program.
    #[command(after_help = "Example:\n  unhang card list --json")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    Run(RunArguments),
}

/// Run a program with an emulated card.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang card run -- rocminfo
  unhang card run --card rx5700xt --log card.jsonl -- ./my-hip-program

Exit codes:
  the program's own; if it dies of a signal, `unhang card run` dies of it too
  2    wrong usage
  126  the command cannot be run
  127  the command was not found")]
struct RunArguments {
    /// Which card: a name of `unhang card list`, or a folder that describes a machine (as for `unhang doctor --root`).
    #[arg(long, value_name = "NAME|FOLDER", default_value = cards::DEFAULT)]
    card: PathBuf,
    /// What happens where the real chip might hang or compute nonsense.
    #[arg(long, value_enum, default_value = "fault")]
    hazards: Hazards,
    /// Stop kernels where two waves of a workgroup touch the same bytes with neither a barrier nor atomics between them; slow.
    #[arg(long)]
    races: bool,
    /// Write what happens to this file, a line of JSON for each dispatch and copy, a summary at the end.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Hazards {
    /// The program gets the driver's report of a hang and a reset.
    Fault,
    /// The packet never ends, as on a card that hangs.
    Hang,
    /// Nothing: as on an ideal chip.
    Ignore,
}

impl Hazards {
    fn name(self) -> &'static str {
        match self {
            Hazards::Fault => "fault",
            Hazards::Hang => "hang",
            Hazards::Ignore => "ignore",
        }
    }
}

fn inform(message: &str) {
    tell(&format!("unhang card: {message}"));
}

impl CardCommand {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::List { json } => list(json),
            Action::Run(arguments) => arguments.run(),
        }
    }
}

fn list(json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let card = |card: &cards::ShippedCard| json!({ "name": card.name, "description": card.description, "default": card.name == cards::DEFAULT });
        print_safe_json(
            &json!({ "schema": 1, "emulated": true, "cards": cards::CARDS.iter().map(card).collect::<Vec<_>>() }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = wrapped("Emulated cards, for `unhang card run --card NAME -- COMMAND`:", 0, 0) + "\n";
    for card in &cards::CARDS {
        let mark = if card.name == cards::DEFAULT { " (the default)" } else { "" };
        let described = wrapped(&format!("{}{mark}", card.description), NAME_COLUMN, NAME_COLUMN);
        text += &format!("  {:<1$}{2}\n", card.name, NAME_COLUMN - 2, described.trim_start());
    }
    print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The library under a path that `LD_PRELOAD` accepts: spaces and colons separate its entries, and the loader has no
/// quoting.
fn preloadable(library: PathBuf, run: &Path) -> anyhow::Result<PathBuf> {
    let is_listable = |path: &Path| !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':'));
    if is_listable(&library) {
        return Ok(library);
    }
    let link = run.join(LIBRARY);
    if !is_listable(&link) {
        return Err(anyhow!("hint: set XDG_CACHE_HOME to a folder of yours without spaces and colons in its path")
            .context(format!("neither {} nor a link in {} can be preloaded", library.display(), run.display())));
    }
    std::os::unix::fs::symlink(&library, &link).with_context(|| format!("cannot link {}", library.display()))?;
    Ok(link)
}

impl RunArguments {
    fn run(self) -> anyhow::Result<ExitCode> {
        // Programs that outlive the run keep its name in LD_PRELOAD.
        let folder = LastingFolder::create(Purpose::Card).map_err(|reason| no_place(&reason))?;
        let root = self.machine(&folder)?;
        let program = std::env::current_exe().ok();
        let named = std::env::var("UNHANG_CARD_LIBRARY").ok().filter(|it| !it.is_empty());
        let library = shield::find(LIBRARY, named.as_deref(), program.as_deref()).ok_or_else(|| {
            anyhow!("hint: it is built with `cargo build --release -p unhang-card` and is part of the wheel")
                .context(format!("{LIBRARY} is neither next to the program nor in the Python package"))
        })?;
        let library = preloadable(library, folder.path())?;
        if let Some(path) = find_on_path(Path::new(&self.command[0])) {
            program::check(&path)?;
        }
        folder.folder().write("counters", &[0; summary::COUNTERS_SIZE])?;
        folder.folder().write("journal", b"")?;
        // A reader of a pipe would take a test write for its end.
        let can_be_tried = |log: &&PathBuf| std::fs::metadata(log).map_or(true, |it| it.is_file() || it.is_dir());
        if let Some(log) = self.log.as_ref().filter(can_be_tried) {
            // Checks now, not after an hour, whether the log can be written.
            check_folder(log).with_context(|| format!("cannot write the log {}", log.display()))?;
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(log);
            opened.with_context(|| format!("cannot write the log {}", log.display()))?;
        }
        let signals = Signals::catch().context("cannot catch signals")?;
        let ended = match child::run(self.prepare(&library, &root, folder.path()), &signals, None) {
            Ok(ended) => ended,
            Err(error) => return Ok(ExitCode::from(cannot_start("unhang card run", &self.command[0], &error))),
        };
        let summary = Summary::read(folder.folder());
        inform(&summary.to_string());
        if let Some(log) = &self.log {
            write_whole(log, |file| {
                let mut journal = folder.folder().open_file("journal").map_err(std::io::Error::other)?;
                std::io::copy(&mut journal, file)?;
                writeln!(file, "{}", summary.to_json())
            })?;
        }
        drop(folder);
        Ok(end_likewise(ended, None))
    }

    /// The machine's folder, absolute and checked.
    fn machine(&self, folder: &LastingFolder) -> anyhow::Result<PathBuf> {
        if let Some(card) = self.card.to_str().and_then(cards::named) {
            let root = folder.path().join("machine");
            card.write(&root).context("cannot write the machine's folder")?;
            return Ok(root);
        }
        if !self.card.is_dir() {
            let names: Vec<&str> = cards::CARDS.iter().map(|card| card.name).collect();
            return Err(anyhow!("hint: `unhang card list` shows them: {}", names.join(", "))
                .context(format!("no card and no folder is named {}", self.card.display())));
        }
        let given = self.card.canonicalize().context("--card")?;
        let root = folder.path().join("machine");
        cards::copy_description(&given, &root).with_context(|| format!("cannot use {}", given.display()))?;
        let missing = cards::missing(&root);
        if let Some(first) = missing.first() {
            let more = match missing.len() - 1 {
                0 => String::new(),
                count => format!(", and {}", counted(count, "other file")),
            };
            return Err(anyhow!(
                "hint: copy what is missing from the fixtures of unhang, or from /sys of a machine with a card"
            )
            .context(format!(
                "{} does not describe a machine with a card: {first} is missing{more}",
                given.display()
            )));
        }
        if !std::fs::read_dir(root.join("sys/class/kfd/kfd/topology/nodes")).is_ok_and(|nodes| nodes.count() > 1) {
            bail!("{} describes a machine without a card", given.display());
        }
        if let Some(absurd) = cards::absurd_count(&root) {
            bail!("{} describes an impossible machine: {absurd}", given.display());
        }
        Ok(root)
    }

    fn prepare(&self, library: &Path, root: &Path, run: &Path) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let mut preload = library.as_os_str().to_owned();
        if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|it| !it.is_empty()) {
            preload.push(":");
            preload.push(before);
        }
        command.env("LD_PRELOAD", preload);
        // A machine described for a rehearsal is not the one that the program sees here.
        command
            .env_remove("UNHANG_ROOT")
            .env("UNHANG_CARD_ROOT", root)
            .env(CARD_VARIABLE, run)
            .env("UNHANG_CARD_HAZARDS", self.hazards.name())
            .env("UNHANG_CARD_RACES", if self.races { "1" } else { "0" });
        // By default, HIP 7 continues after an error on a queue and never calls the callbacks after it: whoever waits
        // for one, as JAX does, waits for ever. Earlier versions end the program, and with this variable so does HIP 7.
        if std::env::var_os("HIP_SKIP_ABORT_ON_GPU_ERROR").is_none() {
            command.env("HIP_SKIP_ABORT_ON_GPU_ERROR", "0");
        }
        match &self.log {
            Some(_) => command.env("UNHANG_CARD_DETAIL", "1"),
            None => command.env_remove("UNHANG_CARD_DETAIL"),
        };
        command
    }
}
