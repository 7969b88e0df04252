//! Events alone, without a compiler or a model of the device: what a watchdog needs of a driver.
//!
//! It works on streams of the caller (torch's), asks from a separate thread, and must never disturb the recording of a
//! graph in another one: the asking thread switches itself to the relaxed mode of capture, in which asking about events
//! is allowed while another thread records.

use std::ffi::c_void;
use std::ptr;

use super::hip_runtime::{self, LastError};
use super::{DriverError, Event, capturing};
use crate::dynamic::{Found, function_table};

function_table! {
    /// The functions of libcuda that we call.
    CudaFunctions {
        init: "cuInit" as fn(u32);
        device_get: "cuDeviceGet" as fn(*mut i32, i32);
        retain_context: "cuDevicePrimaryCtxRetain" as fn(*mut *mut c_void, i32);
        get_current: "cuCtxGetCurrent" as fn(*mut *mut c_void);
        set_current: "cuCtxSetCurrent" as fn(*mut c_void);
        is_capturing: "cuStreamIsCapturing" as fn(*mut c_void, *mut i32);
        event_create: "cuEventCreate" as fn(*mut *mut c_void, u32);
        event_record: "cuEventRecord" as fn(*mut c_void, *mut c_void);
        event_query: "cuEventQuery" as fn(*mut c_void);
        exchange_mode: "cuThreadExchangeStreamCaptureMode" as fn(*mut i32);
    }
}

function_table! {
    /// The functions of libamdhip64 that we call.
    HipFunctions {
        get_device: "hipGetDevice" as fn(*mut i32);
        set_device: "hipSetDevice" as fn(i32);
        is_capturing: "hipStreamIsCapturing" as fn(*mut c_void, *mut i32);
        event_create: "hipEventCreateWithFlags" as fn(*mut *mut c_void, u32);
        event_record: "hipEventRecord" as fn(*mut c_void, *mut c_void);
        event_query: "hipEventQuery" as fn(*mut c_void);
    }
}

/// The same number in both drivers.
const NOT_READY: i32 = 600;
/// The event takes no time stamps; the same number in both drivers.
const DISABLE_TIMING: u32 = 2;
/// The mode of capture in which a thread may do what other threads' recordings forbid; the same number in both.
const RELAXED: i32 = 2;

type ExchangeMode = unsafe extern "C" fn(*mut i32) -> i32;

enum Functions {
    Cuda { functions: CudaFunctions, context: usize },
    // Before ROCm 5.3 HIP has no modes of capture to exchange.
    Hip { functions: HipFunctions, last_error: LastError, ordinal: i32, exchange_mode: Option<ExchangeMode> },
}

/// Events of one device.
pub struct DeviceEvents {
    functions: Functions,
    _library: Found,
}

impl DeviceEvents {
    /// Those of NVIDIA's driver, in the device's primary context, which is torch's.
    pub fn cuda(ordinal: i32) -> Result<DeviceEvents, DriverError> {
        let library = super::cuda::library()?;
        let functions = CudaFunctions::load(&library).map_err(DriverError::Unusable)?;
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: each call gets valid places for what it returns.
        unsafe {
            check((functions.init)(0), "cuInit")?;
            check((functions.device_get)(&mut device, ordinal), "cuDeviceGet")?;
            check((functions.retain_context)(&mut context, device), "cuDevicePrimaryCtxRetain")?;
        }
        Ok(DeviceEvents { functions: Functions::Cuda { functions, context: context as usize }, _library: library })
    }

    /// Those of AMD's runtime.
    pub fn hip(ordinal: i32) -> Result<DeviceEvents, DriverError> {
        let library = hip_runtime::find(false)?;
        let functions = HipFunctions::load(&library).map_err(DriverError::Unusable)?;
        let last_error = LastError::of(&library).map_err(DriverError::Unusable)?;
        // SAFETY: the type is that of the symbol in HIP's documented C interface.
        let exchange_mode =
            unsafe { library.library.get::<ExchangeMode>(b"hipThreadExchangeStreamCaptureMode") }.ok().map(|it| *it);
        let functions = Functions::Hip { functions, last_error, ordinal, exchange_mode };
        Ok(DeviceEvents { functions, _library: library })
    }

    /// Switches the calling thread to the relaxed mode of capture. For a thread that only asks about events.
    pub fn relax_thread(&self) {
        let mut mode = RELAXED;
        match &self.functions {
            // SAFETY: a valid place for the mode.
            Functions::Cuda { functions, .. } => unsafe { (functions.exchange_mode)(&mut mode) },
            // SAFETY: the same.
            Functions::Hip { exchange_mode: Some(exchange), .. } => unsafe { exchange(&mut mode) },
            Functions::Hip { exchange_mode: None, .. } => 0,
        };
    }

    /// Runs a call with our device current, and leaves the thread as it was.
    fn on_device<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        match &self.functions {
            Functions::Cuda { functions, context } => {
                let mut before = ptr::null_mut();
                // SAFETY: a valid place for the handle.
                check(unsafe { (functions.get_current)(&mut before) }, "cuCtxGetCurrent")?;
                if before as usize == *context {
                    return call();
                }
                // SAFETY: a context that was retained and never released.
                check(unsafe { (functions.set_current)(*context as *mut c_void) }, "cuCtxSetCurrent")?;
                let result = call();
                // SAFETY: what was current before.
                check(unsafe { (functions.set_current)(before) }, "cuCtxSetCurrent")?;
                result
            }
            Functions::Hip { functions, last_error, ordinal, .. } => last_error.keep(|| {
                let mut before = 0;
                // SAFETY: a valid place for the number.
                check(unsafe { (functions.get_device)(&mut before) }, "hipGetDevice")?;
                if before == *ordinal {
                    return call();
                }
                // SAFETY: numbers of devices that exist.
                check(unsafe { (functions.set_device)(*ordinal) }, "hipSetDevice")?;
                let result = call();
                // SAFETY: what was current before.
                check(unsafe { (functions.set_device)(before) }, "hipSetDevice")?;
                result
            }),
        }
    }

    /// Makes an event without time stamps.
    pub fn create(&self) -> Result<Event, DriverError> {
        self.on_device(|| {
            let mut event = ptr::null_mut();
            // SAFETY: a valid place for the handle.
            let code = unsafe {
                match &self.functions {
                    Functions::Cuda { functions, .. } => (functions.event_create)(&mut event, DISABLE_TIMING),
                    Functions::Hip { functions, .. } => (functions.event_create)(&mut event, DISABLE_TIMING),
                }
            };
            check(code, "creating an event").map(|()| Event(event as u64))
        })
    }

    /// Puts an event into a stream of this device.
    pub fn record(&self, event: Event, stream: u64) -> Result<(), DriverError> {
        let (event, stream) = (event.0 as *mut c_void, stream as *mut c_void);
        self.on_device(|| {
            // SAFETY: an event of ours, and a stream that the caller says exists.
            let code = unsafe {
                match &self.functions {
                    Functions::Cuda { functions, .. } => (functions.event_record)(event, stream),
                    Functions::Hip { functions, .. } => (functions.event_record)(event, stream),
                }
            };
            check(code, "recording an event")
        })
    }

    /// Whether an event has happened.
    pub fn has_happened(&self, event: Event) -> Result<bool, DriverError> {
        let event = event.0 as *mut c_void;
        self.on_device(|| {
            // SAFETY: an event of ours.
            let code = unsafe {
                match &self.functions {
                    Functions::Cuda { functions, .. } => (functions.event_query)(event),
                    Functions::Hip { functions, .. } => (functions.event_query)(event),
                }
            };
            if code == NOT_READY {
                return Ok(false);
            }
            check(code, "asking about an event").map(|()| true)
        })
    }

    /// Whether a stream of this device records a graph.
    pub fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        let stream = stream as *mut c_void;
        self.on_device(|| {
            let mut status = 0;
            // SAFETY: a stream that the caller says exists, and a valid place for the number.
            let code = unsafe {
                match &self.functions {
                    Functions::Cuda { functions, .. } => (functions.is_capturing)(stream, &mut status),
                    Functions::Hip { functions, .. } => (functions.is_capturing)(stream, &mut status),
                }
            };
            capturing(code, status)
                .or_else(|code| check(code, "asking whether a stream records a graph").map(|()| true))
        })
    }
}

fn check(code: i32, call: &'static str) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::Call { call, code, meaning: "an error of the driver".into() }) }
}
