//! Lines on standard error, each once in a process.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
/// A program that sees ever new sizes must not fill its memory with what was said.
const MOST: usize = 10_000;

/// Says something, unless it was said before.
pub fn say_once(message: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_with(HashSet::new);
    if said.len() < MOST && said.insert(message.to_owned()) {
        // A program may have closed it.
        let _ = writeln!(std::io::stderr(), "unhang: {message}");
    }
}
