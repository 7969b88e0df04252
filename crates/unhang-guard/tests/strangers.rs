//! What others on the same machine put in the way: their folders, links, pipes and files. Only root can create other
//! users' files. Without root, the tests that need a second user report that they were skipped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use unhang_guard::{NotPrivate, PrivateFolder};

const SOMEBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Whether this user can create other users' files.
fn can_give_away() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: files of another user need root");
    }
    is_root
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
}

#[test]
fn folders_are_made_for_us_alone_and_closed_to_others() {
    let place = tempfile::tempdir().unwrap();
    let folder = PrivateFolder::open(&place.path().join("a/b/c")).unwrap();
    assert_eq!(mode(folder.path()), 0o700);
    assert_eq!(mode(&place.path().join("a")), 0o700);
    folder.write("file", b"contents").unwrap();
    assert_eq!(mode(&folder.path().join("file")), 0o600);
    assert_eq!(folder.read("file", 100).unwrap().as_deref(), Some(&b"contents"[..]));
    assert!(folder.read("other", 100).unwrap().is_none());
    assert!(matches!(folder.read("file", 7), Err(NotPrivate::TooLarge { .. })));
    assert_eq!(folder.names().unwrap(), ["file"], "nothing else is left");

    let readable = place.path().join("readable");
    fs::create_dir(&readable).unwrap();
    set_mode(&readable, 0o755);
    PrivateFolder::open(&readable).unwrap();
    assert_eq!(mode(&readable), 0o700);
}

#[test]
fn what_others_can_write_is_not_believed() {
    let place = tempfile::tempdir().unwrap();
    let open = place.path().join("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    assert!(matches!(PrivateFolder::open(&open), Err(NotPrivate::Writable { .. })));
    assert!(matches!(PrivateFolder::open(&open.join("below")), Err(NotPrivate::Writable { .. })), "it can be renamed");
    set_mode(&open, 0o1777);
    PrivateFolder::open(&open.join("below")).unwrap();
    let lasting = PrivateFolder::open_lasting(&open.join("lasting"));
    assert!(matches!(lasting, Err(NotPrivate::Writable { .. })), "anybody can take the name later");
    PrivateFolder::open_lasting(&place.path().join("mine/lasting")).unwrap();

    let folder = PrivateFolder::open(&place.path().join("folder")).unwrap();
    folder.write("file", b"x").unwrap();
    set_mode(&folder.path().join("file"), 0o666);
    assert!(matches!(folder.read("file", 9), Err(NotPrivate::Writable { .. })));
}

#[test]
fn links_and_pipes_are_not_followed_and_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let folder = PrivateFolder::open(&place.path().join("folder")).unwrap();
    fs::write(place.path().join("elsewhere"), "secret").unwrap();
    symlink(place.path().join("elsewhere"), folder.path().join("link")).unwrap();
    pipe(&folder.path().join("pipe"));
    fs::create_dir(folder.path().join("sub")).unwrap();
    for name in ["link", "pipe", "sub"] {
        assert!(matches!(folder.read(name, 9), Err(NotPrivate::WrongKind { .. })), "{name}");
        assert!(folder.open_or_make_file(name).is_err(), "{name}");
    }
    folder.write("link", b"new").unwrap();
    assert_eq!(fs::read(place.path().join("elsewhere")).unwrap(), b"secret", "the link was replaced, not followed");

    symlink(folder.path(), place.path().join("way")).unwrap();
    assert!(matches!(PrivateFolder::open(&place.path().join("way")), Err(NotPrivate::WrongKind { .. })));
    PrivateFolder::open(&place.path().join("way/inside")).unwrap();
}

#[test]
fn what_belongs_to_others_is_not_believed() {
    if !can_give_away() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = PrivateFolder::open(&place.path().join("folder")).unwrap();
    folder.write("file", b"x").unwrap();
    chown(folder.path().join("file"), Some(SOMEBODY), None).unwrap();
    assert!(matches!(folder.read("file", 9), Err(NotPrivate::Foreign { owner: SOMEBODY, .. })));
    assert!(matches!(folder.open_or_make_file("file"), Err(NotPrivate::Foreign { .. })));

    let theirs = place.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(SOMEBODY), None).unwrap();
    assert!(matches!(PrivateFolder::open(&theirs), Err(NotPrivate::Foreign { .. })));
    assert!(matches!(PrivateFolder::open(&theirs.join("mine")), Err(NotPrivate::Foreign { .. })));
    symlink(&theirs, place.path().join("way")).unwrap();
    let over_a_link = PrivateFolder::open(&place.path().join("way/mine"));
    assert!(matches!(over_a_link, Err(NotPrivate::Foreign { .. })), "through a link as well");
}

#[test]
fn nothing_is_made_in_a_folder_of_another_user() {
    if !can_give_away() {
        return;
    }
    // As under `sudo` with the user's own HOME.
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(SOMEBODY), None).unwrap();
    let opened = PrivateFolder::open(&home.join(".local/share/unhang"));
    assert!(matches!(opened, Err(NotPrivate::Foreign { owner: SOMEBODY, .. })), "{opened:?}");
    let opened = PrivateFolder::open_lasting(&home.join(".cache/unhang/runs"));
    assert!(matches!(opened, Err(NotPrivate::Foreign { owner: SOMEBODY, .. })), "{opened:?}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "nothing of root's is left there");
}

#[test]
fn new_folders_have_names_of_their_own_and_go_with_their_files() {
    let place = tempfile::tempdir().unwrap();
    let folder = PrivateFolder::open(place.path()).unwrap();
    let (one, other) = (folder.new_folder("run-").unwrap(), folder.new_folder("run-").unwrap());
    assert_ne!(one.path(), other.path());
    one.write("file", b"x").unwrap();
    let path = one.path().to_owned();
    one.remove_all().unwrap();
    assert!(!path.exists() && other.path().exists());
}
