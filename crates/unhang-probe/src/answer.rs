//! How a parent tells its own child's answers from all other output: by a number that only the two know.
//!
//! Torch, the GPU's libraries and quotes from files end up in the same output. The number is passed in the
//! environment, which only this user can read, never on the command line, which everybody can.

use std::io::{self, Read};

/// The variable that carries the number to the child.
pub(crate) const VARIABLE: &str = "UNHANG_CHILD_NONCE";

/// In a child: marks the text so that the parent accepts it. A child started by hand has no number, and needs none.
pub fn line(text: &str) -> String {
    match std::env::var(VARIABLE) {
        Ok(nonce) if !nonce.is_empty() => format!("{nonce} {text}"),
        _ => text.to_owned(),
    }
}

/// A number that nobody can guess.
pub(crate) fn new_nonce() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The rest of each line that starts with the number.
pub(crate) fn answers<'a>(output: &'a str, nonce: &str) -> impl DoubleEndedIterator<Item = &'a str> {
    output.lines().filter_map(move |line| line.strip_prefix(nonce)?.strip_prefix(' '))
}
