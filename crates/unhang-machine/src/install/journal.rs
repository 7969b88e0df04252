//! The journal: what an installation changes, on disk before the first change.
//!
//! It is in a folder of ours (`/etc/unhang`, `~/.config/unhang`) that may have to be made first, with the folders
//! above it. An interruption there must leave nothing nameless behind. So the chain of folders is built with the
//! journal in it under our own name (`.unhang-new`), and renamed into place in one step. It is taken out the same way
//! (`.unhang-old`).

use std::path::{Path, PathBuf};

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::site::{InstallError, Site};
use super::tree::{SCRATCH, TreeError};

/// The name of the journal in the state folder.
const NAME: &str = "journal.json";
/// Folders on their way in and out.
const ON_THE_WAY: [&str; 2] = [".unhang-new", ".unhang-old"];

/// What a content is known by.
pub(super) fn digest(content: &[u8]) -> String {
    Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How far things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// The changes are being made.
    Installing,
    /// All changes are made.
    Installed,
    /// The changes are being removed.
    Removing,
}

/// One change. Paths are below the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum JournalStep {
    /// A new folder.
    MakeFolder { path: PathBuf },
    /// A file that did not exist.
    Create { path: PathBuf, digest: String },
    /// A file whose text is changed; the old file is kept.
    Edit { path: PathBuf, backup: PathBuf, before: String, after: String },
    /// A file that is moved into the backup folder.
    MoveAside { path: PathBuf, backup: PathBuf },
}

/// The journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    /// The version of this format.
    pub version: u32,
    /// How far things are.
    pub phase: Phase,
    /// The profile's name.
    pub profile: String,
    /// How many of the state folder's components existed before.
    pub existed: usize,
    /// The changes, in order.
    pub steps: Vec<JournalStep>,
}

impl Journal {
    fn path(site: &Site) -> PathBuf {
        site.state_path().join(NAME)
    }

    /// Reads the journal, if there is one.
    pub(super) fn read(site: &Site) -> Result<Option<Journal>, InstallError> {
        let path = Journal::path(site);
        if !site.tree.exists(&path)? {
            return Ok(None);
        }
        let bad = |reason: String| InstallError::BadJournal { path: site.shown(&path), reason };
        let journal: Journal =
            serde_json::from_slice(&site.tree.read(&path)?).map_err(|error| bad(error.to_string()))?;
        if journal.version != 1 {
            return Err(bad(format!("version {} is not known to this unhang", journal.version)));
        }
        Ok(Some(journal))
    }

    /// Writes a journal to disk; from here on every interruption can be undone.
    pub(super) fn begin(site: &Site, profile: &str, steps: Vec<JournalStep>) -> Result<Journal, InstallError> {
        let parts = site.state();
        let mut existed = 0;
        while existed < parts.len() && site.tree.exists(&joined(&parts[..=existed]))? {
            existed += 1;
        }
        let journal = Journal { version: 1, phase: Phase::Installing, profile: profile.to_owned(), existed, steps };
        if existed == parts.len() {
            site.tree.create(&Journal::path(site), &journal.bytes(), 0o644, None)?;
            return Ok(journal);
        }
        let mut new = PathBuf::from(ON_THE_WAY[0]);
        site.tree.make_folder(&new)?;
        let first = new.join(parts[existed]);
        for part in &parts[existed..] {
            new.push(part);
            site.tree.make_folder(&new)?;
        }
        site.tree.create(&new.join(NAME), &journal.bytes(), 0o644, None)?;
        site.tree.rename_new(&first, &joined(&parts[..=existed]))?;
        site.tree.remove_folder_if_empty(Path::new(ON_THE_WAY[0]))?;
        Ok(journal)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("plain data");
        bytes.push(b'\n');
        bytes
    }

    /// Rewrites the journal atomically.
    pub(super) fn write(&self, site: &Site) -> Result<(), TreeError> {
        site.tree.replace(&Journal::path(site), &self.bytes())
    }

    /// Ends an uninstallation: removes the journal, and the folders that were made for it.
    pub(super) fn end(&self, site: &Site) -> Result<(), InstallError> {
        let parts = site.state();
        site.tree.remove_scratch(&Journal::path(site))?;
        // From the top: the first folder that we made and that holds only the path to the journal.
        for top in self.existed..parts.len() {
            let only_ours = (top..parts.len()).try_fold(true, |only, depth| {
                let inside = if depth + 1 < parts.len() { parts[depth + 1] } else { NAME };
                let names = site.tree.entries(&joined(&parts[..=depth]))?;
                Ok::<bool, TreeError>(only && names.iter().all(|name| name == inside))
            })?;
            if only_ours {
                clean_up(site)?;
                site.tree.make_folder(Path::new(ON_THE_WAY[1]))?;
                let target = Path::new(ON_THE_WAY[1]).join(parts[top]);
                site.tree.rename_new(&joined(&parts[..=top]), &target)?;
                clean_up(site)?;
                return Ok(());
            }
        }
        site.tree.remove_file(&Journal::path(site))?;
        clean_up(site)
    }
}

fn joined(parts: &[&str]) -> PathBuf {
    parts.iter().collect()
}

/// Removes folders that an interrupted call was creating or removing. They hold at most a journal.
pub(super) fn clean_up(site: &Site) -> Result<(), InstallError> {
    // A journal that was being written into a folder that existed before.
    site.tree.remove_scratch(&Journal::path(site))?;
    for way in ON_THE_WAY {
        let parts = site.state();
        for start in (0..parts.len()).rev() {
            let below = Path::new(way).join(joined(&parts[start..]));
            for name in [&[NAME], &SCRATCH[..]].concat() {
                let file = below.join(name);
                if site.tree.is_own_file(&file)? {
                    site.tree.remove_file(&file)?;
                }
            }
            for depth in (start..parts.len()).rev() {
                site.tree.remove_folder_if_empty(&Path::new(way).join(joined(&parts[start..=depth])))?;
            }
        }
        site.tree.remove_folder_if_empty(Path::new(way))?;
    }
    Ok(())
}
