//! `unhang completions`: shell completions and manual pages, from the definition that also parses.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;

use super::text::print_text;
use super::whole_file::make_folder;
use crate::help;

/// Print completions for a shell, or write the manual pages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang completions bash > ~/.local/share/bash-completion/completions/unhang
  unhang completions fish > ~/.config/fish/completions/unhang.fish
  unhang completions --man ~/.local/share/man/man1

Exit codes:
  0  done
  2  wrong usage, or not done")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(required_unless_present = "man", conflicts_with = "man")]
    shell: Option<Shell>,
    /// Write a manual page for the program and for each subcommand into this folder.
    #[arg(long, value_name = "FOLDER")]
    man: Option<PathBuf>,
}

impl Completions {
    /// Runs the command. `command` is the whole program's definition.
    pub(crate) fn run(self, mut command: clap::Command) -> anyhow::Result<ExitCode> {
        if let Some(shell) = self.shell {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "unhang", &mut script);
            print_text(&String::from_utf8_lossy(&script))?;
        }
        if let Some(folder) = self.man {
            make_folder(&folder)?;
            help::manual_pages(command)
                .and_then(|pages| pages.iter().try_for_each(|(name, page)| fs::write(folder.join(name), page)))
                .with_context(|| format!("cannot write manual pages to {}", folder.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{Arg, Command, CommandFactory};

    /// Every subcommand without further subcommands, with its full name.
    fn leaves(command: &Command, name: &str) -> Vec<(String, Command)> {
        let inner: Vec<_> = command.get_subcommands().filter(|it| it.get_name() != "help").collect();
        if inner.is_empty() {
            return vec![(name.to_owned(), command.clone())];
        }
        inner.into_iter().flat_map(|it| leaves(it, &format!("{name} {}", it.get_name()))).collect()
    }

    fn names(argument: &Arg) -> Vec<&str> {
        argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default()).collect()
    }

    #[test]
    fn one_thing_has_the_same_names_everywhere() {
        /// The name in help and manual first, then its aliases.
        const NAMES: [&[&str]; 4] = [
            &["chip", "arch"],
            // To play a card; and to show what was played.
            &["rehearse"],
            &["rehearsed"],
            &["dtype", "data-type"],
        ];
        let all = leaves(&crate::Arguments::command(), "unhang");
        assert!(all.len() > 25, "{}", all.len());
        for (command, definition) in &all {
            for argument in definition.get_arguments() {
                let given = names(argument);
                let is_known = NAMES.iter().any(|known| known.iter().any(|name| given.contains(name)));
                assert!(!is_known || NAMES.contains(&given.as_slice()), "{command}: {given:?}");
                let value = argument.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
                assert_ne!(value, Some("SECONDS"), "{command}: times are written such as 90s or 5m");
            }
        }
    }

    /// A line's words as a shell splits them, up to a comment, a pipe or a redirection; `None` if the line has a `…`.
    fn words(line: &str) -> Option<Vec<String>> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in line.chars() {
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (None, '#' | '|' | '>' | ';' | '&') if word.is_none() => break,
                (None, ' ') => words.extend(word.take()),
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        (!words.iter().any(|word| word.contains('…'))).then_some(words)
    }

    /// Every line that calls the program, in a page's code blocks and in a help's examples, with its continuation
    /// lines.
    fn calls(page: &str) -> Vec<String> {
        let joined = page.replace("\\\n", " ");
        let lines = joined.lines().map(|line| line.trim().trim_start_matches("$ "));
        // The program's own output begins with its name and a colon.
        let is_call = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some("unhang") && words.next().is_some_and(|word| !word.ends_with(':'))
        };
        lines.filter(is_call).map(str::to_owned).collect()
    }

    #[test]
    fn what_pages_and_help_show_can_be_typed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for folder in ["docs", "docs/internals", "docs/internals/benchmarks"] {
            pages.extend(std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
        }
        let mut texts = Vec::new();
        for page in pages.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
            let text = std::fs::read_to_string(&page).unwrap();
            // Every second part is inside a block.
            let blocks: String = text.split("```").skip(1).step_by(2).collect();
            texts.push((page.display().to_string(), blocks));
        }
        for (command, definition) in leaves(&crate::Arguments::command(), "unhang") {
            let help = definition.get_after_help().map(ToString::to_string).unwrap_or_default();
            texts.push((format!("{command} --help"), help));
        }
        let mut checked = 0;
        for (place, text) in texts {
            for call in calls(&text) {
                let Some(words) = words(&call) else { continue };
                if let Err(error) = crate::Arguments::command().try_get_matches_from(words) {
                    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                    assert!(is_answer, "{place} shows `{call}`:\n{error}");
                }
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked} lines");
    }

    #[test]
    fn every_command_says_what_it_is_for_and_gives_an_example() {
        for (command, definition) in leaves(&crate::Arguments::command(), "unhang") {
            assert!(definition.get_about().is_some(), "{command}");
            let after = definition.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "{command} --help has no example: {after}");
            for argument in definition.get_arguments().filter(|it| !it.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{command}: nothing says what {:?} does", names(argument));
            }
        }
    }
}
