//! The engine: `supports`, `prepare`, `launch`.

#[allow(unsafe_code, reason = "launches on addresses that the caller vouches for")]
mod launch;

pub use launch::Timing;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use unhang_conv::Problem;
use unhang_engine::{EngineName, Tuned, TunedProblem, Unsupported};
use unhang_isa::Chip;

use crate::cache::{Cache, Key};
use crate::candidates::{Candidate, candidates, general_candidates};
use crate::choice::Choice;
use crate::compiler::CompileError;
use crate::driver::{Driver, Function};
use crate::error::GpuError;
use crate::plan::{Form, LaunchPlan};
use crate::shipped::Shipped;
use crate::sources::{Kernel, SourceFile};
use crate::tuning::filing::is_current;
use crate::workshop::Workshop;

/// What an engine may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSettings {
    /// The most workspace of one problem in bytes; `None` for a sixteenth of the device's memory, 4 GiB at most.
    pub workspace_limit: Option<u64>,
    /// The folder of compiled objects; `None` to keep none.
    pub cache_folder: Option<PathBuf>,
    /// The most bytes in that folder.
    pub cache_limit: u64,
    /// The folder of the general kernels that came with the package ([`crate::shipped`]); `None` for none.
    pub shipped_folder: Option<PathBuf>,
}

impl Default for GpuSettings {
    fn default() -> GpuSettings {
        GpuSettings {
            workspace_limit: None,
            cache_folder: Cache::default_folder(),
            cache_limit: 512 << 20,
            shipped_folder: None,
        }
    }
}

/// Device memory for one launch. Null if absent.
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

/// How to prepare a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// The stream on which it will run.
    pub stream: u64,
    /// The most bytes of workspace, where that is less than the engine's own limit.
    pub workspace_limit: Option<u64>,
    /// Whether to wait for a new problem's own kernels. Otherwise generic kernels may serve it meanwhile: at once,
    /// slower, and with other roundings.
    pub wait: bool,
}

/// A problem whose kernels are compiled and loaded.
#[derive(Debug)]
pub struct Prepared {
    problem: Problem,
    choice: Choice,
    form: Form,
    plan: LaunchPlan,
    functions: Vec<Function>,
    kernels: String,
    /// Better ways that are being compiled, the best first.
    better: Vec<Candidate>,
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

    /// Whether its kernels are the problem's own or general ones.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The choice in words; general kernels say so.
    pub fn name(&self) -> String {
        match self.form {
            Form::General if self.choice != Choice::Plain => format!("general:{}", self.choice),
            _ => self.choice.to_string(),
        }
    }

    /// What is launched.
    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    /// Bytes of workspace that the caller must give.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes
    }

    /// Identifies its kernels, whatever sizes they get at run time: a text that is the same wherever the same machine
    /// code runs. Verdicts about kernels are stored under it.
    pub fn kernels(&self) -> &str {
        &self.kernels
    }

    /// Whether these are a stopgap while better ones are compiled.
    pub fn is_provisional(&self) -> bool {
        !self.better.is_empty()
    }
}

/// Which kernels of a problem to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wanted {
    /// Those of this choice, in this form.
    Choice(Choice, Form),
    /// The engine's own choice within that many bytes of workspace.
    Within(u64),
}

/// What was prepared.
type PreparedProblems = HashMap<(Problem, Wanted), Arc<Prepared>>;

/// A program with ever new sizes must not fill its memory with prepared problems. Users hold those in use; the rest are
/// prepared again from kernels that stay loaded.
const MOST_PREPARED: usize = 10_000;

/// The most kernels that are loaded or kept in memory. Modules are never unloaded, since a recorded graph may hold
/// their functions. Beyond this limit a new problem gets no specialised kernels, and the general ones, which are few,
/// serve it.
const MOST_KERNELS: usize = 2048;

/// A plain kernel slower than this is not used: its own kernel compiles in about that time.
const PROVISIONAL_SECONDS: f64 = 0.5;
/// A problem's own kernels are compiled if the model predicts less than this share of the general ones' time.
const SPECIALISED_PAYS: f64 = 0.95;

/// Our kernels on one device.
pub struct GpuEngine {
    driver: Box<dyn Driver>,
    workspace_limit: u64,
    workshop: Arc<Workshop>,
    functions: Mutex<HashMap<Kernel, Function>>,
    prepared: Mutex<PreparedProblems>,
    preferred: Mutex<HashMap<Problem, Choice>>,
    /// Others' measurements: used where nothing was measured here.
    hinted: Mutex<HashMap<Problem, Choice>>,
    /// The ways of other operations that were measured to be the fastest, by what they are kept under.
    ways: Mutex<HashMap<String, String>>,
    /// The kernel families that may run; `None` for all of them.
    allowed: Mutex<Option<BTreeSet<String>>>,
    most_kernels: usize,
    /// Hashing all sources takes longer than a launch.
    identity: OnceLock<String>,
}

/// A map behind a poisoned lock is consistent: no code of ours leaves one half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GpuEngine {
    /// An engine on a driver.
    pub fn new(driver: Box<dyn Driver>, settings: GpuSettings) -> GpuEngine {
        let memory = driver.description().model.memory;
        let workspace_limit = settings.workspace_limit.unwrap_or((memory / 16).min(4 << 30));
        // Without a cache everything works, but the next start is slower.
        let cache = settings.cache_folder.and_then(|folder| Cache::open(&folder, settings.cache_limit).ok());
        let description = driver.description();
        let shipped = settings.shipped_folder.and_then(|folder| Shipped::open(&folder).ok());
        let workshop = Workshop::new(
            driver.compiler(),
            cache,
            shipped,
            &description.true_architecture,
            &description.reported_architecture,
        );
        GpuEngine {
            driver,
            workspace_limit,
            workshop,
            functions: Mutex::default(),
            prepared: Mutex::default(),
            preferred: Mutex::default(),
            hinted: Mutex::default(),
            ways: Mutex::default(),
            allowed: Mutex::default(),
            most_kernels: MOST_KERNELS,
            identity: OnceLock::new(),
        }
    }

    /// This engine with room for another number of kernels.
    pub fn with_room_for(self, most_kernels: usize) -> GpuEngine {
        GpuEngine { most_kernels, ..self }
    }

    /// The driver.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Identifies our kernels here: their sources, the compiler, the chip. Canaries are stored under it.
    pub fn identity(&self) -> &str {
        self.identity.get_or_init(|| self.hash_of_sources())
    }

    fn hash_of_sources(&self) -> String {
        let (description, compiler) = (self.driver.description(), self.driver.compiler().version());
        let sources = SourceFile::ALL.map(SourceFile::text);
        let chip = [&compiler, &description.true_architecture, &description.reported_architecture];
        let texts = sources.iter().chain(chip).map(String::as_str);
        let texts = texts.chain(self.shipped().map(|shipped| shipped.compiler()));
        Key::of(texts).to_string()[..16].to_owned()
    }

    /// The most bytes of workspace of one problem.
    pub fn workspace_limit(&self) -> u64 {
        self.workspace_limit
    }

    /// The general kernels that came with the package.
    pub fn shipped(&self) -> Option<&Shipped> {
        self.workshop.shipped()
    }

    /// Whether any kernels are available: a compiler, or some from the package. If not, why.
    pub fn has_kernels(&self) -> Result<(), CompileError> {
        self.workshop.has_kernels()
    }

    /// Whether a problem is supported; if not, why. Cheap: nothing is compiled.
    pub fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        LaunchPlan::new(problem, &Choice::Plain)
            .map(|_| ())
            .map_err(|error| Unsupported { engine: EngineName::Jit, reason: error.reason })
    }

    /// Allows only these kernel families from now on; `None` allows all of them.
    pub fn allow(&self, families: Option<BTreeSet<String>>) {
        let mut allowed = lock(&self.allowed);
        if *allowed != families {
            *allowed = families;
            lock(&self.prepared).clear();
        }
    }

    /// The allowed ways to compute a problem, fastest by the model first.
    pub fn candidates(&self, problem: &Problem) -> Vec<Candidate> {
        self.candidates_within(problem, self.workspace_limit)
    }

    /// The candidates that need at most that many bytes of workspace.
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

    /// Uses this choice for a problem from now on: it was measured to be the fastest, now or in an earlier process.
    pub fn prefer(&self, problem: &Problem, choice: Choice) {
        lock(&self.preferred).insert(problem.clone(), choice);
        lock(&self.prepared).retain(|(known, _), _| known != problem);
    }

    /// Uses a measurement of an earlier run, if it is of this device and these kernels; returns whether it does.
    /// Others' measurements are hints: they are measured again here if tuning is enabled, and never make results less
    /// exact.
    pub fn take_tuning(&self, tuned: &Tuned, imported: bool) -> bool {
        if !is_current(tuned, &*self.driver) {
            return false;
        }
        match (&tuned.problem, tuned.choice.parse::<Choice>()) {
            (TunedProblem::Convolution(problem), Ok(choice)) => {
                let is_taken = !imported || !matches!(choice, Choice::HalfGemm { .. });
                let choices = if imported { &self.hinted } else { &self.preferred };
                if is_taken {
                    lock(choices).insert(problem.clone(), choice);
                }
                is_taken
            }
            (TunedProblem::Operation(name), _) if !imported => {
                self.prefer_way(name.clone(), tuned.choice.clone());
                true
            }
            _ => false,
        }
    }

    /// Notes the way of an operation that was measured to be the fastest, by what that is kept under.
    pub fn prefer_way(&self, name: String, way: String) {
        lock(&self.ways).insert(name, way);
    }

    /// That way, if it was measured here or in an earlier process.
    pub fn preferred_way(&self, name: &str) -> Option<String> {
        lock(&self.ways).get(name).cloned()
    }

    /// The choice for a problem: the preferred one, else the model's first.
    pub fn choose(&self, problem: &Problem) -> Choice {
        self.choose_within(problem, self.workspace_limit).map_or(Choice::Plain, |found| found.choice)
    }

    /// The general ways that are allowed and available here: their kernels came with the package, or there is a
    /// compiler.
    fn general_within(&self, problem: &Problem, limit: u64) -> Vec<Candidate> {
        let mut found = general_candidates(problem, &self.driver.description().model, limit);
        if let Some(allowed) = &*lock(&self.allowed) {
            found.retain(|candidate| allowed.contains(candidate.choice.family()));
        }
        if !self.workshop.can_compile() {
            found.retain(|candidate| candidate.plan.stages.iter().all(|stage| self.workshop.is_shipped(&stage.kernel)));
        }
        found
    }

    /// How many kernels are loaded, compiled and not yet asked for, or about to be compiled.
    pub fn kernels(&self) -> usize {
        lock(&self.functions).len() + self.workshop.held()
    }

    /// Whether a problem may have its own kernels: there is room for more, or they are loaded.
    fn has_room_for(&self, plan: &LaunchPlan) -> bool {
        self.kernels() < self.most_kernels
            || plan.stages.iter().all(|stage| lock(&self.functions).contains_key(&stage.kernel))
    }

    /// Refuses kernels beyond the limit. General ones are few, and always allowed.
    fn make_room_for(&self, problem: &Problem, wanted: &Candidate) -> Result<(), GpuError> {
        if wanted.form == Form::General || self.has_room_for(&wanted.plan) {
            return Ok(());
        }
        let (choice, problem) = (wanted.choice.to_string(), problem.to_string());
        Err(GpuError::NoRoom { most: self.most_kernels, choice, problem })
    }

    /// The way to compute a problem within a limit of workspace: what was measured, else the model's first. If general
    /// kernels are as good by the model, nothing is compiled for the problem alone.
    fn choose_within(&self, problem: &Problem, limit: u64) -> Result<Candidate, GpuError> {
        self.choose_beside(problem, limit, self.general_within(problem, limit).first())
    }

    /// Chooses within the limit, given the best of the general ways.
    fn choose_beside(&self, problem: &Problem, limit: u64, general: Option<&Candidate>) -> Result<Candidate, GpuError> {
        let can_compile = self.workshop.can_compile();
        let found = if can_compile { self.candidates_within(problem, limit) } else { Vec::new() };
        let chosen = lock(&self.preferred).get(problem).copied().or_else(|| lock(&self.hinted).get(problem).copied());
        if let Some(choice) = chosen.filter(|_| can_compile) {
            let known = found.iter().find(|candidate| candidate.choice == choice).cloned();
            let preferred = known.or_else(|| self.asked_for(problem, choice, limit));
            if let Some(preferred) = preferred.filter(|preferred| self.has_room_for(&preferred.plan)) {
                return Ok(preferred);
            }
        }
        let pays = |own: &Candidate| match general {
            Some(general) => own.seconds < general.seconds * SPECIALISED_PAYS && self.has_room_for(&own.plan),
            None => true,
        };
        found.into_iter().next().filter(pays).or_else(|| general.cloned()).ok_or_else(|| {
            let all = candidates(problem, &self.driver.description().model, u64::MAX);
            let families: BTreeSet<&str> = all.iter().map(|candidate| candidate.choice.family()).collect();
            let families = families.into_iter().collect::<Vec<_>>().join(", ");
            GpuError::NoneAllowed { problem: problem.to_string(), families }
        })
    }

    /// A preferred choice that is not a candidate, because it is used only on request.
    fn asked_for(&self, problem: &Problem, choice: Choice, limit: u64) -> Option<Candidate> {
        let allowed = lock(&self.allowed).as_ref().is_none_or(|allowed| allowed.contains(choice.family()));
        let plan = LaunchPlan::new(problem, &choice).ok().filter(|plan| plan.workspace_bytes <= limit)?;
        (matches!(choice, Choice::HalfGemm { .. }) && allowed).then_some(Candidate {
            choice,
            form: Form::Specialised,
            plan,
            seconds: 0.0,
        })
    }

    /// Compiles and loads the kernels for a problem; from memory or the cache if possible.
    pub fn prepare(&self, problem: &Problem) -> Result<Arc<Prepared>, GpuError> {
        self.prepare_as(problem, None)
    }

    /// Prepares a problem for a stream.
    ///
    /// While that records a graph nothing can be compiled or loaded: then only what was prepared before is there. A new
    /// problem whose kernels are in no cache is served by the generic kernels while its own are compiled in the
    /// background: what is returned then says [`Prepared::is_provisional`], and to ask again is to get the better ones
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
        let mut ranks = match &known {
            Some(provisional) => provisional.better.clone(),
            None => {
                self.supports(problem)?;
                self.rank(problem, limit)?
            }
        };
        if request.wait {
            return self.finish(problem, ranks.swap_remove(0), key, Vec::new());
        }
        for at in 0..ranks.len() {
            if self.is_at_hand(&ranks[at].plan)? {
                ranks.truncate(at + 1);
                return self.take_last(problem, ranks, key);
            }
        }
        // Nothing better is available yet. A new problem waits for the last way, the quickest to get.
        known.map_or_else(|| self.take_last(problem, ranks, key), Ok)
    }

    /// Takes the last of several ways and compiles the others in the background.
    fn take_last(
        &self,
        problem: &Problem,
        mut ranks: Vec<Candidate>,
        key: (Problem, Wanted),
    ) -> Result<Arc<Prepared>, GpuError> {
        let Some(taken) = ranks.pop() else { return self.prepare(problem) };
        // General kernels are few and serve other problems too: they come first. A kernel without room would be waited
        // for in vain.
        ranks.reverse();
        ranks.retain(|better| self.compile_later(problem, better).is_ok());
        ranks.reverse();
        self.finish(problem, taken, key, ranks)
    }

    /// The wanted way for a problem, then stopgaps until it is compiled: general kernels, the plain ones if they take
    /// no longer than compiling would.
    fn rank(&self, problem: &Problem, limit: u64) -> Result<Vec<Candidate>, GpuError> {
        let all = self.general_within(problem, limit);
        let wanted = self.choose_beside(problem, limit, all.first())?;
        let (plain, general): (Vec<Candidate>, Vec<Candidate>) =
            all.into_iter().partition(|candidate| candidate.choice == Choice::Plain);
        let at_hand = general.iter().find(|candidate| self.is_at_hand(&candidate.plan).unwrap_or(false));
        // NVIDIA's compiler makes them once for all problems; AMD's are in the package, or are not worth waiting for.
        let made_once = self.driver.description().true_architecture.parse::<Chip>().is_err();
        let general = at_hand.or(general.first().filter(|_| made_once)).cloned();
        let plain = plain.into_iter().next().filter(|plain| plain.seconds <= PROVISIONAL_SECONDS);
        let mut ranks = vec![wanted];
        for other in general.into_iter().chain(plain) {
            if !ranks.iter().any(|rank| rank.plan == other.plan) && ranks[0].choice != Choice::Plain {
                ranks.push(other);
            }
        }
        Ok(ranks)
    }

    /// Prepares a problem with a given choice, or `None` for the engine's own, however long it takes.
    pub fn prepare_as(&self, problem: &Problem, choice: Option<Choice>) -> Result<Arc<Prepared>, GpuError> {
        match choice {
            Some(choice) => self.prepare_form(problem, choice, Form::Specialised),
            None => {
                let key = (problem.clone(), Wanted::Within(self.workspace_limit));
                if let Some(prepared) = lock(&self.prepared).get(&key).filter(|prepared| !prepared.is_provisional()) {
                    return Ok(prepared.clone());
                }
                self.supports(problem)?;
                self.finish(problem, self.choose_within(problem, self.workspace_limit)?, key, Vec::new())
            }
        }
    }

    /// Prepares a problem with a given choice in a given form.
    pub fn prepare_form(&self, problem: &Problem, choice: Choice, form: Form) -> Result<Arc<Prepared>, GpuError> {
        let key = (problem.clone(), Wanted::Choice(choice, form));
        if let Some(prepared) = lock(&self.prepared).get(&key) {
            return Ok(prepared.clone());
        }
        self.supports(problem)?;
        let wanted = Candidate { choice, form, plan: LaunchPlan::with_form(problem, &choice, form)?, seconds: 0.0 };
        self.make_room_for(problem, &wanted)?;
        self.finish(problem, wanted, key, Vec::new())
    }

    /// Asks for the kernels of one way to compute a problem to be compiled in the background.
    pub fn compile_later(&self, problem: &Problem, wanted: &Candidate) -> Result<(), GpuError> {
        self.make_room_for(problem, wanted)?;
        let missing = |kernel: &&Kernel| !lock(&self.functions).contains_key(kernel);
        self.workshop.later(wanted.plan.stages.iter().map(|stage| &stage.kernel).filter(missing));
        Ok(())
    }

    /// Compiles a choice's kernels in the background.
    pub fn compile_choice_later(&self, problem: &Problem, choice: Choice) -> Result<(), GpuError> {
        let plan = LaunchPlan::new(problem, &choice)?;
        self.compile_later(problem, &Candidate { choice, form: Form::Specialised, plan, seconds: 0.0 })
    }

    /// Whether a plan's kernels are available without compiling. An error comes from compiling one in the background.
    pub fn is_at_hand(&self, plan: &LaunchPlan) -> Result<bool, GpuError> {
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
        Candidate { choice, form, plan, .. }: Candidate,
        key: (Problem, Wanted),
        better: Vec<Candidate>,
    ) -> Result<Arc<Prepared>, GpuError> {
        let functions =
            plan.stages.iter().map(|stage| self.function(&stage.kernel)).collect::<Result<Vec<_>, GpuError>>()?;
        let keys: Vec<String> = plan
            .stages
            .iter()
            .map(|stage| format!("{}={}", stage.kernel.entry, self.workshop.key(&stage.kernel)))
            .collect();
        let kernels = format!("{}:{}", choice.family(), Key::of(keys.iter().map(String::as_str)));
        let prepared = Arc::new(Prepared { problem: problem.clone(), choice, form, plan, functions, kernels, better });
        let mut all = lock(&self.prepared);
        if all.len() >= MOST_PREPARED {
            all.clear();
        }
        all.insert(key, prepared.clone());
        Ok(prepared)
    }

    /// Compiles a plan's kernels into the cache without loading them; what `warm` does in parallel.
    pub fn compile(&self, plan: &LaunchPlan) -> Result<(), GpuError> {
        for stage in &plan.stages {
            self.workshop.now(&stage.kernel)?;
        }
        Ok(())
    }

    /// Compiles a problem's kernels into the cache, without loading them.
    pub fn warm(&self, problem: &Problem) -> Result<(), GpuError> {
        self.supports(problem)?;
        self.compile(&self.choose_within(problem, self.workspace_limit)?.plan)
    }

    /// How many kernels were compiled in this process, and not found in the cache.
    pub fn compiled(&self) -> u64 {
        self.workshop.compiled()
    }

    /// How many kernels are being compiled in the background, or wait for it.
    pub fn waiting(&self) -> usize {
        self.workshop.waiting()
    }

    /// Waits until nothing is being compiled in the background; false if the time ran out first.
    pub fn settle(&self, patience: Duration) -> bool {
        self.workshop.settle(patience)
    }

    /// Stops compiling in the background, and waits up to that long for what has started. Call it before the process
    /// ends.
    pub fn close(&self, patience: Duration) -> bool {
        self.workshop.close(patience)
    }

    /// Whether a kernel is loaded.
    pub(crate) fn is_loaded(&self, kernel: &Kernel) -> bool {
        lock(&self.functions).contains_key(kernel)
    }

    /// A kernel that is loaded: its object audited for the true chip and tagged for the reported one.
    pub(crate) fn function(&self, kernel: &Kernel) -> Result<Function, GpuError> {
        if let Some(function) = lock(&self.functions).get(kernel) {
            return Ok(*function);
        }
        let object = self.workshop.now(kernel)?;
        let function = self.driver.load(&object, kernel.entry)?;
        lock(&self.functions).insert(kernel.clone(), function);
        Ok(function)
    }
}
