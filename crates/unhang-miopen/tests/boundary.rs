//! The library as programs meet it: clients of our own that bind MIOpen as frameworks do, and a *stand-in* for MIOpen, which computes
//! nothing. Most tests have a stand-in for the HIP runtime too, and the CPU computes. Those on the card have AMD's own runtime
//! (Debian 12's 5.2.3) and our kernels on the emulated card. The real MIOpen is the matter of `tools/test-rocm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use unhang_conv::Problem;
use unhang_gpu::candidates::candidates;
use unhang_gpu::model::DeviceModel;

/// A library of ours that was built with the tests.
fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let places = [folder, folder.parent().unwrap()].map(|folder| folder.join(name));
    places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is built with the tests"))
}

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-machine/fixtures").join(name).canonicalize().unwrap()
}

/// Everything that is compiled, once for all tests.
fn built() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in");
        let compile = |output: &str, file: &str, options: &[&str]| {
            let output = folder.path().join(output);
            std::fs::create_dir_all(output.parent().unwrap()).unwrap();
            let ran = Command::new("cc")
                .args(["-g", "-w", "-fPIC", "-o"])
                .arg(&output)
                .arg(source.join(file))
                .args(options)
                .current_dir(folder.path())
                .output()
                .expect("a C compiler");
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        };
        let old_rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN";
        compile("libamdhip64.so.6", "hip.c", &["-shared", "-Wl,-soname,libamdhip64.so.6"]);
        let miopen = |name: &str, soname: &str, more: &[&str]| {
            let soname = format!("-Wl,-soname,{soname}");
            let mut options = vec!["-shared", &soname, "-Wl,--no-as-needed", "libamdhip64.so.6", old_rpath];
            options.extend(more);
            compile(name, "miopen.c", &options);
        };
        miopen("libMIOpen.so.1", "libMIOpen.so.1", &[]);
        miopen("libMIOpen.so", "libMIOpen.so", &["-DMARK=2"]);
        miopen("old/libMIOpen.so.1", "libMIOpen.so.1", &["-DWITHOUT_BYTES", "-Wl,-rpath,$ORIGIN/.."]);
        compile("libtorch_like.so", "client.c", &["-shared", "libMIOpen.so.1", old_rpath]);
        compile("libother_like.so", "client.c", &["-shared", "libMIOpen.so", old_rpath]);
        compile("libxla_like.so", "client.c", &["-shared", "-DBY_DLSYM", LINKS_HIP, old_rpath]);
        compile("old/libtorch_like.so", "client.c", &["-shared", "old/libMIOpen.so.1", old_rpath]);
        // Versioned as AMD's is, and a client that insists on the version, as onnxruntime does.
        std::fs::write(folder.path().join("versions"), "MIOPEN_HIP_1 { global: *; };").unwrap();
        miopen(
            "versioned/libMIOpen.so.1",
            "libMIOpen.so.1",
            &["-Wl,--version-script=versions", "-Wl,-rpath,$ORIGIN/.."],
        );
        let runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN";
        compile("versioned/libonnx_like.so", "client.c", &["-shared", "versioned/libMIOpen.so.1", runpath, LINKS_HIP]);
        compile("libtable_like.so", "client.c", &["-shared", "-fno-plt", "-Wl,-z,now", "libMIOpen.so.1", old_rpath]);
        compile(
            "linked",
            "client.c",
            &["-DPROGRAM", "libMIOpen.so.1", LINKS_HIP, old_rpath, "-ldl", "-lpthread", "-lm"],
        );
        compile("program", "program.c", &["-ldl", "-lpthread"]);
        compile("asks", "asks.c", &["-ldl"]);
        if Path::new(RUNTIME).exists() {
            let real = |name: &str, file: &str, more: &[&str]| {
                let mut options = vec!["-shared", "-DREAL_HIP", "-Wl,--no-as-needed", RUNTIME];
                options.extend(more);
                compile(name, file, &options);
            };
            real("card/libMIOpen.so.1", "miopen.c", &["-Wl,-soname,libMIOpen.so.1"]);
            real("hangs/libMIOpen.so.1", "miopen.c", &["-Wl,-soname,libMIOpen.so.1", "-DHANGS"]);
            real("card/libtorch_like.so", "client.c", &["card/libMIOpen.so.1", old_rpath]);
            real("card/libxla_like.so", "client.c", &["-DBY_DLSYM", old_rpath]);
            real("hangs/libtorch_like.so", "client.c", &["hangs/libMIOpen.so.1", old_rpath]);
        }
        folder
    });
    folder.path()
}

/// The stand-in for it, which clients allocate by.
const LINKS_HIP: &str = "libamdhip64.so.6";
/// AMD's own runtime.
const RUNTIME: &str = "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5";

/// A run on the emulated card by our plainest kernels; none where the runtime is not installed.
fn on_the_card<'a>() -> Option<Run<'a>> {
    if !Path::new(RUNTIME).exists() {
        println!("skipped: {RUNTIME} is not installed");
        return None;
    }
    let variables = vec![("UNHANG_MIOPEN_FAMILIES", "plain,strided"), ("UNHANG_SETTINGS", "verbose=True")];
    Some(Run { variables, ..Run::default() })
}

struct Run<'a> {
    machine: &'a str,
    variables: Vec<(&'a str, &'a str)>,
    route: Route,
}

/// How the library comes into a program.
#[derive(Clone, Copy, PartialEq)]
enum Route {
    None,
    Preload,
    Audit,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Run { machine: "rx5700xt-native", variables: vec![("UNHANG_STRATEGY", "cpu_fallback")], route: Route::Preload }
    }
}

impl Run<'_> {
    fn of(&self, words: &[&str]) -> Output {
        let home = tempfile::tempdir().unwrap();
        let folder = built();
        let mut command = Command::new("timeout");
        command.arg("600");
        match words {
            // A separate program, and its parts.
            ["linked", parts @ ..] => command.arg(folder.join("linked")).args(parts),
            pairs => {
                command.arg(folder.join("program"));
                for pair in pairs.chunks(2) {
                    command.arg(folder.join(pair[0])).arg(pair[1]);
                }
                &mut command
            }
        };
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("UNHANG_") || name == "LD_PRELOAD") {
            command.env_remove(name);
        }
        // The files of a machine with a card, by the library that plays one; its driver's interface is not used.
        std::fs::write(home.path().join("counters"), [0; 64]).unwrap();
        std::fs::write(home.path().join("journal"), "").unwrap();
        command.env("UNHANG_CARD_ROOT", machine(self.machine)).env("UNHANG_CARD_RUN", home.path());
        command.env("UNHANG_HOME", home.path().join("home")).env_remove("HSA_OVERRIDE_GFX_VERSION");
        command.env("LD_LIBRARY_PATH", folder);
        let card = library("libunhang_card.so").display().to_string();
        let ours = library("libunhang_miopen.so").display().to_string();
        command.env("LD_PRELOAD", if self.route == Route::Preload { format!("{card}:{ours}") } else { card });
        if self.route == Route::Audit {
            command.env("LD_AUDIT", library("libunhang_miopen_audit.so"));
        }
        command.envs(self.variables.iter().copied()).output().unwrap()
    }

    #[track_caller]
    fn assert_right(&self, words: &[&str]) -> String {
        let ran = self.of(words);
        let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success() && ran.stdout == b"right\n", "{words:?}: {}\n{errors}", ran.status);
        errors
    }
}

#[test]
fn a_client_that_is_linked_like_torch_is_reached() {
    for part in ["find", "immediate", "biases"] {
        Run::default().assert_right(&["libtorch_like.so", part]);
    }
}

#[test]
fn a_client_that_looks_functions_up_like_xla_is_reached() {
    for part in ["find", "immediate", "biases"] {
        Run::default().assert_right(&["libxla_like.so", part]);
    }
}

#[test]
fn three_axes_of_space_are_computed_on_the_host_and_on_the_card() {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        let said = Run::default().assert_right(&[client, "three axes"]);
        assert!(!said.contains("refused"), "{said}");
    }
    let mut wrong = Run::default();
    wrong.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    assert!(!wrong.of(&["libtorch_like.so", "three axes"]).status.success());
    let Some(mut run) = on_the_card() else { return };
    let said = run.assert_right(&["card/libtorch_like.so", "three axes"]);
    // Counted as what was asked for, however many parts it was folded into.
    assert!(said.contains("asked for 9 convolutions that jit computed"), "{said}");
    assert!(said.contains("forward:f32:nchw:6x12x4x5:6x3x2:s1x1:p1x0:d1x2:g2 -> jit"), "{said}");
    run.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    assert!(!run.of(&["card/libtorch_like.so", "three axes"]).status.success());
}

#[test]
fn a_client_that_uses_nothing_but_immediate_mode_like_jax_is_reached() {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        Run::default().assert_right(&[client, "immediate only"]);
    }
}

#[test]
fn by_auditing_the_loader_every_client_is_reached_however_it_is_bound() {
    let run = Run { route: Route::Audit, ..Run::default() };
    for part in ["find", "immediate", "immediate only", "biases"] {
        for client in ["libtorch_like.so", "libxla_like.so", "libtable_like.so", "versioned/libonnx_like.so"] {
            run.assert_right(&[client, part]);
        }
        run.assert_right(&["linked", part]);
    }
}

#[test]
fn a_client_that_is_loaded_with_deepbind_or_in_its_own_namespace_is_reached_by_auditing_alone() {
    // Whoever is loaded so does not see the library that plays the machine either: its files are named, and on a machine that is
    // described and not there our library computes nothing. It is reached if it refuses; MIOpen would not.
    let folder = machine("rx5700xt-native");
    let variables = vec![("UNHANG_STRATEGY", "cpu_fallback"), ("UNHANG_ROOT", folder.to_str().unwrap())];
    let preloaded = Run { variables: variables.clone(), ..Run::default() };
    let audited = Run { route: Route::Audit, variables, ..Run::default() };
    for place in ["deep", "apart"] {
        preloaded.assert_right(&["libtorch_like.so", &format!("{place}:reached")]);
        for client in ["libtorch_like.so", "libxla_like.so", "libtable_like.so", "versioned/libonnx_like.so"] {
            audited.assert_right(&[client, &format!("{place}:refused")]);
        }
    }
}

#[test]
fn audited_programs_have_the_faults_threads_forks_and_second_libraries_of_preloaded_ones() {
    let run = Run { route: Route::Audit, ..Run::default() };
    for part in ["faults", "planned", "recording", "threads", "forked"] {
        run.assert_right(&["libtorch_like.so", part]);
    }
    let said =
        run.assert_right(&["libtorch_like.so", "find", "libother_like.so", "find", "libtorch_like.so", "immediate"]);
    assert!(said.contains("2 MIOpen libraries are in this process"), "{said}");
}

#[test]
fn preloaded_and_audited_at_once_the_library_is_there_once() {
    let mut run = Run { route: Route::Audit, ..Run::default() };
    let (card, ours) = (library("libunhang_card.so"), library("libunhang_miopen.so"));
    let both = format!("{}:{}", card.display(), ours.display());
    run.variables.extend([("LD_PRELOAD", both.as_str()), ("UNHANG_SETTINGS", "verbose=True")]);
    let said = run.assert_right(&["libtorch_like.so", "find", "libxla_like.so", "find", "libtable_like.so", "find"]);
    assert!(said.contains("asked for 9 convolutions that cpu computed"), "one library counts all of them: {said}");
    // Whoever looks functions up has the library in which it does, of two as of one.
    run.assert_right(&["libother_like.so", "find", "libtorch_like.so", "find", "libxla_like.so", "find"]);
}

#[test]
fn auditing_that_is_switched_off_leaves_miopen_alone() {
    for variable in [("UNHANG_DISABLE", "1"), ("UNHANG_MIOPEN", "0")] {
        let mut run = Run { route: Route::Audit, ..Run::default() };
        run.variables.push(variable);
        run.assert_right(&["libtorch_like.so", "reached"]);
    }
}

#[test]
fn loaded_for_everybody_before_a_client_that_is_linked_like_torch_it_is_reached_without_preloading() {
    let run = Run { route: Route::None, ..Run::default() };
    let ours = library("libunhang_miopen.so");
    run.assert_right(&[ours.to_str().unwrap(), "global", "libtorch_like.so", "find"]);
    // Too late, and where functions are looked up in a handle, the real one is reached.
    run.assert_right(&["libtorch_like.so", "reached", ours.to_str().unwrap(), "global", "libtorch_like.so", "reached"]);
    run.assert_right(&[ours.to_str().unwrap(), "global", "libxla_like.so", "reached"]);
}

#[test]
fn a_program_without_miopen_finds_none_of_its_functions() {
    let ask = |words: &[&Path]| {
        let mut command = Command::new(built().join("asks"));
        let ran = command.args(words).env("LD_PRELOAD", library("libunhang_miopen.so")).output().unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    assert_eq!(ask(&[]), "none\n");
    assert_eq!(ask(&[&built().join("libMIOpen.so.1")]), "found\n");
}

#[test]
fn without_the_library_the_stand_in_is_reached() {
    let run = Run { route: Route::None, ..Run::default() };
    for client in ["libtorch_like.so", "libxla_like.so"] {
        run.assert_right(&[client, "reached"]);
        assert!(!run.of(&[client, "find"]).status.success(), "the client's check can fail");
    }
}

#[test]
fn results_that_are_wrong_on_purpose_are_found_out() {
    let mut run = Run::default();
    run.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    for part in ["find", "immediate"] {
        assert!(!run.of(&["libtorch_like.so", part]).status.success(), "{part}");
    }
}

#[test]
fn bad_calls_have_the_status_codes_of_miopen() {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        Run::default().assert_right(&[client, "faults"]);
    }
}

/// A run on the emulated card, with the kernels for what follows a convolution.
fn normalizing_on_the_card<'a>() -> Option<Run<'a>> {
    let mut run = on_the_card()?;
    run.variables[0] = ("UNHANG_MIOPEN_FAMILIES", "plain,strided,normalization");
    Some(run)
}

#[test]
fn fusion_plans_are_computed_in_parts() {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        Run::default().assert_right(&[client, "fused"]);
    }
    let Some(run) = normalizing_on_the_card() else { return };
    let said = run.assert_right(&["card/libtorch_like.so", "fused"]);
    assert!(said.contains("asked for 4 convolutions that jit computed"), "{said}");
}

#[test]
fn solutions_of_convolutions_are_ours_and_all_others_miopens() {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        Run::default().assert_right(&[client, "solutions"]);
    }
    let mut wrong = Run::default();
    wrong.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    assert!(!wrong.of(&["libtorch_like.so", "solutions"]).status.success());
    let Some(run) = on_the_card() else { return };
    let said = run.assert_right(&["card/libtorch_like.so", "solutions"]);
    assert!(said.contains("asked for 6 convolutions that jit computed"), "{said}");
}

/// An operation other than a convolution: without kernels, by the kernels of a family, and wrong on purpose.
#[track_caller]
fn assert_computed(scenario: &str, family: &str) {
    for client in ["libtorch_like.so", "libxla_like.so"] {
        Run::default().assert_right(&[client, scenario]);
    }
    let mut wrong = Run::default();
    wrong.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    assert!(!wrong.of(&["libtorch_like.so", scenario]).status.success());
    let families = format!("plain,strided,{family}");
    let Some(mut run) = on_the_card() else { return };
    run.variables[0] = ("UNHANG_MIOPEN_FAMILIES", &families);
    let said = run.assert_right(&["card/libtorch_like.so", scenario]);
    assert!(said.contains(&format!("canary of jit, {family}: works")), "{said}");
    run.variables.push(("UNHANG_MIOPEN_WRONG", "1"));
    assert!(!run.of(&["card/libtorch_like.so", scenario]).status.success());
}

#[test]
fn batch_normalisation_is_computed_in_every_version_of_its_calls() {
    assert_computed("norms", "normalization");
}

#[test]
fn pooling_is_computed_in_every_kind_with_indices_of_every_size() {
    assert_computed("pools", "pooling");
}

#[test]
fn reductions_are_computed_in_every_kind_with_indices() {
    assert_computed("reductions", "reduction");
}

#[test]
fn while_a_graph_is_recorded_nothing_is_waited_for() {
    Run::default().assert_right(&["libtorch_like.so", "recording"]);
}

#[test]
fn what_the_other_face_has_planned_goes_through() {
    Run::default().assert_right(&["libtorch_like.so", "planned"]);
}

#[test]
fn threads_and_forks_are_safe() {
    Run::default().assert_right(&["libtorch_like.so", "threads"]);
    Run::default().assert_right(&["libtorch_like.so", "forked"]);
}

#[test]
fn an_engine_that_fails_is_a_status_and_not_a_crash() {
    let mut run = Run::default();
    run.variables.push(("STAND_IN_COPIES_FAIL", "1"));
    let said = run.assert_right(&["libtorch_like.so", "failing"]);
    assert!(said.contains("cpu failed on forward:f32:nchw:2x4x6x5:6x3x2:s2x1:p1x0:d1x2:g2"), "{said}");
}

#[test]
fn a_device_that_has_failed_for_everybody_is_held_against_no_engine() {
    let mut run = Run::default();
    run.variables.push(("STAND_IN_COPIES_FAIL", "719"));
    let said = run.assert_right(&["libtorch_like.so", "failing"]);
    assert!(said.contains("the device cannot compute") && !said.contains("failed on"), "{said}");
}

#[test]
fn a_library_that_lacks_a_getter_is_not_asked_by_it() {
    let said = Run::default().assert_right(&["old/libtorch_like.so", "refused"]);
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn of_two_libraries_each_caller_has_its_own() {
    let said = Run::default().assert_right(&[
        "libtorch_like.so",
        "find",
        "libother_like.so",
        "find",
        "libtorch_like.so",
        "immediate",
    ]);
    assert!(said.contains("2 MIOpen libraries are in this process"), "{said}");
    Run::default().assert_right(&["libother_like.so", "find", "libtorch_like.so", "find", "libxla_like.so", "find"]);
}

#[test]
fn our_kernels_compute_on_the_card_and_threads_of_one_stream_do_not_mix() {
    let Some(run) = on_the_card() else { return };
    for part in ["find", "immediate", "biases", "sharing"] {
        let said = run.assert_right(&["card/libtorch_like.so", part]);
        assert!(part == "biases" || said.contains("convolutions that jit computed"), "{part}: {said}");
    }
}

#[test]
fn clients_that_bind_like_torch_xla_and_jax_are_computed_on_the_card_by_every_route() {
    let Some(mut run) = on_the_card() else { return };
    for route in [Route::Preload, Route::Audit] {
        run.route = route;
        for (client, part) in [
            ("card/libtorch_like.so", "find"),
            ("card/libxla_like.so", "find"),
            ("card/libtorch_like.so", "immediate only"),
            ("card/libxla_like.so", "immediate only"),
        ] {
            let said = run.assert_right(&[client, part]);
            assert!(said.contains("asked for 3 convolutions that jit computed"), "{client} {part}: {said}");
        }
    }
}

#[test]
fn a_search_tunes_where_that_is_asked_for_and_the_next_process_goes_by_it() {
    let Some(mut run) = on_the_card() else { return };
    let home = tempfile::tempdir().unwrap();
    let place = home.path().to_str().unwrap().to_owned();
    run.variables = vec![
        ("UNHANG_MIOPEN_FAMILIES", "plain,strided,gemm"),
        ("UNHANG_SETTINGS", "verbose=True"),
        ("UNHANG_HOME", &place),
    ];
    let untuned = run.assert_right(&["card/libtorch_like.so", "find"]);
    assert!(!untuned.contains("tuned"), "{untuned}");
    run.variables.push(("UNHANG_TUNE", "1"));
    let said = run.assert_right(&["card/libtorch_like.so", "find"]);
    assert!(said.contains("tuning on the emulated card: the times are the emulator's"), "{said}");
    assert!(said.contains("g2: tuned, "), "{said}");
    assert!(said.contains("asked for 3 convolutions that jit computed"), "{said}");
    let again = run.assert_right(&["card/libtorch_like.so", "find"]);
    assert!(!again.contains("tuned, "), "what was measured is kept: {again}");
}

#[test]
fn a_search_measures_nothing_that_needs_more_workspace_than_the_caller_was_told_of() {
    // The client's convolution: by the model the plain kernels are the fastest for its filter's gradient, and need no workspace.
    let problem: Problem = "backward-weights:f32:nchw:2x4x6x5:6x3x2:s2x1:p1x0:d1x2:g2".parse().unwrap();
    let all = candidates(&problem, &DeviceModel::rx_5600_xt(), u64::MAX);
    let bytes = |family| {
        let first = all.iter().find(|candidate| candidate.choice.family() == family).unwrap();
        (first.seconds, first.plan.workspace_bytes)
    };
    assert!(bytes("plain") < bytes("weights") && bytes("plain").1 == 0 && bytes("weights").1 > 0, "{all:?}");
    let Some(mut run) = on_the_card() else { return };
    run.variables = vec![
        ("UNHANG_MIOPEN_FAMILIES", "plain,strided,weights"),
        ("UNHANG_SETTINGS", "verbose=True"),
        ("UNHANG_TUNE", "1"),
    ];
    // The workspace that it reports is for its tensors with gaps alone: no room for other kernels.
    let said = run.assert_right(&["card/libtorch_like.so", "find"]);
    assert!(said.contains("canary of jit, weights: works"), "{said}");
    assert!(!said.contains("tuning on the emulated card") && !said.contains(": tuned, "), "{said}");
    assert!(said.contains("asked for 3 convolutions that jit computed"), "{said}");
}

#[test]
fn a_library_whose_path_cannot_be_preloaded_is_reached_by_auditing_and_tries_its_kernels() {
    let Some(mut run) = on_the_card() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("with space");
    std::os::unix::fs::symlink(library("libunhang_miopen_audit.so").parent().unwrap(), &folder).unwrap();
    let audit = folder.join("libunhang_miopen_audit.so").display().to_string();
    run.route = Route::None;
    run.variables.push(("LD_AUDIT", &audit));
    let said = run.assert_right(&["card/libtorch_like.so", "find"]);
    assert!(said.contains("asked for 3 convolutions that jit computed"), "{said}");
}

#[test]
fn what_is_new_while_a_graph_is_recorded_is_declined_and_what_is_known_is_recorded() {
    let Some(run) = on_the_card() else { return };
    run.assert_right(&["card/libtorch_like.so", "capturing"]);
}

#[test]
fn the_watchdog_names_and_ends_a_program_whose_convolution_hangs() {
    let Some(mut run) = on_the_card() else { return };
    let home = tempfile::tempdir().unwrap();
    run.variables = vec![
        ("UNHANG_STRATEGY", "selective"),
        ("UNHANG_WATCHDOG", "1"),
        ("UNHANG_HANG_DEADLINE", "3"),
        ("UNHANG_SETTINGS", "verbose=True"),
        ("UNHANG_HOME", home.path().to_str().unwrap()),
    ];
    let ran = run.of(&["hangs/libtorch_like.so", "hanging"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(86), "{said}");
    let expected =
        "HANG in a convolution: forward:f32:nchw:2x4x6x5:6x3x2:s2x1:p1x0:d1x2:g2 on miopen did not finish within";
    assert!(said.contains(expected), "{said}");
    // What an emulated card did is no evidence about a real one, and the next process on the emulated card goes by it.
    let store = unhang_evidence::Store::open(home.path());
    let kept = store.records(&unhang_evidence::Filter::default());
    let hung = kept.iter().filter(|it| it.verdict == unhang_engine::Verdict::Hangs).collect::<Vec<_>>();
    assert!(hung.len() == 1 && hung[0].source == unhang_evidence::RecordSource::Rehearsal, "{kept:?}");
    let again = run.of(&["hangs/libtorch_like.so", "hanging"]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() != Some(86) && !said.contains("HANG in a convolution"), "{said}");
}

#[test]
fn kernels_for_pooling_that_do_not_finish_are_named_and_not_used_again() {
    let Some(mut run) = on_the_card() else { return };
    let home = tempfile::tempdir().unwrap();
    run.variables = vec![
        ("UNHANG_MIOPEN_FAMILIES", "plain,strided,pooling"),
        ("UNHANG_WATCHDOG", "1"),
        ("UNHANG_HANG_DEADLINE", "2"),
        ("UNHANG_SETTINGS", "verbose=True"),
        ("UNHANG_HOME", home.path().to_str().unwrap()),
    ];
    let ran = run.of(&["card/libtorch_like.so", "slow pool"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(86), "{said}");
    assert!(said.contains("HANG in a pooling: our kernels for it did not finish within"), "{said}");
    let store = unhang_evidence::Store::open(home.path());
    let hung =
        store.canaries().into_iter().filter(|it| it.verdict == unhang_engine::Verdict::Hangs).collect::<Vec<_>>();
    assert!(hung.len() == 1 && hung[0].name.starts_with("jit:pooling:"), "{hung:?}");
    // The next process computes it on the CPU.
    let again = run.of(&["card/libtorch_like.so", "slow pool"]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && !said.contains("HANG"), "{said}");
}

#[test]
fn decisions_that_are_not_kept_are_answered_alike_and_counted() {
    let mut run = Run::default();
    run.variables.push(("UNHANG_SETTINGS", "cache_decisions=False;verbose=True"));
    let said = run.assert_right(&["libtorch_like.so", "find", "libtorch_like.so", "find"]);
    assert!(said.contains("asked for 6 convolutions that cpu computed"), "{said}");
}

#[test]
fn off_means_off_and_other_cards_are_left_alone() {
    let mut run = Run::default();
    run.variables.push(("UNHANG_DISABLE", "1"));
    run.assert_right(&["libtorch_like.so", "reached"]);
    let other = Run { machine: "rx6800", variables: Vec::new(), ..Run::default() };
    other.assert_right(&["libtorch_like.so", "reached"]);
}

#[test]
fn the_report_names_who_asked() {
    let mut run = Run::default();
    run.variables.push(("UNHANG_SETTINGS", "verbose=True"));
    let said = run.assert_right(&["libtorch_like.so", "find"]);
    assert!(
        said.contains("libtorch_like.so asked for 1 convolution that cpu computed")
            || said.contains("that cpu computed"),
        "{said}"
    );
    assert!(said.contains("libtorch_like.so"), "{said}");
}
