//! Events, which the card raises and threads wait for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::abi::{EVENT_DEBUG, EVENT_LIMIT, EVENT_SIGNAL, EventPayload};
use crate::Errno;

#[derive(Debug, Default)]
struct CardEvent {
    /// Distinguishes it from an earlier event with the same id.
    serial: u64,
    kind: u32,
    resets_itself: bool,
    is_set: bool,
    waiters: u32,
    /// How often it was raised; a waiter remembers the count it started with.
    raised: u64,
    payload: EventPayload,
}

/// The events of a process.
#[derive(Debug, Default)]
pub(crate) struct Events {
    events: Mutex<BTreeMap<u32, CardEvent>>,
    created: AtomicU64,
    changed: Condvar,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The condition was met.
    Complete,
    /// The time is over.
    Timeout,
    /// An event was destroyed during the wait.
    Failed,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, CardEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an event.
    pub(crate) fn create(&self, kind: u32, resets_itself: bool) -> Result<u32, Errno> {
        let mut events = self.lock();
        // Events with a slot in the signal page are few; others have ids behind them.
        let ids =
            if matches!(kind, EVENT_SIGNAL | EVENT_DEBUG) { 1..EVENT_LIMIT } else { EVENT_LIMIT..2 * EVENT_LIMIT };
        let id = ids.into_iter().find(|id| !events.contains_key(id)).ok_or(libc::ENOSPC)?;
        let serial = self.created.fetch_add(1, Ordering::Relaxed);
        events.insert(id, CardEvent { serial, kind, resets_itself, ..CardEvent::default() });
        Ok(id)
    }

    /// Destroys an event, and wakes whoever waits for it with an error.
    pub(crate) fn destroy(&self, id: u32) -> Result<(), Errno> {
        self.lock().remove(&id).ok_or(libc::EINVAL)?;
        self.changed.notify_all();
        Ok(())
    }

    /// Raises an event: wakes all waiters, and stays set unless it resets itself and somebody was woken.
    pub(crate) fn raise(&self, id: u32) -> Result<(), Errno> {
        let mut events = self.lock();
        events.get_mut(&id).ok_or(libc::EINVAL)?.raise();
        self.changed.notify_all();
        Ok(())
    }

    /// Raises all events of a kind with what happened.
    pub(crate) fn raise_kind(&self, kind: u32, payload: EventPayload) {
        for event in self.lock().values_mut().filter(|event| event.kind == kind) {
            event.payload = payload;
            event.raise();
        }
        self.changed.notify_all();
    }

    /// Resets an event.
    pub(crate) fn reset(&self, id: u32) -> Result<(), Errno> {
        self.lock().get_mut(&id).ok_or(libc::EINVAL)?.is_set = false;
        Ok(())
    }

    /// Waits for one or all of several events; calls `found` with the index and the payload of each that happened.
    pub(crate) fn wait(
        &self,
        ids: &[u32],
        for_all: bool,
        timeout: Option<Duration>,
        mut found: impl FnMut(usize, EventPayload),
    ) -> Result<Waited, Errno> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut events = self.lock();
        if ids.iter().any(|id| !events.contains_key(id)) {
            return Err(libc::EINVAL);
        }
        let mut waiting: Vec<Option<u64>> = Vec::with_capacity(ids.len());
        let mut serials = Vec::with_capacity(ids.len());
        for id in ids {
            let event = events.get_mut(id).ok_or(libc::EINVAL)?;
            event.waiters += 1;
            serials.push(event.serial);
            waiting.push((!event.is_set).then_some(event.raised));
            if event.is_set && event.resets_itself {
                event.is_set = false;
            }
        }
        // An id that now belongs to another event counts as destroyed.
        let is_same = |event: &CardEvent, place: usize| event.serial == serials[place];
        let result = loop {
            for (place, id) in ids.iter().enumerate() {
                if let (Some(before), Some(event)) = (waiting[place], events.get(id))
                    && is_same(event, place)
                    && event.raised != before
                {
                    waiting[place] = None;
                }
            }
            let happened = waiting.iter().filter(|it| it.is_none()).count();
            if ids.is_empty() || (if for_all { happened == ids.len() } else { happened > 0 }) {
                break Waited::Complete;
            }
            let is_gone = |(place, id)| events.get(id).is_none_or(|event| !is_same(event, place));
            if ids.iter().enumerate().any(is_gone) {
                break Waited::Failed;
            }
            events = match deadline {
                None => self.changed.wait(events).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break Waited::Timeout;
                    }
                    self.changed.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        for (place, id) in ids.iter().enumerate() {
            if let Some(event) = events.get_mut(id).filter(|event| is_same(event, place)) {
                event.waiters -= 1;
                if waiting[place].is_none() {
                    found(place, event.payload);
                }
            }
        }
        Ok(result)
    }
}

impl CardEvent {
    fn raise(&mut self) {
        self.raised += 1;
        self.is_set = !self.resets_itself || self.waiters == 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn an_id_that_is_given_to_another_event_ends_the_wait_for_the_first_and_loses_nothing_of_the_second() {
        let events = Arc::new(Events::default());
        let id = events.create(EVENT_SIGNAL, true).unwrap();
        let waiter = {
            let events = events.clone();
            thread::spawn(move || wait(&events, &[id], true, 5_000))
        };
        while events.lock()[&id].waiters == 0 {
            thread::yield_now();
        }
        {
            // Both under one lock: the waiter sees the new event alone.
            let mut all = events.lock();
            all.remove(&id);
            let serial = events.created.fetch_add(1, Ordering::Relaxed);
            all.insert(id, CardEvent { serial, kind: EVENT_SIGNAL, resets_itself: true, ..CardEvent::default() });
        }
        events.changed.notify_all();
        assert_eq!(waiter.join().unwrap(), Waited::Failed);
        events.raise(id).unwrap();
        assert_eq!(wait(&events, &[id], true, 0), Waited::Complete, "raised with nobody waiting, it stays set");
    }

    fn wait(events: &Events, ids: &[u32], for_all: bool, milliseconds: u64) -> Waited {
        events.wait(ids, for_all, Some(Duration::from_millis(milliseconds)), |_, _| {}).unwrap()
    }

    #[test]
    fn an_event_that_resets_itself_is_seen_once() {
        let events = Events::default();
        let id = events.create(EVENT_SIGNAL, true).unwrap();
        assert_eq!(wait(&events, &[id], false, 0), Waited::Timeout);
        events.raise(id).unwrap();
        assert_eq!(wait(&events, &[id], false, 0), Waited::Complete);
        assert_eq!(wait(&events, &[id], false, 0), Waited::Timeout);
        let manual = events.create(EVENT_SIGNAL, false).unwrap();
        events.raise(manual).unwrap();
        assert_eq!(wait(&events, &[manual], false, 0), Waited::Complete);
        assert_eq!(wait(&events, &[manual], false, 0), Waited::Complete);
        assert_eq!(wait(&events, &[id, manual], true, 1), Waited::Timeout);
        events.reset(manual).unwrap();
        assert_eq!(wait(&events, &[manual], false, 0), Waited::Timeout);
    }

    #[test]
    fn everyone_who_waits_is_woken_and_a_destroyed_event_fails_the_wait() {
        let events = Arc::new(Events::default());
        let (raised, destroyed) =
            (events.create(EVENT_SIGNAL, true).unwrap(), events.create(EVENT_SIGNAL, true).unwrap());
        let waiter = |id| {
            let events = events.clone();
            thread::spawn(move || events.wait(&[id], false, Some(Duration::from_secs(20)), |_, _| {}).unwrap())
        };
        let threads = [waiter(raised), waiter(raised), waiter(destroyed)];
        while events.lock().values().map(|event| event.waiters).sum::<u32>() < 3 {
            thread::yield_now();
        }
        events.raise(raised).unwrap();
        events.destroy(destroyed).unwrap();
        let ends: Vec<Waited> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ends, [Waited::Complete, Waited::Complete, Waited::Failed]);
    }

    #[test]
    fn unknown_events_are_refused_as_the_kernel_refuses_them() {
        let events = Events::default();
        assert_eq!(events.raise(7), Err(libc::EINVAL));
        assert_eq!(events.destroy(7), Err(libc::EINVAL));
        assert_eq!(events.wait(&[7], false, None, |_, _| {}), Err(libc::EINVAL));
        for _ in 1..EVENT_LIMIT {
            events.create(EVENT_SIGNAL, true).unwrap();
        }
        assert_eq!(events.create(EVENT_SIGNAL, true), Err(libc::ENOSPC));
        assert!(events.create(8, true).is_ok(), "an event without a slot");
    }
}
