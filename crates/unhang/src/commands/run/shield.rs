//! Where the shield is, and the variables that make AMD's runtime load it.
//!
//! The shield (`libunhang_shield.so`) repairs code objects as the runtime loads them. It is needed if the runtime takes
//! an RDNA1 card for another chip. MIOpen's own kernels are then compiled at run time for that other chip, and LLVM's
//! work-arounds are turned on for them as well.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use unhang_isa::WORK_AROUND_FEATURES;

use super::environment::Decision;

/// The library's name.
const LIBRARY: &str = "libunhang_shield.so";

/// The variables that load the shield and, if the card passes for another chip, compile kernels with the work-arounds.
/// No shield if it is missing, and neither if `UNHANG_SHIELD=0` declines. In native code the shield has little to
/// repair; there it checks whether queues make progress.
pub(crate) fn decide(is_spoofed: bool, get: impl Fn(&str) -> Option<String>) -> Vec<Decision> {
    let named = get("UNHANG_SHIELD").filter(|it| !it.is_empty());
    if named.as_deref() == Some("0") {
        return Vec::new();
    }
    let mut decisions = Vec::new();
    if is_spoofed && let Some(value) = with_work_arounds(&get("HIPRTC_COMPILE_OPTIONS_APPEND").unwrap_or_default()) {
        let reason = "MIOpen's HIP kernels get LLVM's work-arounds for the true chip (ROCm 6.0 and later)";
        decisions.push(Decision::set("HIPRTC_COMPILE_OPTIONS_APPEND", value, reason));
    }
    let program = std::env::current_exe().ok();
    let Some(shield) = find(LIBRARY, named.as_deref(), program.as_deref()) else { return decisions };
    let present = get("HSA_TOOLS_LIB").unwrap_or_default();
    if let Some(value) = with_tool(&present, &shield) {
        let reason = match is_spoofed {
            true => "the shield repairs code for another chip as it loads, and notices queues that stop",
            false => "the shield notices queues that stop, and repairs native code that breaks a rule",
        };
        decisions.push(Decision::set("HSA_TOOLS_LIB", value, reason));
    }
    if get("HSA_TOOLS_ROCPROFILER_V1_TOOLS").is_none() {
        let reason = "ROCm 6.1 and later read HSA_TOOLS_LIB only with it";
        decisions.push(Decision::set("HSA_TOOLS_ROCPROFILER_V1_TOOLS", "1".to_owned(), reason));
    }
    decisions
}

/// Our named library, or else the one next to the program, in its `../lib`, or in the Python package there.
pub(crate) fn find(library: &str, named: Option<&str>, program: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(PathBuf::from(named)).filter(|path| path.is_file() && can_be_loaded(path));
    }
    let folder = program?.parent()?;
    let mut places = vec![folder.to_owned()];
    places.extend(folder.parent().map(|parent| parent.join("lib")));
    places.extend(packages(folder));
    places.into_iter().map(|place| place.join(library)).find(|path| is_trusted(path, program) && can_be_loaded(path))
}

/// Whether a file next to the program may run with the user's rights. It and its folder must belong to us, to root or
/// to the program's owner. Nobody else may write them except the groups of these. A program in a shared folder has
/// neighbours.
pub(crate) fn is_trusted(path: &Path, program: Option<&Path>) -> bool {
    let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let of_program = program.and_then(|program| std::fs::metadata(program).ok()).map(|it| (it.uid(), it.gid()));
    let is_closed = |path: &Path| {
        let Ok(found) = std::fs::metadata(path) else { return false };
        let is_known = |id: u32, ours: u32, of_program: Option<u32>| id == 0 || id == ours || Some(id) == of_program;
        let group_is_known = is_known(found.gid(), us.1, of_program.map(|it| it.1));
        let may_be_written = found.mode() & if group_is_known { 0o002 } else { 0o022 } != 0;
        // In a sticky folder, only the owner can replace a file.
        let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        is_sticky || (is_known(found.uid(), us.0, of_program.map(|it| it.0)) && !may_be_written)
    };
    path.is_file() && is_closed(path) && path.parent().is_some_and(is_closed)
}

/// Whether the loader can open a library. Otherwise each program of the run would begin with a loader error.
fn can_be_loaded(library: &Path) -> bool {
    let mut start = [0; 5];
    let read = std::fs::File::open(library).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    // A 64-bit ELF file, like this program.
    read.is_ok() && start == *b"\x7fELF\x02"
}

/// Where the Python package may be that was installed with the program in this folder.
pub(crate) fn packages(folder: &Path) -> Vec<PathBuf> {
    let library = folder.parent().map(|parent| parent.join("lib"));
    let entries = library.and_then(|library| std::fs::read_dir(library).ok()).into_iter().flatten();
    let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pythons.sort();
    let is_python = |path: &PathBuf| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("python3"));
    pythons.into_iter().filter(is_python).map(|path| path.join("site-packages/unhang")).collect()
}

/// The sitecustomize of the installed package, for a run without a folder.
pub(crate) fn installed_autoload() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = packages(program.parent()?).into_iter().map(|package| package.join("_autoload"));
    folders.into_iter().find(|folder| is_trusted(&folder.join("sitecustomize.py"), Some(&program)))
}

/// The options plus those that turn the work-arounds on. `None` if features are already chosen.
fn with_work_arounds(present: &str) -> Option<String> {
    if present.contains("-target-feature") {
        return None;
    }
    let features = WORK_AROUND_FEATURES.map(|name| format!("-Xclang -target-feature -Xclang +{name}"));
    Some(format!("{present} {}", features.join(" ")).trim_start().to_owned())
}

/// The list of tools with the shield at its end, in ROCr's syntax. Spaces separate entries, an entry with a space is
/// quoted, and a backslash escapes the next character. `None` if the shield is already in it.
fn with_tool(present: &str, shield: &Path) -> Option<String> {
    let path = shield.to_str()?;
    if present.contains(LIBRARY) {
        return None;
    }
    let escaped = path.replace('\\', "\\\\").replace('"', "\\\"");
    let entry = if path.contains(' ') { format!("\"{escaped}\"") } else { escaped };
    let present = present.trim();
    Some(if present.is_empty() { entry } else { format!("{present} {entry}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a library.
    const ELF: &[u8] = b"\x7fELF\x02\x01\x01";

    #[test]
    fn what_is_in_the_list_stays() {
        let shield = Path::new("/opt/a b/libunhang_shield.so");
        assert_eq!(with_tool("", Path::new("/x/libunhang_shield.so")).unwrap(), "/x/libunhang_shield.so");
        assert_eq!(
            with_tool("\"/opt/my tools/t.so\" u.so", shield).unwrap(),
            "\"/opt/my tools/t.so\" u.so \"/opt/a b/libunhang_shield.so\""
        );
        assert_eq!(with_tool("/y/libunhang_shield.so", shield), None);
    }

    #[test]
    fn kernels_are_compiled_with_the_work_arounds_unless_declined_or_chosen() {
        let get = |options: &'static str, shield: &'static str| {
            move |name: &str| match name {
                "HIPRTC_COMPILE_OPTIONS_APPEND" => Some(options.to_owned()),
                "UNHANG_SHIELD" => Some(shield.to_owned()),
                _ => None,
            }
        };
        let decisions = decide(true, get("-O2", "/not/there.so"));
        let [decision] = decisions.as_slice() else { panic!("no shield, so one variable") };
        let value = decision.value.as_deref().unwrap();
        assert!(value.starts_with("-O2 -Xclang -target-feature -Xclang +vcmpx-permlane-hazard -Xclang "), "{value}");
        assert_eq!(value.matches("-target-feature").count(), WORK_AROUND_FEATURES.len());
        assert!(decide(true, get("-Xclang -target-feature -Xclang +wavefrontsize64", "/not/there.so")).is_empty());
        assert!(decide(true, get("", "0")).is_empty());
    }

    #[test]
    fn the_shield_knows_every_affected_card_by_its_pci_id() {
        for device in 0..=u16::MAX {
            let named = unhang_machine::chips::by_pci_id(device, None).filter(|(_, chip)| chip.affected);
            let known = unhang_isa::Chip::rdna1_by_pci_device(device);
            assert_eq!(known.map(unhang_isa::Chip::name), named.map(|(_, chip)| chip.gfx), "{device:04x}");
        }
    }

    #[test]
    fn it_is_found_beside_the_program_and_in_the_package() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bin/unhang");
        let package = folder.path().join("lib/python3.11/site-packages/unhang");
        std::fs::create_dir_all(&package).unwrap();
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        assert_eq!(find(LIBRARY, None, Some(&program)), None);
        std::fs::write(package.join(LIBRARY), ELF).unwrap();
        assert_eq!(find(LIBRARY, None, Some(&program)), Some(package.join(LIBRARY)));
        let beside = folder.path().join("bin").join(LIBRARY);
        std::fs::write(&beside, "ERROR: ld.so: object cannot be preloaded").unwrap();
        assert_eq!(find(LIBRARY, None, Some(&program)), Some(package.join(LIBRARY)), "no library");
        std::fs::write(&beside, ELF).unwrap();
        assert_eq!(find(LIBRARY, None, Some(&program)), Some(beside));
        assert_eq!(find(LIBRARY, Some("/not/there.so"), Some(&program)), None);
    }

    // The line by which skipped tests are counted.
    #[allow(clippy::print_stdout, reason = "tests may print")]
    #[test]
    fn a_library_that_somebody_else_put_beside_the_program_is_passed_over() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let (program, library) = (folder.path().join("unhang"), folder.path().join(LIBRARY));
        for path in [&program, &library] {
            std::fs::write(path, ELF).unwrap();
        }
        let set_mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let find = || find(LIBRARY, None, Some(&program));
        assert_eq!(find(), Some(library.clone()));
        set_mode(&library, 0o646);
        assert_eq!(find(), None, "anybody can write it");
        set_mode(&library, 0o644);
        set_mode(folder.path(), 0o777);
        assert_eq!(find(), None, "anybody can replace it");
        set_mode(folder.path(), 0o1777);
        assert_eq!(find(), Some(library.clone()), "a sticky folder is only added to");
        if !rustix::process::geteuid().is_root() {
            println!("skipped: files of another user need root");
            return;
        }
        chown(&library, Some(65534), None).unwrap();
        assert_eq!(find(), None, "a neighbour's");
        chown(&program, Some(65534), None).unwrap();
        assert_eq!(find(), Some(library), "of whoever made the program that is run");
    }
}
