//! `unhang run` among strangers: obstacles from others on the machine, and places that cannot be used.
//! tests/test_run.py tests what it does in Pythons, and hangs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOMEBODY: u32 = 65534;
/// For waits that should end; no result depends on how long they take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A separate home, and a temporary folder that is open to everybody, like `/tmp`.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for (name, mode) in [("home", 0o755), ("shared", 0o1777)] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        Place { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
        command.args(["run", "--"]).args(arguments).stdin(Stdio::null());
        let elsewhere = ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "UNHANG_HOME"];
        for name in elsewhere.into_iter().chain(["PYTHONPATH", "UNHANG_ROOT", "UNHANG_RUN_FOLDER"]) {
            command.env_remove(name);
        }
        command.env("HOME", self.path("home")).env("TMPDIR", self.path("shared"));
        command
    }
}

/// Runs it to its end. If it hangs, the test fails.
fn ends(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_root() -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        println!("skipped: a second user needs root");
    }
    is_root
}

#[test]
fn what_python_imports_is_where_nobody_else_can_write() {
    let place = Place::new();
    let mut command = place.command(&["sh", "-c", "stat -c '%a %u' \"${PYTHONPATH%%:*}\"/* && echo $PYTHONPATH"]);
    // The most careless shell.
    let line = "umask 0; exec \"$@\"";
    let mut careless = Command::new("sh");
    careless.args(["-c", line, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => careless.env(name, value),
            None => careless.env_remove(name),
        };
    }
    command = careless;
    let output = ends(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let (files, folder) = stdout.trim().rsplit_once('\n').unwrap();
    assert!(files.lines().all(|line| line.starts_with("600 ")), "{files}");
    assert!(
        Path::new(folder).starts_with(place.path("home")),
        "{folder}: others could take its name in a shared place"
    );
    assert!(!Path::new(folder).exists(), "it is gone with the run");
    assert_eq!(fs::metadata(Path::new(folder).parent().unwrap()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn what_others_leave_in_a_shared_place_hangs_nobody() {
    let place = Place::new();
    // Folders as earlier versions named them, and as the present one does.
    for folder in ["shared/unhang-run-x", "shared/unhang-runs/run-x", "home/.cache/unhang/runs/run-x"] {
        let folder = place.path(folder);
        fs::create_dir_all(&folder).unwrap();
        let status = Command::new("mkfifo").arg(folder.join("lock")).status().unwrap();
        assert!(status.success());
        fs::write(folder.join("sitecustomize.py"), "raise SystemExit('not ours')").unwrap();
        if rustix::process::geteuid().is_root() {
            for path in [folder.join("lock"), folder.join("sitecustomize.py"), folder] {
                chown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
            }
        }
    }
    let output = ends(place.command(&["true"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_place_that_somebody_else_made_is_not_used() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for name in ["home/.cache", "theirs"] {
        fs::create_dir(place.path(name)).unwrap();
        chown(place.path(name), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    let mut command = place.command(&["sh", "-c", "echo \"at $PYTHONPATH\""]);
    command.env("XDG_RUNTIME_DIR", place.path("theirs"));
    let output = ends(command);
    let used = text(&output.stdout);
    // Root has another place, where nobody else can write.
    assert!(used == "at \n" || used.starts_with("at /run/unhang/run-"), "no folder that others can change: {used}");
    assert!(output.status.success(), "the program runs all the same");

    // Other users have none.
    fs::set_permissions(place.path("home"), Permissions::from_mode(0o777)).unwrap();
    let mut command = place.command(&["sh", "-c", "echo \"at $PYTHONPATH\""]);
    command.uid(SOMEBODY + 1).gid(SOMEBODY + 1).env("XDG_RUNTIME_DIR", place.path("theirs"));
    let output = ends(command);
    assert_eq!(text(&output.stdout), "at \n", "no folder that others can change");
    let said = text(&output.stderr);
    assert!(said.contains("no private folder for this run") && said.contains("belongs to user 65534"), "{said}");
    assert!(output.status.success(), "the program runs all the same");
}

#[test]
fn without_any_place_the_program_still_runs_and_it_is_said() {
    let place = Place::new();
    let mut command = place.command(&["sh", "-c", "exit 7"]);
    command.env_remove("HOME").env("TMPDIR", place.path("missing/folder"));
    if rustix::process::geteuid().is_root() {
        command.uid(SOMEBODY).gid(SOMEBODY);
    }
    let output = ends(command);
    assert_eq!(output.status.code(), Some(7));
    let said = text(&output.stderr);
    assert!(said.contains("no private folder for this run") && said.contains("XDG_RUNTIME_DIR"), "{said}");
}

#[test]
fn another_user_gets_a_folder_of_their_own() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("theirs")).unwrap();
    chown(place.path("theirs"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let mut command = place.command(&["sh", "-c", "echo $UNHANG_RUN_FOLDER"]);
    command.env("HOME", place.path("theirs")).uid(SOMEBODY).gid(SOMEBODY);
    let output = ends(command);
    let folder = text(&output.stdout);
    assert!(folder.starts_with(place.path("theirs").to_str().unwrap()), "{folder} {}", text(&output.stderr));
}

#[test]
fn what_cannot_be_run_is_answered_with_what_was_meant() {
    let place = Place::new();
    let folder = place.path("home");
    for (name, mode, contents) in [
        ("train.py", 0o644, "print()\n"),
        ("data", 0o644, ""),
        ("script", 0o755, "#!/no/such/interpreter\n"),
        ("scrap", 0o755, "\u{1}"),
    ] {
        fs::write(folder.join(name), contents).unwrap();
        fs::set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
    }
    for (program, code, expected) in [
        ("train.py", 127, "`unhang run -- python train.py` runs the script"),
        ("./train.py", 126, "`unhang run -- python ./train.py` runs the script"),
        ("./data", 126, "`chmod +x ./data` makes the file executable"),
        (".", 126, "it is a folder"),
        ("no-such-program", 127, "No such file"),
        ("./script", 127, "its first line names an interpreter that does not exist"),
        ("./scrap", 126, "Exec format error"),
    ] {
        let mut command = place.command(&[program]);
        command.current_dir(&folder);
        let output = ends(command);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{program}: {said}");
        assert!(said.contains(expected), "{program}: {said}");
        assert!(program == "./script" || !said.contains("first line"), "{program}: {said}");
    }
}

#[test]
fn talk_that_nobody_can_hear_breaks_nothing() {
    let place = Place::new();
    let binary = assert_cmd::cargo::cargo_bin!("unhang").to_str().unwrap().to_owned();
    // Each of these prints a message, because there is no folder.
    for redirection in ["2>&-", "2>/dev/full", ">&- 2>&-"] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec \"$0\" run -- sh -c 'exit 5' {redirection}"), &binary]);
        for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", place.path("missing"));
        if rustix::process::geteuid().is_root() {
            // Root always has a place, and prints nothing.
            command.uid(SOMEBODY).gid(SOMEBODY);
        }
        assert_eq!(ends(command).status.code(), Some(5), "{redirection}");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec \"$0\" doctor {redirection}"), &binary]);
        let code = ends(command).status.code();
        assert!(code.is_some_and(|code| code < 100), "doctor ended with {code:?}: no panic, no signal; {redirection}");
    }
}

/// A container's first process: nobody else reaps, signals have no default action, and a signal's exit code is above
/// 128.
#[test]
fn the_first_process_of_a_container_reaps_and_ends_as_shells_do() {
    let can = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: no namespace of process ids can be made here");
        return;
    }
    let place = Place::new();
    let inside = |line: &str| {
        let run = place.command(&["sh", "-c", line]);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).arg(run.get_program()).args(run.get_args());
        command.env("HOME", place.path("home")).env("TMPDIR", place.path("shared")).env_remove("XDG_RUNTIME_DIR");
        ends(command)
    };
    // Orphans end while the program runs: none may remain as a zombie.
    let orphans = "for i in 1 2 3; do sh -c 'sleep 0.1 & exit' ; done; sleep 1; \
                   grep -l '^State:.*Z' /proc/[0-9]*/status | wc -l";
    let output = inside(orphans);
    assert_eq!((output.status.code(), text(&output.stdout).trim()), (Some(0), "0"), "{}", text(&output.stderr));
    assert_eq!(inside("kill -TERM $$").status.code(), Some(143));
    assert_eq!(inside("exit 3").status.code(), Some(3));
}

#[test]
fn what_the_shield_could_not_repair_is_said_and_kept_for_the_doctor() {
    let place = Place::new();
    let record = place.path("home/.local/share/unhang/unrepaired.json");
    // A shell plays the shield's part; in crates/unhang-shield/tests the real one writes the same files.
    let play = |line: &str| {
        let output = ends(place.command(&["sh", "-c", line]));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    play("true");
    assert!(!record.exists(), "nothing is left behind where no shield was");
    let said = play(
        r#"cd "$UNHANG_RUN_FOLDER"; echo 57 > repaired-5
        printf 'Cijk_a\tno register is free\tMIOPEN_DEBUG_CONV_GEMM=0 avoids it\n' > unsafe-5"#,
    );
    assert!(said.contains("1 kernel could not be repaired: `unhang doctor` has it"), "{said}");
    let kept: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(kept["program"], "sh");
    assert_eq!(kept["kernels"][0]["remedy"], "MIOPEN_DEBUG_CONV_GEMM=0 avoids it");
    play("true");
    assert!(record.exists(), "a run without a shield says nothing about kernels");
    play(r#"echo 3 > "$UNHANG_RUN_FOLDER/repaired-5""#);
    assert!(!record.exists(), "in the last run with a shield everything was repaired");
}

/// The variables that a developer may have set.
const WATCH_VARIABLES: [&str; 6] = [
    "UNHANG_WATCHDOG",
    "UNHANG_HANG_DEADLINE",
    "UNHANG_OUTSIDE_DEADLINE",
    "UNHANG_HOST_DEADLINE",
    "UNHANG_QUEUE_DEADLINE",
    "WORLD_SIZE",
];

/// `unhang run` with these options, and only these of the watch's variables set.
fn watched(place: &Place, options: &[&str], variables: &[(&str, &str)], line: &str) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
    command.arg("run").args(options).args(["--", "sh", "-c", line]).stdin(Stdio::null());
    for name in WATCH_VARIABLES.into_iter().chain(["XDG_RUNTIME_DIR", "UNHANG_ROOT", "HSA_TOOLS_LIB"]) {
        command.env_remove(name);
    }
    command.env("HOME", place.path("home")).envs(variables.iter().copied());
    ends(command)
}

#[test]
fn queues_are_watched_after_the_other_watchdogs_and_not_where_nobody_watches() {
    let place = Place::new();
    let deadline = |options: &[&str], variables: &[(&str, &str)]| {
        let output = watched(&place, options, variables, "echo \"[$UNHANG_QUEUE_DEADLINE]\"");
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(deadline(&[], &[]), "[610]");
    assert_eq!(deadline(&["--hang-deadline", "2s"], &[]), "[30]");
    assert_eq!(deadline(&["--outside-deadline", "2s"], &[("UNHANG_HANG_DEADLINE", "50")]), "[12]");
    assert_eq!(deadline(&[], &[("UNHANG_OUTSIDE_DEADLINE", "5")]), "[15]");
    assert_eq!(deadline(&["--no-watchdog"], &[]), "[]");
    assert_eq!(deadline(&[], &[("UNHANG_WATCHDOG", "0")]), "[]");
    // As in a run inside another one.
    let outer = ("UNHANG_QUEUE_DEADLINE", "5m");
    assert_eq!(deadline(&[], &[outer]), "[300]");
    assert_eq!(deadline(&["--host-deadline", "2s"], &[outer]), "[300]");
    assert_eq!(deadline(&["--outside-deadline", "2s"], &[outer]), "[12]");
    assert_eq!(deadline(&["--hang-deadline", "2s"], &[outer]), "[30]");
    assert_eq!(deadline(&["--no-watchdog"], &[outer]), "[]");
    for off in ["0", ""] {
        assert_eq!(deadline(&[], &[outer, ("UNHANG_WATCHDOG", off)]), "[]");
    }
}

#[test]
fn a_queue_deadline_that_is_none_is_said_once_and_the_default_holds() {
    let place = Place::new();
    let variables = [("UNHANG_QUEUE_DEADLINE", "soon")];
    let output = watched(&place, &[], &variables, "echo $UNHANG_QUEUE_DEADLINE");
    assert_eq!(text(&output.stdout).trim(), "610");
    let said = text(&output.stderr);
    assert_eq!(said.matches("UNHANG_QUEUE_DEADLINE").count(), 1, "{said}");
    assert!(said.contains("'soon'") && said.contains("using 610s"), "{said}");
}

#[test]
fn whether_a_program_is_watched_is_read_in_one_way() {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures/rx5700xt-native");
    let root = root.to_str().unwrap();
    // Nothing here loads it, so the first bytes of a library are enough.
    let shield = place.path("home/shield.so");
    fs::write(&shield, b"\x7fELF\x02").unwrap();
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let variables = [&[("UNHANG_SHIELD", shield.to_str().unwrap())], variables].concat();
        let options = [&["--root", root, "--profile", "none"], options].concat();
        let output = watched(&place, &options, &variables, "echo \"[$UNHANG_WATCHDOG $HSA_TOOLS_LIB]\"");
        (text(&output.stdout).trim().to_owned(), text(&output.stderr))
    };
    let (set, said) = run(&[], &[]);
    assert!(set.starts_with("[1 /") && said.contains("; watchdog 60 s"), "the shield looks at queues: {set} {said}");
    for (options, variables) in
        [(&["--no-watchdog"][..], &[][..]), (&[], &[("UNHANG_WATCHDOG", "0")]), (&[], &[("UNHANG_WATCHDOG", "")])]
    {
        let (set, said) = run(options, variables);
        assert_eq!(set, "[0 ]", "nobody needs the shield: {options:?} {variables:?}");
        assert!(said.contains("; no watchdog"), "{said}");
    }
}

/// A card without a torch is not said to have native code: for some there is none.
#[test]
fn what_is_known_about_the_card_is_said_and_no_more() {
    let place = Place::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures");
    for (machine, options, expected) in [
        ("rx5700xt-native", &[][..], "with native code; "),
        ("bc250", &[], "BC-250, no spoof; "),
        ("no-gpu", &["-v"], "no RDNA1 card was found"),
    ] {
        let root = fixtures.join(machine);
        let options = [&["--root", root.to_str().unwrap()], options].concat();
        let said = text(&watched(&place, &options, &[], "true").stderr);
        assert!(said.contains(expected), "{machine}: {said}");
    }
}

#[test]
fn a_limit_on_the_size_of_files_ends_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 0; exec \"$0\" run -- sh -c 'exit 7'", env!("CARGO_BIN_EXE_unhang")]);
    command.env("HOME", home.path()).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures").join(name).display().to_string()
}

/// The variables that a run on a described machine would set.
fn would_set(machine: &str, variables: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
    command.env_clear().env("HOME", "/home/user").envs(variables.iter().copied());
    command.args(["run", "--dry-run", "--json", "--root", &fixture(machine), "--", "true"]);
    let output = ends(command);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let word = |it: &serde_json::Value, field: &str| it[field].as_str().unwrap_or_default().to_owned();
    let all = report["variables"].as_array().unwrap().iter();
    all.map(|it| (word(it, "name"), format!("{} {}", word(it, "action"), word(it, "value")))).collect()
}

#[test]
fn triton_gets_its_variable_and_caches_on_an_rdna1_card_only() {
    let set = would_set("rx5700xt-native", &[]);
    for (name, value) in [
        ("AMDGCN_USE_BUFFER_OPS", "set 0"),
        ("TRITON_CACHE_DIR", "set /home/user/.cache/unhang/triton"),
        ("TORCHINDUCTOR_CACHE_DIR", "set /home/user/.cache/unhang/inductor"),
    ] {
        assert!(set.contains(&(name.to_owned(), value.to_owned())), "{name}: {set:?}");
    }
    let kept = would_set("rx5700xt-native", &[("AMDGCN_USE_BUFFER_OPS", "1")]);
    assert!(kept.contains(&("AMDGCN_USE_BUFFER_OPS".to_owned(), "kept 1".to_owned())), "{kept:?}");
    assert!(!kept.iter().any(|(name, _)| name == "TRITON_CACHE_DIR"), "{kept:?}");
    assert_eq!(would_set("rx6800", &[]), []);
}

/// JAX's and TensorFlow's wheels reject gfx1010: without the spoof such a program loses the card.
#[test]
fn a_spoof_for_a_program_without_torch_is_not_said_to_be_wrong() {
    let set = would_set("container", &[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")]);
    assert!(!set.iter().any(|(name, _)| name == "HSA_OVERRIDE_GFX_VERSION"), "{set:?}");
    assert!(
        set.iter().any(|(name, _)| name == "HIPRTC_COMPILE_OPTIONS_APPEND"),
        "it is protected all the same: {set:?}"
    );
}

#[test]
fn everywhere_asks_for_our_kernels_on_any_card() {
    let place = Place::new();
    for (arguments, strategy) in [(&["--everywhere"][..], "jit\n"), (&[], "\n")] {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
        command.env("HOME", place.path("home")).env_remove("UNHANG_STRATEGY").arg("run").args(arguments);
        command.args(["--root", &fixture("rx6800"), "--", "sh", "-c", "echo $UNHANG_STRATEGY"]);
        assert_eq!(text(&ends(command).stdout), strategy, "{arguments:?}");
    }
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
    command.env("HOME", place.path("home")).args(["run", "--everywhere", "--dry-run"]);
    command.args(["--root", &fixture("rx6800"), "--", "true"]);
    let shown = text(&ends(command).stdout);
    assert!(shown.contains("UNHANG_STRATEGY=jit (asked for by --everywhere)"), "{shown}");
}
