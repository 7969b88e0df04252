//! The README and the user pages show what the program prints: each line of a block, in order; `…` stands for omitted
//! output.

use std::path::Path;

use assert_cmd::Command;

/// A command of a block, and the lines after it.
fn blocks(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_inside = !is_inside;
            found.push((String::new(), Vec::new()));
        } else if let (true, Some(command)) = (is_inside, line.strip_prefix("$ unhang ")) {
            found.push((command.to_owned(), Vec::new()));
        } else if let (true, Some((_, lines))) = (is_inside, found.last_mut()) {
            lines.push(line.to_owned());
        }
    }
    found.into_iter().filter(|(command, _)| !command.is_empty()).collect()
}

#[test]
fn described_machines_are_shown_as_they_are_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = folder.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let pages =
        pages.chain([root.join("README.md")]).map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    let shown = pages.flat_map(|(path, page)| blocks(&page).into_iter().map(move |block| (path.clone(), block)));
    let mut checked = 0;
    // Except commands that need a compiler, a wheel or a pipe: those may be missing.
    for (path, (command, shown)) in
        shown.filter(|(_, (command, _))| command.contains("--root") && !command.contains('|'))
    {
        let home = tempfile::tempdir().unwrap();
        let mut run = Command::cargo_bin("unhang").unwrap();
        run.current_dir(&root).env_clear().env("UNHANG_HOME", home.path()).args(command.split_whitespace());
        let printed = String::from_utf8(run.output().unwrap().stdout).unwrap();
        let mut lines = printed.lines();
        for wanted in shown.iter().filter(|line| !line.trim().is_empty() && line.trim() != "…") {
            let start = wanted.split('…').next().unwrap();
            assert!(
                lines.any(|line| if wanted.contains('…') { line.starts_with(start) } else { line == wanted }),
                "{} shows of `unhang {command}`:\n{wanted}\nwhich is not printed, or not there:\n{printed}",
                path.display()
            );
        }
        checked += 1;
    }
    assert!(checked >= 2, "{checked} blocks");
}
