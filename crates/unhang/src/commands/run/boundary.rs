//! Where the library at MIOpen's boundary is, and the variables that make the loader load it into programs.

use std::path::Path;

use super::environment::Decision;
use super::shield;

const LIBRARY: &str = "libunhang_miopen.so";
/// The audit library: leads the loader to the first one, however MIOpen is loaded.
const AUDIT: &str = "libunhang_miopen_audit.so";
const ROUTE: &str = "UNHANG_MIOPEN_ROUTE";

/// The variables that give programs the library. None if it is missing, or if `UNHANG_MIOPEN=0` declines it. It is
/// preloaded. The loader is also audited if requested, and if the library cannot be preloaded.
pub(super) fn decide(get: impl Fn(&str) -> Option<String>) -> Vec<Decision> {
    let named = get("UNHANG_MIOPEN").filter(|it| !it.is_empty());
    if named.as_deref() == Some("0") {
        return Vec::new();
    }
    let program = std::env::current_exe().ok();
    let Some(library) = shield::find(LIBRARY, named.as_deref(), program.as_deref()) else { return Vec::new() };
    let audit = library.with_file_name(AUDIT);
    let asked = get(ROUTE).is_some_and(|route| route == "audit");
    let listed = |list: &str| get(list).unwrap_or_default();
    let preload = with(&listed("LD_PRELOAD"), &library, &[' ', ':']);
    let is_blocked = preload == Listed::CannotBe;
    let mut decisions = Vec::new();
    if let Listed::As(value) = preload {
        let reason = "unhang plans the convolutions that any framework asks of MIOpen";
        decisions.push(Decision::set("LD_PRELOAD", value, reason));
    }
    if (asked || is_blocked)
        && (named.is_some() && audit.is_file() || shield::is_trusted(&audit, program.as_deref()))
        && let Listed::As(value) = with(&listed("LD_AUDIT"), &audit, &[':'])
    {
        let reason = if asked {
            "also for programs that load MIOpen with RTLD_DEEPBIND or in a separate namespace; asked for"
        } else {
            "unhang plans the convolutions that programs ask of MIOpen; LD_PRELOAD cannot hold a path with a space"
        };
        decisions.push(Decision::set("LD_AUDIT", value, reason));
        if named.is_none()
            && let Some(path) = library.to_str()
        {
            decisions.push(Decision::set("UNHANG_MIOPEN", path.to_owned(), "the library that the loader is led to"));
        }
    }
    decisions
}

/// A list of libraries with another one at its end.
#[derive(Debug, PartialEq)]
enum Listed {
    As(String),
    Already,
    /// It cannot be listed, because the loader has no quoting.
    CannotBe,
}

fn with(present: &str, library: &Path, separators: &[char]) -> Listed {
    let Some(path) = library.to_str().filter(|path| !path.contains(separators)) else { return Listed::CannotBe };
    let file = library.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    if present.split(separators).any(|it| it.rsplit('/').next() == Some(file)) {
        return Listed::Already;
    }
    Listed::As(if present.is_empty() { path.to_owned() } else { format!("{present}:{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRELOAD: &[char] = &[' ', ':'];

    #[test]
    fn what_is_preloaded_already_stays_before_it() {
        let library = Path::new("/opt/unhang/libunhang_miopen.so");
        let listed = |text: &str| Listed::As(text.to_owned());
        assert_eq!(with("", library, PRELOAD), listed("/opt/unhang/libunhang_miopen.so"));
        assert_eq!(with("/x/libother.so", library, PRELOAD), listed("/x/libother.so:/opt/unhang/libunhang_miopen.so"));
        assert_eq!(with("/y/libunhang_miopen.so", library, PRELOAD), Listed::Already);
        assert_eq!(with("", Path::new("/a b/libunhang_miopen.so"), PRELOAD), Listed::CannotBe);
        assert_eq!(with("", Path::new("/a b/l.so"), &[':']), listed("/a b/l.so"));
    }

    /// The variables that are set for a library in a folder with that name.
    fn set(folder: &str, route: &str) -> Vec<&'static str> {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        for name in [LIBRARY, AUDIT] {
            std::fs::write(folder.join(name), b"\x7fELF\x02").unwrap();
        }
        let library = folder.join(LIBRARY).display().to_string();
        let get = |name: &str| match name {
            "UNHANG_MIOPEN" => Some(library.clone()),
            ROUTE => Some(route.to_owned()),
            _ => None,
        };
        decide(get).iter().map(|it| it.name).collect()
    }

    #[test]
    fn the_loader_is_audited_where_that_is_asked_for_and_where_nothing_can_be_preloaded() {
        assert_eq!(set("plain", ""), ["LD_PRELOAD"]);
        assert_eq!(set("plain", "preload"), ["LD_PRELOAD"]);
        assert_eq!(set("plain", "audit"), ["LD_PRELOAD", "LD_AUDIT"]);
        assert_eq!(set("with space", ""), ["LD_AUDIT"]);
    }

    #[test]
    fn it_can_be_declined_and_named() {
        let get = |value: &'static str| move |name: &str| (name == "UNHANG_MIOPEN").then(|| value.to_owned());
        assert_eq!(decide(get("0")), []);
        assert_eq!(decide(get("/nowhere/libunhang_miopen.so")), [], "a file that is not there is not preloaded");
    }
}
