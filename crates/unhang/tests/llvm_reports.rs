//! The programs of `docs/internals/llvm-reports.md`, compiled by the clangs that the page names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The columns of the page's table, in their order.
const COMPILERS: [&str; 2] = ["clang-15", "clang-19"];

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/llvm-reports.md");
    fs::read_to_string(path).unwrap()
}

/// The page's programs by the name of their kernel.
fn programs(page: &str) -> BTreeMap<String, String> {
    let blocks = page.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let kernel = |source: &str| {
        let name = source.split("kernel void ").nth(1).expect("a kernel").split('(').next().unwrap();
        name.to_owned()
    };
    blocks.map(|source| (kernel(source), source.to_owned())).collect()
}

/// The page's table: what each compiler leaves in each program.
fn counts(page: &str) -> BTreeMap<String, [u64; 2]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        (cells[0].to_owned(), [cells[1].parse().unwrap(), cells[2].parse().unwrap()])
    })
    .collect()
}

fn compiled(source: &str, name: &str, compiler: &str, folder: &Path) -> Option<PathBuf> {
    let (input, output) = (folder.join(format!("{name}.cl")), folder.join(format!("{name}.{compiler}.co")));
    fs::write(&input, source).unwrap();
    let options = "--target=amdgcn-amd-amdhsa -mcpu=gfx1010 -x cl -cl-std=CL2.0 -nogpulib -O2";
    let mut command = Command::new(compiler);
    match command.args(options.split(' ')).arg(&input).arg("-o").arg(&output).status() {
        Ok(status) => assert!(status.success(), "{compiler} {options} {name}.cl"),
        Err(_) => return None,
    }
    Some(output)
}

/// The places that are unsafe only across a call; the object has no others.
fn across_calls(object: &Path) -> u64 {
    let output = assert_cmd::Command::cargo_bin("unhang").unwrap().args(["audit", "--json"]).arg(object).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let kernels = report["files"][0]["objects"][0]["kernels"].as_array().unwrap();
    // The key is left out if there are none.
    kernels.iter().map(|kernel| kernel["across_calls"].as_u64().unwrap_or(0)).sum()
}

/// The object as `unhang repair` writes it.
fn repaired(object: &Path) -> PathBuf {
    let to = object.with_extension("repaired.co");
    let mut command = assert_cmd::Command::cargo_bin("unhang").unwrap();
    let output = command.arg("repair").arg(object).arg("-o").arg(&to).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    to
}

#[test]
fn the_programs_have_the_places_that_the_page_counts() {
    let page = page();
    let (programs, counts) = (programs(&page), counts(&page));
    assert_eq!(programs.keys().collect::<Vec<_>>(), counts.keys().collect::<Vec<_>>());
    assert_eq!(programs.len(), 3);
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in &programs {
        for (compiler, expected) in COMPILERS.iter().zip(counts[name]) {
            match compiled(source, name, compiler, folder.path()) {
                Some(object) => {
                    assert_eq!(across_calls(&object), expected, "{name}, {compiler}");
                    if expected > 0 {
                        assert_eq!(across_calls(&repaired(&object)), 0, "{name}, {compiler}, repaired");
                    }
                }
                None => println!("skipped: reports for LLVM: missing {compiler}"),
            }
        }
    }
}
