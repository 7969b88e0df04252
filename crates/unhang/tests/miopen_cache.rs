//! `unhang miopen-cache` on databases created here as MIOpen creates them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use md5::{Digest, Md5};
use rusqlite::Connection;
use serde_json::Value;

const FULL: &str = "16-64-64-3x3-32-64-64-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:0.12,2359296,miopenConvolutionFwdAlgoGEMM;\
                    ConvDirectNaiveConvFwd:1.9,0,miopenConvolutionFwdAlgoDirect";
const NARROWED: &str =
    "16-48-48-3x3-32-48-48-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:0.08,1327104,miopenConvolutionFwdAlgoGEMM";
const BROKEN: &str = "3-32-32-3x3-16-32-32-1-1x1-1x1-1x1-0-NCHW-FP32-F=GemmFwdRest:nan,0,miopenConvolutionFwdAlgoGEMM";

struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine { root };
        fs::write(machine.path("environment"), "HOME=/home/user\n").unwrap();
        fs::create_dir_all(machine.path("home/user/.config/miopen")).unwrap();
        fs::create_dir_all(machine.path("home/user/.cache/miopen/2.20.0")).unwrap();
        machine
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    fn find_db(&self) -> PathBuf {
        self.path("home/user/.config/miopen/gfx1030_18.HIP.2_20_0.ufdb.txt")
    }

    fn kernels(&self) -> PathBuf {
        self.path("home/user/.cache/miopen/2.20.0/gfx1030_18.ukdb")
    }

    fn run(&self, arguments: &[&str]) -> (String, i32) {
        let mut command = Command::cargo_bin("unhang").expect("the program is built");
        let root = self.root.path().to_str().unwrap();
        let agreed = arguments.first().filter(|it| **it == "repair").map(|_| "--yes");
        command.env_clear().arg("miopen-cache").args(arguments).args(agreed).args(["--root", root]);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }

    fn json(&self, arguments: &[&str]) -> (Value, i32) {
        let (text, code) = self.run(&[arguments, &["--json"]].concat());
        (serde_json::from_str(&text).unwrap(), code)
    }
}

fn make_kernels(path: &Path) {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE `kern_db` (`id` INTEGER PRIMARY KEY ASC,`kernel_name` TEXT NOT NULL,`kernel_args` TEXT NOT NULL,
             `kernel_blob` BLOB NOT NULL,`kernel_hash` TEXT NOT NULL,`uncompressed_size` INT NOT NULL);
             CREATE UNIQUE INDEX `idx_kern_db` ON kern_db(kernel_name, kernel_args);",
        )
        .unwrap();
    let code = b"\x7fELF code object ".repeat(500);
    let hash: String = Md5::digest(&code).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    encoder.write_all(&code).unwrap();
    let packed = encoder.finish().unwrap();
    let mut damaged = packed.clone();
    damaged.truncate(packed.len() / 2);
    let size = code.len() as i64;
    for (name, blob, hash, size) in [
        ("packed.cpp.o", packed.as_slice(), hash.as_str(), size),
        ("plain.s.o", code.as_slice(), hash.as_str(), 0),
        ("cut.cpp.o", damaged.as_slice(), hash.as_str(), size),
        ("other.cpp.o", packed.as_slice(), "00000000000000000000000000000000", size),
        ("bomb.cpp.o", packed.as_slice(), hash.as_str(), 10),
        ("liar.cpp.o", packed.as_slice(), hash.as_str(), i64::MAX),
    ] {
        let sql = "INSERT INTO kern_db(kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size) VALUES(?1, '-mcpu=gfx1030', ?2, ?3, ?4)";
        connection.execute(sql, (name, blob, hash, size)).unwrap();
    }
}

#[test]
fn an_empty_machine_has_nothing() {
    let machine = Machine::new();
    let (text, code) = machine.run(&["list"]);
    assert!(text.contains("no database of MIOpen") && code == 0, "{text}");
    assert_eq!(machine.run(&["verify"]).1, 0);
}

#[test]
fn records_are_listed_in_words() {
    let machine = Machine::new();
    fs::write(machine.find_db(), format!("{FULL}\n{NARROWED}\n")).unwrap();
    let (text, code) = machine.run(&["list", "--records"]);
    assert_eq!(code, 0);
    assert!(text.contains("16→32 channels, 3×3, 64×64 to 64×64, batch 1"), "{text}");
    assert!(text.contains("[narrowed]"), "{text}");
    let (report, _) = machine.json(&["list", "--records"]);
    let file = &report["databases"][0];
    assert_eq!((&file["kind"], &file["sound"]), (&"find-db".into(), &2.into()));
    assert_eq!(file["records"][0]["entries"].as_array().unwrap().len(), 2);
    assert_eq!(file["narrowed"].as_array().unwrap().len(), 1);
}

#[test]
fn damaged_lines_go_and_a_backup_stays() {
    let machine = Machine::new();
    let before = format!("{FULL}\n{BROKEN}\nhalf a li");
    fs::write(machine.find_db(), &before).unwrap();
    let (report, code) = machine.json(&["verify"]);
    assert_eq!(code, 1);
    let lines: Vec<_> =
        report["databases"][0]["damage"].as_array().unwrap().iter().map(|it| it["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 3]);

    let (text, _) = machine.run(&["repair", "--dry-run"]);
    assert!(text.contains("would be removed"), "{text}");
    assert_eq!(fs::read_to_string(machine.find_db()).unwrap(), before);

    let (text, _) = machine.run(&["repair"]);
    assert_eq!(fs::read_to_string(machine.find_db()).unwrap(), format!("{FULL}\n"));
    let backup = machine.find_db().with_file_name("gfx1030_18.HIP.2_20_0.ufdb.txt.unhang-backup");
    assert!(text.starts_with("in the machine described by the folder "), "{text}");
    assert!(text.contains(backup.to_str().unwrap()), "the path can be copied: {text}");
    assert_eq!(fs::read_to_string(backup).unwrap(), before);
    assert_eq!(machine.run(&["verify"]).1, 0);
    assert!(machine.run(&["repair"]).0.contains("nothing to repair"));
}

#[test]
fn narrowed_records_go_only_when_asked() {
    let machine = Machine::new();
    fs::write(machine.find_db(), format!("{FULL}\n{NARROWED}\n")).unwrap();
    assert_eq!(machine.run(&["verify"]).1, 0, "narrowed is not damaged");
    assert!(machine.run(&["repair"]).0.contains("nothing to repair"));
    machine.run(&["repair", "--narrowed"]);
    assert_eq!(fs::read_to_string(machine.find_db()).unwrap(), format!("{FULL}\n"));
}

#[test]
fn each_kernel_is_unpacked_and_hashed() {
    let machine = Machine::new();
    make_kernels(&machine.kernels());
    let before = fs::read(machine.kernels()).unwrap();
    let (report, code) = machine.json(&["verify"]);
    assert_eq!(code, 1);
    assert_eq!(fs::read(machine.kernels()).unwrap(), before, "looking changes nothing");
    assert_eq!(fs::read_dir(machine.kernels().parent().unwrap()).unwrap().count(), 1, "and makes no files");
    let file = &report["databases"][0];
    assert_eq!(file["sound"], 2);
    let bad: Vec<_> = file["damage"].as_array().unwrap().iter().map(|it| it["record"].as_str().unwrap()).collect();
    assert_eq!(bad, ["cut.cpp.o", "other.cpp.o", "bomb.cpp.o", "liar.cpp.o"]);

    machine.run(&["repair"]);
    let (report, code) = machine.json(&["list", "--records"]);
    assert_eq!(code, 0);
    let names: Vec<_> =
        report["databases"][0]["kernels"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["packed.cpp.o", "plain.s.o"]);
    let backup = machine.kernels().with_file_name("gfx1030_18.ukdb.unhang-backup");
    assert_eq!(fs::read(backup).unwrap(), before);
}

#[test]
fn a_broken_file_is_moved_aside() {
    let machine = Machine::new();
    make_kernels(&machine.kernels());
    let mut content = fs::read(machine.kernels()).unwrap();
    content.truncate(content.len() / 2);
    fs::write(machine.kernels(), &content).unwrap();
    assert_eq!(machine.run(&["verify"]).1, 1);
    machine.run(&["repair"]);
    assert!(!machine.kernels().exists());
    let backup = machine.kernels().with_file_name("gfx1030_18.ukdb.unhang-backup");
    assert_eq!(fs::read(backup).unwrap(), content);
    assert_eq!(machine.run(&["verify"]).1, 0);
}

#[test]
fn a_view_in_place_of_the_table_is_not_run() {
    let machine = Machine::new();
    let connection = Connection::open(machine.kernels()).unwrap();
    connection
        .execute_batch("CREATE VIEW kern_db AS WITH RECURSIVE endless(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM endless) SELECT id FROM endless;")
        .unwrap();
    drop(connection);
    // A schema that computes is rejected, and the database counts as damaged.
    let (report, code) = machine.json(&["verify"]);
    assert_eq!((code, &report["databases"][0]["sound"]), (1, &0.into()));
}

#[test]
fn a_link_is_left_alone() {
    let machine = Machine::new();
    let elsewhere = machine.path("elsewhere.txt");
    fs::write(&elsewhere, format!("{BROKEN}\n")).unwrap();
    std::os::unix::fs::symlink("/elsewhere.txt", machine.find_db()).unwrap();
    let mut command = Command::cargo_bin("unhang").unwrap();
    let output = command
        .env_clear()
        .args(["miopen-cache", "repair", "--yes", "--root", machine.root.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("symbolic link"));
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), format!("{BROKEN}\n"));
}

/// `sudo unhang miopen-cache repair` finds the databases of the user who called it, whose MIOpen writes them later.
#[test]
fn what_root_repairs_still_belongs_to_its_owner() {
    use std::os::unix::fs::{MetadataExt, chown};
    const SOMEBODY: u32 = 65534;
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("skipped: a second user needs root");
    }
    let machine = Machine::new();
    fs::write(machine.find_db(), format!("{FULL}\n{BROKEN}\n")).unwrap();
    chown(machine.find_db(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    let (done, code) = machine.json(&["repair"]);
    assert_eq!((code, &done["repaired"][0]["removed"]), (0, &1.into()), "{done}");
    let files: Vec<PathBuf> =
        fs::read_dir(machine.path("home/user/.config/miopen")).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "the file and its backup: {files:?}");
    for file in files {
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.uid(), found.gid()), (SOMEBODY, SOMEBODY), "{}", file.display());
    }
}
