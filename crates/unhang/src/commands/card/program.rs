//! Whether a library can be loaded into a program before it starts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::anyhow;

/// Rejects programs that the loader would start without our library, with the reason.
pub(super) fn check(program: &Path) -> anyhow::Result<()> {
    // If it cannot be read, the system decides.
    let Ok(mut file) = File::open(program) else { return Ok(()) };
    let metadata = file.metadata()?;
    if let Some(privilege) = privilege(program, &metadata) {
        return Err(anyhow!("hint: run a copy of it without special privileges").context(format!(
            "{} {privilege}, and the system loads no other library into such a program",
            program.display()
        )));
    }
    let mut header = [0; 64];
    if file.read(&mut header)? < 64 {
        return Ok(());
    }
    if let Some(script) = header.strip_prefix(b"#!") {
        let line = script.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let interpreter = line.split(|byte| byte.is_ascii_whitespace()).find(|part| !part.is_empty());
        return match interpreter {
            Some(interpreter) if line.len() < script.len() => check_binary(Path::new(OsStr::from_bytes(interpreter))),
            _ => Ok(()),
        };
    }
    check_binary(program)
}

/// Why the loader treats a program as one with more rights than its caller, if it does.
fn privilege(program: &Path, metadata: &std::fs::Metadata) -> Option<&'static str> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if metadata.mode() & 0o4000 != 0 && user != metadata.uid() {
        return Some("is setuid");
    }
    // Without execute permission for the group, the bit means something else.
    if metadata.mode() & 0o2010 == 0o2010 && group != metadata.gid() {
        return Some("is setgid");
    }
    let has_some = || rustix::fs::getxattr_query(program, "security.capability").is_ok_and(|length| length > 0);
    (user != 0 && has_some()).then_some("has file capabilities")
}

fn check_binary(program: &Path) -> anyhow::Result<()> {
    let Ok(mut file) = File::open(program) else { return Ok(()) };
    let mut header = [0; 64];
    if file.read(&mut header)? < 64 || !header.starts_with(b"\x7fELF") {
        return Ok(());
    }
    if header[4] != 2 {
        return Err(anyhow!("{} is not a 64-bit program; ROCm has no others", program.display()));
    }
    let number =
        |at: usize, size: usize| header[at..at + size].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    /// `PT_INTERP`: the loader that a dynamic program requests.
    const INTERPRETER: [u8; 4] = 3u32.to_le_bytes();
    let is_dynamic = (0..count).any(|place| {
        let mut kind = [0; 4];
        offset.checked_add(place * size).is_some_and(|at| file.read_exact_at(&mut kind, at).is_ok())
            && kind == INTERPRETER
    });
    if is_dynamic {
        return Ok(());
    }
    Err(anyhow!("hint: ROCm's libraries are shared; link the program against them")
        .context(format!("{} is a static program, and no library can be loaded into it", program.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::print_stdout, reason = "the line by which skipped tests are counted")]
    #[test]
    fn programs_with_rights_of_their_own_are_refused_and_ones_that_are_ours_pass() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o6755);
        check(&path).expect("of the same user and group it changes nothing");
        if chown(&path, Some(65534), Some(65534)).is_err() {
            println!("skipped: a second user needs root");
            return;
        }
        for (mode, expected) in [(0o4755, "is setuid"), (0o2755, "is setgid")] {
            set_mode(mode);
            let error = check(&path).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        set_mode(0o755);
        check(&path).unwrap();
    }

    #[test]
    fn static_programs_are_refused_and_dynamic_ones_and_scripts_pass() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let dynamic = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        std::fs::write(&path, &dynamic).unwrap();
        check(&path).unwrap();
        let mut fixed = dynamic;
        fixed[56..58].copy_from_slice(&[0, 0]);
        std::fs::write(&path, &fixed).unwrap();
        assert!(check(&path).unwrap_err().to_string().contains("static program"));
        fixed[4] = 1;
        std::fs::write(&path, &fixed).unwrap();
        assert!(check(&path).unwrap_err().to_string().contains("64-bit"));
        std::fs::write(&path, format!("#!/bin/sh\n{}", " ".repeat(100))).unwrap();
        check(&path).unwrap();
    }
}
