//! A driver for tests: kernels compiled by a host compiler, with threads as coroutines.

pub(crate) mod planes;

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use unhang_conv::Problem;
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};
use unhang_gpu::choice::Choice;
use unhang_gpu::compiler::{CompileError, Compiler};
use unhang_gpu::driver::{Description, Driver, DriverError, Function};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::plan::Form;
use unhang_gpu::sources::Kernel;
use unhang_gpu::{DevicePointers, GpuEngine, GpuSettings};

/// Host compilers that know `_Float16`, in the order in which they are tried.
const COMPILERS: [&str; 5] = ["clang++-15", "clang++-19", "clang++-16", "clang++-14", "clang++"];

pub(crate) struct HostCompiler {
    program: &'static str,
    folder: tempfile::TempDir,
}

impl HostCompiler {
    /// `None` where no host compiler is installed.
    pub(crate) fn find() -> Option<HostCompiler> {
        let works = |program: &&str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
        let program = COMPILERS.into_iter().find(works)?;
        Some(HostCompiler { program, folder: tempfile::tempdir().ok()? })
    }
}

impl Compiler for HostCompiler {
    fn version(&self) -> String {
        self.program.into()
    }

    fn options(&self, kernel: &Kernel, _architecture: &str) -> Vec<String> {
        let mut options: Vec<String> =
            ["-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-mf16c"].map(String::from).to_vec();
        options.push(format!("-DENTRY={}", kernel.entry));
        options.extend(kernel.definitions());
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let source = format!("{}\n{}\n{}", include_str!("prelude.h"), kernel.source.text(), include_str!("launch.h"));
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (input, output) =
            (self.folder.path().join(format!("{number}.cc")), self.folder.path().join(format!("{number}.so")));
        std::fs::write(&input, source).unwrap();
        let ran = Command::new(self.program).args(options).arg("-o").arg(&output).arg(&input).output().unwrap();
        if !ran.status.success() {
            return Err(CompileError::Failed {
                call: "host compiler",
                code: 1,
                meaning: "does not compile".into(),
                kernel: kernel.to_string(),
                log: String::from_utf8_lossy(&ran.stderr).into_owned(),
            });
        }
        Ok(output.display().to_string().into_bytes())
    }
}

static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
/// LDS is static memory of each library, and the coroutines' state too: one launch at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A stream that records a graph, as far as this driver is concerned.
pub(crate) const CAPTURING_STREAM: u64 = 7;

pub(crate) struct HostDriver {
    compiler: Arc<HostCompiler>,
    description: Description,
}

impl HostDriver {
    pub(crate) fn new(compiler: HostCompiler) -> HostDriver {
        let description = Description {
            name: "host".into(),
            reported_architecture: "host".into(),
            true_architecture: "host".into(),
            driver: "host".into(),
            model: DeviceModel::rx_5600_xt(),
        };
        HostDriver { compiler: Arc::new(compiler), description }
    }
}

impl Driver for HostDriver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.compiler.clone()
    }

    fn load(&self, object: &[u8], _entry: &str) -> Result<Function, DriverError> {
        let path = PathBuf::from(String::from_utf8(object.to_vec()).unwrap());
        // SAFETY: a library that we have just built; it is never unloaded.
        let launch = unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(path).unwrap()));
            *library.get::<*const c_void>(b"unhang_host_launch").unwrap()
        };
        Ok(Function(launch as u64))
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        arguments: &mut [*mut c_void],
        _stream: u64,
    ) -> Result<(), DriverError> {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        type Launch = unsafe extern "C" fn(*const u32, u32, *mut *mut c_void);
        // SAFETY: what `load` returned is the function of launch.h; the caller vouches for the arguments.
        unsafe {
            let launch: Launch = std::mem::transmute(function.0 as *const c_void);
            launch(grid.as_ptr(), block, arguments.as_mut_ptr());
        }
        Ok(())
    }

    fn is_capturing(&self, stream: u64) -> Result<bool, DriverError> {
        Ok(stream == CAPTURING_STREAM)
    }
}

/// The GPU engine on host memory, with one choice, so that the suite can check it like any other engine.
pub(crate) struct HostEngine {
    pub gpu: GpuEngine,
    pub choice: Mutex<Option<Choice>>,
    pub form: Mutex<Form>,
}

impl HostEngine {
    pub(crate) fn find() -> Option<HostEngine> {
        let settings =
            GpuSettings { workspace_limit: Some(1 << 28), cache_folder: None, cache_limit: 0, shipped_folder: None };
        let gpu = GpuEngine::new(Box::new(HostDriver::new(HostCompiler::find()?)), settings);
        Some(HostEngine { gpu, choice: Mutex::new(None), form: Mutex::default() })
    }
}

/// A copy at an aligned address, with room behind it that nobody may touch.
struct Aligned {
    words: Vec<u128>,
    bytes: usize,
}

const GUARD: u128 = 0x7ff7_dead_7ff7_dead_7ff7_dead_7ff7_dead;

impl Aligned {
    fn new(bytes: &[u8]) -> Aligned {
        let mut words = vec![GUARD; bytes.len().div_ceil(16) + 32];
        // SAFETY: the vector has at least that many bytes, and numbers have no invalid patterns.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().add(16).cast::<u8>(), bytes.len()) };
        Aligned { words, bytes: bytes.len() }
    }

    fn address(&self) -> u64 {
        // 16 words of 16 bytes before: a multiple of 256 is found within.
        self.words.as_ptr() as u64 + 256
    }

    fn untouched_around(&self) -> bool {
        let behind = 16 + self.bytes.div_ceil(16);
        self.words[..16].iter().chain(&self.words[behind..]).all(|&word| word == GUARD)
    }
}

/// Host memory for the kernels on planes; never given back, since a test is short.
pub(crate) struct HostMemory;

impl planes::Memory for HostMemory {
    fn put(&self, bytes: &[u8]) -> u64 {
        Box::leak(Box::new(Aligned::new(bytes))).address()
    }

    fn get(&self, address: u64, length: usize) -> Vec<u8> {
        // SAFETY: an address from above, of as many bytes.
        unsafe { std::slice::from_raw_parts(address as *const u8, length).to_vec() }
    }
}

fn bytes_of(elements: &Elements<'_>) -> Vec<u8> {
    match elements {
        Elements::F32(s) => s.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        Elements::F16(s) => s.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        Elements::Bf16(s) => s.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        Elements::F64(s) => s.iter().flat_map(|v| v.to_ne_bytes()).collect(),
    }
}

impl Engine for HostEngine {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.gpu.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        let failed = |message: String| EngineError::Failed { engine: EngineName::Jit, message };
        let prepared = match *self.choice.lock().unwrap() {
            Some(choice) => self.gpu.prepare_form(problem, choice, *self.form.lock().unwrap()),
            None => self.gpu.prepare(problem),
        };
        let prepared = prepared.map_err(|error| failed(error.to_string()))?;
        let first = Aligned::new(&bytes_of(&operands.first));
        let second = Aligned::new(&bytes_of(&operands.second));
        let bias = operands.bias.map(|bias| Aligned::new(&bytes_of(&bias)));
        let mut result = operands.result;
        let output = Aligned::new(&bytes_of(&result.as_elements()));
        // A workspace full of numbers that must not get into the result.
        let workspace_words = prepared.workspace_bytes() as usize / 16 + 64;
        let workspace = vec![GUARD; workspace_words];
        let workspace_address = (workspace.as_ptr() as u64 + 256).next_multiple_of(256);
        let pointers = DevicePointers {
            first: first.address(),
            second: second.address(),
            bias: bias.as_ref().map_or(0, Aligned::address),
            result: output.address(),
            workspace: workspace_address,
        };
        // SAFETY: host memory of the sizes that the problem says, which outlives the synchronous call.
        unsafe { self.gpu.launch(&prepared, pointers, 0) }.map_err(|error| failed(error.to_string()))?;
        let used = (workspace_address + prepared.workspace_bytes() - workspace.as_ptr() as u64).div_ceil(16) as usize;
        if !output.untouched_around() || workspace[used..].iter().any(|&word| word != GUARD) {
            return Err(failed(format!("{} wrote outside of its memory", prepared.choice())));
        }
        // SAFETY: `output` holds exactly as many bytes behind its address.
        let bytes = unsafe { std::slice::from_raw_parts(output.address() as *const u8, output.bytes) };
        match &mut result {
            ElementsMut::F32(s) => copy(bytes, s, f32::from_ne_bytes),
            ElementsMut::F16(s) => copy(bytes, s, unhang_engine::f16::from_ne_bytes),
            ElementsMut::Bf16(s) => copy(bytes, s, unhang_engine::bf16::from_ne_bytes),
            ElementsMut::F64(s) => copy(bytes, s, f64::from_ne_bytes),
        }
        Ok(())
    }
}

fn copy<T, const N: usize>(bytes: &[u8], to: &mut [T], from: fn([u8; N]) -> T) {
    for (value, chunk) in to.iter_mut().zip(bytes.chunks_exact(N)) {
        *value = from(chunk.try_into().unwrap());
    }
}
