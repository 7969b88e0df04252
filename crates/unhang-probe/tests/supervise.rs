//! A child is run to its end, whatever it does, and nobody waits for longer than was said.

use std::time::{Duration, Instant};

use unhang_probe::{Child, Ended, Outcome, SuperviseError, supervise};

fn shell(script: &str, deadline: Duration) -> Outcome {
    let started = Instant::now();
    let outcome = supervise(&Child {
        command: ["sh", "-c", script].map(String::from).to_vec(),
        environment: vec![("GREETING".into(), "hello".into())],
        deadline,
    })
    .unwrap();
    // No test here is about a child that cannot be killed, so the grace is never used up.
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
fn hangs_are_ended() {
    assert_eq!(shell("sleep 1000", SHORT).ended, Ended::TimedOut);
    assert_eq!(shell("trap '' TERM INT HUP; while :; do sleep 1; done", SHORT).ended, Ended::TimedOut);
    assert_eq!(shell("exec >&- 2>&-; sleep 1000", SHORT).ended, Ended::TimedOut);
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
