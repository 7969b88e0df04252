//! Where unhang keeps what it learns.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder for unhang's data: `$UNHANG_HOME`, or `unhang` in the XDG data folder. `None` if there is neither, as
/// for a service without a home.
pub fn home() -> Option<PathBuf> {
    choose(|name| std::env::var_os(name))
}

fn choose(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(own) = folder("UNHANG_HOME") {
        return Some(own);
    }
    // The XDG specification says that a relative path is invalid and must be ignored.
    let data = folder("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data.or_else(|| folder("HOME").map(|home| home.join(Path::new(".local/share"))))?;
    Some(data.join("unhang"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], expected: Option<&str>) {
        let found = choose(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()));
        assert_eq!(found, expected.map(PathBuf::from), "{variables:?}");
    }

    #[test]
    fn order_of_variables() {
        check(&[("UNHANG_HOME", "/u"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")], Some("/u"));
        check(&[("UNHANG_HOME", ""), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")], Some("/x/unhang"));
        check(&[("XDG_DATA_HOME", "relative"), ("HOME", "/h")], Some("/h/.local/share/unhang"));
        check(&[("HOME", "/h")], Some("/h/.local/share/unhang"));
        check(&[], None);
    }
}
