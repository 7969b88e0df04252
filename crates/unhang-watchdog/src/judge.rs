//! The judge: looks at each lane's oldest marker and its age. It calls no driver and waits for nobody.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::lane::{Lane, MarkerKind, Oldest};
use crate::shared::{Hang, HangPlace, Shared};

/// How long each thing has been unchanged, in time during which this process ran. Time in which the whole process
/// stood still (stopped, suspended, starved) counts as two ticks at most.
#[derive(Default)]
struct Ages {
    ages: HashMap<(Thing, u64), Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Thing {
    /// A marker that is the lane's oldest.
    Marker(usize),
    /// A call that has not returned to the host.
    Inside,
    /// A call that is watched on the host.
    Call,
}

impl Ages {
    /// Ages everything that is still there by one step, and forgets the rest. Markers age only if the poller checked
    /// them.
    fn step(&mut self, present: &[(Thing, u64)], step: Duration, looked: bool) {
        let before = std::mem::take(&mut self.ages);
        for key in present {
            let step = if looked || !matches!(key.0, Thing::Marker(_)) { step } else { Duration::ZERO };
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
        // While the poller is stuck in the driver, nothing is known about any lane: it may wait for a lock that a
        // compilation holds for minutes. So only time in which the poller made rounds counts, and being stuck has the
        // host's deadline.
        let looked = polls.wrapping_sub(last_polls) >= 2 * lanes.len() as u64;
        last_polls = polls;
        let found = Found::gather(shared, &lanes);
        ages.step(&found.present(), step, looked);
        let stuck_at =
            (poller_stuck_for >= shared.settings.host_deadline).then(|| shared.polled.load(Ordering::Relaxed) as usize);
        let hang = match stuck_at {
            Some(place) if !lanes.is_empty() => found.stuck(place, poller_stuck_for),
            _ => found.judge(shared, &ages),
        };
        if let Some(hang) = hang {
            return (!shared.is_stopped()).then_some(hang);
        }
    }
    None
}

/// The state at one moment.
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

    /// The poller got stuck while checking this lane.
    fn stuck(self, place: usize, waited: Duration) -> Option<Hang<T>> {
        let lane = self.lanes.get(place)?;
        let subject = self.oldest.into_iter().find(|(at, _)| *at == place).and_then(|(_, oldest)| match oldest.kind {
            MarkerKind::After(subject) | MarkerKind::Fence(Some(subject)) if !oldest.follows_gap => Some(subject),
            _ => None,
        });
        Some(Hang { subject, place: HangPlace::Host, waited, device: Some(lane.device), is_uncertain: false })
    }

    fn judge(self, shared: &Shared<T>, ages: &Ages) -> Option<Hang<T>> {
        let settings = &shared.settings;
        for (place, oldest) in self.oldest {
            let waited = ages.of(Thing::Marker(place), oldest.number);
            let deadline = match oldest.kind {
                MarkerKind::After(_) | MarkerKind::Fence(Some(_)) => settings.deadline,
                MarkerKind::Before | MarkerKind::Fence(None) => settings.outside_deadline,
            };
            if waited < deadline {
                continue;
            }
            let (subject, where_) = match oldest.kind {
                MarkerKind::After(subject) => (Some(subject), HangPlace::Running),
                MarkerKind::Fence(Some(subject)) => (Some(subject), HangPlace::Searching),
                MarkerKind::Before | MarkerKind::Fence(None) => (None, HangPlace::Outside),
            };
            let is_uncertain = oldest.follows_gap && subject.is_some();
            let (subject, where_) = if is_uncertain { (None, HangPlace::Outside) } else { (subject, where_) };
            return Some(Hang { subject, place: where_, waited, device: Some(self.lanes[place].device), is_uncertain });
        }
        for (number, subject) in self.calls {
            let waited = ages.of(Thing::Call, number);
            if waited >= settings.deadline {
                let subject = Some(subject);
                return Some(Hang { subject, place: HangPlace::Call, waited, device: None, is_uncertain: false });
            }
        }
        for (place, number, subject) in self.inside {
            let waited = ages.of(Thing::Inside, number);
            if waited >= settings.host_deadline {
                let device = Some(self.lanes[place].device);
                return Some(Hang {
                    subject: Some(subject),
                    place: HangPlace::Host,
                    waited,
                    device,
                    is_uncertain: false,
                });
            }
        }
        None
    }
}
