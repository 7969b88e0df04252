//! Kernels that Triton 3.6.0 compiled for gfx1010 (`tools/triton`): by default they write nothing, as an owner of an RX 5700 XT
//! reports (unslothai/unsloth issue 11614); without buffer operations, and repaired, they compute.
//!
//! `UNHANG_TRITON` names the folder of the compiled kernels; `make test-all` makes it.

mod common;

use std::path::PathBuf;

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;
use unhang_isa::audit::Rule;
use unhang_isa::repair::{Options, repair_object};

/// A kernel with what it is given: float buffers, of which the last is written; then numbers.
#[derive(Clone)]
struct Case {
    kernel: &'static str,
    workgroups: u32,
    inputs: Vec<Vec<f32>>,
    output: usize,
    numbers: fn(Arguments) -> Arguments,
    expected: Vec<f32>,
}

/// Triton's kernels take two more pointers, to scratch memory that these do not use.
fn run(object: &[u8], case: &Case, before: f32) -> Vec<f32> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let mut arguments = Arguments::default();
    for input in &case.inputs {
        arguments = arguments.pointer(machine.memory.allocate_floats(input));
    }
    let output = machine.memory.allocate_floats(&vec![before; case.output]);
    arguments = (case.numbers)(arguments.pointer(output)).pointer(0).pointer(0);
    let dispatch = Dispatch {
        kernel: case.kernel,
        workgroups: [case.workgroups, 1, 1],
        workgroup_size: [128, 1, 1],
        arguments: &arguments.0,
        dynamic_local: 16 << 10,
    };
    machine.run(&dispatch).unwrap_or_else(|fault| panic!("{}: {fault}", case.kernel));
    let mut bytes = vec![0; case.output * 4];
    machine.memory.read(output, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

fn softmax(row: &[f32]) -> Vec<f32> {
    let highest = row.iter().copied().fold(f32::MIN, f32::max);
    let powers: Vec<f32> = row.iter().map(|value| (value - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn cases() -> Vec<Case> {
    const COLUMNS: usize = 100;
    let [x, y] = [1, 2].map(|seed| numbers(700, seed));
    let sums = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    let normal = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().sum::<f32>() / COLUMNS as f32;
        let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / COLUMNS as f32;
        row.iter().map(|value| (value - mean) / (variance + 1e-5).sqrt()).collect()
    };
    let (weight, bias) = (numbers(COLUMNS, 3), numbers(COLUMNS, 4));
    let scaled = |row: &[f32]| -> Vec<f32> {
        normal(row).iter().zip(&weight).zip(&bias).map(|((value, weight), bias)| value * weight + bias).collect()
    };
    let rows = |of: &dyn Fn(&[f32]) -> Vec<f32>| x.chunks(COLUMNS).flat_map(of).collect::<Vec<f32>>();
    vec![
        Case {
            kernel: "add",
            workgroups: 3,
            inputs: vec![x.clone(), y],
            output: 700,
            numbers: |arguments| arguments.int(700),
            expected: sums,
        },
        Case {
            kernel: "softmax",
            workgroups: 7,
            inputs: vec![x.clone()],
            output: 700,
            numbers: |arguments| arguments.int(100),
            expected: rows(&|row| softmax(row)),
        },
        Case {
            kernel: "layer_norm",
            workgroups: 7,
            inputs: vec![x.clone(), weight.clone(), bias.clone()],
            output: 700,
            numbers: |arguments| arguments.int(100).float(1e-5),
            expected: rows(&|row| scaled(row)),
        },
        attention(),
        matmul(),
    ]
}

/// Kernels in the form in which torch's inductor writes them: pointwise, a reduction at once, a reduction in a loop.
fn inductor_cases() -> Vec<Case> {
    const COLUMNS: usize = 100;
    let (x, bias) = (numbers(700, 10), numbers(7, 11));
    let biased = x.iter().enumerate().map(|(place, value)| (value + bias[place / 50 % 7]).max(0.0)).collect();
    let mean_square = |row: &[f32]| row.iter().map(|value| value * value).sum::<f32>() / COLUMNS as f32;
    vec![
        Case {
            kernel: "poi_fused_add_relu",
            workgroups: 3,
            inputs: vec![x.clone(), bias],
            output: 700,
            numbers: |arguments| arguments.int(700),
            expected: biased,
        },
        Case {
            kernel: "per_fused_softmax",
            workgroups: 4,
            inputs: vec![x.clone()],
            output: 700,
            numbers: |arguments| arguments.int(7).int(100),
            expected: x.chunks(COLUMNS).flat_map(softmax).collect(),
        },
        Case {
            kernel: "red_fused_mean_pow",
            workgroups: 2,
            inputs: vec![x.clone()],
            output: 7,
            numbers: |arguments| arguments.int(7).int(100),
            expected: x.chunks(COLUMNS).map(mean_square).collect(),
        },
    ]
}

fn attention() -> Case {
    let (queries, keys, width) = (5, 37, 32);
    let [q, k, v] = [(queries, 5), (keys, 6), (keys, 7)].map(|(rows, seed)| numbers(rows * width, seed));
    let expected = q
        .chunks(width)
        .flat_map(|query| {
            let scores: Vec<f32> =
                k.chunks(width).map(|key| query.iter().zip(key).map(|(a, b)| a * b * 0.25).sum()).collect();
            let weights = softmax(&scores);
            (0..width)
                .map(|lane| weights.iter().zip(v.chunks(width)).map(|(weight, row)| weight * row[lane]).sum())
                .collect::<Vec<f32>>()
        })
        .collect();
    Case {
        kernel: "attention",
        workgroups: queries as u32,
        inputs: vec![q, k, v],
        output: queries * width,
        numbers: |arguments| arguments.int(37).float(0.25),
        expected,
    }
}

/// `tl.dot` of singles: multiply-adds, since gfx1010 has no dot products.
fn matmul() -> Case {
    const SIDE: usize = 32;
    let [a, b] = [8, 9].map(|seed| numbers(SIDE * SIDE, seed));
    let expected = (0..SIDE * SIDE)
        .map(|at| (0..SIDE).map(|inner| a[at / SIDE * SIDE + inner] * b[inner * SIDE + at % SIDE]).sum())
        .collect();
    Case { kernel: "matmul", workgroups: 1, inputs: vec![a, b], output: SIDE * SIDE, numbers: |it| it, expected }
}

/// The compiled kernels, unless they are not here.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("UNHANG_TRITON").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        println!("skipped: Triton's own kernels: UNHANG_TRITON names no folder (make test-all)");
    }
    folder
}

fn assert_close(case: &Case, setting: &str, found: &[f32]) {
    for (place, (found, expected)) in found.iter().zip(&case.expected).enumerate() {
        let close = (found - expected).abs() <= 1e-5 * expected.abs().max(1.0);
        assert!(close, "{} {setting}: {found} and not {expected} at {place}", case.kernel);
    }
}

#[test]
fn kernels_write_nothing_by_default_and_compute_without_buffers_or_repaired() {
    let Some(folder) = folder() else { return };
    let cases = [cases(), inductor_cases()].concat();
    for case in &cases {
        let read = |setting: &str| std::fs::read(folder.join(format!("{}.{setting}.hsaco", case.kernel))).unwrap();
        let default = read("default");
        let found = run(&default, case, 7.5);
        assert!(found.iter().all(|&value| value == 7.5), "{}: nothing is written", case.kernel);
        assert_close(case, "without buffers", &run(&read("no-buffers"), case, 7.5));
        let repaired = repair_object(&default, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap();
        let sum =
            |count: fn(&unhang_isa::repair::FunctionRepair) -> u64| repaired.functions.iter().map(count).sum::<u64>();
        assert!(sum(|it| it.before.get(Rule::BufferRange)) > 0, "{}", case.kernel);
        assert_eq!(sum(|it| it.after.get(Rule::BufferRange)), 0, "{}", case.kernel);
        assert_close(case, "repaired", &run(&repaired.bytes.unwrap(), case, 7.5));
    }
    println!(
        "{} kernels of Triton's: nothing by default, right without buffer operations, right repaired",
        cases.len()
    );
}

/// A sum by atomics: nothing is added, then all of it.
#[test]
fn sums_stay_as_they_were_by_default() {
    let Some(folder) = folder() else { return };
    let x = numbers(700, 1);
    let case = Case {
        kernel: "total",
        workgroups: 3,
        expected: vec![x.iter().map(|&value| value as f64).sum::<f64>() as f32],
        inputs: vec![x],
        output: 1,
        numbers: |arguments| arguments.int(700),
    };
    let default = std::fs::read(folder.join("total.default.hsaco")).unwrap();
    assert_eq!(run(&default, &case, 0.0), [0.0]);
    let repaired = repair_object(&default, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap();
    assert_close(&case, "repaired", &run(&repaired.bytes.unwrap(), &case, 0.0));
    let without = std::fs::read(folder.join("total.no-buffers.hsaco")).unwrap();
    assert_close(&case, "without buffers", &run(&without, &case, 0.0));
}
