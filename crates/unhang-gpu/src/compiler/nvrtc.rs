//! nvrtc: from the pip packages that torch brings, else the system's.

use std::ffi::{c_char, c_void};

use super::{CompileError, Compiler};
use crate::dynamic::{self, Found, Wanted, function_table};
use crate::sources::Kernel;

function_table! {
    /// The functions of nvrtc that we call.
    Functions {
        version: "nvrtcVersion" as fn(*mut i32, *mut i32);
        create: "nvrtcCreateProgram" as fn(*mut *mut c_void, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char);
        compile: "nvrtcCompileProgram" as fn(*mut c_void, i32, *const *const c_char);
        log_size: "nvrtcGetProgramLogSize" as fn(*mut c_void, *mut usize);
        log: "nvrtcGetProgramLog" as fn(*mut c_void, *mut c_char);
        code_size: "nvrtcGetCUBINSize" as fn(*mut c_void, *mut usize);
        code: "nvrtcGetCUBIN" as fn(*mut c_void, *mut c_char);
        destroy: "nvrtcDestroyProgram" as fn(*mut *mut c_void);
    }
}

/// NVIDIA's run-time compiler.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: String,
    _library: Found,
}

impl Nvrtc {
    /// Takes the library that this process has loaded, else `UNHANG_NVRTC`, else the loader's.
    pub fn find() -> Result<Nvrtc, CompileError> {
        let mut names: Vec<String> = std::env::var("UNHANG_NVRTC").into_iter().collect();
        names.extend(["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"].map(String::from));
        let library = dynamic::open(&Wanted {
            stem: "libnvrtc",
            witness: "nvrtcVersion",
            users: &["libtorch_cuda"],
            only_one: false,
            names,
        })?;
        let functions = Functions::load(&library).map_err(CompileError::Unusable)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid places for two numbers.
        let code = unsafe { (functions.version)(&mut major, &mut minor) };
        if code != 0 {
            return Err(CompileError::Unusable(format!("nvrtcVersion failed with {code} in {}", library.path)));
        }
        Ok(Nvrtc { functions, version: format!("nvrtc {major}.{minor}"), _library: library })
    }
}

impl Compiler for Nvrtc {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        // Registers are plenty here: the slice is unrolled whole.
        let mut options = vec![format!("--gpu-architecture={architecture}"), "-std=c++17".into(), "-DUNROLL=16".into()];
        options.extend(kernel.definitions());
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        super::run(
            &super::Calls {
                names: ["nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"],
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
