//! A table of cases with their plans, and what is true in all of them.

use proptest::prelude::*;
use unhang_conv::{DataType, Problem, tile};
use unhang_engine::EngineName::{self, Aten, Cpu, Jit, Miopen, Tiled};
use unhang_engine::Verdict::{self, Hangs, Works, Wrong};
use unhang_evidence::{Evidence, Record, RecordSource};
use unhang_plan::{Availability, Device, MiopenFamilies, Plan, Settings, Situation, Strategy, plan};

const SMALL: &str = "forward:f32:nchw:1x16x32x32:32x3x3:s1x1:p1x1:d1x1:g1";
const LARGE: &str = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
const FEW_CHANNELS: &str = "forward:f32:nchw:1x3x40x40:64x3x3:s1x1:p1x1:d1x1:g1";

fn problem(key: &str) -> Problem {
    key.parse().unwrap()
}

fn settings(strategy: Strategy) -> Settings {
    Settings { strategy, ..Settings::default() }
}

fn evidence(key: &str, known: &[(EngineName, Verdict, RecordSource, Option<f64>)]) -> Evidence {
    let mut evidence = Evidence::empty("here");
    for &(engine, verdict, source, seconds) in known {
        let record = Record::new(problem(key), engine, "here", verdict, source);
        evidence.learn(Record { seconds, ..record });
    }
    evidence
}

fn canaries_passed() -> Situation {
    Situation::affected_accelerator()
        .with(Aten, Availability::Available)
        .with(Miopen, Availability::Available)
        .with(Jit, Availability::Available)
}

#[track_caller]
fn check(key: &str, settings: &Settings, situation: &Situation, evidence: &Evidence, expected: &[EngineName]) -> Plan {
    let plan = plan(&problem(key), settings, situation, evidence);
    assert_eq!(plan.engines, expected, "{plan:#?}");
    plan
}

#[test]
fn auto_on_an_affected_card_without_evidence() {
    let (auto, none) = (settings(Strategy::Auto), Evidence::empty("here"));
    let plan = check(LARGE, &auto, &Situation::affected_accelerator(), &none, &[Cpu]);
    assert!(plan.reason.contains("aten must first pass its canary"), "{}", plan.reason);
    assert!(plan.warnings.is_empty());
    check(LARGE, &auto, &canaries_passed(), &none, &[Jit, Aten, Cpu]);
    let no_jit = canaries_passed().with(Jit, Availability::Absent("no kernels".into()));
    let plan = check(LARGE, &auto, &no_jit, &none, &[Aten, Cpu]);
    assert!(plan.reason.starts_with("aten is available, and there is no evidence against it; jit"), "{}", plan.reason);
    assert!(plan.reason.contains("jit is not available (no kernels); miopen is suspect"), "{}", plan.reason);
    assert!(plan.evidence.iter().any(|it| it.source == RecordSource::Rule), "the rules about miopen are shown");
}

#[test]
fn auto_leaves_the_cpu_out_on_any_card_where_it_is_not_allowed() {
    let measured = [(Miopen, Works, RecordSource::Probe, Some(0.6)), (Cpu, Works, RecordSource::Probe, Some(1e-6))];
    let known = evidence(SMALL, &measured);
    let auto = settings(Strategy::Auto);
    let plan = check(SMALL, &auto, &Situation::accelerator(), &known, &[Cpu, Miopen, Aten]);
    assert!(plan.reason.contains("cpu was measured as faster here than miopen"), "{}", plan.reason);
    let without_cpu = Settings { cpu_fallback_enabled: false, ..auto };
    check(SMALL, &without_cpu, &Situation::accelerator(), &known, &[Miopen, Aten]);
}

#[test]
fn auto_takes_the_fastest_that_was_seen_to_work() {
    let auto = settings(Strategy::Auto);
    let known = [(Jit, Works, RecordSource::Probe, Some(2e-3)), (Aten, Works, RecordSource::Run, Some(1e-3))];
    let plan = check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Aten, Jit, Cpu]);
    assert!(plan.reason.contains("fastest"), "{}", plan.reason);
    // MIOpen is used after proof, even if rules make it suspect.
    let known = [(Miopen, Works, RecordSource::Probe, Some(1e-4)), (Jit, Works, RecordSource::Probe, Some(1e-3))];
    check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Miopen, Jit, Aten, Cpu]);
    // The CPU wins if it was measured as the fastest,
    let known = [
        (Cpu, Works, RecordSource::Run, Some(1e-5)),
        (Jit, Works, RecordSource::Probe, Some(1e-3)),
        (Aten, Wrong, RecordSource::Probe, None),
    ];
    check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Cpu, Jit]);
    // but not over one that was never tried.
    let known = [(Cpu, Works, RecordSource::Run, Some(1e-5))];
    check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Jit, Aten, Cpu]);
}

#[test]
fn bad_verdicts_are_out_and_suspicion_stands_behind() {
    let auto = settings(Strategy::Auto);
    let known = [(Jit, Hangs, RecordSource::Run, None)];
    let plan = check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Aten, Cpu]);
    assert!(plan.reason.contains("known here: jit hangs (run"), "{}", plan.reason);
    let known = [(Jit, Hangs, RecordSource::Import, None)];
    let plan = check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Aten, Cpu]);
    assert!(plan.reason.contains("jit is suspect"), "{}", plan.reason);
    // An import that says "works" proves nothing.
    let known = [(Miopen, Works, RecordSource::Import, Some(1e-9))];
    check(LARGE, &auto, &canaries_passed(), &evidence(LARGE, &known), &[Jit, Aten, Cpu]);
}

#[test]
fn a_machine_that_is_not_affected_is_left_alone() {
    let (auto, none) = (settings(Strategy::Auto), Evidence::empty("here"));
    check(LARGE, &auto, &Situation::cpu_tensors(), &none, &[Aten]);
    check(LARGE, &auto, &Situation::accelerator(), &none, &[Miopen, Aten]);
    check(LARGE, &auto, &Situation::cuda_accelerator(), &none, &[Aten]);
    // Neither rules nor strangers' files change that;
    let known = [(Miopen, Hangs, RecordSource::Import, None)];
    check(LARGE, &auto, &Situation::accelerator(), &evidence(LARGE, &known), &[Miopen, Aten]);
    // what was seen here does.
    let known = [(Miopen, Wrong, RecordSource::Probe, None)];
    check(LARGE, &auto, &Situation::accelerator(), &evidence(LARGE, &known), &[Aten, Cpu]);
    let known = [(Miopen, Works, RecordSource::Probe, Some(2e-3)), (Aten, Works, RecordSource::Probe, Some(1e-3))];
    check(LARGE, &auto, &Situation::accelerator(), &evidence(LARGE, &known), &[Aten, Miopen]);
    // Tensors in the host's memory are safe next to an affected card too.
    let beside = Situation { affected: true, ..Situation::cpu_tensors() };
    check(LARGE, &auto, &beside, &none, &[Aten]);
}

#[test]
fn the_seeds_strategies_are_literal_and_warn() {
    let none = Evidence::empty("here");
    let unproven = Situation::affected_accelerator();
    let plan = check(LARGE, &settings(Strategy::ImplicitGemm), &unproven, &none, &[Miopen, Cpu]);
    assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
    check(LARGE, &settings(Strategy::CpuFallback), &unproven, &none, &[Cpu]);
    let plan = check(SMALL, &settings(Strategy::Selective), &unproven, &none, &[Miopen, Cpu]);
    assert_eq!(plan.warnings.len(), 1);
    let plan = check(LARGE, &settings(Strategy::Selective), &unproven, &none, &[Cpu]);
    assert!(plan.warnings.is_empty() && plan.reason.contains("64 is above the threshold of 42"), "{plan:?}");
    // A card that is not affected gives no reason to warn.
    let plan = check(LARGE, &settings(Strategy::ImplicitGemm), &Situation::accelerator(), &none, &[Miopen, Aten]);
    assert!(plan.warnings.is_empty());
    // A convolution that was seen to work gives none either.
    let known = evidence(SMALL, &[(Miopen, Works, RecordSource::Probe, None)]);
    assert!(check(SMALL, &settings(Strategy::Selective), &unproven, &known, &[Miopen, Cpu]).warnings.is_empty());
}

#[test]
fn the_threshold_is_on_the_larger_side_and_includes_itself() {
    let none = Evidence::empty("here");
    for (height, width, expected) in [(42, 42, Miopen), (43, 42, Cpu), (42, 43, Cpu), (1, 44, Cpu), (1, 42, Miopen)] {
        let key = format!("forward:f32:nchw:1x3x{height}x{width}:8x1x1:s1x1:p0x0:d1x1:g1");
        let plan = plan(&problem(&key), &settings(Strategy::Selective), &Situation::accelerator(), &none);
        assert_eq!(plan.choice(), expected, "{key}");
    }
    let wider = Settings { size_threshold: 64, ..settings(Strategy::Selective) };
    assert_eq!(plan(&problem(LARGE), &wider, &Situation::accelerator(), &none).choice(), Miopen);
}

#[test]
fn where_there_is_no_miopen_aten_takes_its_place() {
    let none = Evidence::empty("here");
    for situation in [Situation::cpu_tensors(), Situation::cuda_accelerator()] {
        let plan = check(SMALL, &settings(Strategy::ImplicitGemm), &situation, &none, &[Aten]);
        assert!(plan.reason.contains("miopen is not available"), "{}", plan.reason);
        check(SMALL, &settings(Strategy::Selective), &situation, &none, &[Aten]);
        check(LARGE, &settings(Strategy::Selective), &situation, &none, &[Cpu, Aten]);
        check(LARGE, &settings(Strategy::CpuFallback), &situation, &none, &[Cpu, Aten]);
    }
}

#[test]
fn with_the_cpu_turned_off_the_next_best_is_used_and_said() {
    let none = Evidence::empty("here");
    let no_cpu = |strategy| Settings { cpu_fallback_enabled: false, ..settings(strategy) };
    let plan = check(LARGE, &no_cpu(Strategy::Selective), &canaries_passed(), &none, &[Jit, Aten]);
    assert!(plan.reason.contains("CPU fallback is turned off"), "{}", plan.reason);
    let plan = check(LARGE, &no_cpu(Strategy::CpuFallback), &Situation::accelerator(), &none, &[Miopen, Aten]);
    assert!(plan.reason.contains("CPU fallback is turned off"), "{}", plan.reason);
    let plan = check(LARGE, &no_cpu(Strategy::Auto), &Situation::affected_accelerator(), &none, &[Aten, Miopen]);
    assert!(plan.warnings[0].contains("may hang"), "{:?}", plan.warnings);
    // If nothing else is left, the CPU computes after all.
    let absent = || Availability::Absent("gone".into());
    let bare = Situation::affected_accelerator().with(Aten, absent()).with(Miopen, absent());
    let plan = check(LARGE, &no_cpu(Strategy::Auto), &bare, &none, &[Cpu]);
    assert!(plan.warnings[0].contains("no other engine"), "{:?}", plan.warnings);
}

#[test]
fn a_known_hang_is_out_whatever_was_asked_for() {
    let hangs = evidence(LARGE, &[(Miopen, Hangs, RecordSource::Run, None)]);
    let plan = check(LARGE, &settings(Strategy::ImplicitGemm), &canaries_passed(), &hangs, &[Jit, Aten, Cpu]);
    assert!(plan.reason.starts_with("implicit_gemm asks for MIOpen, but known here: miopen hangs"), "{}", plan.reason);
}

#[test]
fn without_a_solver_left_miopen_is_planned_around() {
    let none = Evidence::empty("here");
    let spoofed = |families| Situation { miopen_families: Some(families), spoofed: true, ..canaries_passed() };
    let implicit = settings(Strategy::ImplicitGemm);
    let only = spoofed(MiopenFamilies::IMPLICIT_GEMM_ONLY);
    for direction in ["forward", "backward-data", "backward-weights"] {
        let key = FEW_CHANNELS.replace("forward", direction);
        let plan = check(&key, &implicit, &only, &none, &[Jit, Aten, Cpu]);
        assert!(plan.reason.contains("3×3 filters on 3 channels"), "{}", plan.reason);
    }
    check(SMALL, &implicit, &only, &none, &[Miopen, Jit, Aten, Cpu]);
    check(FEW_CHANNELS, &implicit, &spoofed(MiopenFamilies::ALL), &none, &[Miopen, Jit, Aten, Cpu]);
    check(FEW_CHANNELS, &implicit, &spoofed(MiopenFamilies::GEMM_ONLY), &none, &[Miopen, Jit, Aten, Cpu]);
    // Native RDNA1 has no implicit-GEMM solvers at all.
    let native = Situation { spoofed: false, ..only };
    check(SMALL, &implicit, &native, &none, &[Jit, Aten, Cpu]);
}

#[test]
fn ours_wait_for_their_canary_and_fall_back_with_a_reason() {
    let none = Evidence::empty("here");
    let plan = check(LARGE, &settings(Strategy::Aten), &Situation::affected_accelerator(), &none, &[Cpu]);
    assert!(plan.reason.contains("canary"), "{}", plan.reason);
    check(LARGE, &settings(Strategy::Aten), &canaries_passed(), &none, &[Aten, Jit, Cpu]);
    check(LARGE, &settings(Strategy::Aten), &Situation::accelerator(), &none, &[Aten, Miopen]);
    let plan = check(LARGE, &settings(Strategy::Jit), &Situation::accelerator(), &none, &[Miopen, Aten]);
    assert!(plan.reason.starts_with("jit is what was asked for, but jit is not available"), "{}", plan.reason);
    let why = "strategy jit asks for jit, which is not used here: no GPU engine of ours is loaded";
    assert_eq!(plan.warnings, [why], "the user hears why, and not only who asks for the plan");
    check(LARGE, &settings(Strategy::Jit), &canaries_passed(), &none, &[Jit, Aten, Cpu]);
}

#[test]
fn tiles_carry_their_engine_and_limit() {
    let none = Evidence::empty("here");
    let plan = check(LARGE, &settings(Strategy::Tiled), &canaries_passed(), &none, &[Tiled, Jit, Aten, Cpu]);
    let tile_plan = plan.tile.unwrap();
    assert_eq!((tile_plan.inner, tile_plan.output_limit), (Jit, 30), "a 3×3 filter reads two pixels more");
    let plan = check(SMALL, &settings(Strategy::Tiled), &canaries_passed(), &none, &[Jit, Aten, Cpu]);
    assert_eq!(plan.tile, None, "it fits");
    // The inner engine is judged on the tile, not on the whole.
    let inner = "forward:f32:nchw:1x16x32x32:32x3x3:s1x1:p0x0:d1x1:g1";
    let known = evidence(inner, &[(Miopen, Works, RecordSource::Probe, Some(1e-4))]);
    let plan = check(LARGE, &settings(Strategy::Tiled), &canaries_passed(), &known, &[Tiled, Jit, Aten, Cpu]);
    assert_eq!(plan.tile.unwrap().inner, Miopen);
    let asked = Settings { tile_engine: Some(Cpu), ..settings(Strategy::Tiled) };
    assert_eq!(plan_of(LARGE, &asked).tile.unwrap().inner, Cpu);
}

fn plan_of(key: &str, settings: &Settings) -> Plan {
    plan(&problem(key), settings, &canaries_passed(), &Evidence::empty("here"))
}

#[test]
fn under_a_spoof_torch_kernels_carry_a_warning() {
    let spoofed = Situation { spoofed: true, ..canaries_passed().with(Jit, Availability::Absent("x".into())) };
    let plan = check(LARGE, &settings(Strategy::Auto), &spoofed, &Evidence::empty("here"), &[Aten, Cpu]);
    assert!(plan.warnings.iter().any(|it| it.contains("HSA_OVERRIDE_GFX_VERSION")), "{:?}", plan.warnings);
    // The shield repairs what torch loads.
    let shielded = Situation { shielded: true, ..spoofed };
    let plan = check(LARGE, &settings(Strategy::Auto), &shielded, &Evidence::empty("here"), &[Aten, Cpu]);
    assert_eq!(plan.warnings, Vec::<String>::new());
}

fn any_availability() -> impl proptest::strategy::Strategy<Value = Availability> {
    prop_oneof![
        Just(Availability::Available),
        Just(Availability::Absent("absent".into())),
        Just(Availability::Unproven("unproven".into())),
    ]
}

proptest! {
    /// For any combination of inputs, there is a plan with a reason. It names no engine twice and nothing that was seen
    /// to hang. On an affected card `auto` starts nothing unproven while the CPU is allowed.
    #[test]
    fn what_always_holds(
        problem in unhang_suite::any_problem(DataType::F32),
        strategy in prop::sample::select(Strategy::ALL.to_vec()),
        engines in prop::array::uniform3(any_availability()),
        verdicts in prop::collection::vec((prop::sample::select(vec![Jit, Aten, Miopen, Cpu]), prop::sample::select(Verdict::ALL.to_vec()), prop::option::of(1e-6..1.0f64)), 0..5),
        (affected, spoofed, on_cpu, cpu_allowed) in any::<(bool, bool, bool, bool)>(),
        tile_limit in 0usize..50,
    ) {
        let [jit, aten, miopen] = engines;
        let mut situation = Situation { affected, spoofed, ..Situation::accelerator() };
        if on_cpu {
            situation = Situation { affected, spoofed, ..Situation::cpu_tensors() };
        } else {
            situation = situation.with(Jit, jit).with(Aten, aten).with(Miopen, miopen);
        }
        let settings = Settings { strategy, cpu_fallback_enabled: cpu_allowed, tile_limit, ..Settings::default() };
        let mut evidence = Evidence::empty("here");
        for (engine, verdict, seconds) in verdicts {
            let record = Record::new(problem.clone(), engine, "here", verdict, RecordSource::Probe);
            evidence.learn(Record { seconds, ..record });
        }
        let plan = plan(&problem, &settings, &situation, &evidence);

        prop_assert!(!plan.engines.is_empty() && !plan.reason.is_empty());
        for (index, engine) in plan.engines.iter().enumerate() {
            prop_assert!(!plan.engines[..index].contains(engine), "{plan:?}");
            let last_resort = plan.engines.len() == 1;
            let refuted = evidence.about(&problem, *engine, "").is_some_and(|it| it.is_refutation());
            prop_assert!(last_resort || !refuted, "{engine} in {plan:?}");
        }
        if situation.is_endangered() && strategy == Strategy::Auto && cpu_allowed {
            for engine in &plan.engines {
                let proven = evidence.about(&problem, *engine, "").is_some_and(|it| it.is_proof());
                prop_assert!(proven || *engine == Cpu || *situation.availability(*engine) == Availability::Available);
                prop_assert!(proven || *engine != Miopen, "{plan:?}");
            }
        }
        if situation.device == Device::Accelerator && !cpu_allowed && plan.engines.contains(&Cpu) {
            prop_assert_eq!(&plan.engines[..], &[Cpu], "only when there is nothing else: {:?}", plan.reason);
        }
        if let Some(tile_plan) = plan.tile {
            let whole = problem.lower().problem;
            let widest = tile::tiles(&whole, tile_plan.output_limit)
                .iter()
                .flat_map(|tile| tile.map(|span| span.pad_before + span.in_length + span.pad_after))
                .max()
                .unwrap();
            let reach = (0..2).map(|axis| whole.dilation()[axis] * (whole.kernel()[axis] - 1) + 1).max().unwrap();
            prop_assert!(widest <= tile_limit.max(reach), "{widest} of {tile_plan:?}");
        }
    }
}
