//! One target of an installation: a system or a home.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::tree::{Tree, TreeError};
use crate::system::System;

/// Whose environment it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The home folder of one user.
    User,
    /// `/etc`, for everybody.
    System,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file could not be reached or changed.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// There is no home folder to install into.
    #[error("HOME is not set to an absolute path, so there is no place for `--user`; set it, or use `--system`")]
    NoHome,
    /// The root or home folder could not be opened.
    #[error("cannot open {}: {reason}", path.display())]
    NoBase {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The journal cannot be understood.
    #[error("{} is damaged ({reason}); it names what an earlier `unhang env install` changed: repair or remove it by hand", path.display())]
    BadJournal {
        /// The journal.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// One place to install into.
pub(super) struct Site<'a> {
    pub(super) system: &'a System,
    pub(super) scope: Scope,
    /// The folder below which everything happens, as the machine sees it.
    pub(super) base: PathBuf,
    pub(super) tree: Tree,
}

impl<'a> Site<'a> {
    pub(super) fn open(system: &'a System, scope: Scope) -> Result<Site<'a>, InstallError> {
        let base = match scope {
            Scope::System => PathBuf::from("/"),
            // The path to the home folder may contain links (/home is one on some systems); below it none is followed.
            Scope::User => {
                let home = system.home().ok_or(InstallError::NoHome)?;
                system.resolve_on_machine(&home).unwrap_or(home)
            }
        };
        let failed = |reason: String| InstallError::NoBase { path: base.clone(), reason };
        let real = system.resolve(&base).map_err(|error| failed(error.to_string()))?;
        let tree = Tree::open(&real).map_err(|error| failed(error.to_string()))?;
        Ok(Site { system, scope, base, tree })
    }

    /// The folder for journal and backups, below the base.
    pub(super) fn state(&self) -> &'static [&'static str] {
        match self.scope {
            Scope::System => &["etc", "unhang"],
            Scope::User => &[".config", "unhang"],
        }
    }

    pub(super) fn state_path(&self) -> PathBuf {
        self.state().iter().collect()
    }

    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }
}
