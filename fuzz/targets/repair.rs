//! A code object: repair never panics, and what it changed is never worse than it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unhang_isa::Chip;
use unhang_isa::repair::{Options, repair_object};

fuzz_target!(|data: &[u8]| {
    for keep_size in [false, true] {
        let Ok(repair) = repair_object(data, Options { chip: Chip::Gfx1010, keep_size }) else { continue };
        for function in &repair.functions {
            assert!(function.after.total() <= function.before.total(), "{} became worse", function.name);
        }
        if let (true, Some(bytes)) = (keep_size, &repair.bytes) {
            assert_eq!(bytes.len(), data.len(), "the size was to stay");
        }
    }
});
