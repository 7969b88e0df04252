//! Install, be interrupted, uninstall: the tree after is the tree before.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::system::Environment;

/// Everything that can be seen of a tree: kinds, modes, owners, contents, link targets, times of files.
fn picture(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let owner = format!("{:o} {}:{}", metadata.mode(), metadata.uid(), metadata.gid());
            let what = if metadata.is_dir() {
                pending.push(path.clone());
                format!("folder {owner}")
            } else if metadata.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else {
                let time = (metadata.mtime(), metadata.mtime_nsec());
                format!("file {owner} {time:?} {:?}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), what);
        }
    }
    all
}

const SEED_57: &str = include_str!("../../fixtures/rx5600xt-rocm5.7/etc/profile.d/rocm-rdna1-57.sh");
const SEED_52: &str = include_str!("../../fixtures/rx5600xt-rocm5.2/etc/profile.d/rocm-rdna1-52.sh");
const BASHRC: &str = include_str!("../../fixtures/rx5600xt-rocm5.2/home/user/.bashrc");

fn system(root: &Path) -> System {
    System::new(root, Environment::from_iter([("HOME", "/home/user")]))
}

fn profile() -> Profile {
    Profile::named("rocm5.7").unwrap()
}

/// A thing to put into a tree.
#[derive(Clone, Debug)]
enum Item {
    File(&'static str, String, u32),
    Folder(&'static str),
    Link(&'static str, &'static str),
}

fn build(root: &Path, items: &[Item]) {
    fs::create_dir_all(root.join("home/user")).unwrap();
    for item in items {
        let path = match item {
            Item::File(path, ..) | Item::Folder(path) | Item::Link(path, _) => root.join(path),
        };
        // What is in the way of an earlier item is skipped: the tree is random, not contradictory.
        if fs::symlink_metadata(&path).is_ok() || fs::create_dir_all(path.parent().unwrap()).is_err() {
            continue;
        }
        match item {
            Item::File(_, content, mode) => {
                fs::write(&path, content).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
            Item::Folder(_) => fs::create_dir(&path).unwrap(),
            Item::Link(_, target) => symlink(target, &path).unwrap(),
        }
    }
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let path = prop::sample::select(vec![
        "etc/profile.d/rocm-rdna1-57.sh",
        "etc/profile.d/rocm-rdna1-52.sh",
        "etc/profile.d/rocm-rdna1.sh",
        "etc/profile.d/unhang.sh",
        "etc/profile.d/other.sh",
        "etc/environment",
        "etc/environment.d/50-rocm.conf",
        "etc/systemd/user.conf",
        "etc/systemd/system/train.service",
        "etc/unhang/notes",
        "home/user/.bashrc",
        "home/user/.profile",
        "home/user/.zshenv",
        "home/user/.config/environment.d/rocm.conf",
        "home/user/.config/fish/config.fish",
        "home/user/.config/unhang/profile.sh",
        "home/user/.config/unhang/mine",
    ]);
    let line = prop_oneof![
        Just("export HSA_OVERRIDE_GFX_VERSION=10.3.0".to_owned()),
        Just("    export MIOPEN_FIND_ENFORCE=3 # search".to_owned()),
        Just("HSA_ENABLE_SDMA=0".to_owned()),
        Just("unset HSA_XNACK".to_owned()),
        Just("set -gx MIOPEN_FIND_MODE NORMAL".to_owned()),
        Just("export HSA_XNACK=0; echo hello".to_owned()),
        Just("if true; then".to_owned()),
        Just("fi".to_owned()),
        "[ -~]{0,30}",
        ".{0,8}",
    ];
    let content = prop_oneof![
        Just(SEED_57.to_owned()),
        Just(SEED_52.to_owned()),
        Just(BASHRC.to_owned()),
        (prop::collection::vec(line, 0..8), any::<bool>())
            .prop_map(|(lines, end)| lines.join("\n") + if end { "\n" } else { "" }),
    ];
    let mode = prop::sample::select(vec![0o644, 0o600, 0o755, 0o640, 0o444]);
    let file = (path.clone(), content, mode).prop_map(|(path, content, mode)| Item::File(path, content, mode));
    let folder = prop::sample::select(vec![
        "etc",
        "etc/profile.d",
        "etc/systemd",
        "home/user/.config",
        "home/user/.config/fish",
        "etc/unhang",
    ])
    .prop_map(Item::Folder);
    let link = (path, prop::sample::select(vec!["/nowhere", "../other", "/etc/environment", "."]))
        .prop_map(|(path, target)| Item::Link(path, target));
    prop::collection::vec(prop_oneof![6 => file, 2 => folder, 1 => link], 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]

    #[test]
    fn install_then_uninstall_is_the_identity(items in items(), user in any::<bool>(), stop in prop::option::of(0u32..60), again in prop::option::of(0u32..40)) {
        let folder = tempfile::tempdir().unwrap();
        build(folder.path(), &items);
        let before = picture(folder.path());
        let system = system(folder.path());
        let scope = if user { Scope::User } else { Scope::System };

        let dry = install(&system, scope, &profile(), true);
        prop_assert_eq!(&picture(folder.path()), &before, "a dry run changes nothing");

        // Stopped somewhere, as by a power cut; then taken out, perhaps stopped once more on the way.
        let site = Site::open(&system, scope).unwrap();
        if let Some(changes) = stop {
            site.tree.stop_after(changes);
        }
        let done = install_at(&site, Some(&profile()), false);
        if let (Ok(done), Ok(dry), None) = (&done, &dry, stop) {
            prop_assert_eq!(done, dry, "a dry run tells the truth");
            let after = picture(folder.path());
            let twice = install(&system, scope, &profile(), false).unwrap();
            prop_assert_eq!(twice.changes, vec![], "twice is once");
            prop_assert_eq!(picture(folder.path()), after);
        }
        drop(site);
        if let Some(changes) = again {
            let site = Site::open(&system, scope).unwrap();
            site.tree.stop_after(changes);
            let _ = uninstall_at(&site, false);
        }
        uninstall(&system, scope, false).unwrap();
        prop_assert_eq!(picture(folder.path()), before);
    }

    #[test]
    fn an_interrupted_install_is_finished_by_the_next(items in items(), user in any::<bool>(), stop in 0u32..60) {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let scope = if user { Scope::User } else { Scope::System };
        for folder in [&one, &other] {
            build(folder.path(), &items);
        }
        let interrupted = system(one.path());
        let site = Site::open(&interrupted, scope).unwrap();
        site.tree.stop_after(stop);
        let _ = install_at(&site, Some(&profile()), false);
        drop(site);
        let (finished, straight) = (install(&interrupted, scope, &profile(), false), install(&system(other.path()), scope, &profile(), false));
        prop_assert_eq!(finished.is_ok(), straight.is_ok());
        // Times differ between two trees; everything else is the same.
        let timeless = |root: &Path| -> Vec<(PathBuf, String)> {
            picture(root).into_iter().map(|(path, what)| (path, what.split_once(") ").map_or(what.clone(), |(_, rest)| rest.to_owned()))).collect()
        };
        prop_assert_eq!(timeless(one.path()), timeless(other.path()));
    }
}

#[test]
fn edits_after_the_install_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[Item::File("home/user/.bashrc", BASHRC.to_owned(), 0o600)]);
    let system = system(folder.path());
    install(&system, Scope::User, &profile(), false).unwrap();
    let path = folder.path().join("home/user/.bashrc");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(": # unhang set aside: export MIOPEN_DEBUG_CONV_GEMM=0\n"), "{text}");
    fs::write(&path, format!("{text}export MINE=1\n")).unwrap();
    let outcome = uninstall(&system, Scope::User, false).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{BASHRC}export MINE=1\n"));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert!(outcome.notes.iter().any(|note| note.contains("yours kept")), "{outcome:?}");
    assert!(!folder.path().join("home/user/.config").exists());
}

#[test]
fn links_are_refused_and_nothing_outside_is_touched() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(folder.path(), &[]);
    fs::create_dir(folder.path().join("etc")).unwrap();
    symlink(outside.path(), folder.path().join("etc/profile.d")).unwrap();
    let before = picture(folder.path());
    let error = install(&system(folder.path()), Scope::System, &profile(), false).unwrap_err();
    assert!(matches!(error, InstallError::Tree(TreeError::Link { .. })), "{error}");
    assert_eq!(picture(outside.path()), BTreeMap::new());
    assert_eq!(picture(folder.path()), before);
}

#[test]
fn a_second_installer_is_told_to_wait() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[]);
    let system = system(folder.path());
    let site = Site::open(&system, Scope::User).unwrap();
    let _lock = site.tree.lock().unwrap();
    let error = install(&system, Scope::User, &profile(), false).unwrap_err();
    assert!(matches!(error, InstallError::Tree(TreeError::Busy)), "{error}");
}

#[test]
fn a_damaged_journal_is_not_guessed_at() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[Item::File("etc/unhang/journal.json", "{".to_owned(), 0o644)]);
    let error = uninstall(&system(folder.path()), Scope::System, false).unwrap_err();
    assert!(matches!(error, InstallError::BadJournal { .. }), "{error}");
}

#[test]
fn a_folder_in_the_place_of_the_scratch_file_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[Item::File("home/user/.bashrc", BASHRC.to_owned(), 0o644)]);
    let in_the_way = folder.path().join("home/user/.unhang-writing");
    fs::create_dir_all(in_the_way.join("of-somebody")).unwrap();
    let before = picture(folder.path());
    let system = system(folder.path());
    install(&system, Scope::User, &profile(), false).unwrap();
    uninstall(&system, Scope::User, false).unwrap();
    assert_eq!(picture(folder.path()), before, "everything is as it was, the folder too");
}

/// Whether this user can make files of others'.
fn can_give_away() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: files of another user need root");
    }
    is_root
}

const SOMEBODY: u32 = 65534;

#[test]
fn scratch_files_of_others_are_left_alone() {
    if !can_give_away() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let theirs = |path: &'static str| {
        build(folder.path(), &[Item::File(path, "theirs".to_owned(), 0o644)]);
        chown(folder.path().join(path), Some(SOMEBODY), None).unwrap();
        let path = folder.path().join(path);
        move || fs::read_to_string(&path).unwrap_or_default()
    };
    build(folder.path(), &[Item::File("home/user/.bashrc", BASHRC.to_owned(), 0o644)]);
    let system = system(folder.path());
    let scratch = theirs("home/user/.unhang-writing");
    install(&system, Scope::User, &profile(), false).unwrap();
    uninstall(&system, Scope::User, false).unwrap();
    assert_eq!(scratch(), "theirs");
    // In the place where folders are made ready there is no second name: nothing is installed, and theirs stays.
    let in_the_way = theirs("home/user/.unhang-new/.unhang-writing");
    install(&system, Scope::User, &profile(), false).unwrap_err();
    assert_eq!(in_the_way(), "theirs");
}

#[test]
fn what_root_makes_in_a_users_home_is_the_users() {
    if !can_give_away() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), &[Item::File("home/user/.bashrc", BASHRC.to_owned(), 0o644)]);
    let home = folder.path().join("home/user");
    for path in [home.clone(), home.join(".bashrc")] {
        chown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    let system = system(folder.path());
    install(&system, Scope::User, &profile(), false).unwrap();
    let mut found = Vec::new();
    let mut pending = vec![home];
    while let Some(next) = pending.pop() {
        let metadata = fs::symlink_metadata(&next).unwrap();
        if metadata.is_dir() {
            pending.extend(fs::read_dir(&next).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((next, metadata.uid()));
    }
    assert!(found.len() > 3, "a journal and its folders: {found:?}");
    assert!(found.iter().all(|(_, owner)| *owner == SOMEBODY), "{found:?}");
}
