//! A machine on which one file is somebody's own making: the doctor looks at it, and a bundle of it is made.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use unhang_machine::{Bundle, Environment, Options, System, steps};

/// What others can write, or a damaged disk: the first byte of the input says which.
const FILES: [&str; 10] = [
    "environment",
    "var/log/kern.log",
    "var/log/journal/0123456789abcdef0123456789abcdef/system.journal",
    "lib/x86_64-linux-gnu/libc.so.6",
    "home/user/.bashrc",
    "home/user/.config/miopen/gfx1030_18.HIP.2_20_0.ufdb.txt",
    "home/user/.cache/miopen/2.20.0/gfx1030_18.ukdb",
    "home/user/venv/lib/python3.10/site-packages/torch/version.py",
    "home/user/venv/lib/python3.10/site-packages/torch/lib/libtorch_hip.so",
    "sys/class/kfd/kfd/topology/nodes/1/properties",
];

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// One machine for the whole run: copying it each time would be most of the work.
fn machine() -> &'static Path {
    static MACHINE: OnceLock<PathBuf> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        // Nobody hears of the end of a run: it stays where everything of the build does.
        let folder = root.join(format!("build/fuzz/machine-{}", std::process::id()));
        let fixture = root.join("crates/unhang-machine/fixtures/rx5600xt-rocm5.7");
        copy(&fixture, &folder).expect("the machine");
        folder
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((which, contents)) = data.split_first() else { return };
    let path = machine().join(FILES[usize::from(*which) % FILES.len()]);
    let before = fs::read(&path).ok();
    fs::create_dir_all(path.parent().expect("in the machine")).expect("a folder");
    fs::write(&path, contents).expect("the file");
    let system = System::folder(machine(), Environment::parse("HOME=/home/user\nUSER=user\n"));
    let bundle = Bundle::collect(system, &Options::default());
    let _ = steps(&bundle.examination);
    bundle.write(std::io::sink()).expect("nothing to write to fails");
    match before {
        Some(before) => fs::write(&path, before).expect("the file as it was"),
        None => fs::remove_file(&path).expect("no such file, as it was"),
    }
});
