//! The pages for users say what the code says.

use std::fs;
use std::path::{Path, PathBuf};

use unhang_machine::{IDS, symptoms, variables};

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

#[test]
fn every_finding_has_a_section_and_every_section_a_finding() {
    let text = fs::read_to_string(page("troubleshooting.md")).unwrap();
    let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for id in IDS {
        assert!(sections.contains(id), "docs/troubleshooting.md has no section \"### {id}\"");
    }
    for topic in symptoms::TOPICS {
        assert!(sections.contains(topic), "docs/troubleshooting.md has no section \"### {topic}\"");
    }
    for section in &sections {
        let known = IDS.contains(section) || symptoms::TOPICS.contains(section);
        assert!(known, "docs/troubleshooting.md has a section for {section}, which is neither a finding nor a topic");
    }
    // The table of symptoms leads to sections that exist.
    for link in text.split("](#").skip(1) {
        let target = link.split(')').next().unwrap();
        assert!(sections.contains(&target), "a link to #{target} leads nowhere");
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
