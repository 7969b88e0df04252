//! The order of every `--help` and manual page: what the command does, usage, examples, options, notes, and exit codes
//! last.
//!
//! A command's definition has examples, notes and exit codes in its epilogue.

use std::io;

use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;

const ORDER: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";
const EXIT_CODES: &str = "Exit codes:";

/// Arranges the help of a command and of its subcommands. A subcommand without exit codes has its parent's.
pub(crate) fn arrange(command: Command) -> Command {
    arrange_below(command, None)
}

fn arrange_below(command: Command, inherited: Option<&str>) -> Command {
    let epilogue = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (codes, rest): (Vec<&str>, Vec<&str>) =
        epilogue.split("\n\n").filter(|block| !block.is_empty()).partition(|block| block.starts_with(EXIT_CODES));
    let (examples, mut last): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(|block| block.starts_with("Example"));
    let codes = codes.first().copied().or(inherited);
    last.extend(codes);
    let text = |blocks: &[&str]| match blocks {
        [] => Resettable::Reset,
        some => Resettable::Value(some.join("\n\n").into()),
    };
    command
        .help_template(ORDER)
        .before_help(text(&examples))
        .after_help(text(&last))
        .mut_subcommands(|inner| arrange_below(inner, codes))
}

/// A manual page for the program and for each subcommand, by the names of their files.
pub(crate) fn manual_pages(command: Command) -> io::Result<Vec<(String, String)>> {
    let mut command = arrange(command).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    let man = Man::new(command.clone().after_help(Resettable::Reset));
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(examples) = command.get_before_help() {
        page =
            page.replacen(".SH OPTIONS\n", &format!("{}.SH OPTIONS\n", section("EXAMPLES", &examples.to_string())), 1);
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (codes, notes): (Vec<&str>, Vec<&str>) = after.split("\n\n").partition(|block| block.starts_with(EXIT_CODES));
    if notes.iter().any(|block| !block.trim().is_empty()) {
        let notes: Vec<String> = notes.into_iter().map(note).collect();
        page += &format!(".SH NOTES\n{}", notes.join(".PP\n"));
    }
    page.extend(codes.into_iter().map(|block| section("EXIT STATUS", block)));
    pages.push((man.get_filename(), page));
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|inner| add_pages(inner, pages))
}

/// A block as a section of a manual page, line by line, without its own heading.
fn section(heading: &str, block: &str) -> String {
    let has_heading = block.lines().next().is_some_and(|line| line.ends_with(':'));
    let lines = block.lines().skip(usize::from(has_heading));
    let body: String = lines.map(|line| escaped(line.strip_prefix("  ").unwrap_or(line))).collect();
    format!(".SH \"{heading}\"\n.nf\n{body}.fi\n")
}

/// A paragraph of a manual page, which `man` fills. A list, whose lines are indented, is not filled.
fn note(block: &str) -> String {
    let body: String = block.lines().map(escaped).collect();
    if block.lines().any(|line| line.starts_with("  ")) { format!(".nf\n{body}.fi\n") } else { body }
}

/// A line as roff takes it literally.
fn escaped(line: &str) -> String {
    format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The long help of every command without subcommands, as a terminal of that width shows it.
    fn all_pages(width: usize) -> Vec<(String, String)> {
        let mut command = arrange(crate::Arguments::command()).term_width(width);
        // Global flags reach the inner commands.
        command.build();
        let mut all = Vec::new();
        pages(&mut command, "unhang", &mut all);
        assert!(all.len() > 25, "{}", all.len());
        all
    }

    fn pages(command: &mut Command, name: &str, all: &mut Vec<(String, String)>) {
        if command.get_subcommands().next().is_none() {
            all.push((name.to_owned(), command.render_long_help().to_string()));
        }
        for inner in command.get_subcommands_mut().filter(|it| it.get_name() != "help") {
            let name = format!("{name} {}", inner.get_name());
            pages(inner, &name, all);
        }
    }

    #[test]
    fn every_help_has_examples_before_options_and_ends_with_exit_codes() {
        for (name, page) in all_pages(100) {
            let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{name} --help lacks {what}:\n{page}"));
            let order = ["Usage:", "\nExample", "\nOptions:", "\nOutput:", "\nExit codes:\n"].map(at);
            assert!(order.is_sorted(), "{name} --help: {order:?}\n{page}");
            let last = &page[order[4] + 2..];
            assert!(!last.trim_end().contains("\n\n"), "{name} --help does not end with exit codes:\n{page}");
            // One code per line, each with its meaning.
            for line in last.lines().skip(1) {
                let (code, meaning) = line.trim().split_once("  ").unwrap_or_default();
                let is_code = code.parse::<u8>().is_ok() && !meaning.trim().contains("  ");
                assert!(is_code || line.contains("the program's own"), "{name} --help: {line:?}");
            }
        }
    }

    #[test]
    fn manual_pages_have_the_order_of_the_help() {
        let pages = manual_pages(crate::Arguments::command()).unwrap();
        assert!(pages.len() > 30, "{}", pages.len());
        for (name, page) in pages {
            let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            let at = |wanted: &str| sections.iter().position(|it| it.trim_matches('"') == wanted);
            let order = ["NAME", "SYNOPSIS", "EXAMPLES", "OPTIONS", "EXIT STATUS"].map(at);
            assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{name}: {sections:?}");
            assert!(!page.contains("Exit codes:") && !page.contains(".SH EXTRA"), "{name}");
        }
    }

    /// An example broken over two lines cannot be copied.
    #[test]
    fn examples_fit_a_terminal_of_80_columns() {
        fn check(command: &Command) {
            let examples = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            for line in examples.lines() {
                assert!(line.chars().count() <= 80, "{} --help: {line:?}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&arrange(crate::Arguments::command()));
    }

    #[test]
    fn lines_fit_and_sentences_are_not_broken_by_the_source() {
        for (name, page) in all_pages(80) {
            for line in page.lines() {
                assert!(line.chars().count() <= 80, "{name} --help does not fit: {line:?}");
            }
            let epilogue = page.split("\nOutput:").nth(1).unwrap_or_default();
            for paragraph in epilogue.split("\n\n").filter(|it| it.lines().all(|line| !line.starts_with(' '))) {
                let lines: Vec<&str> = paragraph.lines().collect();
                for line in &lines[..lines.len().saturating_sub(1)] {
                    assert!(line.len() > 60, "{name} --help breaks off after {line:?}");
                }
            }
        }
    }
}
