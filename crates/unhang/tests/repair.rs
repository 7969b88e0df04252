//! `unhang repair` from outside, and what the repaired code computes.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use unhang_emulator::{Dispatch, Fault, FaultKind, Machine, Mode};
use unhang_isa::Chip;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn moves() -> PathBuf {
    fixture("unhang-isa/tests/fixtures/moves.co")
}

fn kernels() -> PathBuf {
    fixture("unhang-emulator/tests/fixtures/kernels.gfx1030.co")
}

fn repair(arguments: &[&str], files: &[&Path]) -> (i32, String, String) {
    let output = Command::cargo_bin("unhang").unwrap().arg("repair").args(files).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A repaired copy of a file, in memory.
fn repaired(file: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let (code, stdout, stderr) = repair(&["-o", output.to_str().unwrap()], &[file]);
    assert!(code <= 1, "{stdout}{stderr}");
    std::fs::read(output).unwrap()
}

/// Arguments as they are in memory: pointers, then numbers.
fn arguments(pointers: &[u64], numbers: &[i32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes
}

fn run(machine: &mut Machine, kernel: &str, workgroups: [u32; 3], lanes: u32, arguments: &[u8]) -> Result<(), Fault> {
    let dispatch = Dispatch::new(kernel, workgroups, [lanes, 1, 1], arguments);
    machine.run(&dispatch).map(|_| ())
}

/// The contents of memory after a kernel of the emulator's own fixtures.
fn results(object: &[u8], kernel: &str, mode: Mode) -> Result<Vec<u8>, Fault> {
    let mut machine = Machine::load(object, mode).unwrap();
    let numbers: Vec<f32> = (0..1200).map(|i| (i * 37 % 101) as f32 * 0.037 - 1.1).collect();
    let x = machine.memory.allocate_floats(&numbers);
    let links: Vec<u8> =
        (0..128i32).flat_map(|i| (if i % 7 == 0 { -1 } else { (i * 5 + 3) % 128 }).to_le_bytes()).collect();
    let next = machine.memory.allocate_bytes(&links);
    let y = machine.memory.allocate(4 * 1200);
    let (workgroups, lanes, arguments) = match kernel {
        "axpy" => ([4, 1, 1], 256, arguments(&[x, y], &[1.7f32.to_bits() as i32, 1000])),
        "block_sum" => ([4, 1, 1], 256, arguments(&[x, y], &[1000])),
        "gemm" => ([2, 2, 1], 256, arguments(&[x, x + 4, y], &[18, 17, 40])),
        "conv3x3" => ([4, 1, 1], 64, arguments(&[x, x + 800, y], &[3, 7, 9, 4])),
        "chase" => ([2, 1, 1], 64, arguments(&[next, y], &[9])),
        "histogram" => ([8, 1, 1], 64, arguments(&[x, y], &[4000])),
        "maths" => ([8, 1, 1], 64, arguments(&[x, y], &[500])),
        "halves" => ([2, 1, 1], 64, arguments(&[x, y], &[100])),
        _ => panic!("no arguments for {kernel}"),
    };
    run(&mut machine, kernel, workgroups, lanes, &arguments)?;
    let mut out = vec![0; 4 * 1200];
    machine.memory.read(y, &mut out).unwrap();
    Ok(out)
}

#[test]
fn compiled_kernels_are_stopped_before_and_finish_after_with_the_same_results() {
    let original = std::fs::read(kernels()).unwrap();
    let repaired = repaired(&kernels());
    let mut stopped = 0;
    for kernel in ["axpy", "block_sum", "gemm", "conv3x3", "chase", "histogram", "maths", "halves"] {
        let before = results(&original, kernel, Mode::Compute).unwrap();
        let after = results(&repaired, kernel, Mode::Hazards(Chip::Gfx1010)).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(before, after, "{kernel}");
        assert!(before.iter().any(|&byte| byte != 0), "{kernel} left nothing");
        if let Err(fault) = results(&original, kernel, Mode::Hazards(Chip::Gfx1010)) {
            assert!(matches!(fault.kind, FaultKind::Hazard { .. }), "{fault}");
            stopped += 1;
        }
    }
    assert!(stopped >= 5, "only {stopped} of the originals were stopped");
}

#[test]
fn code_that_depends_on_its_place_computes_the_same_elsewhere() {
    let original = std::fs::read(moves()).unwrap();
    let repaired = repaired(&moves());
    let run = |object: &[u8], mode| {
        let mut machine = Machine::load(object, mode).unwrap();
        let numbers: Vec<u8> = (0..192u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let (x, y) = (machine.memory.allocate_bytes(&numbers), machine.memory.allocate_bytes(&numbers));
        run(&mut machine, "everything", [1, 1, 1], 32, &arguments(&[x, y], &[]))?;
        let mut out = vec![0; 192 * 4];
        machine.memory.read(y, &mut out).unwrap();
        Ok::<_, Fault>(out)
    };
    let before = run(&original, Mode::Compute).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(run(&repaired, Mode::Compute).unwrap_or_else(|fault| panic!("{fault}")), before);
    // `calm` does not move, so what it calls moves: the whole call tree runs in repaired code.
    assert_eq!(run(&repaired, Mode::Hazards(Chip::Gfx1010)).unwrap_or_else(|fault| panic!("{fault}")), before);
    assert!(run(&original, Mode::Hazards(Chip::Gfx1010)).is_err());
}

#[test]
fn the_copy_is_deterministic_and_repairing_it_again_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let original = std::fs::read(kernels()).unwrap();
    assert_eq!(repair(&["-o", first.to_str().unwrap()], &[&kernels()]).0, 0);
    assert_eq!(repair(&["-o", second.to_str().unwrap()], &[&first]).0, 0);
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    assert_eq!(std::fs::read(&first).unwrap(), repaired(&kernels()));
    assert_eq!(std::fs::read(kernels()).unwrap(), original);
    let audit = Command::cargo_bin("unhang").unwrap().arg("audit").arg(&first).output().unwrap();
    assert_eq!(audit.status.code(), Some(0));
}

#[test]
fn json_says_what_was_done_in_each_function_and_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.co");
    let (code, stdout, _) = repair(&["--json", "-o", output.to_str().unwrap()], &[&moves()]);
    assert_eq!(code, 1, "functions are left");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        report.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["schema", "input", "output", "chip", "objects", "totals"]
    );
    let functions = report["objects"][0]["functions"].as_array().unwrap();
    let get = |name: &str| functions.iter().find(|function| function["name"] == name).unwrap();
    assert_eq!(get("everything")["treatment"], "given a new layout");
    assert_eq!(get("everything")["after"]["vcmpx-exec-war"], 0);
    assert_eq!(get("prefetch_only")["treatment"], "repaired in place");
    assert!(get("left_jump")["reason"].as_str().unwrap().contains("the jump at 0x14"));
    assert_eq!(report["totals"]["functions"], functions.len());
    let (_, stdout, _) = repair(&["--functions", "-o", output.to_str().unwrap()], &[&moves()]);
    assert!(stdout.contains("everything: given a new layout") && stdout.contains("must be recompiled"), "{stdout}");
}

#[test]
fn the_input_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link, symbolic] = ["file", "link", "symbolic"].map(|name| folder.path().join(name));
    std::fs::copy(kernels(), &file).unwrap();
    std::fs::hard_link(&file, &link).unwrap();
    std::os::unix::fs::symlink(&file, &symbolic).unwrap();
    for output in [&file, &link, &symbolic] {
        let (code, _, stderr) = repair(&["-o", output.to_str().unwrap()], &[&file]);
        assert_eq!(code, 2);
        assert!(stderr.contains("never overwritten") && stderr.contains("hint"), "{stderr}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(kernels()).unwrap());
}

#[test]
fn what_is_no_file_is_never_replaced_by_one() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    for output in [pipe.to_str().unwrap(), folder.path().to_str().unwrap()] {
        let (code, _, stderr) = repair(&["-o", output], &[&kernels()]);
        assert_eq!(code, 2, "{output}");
        assert!(stderr.contains("is not a plain file"), "{stderr}");
    }
    // Redirected output is a plain file under a system name.
    let (stdout, link) = (folder.path().join("stdout"), folder.path().join("link"));
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
    command.arg("repair").arg(kernels()).arg("-o").arg(&link).stdout(std::fs::File::create(stdout).unwrap());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a plain file"));
    assert!(link.is_symlink(), "as /dev/stdout itself would not have been");
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(), "as /dev/null would have been");
}

#[test]
fn the_copy_may_be_read_by_whoever_may_read_the_original() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let [file, output] = ["file", "output"].map(|name| folder.path().join(name));
    std::fs::copy(kernels(), &file).unwrap();
    for mode in [0o600, 0o640, 0o444] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(repair(&["-o", output.to_str().unwrap()], &[&file]).0, 0);
        assert_eq!(std::fs::metadata(&output).unwrap().permissions().mode() & 0o777, mode);
        std::fs::remove_file(&output).unwrap();
    }
}

#[test]
fn what_cannot_be_copied_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let words = folder.path().join("words");
    std::fs::write(&words, "words").unwrap();
    for (file, reason) in
        [(folder.path(), "is a folder"), (&words, "not a code object"), (&folder.path().join("missing"), "cannot read")]
    {
        let (code, _, stderr) = repair(&["-o", output.to_str().unwrap()], &[file]);
        assert_eq!(code, 2);
        assert!(stderr.contains(reason), "{stderr}");
        assert!(!output.exists());
    }
    let native = fixture("unhang-emulator/tests/fixtures/kernels.gfx1010.co");
    assert_eq!(repair(&["-o", output.to_str().unwrap()], &[&native]).0, 3, "nothing to repair");
    assert_eq!(std::fs::read(&output).unwrap(), std::fs::read(native).unwrap());
}

#[test]
fn extract_repairs_every_object_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    std::fs::create_dir(&input).unwrap();
    std::fs::copy(kernels(), input.join("kernels.co")).unwrap();
    std::fs::write(input.join("notes.txt"), "words").unwrap();
    let (code, stdout, stderr) = repair(&["--json", "--extract", output.to_str().unwrap()], &[&input]);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let written = report["objects"][0]["output"].as_str().unwrap();
    assert_eq!(std::fs::read(written).unwrap(), repaired(&kernels()));
    assert_eq!(std::fs::read_dir(&output).unwrap().count(), 1);
}

/// hiprtc, with its code for gfx1030 repaired for gfx1010 before it is loaded.
struct Repairing(unhang_gpu::compiler::Hiprtc);

impl unhang_gpu::compiler::Compiler for Repairing {
    fn version(&self) -> String {
        self.0.version()
    }

    fn options(&self, kernel: &unhang_gpu::sources::Kernel, architecture: &str) -> Vec<String> {
        self.0.options(kernel, architecture)
    }

    fn compile(
        &self,
        kernel: &unhang_gpu::sources::Kernel,
        options: &[String],
    ) -> Result<Vec<u8>, unhang_gpu::compiler::CompileError> {
        use unhang_isa::repair::{Options, repair_object};
        let object = self.0.compile(kernel, options)?;
        let repair = repair_object(&object, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap();
        assert!(repair.functions.iter().all(|function| function.after.total() == 0), "{kernel}");
        assert!(repair.functions.iter().any(|function| function.before.total() > 0), "{kernel} had nothing to repair");
        Ok(repair.bytes.unwrap())
    }
}

#[test]
fn our_own_kernels_for_gfx1030_are_right_on_gfx1010_once_repaired() {
    use unhang_gpu::driver::{Emulated, EmulatedEngine};
    let compiler = match unhang_gpu::compiler::Hiprtc::find() {
        Ok(compiler) => std::sync::Arc::new(Repairing(compiler)),
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let card = Emulated::new(Chip::Gfx1010, Chip::Gfx1030, Chip::Gfx1030, compiler);
    let settings = unhang_gpu::GpuSettings {
        workspace_limit: Some(1 << 26),
        cache_folder: None,
        cache_limit: 0,
        shipped_folder: None,
    };
    let engine = EmulatedEngine::new(card, settings);
    let mut families = std::collections::BTreeSet::new();
    for problem in [
        "forward:f32:nchw:1x16x8x8:16x3x3:s1x1:p1x1:d1x1:g1",
        "backward-weights:f32:nchw:1x8x7x7:8x3x3:s1x1:p1x1:d1x1:g1",
        "forward:f32:nchw:1x12x7x9:12x3x3:s2x2:p1x1:d1x1:g12",
    ] {
        let problem: unhang_conv::Problem = problem.parse().unwrap();
        for candidate in
            unhang_gpu::candidates::candidates(&problem, &unhang_gpu::model::DeviceModel::rx_5600_xt(), 1 << 26)
        {
            if families.insert(candidate.choice.family()) {
                engine.use_choice(Some(candidate.choice));
                if let Err(failure) = unhang_suite::check(&engine, &problem, 5) {
                    panic!("{} on {problem}: {failure}", candidate.choice);
                }
            }
        }
    }
    println!("{families:?}");
    assert!(families.len() >= 3, "{families:?}");
}

#[test]
fn what_is_taken_out_of_a_container_stays_in_its_folder() {
    let place = tempfile::tempdir().unwrap();
    let (input, folder) = (place.path().join("evil.bundle"), place.path().join("a/b/out"));
    std::fs::create_dir_all(place.path().join("a/b")).unwrap();
    // A target that escapes the folder, with something in it that cannot be repaired.
    let name = b"hipv4-amdgcn-amd-amdhsa--gfx1030/../../../escaped";
    let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    bytes.extend(1u64.to_le_bytes());
    for value in [4096u64, 64, name.len() as u64] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(name);
    bytes.resize(4096, 0);
    bytes.extend(b"\x7fELF not really".iter().chain(&[0; 60]).take(64));
    std::fs::write(&input, bytes).unwrap();
    let (code, stdout, stderr) = repair(&["--extract", folder.to_str().unwrap()], &[&input]);
    assert_eq!(code, 2, "{stdout}{stderr}");
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(&folder).len(), 1, "{stdout}");
    assert!(names(&folder)[0].starts_with("evil.bundle.0.gfx1030_.._"), "{:?}", names(&folder));
    assert_eq!(names(&place.path().join("a")), ["b"]);
    assert_eq!(names(&place.path().join("a/b")), ["out"]);
}

#[test]
fn folders_that_cannot_be_read_are_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let place = tempfile::tempdir().unwrap();
    let (closed, out) = (place.path().join("in/closed"), place.path().join("out"));
    for folder in [&closed, &out] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::copy(moves(), place.path().join("in/moves.co")).unwrap();
    for (path, mode) in [(place.path(), 0o755), (out.as_path(), 0o777), (closed.as_path(), 0o000)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("unhang"));
    command.arg("repair").arg(place.path().join("in")).arg("--extract").arg(&out);
    if rustix::process::geteuid().is_root() {
        // Root may open everything.
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("in/closed") && text.contains("Permission denied"), "{text}");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
}
