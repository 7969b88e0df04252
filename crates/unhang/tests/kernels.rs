//! `unhang kernels`, with the installed hiprtc and without a GPU.

use assert_cmd::Command;
use serde_json::Value;

/// One layer of every kind: a first layer, 3×3 small and large, 1×1, strided, depthwise, 5×5.
const LAYERS: &str = "\
stem\t2\t3\t64\t64\t32\t7\t7\t2\t2\t3\t3\t1\t1\t1
small\t1\t16\t32\t32\t32\t3\t3\t1\t1\t1\t1\t1\t1\t1
large\t16\t256\t28\t28\t256\t3\t3\t1\t1\t1\t1\t1\t1\t1
pointwise\t8\t128\t28\t28\t256\t1\t1\t1\t1\t0\t0\t1\t1\t1
strided\t8\t128\t28\t28\t128\t3\t3\t2\t2\t1\t1\t1\t1\t1
depthwise\t8\t96\t28\t28\t96\t3\t3\t1\t1\t1\t1\t1\t1\t96
";

fn unhang() -> Command {
    Command::cargo_bin("unhang").unwrap()
}

/// Runs `kernels list`; `None` without hiprtc.
fn list(arguments: &[&str]) -> Option<Value> {
    list_of(LAYERS, arguments)
}

fn list_of(layers: &str, arguments: &[&str]) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.tsv");
    std::fs::write(&file, layers).unwrap();
    let output = unhang().args(["kernels", "list", "--json", "--layers"]).arg(&file).args(arguments).output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    if talk.contains("no run-time compiler") || talk.contains("run-time compiler cannot be used") {
        println!("skipped: no hiprtc here ({})", talk.lines().next().unwrap_or_default());
        return None;
    }
    assert!(output.status.success(), "{}: {talk}", output.status);
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn check(report: &Value, arch: &str) {
    let kernels = report["kernels"].as_array().unwrap();
    assert!(kernels.len() >= 10, "{} kernels", kernels.len());
    for kernel in kernels {
        assert_eq!(kernel["arch"], arch, "{kernel}");
        assert_eq!(kernel["vgpr_spills"], 0, "{kernel}");
        assert_eq!(kernel["sgpr_spills"], 0, "{kernel}");
        assert_eq!(kernel["hazards"], 0, "{kernel}");
        assert!(kernel["vgprs"].as_u64().unwrap() <= 128, "{kernel}");
        // LDS limits the flat tile for few channels; the others have more waves.
        assert!(kernel["waves_per_simd"].as_u64().unwrap() >= 3, "{kernel}");
        kernel["problem"].as_str().unwrap().parse::<unhang_conv::Problem>().unwrap();
    }
    // The tiles of 8 × 8 sums per thread take most of the time: four of five instructions in their loop multiply.
    let dense: Vec<&Value> =
        kernels.iter().filter(|kernel| kernel["name"].as_str().unwrap().contains("128x128x8")).collect();
    assert!(!dense.is_empty(), "{report}");
    for kernel in dense {
        assert!(kernel["fma_share"].as_f64().unwrap() >= 0.8, "{kernel}");
    }
}

#[test]
fn kernels_for_rdna1_are_safe_and_fit() {
    for arch in ["gfx1010", "gfx1012"] {
        let Some(report) = list(&["--arch", arch]) else { return };
        check(&report, arch);
    }
}

#[test]
fn kernels_under_a_spoof_are_those_of_the_true_chip() {
    let Some(report) = list(&["--arch", "gfx1010", "--reported-as", "gfx1030"]) else { return };
    check(&report, "gfx1010");
    assert!(report["kernels"].as_array().unwrap().iter().all(|kernel| kernel["reported_as"] == "gfx1030"));
}

/// Words that cannot be broken, such as a problem's key, are on their own line.
#[test]
fn lists_keep_to_the_width_of_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.tsv");
    std::fs::write(&file, LAYERS.lines().nth(1).unwrap()).unwrap();
    for flags in [&[][..], &["--predict"]] {
        let output =
            unhang().env("COLUMNS", "60").args(["kernels", "list", "--layers"]).arg(&file).args(flags).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && errors.contains("hiprtc") {
            return println!("skipped: no hiprtc here");
        }
        assert!(output.status.success(), "{errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("waves a SIMD"), "{text}");
        let is_one_word = |line: &str| line.split_whitespace().count() == 1;
        let wide = text.lines().find(|line| line.chars().count() > 60 && !is_one_word(line));
        assert_eq!(wide, None, "{flags:?}");
    }
}

#[test]
fn a_bad_table_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.tsv");
    for (text, expected) in [("only three words\n", "line 1"), ("# nothing\n\n", "there is no layer in it")] {
        std::fs::write(&file, text).unwrap();
        let output = unhang().args(["kernels", "list", "--layers"]).arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(talk.contains("layers.tsv") && talk.contains(expected), "{talk}");
    }
}

/// `script` gives the program a terminal.
#[test]
fn progress_moves_on_a_terminal_and_is_silent_elsewhere_when_it_is_quick() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layers.tsv");
    std::fs::write(&file, "small\t1\t16\t32\t32\t32\t3\t3\t1\t1\t1\t1\t1\t1\t1\n").unwrap();
    let warm = format!("{} kernels warm --layers {}", env!("CARGO_BIN_EXE_unhang"), file.display());
    let run = |program: &str, arguments: &[&str], cache: &str| {
        Command::new(program).args(arguments).env("XDG_CACHE_HOME", folder.path().join(cache)).output()
    };
    let plain = run("sh", &["-c", &warm], "plain").unwrap();
    let talk = String::from_utf8_lossy(&plain.stderr);
    if talk.contains("no run-time compiler") || talk.contains("run-time compiler cannot be used") {
        return println!("skipped: no hiprtc here");
    }
    assert!(plain.status.success(), "{talk}");
    assert!(!talk.contains('\r'), "{talk:?}");
    let Ok(drawn) = run("script", &["-qec", &warm, "/dev/null"], "drawn") else {
        return println!("skipped: no script(1) here");
    };
    let shown = String::from_utf8_lossy(&drawn.stdout);
    let numbers: Vec<(usize, usize)> = shown
        .split('\r')
        .filter_map(|part| {
            let (done, all) = part.trim().strip_prefix("compiling for gfx1010: ")?.split_once(" of ")?;
            Some((done.parse().ok()?, all.trim().parse().ok()?))
        })
        .collect();
    let all = numbers.last().unwrap_or_else(|| panic!("no moving line in {shown:?}")).1;
    assert!(all >= 2, "{shown:?}");
    assert!(numbers.is_sorted() && numbers.last() == Some(&(all, all)), "{numbers:?}");
}

#[test]
fn predictions_name_their_ground_the_cards_and_what_bounds_each_kernel() {
    // A small layer: the effort of sampling kernels does not depend on the layer.
    let Some(report) = list_of(LAYERS.lines().nth(1).unwrap(), &["--predict"]) else { return };
    assert!(report["ground"].as_str().unwrap().contains("not measured"));
    let names: Vec<&str> = report["cards"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["RX 5600 XT", "RX 5700 XT"]);
    assert!(report["figures"].as_array().unwrap().iter().all(|it| !it["source"].as_str().unwrap().is_empty()));
    let rows = report["predictions"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "every layer of the table in every direction");
    for row in rows {
        let [slower, faster] = [0, 1].map(|card| row["cards"][card]["milliseconds"].as_f64().unwrap());
        assert!(faster > 0.0 && faster <= slower * 1.02, "{row}");
        for launch in row["launches"].as_array().unwrap() {
            let busy = &launch["predictions"][0]["busy"];
            for part in ["vector", "local", "l2", "memory"] {
                assert!((0.0..=1.001).contains(&busy[part].as_f64().unwrap()), "{part} in {launch}");
            }
        }
    }
}
