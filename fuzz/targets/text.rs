//! Texts of others: keys, variables, pasted errors, file names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unhang_machine::{Environment, symptoms, variables};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(problem) = text.parse::<unhang_conv::Problem>() {
        assert_eq!(problem.to_string().parse(), Ok(problem), "a key reads as what wrote it");
    }
    for (name, _) in Environment::parse(&text).iter() {
        let _ = variables::classify(name);
    }
    let _ = symptoms::sections_for(&text);
    let _ = unhang_guard::time::deadline(&text);
    let _ = unhang_conv::table::parse(&text);
    let shown = unhang_guard::printable(&text);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
    let name = unhang_guard::text::file_name(&text);
    assert!(!name.contains('/') && !name.starts_with('.') && !name.is_empty());
    let _ = unhang_evidence::exchange::read(data);
});
