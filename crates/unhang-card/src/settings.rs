//! What `unhang card run` asked for, read once when the library is loaded.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// What happens if the emulated chip might hang or compute nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hazards {
    /// The program gets the driver's answer to a hang: a reset event.
    Fault,
    /// The packet never ends.
    Hang,
    /// Nothing: an ideal chip.
    Ignore,
}

/// The settings of a run.
#[derive(Debug)]
pub(crate) struct CardSettings {
    /// The machine folder.
    pub root: PathBuf,
    /// What hazards do.
    pub hazards: Hazards,
    /// The folder of the run, where counters and the journal are.
    pub run: Option<PathBuf>,
    /// Whether every dispatch and copy is written to the journal.
    pub detailed: bool,
    /// Whether kernels stop at races between waves of a workgroup.
    pub races: bool,
}

static SETTINGS: OnceLock<Option<CardSettings>> = OnceLock::new();

/// The settings; `None` if no card was asked for, and before the library's constructor ran.
pub(crate) fn settings() -> Option<&'static CardSettings> {
    SETTINGS.get()?.as_ref()
}

/// Reads the variables. Called once, before the program's own code.
pub(crate) fn read() {
    SETTINGS.get_or_init(|| {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = PathBuf::from(variable("UNHANG_CARD_ROOT")?);
        // A relative folder would follow the program's working directory.
        if !root.is_absolute() || root.as_os_str().as_bytes().len() > 2048 {
            return None;
        }
        let hazards = match variable("UNHANG_CARD_HAZARDS").as_deref().and_then(|value| value.to_str()) {
            Some("hang") => Hazards::Hang,
            Some("ignore") => Hazards::Ignore,
            _ => Hazards::Fault,
        };
        Some(CardSettings {
            root,
            hazards,
            run: variable("UNHANG_CARD_RUN").map(PathBuf::from),
            detailed: variable("UNHANG_CARD_DETAIL").is_some(),
            races: variable("UNHANG_CARD_RACES").is_some_and(|value| value == "1"),
        })
    });
}
