//! The wheel that this program came from, which the doctor's commands install into other environments.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use unhang_guard::input::read_plain;
use unhang_machine::routes::WHEEL;

use super::run::shield::packages;

/// What pip writes next to a package that was installed from a file or an address (`direct_url.json`).
#[derive(Deserialize)]
struct Origin {
    url: String,
}

/// The wheel from which this program was installed, or its checkout's wheels, in shell syntax.
pub(super) fn own_wheel() -> Option<String> {
    wheel_of(&std::env::current_exe().ok()?)
}

fn wheel_of(program: &Path) -> Option<String> {
    let of_package = packages(program.parent()?).iter().find_map(|package| origin_of(package));
    of_package.or_else(|| of_checkout(program)).filter(|wheel| needs_no_quotes(wheel))
}

/// The origin of a package, if that is a wheel that can be installed again.
fn origin_of(package: &Path) -> Option<String> {
    let is_of_unhang = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("unhang-") && name.ends_with(".dist-info")
    };
    let neighbours = std::fs::read_dir(package.parent()?).ok()?.flatten().map(|entry| entry.path());
    let description = neighbours.filter(is_of_unhang).find_map(|folder| {
        const LARGEST: u64 = 1 << 16;
        read_plain(&folder.join("direct_url.json"), LARGEST).ok()
    })?;
    let origin: Origin = serde_json::from_slice(&description).ok()?;
    let wheel = match origin.url.strip_prefix("file://") {
        Some(path) if Path::new(path).is_file() => path,
        None if origin.url.starts_with("https://") => origin.url.as_str(),
        _ => return None,
    };
    wheel.ends_with(".whl").then(|| wheel.to_owned())
}

/// The wheels of the checkout in whose `target` a program was built.
fn of_checkout(program: &Path) -> Option<String> {
    let root = program.ancestors().find(|folder| folder.ends_with("target"))?.parent()?;
    root.join("tools/wheel").is_file().then(|| Some(root.join("dist").join(WHEEL).to_str()?.to_owned()))?
}

/// Whether a shell takes a text as one word, except for the star.
fn needs_no_quotes(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:%*".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in an environment, whose package came from there.
    fn installed_from(prefix: &Path, url: &str) -> PathBuf {
        let packages = prefix.join("lib/python3.12/site-packages");
        let description = packages.join("unhang-0.1.0.dist-info/direct_url.json");
        std::fs::create_dir_all(description.parent().unwrap()).unwrap();
        std::fs::create_dir_all(packages.join("unhang")).unwrap();
        std::fs::write(description, format!(r#"{{"archive_info": {{}}, "url": "{url}"}}"#)).unwrap();
        prefix.join("bin/unhang")
    }

    #[test]
    fn the_wheel_is_the_one_that_pip_took_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("unhang-0.1.0-cp39-abi3-manylinux_2_28_x86_64.whl");
        std::fs::write(&wheel, "").unwrap();
        let program = installed_from(&folder.path().join("venv"), &format!("file://{}", wheel.display()));
        assert_eq!(wheel_of(&program).as_deref(), wheel.to_str());
        std::fs::remove_file(&wheel).unwrap();
        assert_eq!(wheel_of(&program), None, "it was moved or deleted");
        let address = "https://example.org/releases/unhang-0.1.0-cp39-abi3-manylinux_2_28_x86_64.whl";
        assert_eq!(wheel_of(&installed_from(&folder.path().join("other"), address)).as_deref(), Some(address));
        let hostile = "https://example.org/$(id)/unhang.whl";
        assert_eq!(wheel_of(&installed_from(&folder.path().join("hostile"), hostile)), None);
    }

    #[test]
    fn a_program_of_a_checkout_names_its_wheels() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("target/release/unhang");
        assert_eq!(wheel_of(&program), None);
        std::fs::create_dir(folder.path().join("tools")).unwrap();
        std::fs::write(folder.path().join("tools/wheel"), "").unwrap();
        assert_eq!(wheel_of(&program), Some(format!("{}/dist/unhang-*.whl", folder.path().display())));
    }
}
