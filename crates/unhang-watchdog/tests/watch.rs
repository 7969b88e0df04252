//! The watch with a simulated device: a queue of work and events that complete in order, never before the work ahead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use unhang_watchdog::{Events, Hang, HangPlace, Lane, Watch, WatchSettings};

const DEADLINE: Duration = Duration::from_millis(400);
/// For waits that should end; no result depends on how long they take.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Device {
    /// How much work each event has ahead of it.
    events: Mutex<HashMap<u64, usize>>,
    launched: AtomicUsize,
    done: AtomicUsize,
    capturing: AtomicBool,
    /// The driver never answers.
    stuck: AtomicBool,
    refusing: AtomicBool,
    recorded: AtomicUsize,
    /// Whoever created its streams destroys them.
    fleeting: AtomicBool,
}

impl Device {
    fn launch(&self) {
        self.launched.fetch_add(1, Ordering::SeqCst);
    }

    fn finish_all(&self) {
        self.done.store(self.launched.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

impl Events for Device {
    fn create(&self) -> Result<u64, String> {
        let mut events = self.events.lock().unwrap();
        let event = events.len() as u64 + 1;
        events.insert(event, usize::MAX);
        Ok(event)
    }

    fn record(&self, event: u64, _: u64) -> Result<(), String> {
        self.recorded.fetch_add(1, Ordering::SeqCst);
        self.events.lock().unwrap().insert(event, self.launched.load(Ordering::SeqCst));
        Ok(())
    }

    fn has_happened(&self, event: u64) -> Result<bool, String> {
        while self.stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.refusing.load(Ordering::SeqCst) {
            return Err("illegal address".to_owned());
        }
        Ok(self.events.lock().unwrap()[&event] <= self.done.load(Ordering::SeqCst))
    }

    fn is_capturing(&self, _: u64) -> bool {
        self.capturing.load(Ordering::SeqCst)
    }

    fn is_lasting(&self, _: u64) -> bool {
        !self.fleeting.load(Ordering::SeqCst)
    }
}

struct Bench {
    watch: Watch<&'static str>,
    hangs: Receiver<Hang<&'static str>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(WatchSettings { deadline: DEADLINE, outside_deadline: DEADLINE, host_deadline: 1000 * DEADLINE })
    }

    fn with(settings: WatchSettings) -> Bench {
        let (tell, hangs) = channel();
        Bench { watch: Watch::start(settings, move |hang| tell.send(hang).unwrap()).unwrap(), hangs }
    }

    fn device(&self, number: i32) -> (Arc<Device>, Arc<Lane<&'static str>>) {
        let device = Arc::new(Device::default());
        let events: Arc<dyn Events> = device.clone();
        (device, self.watch.lane(number, 7, || events))
    }

    /// Runs a call that queues one piece of work.
    fn call(&self, lane: &Arc<Lane<&'static str>>, device: &Device, name: &'static str) {
        let call = self.watch.begin(lane, &Arc::new(name)).unwrap();
        device.launch();
        self.watch.end(&call);
    }

    fn hang(&self) -> Hang<&'static str> {
        self.hangs.recv_timeout(PATIENCE).expect("a hang is reported")
    }

    /// No hang is reported within three deadlines.
    fn assert_quiet(&self) {
        if let Ok(hang) = self.hangs.recv_timeout(3 * DEADLINE) {
            panic!("told of {hang:?}");
        }
    }

    fn wait_until_all_happened(lane: &Lane<&'static str>) {
        let until = std::time::Instant::now() + PATIENCE;
        while lane.outstanding() > 0 {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_first_that_does_not_finish_is_the_culprit() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    bench.call(&lane, &device, "first");
    device.finish_all();
    bench.call(&lane, &device, "second");
    bench.call(&lane, &device, "third");
    let hang = bench.hang();
    assert_eq!((hang.subject.as_deref(), hang.place, hang.device), (Some(&"second"), HangPlace::Running, Some(0)));
    assert!(hang.waited >= DEADLINE);
}

#[test]
fn what_stands_before_a_call_is_not_the_calls_fault() {
    let bench = Bench::new();
    let (device, lane) = bench.device(3);
    bench.call(&lane, &device, "first");
    device.finish_all();
    device.launch();
    bench.call(&lane, &device, "second");
    let hang = bench.hang();
    assert_eq!((hang.subject, hang.place, hang.device), (None, HangPlace::Outside, Some(3)));
}

#[test]
fn a_lost_call_leaves_no_marker_behind_its_work() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    device.fleeting.store(true, Ordering::SeqCst);
    let call = bench.watch.begin(&lane, &Arc::new("lost")).unwrap();
    device.launch();
    bench.watch.forget(&call);
    bench.assert_quiet();
}

#[test]
fn a_wait_with_no_call_outstanding_is_outside() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    bench.call(&lane, &device, "first");
    device.finish_all();
    Bench::wait_until_all_happened(&lane);
    device.launch();
    assert_eq!(bench.hang().place, HangPlace::Outside);
}

#[test]
fn nothing_is_put_into_a_stream_that_may_have_been_destroyed() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    device.fleeting.store(true, Ordering::SeqCst);
    bench.call(&lane, &device, "first");
    device.finish_all();
    Bench::wait_until_all_happened(&lane);
    let recorded = device.recorded.load(Ordering::SeqCst);
    device.launch();
    bench.assert_quiet();
    assert_eq!(device.recorded.load(Ordering::SeqCst), recorded);
    // During a call the stream exists, and what the call waits for is reported.
    device.finish_all();
    let _call = bench.watch.begin(&lane, &Arc::new("second")).unwrap();
    device.launch();
    let hang = bench.hang();
    assert_eq!((hang.subject.as_deref(), hang.place), (Some(&"second"), HangPlace::Searching));
}

#[test]
fn what_is_not_watched_has_a_deadline_of_its_own() {
    let settings =
        WatchSettings { deadline: DEADLINE, outside_deadline: 1000 * DEADLINE, host_deadline: 1000 * DEADLINE };
    let bench = Bench::with(settings);
    let (device, lane) = bench.device(0);
    bench.call(&lane, &device, "first");
    device.finish_all();
    device.launch();
    bench.call(&lane, &device, "second");
    bench.assert_quiet(); // long work is ahead of the second
    device.finish_all();
    bench.call(&lane, &device, "third");
    assert_eq!(bench.hang().subject.as_deref(), Some(&"third"));
}

#[test]
fn a_call_that_waits_for_its_own_candidates_is_the_culprit() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    let _call = bench.watch.begin(&lane, &Arc::new("searching")).unwrap();
    device.launch();
    let hang = bench.hang();
    assert_eq!((hang.subject.as_deref(), hang.place), (Some(&"searching"), HangPlace::Searching));
}

#[test]
fn a_candidate_inside_a_call_is_told_from_the_call_itself() {
    for (own_work_ends, culprit) in [(true, "candidate"), (false, "call")] {
        let bench = Bench::new();
        let (device, lane) = bench.device(0);
        let call = bench.watch.begin(&lane, &Arc::new("call")).unwrap();
        device.launch();
        if own_work_ends {
            device.finish_all();
        }
        let candidate = bench.watch.begin_inside(&lane, &Arc::new("candidate")).unwrap();
        device.launch();
        bench.watch.end(&candidate);
        bench.watch.end(&call);
        assert_eq!(bench.hang().subject.as_deref(), Some(&culprit));
    }
}

#[test]
fn compiling_and_loading_data_are_no_hangs() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    bench.call(&lane, &device, "first");
    device.finish_all();
    bench.assert_quiet(); // no work: the loader is slow
    let call = bench.watch.begin(&lane, &Arc::new("compiling")).unwrap();
    bench.assert_quiet(); // an idle stream during a call
    device.launch();
    bench.watch.end(&call);
    device.finish_all();
    bench.assert_quiet();
}

#[test]
fn compiling_for_ever_is_a_hang() {
    let bench =
        Bench::with(WatchSettings { deadline: DEADLINE, outside_deadline: DEADLINE, host_deadline: 2 * DEADLINE });
    let (_device, lane) = bench.device(0);
    let _call = bench.watch.begin(&lane, &Arc::new("compiling")).unwrap();
    let hang = bench.hang();
    assert_eq!((hang.subject.as_deref(), hang.place), (Some(&"compiling"), HangPlace::Host));
}

#[test]
fn a_deep_queue_that_moves_is_no_hang() {
    // A busy machine wakes this thread late: each piece takes a small part of a deadline, the whole more than one.
    let deadline = 5 * DEADLINE;
    let bench = Bench::with(WatchSettings { deadline, outside_deadline: deadline, host_deadline: 1000 * DEADLINE });
    let (device, lane) = bench.device(0);
    for _ in 0..100 {
        bench.call(&lane, &device, "one of many");
    }
    for _ in 0..40 {
        std::thread::sleep(deadline / 20);
        device.done.fetch_add(1, Ordering::SeqCst);
    }
    assert!(lane.outstanding() > 0 && bench.hangs.try_recv().is_err());
    device.finish_all();
    Bench::wait_until_all_happened(&lane);
}

#[test]
fn nothing_is_put_into_a_graph() {
    let bench = Bench::new();
    let device = Arc::new(Device { capturing: AtomicBool::new(true), ..Device::default() });
    let events: Arc<dyn Events> = device.clone();
    let lane = bench.watch.lane(0, 7, || events);
    assert!(bench.watch.begin(&lane, &Arc::new("captured")).is_none());
    bench.assert_quiet();
    assert_eq!(device.recorded.load(Ordering::SeqCst), 0);
    // A recording begins inside a call. Work launched then never runs, and nobody waits for it.
    device.capturing.store(false, Ordering::SeqCst);
    let call = bench.watch.begin(&lane, &Arc::new("begins one")).unwrap();
    Bench::wait_until_all_happened(&lane);
    device.capturing.store(true, Ordering::SeqCst);
    std::thread::sleep(DEADLINE / 2);
    device.launch();
    bench.watch.end(&call);
    bench.assert_quiet();
}

#[test]
fn a_driver_that_answers_late_is_no_hang() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    let (other, other_lane) = bench.device(1);
    Bench::wait_until_all_happened(&other_lane);
    // Another thread compiles and holds the driver's lock. The queued work finishes meanwhile, and nobody can see it.
    device.stuck.store(true, Ordering::SeqCst);
    bench.call(&lane, &device, "done unseen");
    bench.call(&other_lane, &other, "done unseen too");
    device.finish_all();
    other.finish_all();
    bench.assert_quiet();
    device.stuck.store(false, Ordering::SeqCst);
    Bench::wait_until_all_happened(&lane);
    bench.assert_quiet();
}

#[test]
fn a_driver_that_never_answers_is_a_hang_in_the_end() {
    let bench =
        Bench::with(WatchSettings { deadline: DEADLINE, outside_deadline: DEADLINE, host_deadline: 2 * DEADLINE });
    let (device, lane) = bench.device(0);
    let (other, other_lane) = bench.device(1);
    Bench::wait_until_all_happened(&other_lane);
    device.stuck.store(true, Ordering::SeqCst);
    bench.call(&lane, &device, "stuck");
    // It has finished, but the poller is stuck and cannot see it.
    bench.call(&other_lane, &other, "fine");
    other.finish_all();
    let hang = bench.hang();
    // Whichever marker the poller asked about, but never the lane that it could not ask.
    assert_eq!((hang.device, hang.place), (Some(0), HangPlace::Host));
    assert!(hang.subject.is_none_or(|subject| *subject == "stuck"));
    device.stuck.store(false, Ordering::SeqCst);
}

#[test]
fn a_driver_that_refuses_is_left_alone() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    device.refusing.store(true, Ordering::SeqCst);
    bench.call(&lane, &device, "broken");
    bench.assert_quiet();
    assert_eq!(lane.broken().as_deref(), Some("illegal address"));
    bench.call(&lane, &device, "after");
    bench.assert_quiet();
}

#[test]
fn a_call_on_the_host_has_the_same_deadline() {
    let bench = Bench::new();
    let quick = bench.watch.begin_host(&Arc::new("quick"));
    let slow = bench.watch.begin_host(&Arc::new("slow"));
    bench.watch.end_host(quick);
    let hang = bench.hang();
    assert_eq!((hang.subject.as_deref(), hang.place, hang.device), (Some(&"slow"), HangPlace::Call, None));
    bench.watch.end_host(slow);
}

#[test]
fn a_stopped_watch_tells_nothing_and_its_threads_end() {
    let bench = Bench::new();
    let (device, lane) = bench.device(0);
    bench.call(&lane, &device, "hanging");
    assert!(bench.watch.stop_within(PATIENCE));
    assert!(bench.watch.begin(&lane, &Arc::new("later")).is_none());
    assert!(bench.hangs.recv().is_err(), "the function was dropped and not called");
}

#[test]
fn more_calls_than_can_be_watched_accuse_nobody() {
    // Long enough to fill the queue.
    let bench = Bench::with(WatchSettings {
        deadline: 12 * DEADLINE,
        outside_deadline: 12 * DEADLINE,
        host_deadline: 1000 * DEADLINE,
    });
    let (device, lane) = bench.device(0);
    device.launch();
    let subject = Arc::new("one of too many");
    for _ in 0..9000 {
        let call = bench.watch.begin(&lane, &subject).unwrap();
        bench.watch.end(&call);
    }
    // There was no room for the marker before this call, and its work then waits behind everything.
    let call = bench.watch.begin(&lane, &subject).unwrap();
    let ahead = device.launched.load(Ordering::SeqCst);
    device.launch();
    device.done.store(ahead, Ordering::SeqCst);
    let until = std::time::Instant::now() + PATIENCE;
    while lane.outstanding() > 1 {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.watch.end(&call);
    // Its own marker, or a fence before it, follows calls that were not watched. So it says nothing about any one call.
    let hang = bench.hang();
    assert!(hang.is_uncertain && hang.subject.is_none(), "{hang:?}");
}
