//! The strategies.

use unhang_conv::{Problem, Specification};
use unhang_engine::EngineName;
use unhang_evidence::Evidence;

use crate::assess::{Assessment, Worth, assess};
use crate::plan::{Plan, Reference, TilePlan};
use crate::situation::{Availability, Device, Situation};
use crate::strategy::{Settings, Strategy};

use EngineName::{Aten, Cpu, Jit, Miopen, Tiled};

/// Makes a plan.
///
/// Whatever failed here is excluded, whatever the strategy: a process restarted after a hang must not repeat it.
/// Suspicions (rules, imports) influence `auto` only; the literal strategies warn about them and go on.
pub fn plan(problem: &Problem, settings: &Settings, situation: &Situation, evidence: &Evidence) -> Plan {
    let planner = Planner::new(problem, settings, situation, evidence);
    match settings.strategy {
        Strategy::Auto => planner.auto(),
        Strategy::ImplicitGemm => planner.implicit_gemm(),
        Strategy::CpuFallback => planner.literal(Cpu, "cpu_fallback computes everything on the CPU".to_owned()),
        Strategy::Selective => planner.selective(),
        Strategy::Aten => planner.proven_only(Aten, "aten is what was asked for"),
        Strategy::Jit => planner.proven_only(Jit, "jit is what was asked for"),
        Strategy::Tiled => planner.tiled(evidence),
    }
}

struct Planner<'a> {
    problem: &'a Problem,
    settings: &'a Settings,
    situation: &'a Situation,
    /// The engines that compute by themselves, in order of preference when nothing is known.
    field: [Assessment; 4],
}

/// An order of engines, and the words for it.
struct Order {
    engines: Vec<EngineName>,
    reason: String,
    warnings: Vec<String>,
}

impl<'a> Planner<'a> {
    fn new(problem: &'a Problem, settings: &'a Settings, situation: &'a Situation, evidence: &Evidence) -> Planner<'a> {
        let field = [Jit, Aten, Miopen, Cpu].map(|engine| assess(problem, engine, situation, evidence));
        Planner { problem, settings, situation, field }
    }

    fn worth(&self, engine: EngineName) -> &Worth {
        let found = self.field.iter().find(|assessment| assessment.engine == engine);
        found.map_or(&Worth::Open, |assessment| &assessment.worth)
    }

    fn is_out(&self, engine: EngineName) -> bool {
        matches!(self.worth(engine), Worth::Out(_))
    }

    /// The engines that worked here: the fastest measured first, then those without a time.
    fn proven(&self) -> Vec<(EngineName, Option<f64>)> {
        let mut proven: Vec<(EngineName, Option<f64>)> = self
            .field
            .iter()
            .filter_map(|it| if let Worth::Proven(seconds) = it.worth { Some((it.engine, seconds)) } else { None })
            .collect();
        // The sort is stable, so equal engines keep the order of preference.
        proven.sort_by(|a, b| a.1.unwrap_or(f64::INFINITY).total_cmp(&b.1.unwrap_or(f64::INFINITY)));
        proven
    }

    fn finish(&self, order: Order) -> Plan {
        let Order { mut engines, reason, mut warnings } = order;
        let mut seen = Vec::new();
        engines.retain(|engine| {
            let usable = !self.is_out(*engine) && !seen.contains(engine);
            seen.push(*engine);
            usable
        });
        if engines.is_empty() {
            engines.push(if self.situation.is_endangered() { Cpu } else { Aten });
        }
        let suspect = self.situation.spoofed && !self.situation.shielded;
        if self.situation.is_endangered() && suspect && matches!(engines[0], Aten | Miopen) {
            warnings.push(
                "the runtime takes this card for another one (HSA_OVERRIDE_GFX_VERSION): every GPU kernel that \
                 torch loads is suspect, and without the shield (`unhang run`) only convolutions are protected"
                    .to_owned(),
            );
        }
        let evidence: Vec<Reference> = self.field.iter().flat_map(|it| it.references.clone()).collect();
        Plan { engines, tile: None, reason, evidence, warnings }
    }

    // ---- auto ----

    fn auto(&self) -> Plan {
        self.finish(self.auto_order())
    }

    fn auto_order(&self) -> Order {
        if self.situation.is_endangered() { self.protect() } else { self.leave_alone() }
    }

    /// A machine without an affected card, or tensors in host memory: torch's own choice, unless evidence from here
    /// contradicts it.
    fn leave_alone(&self) -> Order {
        let own = self.situation.torch_engine();
        let what = match (self.situation.device, own) {
            (Device::Cpu, _) => "the tensors are in the host's memory, where torch's own kernels are safe",
            (_, Miopen) => "this machine has no RDNA1 card, so torch and its MIOpen are left alone",
            _ => "this machine has no RDNA1 card, so torch is left alone",
        };
        let mut engines = vec![own];
        if self.situation.device == Device::Accelerator {
            engines.push(Aten);
        }
        let cpu_allowed = self.situation.device == Device::Cpu || self.settings.cpu_fallback_enabled;
        let allowed = |engine: EngineName| engine != Cpu || cpu_allowed;
        if let Worth::Out(why) = self.worth(own) {
            let others = self.proven().into_iter().map(|it| it.0).chain([Aten, Jit, Cpu]);
            let engines: Vec<EngineName> = others.filter(|engine| !self.is_out(*engine) && allowed(*engine)).collect();
            let mut order = Order { reason: why.clone(), engines, warnings: Vec::new() };
            match order.engines.first() {
                Some(first) => order.reason = format!("{why}; {first} is next"),
                None => order.warnings.push(format!("{own} is used although {why}: no other engine is available")),
            }
            return order;
        }
        let mut proven = self.proven();
        proven.retain(|it| allowed(it.0));
        let own_seconds = proven.iter().find(|it| it.0 == own).and_then(|it| it.1);
        if let (Some(&(fastest, Some(seconds))), Some(own_seconds)) = (proven.first(), own_seconds)
            && fastest != own
        {
            let times = format!("{} against {}", milliseconds(seconds), milliseconds(own_seconds));
            let reason = format!("{fastest} was measured as faster here than {own} ({times})");
            engines.insert(0, fastest);
            return Order { engines, reason, warnings: Vec::new() };
        }
        Order { engines, reason: what.to_owned(), warnings: Vec::new() }
    }

    /// An affected card: first what worked here, fastest first; then what has no evidence against it; then the CPU.
    fn protect(&self) -> Order {
        let proven = self.proven();
        let cpu_allowed = self.settings.cpu_fallback_enabled;
        // MIOpen is the reason for all this. On an affected card it needs proof.
        let open: Vec<EngineName> =
            [Jit, Aten].into_iter().filter(|engine| *self.worth(*engine) == Worth::Open).collect();
        let mut engines: Vec<EngineName> = proven.iter().map(|it| it.0).collect();
        // The CPU is a fallback, not a competitor, while a GPU engine waits to be tried. Otherwise the first run on
        // the CPU would decide for good.
        let untimed_cpu = proven.contains(&(Cpu, None));
        if !cpu_allowed || untimed_cpu || (!open.is_empty() && engines.first() == Some(&Cpu)) {
            engines.retain(|engine| *engine != Cpu);
        }
        let timed = proven.iter().filter(|it| it.1.is_some() && engines.contains(&it.0)).count();
        let by_proof = engines.first().copied();
        engines.extend(open);
        if cpu_allowed && !self.is_out(Cpu) {
            engines.push(Cpu);
        }
        let mut warnings = Vec::new();
        let mut reason = match (by_proof, engines.first()) {
            (Some(first), _) if timed > 1 => {
                format!("{first} is the fastest of the engines that were seen to work here")
            }
            (Some(first), _) => format!("{first} was seen to work here"),
            (None, Some(&Cpu)) => "the CPU is always safe".to_owned(),
            (None, Some(first)) => format!("{first} is available, and there is no evidence against it"),
            (None, None) if cpu_allowed => {
                warnings.push("the CPU is used although it failed here before: no other engine is left".to_owned());
                "only the CPU is left".to_owned()
            }
            (None, None) => {
                let (desperate, why) = self.desperate();
                warnings.push(why.clone());
                engines.extend(desperate);
                why
            }
        };
        // Why the engines that would have come first did not; and why not MIOpen, which torch would have used.
        let first = engines.first().copied().unwrap_or(Cpu);
        let before = self.field.iter().position(|it| it.engine == first).unwrap_or_default();
        let passed_over: Vec<String> = self
            .field
            .iter()
            .enumerate()
            .filter(|(rank, it)| *rank < before || (it.engine == Miopen && self.speaks_against_miopen()))
            .map(|(_, it)| it)
            .filter(|it| it.engine != first && (it.engine != Miopen || self.situation.torch_engine() == Miopen))
            .filter_map(|it| match &it.worth {
                Worth::Out(why) => Some(why.clone()),
                Worth::Suspect(why) => Some(format!("{} is suspect ({why})", it.engine)),
                Worth::Unproven(_) | Worth::Open if it.engine == Miopen => Some(
                    "miopen is not used on an RDNA1 card for a convolution that it was not seen to compute".to_owned(),
                ),
                Worth::Unproven(why) => Some(format!("{} must first pass its canary on this card ({why})", it.engine)),
                Worth::Open | Worth::Proven(_) => None,
            })
            .collect();
        if !passed_over.is_empty() {
            reason = format!("{reason}; {}", passed_over.join("; "));
        }
        Order { engines, reason, warnings }
    }

    /// Whether there is any observation or claim about MIOpen here, other than that it was never tried.
    fn speaks_against_miopen(&self) -> bool {
        matches!(self.worth(Miopen), Worth::Out(_) | Worth::Suspect(_))
    }

    /// The CPU is not allowed and nothing is known to be safe: takes what is left, least doubtful first.
    fn desperate(&self) -> (Vec<EngineName>, String) {
        let of = |wanted: fn(&Worth) -> bool| {
            [Jit, Aten, Miopen].into_iter().filter(move |engine| wanted(self.worth(*engine)))
        };
        let doubtful: Vec<EngineName> = of(|worth| matches!(worth, Worth::Open))
            .chain(of(|worth| matches!(worth, Worth::Suspect(_))))
            .chain(of(|worth| matches!(worth, Worth::Unproven(_))))
            .collect();
        let why = match doubtful.first() {
            Some(first) => format!(
                "{first} is used unproven on an affected card, and may hang, because the CPU fallback is turned off"
            ),
            None => "the CPU is used although the CPU fallback is turned off: no other engine is available".to_owned(),
        };
        (doubtful, why)
    }

    // ---- the seeds' strategies, literal ----

    fn implicit_gemm(&self) -> Plan {
        let mut plan = self.literal(Miopen, "implicit_gemm asks for MIOpen".to_owned());
        if plan.choice() == Miopen && !self.settings.implicit_gemm {
            plan.reason += "; its other solver families are left on, so MIOpen may choose any solver";
        }
        plan
    }

    fn selective(&self) -> Plan {
        let [height, width] = self.problem.in_size();
        let (size, threshold) = (height.max(width), self.settings.size_threshold);
        if size <= threshold {
            self.literal(Miopen, format!("selective: {size} is not above the threshold of {threshold}"))
        } else {
            self.literal(Cpu, format!("selective: {size} is above the threshold of {threshold}"))
        }
    }

    /// The requested engine, unless it is missing or failed here.
    fn literal(&self, wanted: EngineName, asked: String) -> Plan {
        let rest = self.auto_order();
        if wanted == Cpu && !self.settings.cpu_fallback_enabled {
            return self.elsewhere(wanted, rest, asked, "but the CPU fallback is turned off");
        }
        if let Worth::Out(why) = self.worth(wanted) {
            return self.elsewhere(wanted, rest, asked, &format!("but {why}"));
        }
        let mut warnings = Vec::new();
        if self.situation.is_endangered() && wanted == Miopen && !matches!(self.worth(Miopen), Worth::Proven(_)) {
            let why = match self.worth(Miopen) {
                Worth::Suspect(why) => format!(": {why}"),
                _ => String::new(),
            };
            warnings.push(format!(
                "{} uses MIOpen on an affected card although it was not seen to work here{why}; it may hang. \
                 Strategy auto does not take the risk",
                self.settings.strategy
            ));
        }
        let mut engines = vec![wanted];
        engines.extend(rest.engines);
        self.finish(Order { engines, reason: asked, warnings })
    }

    /// The requested engine cannot be used: falls back to the order of `auto`, and says why. If the whole device lacks
    /// the engine, that is a warning.
    fn elsewhere(&self, wanted: EngineName, rest: Order, asked: String, but: &str) -> Plan {
        let Order { engines, reason, mut warnings } = rest;
        if let Availability::Absent(why) = self.situation.availability(wanted)
            && self.situation.device == Device::Accelerator
        {
            let strategy = self.settings.strategy;
            warnings.push(format!("strategy {strategy} asks for {wanted}, which is not used here: {why}"));
        }
        self.finish(Order { engines, reason: format!("{asked}, {but}; {reason}"), warnings })
    }

    // ---- ours ----

    /// The requested engine, once it is proven.
    fn proven_only(&self, wanted: EngineName, asked: &str) -> Plan {
        let rest = self.auto_order();
        let but = match self.worth(wanted) {
            Worth::Out(why) => format!("but {why}"),
            Worth::Unproven(why) => format!("but it must first pass its canary on this card ({why})"),
            Worth::Proven(_) | Worth::Open | Worth::Suspect(_) => {
                let mut warnings = Vec::new();
                if let Worth::Suspect(why) = self.worth(wanted) {
                    warnings.push(format!("{wanted} is suspect here: {why}"));
                }
                let mut engines = vec![wanted];
                engines.extend(rest.engines);
                return self.finish(Order { engines, reason: asked.to_owned(), warnings });
            }
        };
        self.elsewhere(wanted, rest, asked.to_owned(), &but)
    }

    /// Tiles that are small enough, computed by the best engine for a tile.
    fn tiled(&self, evidence: &Evidence) -> Plan {
        let whole = self.problem.lower().problem;
        let limit = self.settings.tile_limit.max(1);
        let [height, width] = whole.in_size();
        let Some((output_limit, tile_problem)) = largest_tile(&whole, limit).filter(|_| height.max(width) > limit)
        else {
            let order = self.auto_order();
            let reason = format!("tiled: {height}×{width} fits in one tile of {limit}; {}", order.reason);
            return self.finish(Order { reason, ..order });
        };
        let auto = Settings { strategy: Strategy::Auto, ..self.settings.clone() };
        let inside = Planner::new(&tile_problem, &auto, self.situation, evidence);
        let within = match self.settings.tile_engine.filter(|engine| *engine != Tiled) {
            Some(engine) => inside.literal(engine, format!("{engine} was asked for inside the tiles")),
            None => inside.auto(),
        };
        let inner = within.choice();
        let reason =
            format!("tiled: in tiles of {output_limit} output pixels a side, computed by {inner}: {}", within.reason);
        let mut engines = vec![Tiled];
        engines.extend(self.auto_order().engines);
        let mut plan = self.finish(Order { engines, reason, warnings: within.warnings });
        plan.tile = Some(TilePlan { inner, output_limit });
        // The tile is what is computed, so evidence about the tile comes first.
        plan.evidence.splice(0..0, within.evidence);
        plan
    }
}

/// The most output pixels per side whose window is no larger than `limit`, and the convolution of one such tile.
fn largest_tile(whole: &Problem, limit: usize) -> Option<(usize, Problem)> {
    let reach = |axis: usize| whole.dilation()[axis] * (whole.kernel()[axis] - 1) + 1;
    let outputs = |axis: usize| limit.saturating_sub(reach(axis)) / whole.stride()[axis] + 1;
    let output_limit = outputs(0).min(outputs(1));
    // A tile's window includes its zeros, so there is no padding: see `unhang_conv::tile`.
    let window = |axis: usize| {
        let outputs = output_limit.min(whole.out_size()[axis]);
        ((outputs - 1) * whole.stride()[axis] + reach(axis)) as i64
    };
    let specification = Specification { in_size: [window(0), window(1)], padding: [0, 0], ..whole.specification() };
    Some((output_limit, Problem::new(specification).ok()?))
}

fn milliseconds(seconds: f64) -> String {
    unhang_evidence::time::duration(seconds)
}
