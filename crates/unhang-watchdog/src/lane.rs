//! One stream, and the markers in it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The driver's events, as far as they are needed. Handles are numbers.
pub trait Events: Send + Sync {
    /// Makes an event.
    fn create(&self) -> Result<u64, String>;
    /// Puts an event into a stream. May block while the stream's queue is full.
    fn record(&self, event: u64, stream: u64) -> Result<(), String>;
    /// Whether an event has happened.
    fn has_happened(&self, event: u64) -> Result<bool, String>;
    /// Whether the stream records a graph: then nothing may be put into it.
    fn is_capturing(&self, stream: u64) -> bool;
    /// Whether a stream lives as long as the process. Into others nothing is put while no call is in them: their owner may have
    /// destroyed them.
    fn is_lasting(&self, _stream: u64) -> bool {
        true
    }
    /// Called once by the thread that will ask, before it asks.
    fn prepare_thread(&self) {}
}

/// More markers than this wait in no queue that a driver has; beyond it calls go unwatched.
const MOST_MARKERS: usize = 1 << 14;

/// What a marker tells when it does not happen.
#[derive(Debug)]
pub(crate) enum Kind<T> {
    /// It stands before a call: something else hangs.
    Before,
    /// It stands after this call.
    After(Arc<T>),
    /// It was put while the stream had no other, during this call if any.
    Fence(Option<Arc<T>>),
}

impl<T> Clone for Kind<T> {
    fn clone(&self) -> Self {
        match self {
            Kind::Before => Kind::Before,
            Kind::After(subject) => Kind::After(subject.clone()),
            Kind::Fence(subject) => Kind::Fence(subject.clone()),
        }
    }
}

struct Marker<T> {
    kind: Kind<T>,
    event: u64,
    /// Whether it is in the stream yet: putting it there may block.
    is_recorded: bool,
    /// Whether calls before it went unwatched, so that it says nothing about its own.
    follows_gap: bool,
}

struct LaneState<T> {
    markers: VecDeque<Marker<T>>,
    /// The number of the first marker in the queue; numbers are never used again.
    first: u64,
    /// Calls that have not returned to the host.
    inside: Vec<(u64, Arc<T>)>,
    /// Events that have happened and can be used again.
    free: Vec<u64>,
    has_gap: bool,
    last_fence: Option<Instant>,
    /// What the driver said when it refused; nothing is asked of it any more.
    broken: Option<String>,
}

/// One stream of one device.
pub struct Lane<T> {
    /// The device's number.
    pub device: i32,
    /// The driver's handle.
    pub stream: u64,
    events: Arc<dyn Events>,
    state: Mutex<LaneState<T>>,
}

/// The oldest marker that has not happened.
pub(crate) struct Oldest<T> {
    pub number: u64,
    pub kind: Kind<T>,
    pub follows_gap: bool,
}

impl<T> Lane<T> {
    pub(crate) fn new(device: i32, stream: u64, events: Arc<dyn Events>) -> Lane<T> {
        let state = LaneState {
            markers: VecDeque::new(),
            first: 1,
            inside: Vec::new(),
            free: Vec::new(),
            has_gap: false,
            last_fence: None,
            broken: None,
        };
        Lane { device, stream, events, state: Mutex::new(state) }
    }

    /// Never held while the driver is called.
    fn state(&self) -> MutexGuard<'_, LaneState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn prepare_thread(&self) {
        self.events.prepare_thread();
    }

    /// What the driver said when it refused, if it did.
    pub fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// How many markers have not been seen to happen.
    pub fn outstanding(&self) -> usize {
        self.state().markers.len()
    }

    /// Puts a marker into the stream. `inside` is the call that it is said to stand in: when that has returned by the time the
    /// marker is recorded, the marker may stand behind other work, and stands for no call.
    fn put(&self, kind: Kind<T>, inside: Option<u64>) {
        let (number, known) = {
            let mut state = self.state();
            if state.broken.is_some() {
                return;
            }
            if state.markers.len() >= MOST_MARKERS {
                state.has_gap = true;
                return;
            }
            let number = state.first + state.markers.len() as u64;
            let event = state.free.pop();
            let follows_gap = std::mem::take(&mut state.has_gap);
            state.markers.push_back(Marker { kind, event: event.unwrap_or_default(), is_recorded: false, follows_gap });
            (number, event)
        };
        let recorded = known.map_or_else(|| self.events.create(), Ok).and_then(|event| {
            self.events.record(event, self.stream)?;
            Ok(event)
        });
        let mut state = self.state();
        match recorded {
            Ok(event) => {
                // It is still there: only what is recorded is taken out.
                let at = number.wrapping_sub(state.first) as usize;
                let has_returned = inside.is_some_and(|call| state.inside.iter().all(|(number, _)| *number != call));
                if let Some(marker) = state.markers.get_mut(at) {
                    (marker.event, marker.is_recorded) = (event, true);
                    if has_returned {
                        marker.kind = Kind::Fence(None);
                    }
                }
            }
            Err(error) => give_up(&mut state, error),
        }
    }

    /// A call begins; the number by which [`Lane::end`] knows it, or none while a graph is recorded.
    /// What is launched before a nested call is the work of the one around it.
    pub(crate) fn begin(&self, call: u64, subject: &Arc<T>, is_nested: bool) -> bool {
        if self.events.is_capturing(self.stream) {
            return false;
        }
        let around = self.state().inside.last().filter(|_| is_nested).map(|(_, subject)| subject.clone());
        self.put(around.map_or(Kind::Before, |subject| Kind::Fence(Some(subject))), None);
        self.state().inside.push((call, subject.clone()));
        true
    }

    /// A call has returned to the host.
    pub(crate) fn end(&self, call: u64) {
        let subject = {
            let mut state = self.state();
            let Some(at) = state.inside.iter().rposition(|(number, _)| *number == call) else { return };
            state.inside.remove(at).1
        };
        // A recording may have begun inside: then what was launched is not in the stream.
        if !self.events.is_capturing(self.stream) {
            self.put(Kind::After(subject), None);
        }
    }

    /// Takes out what has happened, and puts a fence where nothing waits. Asks the driver, so it may never return.
    pub(crate) fn poll(&self, fence_every: Duration) {
        loop {
            let event = match self.state().markers.front() {
                None => break,
                Some(marker) if marker.is_recorded => marker.event,
                Some(_) => return,
            };
            match self.events.has_happened(event) {
                Ok(true) => {
                    let mut state = self.state();
                    state.markers.pop_front();
                    state.first += 1;
                    state.free.push(event);
                }
                Ok(false) => return,
                Err(error) => return give_up(&mut self.state(), error),
            }
        }
        let (now, is_lasting) = (Instant::now(), self.events.is_lasting(self.stream));
        let inside = {
            let mut state = self.state();
            let is_due = state.last_fence.is_none_or(|last| now.duration_since(last) >= fence_every);
            let may_be_gone = state.inside.is_empty() && !is_lasting;
            if !is_due || may_be_gone || state.broken.is_some() {
                return;
            }
            state.last_fence = Some(now);
            state.inside.last().cloned()
        };
        if !self.events.is_capturing(self.stream) {
            let (call, subject) = inside.unzip();
            self.put(Kind::Fence(subject), call);
        }
    }

    pub(crate) fn oldest(&self) -> Option<Oldest<T>> {
        let state = self.state();
        let marker = state.markers.front()?;
        Some(Oldest { number: state.first, kind: marker.kind.clone(), follows_gap: marker.follows_gap })
    }

    pub(crate) fn calls_inside(&self) -> Vec<(u64, Arc<T>)> {
        self.state().inside.clone()
    }
}

/// The driver refused: the program will hear of it in its own calls. Nothing more can be told of this stream.
fn give_up<T>(state: &mut LaneState<T>, error: String) {
    state.broken = Some(error);
    state.first += state.markers.len() as u64;
    state.markers.clear();
    state.free.clear();
}
