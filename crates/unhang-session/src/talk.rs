//! Lines on standard error, each printed once in a process.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
/// A program with ever new sizes must not fill its memory with printed lines.
const MOST: usize = 10_000;

/// Prints a line, unless it was printed before.
pub fn say_once(message: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_with(HashSet::new);
    if said.len() < MOST && said.insert(message.to_owned()) {
        // The program may have closed it.
        let _ = writeln!(std::io::stderr(), "unhang: {message}");
    }
}
