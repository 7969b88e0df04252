//! The sources are built as ARCHITECTURE.md says: crates on floors, and no circle among the files of a crate.

mod sources;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sources::Crate;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// The names of all crates.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The crates of ours that a crate's product code depends on.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let is_product = section.ends_with("dependencies]") && !section.contains("dev-dependencies");
        let dependency = line.split(['.', ' ', '=']).next().unwrap();
        if is_product && dependency.starts_with("unhang") {
            found.push(dependency.to_owned());
        }
    }
    found
}

#[test]
fn crates_depend_on_lower_floors_only() {
    let text = architecture();
    let picture = text.split("## The crates").nth(1).unwrap().split("```").nth(1).unwrap();
    let mut floors = BTreeMap::new();
    for line in picture.lines().filter(|line| !line.is_empty()) {
        let floor: u32 = line.split(' ').next().unwrap().parse().unwrap();
        floors.extend(line.split_whitespace().filter(|word| word.starts_with("unhang")).map(|name| (name, floor)));
    }
    let drawn: Vec<&str> = floors.keys().copied().collect();
    assert_eq!(drawn, crates(), "the picture of the crates in ARCHITECTURE.md");
    for name in crates() {
        for below in dependencies(&name) {
            let (upper, lower) = (floors[name.as_str()], floors[below.as_str()]);
            assert!(lower < upper, "{name} is on floor {upper} and depends on {below}, which is on floor {lower}");
        }
    }
}

#[test]
fn files_that_the_architecture_names_exist() {
    let text = architecture();
    // Fenced blocks hold pictures.
    let prose: String = text.split("```").step_by(2).collect();
    let mut checked = 0;
    for name in prose.split('`').skip(1).step_by(2) {
        let is_path = name.contains('/') && !name.contains([' ', '(', '*', '{']) && !name.starts_with('/');
        let places = ["", "crates"].map(|folder| root().join(folder).join(name));
        // The section about `unsafe` and the table of the Python package name files beside what they speak of.
        let is_whole =
            ["unhang", "crates/", "python/", "docs/", "tools/", "tests/"].iter().any(|it| name.starts_with(it));
        if is_path && is_whole {
            assert!(places.iter().any(|path| path.exists()), "ARCHITECTURE.md names {name}, which is not there");
            checked += 1;
        }
    }
    assert!(checked > 80, "{checked} files");
}

#[test]
fn files_of_a_crate_need_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    for name in crates() {
        let circles = Crate::read(&root().join("crates").join(&name).join("src")).circles();
        wrong.extend(circles.iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(wrong.is_empty(), "{} circles:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_name_that_a_parent_imported_for_itself_is_the_parents() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod below; mod child; use below::Own; pub(crate) use below::Shared; fn f() { child::f(); }");
    write("below.rs", "pub(crate) struct Own; pub(crate) struct Shared;");
    write("child.rs", "use super::Shared; pub(crate) fn f(_: Shared) {}");
    assert_eq!(Crate::read(folder.path()).circles(), Vec::<String>::new(), "`pub use` hands the name on");
    write("child.rs", "use super::Own; pub(crate) fn f(_: Own) {}");
    let circles = Crate::read(folder.path()).circles();
    assert!(circles.len() == 1 && circles[0].contains("Own"), "{circles:?}");
}

#[test]
fn what_is_allowed_has_a_reason() {
    for name in crates() {
        let mut bare = Vec::new();
        for file in sources::files(&root().join("crates").join(&name)) {
            let text = fs::read_to_string(&file).unwrap();
            let attributes = text.split("allow(").skip(1).zip(text.split("allow("));
            let is_attribute =
                |before: &str| before.ends_with("#[") || before.ends_with("#![") || before.ends_with(", ");
            let without = attributes.filter(|(rest, before)| {
                is_attribute(before.trim_end_matches(['\n', ' ']))
                    && !rest.split(")]").next().unwrap().contains("reason")
            });
            bare.extend(without.map(|_| file.display().to_string()));
        }
        assert!(bare.is_empty(), "{name}: {bare:?}");
    }
}

#[test]
fn unsafe_code_is_denied_but_in_modules_that_are_named_for_it() {
    for name in crates() {
        let folder = root().join("crates").join(&name).join("src");
        for file in ["lib.rs", "main.rs"].map(|file| folder.join(file)).iter().filter(|file| file.exists()) {
            let text = fs::read_to_string(file).unwrap();
            let is_denied = ["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]"].iter().any(|it| text.contains(it));
            assert!(is_denied, "{} denies no unsafe code", file.display());
        }
        for file in sources::files(&folder) {
            let text = fs::read_to_string(&file).unwrap();
            for rest in text.split("allow(unsafe_code").skip(1) {
                // Other attributes may stand between.
                let lines = rest.lines().skip(1).skip_while(|line| line.trim_start().starts_with("#["));
                let item = lines.map(str::trim_start).next().unwrap_or_default();
                let is_module = ["mod ", "pub mod ", "pub(crate) mod "].iter().any(|it| item.starts_with(it));
                assert!(is_module, "{} allows unsafe code for more than a module: {item}", file.display());
            }
        }
    }
}

#[test]
fn the_plain_path_of_the_emulator_knows_nothing_of_the_fast_one() {
    let emulator = Crate::read(&root().join("crates/unhang-emulator/src"));
    for (module, floor) in [("wave", "semantics"), ("semantics", "plain"), ("plain", "fast"), ("fast::stretch", "code")]
    {
        let above: Vec<String> = emulator.reached_from(module).into_iter().filter(|it| it.starts_with(floor)).collect();
        assert!(above.is_empty(), "{module} needs {above:?}");
    }
}

/// The most lines of a function.
const MOST_LINES: usize = 80;

#[test]
fn functions_fit_on_a_page() {
    let mut long = Vec::new();
    for name in crates() {
        let found = Crate::read(&root().join("crates").join(&name).join("src")).functions_longer_than(MOST_LINES);
        long.extend(found.into_iter().map(|(file, function, lines)| (format!("{name}/{file}"), function, lines)));
    }
    assert!(long.is_empty(), "functions of more than {MOST_LINES} lines: {long:#?}");
}

#[test]
fn an_argument_is_one_thing() {
    let mut tuples = Vec::new();
    for name in crates() {
        let found = Crate::read(&root().join("crates").join(&name).join("src")).tuples_as_arguments();
        tuples.extend(found.into_iter().map(|text| format!("{name}/{text}")));
    }
    assert!(tuples.is_empty(), "give these a struct, or an argument each: {tuples:#?}");
}
