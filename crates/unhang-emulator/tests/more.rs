//! Kernels from a real compiler with private memory, calls, 64-bit atomics, divisions, packed and mixed halves.

mod common;

use common::{Arguments, numbers, run};
use half::f16;
use unhang_emulator::{Machine, Mode, Perturbation, Unit};
use unhang_isa::Chip;

const OBJECT: &[u8] = include_bytes!("fixtures/more.gfx1010.co");
const COUNT: usize = 100;

fn machine() -> Machine {
    let machine = Machine::load(OBJECT, Mode::Hazards(Chip::Gfx1010)).unwrap();
    assert!(machine.unsupported(None).is_empty(), "{:?}", machine.unsupported(None));
    machine
}

#[test]
fn private_memory_belongs_to_each_lane() {
    let mut machine = machine();
    let x = numbers(COUNT, 1);
    let (at_x, at_y) = (machine.memory.allocate_floats(&x), machine.memory.allocate(COUNT * 4));
    run(&mut machine, "shuffle", [2, 1, 1], 64, Arguments::default().pointer(at_x).pointer(at_y).int(COUNT as i32));
    for (i, &found) in machine.memory.read_floats(at_y, COUNT).unwrap().iter().enumerate() {
        let mut kept = [0f32; 40];
        for k in 0..40 {
            kept[(k * 7 + i) % 40] = x[(i + k) % COUNT];
        }
        let sum = (0..40).fold(0f32, |sum, k| sum.mul_add(0.5, kept[(k * 3 + i * 5) % 40]));
        assert_eq!(found, sum, "at {i}");
    }
}

#[test]
fn functions_are_called_with_a_stack() {
    let mut machine = machine();
    let (x, c) = (numbers(COUNT, 2), numbers(8, 3));
    let (at_x, at_c) = (machine.memory.allocate_floats(&x), machine.memory.allocate_floats(&c));
    let at_y = machine.memory.allocate(COUNT * 4);
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).pointer(at_c).int(COUNT as i32).int(8);
    run(&mut machine, "call", [2, 1, 1], 64, arguments);
    let polynomial = |c: &[f32], x: f32| c.iter().fold(0f32, |sum, &c| sum.mul_add(x, c));
    for (i, &found) in machine.memory.read_floats(at_y, COUNT).unwrap().iter().enumerate() {
        assert_eq!(found, polynomial(&c, x[i]) + polynomial(&c[1..8], -x[i]), "at {i}");
    }
}

#[test]
fn wide_atomics_of_parallel_workgroups_all_count() {
    let mut machine = machine();
    let (at_out, at_sum) = (machine.memory.allocate(32), machine.memory.allocate(4));
    let count = 1000u64;
    let arguments = Arguments::default().pointer(at_out).pointer(at_sum).int(count as i32);
    run(&mut machine, "wide_atomics", [16, 1, 1], 64, arguments);
    let mut bytes = [0; 32];
    machine.memory.read(at_out, &mut bytes).unwrap();
    let found: Vec<u64> = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
    let values = || (0..count).map(|i| i * 0x1_2345_6789);
    let expected = [
        values().sum(),
        values().max().unwrap(),
        values().fold(0, |sum, value| sum ^ value),
        values().sum::<u64>() + count,
    ];
    assert_eq!(found, expected);
    assert_eq!(machine.memory.read_floats(at_sum, 1).unwrap(), [count as f32]);
}

/// Exact, whatever the last bit of the reciprocals is.
#[test]
fn divisions_are_exact() {
    for perturbation in [Perturbation::None, Perturbation::Up, Perturbation::Down] {
        let mut machine = machine();
        machine.perturbation = perturbation;
        let mut x = numbers(COUNT, 4);
        // Including zero, infinity, huge and denormal numbers.
        x[..6].copy_from_slice(&[0.0, f32::INFINITY, 3e38, 1e-40, -1e-38, f32::MAX]);
        let at_x = machine.memory.allocate_floats(&x);
        let (at_y, at_z) = (machine.memory.allocate(COUNT * 4), machine.memory.allocate(COUNT * 8));
        let arguments = Arguments::default().pointer(at_x).pointer(at_y).pointer(at_z).int(COUNT as i32);
        run(&mut machine, "divide", [2, 1, 1], 64, arguments);
        let mut bytes = vec![0; COUNT * 8];
        machine.memory.read(at_z, &mut bytes).unwrap();
        for (i, &found) in machine.memory.read_floats(at_y, COUNT).unwrap().iter().enumerate() {
            let (a, b) = (x[i], x[COUNT - 1 - i]);
            assert!(found == a / b || (a / b).is_nan() && found.is_nan(), "{a} / {b}: {found} {perturbation:?}");
            let found = f64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap());
            let exact = a as f64 / b as f64;
            assert!(found == exact || exact.is_nan() && found.is_nan(), "{a} / {b}: {found} {perturbation:?}");
        }
    }
}

#[test]
fn packed_and_mixed_halves_are_exact() {
    let mut machine = machine();
    let x: Vec<f16> = numbers(COUNT * 2, 5).into_iter().map(|value| f16::from_f32(value * 3.0)).collect();
    let z = numbers(COUNT, 6);
    let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (at_x, at_z) = (machine.memory.allocate_bytes(&bytes), machine.memory.allocate_floats(&z));
    let at_y = machine.memory.allocate(COUNT * 4);
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).pointer(at_z).int(COUNT as i32);
    run(&mut machine, "packed", [2, 1, 1], 64, arguments);
    let mut out = vec![0; COUNT * 4];
    machine.memory.read(at_y, &mut out).unwrap();
    let sums = machine.memory.read_floats(at_z, COUNT).unwrap();
    for i in 0..COUNT {
        let (a, b) = (&x[i * 2..i * 2 + 2], &x[(COUNT - 1 - i) * 2..(COUNT - i) * 2]);
        for part in 0..2 {
            let (a, b) = (a[part].to_f64(), b[part].to_f64());
            // Products of two halves and the sum with a third are exact in double precision.
            let round = |value: f64| f16::from_f64(value).to_f64();
            let expected = (0..3).fold(a, |c, _| round(a * c + b).max(round(b - c)));
            let at = i * 4 + part * 2;
            assert_eq!(f16::from_le_bytes([out[at], out[at + 1]]).to_f64(), expected, "at {i}");
        }
        let sum = a[0].to_f32().mul_add(b[1].to_f32(), z[i]);
        assert_eq!(sums[i], a[1].to_f32().mul_add(b[0].to_f32(), sum), "at {i}");
    }
}

#[test]
fn what_was_executed_is_counted_by_unit() {
    let mut machine = machine();
    let at_x = machine.memory.allocate_floats(&numbers(COUNT, 4));
    let (at_y, at_z) = (machine.memory.allocate(COUNT * 4), machine.memory.allocate(COUNT * 8));
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).pointer(at_z).int(COUNT as i32);
    let dispatch = unhang_emulator::Dispatch::new("divide", [2, 1, 1], [64, 1, 1], &arguments.0);
    let counts = machine.run(&dispatch).unwrap();
    // Four waves: two loads for each of two stores, one reciprocal in single precision, no local memory.
    assert_eq!(counts[Unit::VectorMemory], 4 * 6, "{counts}");
    assert_eq!((counts[Unit::Transcendental], counts[Unit::Local]), (4, 0), "{counts}");
    assert!(counts[Unit::DoublePrecision] >= 4 * 10, "{counts}");
    assert_eq!(Unit::ALL.iter().map(|&unit| counts[unit]).sum::<u64>(), counts.instructions());
    let cycles: u64 = Unit::ALL.iter().map(|&unit| counts[unit] * unit.issue_cycles()).sum();
    assert_eq!(counts.issue_cycles(), cycles);
    assert!(counts.issue_cycles() > counts.instructions());
}
