//! What earlier attempts left on the disk: profile scripts, lines in shell start-up files, units, rules.
//!
//! Found by what a line *does* (it sets a variable of the table, or one that does not exist). Also found by the few
//! file names that guides for these cards tell people to write. Files that unhang wrote are not leftovers.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::assignments::{Assignment, parse_file};
use crate::install::edit;
use crate::system::{LARGE, SMALL, System};

/// The first words of every file that unhang writes, by which it recognises its own.
pub(crate) const OUR_MARK: &str = "# Written by unhang";
/// Where an installed profile is: the system's, and below a home.
pub(crate) const OUR_SYSTEM_PROFILE: &str = "/etc/profile.d/unhang.sh";
pub(crate) const OUR_USER_PROFILE: &str = ".config/unhang/profile.sh";
/// A file of an earlier attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// The file.
    pub path: PathBuf,
    /// Whether the whole file is a leftover, not just some lines in a user's file.
    pub whole: bool,
    /// Whether the file takes effect at login or in a new shell (and not only, for example, in a service).
    pub login: bool,
    /// Whether `unhang env clean` can move it or its lines aside; otherwise somebody must edit it.
    pub movable: bool,
    /// The lines.
    pub assignments: Vec<Assignment>,
}

/// The names that guides give to profile scripts for these cards: `rocm-rdna1.sh`, `rocm-rdna1-57.sh`, `-52.sh`.
fn known_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("rocm-rdna1") || name.starts_with("rocm_rdna1") || name.starts_with("99-rocm-rdna1")
}

/// Looks for leftovers in the whole system and in the home folders.
pub(crate) fn find(system: &System) -> Vec<Leftover> {
    let mut found = find_system(system);
    for home in system.homes() {
        found.extend(find_home(system, &home));
    }
    for (variable, below) in [("VIRTUAL_ENV", "bin/activate"), ("CONDA_PREFIX", "etc/conda/activate.d")] {
        let Some(prefix) = system.variable(variable) else { continue };
        let place = Path::new(prefix).join(below);
        if system.is_directory(&place) {
            look_into(system, &place, &[".sh"], false, &mut found);
        } else {
            look_at(system, &place, false, &mut found);
        }
    }
    found
}

/// Those outside the home folders.
pub(crate) fn find_system(system: &System) -> Vec<Leftover> {
    let mut found = Vec::new();
    for file in
        ["/etc/profile", "/etc/environment", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh/zshenv", "/etc/zshenv"]
    {
        look_at(system, Path::new(file), true, &mut found);
    }
    look_into(system, Path::new("/etc/profile.d"), &[".sh", ".csh", ".fish"], true, &mut found);
    look_into(system, Path::new("/etc/environment.d"), &[".conf"], true, &mut found);
    look_into(system, Path::new("/etc/udev/rules.d"), &[".rules"], false, &mut found);
    for folder in ["/etc/systemd/system", "/etc/systemd/user", "/etc/systemd/system.conf.d", "/etc/systemd/user.conf.d"]
    {
        look_into(system, Path::new(folder), &[".service", ".conf"], false, &mut found);
        for name in system.entries(folder).iter().filter(|name| name.ends_with(".service.d")).take(64) {
            look_into(system, &Path::new(folder).join(name), &[".conf"], false, &mut found);
        }
    }
    found
}

/// Those in one home folder.
pub(crate) fn find_home(system: &System, home: &Path) -> Vec<Leftover> {
    let mut found = Vec::new();
    for file in [
        ".profile",
        ".bash_profile",
        ".bash_login",
        ".bashrc",
        ".zshenv",
        ".zprofile",
        ".zshrc",
        ".pam_environment",
        ".config/fish/config.fish",
    ] {
        look_at(system, &home.join(file), true, &mut found);
    }
    look_into(system, &home.join(".config/fish/conf.d"), &[".fish"], true, &mut found);
    look_into(system, &home.join(".config/environment.d"), &[".conf"], true, &mut found);
    look_into(system, &home.join(".config/systemd/user"), &[".service"], false, &mut found);
    found
}

fn look_into(system: &System, folder: &Path, endings: &[&str], login: bool, found: &mut Vec<Leftover>) {
    for name in system.entries(folder) {
        if endings.iter().any(|ending| name.ends_with(ending)) {
            look_at(system, &folder.join(name), login, found);
        }
    }
}

fn look_at(system: &System, path: &Path, login: bool, found: &mut Vec<Leftover>) {
    let limit = if known_file(path) { SMALL } else { LARGE };
    let Ok(text) = system.text(path, limit) else { return };
    if text.contains(OUR_MARK) {
        // A start-up file of the user's may hold our line and a leftover; a file of ours holds nothing else.
        if text.lines().take(3).any(|line| line.starts_with(OUR_MARK)) {
            return;
        }
    }
    let whole = known_file(path);
    let assignments = parse_file(&text);
    if whole || !assignments.is_empty() {
        let is_changed = || edit::set_aside(text.as_bytes(), edit::comment_for(path)).0 != text.as_bytes();
        let is_plain = || system.resolve_on_machine(path).is_ok_and(|real| real == path);
        let movable = login && (whole || is_changed()) && is_plain();
        found.push(Leftover { path: path.to_owned(), whole, login, movable, assignments });
    }
}

/// The profiles that `unhang env install` wrote, with what they set.
pub(crate) fn own_profiles(system: &System) -> Vec<Leftover> {
    let mut paths = vec![PathBuf::from(OUR_SYSTEM_PROFILE)];
    paths.extend(system.homes().into_iter().map(|home| home.join(OUR_USER_PROFILE)));
    let read = |path: PathBuf| {
        let text = system.text(&path, SMALL).ok().filter(|text| text.starts_with(OUR_MARK))?;
        Some(Leftover { path, whole: true, login: true, movable: true, assignments: parse_file(&text) })
    };
    paths.into_iter().filter_map(read).collect()
}

/// The command that moves the settings in these files aside.
pub(crate) fn clean_command<'p>(program: &str, paths: impl IntoIterator<Item = &'p Path>) -> String {
    env_command(program, "clean", paths)
}

/// The command that puts them back.
pub(crate) fn restore_command<'p>(program: &str, paths: impl IntoIterator<Item = &'p Path>) -> String {
    env_command(program, "uninstall", paths)
}

/// `unhang env …` for these files: `/etc` belongs to root, a home to its user.
fn env_command<'p>(program: &str, action: &str, paths: impl IntoIterator<Item = &'p Path>) -> String {
    let (of_system, of_user): (Vec<&Path>, Vec<&Path>) = paths.into_iter().partition(|path| path.starts_with("/etc"));
    let mut commands = Vec::new();
    if !of_system.is_empty() {
        commands.push(format!("sudo {program} env {action} --system"));
    }
    if !of_user.is_empty() {
        commands.push(format!("unhang env {action} --user"));
    }
    commands.join(" && ")
}
