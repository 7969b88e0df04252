//! Which kernels serve when: measured ones, generic ones, those that are allowed, and nothing new while a graph is recorded.

use crate::host::{CAPTURING_STREAM, HostEngine};
use crate::{engine, problem};
use std::time::Duration;
use unhang_conv::{DataType, Problem, Specification};
use unhang_engine::Tuned;
use unhang_gpu::choice::{Choice, TILES};
use unhang_gpu::tuning::{Times, is_current, tuned};
use unhang_gpu::{GpuError, Request};

#[test]
fn what_was_measured_is_taken_for_the_same_kernels_on_the_same_device_only() {
    let Some(HostEngine { gpu, .. }) = engine() else { return };
    let channels = Specification { in_channels: 32, out_channels: 32, in_size: [8, 8], ..Specification::default() };
    let single = problem(channels);
    let winners = [
        (single.clone(), Choice::Gemm { tile: TILES[9], packed: true, flat: false, splits: 1 }),
        // Never taken but so.
        (single.with_data_type(DataType::F16), Choice::HalfGemm { tile: TILES[9], packed: true, splits: 1 }),
    ];
    for (problem, choice) in winners {
        let model = gpu.choose(&problem);
        assert_ne!(model, choice, "the model would take it anyway");
        let times = [(model, [9.0, 2e-5, 2e-5]), (choice, [9.0, 1e-5, 1e-5])]
            .map(|(choice, seconds)| Times { choice: choice.to_string(), seconds: seconds.to_vec() });
        let tuned = tuned(problem.clone().into(), gpu.driver(), &times, &choice.to_string(), "").unwrap();
        assert_eq!((tuned.seconds, tuned.model_seconds, tuned.candidates), (1e-5, 2e-5, 2));
        assert_eq!(tuned.share(), 0.5);
        assert!(is_current(&tuned, gpu.driver()));
        for other in [
            Tuned { kernels: "others".into(), ..tuned.clone() },
            Tuned { device: "another".into(), ..tuned.clone() },
            Tuned { compiler: "newer".into(), ..tuned.clone() },
        ] {
            assert!(!is_current(&other, gpu.driver()), "{other:?}");
            assert!(!gpu.take_tuning(&other, false));
        }
        // Somebody else's is a hint: what is less exact is not taken from it, and it is not our measurement.
        let is_exact = !matches!(choice, Choice::HalfGemm { .. });
        assert_eq!(gpu.take_tuning(&tuned, true), is_exact);
        assert_eq!(gpu.choose(&problem), if is_exact { choice } else { model });
        assert!(!gpu.is_preferred(&problem));
        assert!(gpu.take_tuning(&tuned, false));
        assert!(gpu.is_preferred(&problem));
        assert_eq!(gpu.choose(&problem), choice);
    }
}

#[test]
fn nothing_is_timed_while_a_graph_is_recorded() {
    let Some(HostEngine { gpu, .. }) = engine() else { return };
    let run = |count: &std::cell::Cell<u32>| -> Result<(), GpuError> {
        count.set(count.get() + 1);
        Ok(())
    };
    let count = std::cell::Cell::new(0);
    assert_eq!(gpu.time_calls(CAPTURING_STREAM, 4, || run(&count)).unwrap_err(), GpuError::Capturing);
    assert_eq!(count.get(), 0);
    let timing = gpu.time_calls(0, 4, || run(&count)).unwrap();
    assert_eq!(count.get(), 5, "one to warm up");
    assert!(gpu.seconds(&timing).unwrap().is_some());
    gpu.forget(timing).unwrap();
}

#[test]
fn nothing_is_prepared_while_a_graph_is_recorded() {
    let Some(engine) = engine() else { return };
    let problem = problem(Specification { in_size: [4, 4], ..Specification::default() });
    let capturing = Request { stream: CAPTURING_STREAM, ..Request::default() };
    let refused = engine.gpu.prepare_on(&problem, capturing).unwrap_err();
    assert_eq!(refused, GpuError::Capturing);
    // Once it was prepared outside, the recording stream may use it.
    engine.gpu.prefer(&problem, Choice::Plain);
    engine.gpu.prepare_on(&problem, Request::default()).unwrap();
    assert_eq!(*engine.gpu.prepare_on(&problem, capturing).unwrap().choice(), Choice::Plain);
}

#[test]
fn the_generic_kernels_serve_while_a_problems_own_are_compiled() {
    let Some(engine) = engine() else { return };
    let gpu = &engine.gpu;
    let problem: Problem = "forward:f32:nchw:1x64x12x12:64x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let first = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert!(first.is_provisional());
    assert_eq!(*first.choice(), Choice::Plain);
    assert!(gpu.settle(Duration::from_secs(60)));
    // A graph is recorded with what was loaded, although better kernels lie ready.
    let capturing = Request { stream: CAPTURING_STREAM, ..Request::default() };
    assert_eq!(gpu.prepare_on(&problem, capturing).unwrap().kernels(), first.kernels());
    let own = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert!(!own.is_provisional());
    assert_ne!(*own.choice(), Choice::Plain);
    assert_ne!(own.kernels(), first.kernels());
    // Another size is the same kernels with other numbers: nothing is compiled.
    let compiled = gpu.compiled();
    let larger: Problem = "forward:f32:nchw:2x64x15x17:64x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let choice = gpu.choose(&larger);
    if choice == *own.choice() {
        assert_eq!(gpu.prepare_on(&larger, Request::default()).unwrap().kernels(), own.kernels());
        assert_eq!(gpu.compiled(), compiled);
    }
    // Who must have the same roundings every time waits.
    let other: Problem = "forward:f32:nchw:1x16x12x12:16x5x5:s1x1:p1x1:d1x1:g1".parse().unwrap();
    assert!(!gpu.prepare_on(&other, Request { wait: true, ..Request::default() }).unwrap().is_provisional());
    assert!(gpu.close(Duration::from_secs(60)));
    let late: Problem = "forward:f32:nchw:1x64x12x12:64x3x3:s1x1:p2x2:d2x2:g1".parse().unwrap();
    assert!(gpu.prepare_on(&late, Request::default()).unwrap().is_provisional(), "nothing is compiled after closing");
}

#[test]
fn only_families_that_are_allowed_are_taken() {
    let Some(engine) = engine() else { return };
    let gpu = &engine.gpu;
    let problem: Problem = "forward:f32:nchw:1x16x12x12:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    let families = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    gpu.allow(families(&["gemm"]));
    assert_eq!(gpu.choose(&problem).family(), "gemm");
    let waits = gpu.prepare_on(&problem, Request::default()).unwrap();
    assert_eq!(waits.choice().family(), "gemm", "the generic kernels are not allowed either");
    gpu.allow(families(&["depthwise"]));
    let refused = gpu.prepare_on(&problem, Request::default()).unwrap_err();
    assert!(matches!(refused, GpuError::NoneAllowed { .. }), "{refused}");
    assert!(refused.to_string().contains("plain"), "{refused}");
    gpu.allow(None);
    // Less workspace than the best choice needs is another choice.
    let all = gpu.candidates(&problem);
    assert!(all.iter().any(|candidate| candidate.plan.workspace_bytes > 0));
    let none = Request { workspace_limit: Some(0), wait: true, ..Request::default() };
    assert_eq!(gpu.prepare_on(&problem, none).unwrap().workspace_bytes(), 0);
}
