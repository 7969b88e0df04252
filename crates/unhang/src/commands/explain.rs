//! `unhang explain`: explains a finding by its id, or a pasted error message.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::json;
use unhang_machine::{AdviceStep, Examination, IDS, Severity, examine, routes, steps, symptoms, variables};

use super::machine_arguments::MachineArguments;
use super::python::options;
use super::text::{print_safe_json, print_text, wrapped};
use crate::output::{CANNOT_TELL, Colour, Style};

/// The page whose sections are the explanations.
const PAGE: &str = include_str!("../../../../docs/explain.md");

/// Explain a finding of the doctor, or an error message that you paste.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang explain spoofed-architecture
  unhang explain routes                  # the ways to a torch for this card
  unhang explain 'RuntimeError: HIP error: invalid device function'
  sudo journalctl -k -b | unhang explain -

Exit codes:
  0  an explanation was found
  2  wrong usage
  3  unhang does not know the message")]
pub(crate) struct Explain {
    /// An id, a topic, or the text of an error; - reads it from standard input. Without it, all ids are listed.
    #[arg(value_name = "ID|TEXT")]
    what: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArguments,
}

impl Explain {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self.what.as_slice() {
            [] => return self.list(),
            [dash] if dash == "-" => read_input()?,
            words => words.join(" "),
        };
        if text.trim().is_empty() {
            bail!(
                anyhow!("hint: `unhang explain` without a text lists what can be explained")
                    .context("the text to explain is empty")
            );
        }
        // An id, or a line from the doctor such as `error[kfd-no-access]: this user may not open /dev/kfd`.
        let is_named = |known: &str| text.trim() == known || text.contains(&format!("[{known}]"));
        let near = near_ids(&text);
        let sections = match IDS.iter().chain(symptoms::TOPICS).find(|known| is_named(known)) {
            Some(known) => vec![*known],
            // `torch-knwn-to-hang` is a mistyped id, not a description of a hang.
            None if text.contains('-') && !near.is_empty() => Vec::new(),
            None => symptoms::sections_for(&text),
        };
        if sections.is_empty() {
            if self.json {
                print_safe_json(&json!({ "schema": 1, "sections": [], "similar": near }))?;
            } else {
                print_text(&unknown(text.trim(), &near))?;
            }
            return Ok(ExitCode::from(CANNOT_TELL));
        }
        let system = self.machine.system()?;
        let examination = examine(&system, &options(&system, Vec::new()));
        let gfx = true_chip(&examination);
        let body = |id: &str| match id {
            "routes" => routes::in_words(gfx, &examination.wheel),
            _ => section(id).unwrap_or_default().replace("TARGETS=gfx1010", &format!("TARGETS={gfx}")),
        };
        let (facts, next) = (facts(&examination, &sections), next_commands(&examination, &sections, &text));
        if self.json {
            let all: Vec<_> = sections.iter().map(|id| json!({ "id": id, "text": body(id) })).collect();
            print_safe_json(&json!({ "schema": 1, "sections": all, "machine": facts, "next": next }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let style = Style::for_stream(&std::io::stdout());
        let mut out = String::new();
        for (index, id) in sections.iter().enumerate() {
            let gap = if index > 0 { "\n" } else { "" };
            let laid_out = if *id == "routes" { laid_out_routes(&body(id)) } else { laid_out(&body(id)) };
            let _ = writeln!(out, "{gap}{}\n\n{}", style.paint(id, Colour::Bold), laid_out.trim_end());
        }
        let _ = writeln!(out, "\n{}", style.paint("This machine", Colour::Bold));
        for fact in &facts {
            let _ = writeln!(out, "{}", wrapped(fact, 2, 4));
        }
        let _ = writeln!(out, "\n{}", style.paint("Next", Colour::Bold));
        if next.iter().any(|command| command.contains(routes::WHEEL)) {
            let _ = writeln!(out, "{}", wrapped(routes::ABOUT_WHEEL, 2, 2));
        }
        if next.iter().any(|command| command.contains("unhang probe") || command.contains("--self-test")) {
            let _ = writeln!(out, "{}", wrapped("Save your work first: the card may hang.", 2, 2));
        }
        for command in &next {
            let _ = writeln!(out, "       {}", style.paint(command, Colour::Cyan));
            if command.starts_with("docker run") {
                let _ = writeln!(out, "{}", wrapped("Type what follows inside the container.", 2, 2));
            }
        }
        if next.iter().any(|command| command == "sudo reboot") {
            let since = "If the machine has rebooted since, go on with `unhang doctor`.";
            let _ = writeln!(out, "{}", wrapped(since, 2, 2));
        }
        print_text(&out)?;
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self) -> anyhow::Result<ExitCode> {
        if self.json {
            print_safe_json(&json!({ "schema": 1, "findings": IDS, "topics": symptoms::TOPICS }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = String::from("Findings of `unhang doctor`:\n");
        for id in IDS {
            let _ = writeln!(out, "  {id}");
        }
        out.push_str("Topics:\n");
        for topic in symptoms::TOPICS {
            let _ = writeln!(out, "  {topic}");
        }
        out.push_str("Or paste an error message in quotes.\n");
        print_text(&out)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The ids and topics that a single word may mean, most similar first.
fn near_ids(text: &str) -> Vec<&'static str> {
    const MOST: usize = 3;
    let word = text.trim().to_lowercase().replace('_', "-");
    if word.contains(char::is_whitespace) {
        return Vec::new();
    }
    let edits = |id: &str| match id.strip_prefix(&word) {
        Some(rest) if rest.starts_with('-') => Some(0),
        _ => variables::distance(&word, id, (word.len() / 4).min(4)),
    };
    let all = IDS.iter().chain(symptoms::TOPICS);
    let mut near: Vec<(usize, &str)> = all.filter_map(|id| Some((edits(id)?, *id))).collect();
    near.sort_by_key(|(edits, _)| *edits);
    near.into_iter().take(MOST).map(|(_, id)| id).collect()
}

/// The answer for a text that is neither an id nor a known message.
fn unknown(text: &str, near: &[&str]) -> String {
    if near.is_empty() {
        let known = "unhang does not know this message. `unhang doctor` examines the machine, `unhang explain` without a text \
                     lists what can be explained, and `unhang doctor --bundle card.tar.gz` collects what a bug report needs.";
        return format!("{}\n", wrapped(known, 0, 0));
    }
    let head = format!("unhang has no explanation named {}. Did you mean:", unhang_guard::text::printable_line(text));
    let commands: String = near.iter().map(|id| format!("       unhang explain {id}\n")).collect();
    format!("{}\n{commands}", wrapped(&head, 0, 0))
}

/// The chip of this machine's RDNA1 card, or the most common one without such a card.
fn true_chip(examination: &Examination) -> &str {
    let card = examination.machine.gpus.iter().find(|gpu| gpu.affected);
    card.and_then(|gpu| gpu.gfx.as_deref()).unwrap_or("gfx1010")
}

/// What the doctor sees here that concerns these sections; about torch only if one of them is about it.
fn facts(examination: &Examination, sections: &[&str]) -> Vec<String> {
    let line = unhang_guard::text::printable_line;
    let mut facts = Vec::new();
    if let Some(folder) = &examination.machine.described_by {
        facts.push(format!("described by the folder {}", line(folder)));
    }
    for gpu in &examination.machine.gpus {
        let chip = gpu.gfx.as_deref().unwrap_or("chip unknown");
        let spoof = match &gpu.reported_gfx {
            Some(reported) if gpu.spoofed() => format!(", passes for {reported}"),
            _ => String::new(),
        };
        facts.push(format!("{} ({}{})", line(&gpu.name), line(chip), line(&spoof)));
    }
    if examination.machine.gpus.is_empty() {
        facts.push("no GPU was found".to_owned());
    }
    if sections.iter().any(|section| symptoms::is_about_torch(section)) {
        for torch in &examination.software.torch {
            let code = match torch.architectures.as_slice() {
                [] => String::new(),
                chips => format!(", GPU code for {}", chips.join(", ")),
            };
            let triton = torch.triton.as_ref().map(|version| format!(", Triton {version}")).unwrap_or_default();
            let unhang = if torch.unhang { "" } else { ", without unhang" };
            facts.push(line(&format!("torch {}{code}{triton}{unhang}", torch.version)));
        }
        if examination.software.torch.is_empty() {
            facts.push("no torch was found".to_owned());
        }
    }
    if sections.contains(&"framework-refuses-chip") {
        for framework in &examination.software.frameworks {
            facts.push(line(&format!("{} {}", framework.package, framework.version)));
        }
        if examination.software.frameworks.is_empty() {
            facts.push("neither JAX nor TensorFlow for ROCm was found".to_owned());
        }
    }
    for finding in examination.findings.iter().filter(|finding| sections.contains(&finding.id)) {
        facts.push(line(&format!("{}: {}", finding.severity.name(), finding.summary)));
    }
    facts
}

/// The finding that is settled by each step that removes the spoof, and by a torch for the card.
const SPOOF: &str = "spoofed-architecture";

/// What to type next: the commands that the doctor's plan has for one of these findings, or else those for the first
/// section. `unhang run` and `unhang probe` compute nothing in a Python without unhang, so it is installed first.
fn next_commands(examination: &Examination, sections: &[&str], text: &str) -> Vec<String> {
    let found = |id: &str| {
        let matters = |finding: &&unhang_machine::Finding| finding.severity != Severity::Info;
        examination.findings.iter().filter(matters).any(|finding| finding.id == id)
    };
    let steps = steps(examination);
    let commands_of = |step: &AdviceStep| {
        let of_way = step.ways.first().map(|way| way.commands.clone()).unwrap_or_default();
        step.command.clone().into_iter().chain(of_way).collect::<Vec<_>>()
    };
    let of_plan = sections.iter().filter(|id| found(id)).find_map(|id| {
        let last = steps.iter().rposition(|step| step.settles.contains(id))?;
        // A torch is of use only where the spoof is gone.
        let ids = if steps[last].settles.contains(&SPOOF) { [*id, SPOOF] } else { [*id, *id] };
        let settling = steps[..=last].iter().filter(|step| ids.iter().any(|id| step.settles.contains(id)));
        Some(settling.flat_map(commands_of).collect::<Vec<_>>()).filter(|commands| !commands.is_empty())
    });
    let first = sections.first().copied().unwrap_or_default();
    let commands = of_plan.unwrap_or_else(|| {
        let command = symptoms::next_command(first, text).to_owned();
        let starts_python = ["unhang run ", "unhang probe"].iter().any(|start| command.contains(start));
        let uses_torch = (symptoms::is_about_torch(first) || first == "ring-timeout") && starts_python;
        let torch = examination.software.torch.iter().find(|torch| torch.hip.is_some());
        let prepare = torch.filter(|_| uses_torch).and_then(|torch| routes::prepare(torch, &examination.wheel));
        prepare.into_iter().chain([command]).collect()
    });
    let shown =
        |command: &String| unhang_guard::text::printable_line(command).replace("gfx1010", true_chip(examination));
    commands.iter().map(shown).collect()
}

fn read_input() -> anyhow::Result<String> {
    end_of(std::io::stdin())
}

/// The end of a log, where the last event is; of an endless one, what was read so far.
fn end_of(log: impl Read) -> anyhow::Result<String> {
    const KEPT: usize = 4 << 20;
    const MOST: u64 = 256 << 20;
    let (mut log, mut end, mut part) = (log.take(MOST), Vec::new(), vec![0; 1 << 16]);
    loop {
        match log.read(&mut part) {
            Ok(0) => break,
            Ok(length) => end.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if end.len() > 2 * KEPT {
            end.drain(..end.len() - KEPT);
        }
    }
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// The text of a section of the page, unchanged.
fn section(id: &str) -> Option<String> {
    let body = PAGE.split(&format!("\n### {id}\n")).nth(1)?;
    let end = body.find("\n## ").into_iter().chain(body.find("\n### ")).min().unwrap_or(body.len());
    Some(body[..end].trim().to_owned())
}

/// Markdown for a terminal: links become their text, paragraphs and items are wrapped, code blocks stay.
fn laid_out(markdown: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    let mut paragraph = String::new();
    for line in markdown.lines().chain([""]) {
        let is_item = line.starts_with("* ") || is_numbered(line);
        if (is_code || line.is_empty() || is_item || line.starts_with("```")) && !paragraph.is_empty() {
            let rest = if is_numbered(&paragraph) { 5 } else { 2 };
            let _ = writeln!(out, "{}", wrapped(&without_links(&paragraph), 2, rest));
            paragraph.clear();
        }
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            let _ = writeln!(out, "      {line}");
        } else if line.is_empty() {
            out.push('\n');
        } else {
            let gap = if paragraph.is_empty() { "" } else { " " };
            let _ = write!(paragraph, "{gap}{}", line.trim());
        }
    }
    out
}

/// Whether a line is an item of a numbered list: `1. first`. A line of a paragraph may also begin with a number.
fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

/// The recipes. Deeply indented lines are commands to copy, and stay unwrapped.
fn laid_out_routes(text: &str) -> String {
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        if indent > 3 { line.to_owned() } else { wrapped(line, indent, 3) }
    };
    text.lines().map(|it| line(it) + "\n").collect()
}

/// `[words](where)` as `words`.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        match after.split_once("](").and_then(|(words, tail)| Some((words, tail.split_once(')')?.1))) {
            Some((words, tail)) => {
                out.push_str(words);
                rest = tail;
            }
            None => {
                out.push('[');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_can_be_asked_for_has_words() {
        let topics = symptoms::TOPICS.iter().copied().filter(|topic| *topic != "routes");
        for id in IDS.iter().copied().chain(topics).chain(symptoms::all_sections()) {
            let text = section(id).unwrap_or_default();
            assert!(text.len() > 40, "docs/explain.md says too little of {id}: {text:?}");
        }
    }

    #[test]
    fn lines_of_a_paragraph_are_joined_and_items_are_not() {
        assert_eq!(laid_out("see issue\n11614, on a card").trim_end(), "  see issue 11614, on a card");
        let text = laid_out("one\ntwo\n\n1. first\n   more\n2. second\n\n```\ncode\n```\n");
        assert_eq!(text.trim_end(), "  one two\n\n  1. first more\n  2. second\n\n      code");
    }

    #[test]
    fn a_mistyped_id_leads_to_the_nearest() {
        for (typed, meant) in [
            ("torch-knwn-to-hang", &["torch-known-to-hang"][..]),
            ("Spoofed_Architecture", &["spoofed-architecture"]),
            ("routs", &["routes"]),
            ("spoofed", &["spoofed-architecture"]),
            ("hang", &[]),
            ("the card hangs", &[]),
            ("no-such-thing", &[]),
        ] {
            assert_eq!(near_ids(typed), meant, "{typed}");
        }
        assert_eq!(near_ids("triton").len(), 3);
    }

    #[test]
    fn of_a_long_log_the_end_is_read() {
        let log = "nothing special\n".repeat(1 << 20) + "ring gfx_0.0.0 timeout";
        assert!(end_of(log.as_bytes()).unwrap().ends_with("ring gfx_0.0.0 timeout"));
        let endless = end_of(io::repeat(b'x')).unwrap();
        assert!(endless.len() <= 8 << 20, "{}", endless.len());
    }

    #[test]
    fn links_become_words() {
        assert_eq!(without_links("see [the page](a.md#b) and [more"), "see the page and [more");
    }
}
