//! The libdrm_amdgpu calls that the runtime makes: a handle, a name, a few figures.
//!
//! Calls for devices that are not ours go to the library behind us, if it is there.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::files::{self, NodeKind};
use crate::process;

/// What a handle of ours points to. The mark tells it from the library's own.
#[repr(C)]
struct Device {
    mark: u64,
    descriptor: c_int,
    card: usize,
}

const MARK: u64 = u64::from_le_bytes(*b"unhangdr");

/// `struct amdgpu_gpu_info`.
#[repr(C)]
struct Information {
    asic_id: u32,
    chip_revision: u32,
    external_revision: u32,
    family: u32,
    flags: u64,
    engine_clock: u64,
    memory_clock: u64,
    shader_engines: u32,
    arrays_of_engine: u32,
    unused: [u32; 6],
    counter_frequency: u32,
    more: [u32; 4 + 2 + 32 + 16 + 4 + 4],
    compute_units: u32,
    always_on: u32,
    bitmap: [u32; 16],
    memory_type: u32,
    memory_width: u32,
    constant_engine: u32,
    harvest: u32,
    revision: u32,
}

fn behind(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: looks up a name in the libraries behind this one.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

unsafe fn ours(handle: *mut c_void) -> Option<&'static Device> {
    if handle.is_null() || !(handle as usize).is_multiple_of(8) {
        return None;
    }
    // SAFETY: a handle points to a structure of at least eight bytes, ours or the library's.
    unsafe {
        let device = handle.cast::<Device>();
        ((*device).mark == MARK).then(|| &*device)
    }
}

/// Passes a call on to the library behind us.
macro_rules! pass {
    ($name:expr, fn($($kind:ty),*) -> $result:ty, $($argument:expr),*; else $missing:expr) => {{
        let found = behind($name);
        if found.is_null() {
            $missing
        } else {
            // SAFETY: libdrm's function of this name has this signature; the arguments are the caller's.
            unsafe {
                let function: unsafe extern "C" fn($($kind),*) -> $result = std::mem::transmute(found);
                function($($argument),*)
            }
        }
    }};
}

/// As in libdrm.
///
/// # Safety
///
/// As in libdrm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn amdgpu_device_initialize(
    descriptor: c_int,
    major: *mut u32,
    minor: *mut u32,
    handle: *mut *mut c_void,
) -> c_int {
    let minor_number = match files::get(descriptor).map(|it| it.kind) {
        Some(NodeKind::Render(number)) => u32::from(number),
        _ => {
            return pass!(c"amdgpu_device_initialize", fn(c_int, *mut u32, *mut u32, *mut *mut c_void) -> c_int,
                descriptor, major, minor, handle; else -libc::ENODEV);
        }
    };
    let Some(process) = process::current() else { return -libc::ENODEV };
    let Some(card) = process.cards.iter().position(|card| card.render_minor == minor_number) else {
        return -libc::ENODEV;
    };
    // SAFETY: a descriptor of ours is duplicated; the places are the caller's.
    unsafe {
        let own = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0);
        if own < 0 {
            return -libc::EMFILE;
        }
        (*major, *minor) = (3, 49);
        *handle = Box::into_raw(Box::new(Device { mark: MARK, descriptor: own, card })).cast();
    }
    0
}

/// As in libdrm.
///
/// # Safety
///
/// As in libdrm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn amdgpu_device_deinitialize(handle: *mut c_void) -> c_int {
    // SAFETY: the caller's handle.
    match unsafe { ours(handle) } {
        Some(device) => {
            // SAFETY: made by `amdgpu_device_initialize`, and the caller gives it up.
            unsafe {
                libc::close(device.descriptor);
                drop(Box::from_raw(handle.cast::<Device>()));
            }
            0
        }
        None => pass!(c"amdgpu_device_deinitialize", fn(*mut c_void) -> c_int, handle; else -libc::EINVAL),
    }
}

/// As in libdrm.
///
/// # Safety
///
/// As in libdrm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn amdgpu_device_get_fd(handle: *mut c_void) -> c_int {
    // SAFETY: the caller's handle.
    match unsafe { ours(handle) } {
        Some(device) => device.descriptor,
        None => pass!(c"amdgpu_device_get_fd", fn(*mut c_void) -> c_int, handle; else -1),
    }
}

/// As in libdrm.
///
/// # Safety
///
/// As in libdrm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn amdgpu_get_marketing_name(handle: *mut c_void) -> *const c_char {
    // SAFETY: the caller's handle.
    match (unsafe { ours(handle) }, process::current()) {
        (Some(device), Some(process)) => process.cards[device.card].name().as_ptr(),
        _ => pass!(c"amdgpu_get_marketing_name", fn(*mut c_void) -> *const c_char, handle; else null_mut()),
    }
}

/// As in libdrm.
///
/// # Safety
///
/// As in libdrm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn amdgpu_query_gpu_info(handle: *mut c_void, information: *mut c_void) -> c_int {
    // SAFETY: the caller's handle.
    let (Some(device), Some(process)) = (unsafe { ours(handle) }, process::current()) else {
        return pass!(c"amdgpu_query_gpu_info", fn(*mut c_void, *mut c_void) -> c_int, handle, information;
            else -libc::EINVAL);
    };
    let card = &process.cards[device.card];
    // SAFETY: the caller gives a structure of libdrm's layout.
    let info = unsafe {
        std::ptr::write_bytes(information.cast::<Information>(), 0, 1);
        &mut *information.cast::<Information>()
    };
    info.asic_id = u32::from(card.device);
    info.external_revision = 1;
    info.family = card.family();
    info.engine_clock = u64::from(card.clock_mhz) * 1000;
    info.memory_clock = u64::from(card.memory_bus.0) * 1000;
    info.shader_engines = card.arrays.div_ceil(2);
    info.arrays_of_engine = 2;
    // In kHz: the card's clock runs at 100 MHz.
    info.counter_frequency = 100_000;
    info.compute_units = card.compute_units;
    info.memory_width = card.memory_bus.1;
    info.revision = u32::from(card.revision);
    0
}

macro_rules! refused {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        /// As in libdrm; buffers of the emulated card cannot be shared, and the call says so.
        ///
        /// # Safety
        ///
        /// As in libdrm.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(handle: *mut c_void $(, $argument: $kind)*) -> c_int {
            // SAFETY: the caller's handle.
            if unsafe { ours(handle) }.is_some() {
                return -libc::ENOTSUP;
            }
            let name = const {
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                }
            };
            pass!(name, fn(*mut c_void $(, $kind)*) -> c_int, handle $(, $argument)*; else -libc::EINVAL)
        }
    )*};
}

refused! {
    amdgpu_bo_import(kind: c_int, shared: u32, result: *mut c_void);
    amdgpu_bo_alloc(request: *mut c_void, buffer: *mut c_void);
    amdgpu_query_info(id: u32, size: u32, value: *mut c_void);
}
