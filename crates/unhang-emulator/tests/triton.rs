//! Kernels that Triton 3.6.0 compiled for gfx1010 (`tools/triton`). By default they write nothing, as an owner of an RX
//! 5700 XT reports (unslothai/unsloth issue 11614). Without buffer operations, or repaired, they compute. So it is with
//! programs whose kernels torch's inductor wrote.
//!
//! `UNHANG_TRITON` names the folder of the compiled kernels; `make test-all` creates it.

mod common;

use std::path::{Path, PathBuf};

use common::{Arguments, numbers};
use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;
use unhang_isa::audit::Rule;
use unhang_isa::repair::{Options, repair_object};

/// A kernel with its arguments: float buffers, of which the last is written; then numbers.
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

/// The compiled kernels, if they are here.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("UNHANG_TRITON").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        println!("skipped: Triton's own kernels: UNHANG_TRITON names no folder (make test-all)");
    }
    folder
}

/// The kernel with buffers that reach what they should, which it did not have.
fn repaired(object: &[u8], kernel: &str) -> Vec<u8> {
    let repaired = repair_object(object, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap();
    let sum = |count: fn(&unhang_isa::repair::FunctionRepair) -> u64| repaired.functions.iter().map(count).sum::<u64>();
    assert!(sum(|it| it.before.get(Rule::BufferRange)) > 0, "{kernel}");
    assert_eq!(sum(|it| it.after.get(Rule::BufferRange)), 0, "{kernel}");
    repaired.bytes.unwrap()
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
    let cases = cases();
    for case in &cases {
        let read = |setting: &str| std::fs::read(folder.join(format!("{}.{setting}.hsaco", case.kernel))).unwrap();
        let default = read("default");
        let found = run(&default, case, 7.5);
        assert!(found.iter().all(|&value| value == 7.5), "{}: nothing is written", case.kernel);
        assert_close(case, "without buffers", &run(&read("no-buffers"), case, 7.5));
        assert_close(case, "repaired", &run(&repaired(&default, case.kernel), case, 7.5));
    }
    println!(
        "{} kernels of Triton's: nothing by default, right without buffer operations, right repaired",
        cases.len()
    );
}

/// A sum by atomics: first nothing is added, then all of it.
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
    assert_close(&case, "repaired", &run(&repaired(&default, "total"), &case, 0.0));
    let without = std::fs::read(folder.join("total.no-buffers.hsaco")).unwrap();
    assert_close(&case, "without buffers", &run(&without, &case, 0.0));
}

/// A program that torch's inductor wrote, as `tools/triton/inductor.py` lays it out.
struct Program {
    folder: PathBuf,
    /// Words of a launch: kernel, lanes, three numbers of workgroups, arguments.
    launches: Vec<Vec<String>>,
    /// Results: buffer and type.
    outputs: Vec<(usize, String)>,
    /// Each buffer before the first launch.
    buffers: Vec<Vec<u8>>,
}

impl Program {
    fn read(folder: PathBuf) -> Program {
        let text = std::fs::read_to_string(folder.join("program.txt")).unwrap();
        let buffers = (0..).map_while(|at| std::fs::read(folder.join(format!("{at}.before"))).ok()).collect();
        let mut program = Program { folder, launches: Vec::new(), outputs: Vec::new(), buffers };
        for line in text.lines() {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            match words[0].as_str() {
                "launch" => program.launches.push(words[1..].to_vec()),
                "output" => program.outputs.push((words[1].parse().unwrap(), words[2].clone())),
                other => panic!("{}: {other}", program.folder.display()),
            }
        }
        program
    }

    /// Every launch in order, on one machine. Gives each buffer as it is afterwards.
    fn run(&self, setting: &str, change: fn(&[u8], &str) -> Vec<u8>) -> Vec<Vec<u8>> {
        let mut machine = Machine::new(Mode::Hazards(Chip::Gfx1010));
        let buffers: Vec<u64> = self.buffers.iter().map(|bytes| machine.memory.allocate_bytes(bytes)).collect();
        for launch in &self.launches {
            let kernel = launch[0].as_str();
            let compiled = std::fs::read(self.folder.join(format!("{kernel}.{setting}.hsaco"))).unwrap();
            let object = machine.add(&change(&compiled, kernel)).unwrap();
            let number = |at: usize| launch[at].parse().unwrap();
            let arguments =
                launch[5..].iter().fold(Arguments::default(), |arguments, word| match word.split_once('+') {
                    Some((buffer, offset)) => {
                        let start = buffers[buffer.parse::<usize>().unwrap()];
                        arguments.pointer(start + offset.parse::<u64>().unwrap())
                    }
                    None => arguments.int(word.parse().unwrap()),
                });
            let dispatch = Dispatch {
                kernel,
                workgroups: [number(2), number(3), number(4)],
                workgroup_size: [number(1), 1, 1],
                arguments: &arguments.pointer(0).pointer(0).0,
                dynamic_local: 16 << 10,
            };
            machine.run_in(object, &dispatch).unwrap_or_else(|fault| panic!("{kernel} {setting}: {fault}"));
        }
        let mut after = self.buffers.clone();
        for (bytes, start) in after.iter_mut().zip(buffers) {
            machine.memory.read(start, bytes).unwrap();
        }
        after
    }

    /// The results are those that torch computed on the CPU.
    fn assert_right(&self, setting: &str, after: &[Vec<u8>]) {
        for (buffer, kind) in &self.outputs {
            let expected = std::fs::read(self.folder.join(format!("{buffer}.after"))).unwrap();
            let (found, expected) = (values(&after[*buffer], kind), values(&expected, kind));
            assert_eq!(found.len(), expected.len());
            let tolerance = match kind.as_str() {
                "float16" => 2e-3,
                "bfloat16" => 2e-2,
                _ => 1e-5,
            };
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let close = (found - expected).abs() <= tolerance * expected.abs().max(1.0);
                let program = self.folder.display();
                assert!(close, "{program} {setting}: {found} and not {expected} at {place} of buffer {buffer}");
            }
        }
    }
}

/// Numbers of one of torch's types.
fn values(bytes: &[u8], kind: &str) -> Vec<f64> {
    match kind {
        "float32" => bytes.as_chunks().0.iter().map(|&it| f32::from_le_bytes(it).into()).collect(),
        "float16" => bytes.as_chunks().0.iter().map(|&it| half::f16::from_le_bytes(it).into()).collect(),
        "bfloat16" => bytes.as_chunks().0.iter().map(|&it| half::bf16::from_le_bytes(it).into()).collect(),
        "int64" => bytes.as_chunks().0.iter().map(|&it| i64::from_le_bytes(it) as f64).collect(),
        other => panic!("a result of type {other}"),
    }
}

fn programs(folder: &Path) -> Vec<Program> {
    let folder = folder.join("inductor");
    let entries = std::fs::read_dir(&folder).into_iter().flatten();
    let programs: Vec<Program> = entries.map(|entry| Program::read(entry.unwrap().path())).collect();
    if programs.is_empty() {
        println!("skipped: Triton's own kernels: UNHANG_TRITON names no folder of inductor's (make test-all)");
    }
    programs
}

#[test]
fn programs_of_inductor_give_nothing_by_default_and_compute_without_buffers_or_repaired() {
    let Some(folder) = folder() else { return };
    let programs = programs(&folder);
    for program in &programs {
        let name = program.folder.display();
        let after = program.run("default", |object, _| object.to_vec());
        for (buffer, _) in &program.outputs {
            let (before, after) = (&program.buffers[*buffer], &after[*buffer]);
            // A sum of nothing is written where the kernel stores it without a descriptor.
            assert!(before == after || after.iter().all(|&byte| byte == 0), "{name}: buffer {buffer}");
        }
        program.assert_right("without buffers", &program.run("no-buffers", |object, _| object.to_vec()));
        program.assert_right("repaired", &program.run("default", repaired));
    }
    let kernels: usize = programs.iter().map(|program| program.launches.len()).sum();
    println!(
        "{} programs of inductor's ({kernels} kernels): nothing by default, right without buffer operations, right repaired",
        programs.len()
    );
}
