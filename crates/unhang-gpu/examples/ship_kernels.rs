//! Makes the general kernels that a package carries: `ship_kernels FOLDER CACHE`, or `ship_kernels --share K N CACHE` for the
//! K-th of N processes that compile into the cache before it. hiprtc compiles one kernel at a time in a process.

use std::path::Path;

use unhang_gpu::cache::Cache;
use unhang_gpu::compiler::{Compiler, Hiprtc};
use unhang_gpu::shipped::{self, Keeping, TARGETS};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let compiler = Hiprtc::find()?;
    let keeping = |cache: &str| -> Result<Keeping<'_>, Box<dyn std::error::Error>> {
        Ok(Keeping { compiler: &compiler, cache: Cache::open(Path::new(cache), u64::MAX)? })
    };
    let kernels = shipped::kernels();
    match words[..] {
        ["--share", share, of, cache] => {
            let (share, of): (usize, usize) = (share.parse()?, of.parse()?);
            let keeping = keeping(cache)?;
            for kernel in kernels.iter().skip(share).step_by(of.max(1)) {
                for (target, _) in TARGETS {
                    keeping.compile(kernel, &keeping.options(kernel, target.name()))?;
                }
            }
        }
        [folder, cache] => {
            let (shipped, left_out) = shipped::build(&kernels, &keeping(cache)?, Path::new(folder))?;
            for refused in left_out {
                println!("{refused}");
            }
            let entries = shipped.entries();
            let (all, packed): (u64, u64) =
                (entries.iter().map(|it| it.bytes).sum(), entries.iter().map(|it| it.packed_bytes).sum());
            println!("{} objects by {}: {all} bytes, {packed} packed, in {folder}", entries.len(), shipped.compiler());
        }
        _ => return Err("expected FOLDER CACHE, or --share K N CACHE".into()),
    }
    Ok(())
}
