//! Watches convolutions on a driver's streams. Nothing here needs a lock that a hung thread may hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use unhang_gpu::driver::{DeviceEvents, DriverError, StreamEvent};
use unhang_watchdog::{Call, Events, HostCall, Watch, WatchSettings};

use crate::farewell::{Farewell, say};
use crate::subject::Subject;

/// Whose streams they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// AMD's.
    Hip,
    /// NVIDIA's.
    Cuda,
}

/// Watches convolutions of this process, and ends it when one hangs.
pub struct Watchdog {
    watch: Watch<Subject>,
    runtime: Runtime,
    /// Whether streams live as long as the process.
    streams_last: bool,
    devices: Mutex<HashMap<i32, Arc<dyn Events>>>,
}

/// A call that is watched.
pub enum WatchedCall {
    /// On a stream of a device.
    Accelerator(Call<Subject>),
    /// In this process: over when it returns.
    Host(HostCall),
}

impl Watchdog {
    /// Starts watching.
    pub fn start(settings: WatchSettings, runtime: Runtime, farewell: Farewell) -> std::io::Result<Watchdog> {
        let watch = Watch::start(settings, move |hang| farewell.end_process(&hang))?;
        Ok(Watchdog { watch, runtime, streams_last: true, devices: Mutex::default() })
    }

    /// For programs that destroy their streams (torch never does): nothing is queued in a stream outside a call, so a
    /// hang there outside of every call is not detected.
    #[must_use]
    pub fn for_streams_that_end(self) -> Watchdog {
        Watchdog { streams_last: false, ..self }
    }

    /// Begins a call on a stream of a device; `None` if it cannot be watched, as while a graph is recorded.
    pub fn begin(&self, subject: &Arc<Subject>, device: i32, stream: u64) -> Option<WatchedCall> {
        let events = self.events(device);
        let lane = self.watch.lane(device, stream, || events);
        self.watch.begin(&lane, subject).map(WatchedCall::Accelerator)
    }

    /// Begins a call inside another watched one on the stream that has not returned.
    pub fn begin_inside(&self, subject: &Arc<Subject>, device: i32, stream: u64) -> Option<WatchedCall> {
        let events = self.events(device);
        let lane = self.watch.lane(device, stream, || events);
        self.watch.begin_inside(&lane, subject).map(WatchedCall::Accelerator)
    }

    /// Begins a call that is over when it returns.
    pub fn begin_host(&self, subject: &Arc<Subject>) -> WatchedCall {
        WatchedCall::Host(self.watch.begin_host(subject))
    }

    /// A call has returned.
    pub fn end(&self, call: &WatchedCall) {
        match call {
            WatchedCall::Accelerator(call) => self.watch.end(call),
            WatchedCall::Host(call) => self.watch.end_host(*call),
        }
    }

    /// A call was lost, such as by an exception before anybody had it. The driver is not called.
    pub fn forget(&self, call: &WatchedCall) {
        match call {
            WatchedCall::Accelerator(call) => self.watch.forget(call),
            WatchedCall::Host(call) => self.watch.end_host(*call),
        }
    }

    /// Stops watching, within that time; true if its threads have ended. Drivers shut down when a process ends, and
    /// nobody may ask them then.
    pub fn stop_within(&self, patience: Duration) -> bool {
        self.watch.stop_within(patience)
    }

    fn events(&self, device: i32) -> Arc<dyn Events> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || {
            let opened = match self.runtime {
                Runtime::Hip => DeviceEvents::hip(device),
                Runtime::Cuda => DeviceEvents::cuda(device),
            };
            match opened {
                Ok(events) => Arc::new(OfDriver { events, streams_last: self.streams_last }) as Arc<dyn Events>,
                Err(error) => {
                    say(&format!(
                        "the watchdog cannot use device {device} ({error}): convolutions there are not watched"
                    ));
                    // Asked once: the answer is the same for every convolution.
                    Arc::new(Nothing)
                }
            }
        };
        devices.entry(device).or_insert_with(open).clone()
    }
}

struct OfDriver {
    events: DeviceEvents,
    streams_last: bool,
}

/// The last of the drivers' handles for streams that every device or thread has: no stream, the legacy default, each
/// thread's own.
const LAST_BUILT_IN_STREAM: u64 = 2;

impl Events for OfDriver {
    fn create(&self) -> Result<u64, String> {
        self.events.create().map(|event| event.0).map_err(words)
    }

    fn record(&self, event: u64, stream: u64) -> Result<(), String> {
        self.events.record(StreamEvent(event), stream).map_err(words)
    }

    fn has_happened(&self, event: u64) -> Result<bool, String> {
        self.events.has_happened(StreamEvent(event)).map_err(words)
    }

    fn is_capturing(&self, stream: u64) -> bool {
        // The driver may refuse to answer because another stream records: leave it alone.
        self.events.is_capturing(stream).unwrap_or(true)
    }

    fn is_lasting(&self, stream: u64) -> bool {
        self.streams_last || stream <= LAST_BUILT_IN_STREAM
    }

    fn prepare_thread(&self) {
        self.events.relax_thread();
    }
}

fn words(error: DriverError) -> String {
    error.to_string()
}

/// Stands in for a driver that cannot be opened: its streams can never be watched.
struct Nothing;

impl Events for Nothing {
    fn create(&self) -> Result<u64, String> {
        Err("no driver".to_owned())
    }

    fn record(&self, _: u64, _: u64) -> Result<(), String> {
        Err("no driver".to_owned())
    }

    fn has_happened(&self, _: u64) -> Result<bool, String> {
        Err("no driver".to_owned())
    }

    fn is_capturing(&self, _: u64) -> bool {
        true
    }
}
