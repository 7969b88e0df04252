//! Executes kernels from a real compiler, and compares the results with the same arithmetic in Rust.

mod common;

use common::{Arguments, numbers, run};
use unhang_emulator::{Dispatch, FaultKind, Machine, Mode};
use unhang_isa::Chip;

const NATIVE: &[u8] = include_bytes!("fixtures/kernels.gfx1010.co");
const WAVE64: &[u8] = include_bytes!("fixtures/kernels.wave64.gfx1010.co");
const SPOOFED: &[u8] = include_bytes!("fixtures/kernels.gfx1030.co");

/// The machines on which code must give the same results: native code, with hazard checks, in waves of 32 and of 64
/// lanes, and gfx1030 code; the first also without the fast path.
fn machines() -> [Machine; 4] {
    let mut plain = Machine::load(NATIVE, Mode::Hazards(Chip::Gfx1010)).unwrap();
    plain.fast = false;
    [
        plain,
        Machine::load(NATIVE, Mode::Hazards(Chip::Gfx1010)).unwrap(),
        Machine::load(WAVE64, Mode::Hazards(Chip::Gfx1010)).unwrap(),
        Machine::load(SPOOFED, Mode::Hazards(Chip::Gfx1030)).unwrap(),
    ]
}

#[test]
fn axpy_is_exact() {
    for mut machine in machines() {
        let (x, y) = (numbers(1000, 1), numbers(1000, 2));
        let (at_x, at_y) = (machine.memory.allocate_floats(&x), machine.memory.allocate_floats(&y));
        run(
            &mut machine,
            "axpy",
            [4, 1, 1],
            256,
            Arguments::default().pointer(at_x).pointer(at_y).float(1.7).int(1000),
        );
        let result = machine.memory.read_floats(at_y, 1000).unwrap();
        for i in 0..1000 {
            assert_eq!(result[i], 1.7f32.mul_add(x[i], y[i]), "{} at {i}", machine.target().unwrap());
        }
    }
}

#[test]
fn a_sum_through_local_memory_and_barriers_is_exact() {
    for mut machine in machines() {
        let x = numbers(1000, 3);
        let at_x = machine.memory.allocate_floats(&x);
        let at_y = machine.memory.allocate(4 * 4);
        run(&mut machine, "block_sum", [4, 1, 1], 256, Arguments::default().pointer(at_x).pointer(at_y).int(1000));
        let result = machine.memory.read_floats(at_y, 4).unwrap();
        for (block, &found) in result.iter().enumerate() {
            let mut sums: Vec<f32> = (0..256).map(|i| x.get(block * 256 + i).copied().unwrap_or(0.0)).collect();
            let mut half = 128;
            while half > 0 {
                for i in 0..half {
                    sums[i] += sums[i + half];
                }
                half /= 2;
            }
            assert_eq!(found, sums[0], "{} block {block}", machine.target().unwrap());
        }
    }
}

#[test]
fn a_matrix_product_in_tiles_is_exact() {
    let (m, n, k) = (33, 29, 50);
    for mut machine in machines() {
        let (a, b) = (numbers(m * k, 4), numbers(k * n, 5));
        let (at_a, at_b) = (machine.memory.allocate_floats(&a), machine.memory.allocate_floats(&b));
        let at_c = machine.memory.allocate(m * n * 4);
        let arguments = Arguments::default().pointer(at_a).pointer(at_b).pointer(at_c);
        run(&mut machine, "gemm", [2, 3, 1], 256, arguments.int(m as i32).int(n as i32).int(k as i32));
        let c = machine.memory.read_floats(at_c, m * n).unwrap();
        for row in 0..m {
            for column in 0..n {
                let mut sum = 0f32;
                for p in 0..k.next_multiple_of(16) {
                    let (x, y) = if p < k { (a[row * k + p], b[p * n + column]) } else { (0.0, 0.0) };
                    sum = x.mul_add(y, sum);
                }
                assert_eq!(c[row * n + column], sum, "{} at {row}, {column}", machine.target().unwrap());
            }
        }
    }
}

#[test]
fn a_convolution_is_exact() {
    let (channels, height, width, outputs) = (3usize, 7usize, 9usize, 4usize);
    for mut machine in machines() {
        let x = numbers(channels * height * width, 6);
        let w = numbers(outputs * channels * 9, 7);
        let (at_x, at_w) = (machine.memory.allocate_floats(&x), machine.memory.allocate_floats(&w));
        let count = outputs * height * width;
        let at_y = machine.memory.allocate(count * 4);
        let arguments = Arguments::default().pointer(at_x).pointer(at_w).pointer(at_y);
        let arguments = arguments.int(channels as i32).int(height as i32).int(width as i32).int(outputs as i32);
        run(&mut machine, "conv3x3", [count.div_ceil(64) as u32, 1, 1], 64, arguments);
        let y = machine.memory.read_floats(at_y, count).unwrap();
        for (i, &value) in y.iter().enumerate() {
            let (px, py, oc) = (i % width, i / width % height, i / (width * height));
            let mut sum = 0f32;
            for ic in 0..channels {
                for dy in 0..3 {
                    for dx in 0..3 {
                        let (yy, xx) = (py + dy, px + dx);
                        if (1..=height).contains(&yy) && (1..=width).contains(&xx) {
                            let pixel = x[(ic * height + yy - 1) * width + xx - 1];
                            sum = pixel.mul_add(w[((oc * channels + ic) * 3 + dy) * 3 + dx], sum);
                        }
                    }
                }
            }
            assert_eq!(value, sum, "{} at {i}", machine.target().unwrap());
        }
    }
}

#[test]
fn lanes_leave_a_loop_one_by_one() {
    for mut machine in machines() {
        let next: Vec<i32> = (0..128).map(|i| if i % 7 == 0 { -1 } else { (i * 5 + 3) % 128 }).collect();
        let bytes: Vec<u8> = next.iter().flat_map(|value| value.to_le_bytes()).collect();
        let at_next = machine.memory.allocate_bytes(&bytes);
        let at_out = machine.memory.allocate(128 * 4);
        run(&mut machine, "chase", [2, 1, 1], 64, Arguments::default().pointer(at_next).pointer(at_out).int(9));
        let mut out = [0; 128 * 4];
        machine.memory.read(at_out, &mut out).unwrap();
        for i in 0..128 {
            let mut place = i as i32;
            for _ in 0..9 {
                if place >= 0 {
                    place = next[place as usize];
                }
            }
            let found = i32::from_le_bytes(out[i * 4..i * 4 + 4].try_into().unwrap());
            assert_eq!(found, place, "{} at {i}", machine.target().unwrap());
        }
    }
}

#[test]
fn atomics_of_parallel_workgroups_all_count() {
    for mut machine in machines() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * i / 7) as u8).collect();
        let at_x = machine.memory.allocate_bytes(&bytes);
        let at_bins = machine.memory.allocate(16 * 4);
        run(&mut machine, "histogram", [8, 1, 1], 64, Arguments::default().pointer(at_x).pointer(at_bins).int(5000));
        let mut bins = [0; 64];
        machine.memory.read(at_bins, &mut bins).unwrap();
        for bin in 0..16 {
            let expected = bytes.iter().filter(|&&byte| byte & 15 == bin).count() as u32;
            let at = bin as usize * 4;
            assert_eq!(
                u32::from_le_bytes(bins[at..at + 4].try_into().unwrap()),
                expected,
                "{}",
                machine.target().unwrap()
            );
        }
    }
}

#[test]
fn functions_are_as_near_as_the_device_library_makes_them() {
    for mut machine in machines() {
        let x: Vec<f32> = numbers(500, 8).into_iter().map(|value| value * 20.0).collect();
        let at_x = machine.memory.allocate_floats(&x);
        let at_y = machine.memory.allocate(500 * 4);
        run(&mut machine, "maths", [8, 1, 1], 64, Arguments::default().pointer(at_x).pointer(at_y).int(500));
        let y = machine.memory.read_floats(at_y, 500).unwrap();
        for i in 0..500 {
            let v = x[i] as f64;
            let expected = if v > 0.0 { v.sqrt() + (-v).exp() / (1.0 + v) } else { v.tanh() };
            let error = (y[i] as f64 - expected).abs();
            assert!(
                error <= expected.abs() * 4e-7 + 1e-30,
                "{} f({v}) = {} not {expected}",
                machine.target().unwrap(),
                y[i]
            );
        }
    }
}

#[test]
fn half_precision_is_exact() {
    use half::f16;
    for mut machine in machines() {
        let x: Vec<f16> = numbers(100, 9).into_iter().map(|value| f16::from_f32(value * 50.0)).collect();
        let bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
        let at_x = machine.memory.allocate_bytes(&bytes);
        let at_y = machine.memory.allocate(200);
        run(&mut machine, "halves", [2, 1, 1], 64, Arguments::default().pointer(at_x).pointer(at_y).int(100));
        let mut out = [0; 200];
        machine.memory.read(at_y, &mut out).unwrap();
        for i in 0..100 {
            // 2.5·x has at most 13 bits, so the sum of both is exact in double precision: one rounding, as in an fma.
            let expected = f16::from_f64(2.5 * x[i].to_f64() + x[99 - i].to_f64());
            let found = f16::from_le_bytes([out[i * 2], out[i * 2 + 1]]);
            assert_eq!(found, expected, "{} at {i}", machine.target().unwrap());
        }
    }
}

#[test]
fn gfx1030_code_is_stopped_where_gfx1010_would_go_wrong() {
    let mut machine = Machine::load(SPOOFED, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let at_x = machine.memory.allocate_floats(&numbers(1000, 3));
    let at_y = machine.memory.allocate(16);
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).int(1000);
    let dispatch = Dispatch::new("block_sum", [4, 1, 1], [256, 1, 1], &arguments.0);
    let fault = machine.run(&dispatch).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Hazard { .. }), "{fault}");
    assert!(fault.to_string().contains("would hang or may corrupt"), "{fault}");
    // It stops at what the audit reports at that place.
    let object = unhang_isa::elf::CodeObject::parse(SPOOFED).unwrap();
    let function = object.functions.iter().find(|function| function.name == "block_sum").unwrap();
    let program = unhang_isa::Program::decode(function.code, Chip::Gfx1030, false).unwrap();
    let findings = unhang_isa::audit::audit(&program, Chip::Gfx1010, Default::default());
    let FaultKind::Hazard { rule, .. } = fault.kind else { unreachable!() };
    assert!(findings.iter().any(|finding| finding.offset as i64 == fault.offset && finding.rule == rule), "{fault}");
}

#[test]
fn memory_that_nobody_allocated_is_a_fault_at_its_place() {
    let mut machine = Machine::load(NATIVE, Mode::Compute).unwrap();
    let at_x = machine.memory.allocate_floats(&numbers(999, 1));
    let at_y = machine.memory.allocate_floats(&numbers(1000, 1));
    let arguments = Arguments::default().pointer(at_x).pointer(at_y).float(1.0).int(1000);
    let mut dispatch = Dispatch::new("axpy", [4, 1, 1], [256, 1, 1], &arguments.0);
    let fault = machine.run(&dispatch).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Memory { address: at_x + 999 * 4, size: 4 });
    assert!(fault.instruction.starts_with("global_load_dword"), "{fault}");
    dispatch.kernel = "missing";
    assert_eq!(machine.run(&dispatch).unwrap_err().kind, FaultKind::NoKernel);
}

#[test]
fn a_wave_that_does_not_end_is_stopped() {
    let mut machine = Machine::load(NATIVE, Mode::Compute).unwrap();
    machine.budget = 10_000;
    let at_next = machine.memory.allocate(64 * 4);
    let at_out = machine.memory.allocate(64 * 4);
    let arguments = Arguments::default().pointer(at_next).pointer(at_out).int(i32::MAX);
    let dispatch = Dispatch::new("chase", [1, 1, 1], [64, 1, 1], &arguments.0);
    assert_eq!(machine.run(&dispatch).unwrap_err().kind, FaultKind::Budget { limit: 10_000 });
}
