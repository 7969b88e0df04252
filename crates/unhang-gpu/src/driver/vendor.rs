//! NVIDIA's and AMD's drivers: the same calls under two names. They differ in how a device is described
//! ([`super::cuda`], [`super::hip`]) and made current ([`super::device`]).

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use super::device::{Device, text};
use super::{Description, DeviceEvents, Driver, DriverError, FILLING, Function, StreamEvent};
use crate::compiler::Compiler;
use crate::dynamic::{Vendor, function_table};

function_table! {
    /// The drivers' functions for devices, kernels and memory.
    Calls {
        version: "cuDriverGetVersion" | "hipRuntimeGetVersion" as fn(*mut i32);
        device_name: "cuDeviceGetName" | "hipDeviceGetName" as fn(*mut c_char, i32, i32);
        device_memory: "cuDeviceTotalMem_v2" | "hipDeviceTotalMem" as fn(*mut usize, i32);
        module_load: "cuModuleLoadData" | "hipModuleLoadData" as fn(*mut *mut c_void, *const c_void);
        module_function: "cuModuleGetFunction" | "hipModuleGetFunction" as fn(*mut *mut c_void, *mut c_void, *const c_char);
        launch: "cuLaunchKernel" | "hipModuleLaunchKernel" as fn(*mut c_void, u32, u32, u32, u32, u32, u32, u32, *mut c_void, *mut *mut c_void, *mut *mut c_void);
        event_elapsed: "cuEventElapsedTime" | "hipEventElapsedTime" as fn(*mut f32, *mut c_void, *mut c_void);
        event_destroy: "cuEventDestroy_v2" | "hipEventDestroy" as fn(*mut c_void);
        synchronize: "cuStreamSynchronize" | "hipStreamSynchronize" as fn(*mut c_void);
        allocate: "cuMemAlloc_v2" | "hipMalloc" as fn(*mut u64, usize);
        fill: "cuMemsetD32_v2" | "hipMemsetD32" as fn(u64, u32, usize);
        free: "cuMemFree_v2" | "hipFree" as fn(u64);
        copy_to_host: "cuMemcpyDtoHAsync_v2" | "hipMemcpyDtoHAsync" as fn(*mut c_void, u64, usize, *mut c_void);
        copy_to_device: "cuMemcpyHtoDAsync_v2" | "hipMemcpyHtoDAsync" as fn(u64, *const c_void, usize, *mut c_void);
    }
}

/// A device of a vendor's driver.
pub struct VendorDriver {
    events: DeviceEvents,
    calls: Calls,
    compiler: Arc<dyn Compiler>,
    description: Description,
}

/// A vendor's driver's description of a device.
pub(super) struct Told {
    pub name: String,
    pub memory: u64,
    pub version: i32,
}

impl VendorDriver {
    /// A device, with what it is and the compiler for it.
    pub(super) fn of(
        device: Device,
        describe: impl FnOnce(&Device, Told) -> Result<Description, DriverError>,
        compiler: impl FnOnce() -> Result<Arc<dyn Compiler>, DriverError>,
    ) -> Result<VendorDriver, DriverError> {
        let calls = Calls::load(&device.library, device.vendor()).map_err(DriverError::Unusable)?;
        let mut name = [0u8; 256];
        let (mut memory, mut version) = (0usize, 0);
        // SAFETY: each call gets valid places for what it returns.
        device.keep(|| unsafe {
            device.check((calls.version.call)(&mut version), calls.version.name)?;
            let code = (calls.device_name.call)(name.as_mut_ptr().cast(), 255, device.number);
            device.check(code, calls.device_name.name)?;
            device.check((calls.device_memory.call)(&mut memory, device.number), calls.device_memory.name)
        })?;
        let description = describe(&device, Told { name: text(&name), memory: memory as u64, version })?;
        let compiler = compiler()?;
        Ok(VendorDriver { events: DeviceEvents::of(device)?, calls, compiler, description })
    }

    fn device(&self) -> &Device {
        &self.events.device
    }
}

impl Driver for VendorDriver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    fn load(&self, object: &[u8], entry: &str) -> Result<Function, DriverError> {
        let entry = CString::new(entry).map_err(|_| DriverError::Unusable("a NUL in a kernel's name".into()))?;
        self.device().run(|| {
            let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
            let object: Box<[u8]> = object.into();
            // SAFETY: a whole object, and a place for the handle.
            let code = unsafe { (self.calls.module_load.call)(&mut module, object.as_ptr().cast()) };
            self.device().check(code, self.calls.module_load.name)?;
            // HIP keeps pointers into the object for the life of the module, which is that of the process.
            if self.device().vendor() == Vendor::Amd {
                Box::leak(object);
            }
            // SAFETY: a module, a text that ends in NUL, and a place for the handle.
            let code = unsafe { (self.calls.module_function.call)(&mut function, module, entry.as_ptr()) };
            self.device().check(code, self.calls.module_function.name)?;
            Ok(Function(function as u64))
        })
    }

    unsafe fn launch(
        &self,
        function: Function,
        [x, y, z]: [u32; 3],
        block: u32,
        arguments: &mut [*mut c_void],
        stream: u64,
    ) -> Result<(), DriverError> {
        let (function, stream, arguments) = (function.0 as *mut c_void, stream as *mut c_void, arguments.as_mut_ptr());
        self.device().run(|| {
            // Function, grid, block, bytes of LDS, stream, arguments, nothing.
            // SAFETY: the caller vouches for the arguments; the function was loaded by this driver.
            let code = unsafe {
                (self.calls.launch.call)(function, x, y, z, block, 1, 1, 0, stream, arguments, ptr::null_mut())
            };
            self.device().check(code, self.calls.launch.name)
        })
    }

    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        self.events.is_capturing(stream)
    }

    fn create_event(&self) -> Result<StreamEvent, DriverError> {
        self.events.create_with(0)
    }

    fn record(&self, event: StreamEvent, stream: u64) -> Result<(), DriverError> {
        self.events.record(event, stream)
    }

    fn elapsed(&self, from: StreamEvent, to: StreamEvent) -> Result<Option<f32>, DriverError> {
        if !self.events.has_happened(to)? {
            return Ok(None);
        }
        self.device().run(|| {
            let mut milliseconds = 0.0;
            let (from, to) = (from.0 as *mut c_void, to.0 as *mut c_void);
            // SAFETY: events of this driver that have happened, and a place for the number.
            let code = unsafe { (self.calls.event_elapsed.call)(&mut milliseconds, from, to) };
            self.device().check(code, self.calls.event_elapsed.name).map(|()| Some(milliseconds))
        })
    }

    fn destroy_event(&self, event: StreamEvent) -> Result<(), DriverError> {
        self.device().run(|| {
            // SAFETY: an event of this driver that the caller gives up.
            let code = unsafe { (self.calls.event_destroy.call)(event.0 as *mut c_void) };
            self.device().check(code, self.calls.event_destroy.name)
        })
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        let words = bytes.div_ceil(4).max(1);
        self.device().run(|| {
            let mut address = 0;
            let device = self.device();
            // SAFETY: a valid place for the address.
            device.check(unsafe { (self.calls.allocate.call)(&mut address, words * 4) }, self.calls.allocate.name)?;
            // Filling does not wait for itself, and streams that do not wait for the null stream would overtake it.
            // SAFETY: memory of that size, which nobody else has; the null stream.
            let filled = unsafe {
                device.check((self.calls.fill.call)(address, FILLING, words), self.calls.fill.name).and_then(|()| {
                    device.check((self.calls.synchronize.call)(ptr::null_mut()), self.calls.synchronize.name)
                })
            };
            if filled.is_err() {
                // SAFETY: allocated above. If freeing fails too, the first error counts.
                let _ = unsafe { (self.calls.free.call)(address) };
            }
            filled.map(|()| address)
        })
    }

    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        self.device().run(|| self.device().check(unsafe { (self.calls.free.call)(address) }, self.calls.free.name))
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, stream: u64) -> Result<(), DriverError> {
        let copy = &self.calls.copy_to_host;
        self.device().run(|| {
            // SAFETY: the caller's promise; the copy is over before this returns.
            let code = unsafe { (copy.call)(to.as_mut_ptr().cast(), from, to.len(), stream as *mut c_void) };
            self.device().check(code, copy.name)?;
            self.synchronize(stream)
        })
    }

    unsafe fn write(&self, to: u64, from: &[u8], stream: u64) -> Result<(), DriverError> {
        let copy = &self.calls.copy_to_device;
        self.device().run(|| {
            // SAFETY: as above.
            let code = unsafe { (copy.call)(to, from.as_ptr().cast(), from.len(), stream as *mut c_void) };
            self.device().check(code, copy.name)?;
            self.synchronize(stream)
        })
    }

    fn synchronize(&self, stream: u64) -> Result<(), DriverError> {
        self.device().run(|| {
            // SAFETY: a stream of the caller.
            let code = unsafe { (self.calls.synchronize.call)(stream as *mut c_void) };
            self.device().check(code, self.calls.synchronize.name)
        })
    }
}
