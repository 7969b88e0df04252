//! Events without a compiler or a model of the device: what a watchdog needs of a driver.
//!
//! It works on streams of the caller (torch's), asks from a separate thread, and must never disturb the recording of a
//! graph in another one: the asking thread switches itself to the relaxed mode of capture, in which asking about events
//! is allowed while another thread records.

use std::ffi::c_void;
use std::ptr;

use super::device::Device;
use super::{DriverError, StreamEvent};
use crate::dynamic::{Vendor, function_table};

function_table! {
    /// The drivers' functions for events.
    Calls {
        is_capturing: "cuStreamIsCapturing" | "hipStreamIsCapturing" as fn(*mut c_void, *mut i32);
        create: "cuEventCreate" | "hipEventCreateWithFlags" as fn(*mut *mut c_void, u32);
        record: "cuEventRecord" | "hipEventRecord" as fn(*mut c_void, *mut c_void);
        query: "cuEventQuery" | "hipEventQuery" as fn(*mut c_void);
    }
}

/// The same number in both drivers.
const NOT_READY: i32 = 600;
/// The event takes no time stamps; the same number in both drivers.
const DISABLE_TIMING: u32 = 2;
/// The capture mode in which a thread may make calls that other threads' recordings forbid; the same number in both.
const RELAXED: i32 = 2;

type ExchangeMode = unsafe extern "C" fn(*mut i32) -> i32;

/// Events of one device.
pub struct DeviceEvents {
    pub(super) device: Device,
    calls: Calls,
    // HIP has no capture modes before ROCm 5.3.
    exchange_mode: Option<ExchangeMode>,
}

impl DeviceEvents {
    /// Those of NVIDIA's driver, in the device's primary context, which torch uses.
    pub fn cuda(ordinal: i32) -> Result<DeviceEvents, DriverError> {
        DeviceEvents::of(Device::cuda(ordinal)?)
    }

    /// Those of AMD's runtime.
    pub fn hip(ordinal: i32) -> Result<DeviceEvents, DriverError> {
        DeviceEvents::of(Device::hip(ordinal, false)?)
    }

    pub(super) fn of(device: Device) -> Result<DeviceEvents, DriverError> {
        let calls = Calls::load(&device.library, device.vendor()).map_err(DriverError::Unusable)?;
        // SAFETY: the type is that of the symbol in both vendors' documented C interfaces.
        let exchange = |name: &str| unsafe { device.library.function(name) };
        let exchange_mode = match device.vendor() {
            Vendor::Nvidia => Some(exchange("cuThreadExchangeStreamCaptureMode").map_err(DriverError::Unusable)?),
            Vendor::Amd => exchange("hipThreadExchangeStreamCaptureMode").ok(),
        };
        Ok(DeviceEvents { device, calls, exchange_mode })
    }

    /// Switches the calling thread to the relaxed capture mode. For a thread that only queries events.
    pub fn relax_thread(&self) {
        if let Some(exchange) = self.exchange_mode {
            let mut mode = RELAXED;
            // SAFETY: a valid place for the mode.
            unsafe { exchange(&mut mode) };
        }
    }

    /// Makes an event without time stamps.
    pub fn create(&self) -> Result<StreamEvent, DriverError> {
        self.create_with(DISABLE_TIMING)
    }

    pub(super) fn create_with(&self, flags: u32) -> Result<StreamEvent, DriverError> {
        self.device.run(|| {
            let mut event = ptr::null_mut();
            // SAFETY: a valid place for the handle.
            let code = unsafe { (self.calls.create.call)(&mut event, flags) };
            self.device.check(code, self.calls.create.name).map(|()| StreamEvent(event as u64))
        })
    }

    /// Puts an event into a stream of this device.
    pub fn record(&self, event: StreamEvent, stream: u64) -> Result<(), DriverError> {
        self.device.run(|| {
            // SAFETY: an event of ours, and a stream that the caller says exists.
            let code = unsafe { (self.calls.record.call)(event.0 as *mut c_void, stream as *mut c_void) };
            self.device.check(code, self.calls.record.name)
        })
    }

    /// Whether an event has happened.
    pub fn has_happened(&self, event: StreamEvent) -> Result<bool, DriverError> {
        self.device.run(|| {
            // SAFETY: an event of ours.
            match unsafe { (self.calls.query.call)(event.0 as *mut c_void) } {
                NOT_READY => Ok(false),
                code => self.device.check(code, self.calls.query.name).map(|()| true),
            }
        })
    }

    /// Whether a stream of this device records a graph. Asked about the default stream while another one records, both
    /// vendors return a special error, which counts as recording: the same calls are forbidden.
    pub fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        const CAPTURE_IMPLICIT: i32 = 906;
        self.device.run(|| {
            let mut status = 0;
            // SAFETY: a stream that the caller says exists, and a valid place for the number.
            match unsafe { (self.calls.is_capturing.call)(stream as *mut c_void, &mut status) } {
                CAPTURE_IMPLICIT => Ok(true),
                code => self.device.check(code, self.calls.is_capturing.name).map(|()| status != 0),
            }
        })
    }
}
