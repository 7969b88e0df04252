//! State that the watch and its threads share: deadlines, what is watched, and what a hang is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::lane::Lane;

/// The deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchSettings {
    /// For watched work on the accelerator, and for calls that are watched on the host.
    pub deadline: Duration,
    /// For other work on the accelerator, whose duration nobody knows.
    pub outside_deadline: Duration,
    /// For a call that has not returned to the host while its stream is idle: compiling, searching.
    pub host_deadline: Duration,
}

impl WatchSettings {
    pub(crate) fn poll_every(&self) -> Duration {
        (self.deadline / 100).clamp(Duration::from_millis(2), Duration::from_millis(200))
    }

    pub(crate) fn fence_every(&self) -> Duration {
        (self.deadline / 20).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    pub(crate) fn tick(&self) -> Duration {
        (self.deadline / 20).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}

/// Where a hang is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangPlace {
    /// On the accelerator, after the call returned.
    Running,
    /// On the accelerator, before the call returned: it waits for something that it launched.
    Searching,
    /// On the host, with an idle accelerator.
    Host,
    /// In a call that is watched on the host.
    Call,
    /// On the accelerator, in something that is not watched.
    Outside,
}

/// What hangs.
#[derive(Debug)]
pub struct Hang<T> {
    /// The call, if it is watched.
    pub subject: Option<Arc<T>>,
    /// Where.
    pub place: HangPlace,
    /// For how long nothing had changed.
    pub waited: Duration,
    /// The device, if it is on one.
    pub device: Option<i32>,
    /// Whether earlier calls were not watched, so that one of them may be the culprit. There is then no subject.
    pub is_uncertain: bool,
}

pub(crate) struct Shared<T> {
    pub settings: WatchSettings,
    pub lanes: RwLock<Vec<Arc<Lane<T>>>>,
    pub host_calls: Mutex<Vec<(u64, Arc<T>)>>,
    pub stopped: AtomicBool,
    /// Changes as long as the driver answers the poller.
    pub polls: AtomicU64,
    /// The lane that the poller is checking.
    pub polled: AtomicU64,
    pub next_call: AtomicU64,
    sleep: Mutex<()>,
    woken: Condvar,
}

impl<T> Shared<T> {
    pub(crate) fn new(settings: WatchSettings) -> Shared<T> {
        Shared {
            settings,
            lanes: RwLock::default(),
            host_calls: Mutex::default(),
            stopped: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            next_call: AtomicU64::new(1),
            sleep: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane<T>>> {
        self.lanes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn host_calls(&self) -> MutexGuard<'_, Vec<(u64, Arc<T>)>> {
        self.host_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Sleeps, but returns early if the watch is stopped.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self.woken.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes all sleepers.
    pub(crate) fn wake(&self) {
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
    }
}
