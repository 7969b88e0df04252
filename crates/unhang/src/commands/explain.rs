//! `unhang explain`: a finding by its id, or what a pasted error message means.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::json;
use unhang_machine::{IDS, Machine, routes, symptoms};

use super::machine_arguments::MachineArguments;
use super::text::{print_safe_json, print_text, wrapped};
use crate::output::{CANNOT_TELL, Colour, Style};

/// The page whose sections are the explanations.
const PAGE: &str = include_str!("../../../../docs/troubleshooting.md");

/// Explain a finding of the doctor, or an error message that you paste.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang explain spoofed-architecture
  unhang explain routes                                  # the ways to a torch for this card
  unhang explain 'RuntimeError: HIP error: invalid device function'
  journalctl -k -b | unhang explain -

Exit codes:
  0  an explanation was found
  2  wrong usage
  3  nothing is known about it")]
pub struct Explain {
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
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self.what.as_slice() {
            [] => return self.list(),
            [dash] if dash == "-" => read_input()?,
            words => words.join(" "),
        };
        if text.trim().is_empty() {
            bail!(
                anyhow!("hint: `unhang explain` alone lists what can be explained")
                    .context("the text to explain is empty")
            );
        }
        // An id, or a line of the doctor's such as `error[kfd-no-access]: this user may not open /dev/kfd`.
        let is_named = |known: &str| text.trim() == known || text.contains(&format!("[{known}]"));
        let sections = match IDS.iter().chain(symptoms::TOPICS).find(|known| is_named(known)) {
            Some(known) => vec![*known],
            None => symptoms::sections_for(&text),
        };
        if sections.is_empty() {
            if self.json {
                print_safe_json(&json!({ "schema": 1, "sections": [] }))?;
            } else {
                let known = "Nothing is known of that text. `unhang doctor` looks at the machine, `unhang explain` alone lists \
                             what can be explained, and `unhang doctor --bundle card.tar.gz` is for a bug report.";
                print_text(&format!("{}\n", wrapped(known, 0, 0)))?;
            }
            return Ok(ExitCode::from(CANNOT_TELL));
        }
        let gfx = self.true_chip()?;
        let body = |id: &str| if id == "routes" { routes::in_words(&gfx) } else { section(id).unwrap_or_default() };
        if self.json {
            let all: Vec<_> = sections.iter().map(|id| json!({ "id": id, "text": body(id) })).collect();
            print_safe_json(&json!({ "schema": 1, "sections": all }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let style = Style::for_stream(&std::io::stdout());
        let mut out = String::new();
        for (index, id) in sections.iter().enumerate() {
            let gap = if index > 0 { "\n" } else { "" };
            let laid_out = if *id == "routes" { laid_out_routes(&body(id)) } else { laid_out(&body(id)) };
            let _ = writeln!(out, "{gap}{}\n\n{}", style.paint(id, Colour::Bold), laid_out.trim_end());
        }
        print_text(&out)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The chip of the RDNA1 card that is here; the most common one where none is.
    fn true_chip(&self) -> anyhow::Result<String> {
        let machine = Machine::inspect(&self.machine.system()?);
        let card = machine.gpus.into_iter().find(|gpu| gpu.affected);
        Ok(card.and_then(|gpu| gpu.gfx).unwrap_or_else(|| "gfx1010".to_owned()))
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

fn read_input() -> anyhow::Result<String> {
    use std::io::Read;
    /// The end of a log is enough, and a log has no end.
    const MOST: u64 = 4 << 20;
    let mut bytes = Vec::new();
    std::io::stdin().take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text of a section of the page, as it stands there.
fn section(id: &str) -> Option<String> {
    let body = PAGE.split(&format!("\n### {id}\n")).nth(1)?;
    let end = body.find("\n## ").into_iter().chain(body.find("\n### ")).min().unwrap_or(body.len());
    Some(body[..end].trim().to_owned())
}

/// Markdown for a terminal: links become their text, paragraphs are wrapped, code blocks stay.
fn laid_out(markdown: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for line in markdown.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            let _ = writeln!(out, "      {line}");
        } else if line.is_empty() {
            out.push('\n');
        } else {
            let _ = writeln!(out, "{}", wrapped(&without_links(line), 2, 2));
        }
    }
    out
}

/// The recipes: what is indented deeply is a command, there to be copied, and stays on its line.
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
            assert!(text.len() > 40, "docs/troubleshooting.md says too little of {id}: {text:?}");
        }
    }

    #[test]
    fn links_become_words() {
        assert_eq!(without_links("see [the page](a.md#b) and [more"), "see the page and [more");
    }
}
