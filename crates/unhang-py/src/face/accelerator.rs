//! What the accelerator's part of torch has: streams, and shortcuts to its allocator that go past the dispatcher.

use std::ffi::c_void;

use super::tensors::Tensor;
use super::torch::{Code, Numbers, Raw, loaded};

/// `std::optional<c10::Device>`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptionalDevice {
    pub kind: i8,
    pub index: i8,
    pub is_there: bool,
}

pub type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> Code;
pub type EmptyThere = unsafe extern "C-unwind" fn(*mut Raw, Numbers, Numbers, i8, OptionalDevice) -> *mut Raw;
pub type Take = unsafe extern "C" fn(u64, *mut *mut c_void) -> Code;
pub type Give = unsafe extern "C" fn(*mut c_void) -> Code;
pub type CurrentDevice = unsafe extern "C-unwind" fn() -> i8;

/// What the accelerator's part of torch has, where there is one. Without the shortcuts of its allocator, which go past the
/// dispatcher, memory comes from torch's general entry.
#[derive(Default)]
pub struct Accelerator {
    pub stream: Option<CurrentStream>,
    pub empty: Option<EmptyThere>,
    pub scratch: Option<(Take, Give, CurrentDevice)>,
}

impl Accelerator {
    /// Finds it.
    pub fn find() -> Accelerator {
        let Some(library) = ["libtorch_cuda.so", "libtorch_hip.so"].iter().find_map(|name| loaded(name)) else {
            return Accelerator::default();
        };
        macro_rules! function {
            ($library:expr, $type:ty, $name:literal) => {
                // SAFETY: as with `Functions`: the name is torch's, and with it the signature.
                unsafe { $library.get::<$type>($name.as_bytes()) }.ok().map(|symbol| *symbol)
            };
        }
        let device = ["libc10_cuda.so", "libc10_hip.so"].iter().find_map(|name| loaded(name)).and_then(|library| {
            function!(library, CurrentDevice, "_ZN3c104cuda14current_deviceEv")
                .or_else(|| function!(library, CurrentDevice, "_ZN3c103hip14current_deviceEv"))
        });
        let take = function!(library, Take, "aoti_torch_cuda_caching_allocator_raw_alloc");
        let give = function!(library, Give, "aoti_torch_cuda_caching_allocator_raw_delete");
        Accelerator {
            stream: function!(library, CurrentStream, "aoti_torch_get_current_cuda_stream"),
            empty: function!(
                library,
                EmptyThere,
                "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_NS1_10ScalarTypeESt8optionalINS1_6DeviceEE"
            ),
            scratch: take.zip(give).zip(device).map(|((take, give), device)| (take, give, device)),
        }
    }
}

/// Memory of the accelerator for work that is queued before it is dropped: torch gives it to later work of the same stream
/// only.
pub enum Scratch<'a> {
    Tensor(Tensor<'a>),
    Bytes(*mut c_void, Give),
}

impl Scratch<'_> {
    /// Where it lies.
    pub fn address(&self) -> Option<u64> {
        match self {
            Scratch::Tensor(tensor) => tensor.address_to_write(),
            Scratch::Bytes(address, _) => Some(*address as u64),
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Scratch::Bytes(address, give) = self {
            // SAFETY: what was taken, once.
            unsafe { give(*address) };
        }
    }
}
