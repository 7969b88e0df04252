//! hiprtc: in ROCm up to 5.3 inside `libamdhip64.so`, from 5.4 a library of its own.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};

use super::{CompileError, Compiler};
use crate::dynamic::{self, Found, function_table};
use crate::sources::Kernel;

function_table! {
    /// The functions of hiprtc that we call.
    Functions {
        version: "hiprtcVersion" as fn(*mut i32, *mut i32);
        create: "hiprtcCreateProgram" as fn(*mut *mut c_void, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char);
        compile: "hiprtcCompileProgram" as fn(*mut c_void, i32, *const *const c_char);
        log_size: "hiprtcGetProgramLogSize" as fn(*mut c_void, *mut usize);
        log: "hiprtcGetProgramLog" as fn(*mut c_void, *mut c_char);
        code_size: "hiprtcGetCodeSize" as fn(*mut c_void, *mut usize);
        code: "hiprtcGetCode" as fn(*mut c_void, *mut c_char);
        destroy: "hiprtcDestroyProgram" as fn(*mut *mut c_void);
    }
}

/// hiprtc 5.2.3 was seen to crash when several threads compile at the same time. A lock costs compile time, a crash the
/// user's run; who wants more cores compiles in several processes, which share the cache.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// AMD's run-time compiler.
#[derive(Debug)]
pub struct Hiprtc {
    functions: Functions,
    version: String,
    _library: Found,
}

impl Hiprtc {
    /// Takes the library that this process has loaded, else the system's.
    pub fn find() -> Result<Hiprtc, CompileError> {
        // libhiprtc first: from 5.4 on libamdhip64 may lack the symbols, or forward them.
        let mut last = None;
        for (prefix, names) in [
            ("libhiprtc.so", ["libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5"]),
            ("libamdhip64.so", ["libamdhip64.so", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"]),
        ] {
            let found = match dynamic::open(&[prefix], &names.map(String::from)) {
                Ok(found) => found,
                Err(missing) => {
                    last = Some(CompileError::Missing(missing));
                    continue;
                }
            };
            match Functions::load(&found) {
                Ok(functions) => return Hiprtc::new(functions, found),
                Err(message) => last = Some(CompileError::Unusable(message)),
            }
        }
        Err(last.unwrap_or_else(|| CompileError::Unusable("no library was looked for".into())))
    }

    fn new(functions: Functions, library: Found) -> Result<Hiprtc, CompileError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid places for two numbers.
        let code = unsafe { (functions.version)(&mut major, &mut minor) };
        if code != 0 {
            return Err(CompileError::Unusable(format!("hiprtcVersion failed with {code} in {}", library.path)));
        }
        // The version of the interface says little about the compiler; the file behind it does.
        let file = std::fs::canonicalize(&library.path)
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| library.path.clone());
        Ok(Hiprtc { functions, version: format!("hiprtc {major}.{minor} ({file})"), _library: library })
    }
}

impl Compiler for Hiprtc {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        let mut options = vec![
            format!("--offload-arch={architecture}"),
            "-O3".into(),
            "-std=c++17".into(),
            // The default differs between ROCm versions, and WGP mode has an LDS bug of its own on RDNA1.
            "-mcumode".into(),
        ];
        options.extend(kernel.definitions());
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        super::run(
            &super::Calls {
                names: ["hiprtcCreateProgram", "hiprtcCompileProgram", "hiprtcGetCodeSize", "hiprtcGetCode"],
                create: self.functions.create,
                compile: self.functions.compile,
                log_size: self.functions.log_size,
                log: self.functions.log,
                code_size: self.functions.code_size,
                code: self.functions.code,
                destroy: self.functions.destroy,
            },
            kernel,
            options,
        )
    }
}
