//! The engine: `supports`, `prepare`, `launch`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use unhang_conv::{DataType, Problem};
use unhang_engine::{EngineName, Unsupported};
use unhang_isa::Chip;

use crate::cache::{Cache, Key};
use crate::choice::{Candidate, Choice, candidates};
use crate::compiler::{CompileError, Compiler};
use crate::driver::{Driver, DriverError, Function};
use crate::object::{self, ObjectError};
use crate::plan::{Plan, PlanError, Pointer};
use crate::sources::Kernel;

/// What an engine may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most workspace of one problem in bytes; `None` for a sixteenth of the device's memory, 1 GiB at most.
    pub workspace_limit: Option<u64>,
    /// The folder of compiled objects; `None` to keep none.
    pub cache_folder: Option<PathBuf>,
    /// The most bytes in that folder.
    pub cache_limit: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { workspace_limit: None, cache_folder: Cache::default_folder(), cache_limit: 512 << 20 }
    }
}

/// Why the GPU engine did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// It does not take the problem.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A choice does not fit the problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A kernel did not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A compiled object is refused.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A pointer is not aligned as the kernels need it.
    #[error(
        "the {operand} pointer {address:#x} is not a multiple of {alignment} bytes, which {choice} needs; copy the tensor, or use `plain`"
    )]
    Misaligned {
        /// Which.
        operand: &'static str,
        /// Where it points.
        address: u64,
        /// What it should be a multiple of.
        alignment: u64,
        /// The choice.
        choice: String,
    },
    /// The stream records a graph and the problem was not prepared before.
    #[error("the stream is recording a graph, in which nothing can be compiled or loaded: run the problem once before")]
    Capturing,
}

/// Device memory for one launch. Null for what is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DevicePointers {
    /// The first operand.
    pub first: u64,
    /// The second operand.
    pub second: u64,
    /// The bias, or 0.
    pub bias: u64,
    /// The result.
    pub result: u64,
    /// At least [`Prepared::workspace_bytes`], aligned to 256 bytes.
    pub workspace: u64,
}

/// A problem whose kernels are compiled and loaded.
#[derive(Debug)]
pub struct Prepared {
    problem: Problem,
    choice: Choice,
    plan: Plan,
    functions: Vec<Function>,
}

impl Prepared {
    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How it is computed.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What is launched.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of workspace that the caller has to give.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes
    }
}

/// What was prepared, by problem and by the choice that was asked for (`None`: the engine's own).
type PreparedProblems = HashMap<(Problem, Option<Choice>), Arc<Prepared>>;

/// Our kernels on one device.
pub struct GpuEngine {
    driver: Box<dyn Driver>,
    compiler: Arc<dyn Compiler>,
    workspace_limit: u64,
    cache: Option<Cache>,
    functions: Mutex<HashMap<Kernel, Function>>,
    prepared: Mutex<PreparedProblems>,
    preferred: Mutex<HashMap<Problem, Choice>>,
}

/// A map behind a poisoned lock is whole: no code of ours leaves one half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GpuEngine {
    /// An engine on a driver.
    pub fn new(driver: Box<dyn Driver>, settings: Settings) -> GpuEngine {
        let memory = driver.description().model.memory;
        let workspace_limit = settings.workspace_limit.unwrap_or((memory / 16).min(1 << 30));
        // Without a cache everything works, only slower at the next start.
        let cache = settings.cache_folder.and_then(|folder| Cache::open(&folder, settings.cache_limit).ok());
        GpuEngine {
            compiler: driver.compiler(),
            driver,
            workspace_limit,
            cache,
            functions: Mutex::default(),
            prepared: Mutex::default(),
            preferred: Mutex::default(),
        }
    }

    /// The driver.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Whether a problem is taken; if not, why. Cheap: nothing is compiled.
    pub fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        Plan::new(problem, &Choice::Plain)
            .map(|_| ())
            .map_err(|error| Unsupported { engine: EngineName::Jit, reason: error.reason })
    }

    /// The ways to compute a problem, fastest by the model first.
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        candidates(problem, &self.driver.description().model, self.workspace_limit)
    }

    /// Takes this choice for a problem from now on: what was measured to be the fastest.
    pub fn prefer(&self, problem: &Problem, choice: Choice) {
        lock(&self.preferred).insert(problem.clone(), choice);
        lock(&self.prepared).remove(&(problem.clone(), None));
    }

    /// The choice that would be taken for a problem: the preferred one, else the model's first.
    pub fn choose(&self, problem: &Problem) -> Choice {
        if let Some(choice) = lock(&self.preferred).get(problem) {
            return *choice;
        }
        self.candidates(problem).first().map_or(Choice::Plain, |candidate| candidate.choice)
    }

    /// Compiles and loads what computes a problem; from memory or the cache where it can.
    pub fn prepare(&self, problem: &Problem) -> Result<Arc<Prepared>, GpuError> {
        self.prepare_as(problem, None)
    }

    /// A problem that was prepared before, without any work: for a stream that records a graph.
    pub fn prepared(&self, problem: &Problem) -> Option<Arc<Prepared>> {
        lock(&self.prepared).get(&(problem.clone(), None)).cloned()
    }

    /// Prepares a problem for a stream. While that records a graph nothing can be compiled or loaded: then only what was
    /// prepared before is there.
    pub fn prepare_on(&self, problem: &Problem, stream: u64) -> Result<Arc<Prepared>, GpuError> {
        if let Some(prepared) = self.prepared(problem) {
            return Ok(prepared);
        }
        if self.driver.is_capturing(stream)? {
            return Err(GpuError::Capturing);
        }
        self.prepare(problem)
    }

    /// The same with a given choice, or `None` for the engine's own.
    pub fn prepare_as(&self, problem: &Problem, choice: Option<Choice>) -> Result<Arc<Prepared>, GpuError> {
        let key = (problem.clone(), choice);
        if let Some(prepared) = lock(&self.prepared).get(&key) {
            return Ok(prepared.clone());
        }
        self.supports(problem)?;
        let choice = choice.unwrap_or_else(|| self.choose(problem));
        let plan = Plan::new(problem, &choice)?;
        let functions =
            plan.stages.iter().map(|stage| self.function(&stage.kernel)).collect::<Result<Vec<_>, GpuError>>()?;
        let prepared = Arc::new(Prepared { problem: problem.clone(), choice, plan, functions });
        lock(&self.prepared).insert(key, prepared.clone());
        Ok(prepared)
    }

    /// Compiles a plan's kernels into the cache without loading them; what `warm` does in parallel.
    pub fn compile(&self, plan: &Plan) -> Result<(), GpuError> {
        for stage in &plan.stages {
            self.object(&stage.kernel)?;
        }
        Ok(())
    }

    fn function(&self, kernel: &Kernel) -> Result<Function, GpuError> {
        if let Some(function) = lock(&self.functions).get(kernel) {
            return Ok(*function);
        }
        let object = self.object(kernel)?;
        let function = self.driver.load(&object, kernel.entry)?;
        lock(&self.functions).insert(kernel.clone(), function);
        Ok(function)
    }

    /// A kernel's object, ready to load: audited for the true chip, tagged for the reported one.
    fn object(&self, kernel: &Kernel) -> Result<Vec<u8>, GpuError> {
        let description = self.driver.description();
        object_for(
            &*self.compiler,
            self.cache.as_ref(),
            kernel,
            &description.true_architecture,
            &description.reported_architecture,
        )
    }

    /// Starts a prepared problem on a stream and returns.
    ///
    /// # Safety
    /// The pointers must be device memory of the sizes that the problem and [`Prepared::workspace_bytes`] say, and stay
    /// valid until the work is done.
    pub unsafe fn launch(&self, prepared: &Prepared, pointers: DevicePointers, stream: u64) -> Result<(), GpuError> {
        check_alignment(prepared, &pointers)?;
        for (stage, function) in prepared.plan.stages.iter().zip(&prepared.functions) {
            let mut values: Vec<u64> = stage
                .pointers
                .iter()
                .map(|pointer| match pointer {
                    Pointer::First => pointers.first,
                    Pointer::Second => pointers.second,
                    Pointer::Bias => pointers.bias,
                    Pointer::Result => pointers.result,
                    Pointer::Workspace(offset) => pointers.workspace + offset,
                    Pointer::Null => 0,
                })
                .collect();
            let mut parameters = stage.parameters.clone();
            let mut arguments: Vec<*mut c_void> =
                values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
            arguments.push(parameters.as_mut_ptr().cast());
            // SAFETY: the plan's pointers and parameters are what its kernels declare; the caller vouches for memory.
            unsafe { self.driver.launch(*function, stage.grid, stage.block, &mut arguments, stream)? };
        }
        Ok(())
    }

    /// Milliseconds of one run of a prepared problem: the mean of `repeats` after one to warm up. Waits for the device,
    /// so it is for choices that are known to come back; the winner goes to [`GpuEngine::prefer`].
    ///
    /// # Safety
    /// As [`GpuEngine::launch`].
    pub unsafe fn measure(
        &self,
        prepared: &Prepared,
        pointers: DevicePointers,
        stream: u64,
        repeats: u32,
    ) -> Result<f32, GpuError> {
        if self.driver.is_capturing(stream)? {
            return Err(GpuError::Capturing);
        }
        let events = [self.driver.create_event()?, self.driver.create_event()?];
        let timed = (|| {
            let repeats = repeats.max(1);
            // SAFETY: the caller's promise.
            unsafe { self.launch(prepared, pointers, stream)? };
            self.driver.record(events[0], stream)?;
            for _ in 0..repeats {
                // SAFETY: the caller's promise.
                unsafe { self.launch(prepared, pointers, stream)? };
            }
            self.driver.record(events[1], stream)?;
            self.driver.synchronize(stream)?;
            let all = self.driver.elapsed(events[0], events[1])?;
            Ok(all.map_or(f32::INFINITY, |milliseconds| milliseconds / repeats as f32))
        })();
        for event in events {
            self.driver.destroy_event(event)?;
        }
        timed
    }
}

/// The object of a kernel, from the cache or compiled: for `true_architecture`, tagged for `reported_architecture`.
/// On an RDNA1 chip an object that is unsafe there is refused.
pub(crate) fn object_for(
    compiler: &dyn Compiler,
    cache: Option<&Cache>,
    kernel: &Kernel,
    true_architecture: &str,
    reported_architecture: &str,
) -> Result<Vec<u8>, GpuError> {
    let options = compiler.options(kernel, true_architecture);
    let (text, version) = (kernel.source.text(), compiler.version());
    let key = Key::of(
        [text.as_str(), &version, true_architecture, reported_architecture]
            .into_iter()
            .chain(options.iter().map(String::as_str)),
    );
    if let Some(object) = cache.and_then(|cache| cache.get(key)) {
        return Ok(object);
    }
    let mut object = compiler.compile(kernel, &options)?;
    let (chip, reported) = (true_architecture.parse::<Chip>().ok(), reported_architecture.parse::<Chip>().ok());
    if let Some(chip) = chip {
        if chip.is_rdna1() {
            object::refuse_unsafe(&object, chip)?;
        }
        if let Some(reported) = reported.filter(|reported| *reported != chip) {
            object = object::retag(&object, chip, reported)?;
        }
    }
    if let Some(cache) = cache {
        // A full disk costs the next start a compilation, and nothing now.
        let _ = cache.put(key, &object);
    }
    Ok(object)
}

fn check_alignment(prepared: &Prepared, pointers: &DevicePointers) -> Result<(), GpuError> {
    let size = prepared.problem.data_type().size() as u64;
    // The fast kernels read and write four elements at a time; the plain ones one.
    let wide =
        if prepared.choice == Choice::Plain || prepared.problem.data_type() == DataType::F64 { size } else { size * 4 };
    let parts = [
        ("first", pointers.first, wide),
        ("second", pointers.second, wide),
        ("bias", pointers.bias, size),
        ("result", pointers.result, wide),
        ("workspace", pointers.workspace, 256),
    ];
    for (operand, address, alignment) in parts {
        if !address.is_multiple_of(alignment) {
            let choice = prepared.choice.to_string();
            return Err(GpuError::Misaligned { operand, address, alignment, choice });
        }
    }
    Ok(())
}
