//! A child runs to its end, whatever it does, and nobody waits longer than the deadline.

use std::time::{Duration, Instant};

use unhang_probe::{Child, ChildOutcome, Ended, SuperviseError, canary, supervise, supervise_when_ready};

fn shell(script: &str, deadline: Duration) -> ChildOutcome {
    let started = Instant::now();
    let outcome = supervise(&Child {
        command: ["sh", "-c", script].map(String::from).to_vec(),
        environment: vec![("GREETING".into(), Some("hello".into()))],
        deadline,
    })
    .unwrap();
    // No test here has a child that cannot be killed, so the grace period is never used up.
    assert!(started.elapsed() < deadline + Duration::from_secs(10), "waited {:?}", started.elapsed());
    outcome
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn ends_are_told_apart() {
    let outcome = shell("echo $GREETING; echo there >&2; exit 3", LONG);
    assert_eq!(outcome.ended, Ended::Exited(3));
    assert_eq!(outcome.output, "hello\nthere\n");
    assert_eq!(shell("kill -SEGV $$", LONG).ended, Ended::Signalled(11));
    assert_eq!(shell("kill -KILL $$", LONG).ended, Ended::Signalled(9));
}

#[test]
fn only_lines_with_the_childs_own_number_are_answers() {
    let outcome = shell("echo works; echo 00 works; echo \"$UNHANG_CHILD_NONCE fails\"; echo last words", LONG);
    assert_eq!(outcome.answers().collect::<Vec<_>>(), ["fails"]);
    assert_eq!(outcome.last_words(), "last words");
    let other = shell("echo \"$UNHANG_CHILD_NONCE fails\"", LONG);
    assert_ne!(outcome.output.lines().nth(2), other.output.lines().next(), "another number each time");
}

#[test]
fn hangs_are_ended() {
    assert_eq!(shell("sleep 1000", SHORT).ended, Ended::TimedOut);
    assert_eq!(shell("trap '' TERM INT HUP; while :; do sleep 1; done", SHORT).ended, Ended::TimedOut);
    assert_eq!(shell("exec >&- 2>&-; sleep 1000", SHORT).ended, Ended::TimedOut);
}

fn child(script: &str, deadline: Duration) -> Child {
    Child { command: ["sh", "-c", script].map(String::from).to_vec(), environment: Vec::new(), deadline }
}

/// A child's messages to its parent begin with its number.
const SAY: &str = "echo $UNHANG_CHILD_NONCE";

#[test]
fn a_slow_start_is_no_hang() {
    let torch = canary::torch_line("2.2.2 hip5.7");
    let answer = canary::answer_line(unhang_engine::Verdict::Works, "fine");
    // A start that takes longer than the trial may.
    let deadline = Duration::from_secs(3);
    let slow = child(&format!("echo starting; sleep 4; {SAY} '{torch}'; {SAY} '{answer}'"), deadline);
    assert_eq!(supervise(&slow).unwrap().ended, Ended::TimedOut);
    let (outcome, began) = canary::try_in(&slow).unwrap();
    assert!(began);
    assert_eq!(canary::judge(&outcome, deadline).0, unhang_engine::Verdict::Works, "{outcome:?}");
    // Its time counts from the moment it is ready.
    let (outcome, began) = canary::try_in(&child(&format!("{SAY} '{torch}'; sleep 1000"), SHORT)).unwrap();
    assert!(began);
    assert_eq!(canary::judge(&outcome, SHORT).0, unhang_engine::Verdict::Hangs);
    // A child that cannot import torch, or is never ready, proves nothing.
    let (outcome, began) = canary::try_in(&child("echo ImportError: libamdhip64.so.5; exit 3", LONG)).unwrap();
    assert!(!began);
    let (verdict, detail) = canary::never_began(&outcome);
    assert_eq!(verdict, unhang_engine::Verdict::Error);
    assert!(detail.contains("ImportError: libamdhip64.so.5") && detail.contains("not kept"), "{detail}");
    let started = Instant::now();
    let never = child("sleep 1000", LONG);
    let (outcome, began) = supervise_when_ready(&never, SHORT, |output| output.contains("unhang-torch")).unwrap();
    assert_eq!((outcome.ended, began), (Ended::TimedOut, false));
    assert!(started.elapsed() < LONG, "it gets no more time than its start");
}

/// Programs that keep every processor busy. Dropping this ends them.
struct Others(Vec<std::process::Child>);

impl Others {
    fn start() -> Others {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let busy = || std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Others((0..4 * processors).map(|_| busy()).collect())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for other in &mut self.0 {
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

#[test]
fn what_a_child_waits_for_a_processor_does_not_count() {
    let _others = Others::start();
    let deadline = Duration::from_secs(2);
    let torch = canary::torch_line("2.2.2 hip5.7");
    let answer = canary::answer_line(unhang_engine::Verdict::Works, "fine");
    // Computes for one and a half times its limit, in hundredths of a second.
    let clock = "read now _ </proc/uptime; now=${now%.*}${now#*.}";
    let compute = format!("{clock}; end=$((now + 300)); while [ $now -lt $end ]; do {clock}; done");
    let (outcome, began) =
        canary::try_in(&child(&format!("{SAY} '{torch}'; {compute}; {SAY} '{answer}'"), deadline)).unwrap();
    assert!(began);
    assert_eq!(canary::judge(&outcome, deadline).0, unhang_engine::Verdict::Works, "{outcome:?}");
    // A sleeping child does not wait for a processor: it hangs, however busy the machine is.
    let started = Instant::now();
    let (outcome, _) = canary::try_in(&child(&format!("{SAY} '{torch}'; exec sleep 1000"), deadline)).unwrap();
    assert_eq!(canary::judge(&outcome, deadline).0, unhang_engine::Verdict::Hangs);
    assert!(started.elapsed() < 4 * deadline, "{:?}", started.elapsed());
}

#[test]
fn a_flood_blocks_nobody() {
    let outcome = shell("head -c 3000000 /dev/zero | tr '\\0' 'x'; echo end", LONG);
    assert_eq!(outcome.ended, Ended::Exited(0));
    assert!(outcome.output.len() <= 256 * 1024 && outcome.output.ends_with("end\n"));
}

#[test]
fn a_grandchild_with_the_output_in_its_hands_keeps_nobody_waiting() {
    let outcome = shell("sleep 1000 & echo $!", LONG);
    assert_eq!(outcome.ended, Ended::Exited(0));
    let grandchild = outcome.output.trim().to_owned();
    let started = Instant::now();
    let alive = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while alive() && started.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!alive(), "the grandchild {grandchild} lives on");
}

#[test]
fn what_cannot_be_started_is_named() {
    let child = |command: &[&str]| Child {
        command: command.iter().map(ToString::to_string).collect(),
        environment: Vec::new(),
        deadline: SHORT,
    };
    assert!(matches!(supervise(&child(&[])), Err(SuperviseError::NoCommand)));
    let error = supervise(&child(&["/no/such/program"])).unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}
