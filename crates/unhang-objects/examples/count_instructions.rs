//! Counts instructions whose name has a given part in all gfx10 code of files and folders, by name.
//!
//! `cargo run --release -p unhang-objects --example count_instructions -- image_ /opt/rocm/lib`

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use unhang_isa::Program;
use unhang_isa::elf::{CodeObject, Function};
use unhang_objects::{WalkEvent, walk};

type Counts = BTreeMap<String, u64>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().expect("a part of an instruction's name, then files and folders");
    let (mut functions, mut undecoded, mut unread) = (0, 0, 0);
    let mut found = BTreeMap::<String, Counts>::new();
    for path in arguments {
        let mut file = String::new();
        let walked = walk(Path::new(&path), &mut |event| match event {
            WalkEvent::File { path } => path.clone_into(&mut file),
            WalkEvent::Object { bytes, .. } => {
                let Some(counted) = count(bytes, &wanted) else {
                    unread += 1;
                    return;
                };
                for in_function in counted {
                    functions += 1;
                    let Some(counts) = in_function else {
                        undecoded += 1;
                        continue;
                    };
                    let in_file = found.entry(file.clone()).or_default();
                    counts.into_iter().for_each(|(name, count)| *in_file.entry(name).or_default() += count);
                }
            }
            WalkEvent::Unreadable { .. } => unread += 1,
            WalkEvent::OtherTarget { .. } => {}
        });
        if let Err(error) = walked {
            eprintln!("{path}: {error}");
        }
    }
    found.retain(|_, counts| !counts.is_empty());
    for (file, counts) in &found {
        println!("{file}: {counts:?}");
    }
    println!(
        "{functions} functions, {undecoded} of them not decoded; {unread} objects or files not read; {} files have one",
        found.len()
    );
}

/// The counts of each function of a code object, `None` for one that is not decoded.
fn count(bytes: &[u8], wanted: &str) -> Option<Vec<Option<Counts>>> {
    let object = CodeObject::parse(bytes).ok()?;
    let chip = object.chip()?;
    let in_function = |function: &Function<'_>| {
        let program = Program::decode(function.code, chip, object.mode_of(function).wave64).ok()?;
        let mut counts = Counts::new();
        for instruction in &program.instructions {
            let name = instruction.definition.base_name();
            if name.contains(wanted) {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        Some(counts)
    };
    Some(object.functions.par_iter().map(in_function).collect())
}
