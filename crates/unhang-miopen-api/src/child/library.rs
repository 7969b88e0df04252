//! The library, its functions and a handle. The safety of every call is argued here and in `convolution.rs`.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use crate::{Opaque, SUCCESS, Status, meaning};
use libloading::os::unix::Library;
use thiserror::Error;

/// Where to look for MIOpen unless a file is named: by the loader's own rules, then where AMD's packages put it.
const NAMES: [&str; 3] = ["libMIOpen.so.1", "libMIOpen.so", "/opt/rocm/lib/libMIOpen.so.1"];

/// An error of MIOpen or of loading it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MiopenError {
    /// The library is missing.
    #[error("MIOpen could not be loaded: {}", tried.join("; "))]
    Missing {
        /// Each name that was tried, with the loader's message.
        tried: Vec<String>,
    },
    /// The library exists but lacks something.
    #[error("this MIOpen cannot be used: {0}")]
    Unusable(String),
    /// A call failed.
    #[error("{call} failed with {code} ({meaning})")]
    Call {
        /// The function.
        call: &'static str,
        /// The returned code.
        code: i32,
        /// The code in words.
        meaning: &'static str,
    },
    /// MIOpen has no algorithm for the convolution.
    #[error("MIOpen found no algorithm")]
    NoAlgorithm,
}

/// The functions that we call. The HIP ones are from the runtime that MIOpen is linked to.
#[derive(Debug)]
pub(crate) struct Functions {
    pub(crate) miopen: crate::Functions,
    device_count: unsafe extern "C" fn(*mut i32) -> i32,
    device_name: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
    runtime_version: unsafe extern "C" fn(*mut i32) -> i32,
    pub(crate) allocate: unsafe extern "C" fn(*mut Opaque, usize) -> i32,
    pub(crate) free: unsafe extern "C" fn(Opaque) -> i32,
    pub(crate) copy: unsafe extern "C" fn(Opaque, *const c_void, usize, i32) -> i32,
    pub(crate) create_event: unsafe extern "C" fn(*mut Opaque) -> i32,
    pub(crate) record_event: unsafe extern "C" fn(Opaque, Opaque) -> i32,
    pub(crate) query_event: unsafe extern "C" fn(Opaque) -> i32,
    pub(crate) elapsed: unsafe extern "C" fn(*mut f32, Opaque, Opaque) -> i32,
    pub(crate) destroy_event: unsafe extern "C" fn(Opaque) -> i32,
}

/// A function of a library, or of one that it is linked to.
fn function<T: Copy>(library: &Library, name: &str) -> Result<T, MiopenError> {
    // SAFETY: each caller's type is that of the function in the documented C interface, and the library is never unloaded.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => Err(MiopenError::Unusable(format!("there is no {name}: {error}"))),
    }
}

impl Functions {
    fn load(library: &Library) -> Result<Functions, MiopenError> {
        let look_up = |name: &CStr| {
            // SAFETY: this only looks an address up. It is used as the interface says.
            unsafe { library.get::<*mut c_void>(name.to_bytes()) }.map_or(ptr::null_mut(), |it| *it)
        };
        // SAFETY: this is MIOpen by its name, and it is never unloaded.
        let miopen = unsafe { crate::Functions::load(&look_up) };
        // This detects at once a library that is not MIOpen. Each later function is required where it is called.
        required(miopen.version, "miopenGetVersion")?;
        Ok(Functions {
            miopen,
            device_count: function(library, "hipGetDeviceCount")?,
            device_name: function(library, "hipDeviceGetName")?,
            runtime_version: function(library, "hipRuntimeGetVersion")?,
            allocate: function(library, "hipMalloc")?,
            free: function(library, "hipFree")?,
            copy: function(library, "hipMemcpy")?,
            create_event: function(library, "hipEventCreate")?,
            record_event: function(library, "hipEventRecord")?,
            query_event: function(library, "hipEventQuery")?,
            elapsed: function(library, "hipEventElapsedTime")?,
            destroy_event: function(library, "hipEventDestroy")?,
        })
    }
}

/// What is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// MIOpen's version: `3.4.0`.
    pub version: String,
    /// The runtime's version, as the runtime reports it.
    pub runtime: String,
    /// The names of the devices that the runtime sees.
    pub devices: Vec<String>,
}

impl Description {
    /// A text for verdicts and fingerprints.
    pub fn software(&self) -> String {
        format!("MIOpen {} on HIP {}", self.version, self.runtime)
    }
}

/// MIOpen, loaded. It is never unloaded, because its runtime leaves threads behind.
#[derive(Debug)]
pub struct Miopen {
    pub(crate) functions: Functions,
    /// Created with the first convolution.
    handle: Opaque,
    _library: ManuallyDrop<Library>,
}

impl Miopen {
    /// Loads that file, or else the first one found.
    pub fn load(file: Option<&str>) -> Result<Miopen, MiopenError> {
        let mut tried = Vec::new();
        for name in file.map_or_else(|| NAMES.to_vec(), |file| vec![file]) {
            // SAFETY: the initialisers are the vendor's own.
            match unsafe { Library::open(Some(name), libloading::os::unix::RTLD_NOW) } {
                Ok(library) => {
                    let functions = Functions::load(&library)?;
                    return Ok(Miopen { functions, handle: ptr::null_mut(), _library: ManuallyDrop::new(library) });
                }
                Err(error) => tried.push(format!("{name} ({error})")),
            }
        }
        Err(MiopenError::Missing { tried })
    }

    /// Describes what is installed. Starts the runtime, so this may never return.
    pub fn describe(&self) -> Result<Description, MiopenError> {
        let functions = &self.functions;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        let (mut count, mut runtime) = (0, 0);
        // SAFETY: each call gets valid pointers for its results.
        unsafe {
            call!(functions.miopen.version, "miopenGetVersion", &mut major, &mut minor, &mut patch)?;
            check_hip((functions.runtime_version)(&mut runtime), "hipRuntimeGetVersion")?;
            match (functions.device_count)(&mut count) {
                // "No device" is a valid answer.
                100 => count = 0,
                code => check_hip(code, "hipGetDeviceCount")?,
            }
        }
        let name = |device: i32| {
            let mut name = [0u8; 256];
            // SAFETY: a valid buffer for the text, and its length.
            check_hip(unsafe { (functions.device_name)(name.as_mut_ptr().cast(), 255, device) }, "hipDeviceGetName")?;
            let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy).unwrap_or_default();
            Ok(name.into_owned())
        };
        Ok(Description {
            version: format!("{major}.{minor}.{patch}"),
            runtime: runtime.to_string(),
            devices: (0..count).map(name).collect::<Result<_, MiopenError>>()?,
        })
    }

    /// The library's handle on the default stream of the first device.
    pub(crate) fn handle(&mut self) -> Result<Opaque, MiopenError> {
        if self.handle.is_null() {
            // SAFETY: a valid pointer for the handle.
            unsafe { call!(self.functions.miopen.create, "miopenCreate", &mut self.handle) }?;
        }
        Ok(self.handle)
    }
}

/// A function of MIOpen that nothing works without.
pub(crate) fn required<T>(function: Option<T>, name: &'static str) -> Result<T, MiopenError> {
    function.ok_or_else(|| MiopenError::Unusable(format!("it has no {name}")))
}

pub(crate) fn check_miopen(code: Status, call: &'static str) -> Result<(), MiopenError> {
    if code == SUCCESS { Ok(()) } else { Err(MiopenError::Call { call, code, meaning: meaning(code) }) }
}

/// Calls a function of MIOpen by its name.
macro_rules! call {
    ($function:expr, $name:literal, $($argument:expr),*) => {
        $crate::child::library::check_miopen($crate::child::library::required($function, $name)?($($argument),*), $name)
    };
}
pub(crate) use call;

pub(crate) fn check_hip(code: i32, call: &'static str) -> Result<(), MiopenError> {
    let meaning = match code {
        0 => return Ok(()),
        2 => "out of memory",
        100 => "no device",
        700 => "illegal address",
        719 => "launch failure",
        _ => "an error of HIP's",
    };
    Err(MiopenError::Call { call, code, meaning })
}
