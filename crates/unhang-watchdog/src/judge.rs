//! The judge: looks at what is oldest in each lane and for how long it has been. It asks no driver and waits for nobody.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::lane::{Kind, Lane, Oldest};
use crate::watch::{Hang, Place, Shared};

/// For how long each thing has been as it is, in time in which this process ran. Time that passed while the whole
/// process stood still (stopped, suspended, starved) counts as two ticks at most.
#[derive(Default)]
struct Ages {
    ages: HashMap<(Thing, u64), Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Thing {
    /// A marker that is the oldest of the lane in that place.
    Marker(usize),
    /// A call that has not returned to the host.
    Inside,
    /// A call that is watched on the host.
    Call,
}

impl Ages {
    /// Adds a step to the ages of what is still there; forgets the rest.
    fn step(&mut self, present: &[(Thing, u64)], step: Duration) {
        let before = std::mem::take(&mut self.ages);
        for key in present {
            self.ages.insert(*key, before.get(key).map_or(Duration::ZERO, |age| *age + step));
        }
    }

    fn of(&self, thing: Thing, number: u64) -> Duration {
        self.ages.get(&(thing, number)).copied().unwrap_or_default()
    }
}

pub(crate) fn wait_for_hang<T>(shared: &Shared<T>) -> Option<Hang<T>> {
    let tick = shared.settings.tick();
    let mut ages = Ages::default();
    let mut last = Instant::now();
    let mut last_polls = 0;
    let mut poller_stuck_for = Duration::ZERO;
    while !shared.is_stopped() {
        shared.sleep(tick);
        let now = Instant::now();
        let step = now.duration_since(last).min(2 * tick);
        last = now;

        let lanes = shared.lanes();
        let polls = shared.polls.load(Ordering::Relaxed);
        poller_stuck_for = if polls == last_polls { poller_stuck_for + step } else { Duration::ZERO };
        last_polls = polls;
        let found = Found::gather(shared, &lanes);
        ages.step(&found.present(), step);
        // While the poller does not come back from the driver, nothing is known of the other lanes.
        let stuck_at =
            (poller_stuck_for > shared.settings.deadline / 2).then(|| shared.polled.load(Ordering::Relaxed) as usize);
        if let Some(hang) = found.judge(shared, &ages, stuck_at) {
            return (!shared.is_stopped()).then_some(hang);
        }
    }
    None
}

/// What is there at one moment.
struct Found<'a, T> {
    lanes: &'a [Arc<Lane<T>>],
    oldest: Vec<(usize, Oldest<T>)>,
    inside: Vec<(usize, u64, Arc<T>)>,
    calls: Vec<(u64, Arc<T>)>,
}

impl<T> Found<'_, T> {
    fn gather<'a>(shared: &Shared<T>, lanes: &'a [Arc<Lane<T>>]) -> Found<'a, T> {
        let mut found = Found { lanes, oldest: Vec::new(), inside: Vec::new(), calls: shared.host_calls().clone() };
        for (place, lane) in lanes.iter().enumerate() {
            found.oldest.extend(lane.oldest().map(|oldest| (place, oldest)));
            found.inside.extend(lane.calls_inside().into_iter().map(|(number, subject)| (place, number, subject)));
        }
        found
    }

    fn present(&self) -> Vec<(Thing, u64)> {
        let markers = self.oldest.iter().map(|(place, oldest)| (Thing::Marker(*place), oldest.number));
        let inside = self.inside.iter().map(|(_, number, _)| (Thing::Inside, *number));
        let calls = self.calls.iter().map(|(number, _)| (Thing::Call, *number));
        markers.chain(inside).chain(calls).collect()
    }

    fn judge(self, shared: &Shared<T>, ages: &Ages, stuck_at: Option<usize>) -> Option<Hang<T>> {
        let settings = &shared.settings;
        for (place, oldest) in self.oldest {
            let waited = ages.of(Thing::Marker(place), oldest.number);
            let deadline = match oldest.kind {
                Kind::After(_) | Kind::Fence(Some(_)) => settings.deadline,
                Kind::Before | Kind::Fence(None) => settings.outside_deadline,
            };
            if waited < deadline || stuck_at.is_some_and(|stuck| stuck != place) {
                continue;
            }
            let (subject, where_) = match oldest.kind {
                Kind::After(subject) => (Some(subject), Place::Running),
                Kind::Fence(Some(subject)) => (Some(subject), Place::Searching),
                Kind::Before | Kind::Fence(None) => (None, Place::Outside),
            };
            let is_uncertain = oldest.follows_gap && subject.is_some();
            let (subject, where_) = if is_uncertain { (None, Place::Outside) } else { (subject, where_) };
            return Some(Hang { subject, place: where_, waited, device: Some(self.lanes[place].device), is_uncertain });
        }
        for (number, subject) in self.calls {
            let waited = ages.of(Thing::Call, number);
            if waited >= settings.deadline {
                let subject = Some(subject);
                return Some(Hang { subject, place: Place::Call, waited, device: None, is_uncertain: false });
            }
        }
        for (place, number, subject) in self.inside {
            let waited = ages.of(Thing::Inside, number);
            if waited >= settings.host_deadline {
                let device = Some(self.lanes[place].device);
                return Some(Hang { subject: Some(subject), place: Place::Host, waited, device, is_uncertain: false });
            }
        }
        None
    }
}
