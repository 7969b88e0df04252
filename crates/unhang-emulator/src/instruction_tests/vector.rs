//! Vector instructions: every function in each of its encodings, then comparisons, masks, packed halves and modifiers.

use unhang_isa::{Field, Format};

use super::vector_table::*;
use super::{
    DESTINATION, Extra, LANE, MASK_IN, MASK_OUT, MODE, OFF_LANE, SOURCES, UNTOUCHED, encode, forms, put_sources, wave,
};
use crate::Perturbation;
use crate::float::FloatMode;
use crate::semantics::Semantics;
use crate::wave::{EXEC, LANES, M0, VCC, Wave};

/// Every comparison.
fn comparisons() -> Vec<&'static str> {
    let wanted: Vec<String> = CONDITIONS
        .iter()
        .flat_map(|(condition, _)| PAIRS.iter().map(move |(kind, _)| format!("{condition}_{kind}")))
        .flat_map(|name| [format!("v_cmp_{name}"), format!("v_cmpx_{name}")])
        .collect();
    let mut names: Vec<_> = unhang_isa::definitions().iter().map(|definition| definition.base_name()).collect();
    names.retain(|name| wanted.iter().any(|wanted| wanted == name));
    names
}

pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = FUNCTIONS.iter().chain(APPROXIMATE).chain(PACKED).map(|row| row.0).collect();
    names.extend(CARRIES.iter().map(|row| row.0));
    names.extend(comparisons());
    names.extend(OTHERS);
    names
}

fn execute(wave: &mut Wave, definition: &'static unhang_isa::Definition, extra: Extra) {
    let instruction = encode(definition, extra);
    wave.run_vector(&instruction, Semantics::of(&instruction))
        .unwrap_or_else(|fault| panic!("{}: {fault}", definition.mnemonic));
}

fn result(wave: &Wave, register: u32, wide: bool) -> u64 {
    let [low, high] = [0, 1].map(|part| wave.vector_lane(register as usize + part, LANE) as u64);
    if wide { low | high << 32 } else { low }
}

/// Runs every form of a function and returns the contents of the destination, with 64 bits if it is wide.
fn run_forms(name: &str, sources: [u64; 3], mode: FloatMode) -> Vec<(&'static str, u64)> {
    let mut found = Vec::new();
    for definition in forms(name) {
        let mut wave = wave();
        wave.mode = mode;
        let constant = definition.operands().iter().position(|slot| slot.field == Field::Constant);
        let [a, b, c] = sources;
        let (registers, literal) = match constant {
            Some(2) => ([a, c, 0], b),
            Some(_) => ([a, b, 0], c),
            None => (sources, 0),
        };
        put_sources(&mut wave, &registers);
        if accumulates(name) {
            wave.vectors[DESTINATION as usize][LANE] = c as u32;
        }
        execute(&mut wave, definition, Extra { words: [0, if constant.is_some() { literal as u32 } else { 0 }] });
        let wide = definition.operand(Field::Destination).unwrap().width.registers(false) == 2;
        found.push((definition.mnemonic, result(&wave, DESTINATION, wide)));
        assert_eq!(wave.vector_lane(DESTINATION as usize, OFF_LANE), UNTOUCHED, "{name} in a lane that is off");
    }
    found
}

/// Whether the old value of the destination is a source.
fn accumulates(name: &str) -> bool {
    name.contains("mac") || name.starts_with("v_dot2c") || name.starts_with("v_dot4c")
}

/// Whether a result has 16 bits, so that the rest of the register stays.
fn is_half(name: &str) -> bool {
    let whole = [
        "v_cvt_f32",
        "v_cvt_pk",
        "v_pack_b32",
        "v_mad_u32_u16",
        "v_mad_i32_i16",
        "v_sad_u16",
        "v_pk",
        "v_bcnt",
        "v_dot",
    ];
    let last = name.rsplit('_').next().unwrap_or("");
    let first = name.split('_').nth(2).unwrap_or("");
    let narrow = |kind: &str| matches!(kind, "f16" | "u16" | "i16" | "b16");
    name.starts_with("v_cvt_norm")
        || (narrow(first) || narrow(last) && !name.starts_with("v_cvt"))
            && !whole.iter().any(|start| name.starts_with(start))
}

fn expected_register(name: &str, sources: [u64; 3], value: u64) -> u64 {
    let old = if accumulates(name) { sources[2] } else { UNTOUCHED as u64 };
    if is_half(name) { old & 0xffff_0000 | value } else { value }
}

fn mode(perturbation: Perturbation) -> FloatMode {
    FloatMode::from_bits(MODE, perturbation)
}

#[test]
fn functions_of_one_lane() {
    for &(name, sources, value) in FUNCTIONS.iter().chain(APPROXIMATE) {
        for (form, found) in run_forms(name, sources, mode(Perturbation::None)) {
            let expected = expected_register(name, sources, value);
            assert_eq!(found, expected, "{form} of {sources:x?}: {found:#x} and not {expected:#x}");
        }
    }
}

#[test]
fn approximate_functions_are_shifted_by_what_the_card_promises() {
    for &(name, sources, value) in APPROXIMATE {
        let (exponent, units): (u64, u64) = match name.rsplit('_').next() {
            Some("f64") => (0x7ff0_0000_0000_0000, 1 << 29),
            Some("f16") => (0x7c00, 1),
            _ => (0x7f80_0000, 1),
        };
        // The documentation's examples are powers of two.
        let is_power =
            value & (exponent & exponent.wrapping_neg()).wrapping_sub(1) == 0 && exponent != 0x7ff0_0000_0000_0000;
        let special = value & exponent == 0 || value & exponent == exponent || is_power;
        for (perturbation, moved) in
            [(Perturbation::Up, value + units), (Perturbation::Down, value.wrapping_sub(units))]
        {
            let expected = expected_register(name, sources, if special { value } else { moved });
            for (form, found) in run_forms(name, sources, mode(perturbation)) {
                assert_eq!(found, expected, "{form} {perturbation:?} of {sources:x?}");
            }
        }
    }
    // A number that was rounded up does not move further up: 1/3 in single precision is more than a third.
    let third = |perturbation| run_forms("v_rcp_f32", [f(3.0), 0, 0], mode(perturbation))[0].1;
    let near = f(1.0 / 3.0);
    let found = [Perturbation::None, Perturbation::Up, Perturbation::Down].map(third);
    assert_eq!(found, [near, near, near - 1]);
    // Nothing else moves.
    for (_, found) in run_forms("v_mul_f32", [f(3.0), f(3.0), 0], mode(Perturbation::Up)) {
        assert_eq!(found, f(9.0));
    }
}

/// Half precision and wide results round in their own way; `float` tests whether the functions are exact.
#[test]
fn functions_follow_the_mode() {
    let with = |bits: u32| FloatMode::from_bits(bits, Perturbation::None);
    let run = |name, sources, bits| run_forms(name, sources, with(bits))[0].1;
    let tiny = f(f32::EPSILON / 4.0);
    // Round up, down, toward zero in single precision, denormals kept.
    assert_eq!(
        [0xf0, 0xf1, 0xf2, 0xf3].map(|bits| run("v_add_f32", [f(1.0), tiny, 0], bits)),
        [f(1.0), f(1.0) + 1, f(1.0), f(1.0)]
    );
    assert_eq!(
        [0xf0, 0xf1, 0xf2, 0xf3].map(|bits| run("v_sub_f32", [f(1.0), tiny, 0], bits)),
        [f(1.0), f(1.0), f(1.0) - 1, f(1.0) - 1]
    );
    assert_eq!(
        [0xf0, 0xf1, 0xf2, 0xf3].map(|bits| run("v_fma_f32", [f(1.0), f(1.0), tiny], bits)),
        [f(1.0), f(1.0) + 1, f(1.0), f(1.0)]
    );
    assert_eq!(
        [0xf0, 0xf1, 0xf2, 0xf3].map(|bits| run("v_cvt_f32_u32", [16777217, 0, 0], bits)),
        [f(16777216.0), f(16777218.0), f(16777216.0), f(16777216.0)]
    );
    assert_eq!(
        [0xf0, 0xf4, 0xf8, 0xfc].map(|bits| run("v_cvt_f16_f32", [f(2049.0), 0, 0], bits) & 0xffff),
        [0x6800, 0x6801, 0x6800, 0x6800]
    );
    assert_eq!(
        [0xf0, 0xf4, 0xf8, 0xfc].map(|bits| run("v_add_f64", [d(1.0), d(1e-30), 0], bits)),
        [d(1.0), d(1.0) + 1, d(1.0), d(1.0)]
    );
    // Denormals: kept, flushed in, flushed out, both.
    let denormal = f(1e-40);
    assert_eq!([0xf0, 0xe0, 0xd0, 0xc0].map(|bits| run("v_add_f32", [denormal, 0, 0], bits)), [denormal, 0, 0, 0]);
    let smallest = f(f32::MIN_POSITIVE);
    assert_eq!(
        [0xf0, 0xe0, 0xd0, 0xc0].map(|bits| run("v_mul_f32", [smallest, f(0.5), 0], bits)),
        [smallest - 0x40_0000, smallest - 0x40_0000, 0, 0]
    );
    assert_eq!([0xf0, 0xe0].map(|bits| run("v_mul_f32", [denormal, f(1e10), 0], bits)), [f(1e-40 * 1e10), 0]);
    // The first is what a real RX 5500 XT returned, where its owner expected the second (vosen/ZLUDA issue 335,
    // 2025-02-19).
    let halved = [0xf0, 0xc0].map(|bits| run("v_mul_f32", [0x8040_0000, f(0.5), 0], bits));
    assert_eq!(halved, [0x8020_0000, 0x8000_0000]);
    assert_eq!([0xf0, 0xb0, 0x70, 0x30].map(|bits| run("v_add_f16", [1, 0, 0], bits) & 0xffff), [1, 0, 0, 0]);
    assert_eq!([0xf0, 0x30].map(|bits| run("v_add_f64", [1, 0, 0], bits)), [1, 0]);
    // The unfused pair never keeps them.
    assert_eq!(run("v_mad_f32", [denormal, f(1.0), 0], 0xf0), 0);
}

#[test]
fn comparisons_hold_where_they_should() {
    for name in comparisons() {
        let (condition, kind) =
            name.trim_start_matches("v_cmpx_").trim_start_matches("v_cmp_").split_once('_').unwrap();
        let holds = CONDITIONS.iter().find(|row| row.0 == condition).unwrap().1;
        let pairs = PAIRS.iter().find(|row| row.0 == kind).unwrap().1;
        for (outcome, &(a, b)) in pairs.iter().enumerate() {
            if outcome == 3 && !kind.starts_with('f') {
                continue;
            }
            for definition in forms(name) {
                let mut wave = wave();
                put_sources(&mut wave, &[a, b]);
                execute(&mut wave, definition, Extra::default());
                let register = match (name.starts_with("v_cmpx"), definition.format) {
                    (true, _) => EXEC,
                    (_, Format::Vop3) => MASK_OUT as usize,
                    _ => VCC,
                };
                let found = wave.scalars[register];
                assert_eq!(found >> LANE & 1 == 1, holds[outcome], "{} {a:#x} {b:#x}", definition.mnemonic);
                assert_eq!(found & !(1 << LANE | 1 << 9), 0, "{}: lanes that are off", definition.mnemonic);
            }
        }
    }
}

#[test]
fn classes_of_numbers() {
    // Signalling and quiet NaN, -infinity, -normal, -denormal, -0, 0, denormal, normal, infinity.
    let single = [
        0x7f80_0001,
        f(f32::NAN),
        f(f32::NEG_INFINITY),
        f(-1.0),
        f(-1e-40),
        f(-0.0),
        0,
        f(1e-40),
        f(1.0),
        f(f32::INFINITY),
    ];
    let half = [0x7c01, H_NAN, 0xfc00, H_MINUS_1, 0x8001, 0x8000, 0, 1, H_1, H_INFINITY];
    let double = [
        0x7ff0_0000_0000_0001,
        d(f64::NAN),
        d(f64::NEG_INFINITY),
        d(-1.0),
        d(-1e-310),
        d(-0.0),
        0,
        d(1e-310),
        d(1.0),
        d(f64::INFINITY),
    ];
    for (kind, values) in [("f32", single), ("f16", half), ("f64", double)] {
        for (class, value) in values.into_iter().enumerate() {
            for name in [format!("v_cmp_class_{kind}"), format!("v_cmpx_class_{kind}")] {
                for definition in forms(&name) {
                    let register = match (name.starts_with("v_cmpx"), definition.format) {
                        (true, _) => EXEC,
                        (_, Format::Vop3) => MASK_OUT as usize,
                        _ => VCC,
                    };
                    for (wanted, holds) in [(1 << class, true), (!(1u64 << class), false)] {
                        let mut wave = wave();
                        put_sources(&mut wave, &[value, wanted & ONES]);
                        execute(&mut wave, definition, Extra::default());
                        assert_eq!(wave.scalars[register] >> LANE & 1 == 1, holds, "{name} {value:#x} {wanted:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn carries() {
    for &(name, a, b, carry, value, carry_out) in CARRIES {
        for definition in forms(name) {
            let mut wave = wave();
            put_sources(&mut wave, &[a, b]);
            let long = definition.format == Format::Vop3;
            wave.scalars[if long { MASK_IN as usize } else { VCC }] = (carry as u32) << LANE;
            execute(&mut wave, definition, Extra::default());
            let mask = wave.scalars[if long { MASK_OUT as usize } else { VCC }];
            let found = (result(&wave, DESTINATION, false), mask >> LANE & 1 == 1);
            assert_eq!(found, (value, carry_out), "{} {a:#x} {b:#x} {carry}", definition.mnemonic);
        }
    }
    for (name, a, b, c, value, carry) in [
        ("v_mad_u64_u32", ONES, ONES, u64::MAX, (ONES * ONES).wrapping_sub(1), true),
        ("v_mad_u64_u32", 3, 4, 5, 17, false),
        ("v_mad_i64_i32", ONES, 5, 7, 2, true),
        ("v_mad_i64_i32", 3, 4, 5, 17, false),
    ] {
        for definition in forms(name) {
            let mut wave = wave();
            put_sources(&mut wave, &[a, b, c]);
            execute(&mut wave, definition, Extra::default());
            let found = result(&wave, DESTINATION, true);
            assert_eq!(found, value, "{name} {a:#x} {b:#x} {c:#x}: {found:#x}");
            assert_eq!(wave.scalars[MASK_OUT as usize] >> LANE & 1 == 1, carry, "{name} {a:#x} {b:#x} {c:#x}");
        }
    }
}

/// The bits that make the upper result use the upper halves.
const UPPER_HALVES: [u32; 2] = [1 << 14, 3 << 27];

#[test]
fn packed_halves() {
    for &(name, sources, value) in PACKED {
        for definition in forms(name) {
            let mut wave = wave();
            put_sources(&mut wave, &sources);
            wave.vectors[DESTINATION as usize][LANE] = sources[2] as u32;
            let long = definition.format == Format::Vop3p;
            execute(&mut wave, definition, Extra { words: if long { UPPER_HALVES } else { [0; 2] } });
            let found = result(&wave, DESTINATION, false);
            assert_eq!(found, value, "{name}: {found:#x} and not {value:#x}");
        }
    }
    let definition = forms("v_pk_add_f16").next().unwrap();
    let run = |words: [u32; 2]| {
        let mut wave = wave();
        put_sources(&mut wave, &[H_1 | H_3 << 16, H_2 | H_4 << 16]);
        execute(&mut wave, definition, Extra { words });
        result(&wave, DESTINATION, false)
    };
    // Both results from the lower halves; the lower result from the upper halves; signs of each half; clamped.
    assert_eq!(run([0, 0]), H_3 | H_3 << 16);
    assert_eq!(run([3 << 11 | UPPER_HALVES[0], UPPER_HALVES[1]]), 0x4700 | 0x4700 << 16);
    assert_eq!(run([UPPER_HALVES[0], UPPER_HALVES[1] | 1 << 29]), H_1 | 0x4700 << 16);
    assert_eq!(run([UPPER_HALVES[0] | 2 << 8, UPPER_HALVES[1]]), H_3 | H_MINUS_1 << 16);
    assert_eq!(run([UPPER_HALVES[0] | 2 << 8 | 1 << 15, UPPER_HALVES[1]]), H_1);
}

#[test]
fn mixed_halves_and_singles() {
    let sources = [H_1 << 16 | H_3, f(2.0), f(0.5)];
    // Source 0 is a half, its upper one; then the lower one, negated; then its absolute value.
    for (name, words, value) in [
        ("v_fma_mix_f32", [1 << 11, 1 << 27], f(2.5)),
        ("v_fma_mix_f32", [0, 1 << 27 | 1 << 29], f(-5.5)),
        ("v_fma_mix_f32", [1 << 8 | 1 << 15, 1 << 27], f(1.0)),
        ("v_fma_mixlo_f16", [1 << 11, 1 << 27], UNTOUCHED as u64 & 0xffff_0000 | H_2_5),
        ("v_fma_mixhi_f16", [1 << 11, 1 << 27], UNTOUCHED as u64 & 0xffff | H_2_5 << 16),
    ] {
        for definition in forms(name) {
            let mut wave = wave();
            put_sources(&mut wave, &sources);
            execute(&mut wave, definition, Extra { words });
            let found = result(&wave, DESTINATION, false);
            assert_eq!(found, value, "{name} {words:x?}: {found:#x} and not {value:#x}");
        }
    }
}

/// A half is a single that was rounded, and rounded again.
#[test]
fn mixed_halves_round_twice() {
    for (name, expected) in
        [("v_fma_mixlo_f16", UNTOUCHED & 0xffff_0000 | 0x9222), ("v_fma_mixhi_f16", UNTOUCHED & 0xffff | 0x9222 << 16)]
    {
        let mut wave = wave();
        put_sources(&mut wave, &[0x003f, 0x41df_fffd, 0x92ff]);
        // Sources 0 and 2 are halves.
        execute(&mut wave, forms(name).next().unwrap(), Extra { words: [1 << 14, 1 << 27] });
        assert_eq!(result(&wave, DESTINATION, false), expected as u64, "{name}");
    }
}

#[test]
fn modifiers_of_the_long_form() {
    let add = forms("v_add_f32").find(|definition| definition.format == Format::Vop3).unwrap();
    let run = |definition, sources: &[u64], words| {
        let mut wave = wave();
        put_sources(&mut wave, sources);
        execute(&mut wave, definition, Extra { words });
        result(&wave, DESTINATION, false)
    };
    let sources = [f(-3.0), f(2.0)];
    assert_eq!(run(add, &sources, [0, 1 << 29]), f(5.0), "negated first source");
    assert_eq!(run(add, &sources, [1 << 8, 0]), f(5.0), "absolute first source");
    assert_eq!(run(add, &sources, [1 << 8, 1 << 29]), f(-1.0), "minus the absolute first source");
    assert_eq!(run(add, &sources, [0, 3 << 29 | 1 << 27]), f(2.0), "both negated, times two");
    assert_eq!(run(add, &sources, [0, 1 << 29 | 2 << 27]), f(20.0), "times four");
    assert_eq!(run(add, &sources, [0, 1 << 29 | 3 << 27]), f(2.5), "divided by two");
    assert_eq!(run(add, &sources, [1 << 15, 1 << 29]), f(1.0), "clamped from above");
    assert_eq!(run(add, &sources, [1 << 15, 0]), f(0.0), "clamped from below");
    assert_eq!(run(add, &[f(f32::NAN), 0], [1 << 15, 0]), f(0.0), "NaN clamped to zero");
    // Integers have no sign that could be changed.
    let whole = forms("v_add_nc_u32").find(|definition| definition.format == Format::Vop3).unwrap();
    assert_eq!(run(whole, &[LEAST + 7, 5], [3 << 8, 3 << 29]), LEAST + 12);
    let shift = forms("v_lshlrev_b64").next().unwrap();
    assert_eq!(run(shift, &[0, 1 << 63 | 7], [2 << 8, 2 << 29]), 7);
    let half = forms("v_add_f16").find(|definition| definition.format == Format::Vop3).unwrap();
    let sources = [H_1 | H_3 << 16, H_2 | H_4 << 16];
    let old = UNTOUCHED as u64;
    assert_eq!(run(half, &sources, [1 << 11, 0]), old & 0xffff_0000 | 0x4500, "upper half of the first source");
    assert_eq!(run(half, &sources, [2 << 11, 0]), old & 0xffff_0000 | 0x4500, "upper half of the second source");
    assert_eq!(run(half, &sources, [8 << 11, 0]), old & 0xffff | H_3 << 16, "into the upper half");
    assert_eq!(run(half, &sources, [0, 1 << 29]), old & 0xffff_0000 | H_1, "negated half");
    // An instruction that does not saturate is unknown with that bit; the bit is not ignored.
    let whole = forms("v_mul_lo_u32").find(|definition| definition.format == Format::Vop3).unwrap();
    assert!(matches!(Semantics::of(&encode(whole, Extra { words: [1 << 15, 0] })), Semantics::Unsupported));
}

#[test]
fn parts_of_registers() {
    let add = forms("v_add_nc_u32").find(|definition| definition.format == Format::Vop2).unwrap();
    let run = |words: u32| {
        let mut wave = wave();
        put_sources(&mut wave, &[0x8122_4384, 0x0010_2030]);
        // Source 0 refers to the second word, which holds the register of the first source.
        let mut instruction = encode(add, Extra::default()).first_word();
        instruction = instruction & !0x1ff | 249;
        let bytes: Vec<u8> = [instruction, words | SOURCES[0]].iter().flat_map(|word| word.to_le_bytes()).collect();
        let instruction = unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap();
        wave.run_vector(&instruction, Semantics::of(&instruction)).unwrap();
        result(&wave, DESTINATION, false)
    };
    // Fields: destination part and the rest of it, source 0 with sign, source 1 with sign.
    let fields = |destination: u32, rest: u32, first: u32, second: u32| {
        destination << 8 | rest << 11 | first << 16 | second << 24
    };
    assert_eq!(run(fields(6, 0, 6, 6)), 0x8132_63b4, "whole registers");
    assert_eq!(run(fields(6, 0, 0, 1)), 0x84 + 0x20, "bytes");
    assert_eq!(run(fields(6, 0, 8, 1)), 0xffff_ff84 + 0x20, "a byte with its sign");
    assert_eq!(run(fields(6, 0, 5, 4)), 0x8122 + 0x2030, "halves");
    assert_eq!(run(fields(1, 0, 0, 1)), 0xa4 << 8, "into a byte, the rest zero");
    assert_eq!(run(fields(1, 1, 0, 1)), 0xffff_a400, "into a byte, with its sign above");
    assert_eq!(run(fields(1, 2, 0, 1)), 0xdead_a4ef, "into a byte, the rest kept");
    assert_eq!(run(fields(5, 2, 0, 1)), 0x00a4_beef, "into the upper half, the rest kept");
}

#[test]
fn permutations_within_rows() {
    let mov = forms("v_mov_b32").find(|definition| definition.format == Format::Vop1).unwrap();
    let run = |source: u32, words: u32, exec: u32| {
        let mut wave = wave();
        wave.scalars[EXEC] = exec;
        for lane in 0..LANES {
            wave.vectors[SOURCES[0] as usize][lane] = lane as u32;
        }
        let first = encode(mov, Extra::default()).first_word() & !0x1ff | source;
        let bytes: Vec<u8> = [first, words | SOURCES[0]].iter().flat_map(|word| word.to_le_bytes()).collect();
        let instruction = unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap();
        wave.run_vector(&instruction, Semantics::of(&instruction)).unwrap();
        wave.vector(DESTINATION as u8)
    };
    const ALL: u32 = u32::MAX;
    const EVERYWHERE: u32 = 0xff << 24;
    let rows = |control: u32| run(250, control << 8 | EVERYWHERE, ALL);
    for lane in 0..LANES {
        let (row, place) = (lane & !15, lane & 15);
        assert_eq!(rows(0b00_01_10_11)[lane] as usize, lane ^ 3, "quads turned around");
        let shifted = if place + 2 < 16 { lane as u32 + 2 } else { UNTOUCHED };
        assert_eq!(rows(0x102)[lane], shifted, "row_shl:2");
        let shifted = if place >= 2 { lane as u32 - 2 } else { UNTOUCHED };
        assert_eq!(rows(0x112)[lane], shifted, "row_shr:2");
        assert_eq!(rows(0x122)[lane] as usize, row + (place + 14) % 16, "row_ror:2");
        assert_eq!(rows(0x140)[lane] as usize, row + 15 - place, "row_mirror");
        assert_eq!(rows(0x141)[lane] as usize, lane ^ 7, "row_half_mirror");
        assert_eq!(rows(0x153)[lane] as usize, row + 3, "row_share:3");
        assert_eq!(rows(0x163)[lane] as usize, lane ^ 3, "row_xmask:3");
        // With bound_ctrl, lanes outside the row read zero.
        assert_eq!(
            run(250, 0x112 << 8 | EVERYWHERE | 1 << 19, ALL)[lane],
            if place >= 2 { lane as u32 - 2 } else { 0 }
        );
        // Rows and banks that are masked out stay unchanged.
        let expected = if row == 0 { lane as u32 ^ 3 } else { UNTOUCHED };
        assert_eq!(run(250, 0b00_01_10_11 << 8 | 0x1f << 24, ALL)[lane], expected, "row_mask");
        let expected = if place < 4 { lane as u32 ^ 3 } else { UNTOUCHED };
        assert_eq!(run(250, 0b00_01_10_11 << 8 | 0xf1 << 24, ALL)[lane], expected, "bank_mask");
        // Eight lanes: each reads the lane two places further.
        let selects = (0..8).fold(0, |bits, place| bits | ((place + 2) % 8) << (8 + place * 3));
        assert_eq!(run(233, selects, ALL)[lane] as usize, lane & !7 | (lane + 2) & 7, "dpp8");
    }
    // Carries follow the same masks: a masked lane keeps its register and has no carry.
    let add = forms("v_add_co_ci_u32").find(|definition| definition.format == Format::Vop2).unwrap();
    let mut wave = wave();
    wave.scalars[EXEC] = ALL;
    wave.scalars[VCC] = ALL;
    wave.vectors[SOURCES[0] as usize] = [u32::MAX; LANES];
    wave.vectors[SOURCES[1] as usize] = std::array::from_fn(|lane| lane as u32);
    let first = encode(add, Extra::default()).first_word() & !0x1ff | 250;
    // row_shr:1, one row of both, three banks of four.
    let second = 0x111 << 8 | 0x17 << 24 | SOURCES[0];
    let bytes: Vec<u8> = [first, second].iter().flat_map(|word| word.to_le_bytes()).collect();
    let instruction = unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap();
    wave.run_vector(&instruction, Semantics::of(&instruction)).unwrap();
    for lane in 0..LANES {
        let written = (1..12).contains(&lane);
        let expected = if written { lane as u32 } else { UNTOUCHED };
        assert_eq!(wave.vector_lane(DESTINATION as usize, lane), expected, "lane {lane}");
        assert_eq!(wave.scalars[VCC] >> lane & 1 == 1, written, "carry of lane {lane}");
    }
    // An inactive lane is not read, unless that is requested.
    let off = ALL ^ 1 << 1;
    assert_eq!(run(250, 0b00_01_10_11 << 8 | EVERYWHERE, off)[2], UNTOUCHED);
    assert_eq!(run(250, 0b00_01_10_11 << 8 | EVERYWHERE | 1 << 18, off)[2], 1);
}

/// Reversed integer operations: their operands are turned around before lanes are exchanged, so that the second is
/// exchanged. Reversed subtractions of floats are additions, and exchange the first.
#[test]
fn reversed_integer_operations_exchange_lanes_of_their_second_source() {
    type Operation = fn(u32, u32) -> u32;
    let first = |lane: usize| lane as u32 % 5 + 1;
    let second = |lane: usize| 0x8000_0000 | (lane as u32) << 9;
    let cases: [(&str, bool, Operation); 8] = [
        ("v_subrev_nc_u32", true, |a, b| b.wrapping_sub(a)),
        ("v_subrev_co_ci_u32", true, |a, b| b.wrapping_sub(a)),
        ("v_lshlrev_b32", true, |a, b| b << a),
        ("v_lshrrev_b32", true, |a, b| b >> a),
        ("v_ashrrev_i32", true, |a, b| (b as i32 >> a) as u32),
        ("v_sub_nc_u32", false, |a, b| a.wrapping_sub(b)),
        ("v_add_nc_u32", false, |a, b| a.wrapping_add(b)),
        ("v_subrev_f32", false, |a, b| (f32::from_bits(b) - f32::from_bits(a)).to_bits()),
    ];
    for (name, reversed, operation) in cases {
        let definition = forms(name).find(|definition| definition.format == Format::Vop2).unwrap();
        // quad_perm:[3,2,1,0]; the same by eight lanes; and a row less one lane, which keeps its register.
        let quads = (250, 0b00_01_10_11 << 8 | 0xff << 24);
        let eights = (233, (0..8).fold(0, |bits, place| bits | (place ^ 3) << (8 + place * 3)));
        let shifted = (250, 0x111 << 8 | 0xff << 24);
        for (form, control) in [quads, eights, shifted] {
            let mut wave = wave();
            wave.scalars[EXEC] = u32::MAX;
            wave.scalars[VCC] = 0;
            wave.vectors[SOURCES[0] as usize] = std::array::from_fn(first);
            wave.vectors[SOURCES[1] as usize] = std::array::from_fn(second);
            let words = [encode(definition, Extra::default()).first_word() & !0x1ff | form, control | SOURCES[0]];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let instruction = unhang_isa::decode(&bytes, unhang_isa::Chip::Gfx1010).unwrap();
            wave.run_vector(&instruction, Semantics::of(&instruction)).unwrap();
            for lane in 0..LANES {
                let from =
                    if control == shifted.1 { lane.checked_sub(1).filter(|_| lane % 16 != 0) } else { Some(lane ^ 3) };
                let expected = from.map_or(UNTOUCHED, |from| match reversed {
                    true => operation(first(lane), second(from)),
                    false => operation(first(from), second(lane)),
                });
                assert_eq!(wave.vector_lane(DESTINATION as usize, lane), expected, "{name}, {form}, lane {lane}");
            }
        }
    }
}

#[test]
fn lanes_and_masks() {
    for definition in forms("v_cndmask_b32") {
        for (bit, value) in [(0, 7), (1, 9)] {
            let mut wave = wave();
            put_sources(&mut wave, &[7, 9]);
            let register = if definition.format == Format::Vop3 { MASK_IN as usize } else { VCC };
            wave.scalars[register] = bit << LANE;
            execute(&mut wave, definition, Extra::default());
            assert_eq!(result(&wave, DESTINATION, false), value, "{}", definition.mnemonic);
        }
    }
    let one = |name| forms(name).next().unwrap();
    let lanes = || {
        let mut wave = wave();
        for lane in 0..LANES {
            wave.vectors[SOURCES[0] as usize][lane] = 100 + lane as u32;
        }
        wave
    };
    let mut wave = lanes();
    execute(&mut wave, one("v_readfirstlane_b32"), Extra::default());
    assert_eq!(wave.scalar(DESTINATION as u8), 100 + LANE as u32);
    wave.scalars[EXEC] = 0;
    execute(&mut wave, one("v_readfirstlane_b32"), Extra::default());
    assert_eq!(wave.scalar(DESTINATION as u8), 100);

    let mut wave = lanes();
    wave.scalars[SOURCES[1] as usize] = 32 + 17;
    execute(&mut wave, one("v_readlane_b32"), Extra::default());
    assert_eq!(wave.scalar(DESTINATION as u8), 117, "off lanes are read as well");

    let mut wave = lanes();
    put_sources(&mut wave, &[55, 17]);
    wave.vectors[SOURCES[0] as usize] = [55; LANES];
    execute(&mut wave, one("v_writelane_b32"), Extra::default());
    for lane in 0..LANES {
        assert_eq!(wave.vector_lane(DESTINATION as usize, lane), if lane == 17 { 55 } else { UNTOUCHED });
    }

    let mut wave = lanes();
    let second = SOURCES[0] as usize;
    wave.vectors[DESTINATION as usize] = [3; LANES];
    execute(&mut wave, one("v_swap_b32"), Extra::default());
    assert_eq!((result(&wave, DESTINATION, false), wave.vector_lane(second, LANE)), (100 + LANE as u64, 3));
    assert_eq!(wave.vector_lane(second, OFF_LANE), 100 + OFF_LANE as u32);

    // Each lane reads the lane of its row that four bits select; in the second instruction, from the other row.
    for (name, across) in [("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)] {
        let mut wave = lanes();
        wave.scalars[EXEC] = u32::MAX;
        let (low, high) = (0x7654_3210u32.rotate_left(4), 0xfedc_ba98u32);
        for (register, value) in [(SOURCES[1], low), (SOURCES[2], high)] {
            wave.scalars[register as usize] = value;
            wave.vectors[register as usize] = [value; LANES];
        }
        // Integers have no signs; clang 15 sets these bits nevertheless.
        execute(&mut wave, one(name), Extra { words: [7 << 8, 7 << 29] });
        for lane in 0..LANES {
            let select = (low as u64 | (high as u64) << 32) >> ((lane & 15) * 4) & 15;
            let from = ((lane & 16) ^ across) + select as usize;
            assert_eq!(wave.vector_lane(DESTINATION as usize, lane), 100 + from as u32, "{name} lane {lane}");
        }
    }

    for (name, expected) in [("v_mbcnt_lo_u32_b32", 1000 + 3), ("v_mbcnt_hi_u32_b32", 1000)] {
        for definition in forms(name) {
            let mut wave = lanes();
            // Bits below lane 5: three of them are set.
            put_sources(&mut wave, &[0b1111_0110_1001, 1000]);
            wave.vectors[SOURCES[0] as usize][LANE] = 0b1110_1001_0011;
            execute(&mut wave, definition, Extra::default());
            assert_eq!(result(&wave, DESTINATION, false), expected, "{name}");
        }
    }

    let mut wave = lanes();
    wave.scalars[M0] = 2;
    wave.vectors[SOURCES[1] as usize] = [77; LANES];
    execute(&mut wave, one("v_movrels_b32"), Extra::default());
    assert_eq!(result(&wave, DESTINATION, false), 77);
    execute(&mut wave, one("v_movreld_b32"), Extra::default());
    assert_eq!(wave.vector_lane(DESTINATION as usize + 2, LANE), 100 + LANE as u32);

    let mut wave = lanes();
    let before = wave.vectors.clone();
    execute(&mut wave, one("v_nop"), Extra::default());
    assert_eq!(wave.vectors, before);
}
