//! Copies containers with changed code objects.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use unhang_guard::Budget;
use unhang_guard::input::open_plain;

use crate::bundle::{read_whole, rewrite_plain};
use crate::walk::{Container, read_start, recognise, target_of};
use crate::{ObjectsError, database, host};

/// What may replace a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A code object of any size.
    Any,
    /// A code object of the same size.
    Same,
    /// Nothing: it is compressed inside a file whose layout cannot change.
    Fixed,
}

/// A code object in a container.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The target that the container names, or empty.
    pub target: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What may replace it.
    pub size: Size,
}

/// Takes each code object and returns its replacement, or `None` to keep it.
pub(crate) type Change<'c> = dyn FnMut(Found<'_>) -> Option<Vec<u8>> + 'c;

/// Writes a copy of a container with its gfx10 code objects changed.
///
/// Code objects, bundles and kernel databases get a new layout. In shared libraries, code objects are changed in place,
/// so a replacement must have the same length; compressed ones cannot be changed there. Archives and folders are not
/// rewritten. The copy appears under its name once it is complete, or not at all. Returns, in words, what could not be
/// read; the copy holds it unchanged.
pub fn rewrite(input: &Path, output: &Path, change: &mut Change<'_>) -> Result<Vec<String>, ObjectsError> {
    let mut file = open_plain(input)?;
    let metadata = file.metadata()?;
    let budget = Budget::for_file(metadata.len());
    let mut unreadable = Vec::new();
    let start = read_start(&mut file)?;
    let container = recognise(&start).ok_or_else(|| ObjectsError::unrecognised(&start))?;
    file.seek(SeekFrom::Start(0))?;
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut copy = tempfile::Builder::new().prefix(".unhang-").tempfile_in(folder)?;
    match container {
        Container::CodeObject => {
            let bytes = read_whole(&mut file, "code object")?;
            let changed = change(Found { target: "", bytes: &bytes, size: Size::Any });
            copy.write_all(changed.as_deref().unwrap_or(&bytes))?;
        }
        Container::Bundles => copy.write_all(&blob(&read_whole(&mut file, "bundle")?, &budget, change)?)?,
        Container::Host => {
            io::copy(&mut file, &mut copy)?;
            let mut changes: Vec<(u64, Vec<u8>)> = Vec::new();
            host::read(&mut file, &budget, &mut |entry| {
                let Some(bytes) = entry.bytes else { return };
                let size = if entry.place.is_some() { Size::Same } else { Size::Fixed };
                let changed = change(Found { target: target_of(entry.name), bytes, size });
                if let (Some(place), Some(changed)) = (entry.place, changed)
                    && changed.len() == bytes.len()
                {
                    changes.push((place, changed));
                }
            })?;
            for (place, changed) in changes {
                copy.seek(SeekFrom::Start(place))?;
                copy.write_all(&changed)?;
            }
        }
        Container::Database => {
            // SQLite creates the file itself, and keeps its journal next to it meanwhile.
            let spool = tempfile::tempdir_in(folder)?;
            let path = spool.path().join("copy");
            unreadable = database::rewrite(input, &path, &budget, &mut |old| match recognise(old) {
                Some(Container::Bundles) => Ok(Some(blob(old, &budget, change)?).filter(|new| new != old)),
                _ => Ok(change(Found { target: "", bytes: old, size: Size::Any })),
            })?;
            io::copy(&mut File::open(&path)?, &mut copy)?;
        }
        Container::Archive => {
            let what = "members that would have to be packed anew".into();
            return Err(ObjectsError::Unsupported { container: "archive", what });
        }
    }
    let made = copy.as_file().metadata()?;
    copy.as_file().set_permissions(Permissions::from_mode(mode_of_copy(&metadata, &made)))?;
    copy.as_file().sync_all()?;
    copy.persist(output).map_err(|error| error.error)?;
    Ok(unreadable)
}

/// The permissions of the copy: never a set-id bit, and the original's group rights only if the owner and the group are
/// the same. Otherwise the group gets what everybody had, and only the owner may write.
fn mode_of_copy(original: &Metadata, copy: &Metadata) -> u32 {
    let mode = original.mode() & 0o777;
    if (original.uid(), original.gid()) == (copy.uid(), copy.gid()) {
        return mode;
    }
    let everybody = mode & 0o005;
    (mode & 0o700) | 0o600 | everybody << 3 | everybody
}

/// Turns a bundle, plain or compressed, into a plain one with its code objects changed.
fn blob(bytes: &[u8], budget: &Budget, change: &mut Change<'_>) -> Result<Vec<u8>, ObjectsError> {
    let plain = crate::bundle::unpack(bytes, budget)?;
    let mut changed = false;
    let rewritten = rewrite_plain(&plain, &mut |name, bytes| {
        let new = change(Found { target: target_of(name), bytes, size: Size::Any });
        changed |= new.is_some();
        new
    })?;
    Ok(if changed { rewritten } else { bytes.to_vec() })
}
