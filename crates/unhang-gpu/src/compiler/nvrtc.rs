//! nvrtc: from the pip packages that torch brings, else the system's.

use super::{Calls, CompileError, Compiler};
use crate::dynamic::{self, Found, Vendor, Wanted};
use crate::sources::Kernel;

/// NVIDIA's run-time compiler.
#[derive(Debug)]
pub struct Nvrtc {
    calls: Calls,
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
        let calls = Calls::load(&library, Vendor::Nvidia).map_err(CompileError::Unusable)?;
        let (major, minor) = calls.numbers(&library)?;
        Ok(Nvrtc { calls, version: format!("nvrtc {major}.{minor}"), _library: library })
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
        super::run(&self.calls, kernel, options)
    }
}
