//! Reads the kernel's messages from journald's files, without journald.

/// The magic of journald's files.
pub(crate) const JOURNAL: &[u8] = b"LPKSHHRH";

/// The offset of a journal's last object, from the file's header.
pub(crate) fn journal_end(header: &[u8]) -> Option<u64> {
    (header.starts_with(JOURNAL)).then_some(())?;
    Some(u64::from_le_bytes(header.get(136..144)?.try_into().ok()?))
}

/// The messages in a part of a journal: each is there as `MESSAGE=` and its text, with numbers around it. Long ones are
/// compressed and not found; those of the kernel are short.
pub(crate) fn journal_messages(bytes: &[u8]) -> String {
    const START: &[u8] = b"MESSAGE=";
    let mut text = String::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(START.len()).position(|window| window == START) {
        rest = &rest[at + START.len()..];
        let length = rest.iter().position(|byte| *byte < b' ' || *byte > b'~').unwrap_or(rest.len());
        text.push_str(&String::from_utf8_lossy(&rest[..length]));
        text.push('\n');
        rest = &rest[length..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_a_journal() {
        let mut bytes = b"LPKSHHRH".to_vec();
        bytes.resize(300, 0);
        bytes[136..144].copy_from_slice(&700u64.to_le_bytes());
        bytes.extend(b"\x01\0\0MESSAGE=amdgpu: ring gfx_0.0.0 timeout\0\0\x07PRIORITY=3\0MESSAGE=usb 1-1: x\xff");
        assert_eq!(journal_end(&bytes), Some(700));
        assert_eq!(journal_messages(&bytes), "amdgpu: ring gfx_0.0.0 timeout\nusb 1-1: x\n");
        assert_eq!(journal_end(b"text"), None);
    }
}
