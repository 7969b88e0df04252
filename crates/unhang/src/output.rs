//! The program's output: data to standard output, messages to standard error, colour only on a terminal, and never a
//! control character from outside.
//!
//! Exit codes of every subcommand:
//! * 0: all is well;
//! * 1: something is wrong with what was examined;
//! * 2: the command was called wrongly or could not do its work;
//! * 3: it could not tell.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::Value;

/// The smallest width at which text is readable.
pub(crate) const NARROWEST: usize = 40;

/// Something is wrong with what was examined.
pub(crate) const FOUND_ERRORS: u8 = 1;
/// The command was called wrongly, or could not do its work.
pub(crate) const FAILED: u8 = 2;
/// The command could not tell.
pub(crate) const CANNOT_TELL: u8 = 3;

/// How much the program says, and in which colours. Every subcommand takes these.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct Talk {
    /// Print only results, warnings and errors.
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = "Output")]
    quiet: bool,
    /// Print more: what is set for a program, which records are read.
    #[arg(long, short, global = true, help_heading = "Output")]
    verbose: bool,
    /// When to use colour; auto means on a terminal, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = "Output")]
    color: When,
}

/// When to colour.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum When {
    #[default]
    Auto,
    Always,
    Never,
}

static TALK: OnceLock<Talk> = OnceLock::new();

impl Talk {
    /// Applies it to the whole program. Called once, before any output.
    pub(crate) fn settle(self) {
        let _ = TALK.set(self);
    }

    fn current() -> Talk {
        TALK.get().copied().unwrap_or_default()
    }
}

/// Prints an error with its causes and hints, and returns the exit code of a command that could not do its work.
///
/// A hint is any cause that starts with `hint: `.
pub(crate) fn print_error(error: &anyhow::Error) -> ExitCode {
    let mut lines = Vec::new();
    let mut hints = Vec::new();
    for cause in error.chain() {
        let text = printable(&cause.to_string());
        match text.strip_prefix("hint: ") {
            Some(hint) => hints.push(hint.to_owned()),
            // Some errors quote their cause.
            None if lines.last().is_some_and(|before: &String| before.ends_with(&text)) => {}
            None => lines.push(text),
        }
    }
    let style = Style::for_stream(&io::stderr());
    let mut stderr = io::stderr().lock();
    let mut lines = lines.into_iter();
    let first = within_terminal(&format!("error: {}", lines.next().unwrap_or_default()));
    let _ = writeln!(stderr, "{}", first.replacen("error", &style.paint("error", Colour::Red), 1));
    for line in lines {
        let _ = writeln!(stderr, "{}", within_terminal(&format!("  because: {line}")));
    }
    for hint in hints {
        let hint = within_terminal(&format!("  hint: {hint}"));
        let _ = writeln!(stderr, "{}", hint.replacen("hint", &style.paint("hint", Colour::Cyan), 1));
    }
    ExitCode::from(FAILED)
}

/// The width of a stream's terminal, or the value of `COLUMNS`.
pub(crate) fn columns(stream: &(impl IsTerminal + rustix::fd::AsFd)) -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse::<usize>().ok());
    let of_terminal = || {
        let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten();
        size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
    };
    named.or_else(of_terminal)
}

/// The text for standard error. On a terminal, wide lines are wrapped. Elsewhere a message stays on its line, for
/// programs that read it.
fn within_terminal(text: &str) -> String {
    let stderr = io::stderr();
    let Some(width) = stderr.is_terminal().then(|| columns(&stderr)).flatten().map(|width| width.max(NARROWEST)) else {
        return text.to_owned();
    };
    let line = |line: &str| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let is_wide = line.chars().count() > width;
        if is_wide { unhang_report::wrapped(width, line, indent, indent + 2) } else { line.to_owned() }
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Prints a value as indented JSON on standard output, always with `schema`, by which programs know the format. Raw
/// JSON can drive a terminal too, so its texts are filtered. A reader that went away (`| head`) is not an error.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&with_schema(safe(serde_json::to_value(value)?)))?;
    printed(writeln!(io::stdout().lock(), "{text}"))
}

/// How printing ended. A reader that has seen enough and is gone, such as `head`, is no error.
pub(crate) fn printed(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print"),
    }
}

fn with_schema(value: Value) -> Value {
    match value {
        Value::Object(fields) if !fields.contains_key("schema") => {
            std::iter::once(("schema".to_owned(), Value::from(1))).chain(fields).collect()
        }
        other => other,
    }
}

fn safe(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(all) => all.into_iter().map(safe).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (printable(&name), safe(value))).collect(),
        other => other,
    }
}

pub(crate) use unhang_guard::printable;

/// One line on standard error. If it is closed or its disk is full, the line is dropped.
fn write_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", within_terminal(&printable(line)));
}

/// One message on standard error, unless `--quiet` was given.
pub(crate) fn tell(line: &str) {
    if !Talk::current().quiet {
        write_line(line);
    }
}

/// One message for `--verbose`.
pub(crate) fn tell_more(line: &str) {
    if Talk::current().verbose {
        write_line(line);
    }
}

/// An important message among a program's own output, marked as ours, as in the Python package.
pub(crate) fn say(message: &str) {
    write_line(&format!("unhang: {message}"));
}

/// A useful message, marked as ours, unless `--quiet` was given.
pub(crate) fn inform(message: &str) {
    tell(&format!("unhang: {message}"));
}

/// The few colours that the program uses; output is complete without them.
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    /// Errors and hangs.
    Red,
    /// What works.
    Green,
    /// Warnings.
    Yellow,
    /// Hints and names.
    Cyan,
    /// What matters less.
    Dim,
    /// Headings.
    Bold,
}

/// Whether to colour the output to one stream.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    coloured: bool,
}

impl Style {
    /// Follows `--color`: by default colour on a terminal only, and never if `NO_COLOR` is set.
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Style {
        let declined = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Style {
            coloured: match Talk::current().color {
                When::Always => true,
                When::Never => false,
                When::Auto => stream.is_terminal() && !declined(),
            },
        }
    }

    /// The text in that colour, or unchanged.
    pub(crate) fn paint(self, text: &str, colour: Colour) -> String {
        if !self.coloured {
            return text.to_owned();
        }
        let code = match colour {
            Colour::Red => "31",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Cyan => "36",
            Colour::Dim => "2",
            Colour::Bold => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The progress of something that takes a while, on standard error: a moving line on a terminal, a plain line now and
/// then elsewhere. Several threads may call it.
pub(crate) struct Progress {
    what: String,
    moving: bool,
    told: Mutex<Told>,
}

struct Told {
    done: usize,
    when: Instant,
}

/// How often a plain line is written.
const PLAIN_LINES: Duration = Duration::from_secs(10);

impl Progress {
    /// Nothing is done yet.
    pub(crate) fn new(what: &str) -> Progress {
        let told = Mutex::new(Told { done: 0, when: Instant::now() });
        Progress { what: what.to_owned(), moving: io::stderr().is_terminal(), told }
    }

    /// How many of all are done. A late report from a slower thread is left out.
    pub(crate) fn at(&self, done: usize, all: usize) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if done <= told.done {
            return;
        }
        told.done = done;
        if Talk::current().quiet {
            return;
        }
        let (mut stderr, what) = (io::stderr().lock(), &self.what);
        // If standard error is closed, nothing is printed.
        if self.moving {
            let end = if done == all { "\n" } else { "" };
            let _ = write!(stderr, "\r{what} {done} of {all}{end}");
            let _ = stderr.flush();
        } else if done < all && told.when.elapsed() >= PLAIN_LINES {
            told.when = Instant::now();
            let _ = writeln!(stderr, "{what} {done} of {all}");
        }
    }
}
