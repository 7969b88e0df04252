//! Division in steps, as LLVM writes it for both widths: scale, approximate, refine, scale back, special values. The
//! quotient is correctly rounded, however inexact the reciprocal is.

use std::collections::HashMap;
use std::sync::LazyLock;

use unhang_isa::{Definition, Field, Instruction};

use super::vector_table::{LEAST, d, f};
use super::{DESTINATION, Extra, LANE, MASK_OUT, MODE, encode, forms, put_sources, wave};
use crate::Perturbation;
use crate::float::FloatMode;
use crate::semantics::Semantics;
use crate::wave::VCC;

const PERTURBATIONS: [Perturbation; 3] = [Perturbation::None, Perturbation::Up, Perturbation::Down];

/// Each step as an instruction, and whether its result is wide.
static STEPS: LazyLock<HashMap<&'static str, (Instruction, bool)>> = LazyLock::new(|| {
    let names = ["div_scale", "rcp", "fma", "mul", "div_fmas", "div_fixup"];
    let forms = names
        .iter()
        .flat_map(|name| ["f32", "f64"].into_iter().filter_map(move |kind| forms(&format!("v_{name}_{kind}")).last()));
    let wide = |definition: &Definition| definition.operand(Field::Destination).unwrap().width.registers(false) == 2;
    forms.map(|form| (form.base_name(), (encode(form, Extra::default()), wide(form)))).collect()
});

/// One step: its result, and the lane's bit of the mask that it writes.
fn step(name: &str, sources: [u64; 3], vcc: u32, perturbation: Perturbation) -> (u64, u32) {
    let (instruction, wide) = &STEPS[name];
    let mut wave = wave();
    wave.mode = FloatMode::from_bits(MODE, perturbation);
    wave.scalars[VCC] = vcc;
    put_sources(&mut wave, &sources);
    wave.run_vector(instruction, Semantics::of(instruction)).unwrap();
    let [low, high] = [0, 1].map(|part| wave.vector_lane(DESTINATION as usize + part, LANE) as u64);
    (if *wide { low | high << 32 } else { low }, wave.scalars[MASK_OUT as usize] & 1 << LANE)
}

fn divide_single(numerator: f32, denominator: f32, perturbation: Perturbation) -> f32 {
    let (n, m) = (f(numerator), f(denominator));
    let fma = |a, b, c| step("v_fma_f32", [a, b, c], 0, perturbation).0;
    let (scaled_denominator, _) = step("v_div_scale_f32", [m, m, n], 0, perturbation);
    let (scaled_numerator, vcc) = step("v_div_scale_f32", [n, m, n], 0, perturbation);
    let negative = scaled_denominator ^ LEAST;
    let mut reciprocal = step("v_rcp_f32", [scaled_denominator, 0, 0], 0, perturbation).0;
    reciprocal = fma(fma(negative, reciprocal, f(1.0)), reciprocal, reciprocal);
    let mut quotient = step("v_mul_f32", [scaled_numerator, reciprocal, 0], 0, perturbation).0;
    quotient = fma(fma(negative, quotient, scaled_numerator), reciprocal, quotient);
    let error = fma(negative, quotient, scaled_numerator);
    let (value, _) = step("v_div_fmas_f32", [error, reciprocal, quotient], vcc, perturbation);
    f32::from_bits(step("v_div_fixup_f32", [value, m, n], 0, perturbation).0 as u32)
}

fn divide_double(numerator: f64, denominator: f64, perturbation: Perturbation) -> f64 {
    let (n, m) = (d(numerator), d(denominator));
    let fma = |a, b, c| step("v_fma_f64", [a, b, c], 0, perturbation).0;
    let (scaled_denominator, _) = step("v_div_scale_f64", [m, m, n], 0, perturbation);
    let (scaled_numerator, vcc) = step("v_div_scale_f64", [n, m, n], 0, perturbation);
    let negative = scaled_denominator ^ 1 << 63;
    let mut reciprocal = step("v_rcp_f64", [scaled_denominator, 0, 0], 0, perturbation).0;
    for _ in 0..2 {
        reciprocal = fma(fma(negative, reciprocal, d(1.0)), reciprocal, reciprocal);
    }
    let quotient = step("v_mul_f64", [scaled_numerator, reciprocal, 0], 0, perturbation).0;
    let error = fma(negative, quotient, scaled_numerator);
    let (value, _) = step("v_div_fmas_f64", [error, reciprocal, quotient], vcc, perturbation);
    f64::from_bits(step("v_div_fixup_f64", [value, m, n], 0, perturbation).0)
}

fn check_single(numerator: f32, denominator: f32) {
    for perturbation in PERTURBATIONS {
        let (found, exact) = (divide_single(numerator, denominator, perturbation), numerator / denominator);
        let same = found.to_bits() == exact.to_bits() || found.is_nan() && exact.is_nan();
        assert!(same, "{numerator:e} / {denominator:e} {perturbation:?}: {found:e} and not {exact:e}");
    }
}

fn check_double(numerator: f64, denominator: f64) {
    for perturbation in PERTURBATIONS {
        let (found, exact) = (divide_double(numerator, denominator, perturbation), numerator / denominator);
        let same = found.to_bits() == exact.to_bits() || found.is_nan() && exact.is_nan();
        assert!(same, "{numerator:e} / {denominator:e} {perturbation:?}: {found:e} and not {exact:e}");
    }
}

/// Numbers of every size: random bits, including denormals and the largest.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn quotients_of_singles_are_correctly_rounded() {
    for (numerator, denominator) in [
        (1.0, 3.0),
        (-7.5, 1.1),
        (1e38, 1e-3),
        (1e-38, 1e3),
        (3e-39, 7e-39),
        (1e38, 3e38),
        (5.0, 2e-39),
        (2.0, f32::MAX),
        // Overflow, and a denormal that two roundings get wrong.
        (2f32.powi(66), 2f32.powi(-126)),
        (f32::from_bits(0x2bc8_8654), f32::from_bits(0x6b00_0023)),
        (f32::INFINITY, 2.0),
        (0.0, 0.0),
        (1.0, -0.0),
    ] {
        check_single(numerator, denominator);
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..1000 {
        let bits = random.next();
        check_single(f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32));
        // Quotients around the smallest normal number.
        let exponent = (bits >> 20 & 63) as i32 - 32;
        let mantissa = |shift: u32| 1.0 + (bits >> shift & 0xf_ffff) as f32 / 1_048_576.0;
        check_single(mantissa(0) * 2f32.powi(-60 + exponent), mantissa(40) * 2f32.powi(70 + exponent / 2));
    }
}

#[test]
fn quotients_of_doubles_are_correctly_rounded() {
    for (numerator, denominator) in [
        (1.0, 3.0),
        (-7.5, 1.1),
        (1e300, 1e-8),
        (1e-305, 1e3),
        (1e-310, 7e-310),
        (1e308, 3e307),
        (5.0, 2e-310),
        (1e300, 1e-300),
        (f64::INFINITY, 2.0),
        (0.0, 0.0),
    ] {
        check_double(numerator, denominator);
    }
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..1000 {
        check_double(f64::from_bits(random.next()), f64::from_bits(random.next()));
        let (bits, more) = (random.next(), random.next());
        let exponent = (bits >> 58) as i32 - 32;
        let mantissa = |bits: u64| f64::from_bits(bits >> 12 | 1023 << 52);
        check_double(mantissa(bits) * 2f64.powi(-500 + exponent), mantissa(more) * 2f64.powi(540 + exponent / 2));
    }
}
