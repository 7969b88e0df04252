//! The library, its functions and a handle of it. All that is unsafe about a call is argued here and in `convolution.rs`.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use libloading::os::unix::Library;
use thiserror::Error;

/// Where MIOpen is looked for where nobody says: by the loader's own rules, then where AMD's packages put it.
const NAMES: [&str; 3] = ["libMIOpen.so.1", "libMIOpen.so", "/opt/rocm/lib/libMIOpen.so.1"];

/// What can go wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MiopenError {
    /// The library is not there.
    #[error("MIOpen could not be loaded: {}", tried.join("; "))]
    Missing {
        /// Each name that was tried, with what the loader said.
        tried: Vec<String>,
    },
    /// The library is there and lacks something.
    #[error("this MIOpen cannot be used: {0}")]
    Unusable(String),
    /// A call failed.
    #[error("{call} failed with {code} ({meaning})")]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// That in words.
        meaning: &'static str,
    },
    /// MIOpen has no algorithm for the convolution.
    #[error("MIOpen found no algorithm")]
    NoAlgorithm,
}

/// A handle, a descriptor, or an address on the device.
pub(crate) type Handle = *mut c_void;

/// One result of a search, as the interface lays it out.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Performance {
    pub(crate) algorithm: i32,
    pub(crate) milliseconds: f32,
    pub(crate) workspace: usize,
}

/// `miopen…GetWorkSpaceSize`: handle, two operands' descriptors, convolution, result's descriptor, bytes.
pub(crate) type WorkspaceSize = unsafe extern "C" fn(Handle, Handle, Handle, Handle, Handle, *mut usize) -> i32;
/// `miopenFind…Algorithm`, which is the same for all three directions.
pub(crate) type Find = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    i32,
    *mut i32,
    *mut Performance,
    Handle,
    usize,
    bool,
) -> i32;
/// `miopenConvolution…`, which is the same for all three directions.
pub(crate) type Execute = unsafe extern "C" fn(
    Handle,
    *const f32,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    i32,
    *const f32,
    Handle,
    Handle,
    Handle,
    usize,
) -> i32;

/// The three calls of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Direction {
    pub(crate) workspace_size: WorkspaceSize,
    pub(crate) find: Find,
    pub(crate) execute: Execute,
}

/// The functions that are called; the HIP ones from the runtime that MIOpen is linked to.
#[derive(Debug)]
pub(crate) struct Functions {
    version: unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> i32,
    create: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) create_tensor: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) set_tensor: unsafe extern "C" fn(Handle, i32, i32, *const i32, *const i32) -> i32,
    pub(crate) destroy_tensor: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) create_convolution: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) set_convolution: unsafe extern "C" fn(Handle, i32, i32, i32, i32, i32, i32, i32) -> i32,
    pub(crate) set_groups: unsafe extern "C" fn(Handle, i32) -> i32,
    pub(crate) destroy_convolution: unsafe extern "C" fn(Handle) -> i32,
    /// Forward, backward-data, backward-weights.
    pub(crate) directions: [Direction; 3],
    device_count: unsafe extern "C" fn(*mut i32) -> i32,
    device_name: unsafe extern "C" fn(*mut c_char, i32, i32) -> i32,
    runtime_version: unsafe extern "C" fn(*mut i32) -> i32,
    pub(crate) allocate: unsafe extern "C" fn(*mut Handle, usize) -> i32,
    pub(crate) free: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) copy: unsafe extern "C" fn(Handle, *const c_void, usize, i32) -> i32,
    pub(crate) create_event: unsafe extern "C" fn(*mut Handle) -> i32,
    pub(crate) record_event: unsafe extern "C" fn(Handle, Handle) -> i32,
    pub(crate) query_event: unsafe extern "C" fn(Handle) -> i32,
    pub(crate) elapsed: unsafe extern "C" fn(*mut f32, Handle, Handle) -> i32,
    pub(crate) destroy_event: unsafe extern "C" fn(Handle) -> i32,
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
        let direction = |name: &str| {
            Ok(Direction {
                workspace_size: function(library, &format!("miopenConvolution{name}GetWorkSpaceSize"))?,
                find: function(library, &format!("miopenFindConvolution{name}Algorithm"))?,
                execute: function(library, &format!("miopenConvolution{name}"))?,
            })
        };
        Ok(Functions {
            version: function(library, "miopenGetVersion")?,
            create: function(library, "miopenCreate")?,
            create_tensor: function(library, "miopenCreateTensorDescriptor")?,
            set_tensor: function(library, "miopenSetTensorDescriptor")?,
            destroy_tensor: function(library, "miopenDestroyTensorDescriptor")?,
            create_convolution: function(library, "miopenCreateConvolutionDescriptor")?,
            set_convolution: function(library, "miopenInitConvolutionDescriptor")?,
            set_groups: function(library, "miopenSetConvolutionGroupCount")?,
            destroy_convolution: function(library, "miopenDestroyConvolutionDescriptor")?,
            directions: [direction("Forward")?, direction("BackwardData")?, direction("BackwardWeights")?],
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

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// MIOpen's version: `3.4.0`.
    pub version: String,
    /// The runtime's version, as it says it.
    pub runtime: String,
    /// The names of the devices that the runtime sees.
    pub devices: Vec<String>,
}

impl Description {
    /// In words, for verdicts and fingerprints.
    pub fn software(&self) -> String {
        format!("MIOpen {} on HIP {}", self.version, self.runtime)
    }
}

/// MIOpen, loaded; never unloaded, because its runtime leaves threads behind.
#[derive(Debug)]
pub struct Miopen {
    pub(crate) functions: Functions,
    /// Made with the first convolution.
    handle: Handle,
    _library: ManuallyDrop<Library>,
}

impl Miopen {
    /// Loads that file, else the first that is found.
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

    /// What is there. Starts the runtime, so this may not come back.
    pub fn describe(&self) -> Result<Description, MiopenError> {
        let functions = &self.functions;
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        let (mut count, mut runtime) = (0, 0);
        // SAFETY: each call gets valid places for what it returns.
        unsafe {
            check_miopen((functions.version)(&mut major, &mut minor, &mut patch), "miopenGetVersion")?;
            check_hip((functions.runtime_version)(&mut runtime), "hipRuntimeGetVersion")?;
            match (functions.device_count)(&mut count) {
                // No device is an answer.
                100 => count = 0,
                code => check_hip(code, "hipGetDeviceCount")?,
            }
        }
        let name = |device: i32| {
            let mut name = [0u8; 256];
            // SAFETY: a valid place for the text and its length.
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
    pub(crate) fn handle(&mut self) -> Result<Handle, MiopenError> {
        if self.handle.is_null() {
            // SAFETY: a valid place for the handle.
            check_miopen(unsafe { (self.functions.create)(&mut self.handle) }, "miopenCreate")?;
        }
        Ok(self.handle)
    }
}

pub(crate) fn check_miopen(code: i32, call: &'static str) -> Result<(), MiopenError> {
    let meaning = match code {
        0 => return Ok(()),
        1 => "not initialized",
        2 => "invalid value",
        3 => "bad parameter",
        4 => "allocation failed",
        5 => "internal error",
        6 => "not implemented",
        7 => "unknown error",
        8 => "unsupported operation",
        _ => "an error of MIOpen's",
    };
    Err(MiopenError::Call { call, code, meaning })
}

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
