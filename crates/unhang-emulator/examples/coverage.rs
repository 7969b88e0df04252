//! Lists the instructions of code objects that the emulator does not know: `coverage FILE…`.

use std::collections::BTreeMap;

use unhang_emulator::{Machine, Mode};

fn main() {
    let mut all = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("a file");
        match Machine::load(&bytes, Mode::Compute) {
            Ok(machine) => {
                for (name, count) in machine.unsupported(None) {
                    *all.entry(name).or_insert(0) += count;
                }
            }
            Err(error) => println!("{path}: {error}"),
        }
    }
    println!("{all:?}");
}
