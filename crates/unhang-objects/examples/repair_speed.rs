//! Measures the repair's speed: `repair_speed [--write FOLDER] FILE…` reads code objects and repairs them for five
//! seconds.

use std::time::{Duration, Instant};

use unhang_isa::Chip;
use unhang_isa::audit::{Hazards, Rule};
use unhang_isa::repair::{Options, Treatment, repair_object};

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut folder = None;
    if arguments.first().is_some_and(|first| first == "--write") {
        folder = arguments.get(1).cloned();
        arguments.drain(..2);
    }
    let options = Options { chip: Chip::Gfx1010, keep_size: false };
    let (mut before, mut after) = (Hazards::default(), Hazards::default());
    let (mut moved, mut inserted, mut functions) = (0, 0, 0);
    let objects: Vec<Vec<u8>> = arguments.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    for (path, object) in arguments.iter().zip(&objects) {
        let repair = repair_object(object, options).expect("a code object");
        for function in &repair.functions {
            functions += 1;
            before.add(&function.before);
            after.add(&function.after);
            moved += (function.treatment == Treatment::Moved) as u32;
            inserted += function.inserted;
            if let Some(reason) = &function.reason {
                println!("{}: {reason}", function.name);
            }
        }
        if let (Some(folder), Some(bytes)) = (&folder, &repair.bytes) {
            let name = std::path::Path::new(path).file_name().expect("a name");
            std::fs::write(std::path::Path::new(folder).join(name), bytes).expect("a folder");
        }
    }
    println!("{functions} functions, {moved} given a new layout with {inserted} insertions");
    for rule in Rule::ALL {
        println!("{:24} {:>8} {:>8}", rule.name(), before.get(rule), after.get(rule));
    }
    let code: usize = objects
        .iter()
        .map(|object| {
            let object = unhang_isa::elf::CodeObject::parse(object).expect("a code object");
            object.functions.iter().map(|function| function.code.len()).sum::<usize>()
        })
        .sum();
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(5) {
        rounds += 1;
        for object in &objects {
            repair_object(object, options).expect("a code object");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{rounds} rounds, {:.1} MB/s of machine code, one thread", (rounds * code) as f64 / seconds / 1e6);
}
