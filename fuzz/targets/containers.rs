//! A file of any kind: what is found in it, what the audit says, and a copy of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unhang_isa::Chip;
use unhang_objects::survey::{Options, survey};
use unhang_objects::{Event, rewrite, walk};

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for the input");
    let path = folder.path().join("input");
    std::fs::write(&path, data).expect("the input");
    let _ = walk(&path, &mut |event| {
        if let Event::Object { bytes, .. } = event {
            let _ = survey(bytes, Options { chip: Chip::Gfx1010, keep_findings: true });
        }
    });
    let _ = rewrite(&path, &folder.path().join("output"), &mut |found| Some(found.bytes.to_vec()));
});
