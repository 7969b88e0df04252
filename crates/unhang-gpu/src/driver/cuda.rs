//! NVIDIA's driver, `libcuda.so.1`: the machine on which the kernels can be run and measured.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Description, Driver, DriverError, Event, FILLING, Function, capturing, launch_by};
use crate::compiler::{Compiler, Nvrtc};
use crate::dynamic::{self, Found, LibraryMissing, Wanted, function_table};
use crate::model::DeviceModel;

function_table! {
    /// The functions of libcuda that we call.
    Functions {
        init: "cuInit" as fn(u32);
        driver_version: "cuDriverGetVersion" as fn(*mut i32);
        device_get: "cuDeviceGet" as fn(*mut i32, i32);
        device_name: "cuDeviceGetName" as fn(*mut c_char, i32, i32);
        device_memory: "cuDeviceTotalMem_v2" as fn(*mut usize, i32);
        attribute: "cuDeviceGetAttribute" as fn(*mut i32, i32, i32);
        retain_context: "cuDevicePrimaryCtxRetain" as fn(*mut *mut c_void, i32);
        get_current: "cuCtxGetCurrent" as fn(*mut *mut c_void);
        set_current: "cuCtxSetCurrent" as fn(*mut c_void);
        module_load: "cuModuleLoadData" as fn(*mut *mut c_void, *const c_void);
        module_function: "cuModuleGetFunction" as fn(*mut *mut c_void, *mut c_void, *const c_char);
        launch: "cuLaunchKernel" as fn(*mut c_void, u32, u32, u32, u32, u32, u32, u32, *mut c_void, *mut *mut c_void, *mut *mut c_void);
        is_capturing: "cuStreamIsCapturing" as fn(*mut c_void, *mut i32);
        event_create: "cuEventCreate" as fn(*mut *mut c_void, u32);
        event_record: "cuEventRecord" as fn(*mut c_void, *mut c_void);
        event_query: "cuEventQuery" as fn(*mut c_void);
        event_elapsed: "cuEventElapsedTime" as fn(*mut f32, *mut c_void, *mut c_void);
        event_destroy: "cuEventDestroy_v2" as fn(*mut c_void);
        synchronize: "cuStreamSynchronize" as fn(*mut c_void);
        allocate: "cuMemAlloc_v2" as fn(*mut u64, usize);
        fill: "cuMemsetD32_v2" as fn(u64, u32, usize);
        free: "cuMemFree_v2" as fn(u64);
        error_name: "cuGetErrorName" as fn(i32, *mut *const c_char);
    }
}

const NOT_READY: i32 = 600;

/// A device of NVIDIA's driver, in its primary context, which is torch's.
pub struct Cuda {
    functions: Functions,
    compiler: Arc<Nvrtc>,
    description: Description,
    context: usize,
    _library: Found,
}

/// The driver that this process has loaded, else the system's: there is one, and the kernel's part fits only that.
pub(super) fn library() -> Result<Found, LibraryMissing> {
    let names = vec!["libcuda.so.1".into()];
    dynamic::open(&Wanted { stem: "libcuda", witness: "cuInit", users: &[], only_one: true, names })
}

impl Cuda {
    /// The device of that number, with the driver that this process has loaded, else the system's.
    pub fn open(ordinal: i32) -> Result<Cuda, DriverError> {
        let library = library()?;
        let functions = Functions::load(&library).map_err(DriverError::Unusable)?;
        let check = |code, call| check(&functions, code, call);
        let (mut device, mut context) = (0, ptr::null_mut());
        let mut name = [0u8; 256];
        let (mut memory, mut version) = (0usize, 0);
        // SAFETY: each call gets valid places for what it returns.
        unsafe {
            check((functions.init)(0), "cuInit")?;
            check((functions.driver_version)(&mut version), "cuDriverGetVersion")?;
            check((functions.device_get)(&mut device, ordinal), "cuDeviceGet")?;
            check((functions.device_name)(name.as_mut_ptr().cast(), 255, device), "cuDeviceGetName")?;
            check((functions.device_memory)(&mut memory, device), "cuDeviceTotalMem")?;
            check((functions.retain_context)(&mut context, device), "cuDevicePrimaryCtxRetain")?;
        }
        let attribute = |which: i32| {
            let mut value = 0;
            // SAFETY: a valid place for the number.
            check(unsafe { (functions.attribute)(&mut value, which, device) }, "cuDeviceGetAttribute").map(|()| value)
        };
        // Numbers of CUdevice_attribute: 75, 76 capability; 16 multiprocessors; 13 clock in kHz; 36 memory clock in
        // kHz; 37 bus width in bits; 38 bytes of L2.
        let (major, minor) = (attribute(75)?, attribute(76)?);
        let units = attribute(16)?;
        let clock = f64::from(attribute(13)?) * 1e3;
        let bandwidth = f64::from(attribute(36)?) * 1e3 * 2.0 * f64::from(attribute(37)?) / 8.0;
        let cache = f64::from(attribute(38)?);
        let architecture = format!("sm_{major}{minor}");
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        let description = Description {
            name: String::from_utf8_lossy(&name[..length]).into_owned(),
            reported_architecture: architecture.clone(),
            true_architecture: architecture,
            driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            model: DeviceModel {
                compute_units: units as usize,
                // Clocks under load lie below the highest that is reported.
                flops: f64::from(units) * 256.0 * clock * 0.88,
                bandwidth: bandwidth * 0.88,
                launch: 1.4e-6,
                efficiency: 0.66,
                cache: cache * 0.8,
                memory: memory as u64,
                shares: &crate::fit::H200,
            },
        };
        let compiler = Arc::new(Nvrtc::find()?);
        Ok(Cuda { functions, compiler, description, context: context as usize, _library: library })
    }

    /// Runs a call with our context current, and leaves the thread as it was.
    fn in_context<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut before = ptr::null_mut();
        // SAFETY: a valid place; the context is retained for the life of the process.
        unsafe {
            check(&self.functions, (self.functions.get_current)(&mut before), "cuCtxGetCurrent")?;
            if before as usize == self.context {
                return call();
            }
            check(&self.functions, (self.functions.set_current)(self.context as *mut c_void), "cuCtxSetCurrent")?;
        }
        let result = call();
        // SAFETY: what was current before.
        check(&self.functions, unsafe { (self.functions.set_current)(before) }, "cuCtxSetCurrent")?;
        result
    }
}

fn check(functions: &Functions, code: i32, call: &'static str) -> Result<(), DriverError> {
    if code == 0 {
        return Ok(());
    }
    let mut name: *const c_char = ptr::null();
    // SAFETY: a valid place; the result is a constant text, or null for an unknown number.
    let meaning = unsafe {
        (functions.error_name)(code, &mut name);
        if name.is_null() {
            "unknown error".to_owned()
        } else {
            std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    };
    Err(DriverError::Call { call, code, meaning })
}

impl Driver for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    fn load(&self, object: &[u8], entry: &str) -> Result<Function, DriverError> {
        let entry = CString::new(entry).map_err(|_| DriverError::Unusable("a NUL in a kernel's name".into()))?;
        self.in_context(|| {
            let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a whole object, a text that ends in NUL, and places for the handles.
            unsafe {
                check(
                    &self.functions,
                    (self.functions.module_load)(&mut module, object.as_ptr().cast()),
                    "cuModuleLoadData",
                )?;
                let code = (self.functions.module_function)(&mut function, module, entry.as_ptr());
                check(&self.functions, code, "cuModuleGetFunction")?;
            }
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
        self.in_context(|| {
            // SAFETY: the caller vouches for the arguments; the function was loaded by this driver.
            let code = unsafe { launch_by(self.functions.launch, function, (grid, block), arguments, stream) };
            check(&self.functions, code, "cuLaunchKernel")
        })
    }

    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        self.in_context(|| {
            let mut status = 0;
            // SAFETY: a valid place for the number.
            let code = unsafe { (self.functions.is_capturing)(stream as *mut c_void, &mut status) };
            capturing(code, status).or_else(|code| check(&self.functions, code, "cuStreamIsCapturing").map(|()| true))
        })
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        self.in_context(|| {
            let mut event = ptr::null_mut();
            // SAFETY: a valid place for the handle.
            check(&self.functions, unsafe { (self.functions.event_create)(&mut event, 0) }, "cuEventCreate")?;
            Ok(Event(event as u64))
        })
    }

    fn record(&self, event: Event, stream: u64) -> Result<(), DriverError> {
        self.in_context(|| {
            // SAFETY: an event of this driver and a stream of the caller.
            let code = unsafe { (self.functions.event_record)(event.0 as *mut c_void, stream as *mut c_void) };
            check(&self.functions, code, "cuEventRecord")
        })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<Option<f32>, DriverError> {
        self.in_context(|| {
            // SAFETY: events of this driver.
            match unsafe { (self.functions.event_query)(to.0 as *mut c_void) } {
                NOT_READY => return Ok(None),
                code => check(&self.functions, code, "cuEventQuery")?,
            }
            let mut milliseconds = 0.0;
            let (from, to) = (from.0 as *mut c_void, to.0 as *mut c_void);
            // SAFETY: events of this driver that have happened, and a place for the number.
            let code = unsafe { (self.functions.event_elapsed)(&mut milliseconds, from, to) };
            check(&self.functions, code, "cuEventElapsedTime").map(|()| Some(milliseconds))
        })
    }

    fn destroy_event(&self, event: Event) -> Result<(), DriverError> {
        self.in_context(|| {
            // SAFETY: an event of this driver that the caller gives up.
            check(&self.functions, unsafe { (self.functions.event_destroy)(event.0 as *mut c_void) }, "cuEventDestroy")
        })
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        let words = bytes.div_ceil(4).max(1);
        self.in_context(|| {
            let mut address = 0;
            // SAFETY: a valid place for the address, and memory of that size behind it.
            unsafe {
                check(&self.functions, (self.functions.allocate)(&mut address, words * 4), "cuMemAlloc")?;
                check(&self.functions, (self.functions.fill)(address, FILLING, words), "cuMemsetD32")?;
            }
            Ok(address)
        })
    }

    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.in_context(|| check(&self.functions, unsafe { (self.functions.free)(address) }, "cuMemFree"))
    }

    fn synchronize(&self, stream: u64) -> Result<(), DriverError> {
        self.in_context(|| {
            // SAFETY: a stream of the caller.
            let code = unsafe { (self.functions.synchronize)(stream as *mut c_void) };
            check(&self.functions, code, "cuStreamSynchronize")
        })
    }
}
