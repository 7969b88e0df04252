//! Files that the user names, written so that there is the whole of it or the old one.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};

/// Writes a file beside its place first, under a name that nobody can guess, and then puts it there. A link in that place
/// is replaced and not followed; into a device or a pipe it is written as it comes.
pub fn write_whole<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> anyhow::Result<T> {
    let context = || format!("cannot write {}", path.display());
    if path.file_name().is_none() {
        bail!("{} names no file", path.display());
    }
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(anyhow!("hint: name a file in it").context("it is a folder")),
        // Putting a file in the place of /dev/null would break the system that it is on.
        Ok(there) if !there.is_file() => into_what_is_there(path, write).map_err(Into::into),
        _ => beside_it_first(path, write).map_err(Into::into),
    }
    .with_context(context)
}

fn into_what_is_there<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let mut output = BufWriter::new(OpenOptions::new().write(true).open(path)?);
    let value = write(&mut output)?;
    output.flush()?;
    Ok(value)
}

fn beside_it_first<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A temporary file is its owner's alone; this one is to be read by whoever may read other files.
    let permissions = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".unhang-").permissions(permissions).tempfile_in(folder)?;
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
