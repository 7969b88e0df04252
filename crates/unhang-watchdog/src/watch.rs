//! The watch: its threads, and the watched calls.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::judge;
use crate::lane::{Events, Lane};
use crate::shared::{Hang, Shared, WatchSettings};

/// A watched call on an accelerator.
pub struct Call<T> {
    lane: Arc<Lane<T>>,
    number: u64,
}

/// A watched call on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostCall(u64);

/// Watches calls, and reports the first that hangs.
pub struct Watch<T> {
    shared: Arc<Shared<T>>,
    judge: Mutex<Option<JoinHandle<()>>>,
    poller: Mutex<Option<JoinHandle<()>>>,
}

impl<T: Send + Sync + 'static> Watch<T> {
    /// Starts watching. A separate thread calls `on_hang`, at most once.
    pub fn start(settings: WatchSettings, on_hang: impl FnOnce(Hang<T>) + Send + 'static) -> std::io::Result<Watch<T>> {
        let shared = Arc::new(Shared::new(settings));
        let judge = std::thread::Builder::new().name("unhang-judge".to_owned()).spawn({
            let shared = shared.clone();
            move || {
                if let Some(hang) = judge::wait_for_hang(&shared) {
                    on_hang(hang);
                }
            }
        })?;
        Ok(Watch { shared, judge: Mutex::new(Some(judge)), poller: Mutex::default() })
    }

    /// The lane of a stream. The first request creates it and starts its thread.
    pub fn lane(&self, device: i32, stream: u64, events: impl FnOnce() -> Arc<dyn Events>) -> Arc<Lane<T>> {
        let same = |lane: &&Arc<Lane<T>>| (lane.device, lane.stream) == (device, stream);
        if let Some(lane) = self.shared.lanes.read().unwrap_or_else(PoisonError::into_inner).iter().find(same) {
            return lane.clone();
        }
        let lane = {
            let mut lanes = self.shared.lanes.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(lane) = lanes.iter().find(same) {
                return lane.clone();
            }
            let lane = Arc::new(Lane::new(device, stream, events()));
            lanes.push(lane.clone());
            lane
        };
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        if poller.is_none() {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().name("unhang-poller".to_owned()).spawn(move || poll(&shared));
            // Without the thread, nothing completes, which would look like a hang: so nothing is watched.
            match spawned {
                Ok(thread) => *poller = Some(thread),
                Err(_) => self.stop(),
            }
        }
        lane
    }

    /// A call begins on a lane; `None` while a graph is recorded, or after the watch was stopped.
    pub fn begin(&self, lane: &Arc<Lane<T>>, subject: &Arc<T>) -> Option<Call<T>> {
        if self.shared.is_stopped() {
            return None;
        }
        self.begin_as(lane, subject, false)
    }

    /// A call begins inside another one on the same lane that has not returned. A hang before it is the outer call's.
    pub fn begin_inside(&self, lane: &Arc<Lane<T>>, subject: &Arc<T>) -> Option<Call<T>> {
        if self.shared.is_stopped() {
            return None;
        }
        self.begin_as(lane, subject, true)
    }

    fn begin_as(&self, lane: &Arc<Lane<T>>, subject: &Arc<T>, is_nested: bool) -> Option<Call<T>> {
        let number = self.next_call();
        lane.begin(number, subject, is_nested).then(|| Call { lane: lane.clone(), number })
    }

    /// The call has returned to the host.
    pub fn end(&self, call: &Call<T>) {
        if !self.shared.is_stopped() {
            call.lane.end(call.number);
        }
    }

    /// The call was lost: nobody says when it ends. The driver is not called.
    pub fn forget(&self, call: &Call<T>) {
        call.lane.forget(call.number);
    }

    /// A call begins that is over when it returns.
    pub fn begin_host(&self, subject: &Arc<T>) -> HostCall {
        let number = self.next_call();
        self.shared.host_calls().push((number, subject.clone()));
        HostCall(number)
    }

    /// The call has returned.
    pub fn end_host(&self, call: HostCall) {
        let mut calls = self.shared.host_calls();
        if let Some(at) = calls.iter().rposition(|(number, _)| *number == call.0) {
            calls.swap_remove(at);
        }
    }

    fn next_call(&self) -> u64 {
        self.shared.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// Stops watching. Waits at most that long for the threads: one may be stuck in the driver.
    pub fn stop_within(&self, patience: Duration) -> bool {
        self.stop();
        let until = Instant::now() + patience;
        for handle in [&self.judge, &self.poller] {
            let Some(thread) = handle.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
            while !thread.is_finished() {
                if Instant::now() >= until {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = thread.join();
        }
        true
    }

    fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.shared.wake();
    }
}

fn poll<T>(shared: &Shared<T>) {
    let mut prepared = 0;
    while !shared.is_stopped() {
        let lanes = shared.lanes();
        for (place, lane) in lanes.iter().enumerate() {
            if place >= prepared {
                lane.prepare_thread();
                prepared = place + 1;
            }
            shared.polled.store(place as u64, Ordering::Relaxed);
            lane.poll(shared.settings.fence_every());
            shared.polls.fetch_add(1, Ordering::Relaxed);
        }
        shared.sleep(shared.settings.poll_every());
    }
}
