//! Writes a profile into a system or a home, and removes it again to the last byte.
//!
//! The order of things makes it safe to be interrupted anywhere. Before the first change a journal is on the disk that
//! names every change to come. Each change keeps what it replaces (the very file, by a hard link or a rename) in a
//! backup folder. Whoever comes next finds the journal: a finished one is an installation, an unfinished one is undone
//! first. Undoing is written so that each step can be repeated and skipped.
//!
//! Files are reached by [`tree::Tree`], component by component and never through a symbolic link. So nothing outside of
//! the root or the home is ever touched.

pub(crate) mod edit;
mod journal;
mod site;
pub mod tree;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::leftovers;
use crate::profile::Profile;
use crate::system::System;
use journal::{Journal, JournalStep, Phase, digest};
use site::Site;
pub use site::{InstallError, Scope};
use tree::TreeError;

/// A change to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What is done: `create`, `edit`, `move aside`, `restore`, `remove`, `keep`.
    pub action: &'static str,
    /// The file, as the machine sees it.
    pub path: PathBuf,
    /// The lines, as a diff has them.
    pub diff: Vec<String>,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InstallOutcome {
    /// The changes.
    pub changes: Vec<Change>,
    /// Notes: files that were left alone, and why.
    pub notes: Vec<String>,
    /// Whether an earlier, interrupted call was undone first.
    pub recovered: bool,
}

/// The files to write: path below the base, mode, content. `None` if no profile is wanted.
fn files(site: &Site, profile: Option<&Profile>) -> Result<Vec<(PathBuf, u32, String)>, TreeError> {
    let mut files = Vec::new();
    let Some(profile) = profile else { return Ok(files) };
    match site.scope {
        Scope::System => {
            let path = leftovers::OUR_SYSTEM_PROFILE.trim_start_matches('/');
            files.push((PathBuf::from(path), 0o644, profile.guarded_script()));
            if site.tree.is_folder(Path::new("etc/systemd"))? {
                let path = PathBuf::from("etc/systemd/user-environment-generators/60-unhang");
                files.push((path, 0o755, profile.generator_script()));
            }
        }
        Scope::User => {
            files.push((PathBuf::from(leftovers::OUR_USER_PROFILE), 0o644, profile.guarded_script()));
            if site.tree.is_folder(Path::new(".config/fish"))? {
                files.push((PathBuf::from(".config/fish/conf.d/unhang.fish"), 0o644, profile.guarded_fish()));
            }
        }
    }
    Ok(files)
}

/// The start-up files of a home that will read the profile.
fn start_up_files(site: &Site) -> Result<Vec<PathBuf>, TreeError> {
    if site.scope == Scope::System {
        return Ok(Vec::new());
    }
    let all = [".profile", ".bash_profile", ".bashrc", ".zshenv", ".zshrc"].map(PathBuf::from);
    let mut present = Vec::new();
    for file in &all {
        if site.tree.is_file(file)? {
            present.push(file.clone());
        }
    }
    if present.is_empty() {
        present.push(all[0].clone());
    }
    Ok(present)
}

/// What shall be done, in order.
struct WorkList {
    work: Vec<Work>,
    notes: Vec<String>,
}

/// One piece of work.
enum Work {
    Create { path: PathBuf, mode: u32, content: Vec<u8> },
    Edit { path: PathBuf, before: Vec<u8>, after: Vec<u8> },
    MoveAside { path: PathBuf },
}

fn plan(site: &Site, profile: Option<&Profile>) -> Result<WorkList, InstallError> {
    let mut plan = WorkList { work: Vec::new(), notes: Vec::new() };
    let found = match site.scope {
        Scope::System => leftovers::find_system(site.system),
        Scope::User => leftovers::find_home(site.system, &site.base),
    };
    let files = files(site, profile)?;
    let mut edits: Vec<(PathBuf, Vec<u8>, Vec<u8>)> = Vec::new();
    for leftover in found {
        let Ok(path) = leftover.path.strip_prefix(&site.base).map(Path::to_owned) else { continue };
        if files.iter().any(|(ours, _, _)| *ours == path) {
            // In place of one of our files: moved aside as a whole, below.
        } else if !leftover.login {
            plan.notes.push(format!("{} is not a login file and was left alone", leftover.path.display()));
        } else if !site.tree.is_file(&path).unwrap_or(false) {
            plan.notes
                .push(format!("{} is reached through a symbolic link and was left alone", leftover.path.display()));
        } else if leftover.whole {
            plan.work.push(Work::MoveAside { path });
        } else {
            let before = site.tree.read(&path)?;
            let (after, left) = edit::set_aside(&before, edit::comment_for(&path));
            plan.notes.extend(left.into_iter().map(|line| {
                format!("{}:{line} does more than set a variable and was left alone", leftover.path.display())
            }));
            if after != before {
                edits.push((path, before, after));
            }
        }
    }
    let readers = if profile.is_some() { start_up_files(site)? } else { Vec::new() };
    for path in readers {
        if let Some((_, _, after)) = edits.iter_mut().find(|(edited, _, _)| *edited == path) {
            *after = edit::with_our_line(after);
        } else if site.tree.is_file(&path)? {
            let before = site.tree.read(&path)?;
            let after = edit::with_our_line(&before);
            edits.push((path, before, after));
        } else if site.tree.exists(&path)? {
            plan.notes.push(format!("{} is not a plain file and was left alone", site.shown(&path).display()));
        } else {
            plan.work.push(Work::Create { path, mode: 0o644, content: edit::with_our_line(b"") });
        }
    }
    plan.work.extend(edits.into_iter().map(|(path, before, after)| Work::Edit { path, before, after }));
    for (path, mode, content) in files {
        // A file with that name that is not ours is the user's: it is kept as a leftover is.
        if site.tree.exists(&path)? {
            plan.work.push(Work::MoveAside { path: path.clone() });
        }
        plan.work.push(Work::Create { path, mode, content: content.into_bytes() });
    }
    Ok(plan)
}

fn describe(site: &Site, plan: &WorkList) -> Vec<Change> {
    plan.work
        .iter()
        .map(|work| match work {
            Work::Create { path, content, .. } => {
                Change { action: "create", path: site.shown(path), diff: edit::diff(b"", content) }
            }
            Work::Edit { path, before, after } => {
                Change { action: "edit", path: site.shown(path), diff: edit::diff(before, after) }
            }
            Work::MoveAside { path } => Change { action: "move aside", path: site.shown(path), diff: Vec::new() },
        })
        .collect()
}

/// Installs a profile. A second call changes nothing. A dry run only says what it would do.
pub fn install(
    system: &System,
    scope: Scope,
    profile: &Profile,
    dry_run: bool,
) -> Result<InstallOutcome, InstallError> {
    let site = Site::open(system, scope)?;
    install_at(&site, Some(profile), dry_run)
}

/// Moves the settings of earlier attempts aside, removes an installed profile, and installs none. [`uninstall`]
/// restores what was moved.
pub fn clean(system: &System, scope: Scope, dry_run: bool) -> Result<InstallOutcome, InstallError> {
    let site = Site::open(system, scope)?;
    install_at(&site, None, dry_run)
}

/// The journal's name for an installation without a profile.
const NO_PROFILE: &str = "none";

fn name_of(profile: Option<&Profile>) -> &str {
    profile.map_or(NO_PROFILE, |profile| profile.name)
}

fn install_at(site: &Site, profile: Option<&Profile>, dry_run: bool) -> Result<InstallOutcome, InstallError> {
    let _lock = if dry_run { None } else { Some(site.tree.lock()?) };
    let mut outcome = InstallOutcome::default();
    if let Some(journal) = Journal::read(site)? {
        if journal.phase == Phase::Installed && is_current(site, &journal, profile)? {
            return Ok(outcome);
        }
        outcome.recovered = journal.phase != Phase::Installed;
        if profile.is_none() {
            outcome.changes = to_be_removed(site, &journal);
        }
        if dry_run {
            outcome.notes.push("an earlier installation would be removed first".to_owned());
        } else {
            outcome.notes.extend(undo(site, journal)?.notes);
        }
    } else if !dry_run {
        journal::clean_up(site)?;
    }
    let plan = plan(site, profile)?;
    outcome.changes.extend(describe(site, &plan));
    outcome.notes.extend(plan.notes.iter().cloned());
    if !dry_run && !plan.work.is_empty() {
        carry_out(site, name_of(profile), plan)?;
    }
    Ok(outcome)
}

/// Our files that an uninstallation removes.
fn to_be_removed(site: &Site, journal: &Journal) -> Vec<Change> {
    let created = journal.steps.iter().filter_map(|step| match step {
        JournalStep::Create { path, .. } => Some(path),
        _ => None,
    });
    created.map(|path| Change { action: "remove", path: site.shown(path), diff: Vec::new() }).collect()
}

/// Whether the journal still holds, and a fresh plan would do nothing else.
fn is_current(site: &Site, journal: &Journal, profile: Option<&Profile>) -> Result<bool, InstallError> {
    if journal.profile != name_of(profile) {
        return Ok(false);
    }
    for step in &journal.steps {
        let (path, wanted) = match step {
            JournalStep::Create { path, digest } => (path, digest),
            JournalStep::Edit { path, after, .. } => (path, after),
            JournalStep::MakeFolder { .. } | JournalStep::MoveAside { .. } => continue,
        };
        if !site.tree.is_file(path)? || digest(&site.tree.read(path)?) != *wanted {
            return Ok(false);
        }
    }
    let wanted = files(site, profile)?;
    let written = |path: &PathBuf, content: &str| {
        journal.steps.iter().any(|step| matches!(step, JournalStep::Create { path: it, digest: old } if it == path && *old == digest(content.as_bytes())))
    };
    if !wanted.iter().all(|(path, _, content)| written(path, content)) {
        return Ok(false);
    }
    let fresh = match site.scope {
        Scope::System => leftovers::find_system(site.system),
        Scope::User => leftovers::find_home(site.system, &site.base),
    };
    let mut same = true;
    for leftover in fresh.iter().filter(|leftover| leftover.login) {
        let Ok(path) = leftover.path.strip_prefix(&site.base) else { continue };
        if site.tree.is_file(path).unwrap_or(false) {
            // Files left alone then are left alone now.
            let text = site.tree.read(path)?;
            same &= !leftover.whole && edit::set_aside(&text, edit::comment_for(path)).0 == text;
        }
    }
    Ok(same)
}

fn carry_out(site: &Site, profile: &str, plan: WorkList) -> Result<(), InstallError> {
    let backups = site.state_path().join("backup");
    let mut steps = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut need = |folder: &Path, steps: &mut Vec<JournalStep>| -> Result<(), TreeError> {
        let chain: Vec<&Path> = folder.ancestors().filter(|it| !it.as_os_str().is_empty()).collect();
        for path in chain.into_iter().rev() {
            let ours = path.starts_with(site.state_path()) && path == site.state_path();
            let made_with_state = site.state_path().starts_with(path);
            if !ours && !made_with_state && !folders.contains(&path.to_owned()) && !site.tree.exists(path)? {
                folders.push(path.to_owned());
                steps.push(JournalStep::MakeFolder { path: path.to_owned() });
            }
        }
        Ok(())
    };
    let keeps = plan.work.iter().any(|work| !matches!(work, Work::Create { .. }));
    if keeps {
        need(&backups, &mut steps)?;
    }
    for (number, work) in plan.work.iter().enumerate() {
        let backup = backups.join(number.to_string());
        match work {
            Work::Create { path, content, .. } => {
                need(path.parent().unwrap_or(Path::new("")), &mut steps)?;
                steps.push(JournalStep::Create { path: path.clone(), digest: digest(content) });
            }
            Work::Edit { path, before, after } => {
                steps.push(JournalStep::Edit {
                    path: path.clone(),
                    backup,
                    before: digest(before),
                    after: digest(after),
                });
            }
            Work::MoveAside { path } => steps.push(JournalStep::MoveAside { path: path.clone(), backup }),
        }
    }
    let mut journal = Journal::begin(site, profile, steps.clone())?;
    let mut work = plan.work.iter();
    for step in &steps {
        match step {
            JournalStep::MakeFolder { path } => site.tree.make_folder(path)?,
            JournalStep::Create { path, .. } => {
                let Some(Work::Create { content, mode, .. }) = work.next() else {
                    unreachable!("steps follow the plan")
                };
                site.tree.create(path, content, *mode, None)?;
            }
            JournalStep::Edit { path, backup, .. } => {
                let Some(Work::Edit { after, .. }) = work.next() else { unreachable!("steps follow the plan") };
                site.tree.keep(path, backup)?;
                site.tree.replace(path, after)?;
            }
            JournalStep::MoveAside { path, backup } => {
                let _ = work.next();
                site.tree.rename_new(path, backup)?;
            }
        }
    }
    journal.phase = Phase::Installed;
    journal.write(site)?;
    Ok(())
}

/// Removes an installation. The tree is as before; files that somebody changed since keep those changes.
pub fn uninstall(system: &System, scope: Scope, dry_run: bool) -> Result<InstallOutcome, InstallError> {
    let site = Site::open(system, scope)?;
    uninstall_at(&site, dry_run)
}

fn uninstall_at(site: &Site, dry_run: bool) -> Result<InstallOutcome, InstallError> {
    let _lock = if dry_run { None } else { Some(site.tree.lock()?) };
    let Some(journal) = Journal::read(site)? else {
        if !dry_run {
            journal::clean_up(site)?;
        }
        return Ok(InstallOutcome::default());
    };
    if dry_run {
        let changes = journal.steps.iter().filter_map(|step| {
            let (action, path) = match step {
                JournalStep::MakeFolder { .. } => return None,
                JournalStep::Create { path, .. } => ("remove", path),
                JournalStep::Edit { path, .. } | JournalStep::MoveAside { path, .. } => ("restore", path),
            };
            Some(Change { action, path: site.shown(path), diff: Vec::new() })
        });
        return Ok(InstallOutcome {
            changes: changes.collect(),
            notes: Vec::new(),
            recovered: journal.phase != Phase::Installed,
        });
    }
    undo(site, journal)
}

/// Undoes a journal's changes, however far they got.
fn undo(site: &Site, mut journal: Journal) -> Result<InstallOutcome, InstallError> {
    let mut outcome = InstallOutcome { recovered: journal.phase != Phase::Installed, ..InstallOutcome::default() };
    if journal.phase == Phase::Installed {
        journal.phase = Phase::Removing;
        journal.write(site)?;
    }
    for step in journal.steps.iter().rev() {
        let change = |action, path: &Path| Change { action, path: site.shown(path), diff: Vec::new() };
        match step {
            JournalStep::MakeFolder { path } => site.tree.remove_folder_if_empty(path)?,
            JournalStep::Create { path, digest: wanted } => {
                site.tree.remove_scratch(path)?;
                if !site.tree.exists(path)? {
                    continue;
                }
                if site.tree.is_file(path)? && digest(&site.tree.read(path)?) == *wanted {
                    site.tree.remove_file(path)?;
                    outcome.changes.push(change("remove", path));
                } else {
                    outcome.notes.push(format!("{} was changed since and was kept", site.shown(path).display()));
                    outcome.changes.push(change("keep", path));
                }
            }
            JournalStep::MoveAside { path, backup } => {
                if !site.tree.exists(backup)? {
                    continue;
                }
                let target = if site.tree.exists(path)? {
                    let kept = beside(path);
                    outcome.notes.push(format!(
                        "{} exists again, so the earlier one was restored as {}",
                        site.shown(path).display(),
                        site.shown(&kept).display()
                    ));
                    kept
                } else {
                    path.clone()
                };
                site.tree.rename_new(backup, &target)?;
                outcome.changes.push(change("restore", &target));
            }
            JournalStep::Edit { path, backup, before, after } => {
                site.tree.remove_scratch(path)?;
                if !site.tree.exists(backup)? {
                    continue;
                }
                outcome.changes.push(change("restore", path));
                if !site.tree.exists(path)? {
                    site.tree.rename_new(backup, path)?;
                } else if !site.tree.is_file(path)? {
                    outcome.notes.push(format!(
                        "{} is no longer a plain file; its earlier content was dropped",
                        site.shown(path).display()
                    ));
                    site.tree.remove_file(backup)?;
                } else {
                    let now = site.tree.read(path)?;
                    if [before, after].contains(&&digest(&now)) {
                        site.tree.put_back(backup, path)?;
                    } else {
                        let note = format!(
                            "{} was changed since: unhang's lines were removed and yours kept",
                            site.shown(path).display()
                        );
                        outcome.notes.push(note);
                        site.tree.replace(path, &edit::taken_out(&now, edit::comment_for(path)))?;
                        site.tree.remove_file(backup)?;
                    }
                }
            }
        }
    }
    journal.end(site)?;
    Ok(outcome)
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!("{name}.before-unhang"))
}

#[cfg(test)]
mod tests;
