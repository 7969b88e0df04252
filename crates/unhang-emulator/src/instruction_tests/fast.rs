//! Compares the fast path with the plain one: every instruction that has both, on random registers, to the bit.

use std::cell::Cell;

use unhang_isa::{Chip, Definition, Field, Format, Instruction, Width, decode, definitions};

use super::random::Random;
use super::{Extra, encode, wave};
use crate::fast::op::Op;
use crate::fast::resolve::resolve;
use crate::float::FloatMode;
use crate::host::{FastFunction, Host, Vectors};
use crate::lanes;
use crate::memory::Window;
use crate::registers::Registers;
use crate::semantics::Semantics;
use crate::surroundings::{LocalBounds, Surroundings};
use crate::wave::{EXEC, LANES, Lanes, VCC, Wave};
use crate::{Memory, Perturbation};

impl Random {
    /// 32 bits.
    pub(super) fn word(&mut self) -> u32 {
        self.next() ^ (self.0 >> 11) as u32
    }

    /// A value that is often a special case of arithmetic.
    fn value(&mut self) -> u32 {
        const EDGES: [u32; 16] = [
            0,
            1,
            2,
            31,
            32,
            u32::MAX,
            0x8000_0000,
            0x7fff_ffff,
            0x3f80_0000,
            0xbf80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x0000_0007,
            0x8040_0000,
            0x4f00_0000,
        ];
        match self.word() % 3 {
            0 => EDGES[self.word() as usize % EDGES.len()],
            // Floats of medium size, so that sums and products round.
            1 => self.word() & 0x807f_ffff | (0x3a00_0000 + (self.word() & 0x0b80_0000)),
            _ => self.word(),
        }
    }
}

pub(super) fn random_wave(random: &mut Random, wave64: bool) -> Wave {
    let mut wave = wave();
    wave.wave64 = wave64;
    wave.vectors = Registers::new(wave.registers << wave64 as usize, 0);
    for register in 0..wave.registers << wave64 as usize {
        wave.vectors[register] = std::array::from_fn(|_| random.value());
    }
    for register in 0..106 {
        wave.scalars[register] = random.value();
    }
    for half in 0..2 {
        wave.scalars[VCC + half] = random.word();
        wave.scalars[EXEC + half] = if random.word().is_multiple_of(2) { u32::MAX } else { random.word() };
    }
    wave.scc = random.word().is_multiple_of(2);
    wave.note_mode();
    wave
}

/// Runs an instruction on the fast path, if it has one, with the host's vectors or with the portable bodies.
pub(super) fn run_fast(
    wave: &mut Wave,
    op: &Op,
    around: &mut Surroundings<'_>,
    portable: bool,
    checks_alignment: bool,
) -> bool {
    if op.registers as usize > wave.registers || op.usual_only && !wave.usual_mode {
        return false;
    }
    let bodies = Vectors::PORTABLE;
    // SAFETY: the registers are the wave's, and the host has AVX-512 if that is requested.
    unsafe {
        match (Host::get() == Host::Avx512 && !portable, wave.wave64) {
            (true, false) => wave.compute::<true, 1>(Vectors::avx512(), &op.kind, around, checks_alignment),
            (true, true) => wave.compute::<true, 2>(Vectors::avx512(), &op.kind, around, checks_alignment),
            (false, false) => wave.compute::<false, 1>(bodies, &op.kind, around, checks_alignment),
            (false, true) => wave.compute::<false, 2>(bodies, &op.kind, around, checks_alignment),
        }
    }
}

pub(super) fn run_plain(wave: &mut Wave, instruction: &Instruction, around: &mut Surroundings<'_>) {
    match Semantics::of(instruction) {
        Semantics::Scalar(operation) => {
            wave.run_scalar(instruction, operation, 0);
        }
        Semantics::Memory(access) => wave.run_memory_halves(instruction, access, around).unwrap(),
        semantics => wave.run_vector_halves(instruction, semantics).unwrap(),
    }
}

/// An encoding with random changes to its operands and modifiers. Changes that decode to another instruction are
/// dropped.
fn vary(definition: &'static Definition, random: &mut Random) -> Instruction {
    let mut words = [0, 0];
    if matches!(definition.format, Format::Vop3) && random.word().is_multiple_of(2) {
        // Absolute values and signs.
        words = [(random.word() & 7) << 8, (random.word() & 7) << 29];
        if definition.operand(Field::ScalarDestination).is_some() {
            words[0] = 0;
        }
    }
    if definition.format == Format::Vop3p {
        // Selection of halves and signs. The bits that say which sources are halves are those of the selection.
        words = [(random.word() & 0x7f) << 8, (random.word() & 0x1f) << 27];
    }
    if definition.operand(Field::Constant).is_some() {
        words[1] = random.value();
    }
    let instruction = encode(definition, Extra { words });
    match definition.format {
        Format::Vop3 if random.word().is_multiple_of(2) => other_operands(&instruction, random),
        _ => instruction,
    }
}

/// A long instruction with other operands: scalar registers, constants, and a destination that is also a source.
fn other_operands(instruction: &Instruction, random: &mut Random) -> Instruction {
    let definition = instruction.definition;
    let (mut first, mut second) = (instruction.first_word(), instruction.second_word());
    if definition.operand(Field::Destination).is_some_and(|slot| slot.width != Width::LaneMask) {
        first = first & !0xff | (10 + random.word() % 6);
    }
    for place in 0..3 {
        // Operands that are not vector registers must stay: a mask, or the number of a lane.
        if second >> (place * 9 + 8) & 1 == 1 {
            let source = match random.word() % 4 {
                0 => 40,
                // Zero often, because it has a sign.
                1 => 128 + random.word() % 81 * (random.word() % 3).min(1),
                2 => 240 + random.word() % 9,
                _ => 256 + 10 + random.word() % 6,
            };
            second = second & !(0x1ff << (place * 9)) | source << (place * 9);
        }
    }
    let bytes: Vec<u8> = [first, second, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let chip = Chip::ALL.into_iter().find(|&chip| definition.exists_on(chip)).expect("some chip has it");
    decode(&bytes, chip).unwrap()
}

#[test]
fn the_fast_path_computes_what_the_plain_one_does() {
    let mut random = Random(1);
    let mut compared = std::collections::BTreeSet::new();
    for definition in definitions() {
        if matches!(definition.format, Format::Mtbuf | Format::Mimg | Format::Vintrp | Format::Exp | Format::Sopk) {
            continue;
        }
        for turn in 0..60 {
            let instruction = vary(definition, &mut random);
            let mut start = random_wave(&mut random, turn % 3 == 0);
            // Resolved for flushed denormals; and in a mode for which it was not resolved. An instruction that claims
            // not to depend on the mode must not.
            let (flushes, mode) = [(false, 0x1f0), (true, 0x1c0), (false, 0x1c0), (true, 0x1f5)][turn % 4];
            let op = resolve(&instruction, &Semantics::of(&instruction), flushes);
            (start.flushes, start.mode) = (flushes, FloatMode::from_bits(mode, Perturbation::None));
            start.note_mode();
            check(&instruction, &op, &start, &mut compared);
        }
    }
    if Host::get() != Host::Plain {
        assert!(compared.len() > 150, "only {} instructions have a fast path", compared.len());
        for name in [
            "v_fmac_f32_e32",
            "v_add_co_ci_u32_e32",
            "v_cmp_lt_f32_e64",
            "v_cndmask_b32_e64",
            "s_and_b64",
            "v_lshlrev_b64",
            "v_mad_u64_u32",
            "s_and_saveexec_b32",
            "s_cmov_b64",
            "v_cvt_f64_f32_e32",
            "v_cvt_f32_f64_e64",
            "v_add_f64",
            "v_mul_f64",
            "v_fma_f64",
            "v_max_f64",
            "v_rndne_f64_e32",
            "v_rcp_f64_e32",
            "v_ashrrev_i64",
            "v_mad_i64_i32",
            "v_cmp_gt_i64_e32",
            "v_cmp_le_u64_e64",
            "v_cmpx_neq_f64_e64",
            "v_rcp_iflag_f32_e32",
            "v_med3_f32",
            "v_cmp_lt_f16_e64",
            "v_cmp_ne_u16_e32",
            "v_cmp_gt_i16_e64",
            "v_exp_f32_e32",
            "v_perm_b32",
            "v_ldexp_f32",
        ] {
            assert!(compared.contains(name), "{name}");
        }
    }
    if Host::get() == Host::Avx512 {
        for name in [
            "v_pk_fma_f16",
            "v_pk_add_f16",
            "v_pk_mul_f16",
            "v_fma_mix_f32",
            "v_cvt_f32_f16_e32",
            "v_cvt_f16_f32_e32",
            "v_pack_b32_f16",
        ] {
            assert!(compared.contains(name), "{name}");
        }
    }
}

/// Bytes and halves of sources, extended with and without their signs, with changed signs, and scalar ones.
#[test]
fn sources_that_are_parts_of_registers_are_the_same() {
    let mut random = Random(6);
    let mut compared = std::collections::BTreeSet::new();
    for definition in definitions().iter().filter(|it| matches!(it.format, Format::Vop1 | Format::Vop2)) {
        for turn in 0..60 {
            let plain = encode(definition, Extra { words: [0, 0] });
            // The first source is in the second word. The destination is usually a whole register.
            let first = plain.first_word() & !0x1ff | 249;
            let whole = if random.word().is_multiple_of(8) { random.word() % 7 } else { 6 };
            let parts = [16, 24].map(|base| ((random.word() % 7) | (random.word() & 0x38)) << base);
            let scalar = if random.word().is_multiple_of(4) { 1 << 23 | 40 } else { 10 + random.word() % 6 };
            let second = parts[0] | parts[1] | whole << 8 | scalar;
            let bytes: Vec<u8> = [first, second, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
            let chip = Chip::ALL.into_iter().find(|&chip| definition.exists_on(chip)).expect("some chip has it");
            let Ok(instruction) = decode(&bytes, chip) else { continue };
            if matches!(Semantics::of(&instruction), Semantics::Unsupported) {
                continue;
            }
            let (flushes, mode) = [(false, 0x1f0), (true, 0x1c0)][turn % 2];
            let mut start = random_wave(&mut random, turn % 3 == 0);
            (start.flushes, start.mode) = (flushes, FloatMode::from_bits(mode, Perturbation::None));
            start.note_mode();
            let op = resolve(&instruction, &Semantics::of(&instruction), flushes);
            check(&instruction, &op, &start, &mut compared);
        }
    }
    if Host::get() != Host::Plain {
        for name in ["v_or_b32_e32", "v_sub_nc_u32_e32", "v_add_f32_e32", "v_cvt_f32_u32_e32", "v_mov_b32_e32"] {
            assert!(compared.contains(name), "{name}");
        }
    }
}

fn check(instruction: &Instruction, op: &Op, start: &Wave, compared: &mut std::collections::BTreeSet<&'static str>) {
    if matches!(instruction.format(), Format::Ds | Format::Global | Format::Flat | Format::Mubuf) {
        return;
    }
    let memory = Memory::default();
    let mut around =
        Surroundings { global: Window::new(&memory), local: &mut [], races: None, bounds: LocalBounds::default() };
    let mut plain = start.clone();
    let name = instruction.definition.mnemonic;
    for portable in [false, true] {
        let mut fast = start.clone();
        if !run_fast(&mut fast, op, &mut around, portable, false) {
            return;
        }
        if !portable {
            run_plain(&mut plain, instruction, &mut around);
        }
        assert!(fast.scalars == plain.scalars && fast.scc == plain.scc, "{name}: scalar registers");
        assert_same(&fast, &plain, name);
    }
    compared.insert(name);
}

pub(super) fn assert_same(fast: &Wave, plain: &Wave, name: &str) {
    for register in 0..plain.registers << plain.wave64 as usize {
        for lane in 0..LANES {
            let found = [fast, plain].map(|wave| wave.vectors[register][lane]);
            // Which of two NaNs results is the host's choice. Integers may look like one.
            let is_float = ["f16", "f32", "f64"].iter().any(|kind| name.contains(kind));
            let nan = is_float && found.iter().all(|&bits| f32::from_bits(bits).is_nan());
            let is_nan_pair = |wave: &Wave, low: usize| {
                let row = |register: usize| wave.vectors.get(register).map_or(0, |row| row[lane] as u64);
                f64::from_bits(row(low) | row(low + 1) << 32).is_nan()
            };
            let doubles = name.contains("f64")
                && [register, register.wrapping_sub(1)]
                    .iter()
                    .any(|&low| low < plain.vectors.len() && is_nan_pair(fast, low) && is_nan_pair(plain, low));
            let halves = [0, 16].iter().all(|bit| {
                let [a, b] = found.map(|bits| half::f16::from_bits((bits >> bit) as u16));
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
            });
            let has_halves = name.starts_with("v_pk_") || name.starts_with("v_cvt_f16_f32");
            assert!(
                found[0] == found[1] || nan || doubles || has_halves && halves,
                "{name}: v{register} lane {lane}: {found:#x?}"
            );
        }
    }
}

/// Functions are compiled for two sets of host instructions. A host that has both computes the same with either.
#[test]
fn both_sets_of_host_instructions_compute_the_same() {
    if Host::get() != Host::Avx512 {
        return;
    }
    let mut random = Random(4);
    let mut names = std::collections::BTreeSet::new();
    for name in definitions().iter().map(|definition| definition.base_name()) {
        let Some(fast) = lanes::operation(name).and_then(|operation| operation.fast) else { continue };
        names.insert(name);
        for turn in 0..20 {
            let on = if turn % 2 == 0 { u32::MAX } else { random.word() };
            let rows: [Cell<Lanes>; 4] = std::array::from_fn(|_| Cell::new(std::array::from_fn(|_| random.value())));
            let pairs: [[u64; LANES]; 3] =
                std::array::from_fn(|_| std::array::from_fn(|_| random.value() as u64 | (random.value() as u64) << 32));
            // SAFETY: the host has both.
            unsafe {
                match fast.functions[turn / 2 % 2] {
                    FastFunction::Row(function) => {
                        let found = [function.avx512, function.avx2].map(|run| {
                            let destination = rows[3].clone();
                            run(&destination, &rows[0], &rows[1], &rows[2], on);
                            destination.get()
                        });
                        let nan = |lane: usize| found.iter().all(|row| f32::from_bits(row[lane]).is_nan());
                        assert!((0..LANES).all(|lane| found[0][lane] == found[1][lane] || nan(lane)), "{name}");
                    }
                    FastFunction::Pairs(function) => {
                        let found = [function.avx512, function.avx2].map(|run| {
                            let mut values = pairs[0];
                            run(&mut values, &pairs[1], &pairs[2]);
                            values
                        });
                        let nan = |lane: usize| {
                            let is_nan =
                                |bits: u64| f64::from_bits(bits).is_nan() || f32::from_bits(bits as u32).is_nan();
                            found.iter().all(|row| is_nan(row[lane]))
                        };
                        assert!((0..LANES).all(|lane| found[0][lane] == found[1][lane] || nan(lane)), "{name}");
                    }
                }
            }
        }
    }
    assert!(names.len() > 80, "only {} functions are compiled so", names.len());
}
