//! Where the library at MIOpen's boundary is, and the variable by which the loader takes it into programs.

use std::path::Path;

use super::environment::{Action, Decision};
use super::shield;

const LIBRARY: &str = "libunhang_miopen.so";

/// What to set so that programs have it; nothing where it is not there, where it is in the list, and where `UNHANG_MIOPEN=0`
/// declines.
pub fn decide(get: impl Fn(&str) -> Option<String>) -> Option<Decision> {
    let named = get("UNHANG_MIOPEN").filter(|it| !it.is_empty());
    if named.as_deref() == Some("0") {
        return None;
    }
    let program = std::env::current_exe().ok();
    let library = shield::find(LIBRARY, named.as_deref(), program.as_deref())?;
    Some(Decision {
        name: "LD_PRELOAD",
        action: Action::Set,
        value: Some(with(&get("LD_PRELOAD").unwrap_or_default(), &library)?),
        wanted: None,
        reason: "convolutions that programs ask of MIOpen are planned, whatever framework asks".to_owned(),
    })
}

/// The list with the library at its end. None if it is in it, or its path cannot be: the loader has no way to quote.
fn with(present: &str, library: &Path) -> Option<String> {
    let path = library.to_str().filter(|path| !path.contains([' ', ':']))?;
    if present.contains(LIBRARY) {
        return None;
    }
    Some(if present.is_empty() { path.to_owned() } else { format!("{present}:{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_preloaded_already_stays_before_it() {
        let library = Path::new("/opt/unhang/libunhang_miopen.so");
        assert_eq!(with("", library).unwrap(), "/opt/unhang/libunhang_miopen.so");
        assert_eq!(with("/x/libother.so", library).unwrap(), "/x/libother.so:/opt/unhang/libunhang_miopen.so");
        assert_eq!(with("/y/libunhang_miopen.so", library), None);
        assert_eq!(with("", Path::new("/a b/libunhang_miopen.so")), None);
    }

    #[test]
    fn it_can_be_declined_and_named() {
        let get = |value: &'static str| move |name: &str| (name == "UNHANG_MIOPEN").then(|| value.to_owned());
        assert_eq!(decide(get("0")), None);
        assert_eq!(decide(get("/nowhere/libunhang_miopen.so")), None, "a file that is not there is not preloaded");
    }
}
