//! Writes files that the user names, completely or not at all, and reads tables with a size limit.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use unhang_conv::table::{self, Layer};
use unhang_guard::input::read_named_text;

/// The largest table that is accepted.
const LARGEST_TABLE: u64 = 16 << 20;

/// A table of layers or of a rehearsal. It may come through a pipe.
pub(super) fn read_table(path: &Path) -> anyhow::Result<String> {
    read_named_text(path, LARGEST_TABLE).with_context(|| format!("cannot read {}", path.display()))
}

/// The layers that are measured where no table is named: sizes that hang in users' reports, and well-known networks.
const LAYERS: &str = include_str!("../../../unhang-suite/layers.tsv");

/// The layers of a table, or of the built-in one.
pub(super) fn read_layers(path: Option<&Path>) -> anyhow::Result<Vec<Layer>> {
    let Some(path) = path else { return Ok(table::parse(LAYERS)?) };
    table::parse(&read_table(path)?).with_context(|| format!("{} is not a layer table", path.display()))
}

/// Creates a folder for files, unless it exists. Its parent must exist: a mistyped path is an error.
pub(super) fn make_folder(folder: &Path) -> anyhow::Result<()> {
    check_folder(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make the folder {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file under an unguessable name next to its place, and then renames it. A link in that place is replaced,
/// not followed. A device, a pipe or a stream of this process is written directly.
pub(super) fn write_whole<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> anyhow::Result<T> {
    let context = || format!("cannot write {}", path.display());
    if path.file_name().is_none() {
        bail!("{} does not name a file", path.display());
    }
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(anyhow!("hint: name a file in it").context("it is a folder")),
        // Replacing /dev/null by a file would break the system.
        Ok(there) if !there.is_file() || belongs_to_the_system(path) => {
            into_what_is_there(path, write).map_err(Into::into)
        }
        _ => check_folder(path).and_then(|()| beside_it_first(path, write).map_err(Into::into)),
    }
    .with_context(context)
}

/// Whether a name, or the target of a link, is one of the system's. `/dev/stdout` names a plain file if output is
/// redirected, and cannot be replaced.
pub(super) fn belongs_to_the_system(path: &Path) -> bool {
    /// The limit that Linux has.
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(folder) = folder_of(&path).canonicalize() else { return false };
        if folder.starts_with("/proc") || (folder.starts_with("/dev") && !folder.starts_with("/dev/shm")) {
            return true;
        }
        match fs::read_link(&path) {
            Ok(target) => path = folder.join(target),
            Err(_) => return false,
        }
    }
    false
}

/// The folder of a file to be written must exist: a mistyped path is an error.
pub(super) fn check_folder(path: &Path) -> anyhow::Result<()> {
    let folder = folder_of(path);
    let is_not_there = match fs::metadata(folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "is not a folder".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        Err(error) => format!("cannot be used: {error}"),
    };
    Err(anyhow!("hint: name a folder that exists, or make it first")
        .context(format!("the folder {} {is_not_there}", folder.display())))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn into_what_is_there<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    // After the existing contents of a plain file: a stream that is redirected with >> keeps them.
    let mut output = BufWriter::new(open_for_reader(path, Duration::from_secs(10))?);
    let value = write(&mut output)?;
    output.flush()?;
    Ok(value)
}

/// Opens an existing file for writing. A pipe without a reader would block for ever, so a reader has this long to
/// arrive.
fn open_for_reader(path: &Path, patience: Duration) -> io::Result<fs::File> {
    let is_pipe = fs::metadata(path)?.file_type().is_fifo();
    let began = Instant::now();
    loop {
        let opened = OpenOptions::new().append(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
        match opened {
            Ok(file) => {
                // Once a reader is there, it may take its time.
                let flags = rustix::fs::fcntl_getfl(&file)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                return Ok(file);
            }
            // Devices without a driver and sockets are refused in the same way, and no reader will arrive.
            Err(error) if is_pipe && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                if began.elapsed() >= patience {
                    let waited = format!("it is a pipe that nobody has read for {} s", patience.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, waited));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    }
}

fn beside_it_first<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    // Only its owner can read a temporary file; this one should be readable like other files.
    let permissions = Permissions::from_mode(0o666);
    let folder = folder_of(path);
    // The error of `tempfile` quotes a name that nobody gave.
    let refused = |error: io::Error| {
        let cause = error.get_ref().and_then(|quoted| quoted.source());
        let reason = cause.map_or_else(|| error.kind().to_string(), ToString::to_string);
        io::Error::new(error.kind(), format!("no file can be made in the folder {}: {reason}", folder.display()))
    };
    let file = tempfile::Builder::new().prefix(".unhang-").permissions(permissions).tempfile_in(folder);
    let mut file = file.map_err(refused)?;
    let value = {
        let mut output = BufWriter::new(file.as_file_mut());
        let value = write(&mut output)?;
        output.flush()?;
        value
    };
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for_without_end() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let error = open_for_reader(&pipe, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write_whole(&pipe, |file| file.write_all(b"all of it")).unwrap();
        assert_eq!(reader.join().unwrap(), "all of it");
        // Opened for writing, a socket looks like a pipe that nobody reads.
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = open_for_reader(&socket, Duration::from_secs(600)).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn there_is_the_whole_of_it_or_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_whole(&path, |file| file.write_all(b"one")).unwrap();
        let failed = write_whole(&path, |file| {
            file.write_all(b"half")?;
            Err::<(), _>(io::Error::other("the disk is full"))
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("the disk is full"));
        assert_eq!((fs::read(&path).unwrap().as_slice(), names(folder.path()).len()), (b"one".as_slice(), 1));
    }

    #[test]
    fn links_are_replaced_and_their_targets_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("link"), folder.path().join("target"));
        fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        write_whole(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn streams_of_this_process_are_written_to_and_keep_their_names() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        let mut stream = fs::File::create(&target).unwrap();
        stream.write_all(b"before ").unwrap();
        let name = std::path::PathBuf::from(format!("/dev/fd/{}", stream.as_raw_fd()));
        std::os::unix::fs::symlink(&name, &link).unwrap();
        write_whole(&name, |file| file.write_all(b"one ")).unwrap();
        write_whole(&link, |file| file.write_all(b"two")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "before one two");
        assert_eq!(fs::read_link(&link).unwrap(), name);
        let is_of_the_system = |path: &str| belongs_to_the_system(Path::new(path));
        assert!(is_of_the_system("/dev/stdout") && is_of_the_system("/dev/null"));
        assert!(!is_of_the_system("/dev/shm/report.html"), "a folder for files of anybody's");
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read(path).unwrap()
        });
        write_whole(&path, |file| file.write_all(b"through")).unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert_eq!(names(folder.path()), ["pipe"]);
        let error = write_whole(folder.path(), |file| file.write_all(b"")).unwrap_err();
        assert!(format!("{error:#}").contains("it is a folder"), "{error:#}");
    }
}
