//! `unhang env`: prints an environment profile, installs it, and removes it again.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use unhang_machine::install::{self, InstallOutcome, Scope};
use unhang_machine::profile::{NAMES, Profile, Shell};
use unhang_machine::{Machine, System, examine, quoted};

use super::consent::Consent;
use super::machine_arguments::MachineArguments;
use super::python::options;
use super::text::{counted, print_safe_json, print_text, wrapped};
use crate::output::{Colour, Style, printable};

/// Print an environment profile, install it with a backup, or move old settings aside; each can be undone.
#[derive(Args)]
#[command(after_help = "\
Examples:
  eval \"$(unhang env print)\"
  unhang env print --profile rocm5.2 --explain
  unhang env print --shell systemd               # for `systemctl edit SERVICE`
  unhang env clean --user --dry-run
  unhang env install --user --dry-run
  unhang env uninstall --user

Profiles:
  auto            what fits this machine
  rocm5.2         torch 1.13.1+rocm5.2 under the spoof
  rocm5.7         later wheels under the spoof; call `unhang.enable()` as well
  no-spoof        a torch with native code
  jax-tensorflow  JAX's and TensorFlow's wheels, under the spoof

Exit codes:
  0  done
  2  wrong usage, or not done")]
pub(crate) struct Env {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Subcommand)]
enum EnvCommand {
    Print(Print),
    Clean(Clean),
    Install(Install),
    Uninstall(Uninstall),
}

#[derive(Clone, Copy, ValueEnum)]
enum ProfileName {
    Auto,
    #[value(name = "rocm5.2")]
    Rocm52,
    #[value(name = "rocm5.7")]
    Rocm57,
    NoSpoof,
    JaxTensorflow,
}

#[derive(Clone, Copy, ValueEnum)]
enum Dialect {
    Sh,
    Bash,
    Zsh,
    Fish,
    Systemd,
    Docker,
}

/// Print a profile for a shell, for a systemd unit or for Docker.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang env print --profile rocm5.7 --shell fish --explain")]
struct Print {
    /// The profile.
    #[arg(long, value_enum, default_value = "auto")]
    profile: ProfileName,
    /// The format to print.
    #[arg(long, value_enum, default_value = "sh")]
    shell: Dialect,
    /// Print each line's reason and evidence, and what earlier guides had instead.
    #[arg(long)]
    explain: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArguments,
}

#[derive(Args)]
#[group(multiple = false)]
struct Where {
    /// In your home folder (the default, except under sudo).
    #[arg(long)]
    user: bool,
    /// In /etc, for everybody (the default under sudo).
    #[arg(long)]
    system: bool,
}

impl Where {
    /// Under `sudo`, a home is never written, because its owner could not change root's files there.
    fn scope(&self, system: &System) -> anyhow::Result<Scope> {
        let by_sudo = system.caller_of_sudo().filter(|_| !system.is_folder());
        match (self.system, self.user, by_sudo) {
            (true, _, _) | (_, false, Some(_)) => Ok(Scope::System),
            (_, true, Some(user)) => {
                let hint = "hint: leave out sudo for --user, or use --system for everybody";
                bail!(
                    anyhow::anyhow!(hint)
                        .context(format!("--user under sudo would leave root's files in the home of {user}"))
                )
            }
            (_, _, None) => Ok(Scope::User),
        }
    }
}

/// What changing login files takes.
#[derive(Args)]
struct Change {
    #[command(flatten)]
    place: Where,
    /// Show what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    machine: MachineArguments,
}

/// Write a profile into login files, which acts only on an RDNA1 card; move leftovers of earlier attempts aside.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang env install --user --dry-run")]
struct Install {
    /// The profile.
    #[arg(long, value_enum, default_value = "auto")]
    profile: ProfileName,
    #[command(flatten)]
    change: Change,
}

/// Move the settings of earlier attempts aside, unhang's own profile too. `unhang env uninstall` restores them.
#[derive(Args)]
#[command(after_help = "Example:\n  unhang env clean --user --dry-run")]
struct Clean {
    #[command(flatten)]
    change: Change,
}

/// Undo what `install` or `clean` did, and restore every byte as it was before.
#[derive(Args)]
#[command(after_help = "Example:\n  sudo \"$(which unhang)\" env uninstall --system")]
struct Uninstall {
    #[command(flatten)]
    change: Change,
}

impl Env {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            EnvCommand::Print(command) => command.run(),
            EnvCommand::Clean(command) => command.run(),
            EnvCommand::Install(command) => command.run(),
            EnvCommand::Uninstall(command) => command.run(),
        }
    }
}

/// The profile, and the reason for it if it was not named.
fn choose(name: ProfileName, system: &System) -> anyhow::Result<(Profile, Option<String>)> {
    let name = match name {
        ProfileName::Auto => {
            // Under `sudo`, the torch of the calling user counts, not root's.
            let caller = system.of_caller_of_sudo();
            let system = caller.as_ref().unwrap_or(system);
            let (profile, reason) = Profile::automatic(&examine(system, &options(system, Vec::new())));
            return Ok((profile, Some(reason)));
        }
        ProfileName::Rocm52 => "rocm5.2",
        ProfileName::Rocm57 => "rocm5.7",
        ProfileName::NoSpoof => "no-spoof",
        ProfileName::JaxTensorflow => "jax-tensorflow",
    };
    let profile =
        Profile::named(name).with_context(|| format!("unknown profile {name} (known: {})", NAMES.join(", ")))?;
    Ok((profile, None))
}

impl Print {
    fn run(self) -> anyhow::Result<ExitCode> {
        let system = self.machine.system()?;
        let (mut profile, reason) = choose(self.profile, &system)?;
        // What is printed acts at once, unlike an installed profile, which asks for the card first.
        let machine = Machine::inspect(&system);
        let is_needed = !matches!(self.profile, ProfileName::Auto) || machine.affected();
        if !is_needed {
            profile.lines.clear();
        }
        if self.json {
            print_safe_json(&json!({ "schema": 1, "profile": profile, "chosen_because": reason }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let shell = match self.shell {
            Dialect::Sh | Dialect::Bash | Dialect::Zsh => Shell::Posix,
            Dialect::Fish => Shell::Fish,
            Dialect::Systemd => Shell::Systemd,
            Dialect::Docker => Shell::Docker,
        };
        let mut text = String::new();
        if let Some(reason) = reason.filter(|_| is_needed) {
            let _ = writeln!(text, "# chosen because {}", printable(&reason));
        }
        if system.is_folder() {
            let _ = writeln!(
                text,
                "# for the machine described by the folder {}",
                printable(&system.root().display().to_string())
            );
        }
        if is_needed {
            text.push_str(&profile.print(shell, self.explain));
        } else {
            let unread = match machine.unreadable.len() {
                0 => String::new(),
                count => format!(", but {} could not be read; `unhang doctor` says which", counted(count, "file")),
            };
            let _ = writeln!(text, "# no RDNA1 card was found: nothing to set{unread}");
        }
        print_text(&with_wrapped_comments(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Install {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Change { place, dry_run, json, consent, machine } = self.change;
        let system = machine.system()?;
        if !dry_run && !consent.ask_for_folder(&system, "Install a profile")? {
            return Ok(ExitCode::SUCCESS);
        }
        let (profile, reason) = choose(self.profile, &system)?;
        let scope = place.scope(&system)?;
        if !dry_run && !Machine::inspect(&system).affected() {
            // Checks first whether it can be done at all.
            install::install(&system, scope, &profile, true).with_context(|| hint(scope))?;
            let question =
                "No RDNA1 card was found here: the profile does nothing until there is one. Install it anyway?";
            if !consent.ask(question)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        let outcome = install::install(&system, scope, &profile, dry_run).with_context(|| hint(scope))?;
        if json {
            print_safe_json(&json!({
                "schema": 1, "profile": profile.name, "chosen_because": reason, "dry_run": dry_run, "outcome": outcome,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let because = reason.map(|reason| format!(" ({})", printable(&reason))).unwrap_or_default();
        let nothing = format!("profile {} is installed already: nothing to do\n", profile.name);
        let head = format!("profile {}{because}", profile.name);
        print_text(&told(&system, &head, &outcome, dry_run, &nothing))?;
        if !Machine::inspect(&system).affected() {
            print_text("no RDNA1 card was found here: the profile does nothing until there is one\n")?;
        }
        if !dry_run && !outcome.changes.is_empty() {
            print_text(&format!("log in again to apply it; `{}` removes it\n", undoing(&system, scope)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Clean {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Change { place, dry_run, json, consent, machine } = self.change;
        let system = machine.system()?;
        if !dry_run && !consent.ask_for_folder(&system, "Move settings aside")? {
            return Ok(ExitCode::SUCCESS);
        }
        let scope = place.scope(&system)?;
        let outcome = install::clean(&system, scope, dry_run).with_context(|| hint(scope))?;
        if json {
            print_safe_json(&json!({ "schema": 1, "dry_run": dry_run, "outcome": outcome }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let nothing = "found no settings of earlier attempts: nothing to do\n";
        print_text(&told(&system, "settings of earlier attempts", &outcome, dry_run, nothing))?;
        if !dry_run && !outcome.changes.is_empty() {
            print_text(&format!("log in again to apply it; `{}` restores every byte\n", undoing(&system, scope)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Uninstall {
    fn run(self) -> anyhow::Result<ExitCode> {
        let Change { place, dry_run, json, consent, machine } = self.change;
        let system = machine.system()?;
        if !dry_run && !consent.ask_for_folder(&system, "Remove the installed profile")? {
            return Ok(ExitCode::SUCCESS);
        }
        let scope = place.scope(&system)?;
        let outcome = install::uninstall(&system, scope, dry_run).with_context(|| hint(scope))?;
        if json {
            print_safe_json(&json!({ "schema": 1, "dry_run": dry_run, "outcome": outcome }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (place, other, elsewhere) = match scope {
            Scope::User => ("your home", Scope::System, "/etc"),
            Scope::System => ("/etc", Scope::User, "your home"),
        };
        let is_elsewhere = install::uninstall(&system, other, true).is_ok_and(|there| !there.changes.is_empty());
        let nothing = if is_elsewhere {
            let command = undoing(&system, other);
            format!("nothing is installed in {place}; `{command}` undoes what was done in {elsewhere}\n")
        } else {
            "nothing is installed here: nothing to do\n".to_owned()
        };
        print_text(&told(&system, "uninstall", &outcome, dry_run, &nothing))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The command that undoes `install` or `clean` in a scope.
fn undoing(system: &System, scope: Scope) -> String {
    let arguments = match scope {
        Scope::User => "env uninstall --user",
        Scope::System => "env uninstall --system",
    };
    if system.is_folder() {
        // A described machine is a folder, which its owner may change.
        return printable(&format!("unhang {arguments} --root {}", quoted(&system.root().display().to_string())));
    }
    match scope {
        Scope::User => format!("unhang {arguments}"),
        Scope::System => format!("sudo {} {arguments}", own_path()),
    }
}

/// The path of this program, because sudo does not search an environment's folder.
fn own_path() -> String {
    std::env::current_exe().map_or_else(|_| "unhang".to_owned(), |path| quoted(&path.display().to_string()))
}

/// A script whose comments fit the terminal's width. A command stays on its line, because people copy it.
fn with_wrapped_comments(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        match line.strip_prefix('#') {
            Some(comment) if !comment.starts_with(" docker run") => {
                let indent = comment.len() - comment.trim_start().len();
                for part in wrapped(comment, indent + 1, indent + 3).lines() {
                    let _ = writeln!(text, "#{}", part.strip_prefix(' ').unwrap_or(part));
                }
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

fn hint(scope: Scope) -> String {
    match scope {
        Scope::System => {
            format!("could not change the system's login files; they belong to root: `sudo {} env …`", own_path())
        }
        Scope::User => "could not change the login files in the home folder".to_owned(),
    }
}

/// The outcome, for people.
fn told(system: &System, head: &str, outcome: &InstallOutcome, dry_run: bool, nothing: &str) -> String {
    let style = Style::for_stream(&std::io::stdout());
    let mut text = String::new();
    if system.is_folder() {
        let folder =
            format!("in the machine described by the folder {}", printable(&system.root().display().to_string()));
        let _ = writeln!(text, "{}", wrapped(&folder, 0, 2));
    }
    if outcome.recovered {
        text.push_str("an earlier call was interrupted; its changes were undone first\n");
    }
    if outcome.changes.is_empty() {
        text.push_str(nothing);
    } else {
        let _ = writeln!(text, "{head}{}", if dry_run { ": this would be done" } else { "" });
    }
    for change in &outcome.changes {
        let path = printable(&change.path.display().to_string());
        let _ = writeln!(text, "  {} {path}", style.paint(change.action, Colour::Bold));
        for line in &change.diff {
            let colour = if line.starts_with('-') { Colour::Red } else { Colour::Green };
            let _ = writeln!(text, "    {}", style.paint(&printable(line), colour));
        }
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "  note: {}", printable(note));
    }
    text
}
