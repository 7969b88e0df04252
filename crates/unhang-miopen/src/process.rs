//! What this process knows: machine, store, evidence, settings, cards. Made with the first convolution.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Canary, Evidence, Realm, Record, Store, Tuning, quarantined, time};
use unhang_gpu::strided;
use unhang_machine::{Machine, System};
use unhang_miopen_api::{BAD_PARAMETER, NOT_IMPLEMENTED, Opaque, SUCCESS, Status};
use unhang_plan::{Availability, Facts, MiopenFamilies, Plan, ProcessSettings, Situation, Strategy, Value, plan};
use unhang_session::Subject;

use crate::describe::{Call, Described};
use crate::device::Device;
use crate::real::Real;
use crate::route::{Route, Totals};
use crate::talk::say;
use crate::{canary, lookup, watch};

/// A program that sees ever new sizes must not fill its memory with plans.
const MOST_ROUTES: usize = 10_000;

/// What a call leads to.
#[derive(Clone)]
pub(crate) enum Decision {
    /// The real library computes; what it is, where that is known.
    Forward(Option<Arc<Subject>>),
    /// Nobody does, and this says so.
    Refuse(Status),
    /// We do.
    Ours(Arc<Route>),
}

impl Decision {
    fn add_to(&self, totals: &mut Totals) {
        if let Decision::Ours(route) = self {
            route.add_to(totals);
        }
    }
}

/// What a decision is kept under: card, library and what descriptors say.
type Key = (i32, usize, Described);

/// One process's knowledge.
pub(crate) struct Process {
    id: u32,
    machine: Machine,
    store: Arc<Store>,
    /// What evidence is filed under: the machine with this MIOpen and this runtime, as `unhang probe --engines miopen` has it.
    fingerprint: String,
    evidence: RwLock<Evidence>,
    pub(crate) settings: ProcessSettings,
    /// Whether everything is MIOpen's, whatever it is.
    is_passive: bool,
    canaries: Mutex<HashMap<String, (Verdict, String)>>,
    devices: Mutex<HashMap<i32, Result<Arc<Device>, String>>>,
    routes: RwLock<HashMap<Key, Decision>>,
    /// What was planned as ours once, by its hash: the real library has not searched for it, and would not execute it.
    answered: RwLock<HashSet<u64>>,
    /// What routes computed that are not kept any more.
    retired: Mutex<Totals>,
    /// Engines that failed in this process: never tried for a problem again here.
    failures: Mutex<HashMap<(Problem, EngineName), String>>,
    get_device: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// This process's knowledge; none where unhang is switched off, and in a forked child, whose runtime is its parent's.
pub(crate) fn process(real: &Real) -> Option<&'static Process> {
    let process = PROCESS.get_or_init(|| Process::new(real));
    (process.id == std::process::id() && !process.is_passive).then_some(process)
}

/// The knowledge, if a convolution was asked for before.
pub(crate) fn known() -> Option<&'static Process> {
    PROCESS.get().filter(|process| process.id == std::process::id())
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The settings that the variables name; what cannot be is said and left out.
fn settings() -> ProcessSettings {
    let text = std::env::var("UNHANG_SETTINGS").unwrap_or_default();
    let mut settings = ProcessSettings::from_token(&text).unwrap_or_else(|error| {
        say(&format!("UNHANG_SETTINGS is not used: {error}"));
        ProcessSettings::default()
    });
    settings.tune |= is_set("UNHANG_TUNE");
    if let Ok(strategy) = std::env::var("UNHANG_STRATEGY")
        && !strategy.is_empty()
    {
        match settings.clone().with("strategy", &Value::Name(strategy)) {
            Ok(changed) => settings = changed,
            Err(error) => say(&format!("UNHANG_STRATEGY is not used: {error}")),
        }
    }
    settings
}

/// The library and the runtime below it, as `unhang probe` names them.
fn software(real: &Real) -> String {
    let (mut major, mut minor, mut patch, mut runtime) = (0, 0, 0, 0);
    if let Some(version) = real.functions.version {
        // SAFETY: places for the numbers.
        unsafe { version(&mut major, &mut minor, &mut patch) };
    }
    if let Some(runtime_version) = hip(c"hipRuntimeGetVersion") {
        // SAFETY: HIP's function takes a place for a number.
        unsafe { runtime_version(&mut runtime) };
    }
    format!("MIOpen {major}.{minor}.{patch} on HIP {runtime}")
}

/// A function of the runtime that takes a place for a number.
fn hip(name: &std::ffi::CStr) -> Option<unsafe extern "C" fn(*mut c_int) -> c_int> {
    let path = std::ffi::CString::new(lookup::mapped(&["libamdhip64"]).into_iter().next()?).ok()?;
    // SAFETY: the file is mapped already.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    let found = lookup::real_dlsym(library, name);
    // SAFETY: both functions that are asked for have this type; null is none.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<unsafe extern "C" fn(*mut c_int) -> c_int>>(found) }
}

impl Process {
    fn new(real: &Real) -> Process {
        let machine = Machine::inspect(&System::host());
        let settings = settings();
        let is_off = is_set("UNHANG_DISABLE") || std::env::var("UNHANG_MIOPEN").is_ok_and(|value| value == "0");
        let store = Arc::new(if is_off { Store::none() } else { Store::open_default() });
        for notice in store.notices() {
            say(&notice);
        }
        let fingerprint = machine.fingerprint(Some(&software(real)));
        let mut evidence = Evidence::load_realm(&store, &fingerprint, Realm::of_machine(machine.emulated));
        let here = quarantined(&std::env::var("UNHANG_QUARANTINE").unwrap_or_default());
        evidence.quarantine(&here, &fingerprint, canary::source());
        let here =
            |canary: Canary| (canary.machine == fingerprint).then_some((canary.name, (canary.verdict, canary.detail)));
        let canaries = store.canaries().into_iter().filter_map(here).collect();
        // A machine without an affected card, nothing asked for and nothing known: MIOpen is left alone, at no cost.
        let nothing_known = evidence.records().next().is_none();
        let is_passive = is_off || (!machine.affected() && settings.plan.strategy == Strategy::Auto && nothing_known);
        let get_device = if machine.gpus.len() > 1 { hip(c"hipGetDevice") } else { None };
        Process {
            id: std::process::id(),
            machine,
            store,
            fingerprint,
            evidence: RwLock::new(evidence),
            settings,
            is_passive,
            canaries: Mutex::new(canaries),
            devices: Mutex::default(),
            routes: RwLock::default(),
            answered: RwLock::default(),
            retired: Mutex::default(),
            failures: Mutex::default(),
            get_device,
        }
    }

    /// What a call leads to: one look-up in memory where it was seen before.
    pub(crate) fn decide(&self, real: &'static Real, call: &Call) -> Decision {
        let Some(described) = Described::read(real, call) else {
            let is_null = [call.convolution, call.x, call.w, call.y].iter().any(|it| it.is_null());
            return if is_null {
                Decision::Refuse(BAD_PARAMETER)
            } else {
                self.not_ours("its descriptors are not supported")
            };
        };
        let key = (self.current_device(), real.base, described);
        if self.settings.cache_decisions
            && let Some(decision) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(&key)
        {
            return decision.clone();
        }
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let was_ours = self.answered.read().unwrap_or_else(PoisonError::into_inner).contains(&hash);
        let decision = self.plan(real, key.0, &described, was_ours);
        if matches!(decision, Decision::Ours(_)) && !was_ours {
            self.answered.write().unwrap_or_else(PoisonError::into_inner).insert(hash);
        }
        self.keep(key, decision)
    }

    /// Keeps a decision. One that stands already and says the same stays, with what was loaded and counted for it: two threads may
    /// plan one call, and without a cache of decisions each call is planned.
    fn keep(&self, key: Key, decision: Decision) -> Decision {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= MOST_ROUTES && !routes.contains_key(&key) {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            for decision in routes.values() {
                decision.add_to(&mut retired);
            }
            routes.clear();
        }
        let known = routes.entry(key).or_insert_with(|| decision.clone());
        match (&*known, decision) {
            (Decision::Ours(old), Decision::Ours(new)) if old.does_the_same_as(&new) => {}
            (Decision::Ours(old), Decision::Ours(new)) => *known = Decision::Ours(Arc::new(new.instead_of(old))),
            (Decision::Ours(old), other) => {
                old.add_to(&mut self.retired.lock().unwrap_or_else(PoisonError::into_inner));
                *known = other;
            }
            (_, other) => *known = other,
        }
        known.clone()
    }

    fn current_device(&self) -> i32 {
        let mut ordinal = 0;
        if let Some(get_device) = self.get_device {
            // SAFETY: a place for the number.
            unsafe { get_device(&mut ordinal) };
        }
        ordinal
    }

    /// What becomes of what our engines do not know: on an affected card nothing unproven of MIOpen's runs.
    fn not_ours(&self, reason: &str) -> Decision {
        if !self.is_endangered() {
            return Decision::Forward(None);
        }
        say(&format!("a convolution is refused (not implemented): {reason}, and MIOpen is not proven on this card"));
        Decision::Refuse(NOT_IMPLEMENTED)
    }

    /// Whether the card that would compute now is an RDNA1 card.
    pub(crate) fn is_endangered(&self) -> bool {
        self.machine.affected() && self.device(self.current_device()).map_or(true, |device| device.affected)
    }

    /// The card of that number, opened once.
    pub(crate) fn device(&self, ordinal: i32) -> Result<Arc<Device>, String> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let known = devices.entry(ordinal).or_insert_with(|| {
            let opened = Device::open(ordinal, &self.machine, Some(&self.store)).map(Arc::new);
            if let Err(error) = &opened {
                say(&format!("our GPU kernels are not used: {error}"));
            }
            opened
        });
        known.clone()
    }

    /// The card that is current.
    pub(crate) fn device_now(&self) -> Result<Arc<Device>, String> {
        self.device(self.current_device())
    }

    /// Plans a call. `was_ours`: a search before this was answered by us, so that the real library has not searched.
    fn plan(&self, real: &'static Real, ordinal: i32, described: &Described, was_ours: bool) -> Decision {
        let convolution = match described.convolution() {
            Ok(convolution) => convolution,
            Err(reason) => return self.not_ours(&reason),
        };
        let device = match self.device(ordinal) {
            Ok(device) => device,
            Err(reason) => return self.not_ours(&reason),
        };
        let situation = self.situation(&device);
        let plan = self.planned(&convolution.problem, situation);
        for warning in &plan.warnings {
            say(warning);
        }
        let engines: Vec<EngineName> = plan.engines.iter().copied().filter(|it| *it != EngineName::Aten).collect();
        if self.settings.verbose {
            let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
            say(&format!("{} -> {}: {}", convolution.problem, names.join(" then "), plan.reason));
        }
        self.store.count_seen(&self.fingerprint, &convolution.problem, 1);
        match engines.first() {
            None => self.not_ours(&plan.reason),
            Some(EngineName::Miopen) if !was_ours => {
                let (problems, engine) = (vec![convolution.problem], EngineName::Miopen);
                Decision::Forward(Some(Arc::new(Subject {
                    problems,
                    engine,
                    candidate: String::new(),
                    rehearsed: canary::is_emulated(),
                })))
            }
            Some(_) => {
                let caller = lookup::caller().map(|(path, _)| path.to_string_lossy().into_owned()).unwrap_or_default();
                Decision::Ours(Arc::new(Route::new(real, device, convolution, engines, plan.tile, caller)))
            }
        }
    }

    /// Runs a call of the handle's stream, watched where that is wanted.
    pub(crate) fn watched<T>(
        &self,
        real: &Real,
        handle: Opaque,
        subject: impl FnOnce() -> Option<Arc<Subject>>,
        run: impl FnOnce() -> T,
    ) -> T {
        self.watched_in(|| stream_of(real, handle), subject, run)
    }

    /// The same of a call in a stream.
    pub(crate) fn watched_in<T>(
        &self,
        stream: impl FnOnce() -> Option<u64>,
        subject: impl FnOnce() -> Option<Arc<Subject>>,
        run: impl FnOnce() -> T,
    ) -> T {
        // A fault of the watchdog's is no fault of the call's, and one of the call's ends the watching too.
        let _watched = catch_unwind(AssertUnwindSafe(|| {
            let watchdog = watch::watchdog(&self.store, &self.fingerprint)?;
            watch::Watched::begin(watchdog, &subject()?, self.current_device(), stream()?)
        }));
        run()
    }

    /// Whether one way of computing a problem by our kernels was seen here not to work when it was measured.
    pub(crate) fn refuses(&self, problem: &Problem, candidate: &str) -> bool {
        let evidence = self.evidence.read().unwrap_or_else(PoisonError::into_inner);
        evidence.about(problem, EngineName::Jit, candidate).is_some_and(|known| known.is_refutation())
    }

    /// Keeps what was measured, for the next process.
    pub(crate) fn keep_tuning(&self, tuning: Tuning) {
        self.store.keep_tuning(tuning);
    }

    fn planned(&self, problem: &Problem, mut situation: Situation) -> Plan {
        for ((failed, engine), detail) in self.failures.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if failed == problem {
                let absent = Availability::Absent(format!("failed in this process: {detail}"));
                situation = situation.with(*engine, absent);
            }
        }
        let evidence = self.evidence.read().unwrap_or_else(PoisonError::into_inner);
        plan(problem, &self.settings.plan, &situation, &evidence)
    }

    /// What is here for tensors on a card: facts, which are judged where those of every face are.
    pub(crate) fn situation(&self, device: &Arc<Device>) -> Situation {
        let is_zero = |name: &str| std::env::var(name).is_ok_and(|value| value == "0");
        let mut facts = Facts {
            spoofed: device.spoofed,
            shielded: unhang_machine::is_shielded(std::env::var("HSA_TOOLS_LIB").ok().as_deref()),
            miopen_families: MiopenFamilies::left_on(is_zero),
            ..Facts::on_accelerator(device.affected)
        };
        facts.absent.push((EngineName::Aten, "it is torch's, and this is MIOpen's boundary".to_owned()));
        if let Err(error) = device.engine.has_kernels() {
            facts.absent.push((EngineName::Jit, error.to_string()));
        } else if self.settings.plan.strategy != Strategy::CpuFallback {
            let found = device.canaries.get_or_init(|| {
                let found = canary::ensure(self, device);
                let passed = found.iter().filter(|it| matches!(it.ended, Some((Verdict::Works, _))));
                device.engine.allow(Some(passed.map(|it| it.part.clone()).collect()));
                found
            });
            // Copies and biases compute no convolution: that they work says nothing of the engine.
            facts.canaries = found.iter().filter(|it| it.part != strided::FAMILY).cloned().collect();
        }
        facts.situation()
    }

    /// How a canary ended on this machine.
    pub(crate) fn canary(&self, name: &str) -> Option<(Verdict, String)> {
        self.canaries.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Keeps how a canary ended, here and for the next process.
    pub(crate) fn keep_canary(&self, name: &str, verdict: Verdict, detail: &str) {
        let mut known = self.canaries.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), (verdict, detail.to_owned()));
        drop(known);
        self.store.keep_canary(Canary {
            machine: self.fingerprint.clone(),
            name: name.to_owned(),
            verdict,
            detail: detail.to_owned(),
            unix_seconds: time::now(),
        });
    }

    /// Learns how a convolution ended on an engine in this run.
    pub(crate) fn learn(&self, problem: &Problem, engine: EngineName, verdict: Verdict, detail: &str) {
        let record =
            Record::new(problem.clone(), engine, &self.fingerprint, verdict, canary::source()).with_detail(detail);
        self.store.record(record.clone());
        self.evidence.write().unwrap_or_else(PoisonError::into_inner).learn(record);
    }

    /// Notes that an engine failed on a problem, and has everything planned anew.
    pub(crate) fn note_failure(&self, route: &Route, engine: EngineName, verdict: Verdict, detail: &str) {
        let problem = &route.convolution.problem;
        self.learn(problem, engine, verdict, detail);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.insert((problem.clone(), engine), detail.to_owned());
        drop(failures);
        say(&format!(
            "{engine} failed on {problem} ({detail}); computed by the next engine, and not tried for it again"
        ));
        let concerned: Vec<(Key, &'static Real)> = {
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            let of_problem = |(key, decision): (&Key, &Decision)| match decision {
                Decision::Ours(route) if route.convolution.problem == *problem => Some((*key, route.real)),
                _ => None,
            };
            routes.iter().filter_map(of_problem).collect()
        };
        for (key, real) in concerned {
            // What we searched for stays ours: the real library would not execute without its own search.
            self.keep(key, self.plan(real, key.0, &key.2, true));
        }
    }

    /// Everything that was computed here.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.retired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for decision in self.routes.read().unwrap_or_else(PoisonError::into_inner).values() {
            decision.add_to(&mut totals);
        }
        totals
    }

    /// Writes what is queued to the store.
    pub(crate) fn flush(&self) {
        self.store.flush(std::time::Duration::from_secs(2));
    }
}

/// The stream of a handle.
pub(crate) fn stream_of(real: &Real, handle: Opaque) -> Option<u64> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the caller's handle, and a place for the stream.
    (!handle.is_null() && unsafe { real.functions.stream?(handle, &mut stream) } == SUCCESS).then_some(stream as u64)
}
