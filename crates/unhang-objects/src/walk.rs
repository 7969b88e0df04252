//! Walks through files and folders to the code objects in them.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use unhang_guard::Budget;
use unhang_guard::input::open_plain;

use crate::bundle::Entry;
use crate::{ObjectsError, bundle, database, host, zip};

/// What a walk encounters.
#[derive(Debug)]
pub enum WalkEvent<'a> {
    /// A file that can hold GPU code. The next events are about its contents.
    File {
        /// Its path; a member of an archive is named `archive!member`.
        path: &'a str,
    },
    /// A code object, or something that claims to be one.
    Object {
        /// The target that the container names, or empty.
        target: &'a str,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Code for a target outside the gfx10 family; not read.
    OtherTarget {
        /// The target.
        target: &'a str,
    },
    /// The file could not be read completely.
    Unreadable {
        /// Its path.
        path: &'a str,
        /// Why.
        error: ObjectsError,
    },
}

/// Receives each event.
pub(crate) type Sink<'s> = dyn FnMut(WalkEvent<'_>) + 's;

/// Goes through a file or a folder.
///
/// Skips files of a folder and members of an archive that hold no GPU code. If the named file itself holds none, that
/// is an error.
pub fn walk(path: &Path, sink: &mut Sink<'_>) -> Result<(), ObjectsError> {
    if !fs::metadata(path)?.is_dir() {
        return visit_top(path, &path.display().to_string(), sink);
    }
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let listed = fs::read_dir(&folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        let mut entries: Vec<PathBuf> = match listed {
            Ok(entries) => entries,
            Err(error) if folder == path => return Err(error.into()),
            // The rest is still visited.
            Err(error) => {
                sink(WalkEvent::Unreadable { path: &folder.display().to_string(), error: error.into() });
                continue;
            }
        };
        entries.sort();
        for entry in entries {
            // Links are not followed: they could lead in circles.
            let kind = match fs::symlink_metadata(&entry) {
                Ok(kind) => kind,
                Err(error) => {
                    sink(WalkEvent::Unreadable { path: &entry.display().to_string(), error: error.into() });
                    continue;
                }
            };
            if kind.is_dir() {
                folders.push(entry);
            } else if kind.is_file() {
                let name = entry.display().to_string();
                match visit_top(&entry, &name, sink) {
                    Ok(()) | Err(ObjectsError::Unrecognised { .. }) => {}
                    Err(error) => sink(WalkEvent::Unreadable { path: &name, error }),
                }
            }
        }
    }
    Ok(())
}

/// The file kinds that can hold GPU code.
pub(crate) enum Container {
    CodeObject,
    Host,
    Bundles,
    Database,
    Archive,
}

pub(crate) fn recognise(start: &[u8]) -> Option<Container> {
    if start.starts_with(b"\x7fELF") {
        let gpu = start.get(18..20) == Some(&unhang_isa::elf::MACHINE_AMDGPU.to_le_bytes());
        Some(if gpu { Container::CodeObject } else { Container::Host })
    } else if start.starts_with(bundle::MAGIC) || start.starts_with(bundle::COMPRESSED_MAGIC) {
        Some(Container::Bundles)
    } else if start.starts_with(database::MAGIC) {
        Some(Container::Database)
    } else if start.starts_with(b"PK\x03\x04") {
        Some(Container::Archive)
    } else {
        None
    }
}

pub(crate) fn read_start(input: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    input.take(32).read_to_end(&mut start)?;
    Ok(start)
}

/// A file that is not part of another one.
fn visit_top(path: &Path, name: &str, sink: &mut Sink<'_>) -> Result<(), ObjectsError> {
    let length = fs::metadata(path)?.len();
    visit_file(path, name, &Budget::for_file(length), sink)
}

fn visit_file(path: &Path, name: &str, budget: &Budget, sink: &mut Sink<'_>) -> Result<(), ObjectsError> {
    let mut file = open_plain(path)?;
    let start = read_start(&mut file)?;
    let container = recognise(&start).ok_or_else(|| ObjectsError::unrecognised(&start))?;
    file.seek(SeekFrom::Start(0))?;
    if let Container::Archive = container {
        return visit_archive(&mut file, name, budget, sink);
    }
    sink(WalkEvent::File { path: name });
    match container {
        Container::CodeObject => {
            let bytes = bundle::read_whole(&mut file, "code object")?;
            sink(WalkEvent::Object { target: "", bytes: &bytes });
        }
        Container::Host => host::read(&mut file, budget, &mut |found| entry(found, sink))?,
        Container::Bundles => {
            let end = file.metadata()?.len();
            host::read_bundles(&mut file, 0, end, budget, &mut |found| entry(found, sink))?;
        }
        Container::Database => database::read(path, budget, &mut |kernel, blob| match blob {
            Ok(blob) => blob_event(&blob, budget, sink),
            Err(error) => sink(WalkEvent::Unreadable { path: &format!("{name}!{kernel}"), error }),
        })?,
        Container::Archive => {}
    }
    Ok(())
}

/// The blob of a database row: a code object, or a bundle of them.
fn blob_event(blob: &[u8], budget: &Budget, sink: &mut Sink<'_>) {
    if matches!(recognise(blob), Some(Container::Bundles)) {
        let mut cursor = io::Cursor::new(blob);
        let result = host::read_bundles(&mut cursor, 0, blob.len() as u64, budget, &mut |found| entry(found, sink));
        if let Err(error) = result {
            sink(WalkEvent::Unreadable { path: "a kernel of the database", error });
        }
    } else {
        sink(WalkEvent::Object { target: "", bytes: blob });
    }
}

/// The target in the name of a bundle's entry.
pub(crate) fn target_of(name: &str) -> &str {
    name.rfind("gfx").map_or(name, |at| &name[at..])
}

/// A bundle's entry. Names look like `hipv4-amdgcn-amd-amdhsa--gfx1010:xnack-`.
fn entry(Entry { name, bytes, .. }: Entry<'_>, sink: &mut Sink<'_>) {
    let target = target_of(name);
    match bytes {
        Some(bytes) => sink(WalkEvent::Object { target, bytes }),
        None if name.starts_with("host") => {}
        None => sink(WalkEvent::OtherTarget { target }),
    }
}

fn visit_archive(file: &mut File, name: &str, budget: &Budget, sink: &mut Sink<'_>) -> Result<(), ObjectsError> {
    for member in zip::members(file)? {
        if member.size == 0 {
            continue;
        }
        let path = format!("{name}!{}", member.name);
        if let Err(error) = visit_member(file, &member, &path, budget, sink) {
            sink(WalkEvent::Unreadable { path: &path, error });
        }
    }
    Ok(())
}

/// Members are unpacked to a temporary file: the tables of a shared library are at its end, and a library may be larger
/// than memory.
fn visit_member(
    file: &mut File,
    member: &zip::Member,
    path: &str,
    budget: &Budget,
    sink: &mut Sink<'_>,
) -> Result<(), ObjectsError> {
    let mut input = BufReader::new(zip::open(file, member)?);
    let start = read_start(&mut input)?;
    match recognise(&start) {
        // An archive within an archive is somebody's data.
        None | Some(Container::Archive) => return Ok(()),
        Some(_) => {}
    }
    budget.spend(member.size).map_err(ObjectsError::over_budget("zip archive"))?;
    let mut spool = tempfile::NamedTempFile::new()?;
    let copied = io::copy(&mut start.as_slice().chain(input), &mut spool)?;
    if copied < member.size {
        return Err(ObjectsError::damaged("zip archive", "a member ends early"));
    }
    visit_file(spool.path(), path, budget, sink)
}
