//! `unhang report`, through the program, and its page in a real browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Record, RecordSource, Store};

const HOSTILE: &str =
    "</script><script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">\u{1b}[2J";

/// A machine without a GPU, as an empty folder, and a home for the store.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        Bench { folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = assert_cmd::Command::cargo_bin("unhang").unwrap();
        let root = self.folder.path().join("root");
        command.arg("report").args(arguments).arg("--root").arg(root);
        command.env("UNHANG_HOME", self.folder.path().join("home")).env_remove("UNHANG_ROOT").output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn page(&self, arguments: &[&str]) -> PathBuf {
        let path = self.folder.path().join("map.html");
        let output = self.run(&[&["--html", path.to_str().unwrap()], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }

    fn fill(&self, records: impl IntoIterator<Item = Record>) {
        let machine = self.json(&[])["fingerprint"].as_str().unwrap().to_owned();
        let store = Store::open(&self.folder.path().join("home"));
        let records = records.into_iter().map(|it| Record { machine: machine.clone(), ..it }).collect();
        store.import(records, Vec::new()).unwrap();
    }

    /// The seeds' grid with a pattern of hangs, a hostile detail, another data type and direction, and a rehearsal.
    fn fill_with_a_bit_of_everything(&self) {
        let mut records = Vec::new();
        for (channels, out, limit) in [(3, 16, 999), (16, 32, 32), (32, 64, 48), (64, 128, 64)] {
            for size in [32, 42, 44, 48, 64, 128, 224] {
                let key = format!("forward:f32:nchw:1x{channels}x{size}x{size}:{out}x3x3:s1x1:p1x1:d1x1:g1");
                let verdict = if size > limit { Verdict::Hangs } else { Verdict::Works };
                let mut it = record(&key, EngineName::Miopen, verdict);
                it.seconds = verdict.is_good().then_some(size as f64 * 1e-5);
                records.push(it);
                records.push(record(&key, EngineName::Aten, Verdict::Works).with_seconds(size as f64 * 2e-5));
            }
        }
        let at = "forward:f32:nchw:1x3x512x512:64x3x3:s1x1:p1x1:d1x1:g1";
        records.push(record(at, EngineName::Miopen, Verdict::Wrong).with_detail(HOSTILE));
        records.push(record(&at.replace("f32", "f16"), EngineName::Miopen, Verdict::Crashes));
        let backward = at.replace("forward", "backward-data");
        records.push(record(&backward, EngineName::Cpu, Verdict::Works).with_seconds(0.5));
        records.push(Record { source: RecordSource::Rehearsal, ..record(at, EngineName::Jit, Verdict::Hangs) });
        records.push(Record { source: RecordSource::Import, ..record(at, EngineName::Jit, Verdict::Crashes) });
        self.fill(records);
        let store = Store::open(&self.folder.path().join("home"));
        let machine = self.json(&[])["fingerprint"].as_str().unwrap().to_owned();
        store.count_seen(&machine, &at.parse().unwrap(), 41);
    }
}

fn record(key: &str, engine: EngineName, verdict: Verdict) -> Record {
    Record::new(key.parse().unwrap(), engine, "", verdict, RecordSource::Probe)
}

/// The page's document after its script has run, or `None` without a browser.
fn browse(page: &Path, hash: &str) -> Option<String> {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|it| it.success())
    });
    let Some(browser) = browser else {
        println!("skipped: the page in a browser (no chromium is installed)");
        return None;
    };
    let profile = tempfile::tempdir().unwrap();
    let output = profile.path().join("dom");
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
        .arg(format!("file://{}{hash}", page.display()))
        .stdout(fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the browser did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(fs::read_to_string(output).unwrap())
}

#[test]
fn text_shows_the_map() {
    let bench = Bench::new();
    let empty = String::from_utf8(bench.run(&[]).stdout).unwrap();
    assert!(empty.contains("nothing is known yet"), "{empty}");
    bench.fill_with_a_bit_of_everything();
    let text = String::from_utf8(bench.run(&[]).stdout).unwrap();
    assert!(text.contains("miopen, forward, f32") && text.contains("16→32"), "{text}");
    assert!(text.contains("44×44") && text.contains("hangs") && text.contains("320.0 µs"), "{text}");
    assert!(!text.contains("jit"), "neither rehearsals nor others' claims are drawn: {text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let rehearsal = String::from_utf8(bench.run(&["--rehearsed"]).stdout).unwrap();
    assert!(rehearsal.starts_with("REHEARSAL") && rehearsal.contains("jit"), "{rehearsal}");
    assert!(!rehearsal.contains("aten"), "{rehearsal}");
}

#[test]
fn text_keeps_to_the_width_of_the_terminal() {
    let bench = Bench::new();
    bench.fill_with_a_bit_of_everything();
    for columns in ["60", "80"] {
        let mut command = assert_cmd::Command::cargo_bin("unhang").unwrap();
        command.arg("report").arg("--root").arg(bench.folder.path().join("root"));
        command.env("UNHANG_HOME", bench.folder.path().join("home")).env("COLUMNS", columns);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(text.contains("16→32") && text.contains("224×224") && text.contains("41"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= columns.parse().unwrap(), "{line}\n{text}");
        }
    }
}

#[test]
fn json_has_all_of_it() {
    let bench = Bench::new();
    bench.fill_with_a_bit_of_everything();
    let report = bench.json(&[]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["rehearsal"], false);
    assert_eq!(report["summary"]["miopen"]["hangs"], 6 + 5 + 2 - 2);
    assert_eq!((&report["claims"], report["summary"].get("jit")), (&1.into(), None));
    assert_eq!(report["layers"][0]["calls"], 41);
    let maps = report["maps"].as_array().unwrap();
    let miopen = maps.iter().find(|it| it["engine"] == "miopen" && it["data_type"] == "f32").unwrap();
    assert_eq!(miopen["rows"].as_array().unwrap().len(), 5);
    let plans = report["plans"].as_object().unwrap();
    assert!(plans.values().all(|it| !it["reason"].as_str().unwrap().is_empty()));
    let records = report["records"].as_array().unwrap();
    assert!(records.iter().all(|it| plans.contains_key(it["problem"].as_str().unwrap())));
    assert!(records.iter().any(|it| it["source"] == "import") && records.iter().all(|it| it["source"] != "rehearsal"));
}

#[test]
fn the_page_is_whole_in_itself() {
    let bench = Bench::new();
    bench.fill_with_a_bit_of_everything();
    let path = bench.page(&[]);
    let page = fs::read_to_string(&path).unwrap();
    for outside in ["http://", "https://", "//cdn", "src=", "@import", "url("] {
        assert!(!page.replace("src=x", "").contains(outside), "{outside} in the page");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(!page.contains("<img"), "the hostile text is text");
    let names: Vec<String> = fs::read_dir(bench.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.ends_with(".part")), "{names:?}");
    let output = bench.run(&["--html", "/proc/nowhere/map.html"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write /proc/nowhere/map.html"));
}

#[test]
fn a_browser_draws_the_maps() {
    let bench = Bench::new();
    bench.fill_with_a_bit_of_everything();
    let page = bench.page(&[]);
    let Some(document) = browse(&page, "") else { return };
    assert!(document.contains("<title>unhang: hang map</title>"), "the title was stolen");
    assert!(document.contains("data-engine=\"miopen\"") && document.contains("data-engine=\"aten\""));
    assert!(!document.contains("data-engine=\"cpu\""), "cpu has backward records only, and forward is shown");
    assert!(document.contains("aria-label=\"16→32, 44×44: hangs\""), "{}", &document[..2000]);
    assert!(document.contains("aria-label=\"3→16, 32×32: works, 320 µs\""));
    assert!(!document.contains("<img"));
    assert!(!document.contains("dialog open") && !document.contains("open=\"\""));

    let document = browse(&page, "#direction=backward-data&dtype=all").unwrap();
    assert!(document.contains("data-engine=\"cpu\"") && !document.contains("data-engine=\"aten\""), "the filter acts");
    let document = browse(&page, "#direction=forward&dtype=f16").unwrap();
    assert!(document.contains(": crashes\"") && !document.contains(": hangs\""));

    // An open cell: its evidence, with the hostile text as text, and the plan with its reason.
    let document = browse(&page, "#direction=forward&dtype=f32&cell=miopen.2.7.").unwrap();
    assert!(document.contains("<dialog") && document.contains("open=\"\""), "the cell is open");
    assert!(document.contains("&lt;/script&gt;&lt;script&gt;document.title"), "the detail is there as text");
    assert!(document.contains("plan: aten") && document.contains("torch's own kernels are safe"));
    assert!(document.contains("<title>unhang: hang map</title>") && !document.contains("<img"));

    let rehearsal = browse(&bench.page(&["--rehearsed"]), "").unwrap();
    assert!(rehearsal.contains("not a real one") && rehearsal.contains("data-engine=\"jit\""));
    assert!(!rehearsal.contains("data-engine=\"miopen\""));
}

/// Simulates a person at the keyboard: a script appended to the page presses keys and writes the result into the title.
#[test]
fn the_keyboard_is_enough() {
    const PERSON: &str = r#"<script>
        // The browser writes the page down once it is loaded; a document that is open inside of it holds that back.
        const hold = document.createElement("iframe");
        document.body.append(hold);
        hold.contentDocument.open();
        const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        const where = () => document.activeElement.dataset.cell;
        const grid = document.querySelector(".grid");
        const stops = grid.querySelectorAll("button[tabindex='0']").length;
        grid.querySelector("button[tabindex='0']").focus();
        const visited = [where()];
        for (const key of ["ArrowRight", "ArrowDown", "End", "ArrowRight", "Home", "ArrowUp"]) { press(key); visited.push(where()); }
        document.activeElement.click();
        const dialog = document.querySelector("dialog");
        const opened = dialog.open && dialog.contains(document.activeElement);
        dialog.addEventListener("close", () => setTimeout(() => {
            document.title = `stops ${stops}; ${visited.join(" ")}; opened ${opened}; back ${where()}`;
            hold.contentDocument.close();
        }));
        dialog.close();
    </script></body>"#;
    let bench = Bench::new();
    bench.fill_with_a_bit_of_everything();
    let page = bench.page(&[]);
    let with_person = fs::read_to_string(&page).unwrap().replace("</body>", PERSON);
    fs::write(&page, with_person).unwrap();
    let Some(document) = browse(&page, "") else { return };
    let title = document.split("<title>").nth(1).unwrap().split("</title>").next().unwrap();
    // The gaps in the row of 3→64, which has only one size, are skipped.
    let expected = "stops 1; miopen.0.0. miopen.0.1. miopen.1.1. miopen.1.6. miopen.1.6. miopen.1.0. miopen.0.0.; \
                    opened true; back miopen.0.0.";
    assert_eq!(title, expected);
}

#[test]
fn ten_thousand_records_stay_under_a_megabyte() {
    let bench = Bench::new();
    // The worst case: no shape twice, and every time and detail is different.
    bench.fill((0..10_000usize).map(|index| {
        let (channels, size, batch) = (1 + index % 512, 16 + index % 211, 1 + index / 512);
        let key = format!("forward:f32:nchw:{batch}x{channels}x{size}x{size}:{}x3x3:s1x1:p1x1:d1x1:g1", channels * 2);
        let engine = [EngineName::Miopen, EngineName::Aten, EngineName::Cpu][index % 3];
        let verdict = Verdict::ALL[index % 6];
        let detail = format!("attempt {index}: the child said something, at some length, {}", index * 7919);
        record(&key, engine, verdict).with_seconds(index as f64 * 1.234_567e-6).with_detail(&detail)
    }));
    let page = bench.page(&[]);
    let size = fs::metadata(&page).unwrap().len();
    println!("{size} bytes for 10,000 records");
    assert!(size < 1_000_000, "{size}");
    let Some(document) = browse(&page, "") else { return };
    assert!(document.contains("data-engine=\"miopen\"") && document.contains("512–1023"), "many values become ranges");
}
