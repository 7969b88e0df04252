//! Running programs on the emulated card.

// Each test program uses its own part of this.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a program may take: the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(240);

/// A library of ours that was built with the tests.
pub(crate) fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join(name));
    places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is built with the tests"))
}

/// A machine of the fixtures.
pub(crate) fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures").join(name).canonicalize().unwrap()
}

/// What a program did.
pub(crate) struct Ran {
    pub status: ExitStatus,
    pub output: String,
    pub errors: String,
    pub journal: String,
}

impl Ran {
    pub(crate) fn assert_right(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.output.contains(&format!("right: {part}\n")), "{part}\n{}\n{}", self.output, self.errors);
        }
        assert!(self.status.success(), "{}\n{}", self.output, self.errors);
        assert!(!self.journal.contains("\"event\":\"hazard\""), "{}", self.journal);
    }
}

/// Runs a program on a machine's cards, within a deadline.
pub(crate) fn run(machine_name: &str, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("counters"), [0; 64]).unwrap();
    for name in ["journal", "out", "err"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let to_file = |name: &str| Stdio::from(std::fs::File::create(folder.path().join(name)).unwrap());
    let mut child = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library("libunhang_card.so"))
        .env("UNHANG_CARD_ROOT", machine(machine_name))
        .env("UNHANG_CARD_RUN", folder.path())
        .env("UNHANG_CARD_DETAIL", "1")
        .env_remove("HSA_OVERRIDE_GFX_VERSION")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(to_file("out"))
        .stderr(to_file("err"))
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > DEADLINE {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let read = |name: &str| String::from_utf8_lossy(&std::fs::read(folder.path().join(name)).unwrap()).into_owned();
    Ran { status, output: read("out"), errors: read("err"), journal: read("journal") }
}

/// Whether a program is installed; a line says so where it is not.
pub(crate) fn installed(program: &str) -> bool {
    let is_there = Path::new(program).exists();
    if !is_there {
        println!("skipped: {program} is not installed");
    }
    is_there
}

/// The HIP program of these tests, compiled once for the chips of the shipped cards; nothing where no compiler is.
pub(crate) fn hip_program() -> Option<PathBuf> {
    const COMPILER: &str = "/usr/bin/clang++-15";
    const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode";
    static COMPILING: Mutex<()> = Mutex::new(());
    if !installed(COMPILER) || !installed(LIBRARIES) || !installed("/usr/include/hip/hip_runtime.h") {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip.cpp");
    let mut hasher = DefaultHasher::new();
    std::fs::read(&source).unwrap().hash(&mut hasher);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hip-{:016x}", hasher.finish()));
    let _alone = COMPILING.lock().unwrap();
    if !target.exists() {
        // Under another name first: test programs run beside each other.
        let unfinished = target.with_extension(std::process::id().to_string());
        let output = Command::new(COMPILER)
            .args(["-x", "hip", "--rocm-path=/usr", "-O2"])
            .arg(format!("--rocm-device-lib-path={LIBRARIES}"))
            .args(["gfx1010", "gfx1012", "gfx1030"].map(|chip| format!("--offload-arch={chip}")))
            .arg(&source)
            .arg("-o")
            .arg(&unfinished)
            .arg("-lamdhip64")
            .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(unfinished, &target).unwrap();
    }
    Some(target)
}
