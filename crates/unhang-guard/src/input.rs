//! Reads files that somebody named, with limits on size and waiting.
//!
//! [`read_plain`] is for our own files and those of a machine's description, where anything but a plain file is a
//! trap. [`read_named`] is for what a user names on the command line. That may be a pipe (`<(env)`, `/dev/stdin`), so
//! it has a limit on size and on the time without data.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// How long a pipe may deliver nothing.
pub const PATIENCE: Duration = Duration::from_secs(30);

fn refused(kind: io::ErrorKind, message: String) -> io::Error {
    io::Error::new(kind, message)
}

fn too_large(limit: u64) -> io::Error {
    refused(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes, the most that is read"))
}

/// Opens without waiting for a pipe's other end; follows links.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32).open(path)
}

/// Opens a plain file; anything else fails at once.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(refused(io::ErrorKind::InvalidInput, "it is not a plain file".to_owned())),
    }
}

/// The contents of a plain file of at most that many bytes.
pub fn read_plain(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    up_to(open_plain(path)?, limit)
}

fn up_to(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut contents)?;
    if contents.len() as u64 > limit { Err(too_large(limit)) } else { Ok(contents) }
}

/// The contents of what a user named: a plain file, a pipe, or a device that delivers a limited amount.
pub fn read_named(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_within(path, limit, PATIENCE)
}

/// What a user named, as text.
pub fn read_named_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_named(path, limit)?)
        .map_err(|_| refused(io::ErrorKind::InvalidData, "it is not text (UTF-8)".to_owned()))
}

fn read_within(path: &Path, limit: u64, patience: Duration) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let found = file.metadata()?;
    if found.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory, "it is a folder".to_owned()));
    }
    if found.is_file() {
        return up_to(file, limit);
    }
    let mut contents = Vec::new();
    let mut part = vec![0; 64 * 1024];
    loop {
        wait(&file, patience)?;
        match file.read(&mut part) {
            Ok(0) => return Ok(contents),
            Ok(length) => contents.extend_from_slice(&part[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if contents.len() as u64 > limit {
            return Err(too_large(limit));
        }
    }
}

/// Waits until there is something to read, or the other end is closed. Also waits for a pipe that nobody has opened
/// for writing.
fn wait(file: &File, patience: Duration) -> io::Result<()> {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                let waited = format!("nothing arrived for {} s", patience.as_secs());
                return Err(refused(io::ErrorKind::TimedOut, waited));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    /// For what is ready: even a busy machine reads it in this time.
    const LONG: Duration = Duration::from_secs(60);

    fn pipe(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        path
    }

    #[test]
    fn nothing_is_read_without_end_and_nobody_is_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(read_plain(&file, 5).unwrap(), b"12345");
        assert_eq!(read_plain(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_within(&file, 4, LONG).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(read_named(folder.path(), 4).is_err() && read_plain(folder.path(), 4).is_err());
        assert!(read_plain(Path::new("/dev/zero"), 4).is_err());
        let endless = read_within(Path::new("/dev/zero"), 1 << 20, LONG);
        assert_eq!(endless.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_named(Path::new("/dev/null"), 4).unwrap(), b"");
        let pipe = pipe(folder.path());
        let began = Instant::now();
        assert!(read_plain(&pipe, 4).is_err());
        assert_eq!(read_within(&pipe, 4, SHORT).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = pipe(folder.path());
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                std::thread::sleep(SHORT);
                let mut file = OpenOptions::new().write(true).open(path).unwrap();
                file.write_all(b"one ").unwrap();
                std::thread::sleep(SHORT);
                file.write_all(b"two").unwrap();
            }
        });
        assert_eq!(read_named_text(&path, 100).unwrap(), "one two");
        writer.join().unwrap();
    }
}
