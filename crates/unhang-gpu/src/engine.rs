//! The engine: `supports`, `prepare`, `launch`.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use unhang_conv::{DataType, Problem};
use unhang_engine::{EngineName, Unsupported};
use unhang_isa::Chip;

use crate::cache::{Cache, Key};
use crate::choice::{Candidate, Choice, candidates};
use crate::compiler::{CompileError, Compiler};
use crate::driver::{Driver, DriverError, Event, Function};
use crate::object::{self, ObjectError};
use crate::plan::{Plan, PlanError, Pointer};
use crate::sources::Kernel;
use crate::workshop::Workshop;

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
    /// No kernel family that computes the problem may run here.
    #[error("no kernel family that computes {problem} has passed its canary here: {families} would")]
    NoneAllowed {
        /// The problem's key.
        problem: String,
        /// The families that compute it.
        families: String,
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

/// How a problem is to be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// The stream on which it will run.
    pub stream: u64,
    /// The most bytes of workspace, where that is less than the engine's own limit.
    pub workspace_limit: Option<u64>,
    /// Whether a new problem waits for its own kernels. Otherwise the generic kernels may serve it meanwhile: at once,
    /// slower, and with other roundings.
    pub wait: bool,
}

/// A problem whose kernels are compiled and loaded.
#[derive(Debug)]
pub struct Prepared {
    problem: Problem,
    choice: Choice,
    plan: Plan,
    functions: Vec<Function>,
    kernels: String,
    /// Where the generic kernels serve meanwhile: the problem's own choice, for when it is compiled.
    own: Option<Box<(Choice, Plan)>>,
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

    /// What its kernels are, whatever the sizes that they get at run time: a text that is the same wherever the same
    /// machine code is run. Verdicts about kernels are kept under it.
    pub fn kernels(&self) -> &str {
        &self.kernels
    }

    /// Whether these are the generic kernels, which serve while better ones are being compiled.
    pub fn is_provisional(&self) -> bool {
        self.own.is_some()
    }
}

/// Which of a problem's kernels are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wanted {
    /// Those of this choice.
    Choice(Choice),
    /// The engine's own choice within so many bytes of workspace.
    Within(u64),
}

/// What was prepared.
type PreparedProblems = HashMap<(Problem, Wanted), Arc<Prepared>>;

/// A generic kernel that would take longer than this is not worth having: its own is compiled in about that time.
const PROVISIONAL_SECONDS: f64 = 0.5;

/// Our kernels on one device.
pub struct GpuEngine {
    driver: Box<dyn Driver>,
    workspace_limit: u64,
    workshop: Arc<Workshop>,
    functions: Mutex<HashMap<Kernel, Function>>,
    prepared: Mutex<PreparedProblems>,
    preferred: Mutex<HashMap<Problem, Choice>>,
    /// The kernel families that may run; `None` for all of them.
    allowed: Mutex<Option<BTreeSet<String>>>,
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
        let description = driver.description();
        let workshop =
            Workshop::new(driver.compiler(), cache, &description.true_architecture, &description.reported_architecture);
        GpuEngine {
            driver,
            workspace_limit,
            workshop,
            functions: Mutex::default(),
            prepared: Mutex::default(),
            preferred: Mutex::default(),
            allowed: Mutex::default(),
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

    /// Lets only these kernel families run from now on; `None` lets all of them.
    pub fn allow(&self, families: Option<BTreeSet<String>>) {
        *lock(&self.allowed) = families;
        lock(&self.prepared).clear();
    }

    /// The ways to compute a problem that may be taken, fastest by the model first.
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        self.candidates_within(problem, self.workspace_limit)
    }

    /// The same within so many bytes of workspace.
    pub fn candidates_within(&self, problem: &Problem, workspace_limit: u64) -> Vec<Candidate> {
        let mut found = candidates(problem, &self.driver.description().model, workspace_limit);
        if let Some(allowed) = &*lock(&self.allowed) {
            found.retain(|candidate| allowed.contains(candidate.choice.family()));
        }
        found
    }

    /// Whether a choice was preferred for a problem.
    pub fn is_preferred(&self, problem: &Problem) -> bool {
        lock(&self.preferred).contains_key(problem)
    }

    /// Takes this choice for a problem from now on: what was measured to be the fastest, now or in an earlier process.
    pub fn prefer(&self, problem: &Problem, choice: Choice) {
        lock(&self.preferred).insert(problem.clone(), choice);
        lock(&self.prepared).retain(|(known, _), _| known != problem);
    }

    /// The choice that would be taken for a problem: the preferred one, else the model's first.
    pub fn choose(&self, problem: &Problem) -> Choice {
        self.choose_within(problem, self.workspace_limit).map_or(Choice::Plain, |found| found.0)
    }

    /// The choice within a limit of workspace, and the seconds of the generic kernels, if they may run, by the model.
    fn choose_within(&self, problem: &Problem, limit: u64) -> Result<(Choice, Option<f64>), GpuError> {
        let found = self.candidates_within(problem, limit);
        let plain = found.iter().find(|candidate| candidate.choice == Choice::Plain).map(|it| it.seconds);
        let preferred = lock(&self.preferred).get(problem).copied();
        let preferred = preferred.filter(|choice| {
            found.iter().any(|candidate| candidate.choice == *choice) || self.is_asked_for(problem, choice, limit)
        });
        match preferred.or_else(|| found.first().map(|candidate| candidate.choice)) {
            Some(choice) => Ok((choice, plain)),
            None => {
                let all = candidates(problem, &self.driver.description().model, u64::MAX);
                let families: BTreeSet<&str> = all.iter().map(|candidate| candidate.choice.family()).collect();
                let families = families.into_iter().collect::<Vec<_>>().join(", ");
                Err(GpuError::NoneAllowed { problem: problem.to_string(), families })
            }
        }
    }

    /// Whether a preferred choice is one that is no candidate because it is only ever taken when asked for.
    fn is_asked_for(&self, problem: &Problem, choice: &Choice, limit: u64) -> bool {
        matches!(choice, Choice::HalfGemm { .. })
            && lock(&self.allowed).as_ref().is_none_or(|allowed| allowed.contains(choice.family()))
            && Plan::new(problem, choice).is_ok_and(|plan| plan.workspace_bytes <= limit)
    }

    /// Compiles and loads what computes a problem; from memory or the cache where it can.
    pub fn prepare(&self, problem: &Problem) -> Result<Arc<Prepared>, GpuError> {
        self.prepare_as(problem, None)
    }

    /// Prepares a problem for a stream.
    ///
    /// While that records a graph nothing can be compiled or loaded: then only what was prepared before is there. A new
    /// problem whose kernels are in no cache is served by the generic kernels while its own are compiled in the
    /// background: what comes back then says [`Prepared::is_provisional`], and to ask again is to get the better ones
    /// once they are there.
    pub fn prepare_on(&self, problem: &Problem, request: Request) -> Result<Arc<Prepared>, GpuError> {
        let limit = request.workspace_limit.map_or(self.workspace_limit, |limit| limit.min(self.workspace_limit));
        let key = (problem.clone(), Wanted::Within(limit));
        let known = lock(&self.prepared).get(&key).cloned();
        if let Some(prepared) = known.as_ref().filter(|prepared| !prepared.is_provisional()) {
            return Ok(Arc::clone(prepared));
        }
        if self.driver.is_capturing(request.stream)? {
            return known.ok_or(GpuError::Capturing);
        }
        if let Some(provisional) = known {
            let Some((choice, plan)) = provisional.own.as_deref() else { return Ok(provisional) };
            if request.wait || self.is_at_hand(plan)? {
                return self.finish(problem, *choice, plan.clone(), key, None);
            }
            return Ok(provisional);
        }
        self.supports(problem)?;
        let (choice, plain_seconds) = self.choose_within(problem, limit)?;
        let plan = Plan::new(problem, &choice)?;
        let plain_serves = choice != Choice::Plain && plain_seconds.is_some_and(|it| it <= PROVISIONAL_SECONDS);
        if plain_serves && !request.wait && !self.is_at_hand(&plan)? {
            self.workshop.later(plan.stages.iter().map(|stage| &stage.kernel));
            let plain = Plan::new(problem, &Choice::Plain)?;
            return self.finish(problem, Choice::Plain, plain, key, Some(Box::new((choice, plan))));
        }
        self.finish(problem, choice, plan, key, None)
    }

    /// The same with a given choice, or `None` for the engine's own, and whatever it takes.
    pub fn prepare_as(&self, problem: &Problem, choice: Option<Choice>) -> Result<Arc<Prepared>, GpuError> {
        let wanted = choice.map_or(Wanted::Within(self.workspace_limit), Wanted::Choice);
        let key = (problem.clone(), wanted);
        if let Some(prepared) = lock(&self.prepared).get(&key).filter(|prepared| !prepared.is_provisional()) {
            return Ok(prepared.clone());
        }
        self.supports(problem)?;
        let choice = match choice {
            Some(choice) => choice,
            None => self.choose_within(problem, self.workspace_limit)?.0,
        };
        self.finish(problem, choice, Plan::new(problem, &choice)?, key, None)
    }

    /// Asks for a plan's kernels to be compiled in the background.
    pub fn compile_later(&self, plan: &Plan) {
        let missing = |kernel: &&Kernel| !lock(&self.functions).contains_key(kernel);
        self.workshop.later(plan.stages.iter().map(|stage| &stage.kernel).filter(missing));
    }

    /// Whether a plan's kernels can be had without compiling. An error is that of compiling one in the background.
    pub fn is_at_hand(&self, plan: &Plan) -> Result<bool, GpuError> {
        for stage in &plan.stages {
            if lock(&self.functions).contains_key(&stage.kernel) {
                continue;
            }
            match self.workshop.at_once(&stage.kernel) {
                Some(object) => object.map(|_| ())?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn finish(
        &self,
        problem: &Problem,
        choice: Choice,
        plan: Plan,
        key: (Problem, Wanted),
        own: Option<Box<(Choice, Plan)>>,
    ) -> Result<Arc<Prepared>, GpuError> {
        let functions =
            plan.stages.iter().map(|stage| self.function(&stage.kernel)).collect::<Result<Vec<_>, GpuError>>()?;
        let keys: Vec<String> = plan
            .stages
            .iter()
            .map(|stage| format!("{}={}", stage.kernel.entry, self.workshop.key(&stage.kernel)))
            .collect();
        let kernels = format!("{}:{}", choice.family(), Key::of(keys.iter().map(String::as_str)));
        let prepared = Arc::new(Prepared { problem: problem.clone(), choice, plan, functions, kernels, own });
        lock(&self.prepared).insert(key, prepared.clone());
        Ok(prepared)
    }

    /// Compiles a plan's kernels into the cache without loading them; what `warm` does in parallel.
    pub fn compile(&self, plan: &Plan) -> Result<(), GpuError> {
        for stage in &plan.stages {
            self.workshop.now(&stage.kernel)?;
        }
        Ok(())
    }

    /// Compiles what would compute a problem into the cache, without loading it.
    pub fn warm(&self, problem: &Problem) -> Result<(), GpuError> {
        self.supports(problem)?;
        let (choice, _) = self.choose_within(problem, self.workspace_limit)?;
        self.compile(&Plan::new(problem, &choice)?)
    }

    /// How many kernels were compiled in this process, and not found in the cache.
    pub fn compiled(&self) -> u64 {
        self.workshop.compiled()
    }

    /// How many kernels are being compiled in the background, or wait for it.
    pub fn waiting(&self) -> usize {
        self.workshop.waiting()
    }

    /// Waits until nothing is being compiled in the background, for so long at most; whether that is so.
    pub fn settle(&self, patience: Duration) -> bool {
        self.workshop.settle(patience)
    }

    /// Compiles nothing more in the background, and waits for what is being compiled, for so long at most. To be called
    /// before the process ends.
    pub fn close(&self, patience: Duration) -> bool {
        self.workshop.close(patience)
    }

    /// A kernel that is loaded: its object audited for the true chip and tagged for the reported one.
    fn function(&self, kernel: &Kernel) -> Result<Function, GpuError> {
        if let Some(function) = lock(&self.functions).get(kernel) {
            return Ok(*function);
        }
        let object = self.workshop.now(kernel)?;
        let function = self.driver.load(&object, kernel.entry)?;
        lock(&self.functions).insert(kernel.clone(), function);
        Ok(function)
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

    /// Puts a measurement of a prepared problem into a stream and returns: one run to warm up, then `repeats` between two
    /// events. [`GpuEngine::seconds`] says later what came out. Not while the stream records a graph.
    ///
    /// # Safety
    /// As [`GpuEngine::launch`].
    pub unsafe fn time(
        &self,
        prepared: &Prepared,
        pointers: DevicePointers,
        stream: u64,
        repeats: u32,
    ) -> Result<Timing, GpuError> {
        // SAFETY: the caller's promise.
        self.time_calls(stream, repeats, || unsafe { self.launch(prepared, pointers, stream) })
    }

    /// The same for anything that puts one run of a problem into a stream.
    pub fn time_calls<E: From<GpuError>>(
        &self,
        stream: u64,
        repeats: u32,
        run: impl Fn() -> Result<(), E>,
    ) -> Result<Timing, E> {
        let failed = |error: DriverError| E::from(error.into());
        if self.driver.is_capturing(stream).map_err(failed)? {
            return Err(GpuError::Capturing.into());
        }
        let repeats = repeats.max(1);
        let mut timing = Timing { events: Vec::new(), repeats };
        let put = (|| {
            for _ in 0..2 {
                timing.events.push(self.driver.create_event().map_err(failed)?);
            }
            run()?;
            self.driver.record(timing.events[0], stream).map_err(failed)?;
            for _ in 0..repeats {
                run()?;
            }
            self.driver.record(timing.events[1], stream).map_err(failed)
        })();
        match put {
            Ok(()) => Ok(timing),
            Err(error) => {
                // What went wrong says more than that an event cannot be given back.
                let _ = self.forget(timing);
                Err(error)
            }
        }
    }

    /// Seconds of one run; none as long as the device has not come to it. Never waits.
    pub fn seconds(&self, timing: &Timing) -> Result<Option<f64>, GpuError> {
        let [from, to] = timing.events[..] else { return Ok(None) };
        let all = self.driver.elapsed(from, to)?;
        Ok(all.map(|milliseconds| f64::from(milliseconds) * 1e-3 / f64::from(timing.repeats)))
    }

    /// Gives back what a measurement holds of the driver.
    pub fn forget(&self, timing: Timing) -> Result<(), GpuError> {
        timing.events.into_iter().try_for_each(|event| self.driver.destroy_event(event)).map_err(GpuError::from)
    }

    /// Seconds of one run of a prepared problem. Waits for the device: for a process that somebody watches.
    ///
    /// # Safety
    /// As [`GpuEngine::launch`].
    pub unsafe fn measure(
        &self,
        prepared: &Prepared,
        pointers: DevicePointers,
        stream: u64,
        repeats: u32,
    ) -> Result<f64, GpuError> {
        // SAFETY: the caller's promise.
        let timing = unsafe { self.time(prepared, pointers, stream, repeats)? };
        self.driver.synchronize(stream)?;
        let seconds = self.seconds(&timing);
        self.forget(timing)?;
        Ok(seconds?.unwrap_or(f64::INFINITY))
    }
}

/// A measurement that was put into a stream. What it holds is the process's until [`GpuEngine::forget`].
#[derive(Debug)]
pub struct Timing {
    events: Vec<Event>,
    repeats: u32,
}

/// What a kernel's object is kept under: everything that made it.
pub(crate) fn key_of(
    compiler: &dyn Compiler,
    kernel: &Kernel,
    true_architecture: &str,
    reported_architecture: &str,
) -> Key {
    let options = compiler.options(kernel, true_architecture);
    let (text, version) = (kernel.source.text(), compiler.version());
    Key::of(
        [text.as_str(), &version, true_architecture, reported_architecture]
            .into_iter()
            .chain(options.iter().map(String::as_str)),
    )
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
    let key = key_of(compiler, kernel, true_architecture, reported_architecture);
    let (chip, reported) = (true_architecture.parse::<Chip>().ok(), reported_architecture.parse::<Chip>().ok());
    let kept = cache.and_then(|cache| match chip {
        Some(chip) => cache.get_safe(key, chip),
        None => cache.get(key),
    });
    if let Some(object) = kept {
        return Ok(object);
    }
    let mut object = compiler.compile(kernel, &options)?;
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
