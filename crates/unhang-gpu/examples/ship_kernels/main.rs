//! Makes the general kernels that a package carries, in four steps, two of which several processes share (`tools/kernels`
//! calls them). Words are chips and data types:
//!
//! * `ship_kernels --compile K N CACHE [WORD…]`: the K-th of N parts of the kernels, into the cache;
//! * `ship_kernels --pack FOLDER CACHE [WORD…]`: audits them, compresses them and lists them in the folder;
//! * `ship_kernels --prove K N FOLDER CACHE`: runs the K-th part of the proof of the packed objects on the emulated chip;
//! * `ship_kernels --seal FOLDER CACHE`: notes in the list what was proven, and fails if anything was not.

#[path = "../../tests/normalizations/mod.rs"]
#[allow(dead_code, reason = "tests choose cases by more than is asked here")]
mod normalizations;
#[path = "../../tests/numbers/mod.rs"]
mod numbers;
#[path = "../../tests/on_card/mod.rs"]
mod on_card;
#[path = "../../tests/poolings/mod.rs"]
mod poolings;
mod prove;
#[path = "../../tests/reductions/mod.rs"]
#[allow(dead_code, reason = "tests choose cases by more than is asked here")]
mod reductions;
mod work;

use std::path::Path;

use unhang_conv::DataType;
use unhang_gpu::cache::Cache;
use unhang_gpu::compiler::{Clang, Compiler};
use unhang_gpu::shipped::{self, Keeping, TARGETS, Target};
use unhang_gpu::sources::Kernel;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--compile", share, of, cache, ..] => {
            compile([share.parse()?, of.parse()?], Path::new(cache), &Part::named(&words[4..])?)
        }
        ["--pack", folder, cache, ..] => pack(Path::new(folder), Path::new(cache), &Part::named(&words[3..])?),
        ["--prove", share, of, folder, cache] => {
            prove::prove([share.parse()?, of.parse()?], Path::new(folder), Path::new(cache))
        }
        ["--seal", folder, cache] => prove::seal(Path::new(folder), Path::new(cache)),
        _ => {
            Err("expected --compile K N CACHE [WORD…], --pack FOLDER CACHE [WORD…], --prove K N FOLDER CACHE or --seal FOLDER CACHE"
                .into())
        }
    }
}

fn clang(cache: &Path) -> Result<Clang, Box<dyn std::error::Error>> {
    Ok(Clang::find(&cache.join("work"))?)
}

/// What is made: everything, or what words say.
struct Part {
    targets: Vec<Target>,
    kernels: Vec<Kernel>,
}

impl Part {
    /// Words are targets and data types; without one of a kind all of that kind are meant.
    fn named(words: &[&str]) -> Result<Part, Box<dyn std::error::Error>> {
        let (chips, types) = (TARGETS.map(|(chip, _)| chip.name()), DataType::ALL.map(DataType::name));
        if let Some(other) = words.iter().find(|word| !chips.contains(word) && !types.contains(word)) {
            return Err(format!("{other} is neither of {chips:?} nor of {types:?}").into());
        }
        let is_meant = |name: &str, of: &[&str]| words.contains(&name) || !words.iter().any(|word| of.contains(word));
        let kernels = shipped::kernels().into_iter().filter(|kernel| is_meant(kernel.data_type().name(), &types));
        Ok(Part {
            targets: TARGETS.into_iter().filter(|(chip, _)| is_meant(chip.name(), &chips)).collect(),
            kernels: kernels.collect(),
        })
    }
}

fn compile([share, of]: [usize; 2], cache: &Path, part: &Part) -> Outcome {
    let compiler = clang(cache)?;
    let keeping = Keeping { compiler: &compiler, cache: Cache::open(cache, u64::MAX)? };
    for (target, _) in &part.targets {
        for kernel in part.kernels.iter().skip(share).step_by(of.max(1)) {
            keeping.compile(kernel, &keeping.options(kernel, target.name()))?;
        }
    }
    Ok(())
}

fn pack(folder: &Path, cache: &Path, part: &Part) -> Outcome {
    let compiler = clang(cache)?;
    let keeping = Keeping { compiler: &compiler, cache: Cache::open(cache, u64::MAX)? };
    let (shipped, left_out) = shipped::build(&part.kernels, &part.targets, &keeping, folder)?;
    for refused in left_out {
        println!("{refused}");
    }
    let entries = shipped.entries();
    let (all, packed): (u64, u64) =
        (entries.iter().map(|it| it.bytes).sum(), entries.iter().map(|it| it.packed_bytes).sum());
    println!(
        "{} objects by {}: {all} bytes, {packed} packed, in {}",
        entries.len(),
        shipped.compiler(),
        folder.display()
    );
    Ok(())
}
