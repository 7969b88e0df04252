//! The fault matrix: whatever a child does, the verdict is right, the time is bounded and nothing is lost.
//!
//! Two kinds of children stand in for a card: this test program itself, started again to play a table, and shell
//! scripts that break the protocol. The prober is the real one and sees only processes.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use unhang_conv::Problem;
use unhang_cpu::CpuEngine;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Evidence, Filter, Record, RecordSource, Store};
use unhang_probe::rehearsal::{Behaviour, Table, serve};
use unhang_probe::{Attempt, Deadlines, End, Launch, Probed, Prober, Stage, Tried, culprits};

/// Makes this program play a card; the value is the folder with the table.
const PLAY: &str = "UNHANG_TEST_PLAY";
/// Makes this program probe; the value is the folder of its store.
const PROBE: &str = "UNHANG_TEST_PROBE";
const MACHINE: &str = "rehearsed";

/// Not a test: the others start this as their child, in the same program.
#[test]
fn the_child_of_the_others() {
    if let Some(folder) = std::env::var_os(PLAY) {
        let folder = Path::new(&folder);
        let table = Table::parse(&std::fs::read_to_string(folder.join("table.tsv")).unwrap()).unwrap();
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let _ = serve(UnixStream::from(socket), &table, &CpuEngine::with_threads(1), folder);
        std::process::exit(0);
    }
    if let Some(home) = std::env::var_os(PROBE) {
        let home = Path::new(&home);
        let store = Store::open(home);
        let card = Card::in_folder(home.join("card"));
        let probed = card.probe(&store, attempts(200), |_| {});
        let crashes = probed.tried.iter().filter(|it| it.verdict == Verdict::Crashes).count();
        let full = std::env::var_os("UNHANG_TEST_FULL").is_some();
        let right = (probed.end == End::Complete && probed.tried.len() == 200)
            && (probed.unwritten > 0) == full
            && (!full || (crashes == 4 && !store.notices().is_empty()));
        std::process::exit(i32::from(!right));
    }
}

fn itself(variable: &str, folder: &Path) -> Launch {
    let program = std::env::current_exe().unwrap().display().to_string();
    let command = [program.as_str(), "--exact", "the_child_of_the_others", "--nocapture"].map(str::to_owned).to_vec();
    Launch { command, environment: vec![(variable.to_owned(), Some(folder.display().to_string()))] }
}

/// Generous where an overloaded machine could be too slow, short where a child should overrun.
fn deadlines() -> Deadlines {
    Deadlines {
        start: Duration::from_secs(60),
        compile: Duration::from_millis(2500),
        run: Duration::from_millis(2500),
        grace: Duration::from_secs(30),
    }
}

fn problem(channels: usize, size: usize) -> Problem {
    format!("forward:f32:nchw:1x{channels}x{size}x{size}:4x3x3:s1x1:p1x1:d1x1:g1").parse().unwrap()
}

fn attempt(size: usize) -> Attempt {
    Attempt { problem: problem(2, size), engine: EngineName::Miopen, variant: String::new() }
}

/// That many different attempts.
fn attempts(count: usize) -> Vec<Attempt> {
    (0..count).map(|index| Attempt { problem: problem(1 + index / 50, 4 + index % 50), ..attempt(4) }).collect()
}

/// A card with the behaviour of a table.
struct Card {
    folder: std::path::PathBuf,
    workers: usize,
    deadlines: Deadlines,
    canary: bool,
    _keep: Option<tempfile::TempDir>,
}

impl Card {
    fn new(table: &str) -> Card {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("table.tsv"), table).unwrap();
        Card { _keep: Some(folder), ..Card::in_folder(Path::new("").to_owned()) }.located()
    }

    fn in_folder(folder: std::path::PathBuf) -> Card {
        Card { folder, workers: 4, deadlines: deadlines(), canary: true, _keep: None }
    }

    fn located(mut self) -> Card {
        self.folder = self._keep.as_ref().unwrap().path().to_owned();
        self
    }

    fn probe(&self, store: &Store, attempts: Vec<Attempt>, watch: impl Fn(&Tried) + Sync) -> Probed {
        let launch = itself(PLAY, &self.folder);
        let canary = self.canary.then(|| launch.clone());
        run(store, attempts, &|_| launch.clone(), canary, self.workers, self.deadlines, &AtomicBool::new(false), &watch)
    }
}

#[allow(clippy::too_many_arguments, reason = "one for each thing that a test may set")]
fn run(
    store: &Store,
    attempts: Vec<Attempt>,
    launch: &(dyn Fn(&Attempt) -> Launch + Sync),
    canary: Option<Launch>,
    workers: usize,
    deadlines: Deadlines,
    stop: &AtomicBool,
    watch: &(dyn Fn(&Tried) + Sync),
) -> Probed {
    let prober = Prober {
        machine: MACHINE,
        source: RecordSource::Rehearsal,
        note: "",
        store,
        deadlines,
        workers,
        reset: Duration::ZERO,
        canary,
        budget: None,
        launch,
        observe: &|event| {
            if let unhang_probe::ProbeEvent::Ended(tried) = event {
                watch(tried);
            }
        },
        stop,
    };
    prober.run(attempts)
}

/// The prober's verdict for each behaviour of a table.
fn expected(behaviour: Behaviour) -> (Verdict, Option<Stage>, Option<i32>) {
    match behaviour {
        Behaviour::Works => (Verdict::Works, None, None),
        Behaviour::HangCompile => (Verdict::Hangs, Some(Stage::Compile), None),
        Behaviour::HangFind => (Verdict::Hangs, Some(Stage::Find), None),
        Behaviour::HangRun | Behaviour::Lost => (Verdict::Hangs, Some(Stage::Run), None),
        Behaviour::Abort => (Verdict::Crashes, Some(Stage::Run), Some(6)),
        Behaviour::Segfault => (Verdict::Crashes, Some(Stage::Run), Some(11)),
        Behaviour::Killed => (Verdict::Crashes, Some(Stage::Run), Some(9)),
        Behaviour::Exit => (Verdict::Crashes, Some(Stage::Run), None),
        Behaviour::Wrong | Behaviour::NotNumbers => (Verdict::Wrong, None, None),
        Behaviour::Garbage | Behaviour::Flood => (Verdict::Error, Some(Stage::Run), None),
        Behaviour::Unsupported => (Verdict::Unsupported, None, None),
        Behaviour::Error => (Verdict::Error, None, None),
    }
}

/// Every verdict of the outcome is in the store, and no attempt is left unfinished.
fn assert_kept(store: &Store, probed: &Probed) {
    assert_eq!(probed.unwritten, 0);
    let evidence = Evidence::load_rehearsal(store, MACHINE);
    for tried in probed.tried.iter().filter(|tried| tried.is_evidence()) {
        let attempt = &tried.attempt;
        let known = evidence.about(&attempt.problem, attempt.engine, &attempt.variant).unwrap();
        assert_eq!((known.verdict, &known.record.detail), (tried.verdict, &tried.detail));
    }
}

/// The number of attempts that the file holds as begun and not ended.
fn intents_in(home: &Path) -> i64 {
    let file = rusqlite::Connection::open(home.join("evidence.db")).unwrap();
    file.query_row("SELECT count(*) FROM intents", [], |row| row.get(0)).unwrap()
}

/// The child processes of `parent`.
fn children_of(parent: u32) -> Vec<String> {
    let field =
        |stat: &str, index: usize| stat[stat.rfind(')')? + 1..].split_whitespace().nth(index).map(str::to_owned);
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|it| it.ok()?.file_name().into_string().ok());
    all.filter(|id| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        field(&stat, 1) == Some(parent.to_string()) && field(&stat, 0).as_deref() != Some("Z")
    })
    .collect()
}

fn lives(id: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Starts this program as a prober, with its store and its card in that folder.
fn start_prober(home: &Path, shell: &str) -> std::process::Child {
    let launch = itself(PROBE, home);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$@\""), "sh"]).args(&launch.command);
    command.envs(launch.environment.iter().map(|(name, value)| (name, value.as_ref().unwrap())));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn card_beside(home: &Path, table: &str) -> std::path::PathBuf {
    let card = home.join("card");
    std::fs::create_dir(&card).unwrap();
    std::fs::write(card.join("table.tsv"), table).unwrap();
    card
}

#[test]
fn every_behaviour_gets_its_verdict() {
    let mut table = String::new();
    for (index, behaviour) in Behaviour::ALL.iter().filter(|it| **it != Behaviour::Lost).enumerate() {
        table += &format!("miopen\t-\t*->*\t{}\t{behaviour}\tmade up\n", index + 4);
    }
    let (card, home) = (Card::new(&table), tempfile::tempdir().unwrap());
    let store = Store::open(home.path());
    let began = Instant::now();
    let probed = card.probe(&store, (4..4 + Behaviour::ALL.len() - 1).map(attempt).collect(), |_| {});
    assert!(began.elapsed() < Duration::from_secs(60), "took {:?}", began.elapsed());
    assert_eq!((probed.tried.len(), &probed.end), (Behaviour::ALL.len() - 1, &End::Complete));
    let table = Table::parse(&table).unwrap();
    for tried in &probed.tried {
        let behaviour = table.line(&tried.attempt.problem, EngineName::Miopen, "").unwrap().behaviour;
        assert_eq!((tried.verdict, tried.stage, tried.signal), expected(behaviour), "{behaviour}: {}", tried.detail);
        match behaviour {
            Behaviour::Works => {
                assert_eq!((tried.relative_error, tried.not_numbers), (Some(0.0), Some(0)));
                assert!(tried.seconds.is_some() && tried.first_seconds.is_some());
            }
            Behaviour::Wrong => assert!(tried.relative_error.unwrap() > 1e-2, "{tried:?}"),
            Behaviour::NotNumbers => {
                let outputs = tried.attempt.problem.output_shape().iter().product::<usize>();
                assert_eq!(tried.not_numbers, Some(outputs.div_ceil(11) as u64), "every eleventh was spoilt");
            }
            Behaviour::Abort => {
                let both = ["HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", "outside every aperture"];
                assert!(both.iter().all(|text| tried.detail.contains(text)), "{}", tried.detail);
            }
            Behaviour::Exit => assert!(tried.detail.contains("ended with code 0 and no answer"), "{}", tried.detail),
            Behaviour::Garbage => assert!(tried.detail.contains("not an answer"), "{}", tried.detail),
            _ => {}
        }
        assert!(!tried.detail.chars().any(char::is_control), "{}", tried.detail);
    }
    assert_kept(&store, &probed);
    drop(store);
    assert_eq!(intents_in(home.path()), 0);
}

/// Random tables, which the prober never reads: its verdicts match them all the same.
#[test]
fn verdicts_are_those_of_random_tables() {
    let hanging = [Behaviour::HangCompile, Behaviour::HangFind, Behaviour::HangRun];
    let quick: Vec<Behaviour> =
        Behaviour::ALL.into_iter().filter(|it| *it != Behaviour::Lost && !hanging.contains(it)).collect();
    for seed in 1..=3u64 {
        let mut state = seed;
        let mut random = |below: usize| (unhang_probe::child::advance(&mut state) >> 33) as usize % below;
        let (mut table, mut wanted, mut attempts) = (String::new(), HashMap::new(), Vec::new());
        for size in 4..34 {
            for engine in [EngineName::Miopen, EngineName::Aten] {
                for variant in ["", "gemm"] {
                    // Mostly quick behaviours: a hang costs its deadline.
                    let behaviour = if random(40) == 0 { hanging[random(3)] } else { quick[random(quick.len())] };
                    let attempt = Attempt { engine, variant: variant.to_owned(), ..attempt(size) };
                    let name = if variant.is_empty() { "-" } else { variant };
                    table += &format!("{engine}\t{name}\t2->4\t{size}\t{behaviour}\tchance\n");
                    wanted.insert(attempt.clone(), behaviour);
                    attempts.push(attempt);
                }
            }
        }
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path());
        let probed = Card::new(&table).probe(&store, attempts, |_| {});
        assert_eq!((probed.tried.len(), &probed.end), (wanted.len(), &End::Complete), "seed {seed}");
        for tried in &probed.tried {
            let behaviour = wanted[&tried.attempt];
            let found = (tried.verdict, tried.stage, tried.signal);
            assert_eq!(found, expected(behaviour), "seed {seed}, {behaviour}: {}", tried.detail);
        }
        assert_kept(&store, &probed);
    }
}

const READY: &str = r#"echo '{"say":"ready"}' >&0;"#;

fn script(text: &str) -> Launch {
    Launch { command: ["sh", "-c", text].map(str::to_owned).to_vec(), environment: Vec::new() }
}

/// Runs one attempt with a script as the child. Returns the verdict and how long it took.
fn with_script(text: &str, deadlines: Deadlines) -> (Probed, Duration) {
    let (launch, began) = (script(text), Instant::now());
    let stop = AtomicBool::new(false);
    let probed = run(&Store::none(), vec![attempt(8)], &|_| launch.clone(), None, 1, deadlines, &stop, &|_| {});
    (probed, began.elapsed())
}

#[test]
fn children_that_speak_badly_are_ended_in_time() {
    let computed = r#"{"say":"answer","id":1,"ended":"computed","relative_error":0.0}"#;
    let stage = |stage: &str| format!(r#"echo '{{"say":"stage","id":1,"stage":"{stage}"}}' >&0;"#);
    let run = stage("run");
    for (name, text, verdict, stage, said) in [
        (
            "says the right thing",
            format!("{READY} read request; echo '{computed}' >&0; read more"),
            Verdict::Works,
            None,
            "",
        ),
        (
            "ignores SIGTERM",
            format!("trap '' TERM INT HUP; {READY} read r; {run} while :; do sleep 1; done"),
            Verdict::Hangs,
            Some(Stage::Run),
            "",
        ),
        (
            "lives and never answers",
            format!("{READY} read r; {run} while :; do echo '{{\"say\":\"heartbeat\"}}' >&0; sleep 0.1; done"),
            Verdict::Hangs,
            Some(Stage::Run),
            "",
        ),
        (
            "never says that it runs",
            format!("{READY} read r; {} sleep 1000", stage("compile")),
            Verdict::Hangs,
            Some(Stage::Compile),
            "",
        ),
        (
            "closes its connection",
            format!("{READY} read r; {run} exec <&-; sleep 1000"),
            Verdict::Crashes,
            Some(Stage::Run),
            "closed its connection",
        ),
        (
            "closes everything",
            format!("{READY} read r; {run} exec <&- >&- 2>&-; sleep 1000"),
            Verdict::Crashes,
            Some(Stage::Run),
            "closed its connection",
        ),
        (
            "leaves a grandchild with the socket",
            format!("{READY} read r; {run} sleep 1000 & exit 3"),
            Verdict::Crashes,
            Some(Stage::Run),
            "code 3",
        ),
        ("answers and leaves", format!("{READY} read r; echo '{computed}' >&0; exit 0"), Verdict::Works, None, ""),
        (
            "answers another question",
            format!("{READY} read r; echo '{}' >&0; sleep 1000", computed.replace(":1", ":77")),
            Verdict::Error,
            Some(Stage::Prepare),
            "77",
        ),
        (
            "claims an impossible time",
            format!("{READY} read r; {run} echo '{}' >&0; sleep 1000", computed.replace("0.0", "-1.0")),
            Verdict::Error,
            Some(Stage::Run),
            "",
        ),
        (
            "goes back a stage",
            format!("{READY} read r; {run} {} sleep 1000", stage("compile")),
            Verdict::Error,
            Some(Stage::Run),
            "",
        ),
        (
            "does not answer with numbers",
            format!("{READY} read r; echo '{}' >&0; read m", computed.replace(",\"relative_error\":0.0", "")),
            Verdict::Wrong,
            None,
            "",
        ),
        ("ends at once", "exit 0".to_owned(), Verdict::Crashes, Some(Stage::Start), "code 0"),
        (
            "prints to its output without end",
            format!("{READY} read r; {run} yes flood & sleep 0.3; kill $!; echo '{computed}' >&0; read m"),
            Verdict::Works,
            None,
            "",
        ),
    ] {
        let (probed, elapsed) = with_script(&text, deadlines());
        let tried = &probed.tried[0];
        assert_eq!((tried.verdict, tried.stage), (verdict, stage), "a child that {name}: {}", tried.detail);
        assert!(tried.detail.contains(said), "a child that {name}: {}", tried.detail);
        assert!(elapsed < Duration::from_secs(30), "a child that {name} took {elapsed:?}");
    }
}

#[test]
fn children_that_do_not_start_are_given_up() {
    let short = Deadlines { start: Duration::from_millis(700), ..deadlines() };
    for (text, verdict) in [("sleep 1000", Verdict::Hangs), ("echo no torch here >&2; exit 1", Verdict::Crashes)] {
        let (launch, stop, began) = (script(text), AtomicBool::new(false), Instant::now());
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path());
        let probed = run(&store, attempts(50), &|_| launch.clone(), None, 1, short, &stop, &|_| {});
        // Two failures are enough. What a child never got to is not evidence.
        assert_eq!((probed.tried.len(), probed.left.len()), (2, 48));
        assert!(
            probed.tried.iter().all(|it| (it.verdict, it.stage) == (verdict, Some(Stage::Start))),
            "{:?}",
            probed.tried
        );
        assert!(probed.left[0].1.contains("does not start"), "{:?}", probed.left[0]);
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(store.records(&Filter::default()).is_empty());
        drop(store);
        assert_eq!(intents_in(home.path()), 0);
    }
    let nothing = Launch { command: vec!["/no/such/program".to_owned()], environment: Vec::new() };
    let stop = AtomicBool::new(false);
    let probed = run(&Store::none(), attempts(5), &|_| nothing.clone(), None, 1, short, &stop, &|_| {});
    assert!(probed.tried[0].verdict == Verdict::Error && probed.tried[0].detail.contains("/no/such/program"));
}

#[test]
fn a_card_that_does_not_come_back_is_lost_and_nothing_else_is() {
    let card = Card::new("*\t*\t*->*\t8\tlost\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n");
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path());
    let card = Card { workers: 1, ..card };
    let probed = card.probe(&store, (4..30).map(attempt).collect(), |_| {});
    let End::Lost(why) = &probed.end else { panic!("{:?}", probed.end) };
    assert!(why.contains("canary") && why.contains("8x8"), "{why}");
    let verdicts: Vec<Verdict> = probed.tried.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Works, Verdict::Works, Verdict::Works, Verdict::Works, Verdict::Hangs]);
    assert_eq!(probed.left.len(), 26 - 5);
    assert_kept(&store, &probed);
}

#[test]
fn stopping_ends_the_children_and_keeps_what_was_found() {
    let card = Card::new("*\t*\t*->*\t>40\thang-run\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n");
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path());
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let launch = itself(PLAY, &card.folder);
    let patient = Deadlines { run: Duration::from_secs(600), ..deadlines() };
    let began = Instant::now();
    let all: Vec<Attempt> = (4..10).chain(41..80).map(attempt).collect();
    let probed = std::thread::scope(|scope| {
        let probing = scope.spawn(|| {
            let watch = |_: &Tried| {
                done.fetch_add(1, Ordering::Relaxed);
            };
            run(&store, all, &|_| launch.clone(), Some(launch.clone()), 2, patient, &stop, &watch)
        });
        while done.load(Ordering::Relaxed) < 6 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        probing.join().unwrap()
    });
    assert!(began.elapsed() < Duration::from_secs(90));
    assert_eq!((probed.end.clone(), probed.tried.len(), probed.left.len()), (End::Interrupted, 6, 39));
    assert_kept(&store, &probed);
    drop(store);
    assert_eq!(intents_in(home.path()), 0, "what was given up is nobody's culprit");
}

/// Starts a prober on a card where larger sizes hang, and kills it during one of those. Returns its store.
fn killed_prober(home: &Path) -> Store {
    let mut prober = start_prober(home, "");
    let store = Store::open(home);
    let began = Instant::now();
    // Just after a hang a prober is in its canary; wait until the next attempt is under way.
    while hangs(&store) < 2 || intents_in(home) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60) && prober.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(30));
    }
    let children = children_of(prober.id());
    assert!(!children.is_empty());
    prober.kill().unwrap();
    prober.wait().unwrap();
    let killed = Instant::now();
    while children.iter().any(|id| lives(id)) {
        assert!(killed.elapsed() < Duration::from_secs(20), "children outlive their prober");
        std::thread::sleep(Duration::from_millis(20));
    }
    store
}

fn hangs(store: &Store) -> usize {
    store.records(&Filter { verdict: Some(Verdict::Hangs), ..Filter::default() }).len()
}

/// Sizes over 30 hang until they are killed, so the prober is in one of them when it is killed.
const LARGE_ONES_HANG: &str = "*\t*\t*->*\t>30\thang-run\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n";

#[test]
fn a_culprit_that_was_tried_again_and_came_back_is_not_suspected_any_more() {
    let home = tempfile::tempdir().unwrap();
    card_beside(home.path(), LARGE_ONES_HANG);
    let store = killed_prober(home.path());
    let (_, again) = store.unresolved_intents(MACHINE).swap_remove(0);
    store.record(Record::new(again.problem.clone(), again.engine, MACHINE, Verdict::Works, RecordSource::Rehearsal));
    assert!(store.flush(Duration::from_secs(10)));
    let found = culprits(&store, MACHINE, RecordSource::Rehearsal);
    assert!(found.iter().all(|record| record.problem != again.problem), "{found:?}");
    assert!(store.flush(Duration::from_secs(10)));
    assert_eq!(intents_in(home.path()), 0, "nor later");
    let evidence = Evidence::load_rehearsal(&store, MACHINE);
    assert!(evidence.about(&again.problem, again.engine, "").unwrap().is_proof());
}

#[test]
fn a_prober_that_is_killed_leaves_the_culprits_names_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let card = card_beside(home.path(), LARGE_ONES_HANG);
    let store = killed_prober(home.path());
    let (before, known) = (store.records(&Filter::default()), hangs(&store));
    assert!(before.iter().filter(|record| record.verdict == Verdict::Works).count() >= 20, "{}", before.len());
    let found = culprits(&store, MACHINE, RecordSource::Rehearsal);
    assert!((1..=4).contains(&found.len()), "one for each worker at most: {found:?}");
    for record in &found {
        assert!(record.verdict == Verdict::Hangs && record.detail.contains("went down"), "{record:?}");
    }
    assert!(culprits(&store, MACHINE, RecordSource::Rehearsal).is_empty(), "they are verdicts now");
    assert!(store.flush(Duration::from_secs(10)));
    let evidence = Evidence::load_rehearsal(&store, MACHINE);
    assert!(found.iter().all(|it| evidence.about(&it.problem, it.engine, "").is_some()));
    assert!(hangs(&store) >= known);
    // The next probe continues: it does not repeat what is known.
    let left: Vec<Attempt> =
        attempts(60).into_iter().filter(|it| evidence.about(&it.problem, it.engine, "").is_none()).collect();
    assert!(!left.is_empty() && left.len() <= 60 - 27 - found.len(), "{}", left.len());
    let probed = Card::in_folder(card).probe(&store, left.into_iter().take(3).collect(), |_| {});
    assert_eq!((probed.end, probed.tried.len()), (End::Complete, 3));
}

#[test]
fn eight_probers_share_one_store() {
    let home = tempfile::tempdir().unwrap();
    card_beside(home.path(), "*\t*\t*->*\t13\tabort\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n");
    let began = Instant::now();
    let probers: Vec<_> = (0..8).map(|_| start_prober(home.path(), "")).collect();
    for mut prober in probers {
        assert!(prober.wait().unwrap().success());
    }
    assert!(began.elapsed() < Duration::from_secs(120), "took {:?}", began.elapsed());
    let store = Store::open(home.path());
    let records = store.records(&Filter::default());
    assert_eq!(records.len(), 200, "each is there, once");
    assert_eq!(records.iter().filter(|it| it.verdict == Verdict::Crashes).count(), 4);
    assert_eq!(intents_in(home.path()), 0);
}

#[test]
fn a_full_disk_costs_no_verdict() {
    let home = tempfile::tempdir().unwrap();
    card_beside(home.path(), "*\t*\t*->*\t13\tabort\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n");
    // No file of the prober may grow over 200 blocks. The signal for that is ignored, so that writes fail.
    let mut prober = start_prober(home.path(), "trap '' XFSZ; ulimit -f 200; export UNHANG_TEST_FULL=1;");
    assert!(
        prober.wait().unwrap().success(),
        "it goes on without the disk, tells all verdicts, and says what is not kept"
    );
}

#[test]
fn a_store_that_goes_bad_costs_no_verdict() {
    let card = Card::new("*\t*\t*->*\t13\tabort\tmade up\n*\t*\t*->*\t*\tworks\tmade up\n");
    // Damaged while the probe runs: the file is set aside, a new one is created, and the outcome holds all verdicts of
    // this run.
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path());
    let count = AtomicUsize::new(0);
    let probed = card.probe(&store, attempts(60), |_| {
        if count.fetch_add(1, Ordering::Relaxed) == 10 {
            for name in ["evidence.db", "evidence.db-wal"] {
                let _ = std::fs::write(home.path().join(name), vec![0x5a; 40_000]);
            }
        }
    });
    assert_eq!((probed.tried.len(), &probed.end), (60, &End::Complete));
    assert_eq!(probed.tried.iter().filter(|it| it.verdict == Verdict::Crashes).count(), 2);
    let reopened = Store::open(home.path());
    assert!(!store.notices().is_empty() || !reopened.notices().is_empty(), "it is reported");
    // No store at all.
    let probed = card.probe(&Store::none(), attempts(20), |_| {});
    assert_eq!((probed.tried.len(), probed.unwritten), (20, 20), "and it is said that nothing was kept");
}
