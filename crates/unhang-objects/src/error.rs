//! What can go wrong with a container.

use std::io;

use thiserror::Error;
use unhang_guard::OverBudget;

/// Why a container could not be read completely.
#[derive(Debug, Error)]
pub enum ObjectsError {
    /// The operating system refused.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is nothing that holds GPU code.
    #[error("not a code object, bundle, shared library, kernel database or zip archive (it starts with {start})")]
    Unrecognised {
        /// The first bytes, in hexadecimal.
        start: String,
    },
    /// It contradicts itself.
    #[error("the {container} is damaged: {what}")]
    Damaged {
        /// What kind of container.
        container: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// It claims more than is reasonable.
    #[error("the {container} claims {claimed} bytes for {what}; more than {limit} are not read")]
    TooLarge {
        /// What kind of container.
        container: &'static str,
        /// For what.
        what: &'static str,
        /// How much.
        claimed: u64,
        /// The limit.
        limit: u64,
    },
    /// A feature that is not supported.
    #[error("the {container} uses {what}, which is not supported")]
    Unsupported {
        /// What kind of container.
        container: &'static str,
        /// What it uses.
        what: String,
    },
    /// An error of SQLite.
    #[error("the kernel database cannot be read: {0}")]
    Database(#[from] rusqlite::Error),
}

impl ObjectsError {
    pub(crate) fn unrecognised(start: &[u8]) -> ObjectsError {
        let start = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        ObjectsError::Unrecognised { start: if start.is_empty() { "nothing: it is empty".into() } else { start } }
    }

    /// Refuses what claims more bytes than a limit.
    pub(crate) fn check_size(
        container: &'static str,
        what: &'static str,
        claimed: u64,
        limit: u64,
    ) -> Result<(), ObjectsError> {
        if claimed > limit { Err(ObjectsError::TooLarge { container, what, claimed, limit }) } else { Ok(()) }
    }

    pub(crate) fn over_budget(container: &'static str) -> impl Fn(OverBudget) -> ObjectsError {
        let what = "all that is packed in it";
        move |OverBudget { claimed, limit }| ObjectsError::TooLarge { container, what, claimed, limit }
    }

    pub(crate) fn damaged(container: &'static str, what: impl Into<String>) -> ObjectsError {
        ObjectsError::Damaged { container, what: what.into() }
    }
}
