//! One stream and its markers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The driver's events, as far as we need them. Handles are numbers.
pub trait Events: Send + Sync {
    /// Creates an event.
    fn create(&self) -> Result<u64, String>;
    /// Records an event in a stream. May block while the stream's queue is full.
    fn record(&self, event: u64, stream: u64) -> Result<(), String>;
    /// Whether an event has completed.
    fn has_happened(&self, event: u64) -> Result<bool, String>;
    /// Whether the stream records a graph: nothing may be added to it then.
    fn is_capturing(&self, stream: u64) -> bool;
    /// Whether a stream lives as long as the process. Other streams get no markers outside calls, because their owner
    /// may have destroyed them.
    fn is_lasting(&self, _stream: u64) -> bool {
        true
    }
    /// Called once by the polling thread before its first query.
    fn prepare_thread(&self) {}
}

/// No driver's queue holds more markers than this; beyond it, calls are not watched.
const MOST_MARKERS: usize = 1 << 14;

/// What it means if a marker does not complete.
#[derive(Debug)]
pub(crate) enum MarkerKind<T> {
    /// It is before a call: something else hangs.
    Before,
    /// It is after this call.
    After(Arc<T>),
    /// It was added while the stream had no other marker, during this call if there is one.
    Fence(Option<Arc<T>>),
}

impl<T> Clone for MarkerKind<T> {
    fn clone(&self) -> Self {
        match self {
            MarkerKind::Before => MarkerKind::Before,
            MarkerKind::After(subject) => MarkerKind::After(subject.clone()),
            MarkerKind::Fence(subject) => MarkerKind::Fence(subject.clone()),
        }
    }
}

struct Marker<T> {
    kind: MarkerKind<T>,
    event: u64,
    /// Whether it has been recorded: recording may block.
    is_recorded: bool,
    /// Whether earlier calls were not watched, so that it says nothing about its own.
    follows_gap: bool,
}

struct LaneState<T> {
    markers: VecDeque<Marker<T>>,
    /// The number of the first marker in the queue; numbers are never reused.
    first: u64,
    /// Calls that have not returned to the host.
    inside: Vec<(u64, Arc<T>)>,
    /// Completed events, for reuse.
    free: Vec<u64>,
    has_gap: bool,
    last_fence: Option<Instant>,
    /// The driver's error; after it, the driver is not asked again.
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

/// The oldest marker that has not completed.
pub(crate) struct Oldest<T> {
    pub number: u64,
    pub kind: MarkerKind<T>,
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

    /// Never held during a driver call.
    fn state(&self) -> MutexGuard<'_, LaneState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn prepare_thread(&self) {
        self.events.prepare_thread();
    }

    /// The driver's error, if it reported one.
    pub fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// The number of markers that have not been seen to complete.
    pub fn outstanding(&self) -> usize {
        self.state().markers.len()
    }

    /// Adds a marker to the stream. `inside` is the call that it belongs to. If that call returned before the marker
    /// was recorded, the marker may be behind other work, and belongs to no call.
    fn put(&self, kind: MarkerKind<T>, inside: Option<u64>) {
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
                // It is still there: only recorded markers are removed.
                let at = number.wrapping_sub(state.first) as usize;
                let has_returned = inside.is_some_and(|call| state.inside.iter().all(|(number, _)| *number != call));
                if let Some(marker) = state.markers.get_mut(at) {
                    (marker.event, marker.is_recorded) = (event, true);
                    if has_returned {
                        marker.kind = MarkerKind::Fence(None);
                    }
                }
            }
            Err(error) => give_up(&mut state, error),
        }
    }

    /// A call begins. Returns the number for [`Lane::end`], or `None` while a graph is recorded. Work launched before
    /// a nested call belongs to the outer one.
    pub(crate) fn begin(&self, call: u64, subject: &Arc<T>, is_nested: bool) -> bool {
        if self.events.is_capturing(self.stream) {
            return false;
        }
        let around = self.state().inside.last().filter(|_| is_nested).map(|(_, subject)| subject.clone());
        self.put(around.map_or(MarkerKind::Before, |subject| MarkerKind::Fence(Some(subject))), None);
        self.state().inside.push((call, subject.clone()));
        true
    }

    /// Nobody is in a call any more. Its work, if it launched any, is nobody's.
    pub(crate) fn forget(&self, call: u64) -> Option<Arc<T>> {
        let mut state = self.state();
        let at = state.inside.iter().rposition(|(number, _)| *number == call)?;
        Some(state.inside.remove(at).1)
    }

    /// A call has returned to the host.
    pub(crate) fn end(&self, call: u64) {
        let Some(subject) = self.forget(call) else { return };
        // A recording may have begun inside: the launched work is then not in the stream.
        if !self.events.is_capturing(self.stream) {
            self.put(MarkerKind::After(subject), None);
        }
    }

    /// Removes completed markers, and adds a fence where none is waiting. It calls the driver, so it may never
    /// return.
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
            self.put(MarkerKind::Fence(subject), call);
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

/// The driver reported an error, which the program will see in its own calls. Nothing more can be learned about this
/// stream.
fn give_up<T>(state: &mut LaneState<T>, error: String) {
    state.broken = Some(error);
    state.first += state.markers.len() as u64;
    state.markers.clear();
    state.free.clear();
}
