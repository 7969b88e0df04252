use std::fs;
use std::process::Command;

use super::*;

#[test]
fn a_library_is_known_by_its_name_with_a_version_or_a_hash() {
    for (name, is_one) in [
        ("libamdhip64.so", true),
        ("libamdhip64.so.5.2.21153", true),
        ("libamdhip64-1a2b3c4d.so", true),
        ("libamdhip64-1a2b3c4d.so.5", true),
        ("libamdhip64-.so", false),
        ("libamdhip64-stub.so", false),
        ("libamdhip64", false),
        ("libamdhip640.so", false),
    ] {
        assert_eq!(is_named(Path::new("/opt/a b").join(name).as_path(), "libamdhip64"), is_one, "{name}");
    }
    assert!(!is_named(Path::new("libnvrtc-builtins.so.12"), "libnvrtc"), "another library");
}

#[test]
fn mapped_libraries_are_found_by_name() {
    let maps = "7f0-7f1 r-xp 0 08:01 42 /opt/a b/lib/libamdhip64.so.5\n7f1-7f2 rw-p 0 0:0 0\n\
                7f2-7f3 r--p 0 08:01 43 /usr/lib/libc.so.6\n7f3-7f4 r--p 0 08:01 44 /x/libamdhip64-0a1b.so (deleted)\n";
    let found: Vec<_> = mapped(maps, "libamdhip64").into_iter().collect();
    assert_eq!(found, ["/opt/a b/lib/libamdhip64.so.5", "/x/libamdhip64-0a1b.so"].map(PathBuf::from));
}

#[test]
fn the_compiler_beside_a_runtime_is_of_its_major_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["libamdhip64.so.5.2.1", "libhiprtc.so.6.4", "libhiprtc.so.5.7", "libhiprtc-builtins.so.5.7"] {
        fs::write(path(name), "").unwrap();
    }
    std::os::unix::fs::symlink(path("libamdhip64.so.5.2.1"), path("libamdhip64.so")).unwrap();
    let found = |runtime| beside(&path(runtime), "libhiprtc");
    assert_eq!(found("libamdhip64.so"), [path("libhiprtc.so.5.7").display().to_string()]);
    fs::write(path("libamdhip64.so.7"), "").unwrap();
    assert_eq!(found("libamdhip64.so.7"), [] as [&str; 0]);
}

/// Libraries of C, made for one test: `(name, text, linked to)`. `None` where there is no C compiler.
fn libraries(folder: &Path, each: &[(&str, &str, &[&str])]) -> Option<()> {
    for (name, text, linked) in each {
        let (source, library) = (folder.join(format!("{name}.c")), folder.join(name));
        fs::create_dir_all(library.parent()?).unwrap();
        fs::write(&source, text).unwrap();
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        command.args(linked.iter().map(|it| folder.join(it))).arg(format!("-Wl,-soname,{name}"));
        command.arg("-Wl,-rpath,$ORIGIN");
        match command.status() {
            Ok(status) => assert!(status.success(), "{name}"),
            Err(_) => {
                println!("skipped: cc is not installed");
                return None;
            }
        }
    }
    Some(())
}

/// Loads for the rest of the process.
fn load(path: &Path) {
    std::mem::forget(open_file(path.to_str().unwrap(), false).unwrap());
}

#[test]
fn of_two_copies_the_one_that_torch_is_linked_to_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let version = |number: i32| format!("int unhang_test_a(void) {{ return {number}; }}");
    let texts = [version(1), version(2)];
    let user = "int unhang_test_a(void); int unhang_test_user_a(void) { return unhang_test_a(); }";
    let made = libraries(
        folder.path(),
        &[
            ("libunhangtesta.so.1", &texts[0], &[]),
            ("libunhangtesta-00ff.so", &texts[1], &[]),
            ("libunhangusera.so", user, &["libunhangtesta-00ff.so"]),
        ],
    );
    if made.is_none() {
        return;
    }
    let wanted = Wanted {
        stem: "libunhangtesta",
        witness: "unhang_test_a",
        users: &["libunhangusera"],
        only_one: true,
        names: vec![folder.path().join("libunhangtesta.so.1").display().to_string()],
    };
    let number = || {
        let found = open(&wanted).unwrap();
        // SAFETY: the function's type, as written above.
        (unsafe { found.library.get::<unsafe extern "C" fn() -> i32>(b"unhang_test_a").unwrap()() }, found.path)
    };
    // Nothing is loaded; then the same file, because it is.
    assert_eq!(number().0, 1);
    assert_eq!(number(), (1, wanted.names[0].clone()));
    load(&folder.path().join("libunhangusera.so"));
    let (answer, path) = number();
    assert_eq!(answer, 2, "{path}");
    assert!(path.ends_with("libunhangtesta-00ff.so"), "{path}");
}

#[test]
fn beside_a_loaded_torch_no_second_runtime_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let text = "int unhang_test_b(void) { return 1; }";
    let user = "int unhang_test_user_b(void) { return 1; }";
    let made = libraries(folder.path(), &[("libunhangtestb.so", text, &[]), ("libunhanguserb.so", user, &[])]);
    if made.is_none() {
        return;
    }
    let wanted = |only_one| Wanted {
        stem: "libunhangtestb",
        witness: "unhang_test_b",
        users: &["libunhanguserb"],
        only_one,
        names: vec![folder.path().join("libunhangtestb.so").display().to_string()],
    };
    load(&folder.path().join("libunhanguserb.so"));
    let error = open(&wanted(true)).unwrap_err().to_string();
    assert!(error.contains("a second copy is not loaded") && error.contains("libunhanguserb.so"), "{error}");
    // A compiler is not a runtime: a second one does no harm.
    assert!(open(&wanted(false)).is_ok());
}
