//! The accelerator's part of torch: streams, and shortcuts to its allocator that bypass the dispatcher.

use std::ffi::c_void;

use libloading::os::unix::Library;

use super::c_interface::{Code, Numbers, Raw, loaded};

/// `std::optional<c10::Device>`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OptionalDevice {
    pub kind: i8,
    pub index: i8,
    pub is_there: bool,
}

pub(super) type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> Code;
pub(super) type EmptyThere = unsafe extern "C-unwind" fn(*mut Raw, Numbers, Numbers, i8, OptionalDevice) -> *mut Raw;
pub(super) type Take = unsafe extern "C" fn(u64, *mut *mut c_void) -> Code;
pub(super) type Give = unsafe extern "C" fn(*mut c_void) -> Code;
pub(super) type CurrentDevice = unsafe extern "C" fn(*mut i32) -> Code;
pub(super) type CreateGuard = unsafe extern "C" fn(i32, *mut *mut c_void) -> Code;
pub(super) type DeleteGuard = unsafe extern "C" fn(*mut c_void) -> Code;

/// The functions of the accelerator's part of torch, if there is one. Without the shortcuts to its allocator, memory
/// comes from torch's general entry.
#[derive(Default)]
pub(super) struct Accelerator {
    pub stream: Option<CurrentStream>,
    pub empty: Option<EmptyThere>,
    pub scratch: Option<(Take, Give)>,
    current: Option<CurrentDevice>,
    guard: Option<(CreateGuard, DeleteGuard)>,
}

impl Accelerator {
    /// Finds them; `torch` is the library that every torch has.
    pub(super) fn find(torch: &Library) -> Accelerator {
        let Some(library) = ["libtorch_cuda.so", "libtorch_hip.so"].iter().find_map(|name| loaded(name)) else {
            return Accelerator::default();
        };
        macro_rules! function {
            ($library:expr, $type:ty, $name:literal) => {
                // SAFETY: as with `Functions`: the name is torch's, and so is the signature.
                unsafe { $library.get::<$type>($name.as_bytes()) }.ok().map(|symbol| *symbol)
            };
        }
        let take = function!(library, Take, "aoti_torch_cuda_caching_allocator_raw_alloc");
        let give = function!(library, Give, "aoti_torch_cuda_caching_allocator_raw_delete");
        let create = function!(torch, CreateGuard, "aoti_torch_create_device_guard");
        let delete = function!(torch, DeleteGuard, "aoti_torch_delete_device_guard");
        Accelerator {
            stream: function!(library, CurrentStream, "aoti_torch_get_current_cuda_stream"),
            empty: function!(
                library,
                EmptyThere,
                "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_NS1_10ScalarTypeESt8optionalINS1_6DeviceEE"
            ),
            scratch: take.zip(give),
            current: function!(torch, CurrentDevice, "aoti_torch_get_current_device_index"),
            guard: create.zip(delete),
        }
    }

    /// Whether a device is this thread's current one. Uses the C interface, which returns a code where C++ would throw,
    /// because nothing may throw here.
    pub(super) fn is_current(&self, device_index: i32) -> bool {
        let mut current = -1;
        // SAFETY: a valid pointer for the number.
        self.current.is_some_and(|ask| unsafe { ask(&mut current) } == 0) && current == device_index
    }

    /// Makes a device this thread's current one until the returned guard is dropped; `None` if it already is.
    pub(super) fn guard(&self, device_index: i32) -> Option<DeviceGuard> {
        let (create, delete) = self.guard?;
        if device_index < 0 || self.is_current(device_index) {
            return None;
        }
        let mut guard = std::ptr::null_mut();
        // SAFETY: a valid pointer for the guard.
        (unsafe { create(device_index, &mut guard) } == 0).then_some(DeviceGuard { guard, delete })
    }
}

/// Another device is this thread's current one as long as this exists.
pub struct DeviceGuard {
    guard: *mut c_void,
    delete: DeleteGuard,
}

impl Drop for DeviceGuard {
    fn drop(&mut self) {
        // SAFETY: torch returned it, and this releases it once.
        unsafe { (self.delete)(self.guard) };
    }
}
