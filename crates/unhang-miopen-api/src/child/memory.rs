//! Things created on the device and released with their owner: memory, events, descriptors.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use crate::{Create, Destroy, Opaque};

use super::library::{Functions, MiopenError, call, check_hip, required};

const TO_DEVICE: i32 = 1;
const FROM_DEVICE: i32 = 2;
const NOT_READY: i32 = 600;

/// Memory on the device.
pub(crate) struct Memory<'a> {
    functions: &'a Functions,
    pub(crate) address: Opaque,
    bytes: usize,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(functions: &'a Functions, bytes: usize) -> Result<Memory<'a>, MiopenError> {
        let mut address = ptr::null_mut();
        if bytes > 0 {
            // SAFETY: a valid pointer for the address.
            check_hip(unsafe { (functions.allocate)(&mut address, bytes) }, "hipMalloc")?;
        }
        Ok(Memory { functions, address, bytes })
    }

    /// Device memory with a copy of `data`.
    pub(crate) fn of<T: Copy>(functions: &'a Functions, data: &[T]) -> Result<Memory<'a>, MiopenError> {
        let memory = Memory::new(functions, size_of_val(data))?;
        // SAFETY: both sides have that many bytes, and the call returns when it is done.
        let code = unsafe { (functions.copy)(memory.address, data.as_ptr().cast(), memory.bytes, TO_DEVICE) };
        check_hip(code, "hipMemcpy to the device")?;
        Ok(memory)
    }

    /// Copies all of it into a slice of its size. Every bit pattern must be a valid `T`.
    pub(crate) fn read<T: Copy>(&self, data: &mut [T]) -> Result<(), MiopenError> {
        assert_eq!(size_of_val(data), self.bytes, "all of it");
        let (to, from) = (data.as_mut_ptr().cast::<c_void>(), self.address);
        // SAFETY: both sides have that many bytes, and the call returns when it is done.
        check_hip(unsafe { (self.functions.copy)(to, from, self.bytes, FROM_DEVICE) }, "hipMemcpy from the device")
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        if !self.address.is_null() {
            // SAFETY: allocated here, and every user has waited for its work to finish.
            unsafe { (self.functions.free)(self.address) };
        }
    }
}

/// A point in the default stream's work.
pub(crate) struct HipEvent<'a> {
    functions: &'a Functions,
    handle: Opaque,
}

impl<'a> HipEvent<'a> {
    /// An event after everything queued so far.
    pub(crate) fn now(functions: &'a Functions) -> Result<HipEvent<'a>, MiopenError> {
        let mut event = HipEvent { functions, handle: ptr::null_mut() };
        // SAFETY: a valid pointer for the handle; then an event of ours and the default stream.
        unsafe {
            check_hip((functions.create_event)(&mut event.handle), "hipEventCreate")?;
            check_hip((functions.record_event)(event.handle, ptr::null_mut()), "hipEventRecord")?;
        }
        Ok(event)
    }

    /// Polls until it has happened: a thread that waits inside the driver cannot report anything.
    pub(crate) fn wait(&self) -> Result<(), MiopenError> {
        let mut pause = Duration::from_micros(20);
        loop {
            // SAFETY: an event of ours.
            match unsafe { (self.functions.query_event)(self.handle) } {
                NOT_READY => std::thread::sleep(pause),
                code => return check_hip(code, "hipEventQuery"),
            }
            pause = (pause * 3 / 2).min(Duration::from_millis(5));
        }
    }

    /// Seconds since an earlier event; both have happened.
    pub(crate) fn seconds_since(&self, earlier: &HipEvent<'_>) -> Result<f64, MiopenError> {
        let mut milliseconds = 0.0;
        // SAFETY: events of ours, and a valid pointer for the number.
        let code = unsafe { (self.functions.elapsed)(&mut milliseconds, earlier.handle, self.handle) };
        check_hip(code, "hipEventElapsedTime").map(|()| f64::from(milliseconds) / 1e3)
    }
}

impl Drop for HipEvent<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created here and not used afterwards.
            unsafe { (self.functions.destroy_event)(self.handle) };
        }
    }
}

/// A MIOpen descriptor.
pub(crate) struct Descriptor {
    pub(crate) handle: Opaque,
    destroy: Destroy,
}

impl Descriptor {
    pub(crate) fn new(create: Option<Create>, destroy: Option<Destroy>) -> Result<Descriptor, MiopenError> {
        let mut handle = ptr::null_mut();
        // SAFETY: a valid pointer for the handle.
        unsafe { call!(create, "function that makes descriptors", &mut handle) }?;
        Ok(Descriptor { handle, destroy: required(destroy, "function that ends descriptors")? })
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by the matching function, and not used afterwards.
        unsafe { (self.destroy)(self.handle) };
    }
}
