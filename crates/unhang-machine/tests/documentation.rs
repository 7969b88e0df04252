//! The pages for users say what the code says.

use std::fs;
use std::path::{Path, PathBuf};

use unhang_machine::{IDS, symptoms, variables};

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

#[test]
fn every_finding_has_a_section_and_every_section_a_finding() {
    let text = fs::read_to_string(page("explain.md")).unwrap();
    let tables = fs::read_to_string(page("troubleshooting.md")).unwrap();
    let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for id in IDS.iter().chain(symptoms::TOPICS) {
        assert!(sections.contains(id), "docs/explain.md has no section \"### {id}\"");
        let link = format!("](explain.md#{id})");
        assert!(tables.contains(&link), "no table of docs/troubleshooting.md leads to {id}");
    }
    for section in &sections {
        let known = IDS.contains(section) || symptoms::TOPICS.contains(section);
        assert!(known, "docs/explain.md has a section for {section}, which is neither a finding nor a topic");
    }
}

/// A message that a table quotes is one that people paste.
#[test]
fn messages_of_the_tables_are_explained_by_the_sections_they_lead_to() {
    let tables = fs::read_to_string(page("troubleshooting.md")).unwrap();
    let mut messages = 0;
    for row in tables.lines().filter(|line| line.starts_with("| ")) {
        let symptom = row.split('|').nth(1).unwrap_or_default();
        for quoted in symptom.split('"').skip(1).step_by(2) {
            let found = symptoms::sections_for(quoted);
            let leads = |section: &&str| row.contains(&format!("](explain.md#{section})"));
            assert!(found.iter().any(leads), "`unhang explain {quoted:?}` finds {found:?}; its row is\n{row}");
            messages += 1;
        }
    }
    assert!(messages >= 15, "{messages} messages");
}

/// What an owner reads before the first run: ten minutes, not an hour.
#[test]
fn the_five_pages_of_a_new_user_stay_short() {
    let pages = ["../README.md", "getting-started.md", "recipes.md", "troubleshooting.md", "run.md"];
    let words = |name: &&str| fs::read_to_string(page(name)).unwrap().split_whitespace().count();
    let total: usize = pages.iter().map(words).sum();
    assert!(total <= 4000, "{total} words in {pages:?}: at most 4,000");
}

/// README leads to each answer in two clicks: to the page, and to the heading.
#[test]
fn what_owners_ask_first_is_answered() {
    let readme = fs::read_to_string(page("../README.md")).unwrap();
    let answers = [
        ("faq.md", "Is my card affected?"),
        ("faq.md", "What do I type if I have only Python and a ROCm torch?"),
        ("faq.md", "I have AMD's native gfx1010 wheels. Why would I want this?"),
        ("faq.md", "My training hangs now. What first?"),
        ("recipes.md", "ComfyUI"),
        ("troubleshooting.md", "It stops with an error"),
        ("faq.md", "Will it change my system, and how do I undo it?"),
        ("faq.md", "Is it slower or faster than what I have?"),
        ("faq.md", "Does it work on Windows, WSL, a BC-250, an RX 6600?"),
        ("status.md", "Report what your card did"),
    ];
    for (name, heading) in answers {
        assert!(readme.contains(&format!("](docs/{name}")), "README.md does not lead to {name}");
        let text = fs::read_to_string(page(name)).unwrap();
        assert!(text.lines().any(|line| line == format!("## {heading}")), "docs/{name} has no heading {heading:?}");
    }
}

/// A page for users begins with what to type.
#[test]
fn pages_for_users_open_with_a_command() {
    for entry in fs::read_dir(page("")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // An index of pages has none.
        if !name.ends_with(".md") || name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
        assert!(first.starts_with("```"), "docs/{name} opens with {first:?}, not with a command");
    }
}

#[test]
fn the_page_of_variables_is_the_table() {
    let expected = variables::as_markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(page("environment.md"), &expected).unwrap();
    }
    let found = fs::read_to_string(page("environment.md")).unwrap_or_default();
    assert!(found == expected, "docs/environment.md is not the table: run this test with UPDATE_DOCS=1");
}

#[test]
fn containers_are_started_and_made_as_the_doctor_says() {
    let devices = unhang_machine::routes::CONTAINER_DEVICES;
    let recipe = fs::read_to_string(page("../tools/container/Containerfile")).unwrap();
    for (name, text) in [
        ("docs/recipes.md", fs::read_to_string(page("recipes.md")).unwrap()),
        ("docs/troubleshooting.md", fs::read_to_string(page("troubleshooting.md")).unwrap()),
        ("docs/explain.md", fs::read_to_string(page("explain.md")).unwrap()),
        ("tools/container/Containerfile", recipe.clone()),
    ] {
        assert!(text.contains(devices), "{name} starts containers otherwise than with {devices}");
    }
    // The packages, without the way to the index, which is on a line of its own there.
    for word in unhang_machine::routes::SPOOFED_PIP.split_whitespace().filter(|word| word.contains(['=', '<', '/'])) {
        assert!(recipe.contains(word), "the container does not install {word}");
    }
}

/// A heading as pages link to it: small letters and digits, blanks as hyphens, everything else left out.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = page("..");
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)).into();
    for folder in ["", "internals", "internals/benchmarks"] {
        pages.extend(fs::read_dir(page(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let mut checked = 0;
    for from in pages.iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(from).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next()) {
            if link.contains("://") || link.is_empty() {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { from.clone() } else { from.with_file_name(file) };
            assert!(target.exists(), "{} links to {link}, which is not there", from.display());
            if !heading.is_empty() {
                let page = fs::read_to_string(&target).unwrap();
                let is_there = page.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(is_there, "{} links to {link}, and there is no such heading", from.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked} links");
}

/// Crates that are called by C or call it throughout: all of their files may hold `unsafe`.
const FOREIGN: [&str; 4] = ["unhang-card", "unhang-miopen", "unhang-miopen-api", "unhang-miopen-audit"];

/// Source files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => sources(&path, found),
            path if path.extension().is_some_and(|it| it == "rs") => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(crates.join("../ARCHITECTURE.md")).unwrap();
    let section = text.split("## Where `unsafe` lives").nth(1).unwrap().split("\n## ").next().unwrap();
    let named: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
    let marks = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "#[unsafe"];
    let mut strays = Vec::new();
    for entry in fs::read_dir(&crates).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if FOREIGN.contains(&name.as_str()) {
            assert!(section.contains(&format!("`crates/{name}`")), "ARCHITECTURE.md does not name {name}");
            continue;
        }
        let mut files = Vec::new();
        sources(&entry.path().join("src"), &mut files);
        for file in files {
            let content = fs::read_to_string(&file).unwrap();
            let code = content.lines().filter(|line| !line.trim_start().starts_with("//"));
            if !code.into_iter().any(|line| marks.iter().any(|mark| line.contains(mark))) {
                continue;
            }
            let rest = file.strip_prefix(entry.path().join("src")).unwrap().to_str().unwrap().to_owned();
            let whole = format!("crates/{name}/src/{rest}");
            let is_named = named.iter().any(|it| {
                whole.starts_with(it) && it.contains("/src/")
                    || section.contains(&format!("crates/{name}"))
                        && (rest == *it || format!("direct/{it}") == rest || it.ends_with('/') && rest.starts_with(it))
                    || whole.ends_with("instruction_tests/fast.rs") && it.ends_with("instruction_tests/fast.rs")
            });
            if !is_named {
                strays.push(whole);
            }
        }
    }
    assert!(strays.is_empty(), "ARCHITECTURE.md (\"Where `unsafe` lives\") does not name {strays:?}");
}
