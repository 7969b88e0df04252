//! hiprtc: in ROCm up to 5.3 inside `libamdhip64.so`, from 5.4 a separate library.

use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Calls, CompileError, Compiler, NoCompiler};
use crate::cache::Key;
use crate::driver::hip_runtime;
use crate::dynamic::{self, Found, Vendor, Wanted};
use crate::sources::Kernel;

/// hiprtc 5.2.3 was seen to crash when several threads compile at the same time. A lock costs compile time, a crash the
/// user's run. To use more cores, compile in several processes, which share the cache.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// AMD's run-time compiler.
#[derive(Debug)]
pub struct Hiprtc {
    calls: Calls,
    version: String,
    _library: Found,
}

impl Hiprtc {
    /// Finds the library: the loaded one, else the one next to the loaded runtime, else the runtime itself, else the
    /// system's.
    pub fn find() -> Result<Hiprtc, CompileError> {
        let mut places: Vec<(&str, Vec<String>)> = Vec::new();
        if let Ok(runtime) = hip_runtime::find(false) {
            places.push(("libhiprtc", dynamic::beside(Path::new(&runtime.path), "libhiprtc")));
            places.push(("libamdhip64", Vec::new()));
        }
        // libhiprtc first: from 5.4 on libamdhip64 may lack the symbols, or forward them.
        places.extend(["libhiprtc", "libamdhip64"].map(|stem| (stem, dynamic::rocm_names(stem))));
        let mut last = None;
        for (stem, names) in places {
            let found = match dynamic::open(&wanted(stem, names)) {
                Ok(found) => found,
                Err(missing) => {
                    last = Some(CompileError::Missing(missing));
                    continue;
                }
            };
            match Calls::load(&found, Vendor::Amd) {
                Ok(calls) => return Hiprtc::new(calls, found),
                Err(message) => last = Some(CompileError::Unusable(message)),
            }
        }
        Err(last.unwrap_or_else(|| CompileError::Unusable("no library was looked for".into())))
    }

    fn new(calls: Calls, library: Found) -> Result<Hiprtc, CompileError> {
        let (major, minor) = calls.numbers(&library)?;
        let file = std::fs::canonicalize(&library.path)
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| library.path.clone());
        let build = build(&calls, &library);
        Ok(Hiprtc { calls, version: format!("hiprtc {major}.{minor} ({file}, build {build})"), _library: library })
    }
}

/// hiprtc for AMD's drivers. If it is missing, or `UNHANG_COMPILE=0` declines it, a compiler that refuses everything,
/// so that only the package's own kernels run.
pub fn for_amd() -> Arc<dyn Compiler> {
    if std::env::var_os("UNHANG_COMPILE").is_some_and(|value| value == "0") {
        return Arc::new(NoCompiler(CompileError::Unusable("UNHANG_COMPILE=0 declines it".into())));
    }
    match Hiprtc::find() {
        Ok(compiler) => Arc::new(compiler),
        Err(error) => Arc::new(NoCompiler(error)),
    }
}

fn wanted(stem: &str, names: Vec<String>) -> Wanted<'_> {
    Wanted { stem, witness: "hiprtcVersion", users: &hip_runtime::USERS, only_one: false, names }
}

/// Identifies the compiler. `hiprtcVersion` is 9.0 in every release and hiprtc is only a front end, so this hashes the
/// builds of all three: hiprtc, the code object manager behind it, and that manager's LLVM.
fn build(calls: &Calls, library: &Found) -> String {
    let mut program = ptr::null_mut();
    // SAFETY: texts that end in NUL, and no headers. The manager is loaded with the first program.
    let code =
        unsafe { (calls.create.call)(&mut program, c"".as_ptr(), c"empty".as_ptr(), 0, ptr::null(), ptr::null()) };
    if code == 0 {
        // SAFETY: made by the same library and not used after.
        unsafe { (calls.destroy.call)(&mut program) };
    }
    let mut files = vec![library.path.clone()];
    for manager in dynamic::loaded("libamd_comgr") {
        files.extend(dynamic::home_through(&manager, "LLVMContextCreate"));
        files.push(manager.display().to_string());
    }
    let builds: Vec<String> = files.iter().filter_map(|file| dynamic::build_of(file)).collect();
    let hash = Key::of(builds.iter().map(String::as_str)).to_string();
    hash[..12].to_owned()
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
            // The default differs between ROCm versions, and WGP mode has an LDS bug on RDNA1.
            "-mcumode".into(),
        ];
        options.extend(kernel.definitions());
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        super::run(&self.calls, kernel, options)
    }
}
