//! A device of a vendor's driver: how it is made current for a call of ours, and what the driver's errors mean.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::DriverError;
use super::hip_runtime::{self, LastError};
use crate::dynamic::{self, Found, Vendor, Wanted, function_table};

function_table! {
    /// The functions of libcuda that make a device current.
    CudaFunctions {
        init: "cuInit" as fn(u32);
        device_get: "cuDeviceGet" as fn(*mut i32, i32);
        retain_context: "cuDevicePrimaryCtxRetain" as fn(*mut *mut c_void, i32);
        get_current: "cuCtxGetCurrent" as fn(*mut *mut c_void);
        set_current: "cuCtxSetCurrent" as fn(*mut c_void);
        error_name: "cuGetErrorName" as fn(i32, *mut *const c_char);
    }
}

function_table! {
    /// The functions of libamdhip64 that make a device current, and say where it sits.
    HipFunctions {
        init: "hipInit" as fn(u32);
        get_device: "hipGetDevice" as fn(*mut i32);
        set_device: "hipSetDevice" as fn(i32);
        device_pci: "hipDeviceGetPCIBusId" as fn(*mut c_char, i32, i32);
    }
}

enum Current {
    /// The device's primary context, which is torch's; it is retained for the life of the process.
    Cuda { functions: CudaFunctions, context: usize },
    /// The device of that number.
    Hip { functions: HipFunctions, last_error: LastError },
}

/// A device, and its library.
pub(super) struct Device {
    current: Current,
    /// The number that the driver's own functions take for it.
    pub number: i32,
    pub library: Found,
}

impl Device {
    /// NVIDIA's device, with the driver that this process has loaded, else the system's: there is only one, and it must
    /// match the kernel module.
    pub(super) fn cuda(ordinal: i32) -> Result<Device, DriverError> {
        let names = vec!["libcuda.so.1".into()];
        let library = dynamic::open(&Wanted { stem: "libcuda", witness: "cuInit", users: &[], only_one: true, names })?;
        let functions = CudaFunctions::load(&library).map_err(DriverError::Unusable)?;
        let check = |code, call| check(code, call, || functions.meaning(code));
        let (mut number, mut context) = (0, ptr::null_mut());
        // SAFETY: each call gets valid places for what it returns.
        unsafe {
            check((functions.init)(0), "cuInit")?;
            check((functions.device_get)(&mut number, ordinal), "cuDeviceGet")?;
            check((functions.retain_context)(&mut context, number), "cuDevicePrimaryCtxRetain")?;
        }
        Ok(Device { current: Current::Cuda { functions, context: context as usize }, number, library })
    }

    /// AMD's device, with the runtime that torch uses or this process has loaded; else, if it may be started, with the
    /// system's.
    pub(super) fn hip(number: i32, may_start: bool) -> Result<Device, DriverError> {
        let library = hip_runtime::find(may_start)?;
        let functions = HipFunctions::load(&library).map_err(DriverError::Unusable)?;
        let last_error = LastError::of(&library).map_err(DriverError::Unusable)?;
        if may_start {
            // SAFETY: the only flags that there are.
            check_hip(last_error.keep(|| unsafe { (functions.init)(0) }), "hipInit")?;
        }
        Ok(Device { current: Current::Hip { functions, last_error }, number, library })
    }

    pub(super) fn vendor(&self) -> Vendor {
        match self.current {
            Current::Cuda { .. } => Vendor::Nvidia,
            Current::Hip { .. } => Vendor::Amd,
        }
    }

    /// Where AMD's device sits, such as `0000:03:00.0`; nothing for NVIDIA's.
    pub(super) fn pci_address(&self) -> Result<String, DriverError> {
        let mut address = [0u8; 64];
        if let Current::Hip { functions, last_error } = &self.current {
            // SAFETY: a valid place for the text and its length.
            let ask = || unsafe { (functions.device_pci)(address.as_mut_ptr().cast(), 63, self.number) };
            check_hip(last_error.keep(ask), "hipDeviceGetPCIBusId")?;
        }
        Ok(text(&address))
    }

    /// Makes calls without leaving an error in this thread.
    pub(super) fn keep<T>(&self, calls: impl FnOnce() -> T) -> T {
        match &self.current {
            Current::Cuda { .. } => calls(),
            Current::Hip { last_error, .. } => last_error.keep(calls),
        }
    }

    /// Makes calls with this device current, then restores the thread's device and last error.
    pub(super) fn run<T>(&self, calls: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        match &self.current {
            Current::Cuda { functions, context } => {
                let get = || {
                    let mut before = ptr::null_mut();
                    // SAFETY: a valid place for the handle.
                    let code = unsafe { (functions.get_current)(&mut before) };
                    self.check(code, "cuCtxGetCurrent").map(|()| before as usize)
                };
                // SAFETY: the context that is retained, or what was current before.
                let set = |it: usize| self.check(unsafe { (functions.set_current)(it as _) }, "cuCtxSetCurrent");
                with_current(*context, get, set, calls)
            }
            Current::Hip { functions, last_error } => last_error.keep(|| {
                let get = || {
                    let mut before = 0;
                    // SAFETY: a valid place for the number.
                    self.check(unsafe { (functions.get_device)(&mut before) }, "hipGetDevice").map(|()| before)
                };
                // SAFETY: numbers of devices that exist.
                let set = |it: i32| self.check(unsafe { (functions.set_device)(it) }, "hipSetDevice");
                with_current(self.number, get, set, calls)
            }),
        }
    }

    /// The error that a call's return value stands for.
    pub(super) fn check(&self, code: i32, call: &'static str) -> Result<(), DriverError> {
        match &self.current {
            Current::Cuda { functions, .. } => check(code, call, || functions.meaning(code)),
            Current::Hip { .. } => check_hip(code, call),
        }
    }
}

fn with_current<D: Copy + PartialEq, T>(
    ours: D,
    get: impl Fn() -> Result<D, DriverError>,
    set: impl Fn(D) -> Result<(), DriverError>,
    calls: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    let before = get()?;
    if before == ours {
        return calls();
    }
    set(ours)?;
    let result = calls();
    set(before)?;
    result
}

/// A text that a driver wrote: up to its NUL.
pub(super) fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

fn check(code: i32, call: &'static str, meaning: impl FnOnce() -> String) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::Call { call, code, meaning: meaning() }) }
}

fn check_hip(code: i32, call: &'static str) -> Result<(), DriverError> {
    check(code, call, || hip_meaning(code).into())
}

impl CudaFunctions {
    fn meaning(&self, code: i32) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: a valid place; the result is a constant text, or null for an unknown number.
        unsafe {
            (self.error_name)(code, &mut name);
            if name.is_null() { "unknown error".into() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    }
}

/// The names that matter, written out: hipGetErrorName is not in every version under the same name.
fn hip_meaning(code: i32) -> &'static str {
    match code {
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialized",
        98 => "invalid device function: the object is for another chip than the runtime believes in",
        100 => "no device",
        101 => "invalid device",
        200 => "invalid image",
        209 => "no binary for this GPU",
        301 => "file not found",
        303 => {
            "shared object initialisation failed; HIP 5.2 also says so of an object for another chip than the runtime \
             believes in"
        }
        400 => "invalid handle",
        500 => "not found",
        700 => "illegal address",
        719 => "launch failure",
        900 => "not supported while capturing",
        906 => "another stream is capturing",
        _ => "unknown error",
    }
}
