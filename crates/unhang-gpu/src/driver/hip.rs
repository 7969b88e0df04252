//! AMD's driver, `libamdhip64.so`: the one that torch has loaded, never a second one.
//!
//! Nothing is read from `hipGetDeviceProperties`, whose structure changes between versions: what the model needs comes
//! from the caller, who knows the chip by the kernel driver's own topology.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use super::hip_runtime::{self, LastError};
use super::{Description, Driver, DriverError, Event, FILLING, Function, capturing, launch_by};
use crate::compiler::{self, Compiler};
use crate::dynamic::{Found, function_table};
use crate::model::DeviceModel;

function_table! {
    /// The functions of libamdhip64 that we call.
    Functions {
        init: "hipInit" as fn(u32);
        runtime_version: "hipRuntimeGetVersion" as fn(*mut i32);
        get_device: "hipGetDevice" as fn(*mut i32);
        set_device: "hipSetDevice" as fn(i32);
        device_name: "hipDeviceGetName" as fn(*mut c_char, i32, i32);
        device_pci: "hipDeviceGetPCIBusId" as fn(*mut c_char, i32, i32);
        device_memory: "hipDeviceTotalMem" as fn(*mut usize, i32);
        module_load: "hipModuleLoadData" as fn(*mut *mut c_void, *const c_void);
        module_function: "hipModuleGetFunction" as fn(*mut *mut c_void, *mut c_void, *const c_char);
        launch: "hipModuleLaunchKernel" as fn(*mut c_void, u32, u32, u32, u32, u32, u32, u32, *mut c_void, *mut *mut c_void, *mut *mut c_void);
        is_capturing: "hipStreamIsCapturing" as fn(*mut c_void, *mut i32);
        event_create: "hipEventCreateWithFlags" as fn(*mut *mut c_void, u32);
        event_record: "hipEventRecord" as fn(*mut c_void, *mut c_void);
        event_query: "hipEventQuery" as fn(*mut c_void);
        event_elapsed: "hipEventElapsedTime" as fn(*mut f32, *mut c_void, *mut c_void);
        event_destroy: "hipEventDestroy" as fn(*mut c_void);
        synchronize: "hipStreamSynchronize" as fn(*mut c_void);
        copy: "hipMemcpyAsync" as fn(*mut c_void, *const c_void, usize, i32, *mut c_void);
        allocate: "hipMalloc" as fn(*mut *mut c_void, usize);
        fill: "hipMemsetD32" as fn(*mut c_void, i32, usize);
        free: "hipFree" as fn(*mut c_void);
    }
}

const NOT_READY: i32 = 600;
const TO_DEVICE: i32 = 1;
const TO_HOST: i32 = 2;

/// What only other sources than the runtime know of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HipChip {
    /// What the runtime believes in: torch's `gcnArchName` without its features.
    pub reported_architecture: String,
    /// What is really there, by the kernel driver's topology.
    pub true_architecture: String,
    /// Compute units, by the same; the runtime counts pairs of them on RDNA.
    pub compute_units: usize,
    /// The highest clock of the shaders in MHz, by the same; 0 if unknown.
    pub clock_mhz: u32,
    /// Bytes a second to memory, by the same; 0 if unknown.
    pub bandwidth: u64,
}

impl HipChip {
    /// What the model knows of the device; where KFD does not tell, as if it were an RX 5600 XT.
    fn model(&self, memory: u64) -> DeviceModel {
        let like = DeviceModel::rx_5600_xt();
        let units = if self.compute_units == 0 { like.compute_units } else { self.compute_units };
        let for_each_unit = match self.clock_mhz {
            0 => like.flops / like.compute_units as f64,
            // 64 lanes of a multiply-add. Clocks under load lie below the highest that is reported.
            clock => 128.0 * f64::from(clock) * 1e6 * 0.88,
        };
        DeviceModel {
            compute_units: units,
            flops: units as f64 * for_each_unit,
            bandwidth: if self.bandwidth == 0 { like.bandwidth } else { self.bandwidth as f64 },
            memory,
            ..like
        }
    }
}

/// A device of AMD's runtime.
pub struct Hip {
    functions: Functions,
    last_error: LastError,
    compiler: Arc<dyn Compiler>,
    description: Description,
    ordinal: i32,
    _library: Found,
}

/// The runtime that this process has loaded, else the system's.
fn runtime() -> Result<(Found, Functions, LastError), DriverError> {
    let library = hip_runtime::find(true)?;
    let functions = Functions::load(&library).map_err(DriverError::Unusable)?;
    let last_error = LastError::of(&library).map_err(DriverError::Unusable)?;
    Ok((library, functions, last_error))
}

impl Hip {
    /// Where the device of that number sits, such as `0000:03:00.0`: by that the kernel driver's topology knows it.
    pub fn pci_address(ordinal: i32) -> Result<String, DriverError> {
        let (_, functions, last_error) = runtime()?;
        let mut address = [0u8; 64];
        // SAFETY: a valid place for the text and its length.
        last_error.keep(|| unsafe {
            check((functions.init)(0), "hipInit")?;
            check((functions.device_pci)(address.as_mut_ptr().cast(), 63, ordinal), "hipDeviceGetPCIBusId")
        })?;
        let length = address.iter().position(|&byte| byte == 0).unwrap_or(0);
        Ok(String::from_utf8_lossy(&address[..length]).into_owned())
    }

    /// The device that is current in this thread.
    pub fn current() -> Result<i32, DriverError> {
        let (_, functions, last_error) = runtime()?;
        let mut ordinal = 0;
        // SAFETY: a valid place for the number.
        last_error.keep(|| check(unsafe { (functions.get_device)(&mut ordinal) }, "hipGetDevice"))?;
        Ok(ordinal)
    }

    /// The device of that number. The chip is the caller's knowledge: the runtime tells the spoofed one.
    pub fn open(ordinal: i32, chip: &HipChip) -> Result<Hip, DriverError> {
        let (library, functions, last_error) = runtime()?;
        let mut name = [0u8; 256];
        let (mut memory, mut version) = (0usize, 0);
        // SAFETY: each call gets valid places for what it returns.
        last_error.keep(|| unsafe {
            check((functions.init)(0), "hipInit")?;
            check((functions.runtime_version)(&mut version), "hipRuntimeGetVersion")?;
            check((functions.device_name)(name.as_mut_ptr().cast(), 255, ordinal), "hipDeviceGetName")?;
            check((functions.device_memory)(&mut memory, ordinal), "hipDeviceTotalMem")
        })?;
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        let description = Description {
            name: String::from_utf8_lossy(&name[..length]).into_owned(),
            reported_architecture: chip.reported_architecture.clone(),
            true_architecture: chip.true_architecture.clone(),
            driver: format!("HIP {version}"),
            model: chip.model(memory as u64),
        };
        // Kernels that came with the package run without a compiler.
        let compiler = compiler::for_amd();
        Ok(Hip { functions, last_error, compiler, description, ordinal, _library: library })
    }

    /// Runs a call with our device current, and leaves the thread as it was, its last error included.
    fn on_device<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        self.last_error.keep(|| self.with_device_current(call))
    }

    /// # Safety
    /// Both places must have that many bytes.
    unsafe fn copy_and_wait(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: i32,
        stream: u64,
    ) -> Result<(), DriverError> {
        let stream = stream as *mut c_void;
        self.on_device(|| {
            // SAFETY: the caller's promise; the copy is over before this returns.
            unsafe {
                check((self.functions.copy)(to, from, bytes, kind, stream), "hipMemcpyAsync")?;
                check((self.functions.synchronize)(stream), "hipStreamSynchronize")
            }
        })
    }

    fn with_device_current<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut before = 0;
        // SAFETY: a valid place for the number.
        check(unsafe { (self.functions.get_device)(&mut before) }, "hipGetDevice")?;
        if before == self.ordinal {
            return call();
        }
        // SAFETY: numbers of devices that exist.
        check(unsafe { (self.functions.set_device)(self.ordinal) }, "hipSetDevice")?;
        let result = call();
        // SAFETY: what was current before.
        check(unsafe { (self.functions.set_device)(before) }, "hipSetDevice")?;
        result
    }
}

fn check(code: i32, call: &'static str) -> Result<(), DriverError> {
    if code == 0 {
        return Ok(());
    }
    // The names that matter, written out: hipGetErrorName is not in every version under the same name.
    let meaning = match code {
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
    };
    Err(DriverError::Call { call, code, meaning: meaning.into() })
}

impl Driver for Hip {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    fn load(&self, object: &[u8], entry: &str) -> Result<Function, DriverError> {
        let entry = CString::new(entry).map_err(|_| DriverError::Unusable("a NUL in a kernel's name".into()))?;
        self.on_device(|| {
            let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
            // HIP goes on pointing into the object, as long as the module lives: as long as the process.
            let object: Box<[u8]> = object.into();
            // SAFETY: a whole object, and a place for the handle.
            check(unsafe { (self.functions.module_load)(&mut module, object.as_ptr().cast()) }, "hipModuleLoadData")?;
            Box::leak(object);
            // SAFETY: a module, a text that ends in NUL, and a place for the handle.
            let code = unsafe { (self.functions.module_function)(&mut function, module, entry.as_ptr()) };
            check(code, "hipModuleGetFunction")?;
            Ok(Function(function as u64))
        })
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        arguments: &mut [*mut c_void],
        stream: u64,
    ) -> Result<(), DriverError> {
        self.on_device(|| {
            // SAFETY: the caller vouches for the arguments; the function was loaded by this driver.
            let code = unsafe { launch_by(self.functions.launch, function, (grid, block), arguments, stream) };
            check(code, "hipModuleLaunchKernel")
        })
    }

    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        self.on_device(|| {
            let mut status = 0;
            // SAFETY: a valid place for the number.
            let code = unsafe { (self.functions.is_capturing)(stream as *mut c_void, &mut status) };
            capturing(code, status).or_else(|code| check(code, "hipStreamIsCapturing").map(|()| true))
        })
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        self.on_device(|| {
            let mut event = ptr::null_mut();
            // SAFETY: a valid place for the handle.
            check(unsafe { (self.functions.event_create)(&mut event, 0) }, "hipEventCreateWithFlags")?;
            Ok(Event(event as u64))
        })
    }

    fn record(&self, event: Event, stream: u64) -> Result<(), DriverError> {
        self.on_device(|| {
            // SAFETY: an event of this driver and a stream of the caller.
            let code = unsafe { (self.functions.event_record)(event.0 as *mut c_void, stream as *mut c_void) };
            check(code, "hipEventRecord")
        })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<Option<f32>, DriverError> {
        self.last_error.keep(|| {
            // SAFETY: events of this driver.
            match unsafe { (self.functions.event_query)(to.0 as *mut c_void) } {
                NOT_READY => return Ok(None),
                code => check(code, "hipEventQuery")?,
            }
            let mut milliseconds = 0.0;
            let (from, to) = (from.0 as *mut c_void, to.0 as *mut c_void);
            // SAFETY: events of this driver that have happened, and a place for the number.
            let code = unsafe { (self.functions.event_elapsed)(&mut milliseconds, from, to) };
            check(code, "hipEventElapsedTime").map(|()| Some(milliseconds))
        })
    }

    fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        // SAFETY: an event of this driver that the caller gives up.
        let code = self.last_error.keep(|| unsafe { (self.functions.event_destroy)(event.0 as *mut c_void) });
        check(code, "hipEventDestroy")
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        let words = bytes.div_ceil(4).max(1);
        self.on_device(|| {
            let mut address = ptr::null_mut();
            // SAFETY: a valid place for the address, and memory of that size behind it.
            unsafe {
                check((self.functions.allocate)(&mut address, words * 4), "hipMalloc")?;
                check((self.functions.fill)(address, FILLING as i32, words), "hipMemsetD32")?;
            }
            Ok(address as u64)
        })
    }

    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.on_device(|| check(unsafe { (self.functions.free)(address as *mut c_void) }, "hipFree"))
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, stream: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_and_wait(to.as_mut_ptr().cast(), from as *const c_void, to.len(), TO_HOST, stream) }
    }

    unsafe fn write(&self, to: u64, from: &[u8], stream: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_and_wait(to as *mut c_void, from.as_ptr().cast(), from.len(), TO_DEVICE, stream) }
    }

    fn synchronize(&self, stream: u64) -> Result<(), DriverError> {
        self.on_device(|| {
            // SAFETY: a stream of the caller.
            check(unsafe { (self.functions.synchronize)(stream as *mut c_void) }, "hipStreamSynchronize")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_card_is_what_the_kernel_driver_says() {
        let chip = |compute_units, clock_mhz, bandwidth| HipChip {
            reported_architecture: "gfx1030".into(),
            true_architecture: "gfx1010".into(),
            compute_units,
            clock_mhz,
            bandwidth,
        };
        // The figures that KFD gives for an RX 5600 XT come to what the vendor says of it.
        let (found, vendor) = (chip(36, 1780, 288_000_000_000).model(6 << 30), DeviceModel::rx_5600_xt());
        assert!((found.flops / vendor.flops - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(DeviceModel { flops: vendor.flops, ..found }, vendor);
        let larger = chip(40, 2100, 448_000_000_000).model(8 << 30);
        assert_eq!((larger.compute_units, larger.bandwidth, larger.memory), (40, 448e9, 8 << 30));
        assert_eq!(chip(0, 0, 0).model(6 << 30), vendor, "nothing is known");
    }
}
