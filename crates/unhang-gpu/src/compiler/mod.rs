//! Compilers: AMD's hiprtc and NVIDIA's nvrtc at run time, LLVM's clang when a package is built. None needs a GPU.

mod clang;
mod hiprtc;
mod nvrtc;

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use thiserror::Error;

pub use crate::dynamic::LibraryMissing;
pub use clang::Clang;
pub use hiprtc::{Hiprtc, for_amd};
pub use nvrtc::Nvrtc;

use crate::dynamic::{Found, function_table};
use crate::sources::Kernel;

/// Why a kernel was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The compiler's library is missing.
    #[error("no run-time compiler: {0}")]
    Missing(#[from] LibraryMissing),
    /// The library lacks a function.
    #[error("the run-time compiler cannot be used: {0}")]
    Unusable(String),
    /// A call failed.
    #[error("{call} failed with {code} ({meaning}) while compiling {kernel}{}", if log.is_empty() { String::new() } else { format!(":\n{log}") })]
    Failed {
        /// The library's function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// That in words.
        meaning: String,
        /// The kernel.
        kernel: String,
        /// What the compiler said.
        log: String,
    },
}

/// Compiles kernels to code objects.
pub trait Compiler: Send + Sync {
    /// Its name and version, as part of cache keys.
    fn version(&self) -> String;

    /// All options for a kernel and an architecture, the constants included, as part of cache keys.
    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String>;

    /// Compiles with exactly these options.
    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError>;

    /// Why it cannot compile; `None` if it can.
    fn missing(&self) -> Option<CompileError> {
        None
    }
}

/// Stands in for a missing compiler: kernels of the package run without one.
#[derive(Debug, Clone)]
pub struct NoCompiler(pub CompileError);

impl Compiler for NoCompiler {
    fn version(&self) -> String {
        "no compiler".into()
    }

    fn options(&self, kernel: &Kernel, _architecture: &str) -> Vec<String> {
        kernel.definitions()
    }

    fn compile(&self, _kernel: &Kernel, _options: &[String]) -> Result<Vec<u8>, CompileError> {
        Err(self.0.clone())
    }

    fn missing(&self) -> Option<CompileError> {
        Some(self.0.clone())
    }
}

function_table! {
    /// The calls of the vendors' compilers.
    Calls {
        version: "nvrtcVersion" | "hiprtcVersion" as fn(*mut i32, *mut i32);
        create: "nvrtcCreateProgram" | "hiprtcCreateProgram" as fn(*mut *mut c_void, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char);
        compile: "nvrtcCompileProgram" | "hiprtcCompileProgram" as fn(*mut c_void, i32, *const *const c_char);
        log_size: "nvrtcGetProgramLogSize" | "hiprtcGetProgramLogSize" as fn(*mut c_void, *mut usize);
        log: "nvrtcGetProgramLog" | "hiprtcGetProgramLog" as fn(*mut c_void, *mut c_char);
        code_size: "nvrtcGetCUBINSize" | "hiprtcGetCodeSize" as fn(*mut c_void, *mut usize);
        code: "nvrtcGetCUBIN" | "hiprtcGetCode" as fn(*mut c_void, *mut c_char);
        destroy: "nvrtcDestroyProgram" | "hiprtcDestroyProgram" as fn(*mut *mut c_void);
    }
}

impl Calls {
    /// The major and minor version that the compiler reports.
    fn numbers(&self, library: &Found) -> Result<(i32, i32), CompileError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid places for two numbers.
        match unsafe { (self.version.call)(&mut major, &mut minor) } {
            0 => Ok((major, minor)),
            code => {
                let call = self.version.name;
                Err(CompileError::Unusable(format!("{call} failed with {code} in {}", library.path)))
            }
        }
    }
}

fn run(calls: &Calls, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
    let text = |value: &str| CString::new(value).map_err(|_| CompileError::Unusable("a NUL in an option".into()));
    let failed = |call: &'static str, code: i32, log: String| {
        // Both vendors number their errors alike.
        let meaning = match code {
            1 => "out of memory",
            2 => "the program could not be created",
            3 => "invalid input",
            4 => "invalid program",
            5 => "invalid option",
            6 => "the source does not compile",
            11 => "internal error",
            _ => "unknown error",
        };
        Err(CompileError::Failed { call, code, meaning: meaning.into(), kernel: kernel.to_string(), log })
    };
    let source = text(&kernel.source.text())?;
    let name = text(&format!("{}.cu", kernel.source.name()))?;
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

    let mut program = ptr::null_mut();
    // SAFETY: the texts live through the call, and there are no headers.
    let code =
        unsafe { (calls.create.call)(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
    if code != 0 {
        return failed(calls.create.name, code, String::new());
    }
    let program = Program { handle: program, destroy: calls.destroy.call };
    // SAFETY: the program is valid until `program` is dropped, and as many options are given as are counted.
    let code = unsafe { (calls.compile.call)(program.handle, pointers.len() as i32, pointers.as_ptr()) };
    if code != 0 {
        let mut size = 0;
        let mut log = Vec::new();
        // SAFETY: a valid program, a place for the size, then as many bytes as were asked for.
        unsafe {
            if (calls.log_size.call)(program.handle, &mut size) == 0 {
                log = vec![0u8; size + 1];
                (calls.log.call)(program.handle, log.as_mut_ptr().cast());
            }
        }
        log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(log.len()));
        return failed(calls.compile.name, code, String::from_utf8_lossy(&log).into_owned());
    }
    let mut size = 0;
    // SAFETY: a valid program and a place for the size.
    let code = unsafe { (calls.code_size.call)(program.handle, &mut size) };
    if code != 0 {
        return failed(calls.code_size.name, code, String::new());
    }
    let mut object = vec![0u8; size];
    // SAFETY: as many bytes as the compiler has just asked for.
    let code = unsafe { (calls.code.call)(program.handle, object.as_mut_ptr().cast()) };
    if code != 0 {
        return failed(calls.code.name, code, String::new());
    }
    Ok(object)
}

/// A program of a compiler, destroyed when done.
struct Program {
    handle: *mut c_void,
    destroy: unsafe extern "C" fn(*mut *mut c_void) -> i32,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by the same library and not used after.
        unsafe { (self.destroy)(&mut self.handle) };
    }
}
