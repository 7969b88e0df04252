//! From a call to the engine that computes it: settings, cards, canaries and plans of a process whose face hands over
//! memory and a stream. Created with the first convolution.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::Store;
use unhang_gpu::{pooling, reduction, strided};
use unhang_machine::{Machine, System};
use unhang_plan::{CanaryFact, Facts, MiopenFamilies, Plan, ProcessSettings, Situation, Strategy, Value};
use unhang_probe::canary::{self, Families};

use crate::canaries::PARTS;
use crate::device::Device;
use crate::normalization::Normalizing;
use crate::operation::Proof;
use crate::proof::{self, Family};
use crate::remembered::hash_of;
use crate::route::{Route, Totals};
use crate::session::{Session, locked};
use crate::subject::Subject;
use crate::talk::say_once as say;
use crate::view::Convolution;
use crate::volume_route::{Asked, VolumeConvolution, VolumeRoute};
use crate::watchdog::{Watchdog, WatchedCall};

/// A program with ever new sizes must not fill its memory with plans.
const MOST_ROUTES: usize = 10_000;
/// Switches everything off.
const DISABLE: &str = "UNHANG_DISABLE";

/// What a face must provide.
pub trait Face: Send + Sync {
    /// The key of a decision: everything that distinguishes one call from another.
    type Key: Copy + Eq + Hash + Send + Sync;

    /// The number of the device on which the calling thread computes.
    fn device(&self) -> i32;

    /// The engines that this face does not have, and why.
    fn absent(&self) -> Vec<(EngineName, String)>;

    /// Where the general kernels of the package lie.
    fn shipped_kernels(&self) -> Option<PathBuf>;

    /// The kernel families to try, which are the only ones used; all of them if none is named.
    fn only_families(&self) -> Option<Vec<String>>;

    /// Tries kernel families of a device in a child process with a deadline: [`try_families_of`].
    fn try_in_child(&self, device: i32, families: &[String], deadline: Duration) -> Families;

    /// The caller's file, for the totals at the end.
    fn caller(&self) -> String;

    /// The watchdog of this process, if one is wanted.
    fn watchdog(&self, session: &Session) -> Option<&'static Watchdog>;
}

/// What a call leads to.
#[derive(Clone)]
pub enum Decision {
    /// The vendor's library computes; the convolution, if known.
    Forward(Option<Arc<Subject>>),
    /// Nobody does.
    Refuse,
    /// We do.
    Ours(Arc<Route>),
    /// We compute a 3-d convolution.
    Volume(Arc<VolumeRoute>),
}

impl Decision {
    fn add_to(&self, totals: &mut Totals) {
        match self {
            Decision::Ours(route) => route.add_to(totals),
            Decision::Volume(route) => route.add_to(totals),
            Decision::Forward(_) | Decision::Refuse => {}
        }
    }
}

/// One process behind a face.
pub struct Process<F: Face> {
    face: F,
    id: u32,
    session: Session,
    settings: ProcessSettings,
    /// Whether everything goes to the vendor's library.
    is_passive: bool,
    devices: Mutex<HashMap<i32, Result<Arc<Device>, String>>>,
    routes: RwLock<HashMap<F::Key, Decision>>,
    /// The hashes of calls that were once planned as ours: the vendor's library has not searched for them, so it would
    /// not execute them.
    answered: RwLock<HashSet<u64>>,
    /// The counts of routes that were dropped.
    retired: Mutex<Totals>,
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The settings from variables; an invalid one is reported and ignored.
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

/// The families that a canary tries on a device behind a face, most general first. Copies and biases are one of them,
/// normalisations, poolings and reductions others.
fn families_of(device: &Device, only: Option<Vec<String>>) -> Vec<Family> {
    let mut families = proof::families(&device.engine);
    families.extend(PARTS.map(|name| Family { name: name.to_owned(), tries: Vec::new() }));
    if let Some(only) = only {
        families.retain(|family| only.contains(&family.name));
    }
    families.sort_by_key(|it| (it.name != "plain", it.name != strided::FAMILY, it.name.clone()));
    families
}

/// In the child of [`Face::try_in_child`]: tries these families of a device.
pub fn try_families_of(device: &Device, wanted: &[String]) {
    let families = families_of(device, Some(wanted.to_vec()));
    let name_of = |family: &str| device.card.name_of_family(&device.engine, family);
    let proofs = [Proof::of::<Normalizing>(), Proof::of::<pooling::Task>(), Proof::of::<reduction::Task>()];
    let proof_of = |family: &str| proofs.iter().find(|proof| proof.family == family);
    let try_part = |part: &str| match proof_of(part) {
        Some(proof) => (proof.run)(device),
        None => device.try_strided().map_err(|error| error.to_string()),
    };
    // An error here happens again in the family's trial, which reports it.
    for proof in families.iter().filter_map(|family| proof_of(&family.name)) {
        let _ = (proof.prepare)(device);
    }
    if families.iter().any(|family| family.name == strided::FAMILY) {
        device.prepare_strided();
    }
    proof::try_families(&device.engine, &families, &name_of, &try_part);
}

impl<F: Face> Process<F> {
    /// What this process knows, from the machine and the variables. `software` names the vendor's library, as `unhang
    /// probe` does; `is_off` leaves everything to that library.
    pub fn new(software: &str, is_off: bool, face: impl FnOnce(&Machine) -> F) -> Process<F> {
        let machine = Machine::inspect(&System::host());
        let face = face(&machine);
        let settings = settings();
        let is_off = is_off || is_set(DISABLE);
        let store = Arc::new(if is_off { Store::none() } else { Store::open_default() });
        for notice in store.notices() {
            say(&notice);
        }
        let fingerprint = machine.fingerprint(Some(software));
        let session = Session::new(machine, fingerprint, store);
        // Without an affected card, a setting or evidence, the vendor's library is left alone, at no cost.
        let nothing_known = session.evidence(false).records().next().is_none();
        let is_auto = settings.plan.strategy == Strategy::Auto;
        let is_passive = is_off || (!session.machine().affected() && is_auto && nothing_known);
        Process { is_passive, ..Process::of(face, session, settings) }
    }

    /// One that decides.
    pub(crate) fn of(face: F, session: Session, settings: ProcessSettings) -> Process<F> {
        Process {
            face,
            id: std::process::id(),
            session,
            settings,
            is_passive: false,
            devices: Mutex::default(),
            routes: RwLock::default(),
            answered: RwLock::default(),
            retired: Mutex::default(),
        }
    }

    /// Whether it belongs to this process; a forked child has its parent's runtime.
    pub fn is_own(&self) -> bool {
        self.id == std::process::id()
    }

    /// Whether it decides anything.
    pub fn is_active(&self) -> bool {
        self.is_own() && !self.is_passive
    }

    /// Machine, store, evidence and canaries.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was asked for.
    pub fn settings(&self) -> &ProcessSettings {
        &self.settings
    }

    /// The decision for a call: one look-up in memory if the call is known. `asked` is the convolution, or why our
    /// engines do not support it.
    pub fn decide(&self, key: F::Key, asked: impl FnOnce() -> Result<Asked, String>) -> Decision {
        if self.settings.cache_decisions
            && let Some(decision) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(&key)
        {
            return decision.clone();
        }
        let hash = hash_of(&key);
        let was_ours = self.answered.read().unwrap_or_else(PoisonError::into_inner).contains(&hash);
        let decision = match asked() {
            Ok(Asked::Plane(convolution)) => self.plan(self.device_number(), convolution, was_ours),
            Ok(Asked::Volume(convolution)) => self.plan_volume(self.device_number(), convolution, was_ours),
            Err(reason) => self.not_ours(&reason),
        };
        if matches!(decision, Decision::Ours(_) | Decision::Volume(_)) && !was_ours {
            self.answered.write().unwrap_or_else(PoisonError::into_inner).insert(hash);
        }
        self.keep(key, decision)
    }

    /// Stores a decision. An equal one that is stored already stays, with its loaded kernels and counts: two threads
    /// may plan one call, and without a cache of decisions each call is planned.
    fn keep(&self, key: F::Key, decision: Decision) -> Decision {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= MOST_ROUTES && !routes.contains_key(&key) {
            let mut retired = locked(&self.retired);
            for decision in routes.values() {
                decision.add_to(&mut retired);
            }
            routes.clear();
        }
        let known = routes.entry(key).or_insert_with(|| decision.clone());
        match (&*known, decision) {
            (Decision::Ours(old), Decision::Ours(new)) if old.does_the_same_as(&new) => {}
            (Decision::Ours(old), Decision::Ours(new)) => *known = Decision::Ours(Arc::new(new.instead_of(old))),
            (Decision::Volume(old), Decision::Volume(new)) if old.does_the_same_as(&new) => {}
            (Decision::Volume(old), Decision::Volume(new)) => {
                new.go_on_from(old);
                *known = Decision::Volume(new);
            }
            (old @ (Decision::Ours(_) | Decision::Volume(_)), other) => {
                old.add_to(&mut locked(&self.retired));
                *known = other;
            }
            (_, other) => *known = other,
        }
        known.clone()
    }

    /// The decision for a call that our engines do not support: on an affected card nothing unproven of the vendor's
    /// runs.
    pub fn not_ours(&self, reason: &str) -> Decision {
        if !self.is_endangered() {
            return Decision::Forward(None);
        }
        say(&format!("a convolution is refused (not implemented): {reason}, and MIOpen is not proven on this card"));
        Decision::Refuse
    }

    /// Whether the current card is an RDNA1 card.
    pub fn is_endangered(&self) -> bool {
        self.session.machine().affected() && self.device_now().map_or(true, |device| device.affected)
    }

    /// The number of the card that is current.
    pub fn device_number(&self) -> i32 {
        self.face.device()
    }

    /// The card that is current, opened once.
    pub fn device_now(&self) -> Result<Arc<Device>, String> {
        self.device(self.device_number())
    }

    fn device(&self, ordinal: i32) -> Result<Arc<Device>, String> {
        let mut devices = locked(&self.devices);
        let known = devices.entry(ordinal).or_insert_with(|| {
            let (machine, store) = (self.session.machine(), self.session.store());
            let opened = Device::open(ordinal, machine, Some(store), self.face.shipped_kernels()).map(Arc::new);
            if let Err(error) = &opened {
                say(&format!("our GPU kernels are not used: {error}"));
            }
            opened
        });
        known.clone()
    }

    /// Plans a call. `was_ours`: we answered an earlier search for it, so the vendor's library has not searched.
    fn plan(&self, ordinal: i32, convolution: Convolution, was_ours: bool) -> Decision {
        let device = match self.device(ordinal) {
            Ok(device) => device,
            Err(reason) => return self.not_ours(&reason),
        };
        let (engines, plan) = self.engines_for(ordinal, &device, &convolution.problem);
        match engines.first() {
            None => self.not_ours(&plan.reason),
            Some(EngineName::Miopen) if !was_ours => {
                let is_rehearsal = self.session.machine().emulated;
                let subject = Subject::new(&convolution.problem, EngineName::Miopen, is_rehearsal);
                Decision::Forward(Some(Arc::new(subject)))
            }
            Some(_) => {
                let caller = self.face.caller();
                Decision::Ours(Arc::new(Route::new(device, convolution, engines, plan.tile, caller)))
            }
        }
    }

    /// The engines for a convolution of this face, in order.
    fn engines_for(&self, ordinal: i32, device: &Arc<Device>, problem: &Problem) -> (Vec<EngineName>, Plan) {
        let situation = self.situation(device);
        let plan = self.session.plan(problem, &ordinal.to_string(), &self.settings.plan, &situation, false);
        for warning in &plan.warnings {
            say(warning);
        }
        let engines: Vec<EngineName> = plan.engines.iter().copied().filter(|it| *it != EngineName::Aten).collect();
        if self.settings.verbose {
            let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
            say(&format!("{problem} -> {}: {}", names.join(" then "), plan.reason));
        }
        self.session.saw(problem);
        (engines, plan)
    }

    /// Plans a 3-d call: the 2-d convolutions that it is folded into. Their verdicts say nothing about the vendor's 3-d
    /// kernels: on an affected card these compute only if no other engine may.
    fn plan_volume(&self, ordinal: i32, convolution: VolumeConvolution, was_ours: bool) -> Decision {
        let device = match self.device(ordinal) {
            Ok(device) => device,
            Err(reason) => return self.not_ours(&reason),
        };
        let volume = &convolution.volume;
        let most = usize::try_from(device.engine.workspace_limit()).unwrap_or(usize::MAX) / volume.data_type().size();
        let fold = match volume.fold(volume.fold_limit().min(most)) {
            Ok(fold) => fold,
            Err(error) => return self.not_ours(&error.to_string()),
        };
        let Some(first) = fold.parts.first() else { return self.not_ours("it has no parts") };
        let (engines, _) = self.engines_for(ordinal, &device, &first.problem);
        let is_vendors = engines.first() == Some(&EngineName::Miopen) && (!device.affected || engines.len() == 1);
        if is_vendors && !was_ours {
            return Decision::Forward(None);
        }
        let plan = |part: Convolution| {
            let (mut engines, plan) = self.engines_for(ordinal, &device, &part.problem);
            engines.retain(|it| *it != EngineName::Miopen);
            match engines.is_empty() {
                true => Err(plan.reason),
                false => Ok(Route::new(device.clone(), part, engines, plan.tile, String::new())),
            }
        };
        match VolumeRoute::new(device.clone(), convolution.clone(), &fold, self.face.caller(), plan) {
            Ok(route) => Decision::Volume(Arc::new(route)),
            Err(reason) => self.not_ours(&reason),
        }
    }

    /// Runs a call in a stream, watched if that is wanted.
    pub fn watched<T>(
        &self,
        stream: impl FnOnce() -> Option<u64>,
        subject: impl FnOnce() -> Option<Arc<Subject>>,
        run: impl FnOnce() -> T,
    ) -> T {
        // A failing watchdog does not fail the call, and a failing call also ends the watching.
        let _watched = catch_unwind(AssertUnwindSafe(|| {
            let watchdog = self.face.watchdog(&self.session)?;
            let call = watchdog.begin(&subject()?, self.face.device(), stream()?)?;
            Some(Watched { watchdog, call })
        }));
        run()
    }

    /// The facts about tensors on a card; every face's facts are judged in one place.
    pub fn situation(&self, device: &Arc<Device>) -> Situation {
        let is_zero = |name: &str| std::env::var(name).is_ok_and(|value| value == "0");
        let mut facts = Facts {
            spoofed: device.spoofed,
            shielded: unhang_machine::is_shielded(std::env::var("HSA_TOOLS_LIB").ok().as_deref()),
            miopen_families: MiopenFamilies::left_on(is_zero),
            absent: self.face.absent(),
            ..Facts::on_accelerator(device.affected)
        };
        if let Err(error) = device.engine.has_kernels() {
            facts.absent.push((EngineName::Jit, error.to_string()));
        } else if self.settings.plan.strategy != Strategy::CpuFallback {
            let found = device.canaries.get_or_init(|| {
                let found = self.ensure_canaries(device);
                let passed = found.iter().filter(|it| matches!(it.ended, Some((Verdict::Works, _))));
                device.engine.allow(Some(passed.map(|it| it.part.clone()).collect()));
                found
            });
            // Working copies, biases and normalisations say nothing about an engine for convolutions.
            facts.canaries = found.iter().filter(|it| !PARTS.contains(&it.part.as_str())).cloned().collect();
        }
        facts.situation()
    }

    /// The canaries' verdicts on our kernels on a card; missing ones are tried, once for this machine.
    fn ensure_canaries(&self, device: &Device) -> Vec<CanaryFact> {
        let families = families_of(device, self.face.only_families());
        let families: Vec<String> = families.into_iter().map(|family| family.name).collect();
        let deadline = canary::deadline(EngineName::Jit);
        // The family that computes every convolution comes first and alone: compiling all the others takes a while.
        let (first, rest) = families.split_at(2.min(families.len()));
        let run = |asked: &[String]| Ok::<_, Infallible>(self.face.try_in_child(device.ordinal, asked, deadline));
        let groups = [first, rest];
        match self.session.ensure_families(&device.card, &device.engine, &groups, deadline, run, &say) {
            Ok(()) => self.session.family_facts(&device.card, &device.engine, &families),
            Err(never) => match never {},
        }
    }

    /// Notes that an engine failed on a problem, and plans everything again.
    pub(crate) fn note_failure(&self, route: &Route, engine: EngineName, verdict: Verdict, detail: &str) {
        let problem = &route.convolution.problem;
        self.session.learn(problem, engine, verdict, None, detail);
        self.session.note_failure(problem, &route.device.ordinal.to_string(), engine, detail);
        say(&format!(
            "{engine} failed on {problem} ({detail}); computed by the next engine, and not tried for it again"
        ));
        let concerned: Vec<(F::Key, Decision)> = {
            let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
            let is_concerned = |decision: &Decision| match decision {
                Decision::Ours(route) => route.convolution.problem == *problem,
                Decision::Volume(route) => route.has(problem),
                Decision::Forward(_) | Decision::Refuse => false,
            };
            let all = routes.iter().filter(|(_, decision)| is_concerned(decision));
            all.map(|(key, decision)| (*key, decision.clone())).collect()
        };
        for (key, decision) in concerned {
            // A call that we searched for stays ours: the vendor's library would not execute it without its own search.
            let planned = match decision {
                Decision::Ours(route) => self.plan(route.device.ordinal, route.convolution.clone(), true),
                Decision::Volume(route) => self.plan_volume(route.device.ordinal, route.convolution.clone(), true),
                other => other,
            };
            self.keep(key, planned);
        }
    }

    /// Everything that was computed here.
    pub fn totals(&self) -> Totals {
        let mut totals = locked(&self.retired).clone();
        for decision in self.routes.read().unwrap_or_else(PoisonError::into_inner).values() {
            decision.add_to(&mut totals);
        }
        totals
    }
}

/// A call that is watched until this is dropped.
struct Watched {
    watchdog: &'static Watchdog,
    call: WatchedCall,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.watchdog.end(&self.call)));
    }
}
