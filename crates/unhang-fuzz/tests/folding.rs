//! Compares what LLVM computes when it folds constants with what the emulator computes from the same operands at run
//! time.
//!
//! Each case is an expression that clang folds if its operands are constants, and turns into one instruction if not.
//! Both are compiled for gfx1010, run, and compared bit for bit. LLVM thus gives a reading of the instruction that is
//! neither ours nor the documentation's. A case counts only if the instruction is in the code that computes and not in
//! the folded code.

#[path = "../../unhang-isa/tests/random/mod.rs"]
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use random::Random;
use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_fuzz::compare::{Bench, Target};
use unhang_fuzz::recorded;
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program};

/// An instruction, and the expression of `a`, `b` and `c` (32 bits each) that compiles to it.
const CASES: &[(&str, &str)] = &[
    ("v_rcp_f32", "W(__builtin_amdgcn_rcpf(F(a)))"),
    ("v_frexp_mant_f32", "W(__builtin_amdgcn_frexp_mantf(F(a)))"),
    ("v_frexp_exp_i32_f32", "(u32)__builtin_amdgcn_frexp_expf(F(a))"),
    ("v_frexp_mant_f64", "X(__builtin_amdgcn_frexp_mant(D(a, b)))"),
    ("v_frexp_exp_i32_f64", "(u32)__builtin_amdgcn_frexp_exp(D(a, b))"),
    ("v_cmp_class_f32", "(u32)__builtin_amdgcn_classf(F(a), b & 1023)"),
    ("v_cmp_class_f64", "(u32)__builtin_amdgcn_class(D(a, c), b & 1023)"),
    ("v_cvt_pkrtz_f16_f32", "W(__builtin_amdgcn_cvt_pkrtz(F(a), F(b)))"),
    ("v_bfe_u32", "__builtin_amdgcn_ubfe(a, b, c)"),
    ("v_bfe_i32", "__builtin_amdgcn_sbfe(a, b, c)"),
    // Only for numbers: if the third is NaN, LLVM takes the greater of the others, and AMD's document says the lesser.
    ("v_med3_f32", "N(__builtin_amdgcn_fmed3f(F(a & 0xff7fffff), F(b & 0xff7fffff), F(c & 0xff7fffff)))"),
    ("v_fract_f32", "N(__builtin_amdgcn_fractf(F(a)))"),
    ("v_fract_f64", "X(__builtin_amdgcn_fract(D(a & 0x7fffffff, b & 0xbfffffff)))"),
    ("v_ldexp_f32", "N(__builtin_amdgcn_ldexpf(F(a), (int)(b & 511) - 256))"),
    // No denormals: the hardware treats them as zero, LLVM does not.
    ("v_sin_f32", "W(__builtin_amdgcn_sinf(F(a & 0x3effffff | 0x00800000)))"),
    ("v_cos_f32", "W(__builtin_amdgcn_cosf(F(a & 0x3effffff | 0x00800000)))"),
    ("v_perm_b32", "__builtin_amdgcn_perm(a, b, c)"),
    ("v_alignbit_b32", "__builtin_amdgcn_alignbit(a, b, c)"),
    ("v_bfrev_b32", "__builtin_bitreverse32(a)"),
    ("v_bcnt_u32_b32", "(u32)__builtin_popcount(a)"),
    ("v_ffbh_u32", "(u32)__builtin_clz(a | 1)"),
    ("v_ffbl_b32", "(u32)__builtin_ctz(a | 0x80000000u)"),
    ("v_mul_hi_u32", "(u32)(((u64)a * b) >> 32)"),
    ("v_mul_hi_i32", "(u32)(((long)(int)a * (int)b) >> 32)"),
    ("v_mul_lo_u32", "a * b"),
    ("v_lshlrev_b32", "a << (b & 31)"),
    ("v_lshrrev_b32", "a >> (b & 31)"),
    ("v_ashrrev_i32", "(u32)((int)a >> (b & 31))"),
    ("v_lshlrev_b64", "(u32)((((u64)a << 32 | b) << (c & 63)) >> 32)"),
    ("v_min_i32", "(u32)__builtin_elementwise_min((int)a, (int)b)"),
    ("v_max_u32", "__builtin_elementwise_max(a, b)"),
    ("v_fma_f32", "N(__builtin_fmaf(F(a), F(b), F(c)))"),
    ("v_mul_f32", "N(F(a) * F(b))"),
    ("v_add_f32", "N(F(a) + F(b))"),
    ("v_sub_f32", "N(F(a) - F(b))"),
    ("v_floor_f32", "N(__builtin_floorf(F(a)))"),
    ("v_ceil_f32", "N(__builtin_ceilf(F(a)))"),
    ("v_trunc_f32", "N(__builtin_truncf(F(a)))"),
    ("v_rndne_f32", "N(__builtin_rintf(F(a)))"),
    ("v_cvt_f32_u32", "W((float)a)"),
    ("v_cvt_f32_i32", "W((float)(int)a)"),
    ("v_cvt_f64_u32", "X((double)a)"),
    ("v_cvt_f32_f64", "N((float)D(a, b))"),
    ("v_cvt_f64_f32", "X((double)F(a & 0xff7fffff))"),
    ("v_cvt_f16_f32", "(u32)H((_Float16)F(a & 0xff7fffff))"),
    ("v_cvt_f32_f16", "N((float)G(a & 0xfbff))"),
    ("v_add_f64", "X(D(a & 0x7fefffff, b) + D(c & 0x7fefffff, b))"),
    ("v_mul_f64", "X(D(a & 0x3fefffff, b) * D(c & 0x3fefffff, b))"),
    ("v_fma_f64", "X(__builtin_fma(D(a & 0x3fefffff, b), D(c & 0x3fefffff, a), D(b & 0x3fefffff, c)))"),
    ("v_floor_f64", "X(__builtin_floor(D(a & 0x7fefffff, b)))"),
    ("v_rndne_f64", "X(__builtin_rint(D(a & 0x7fefffff, b)))"),
    ("v_add_f16", "(u32)H(G(a & 0x7bff) + G(b & 0x7bff))"),
    ("v_mul_f16", "(u32)H(G(a & 0x7bff) * G(b & 0x7bff))"),
    ("v_fma_f16", "(u32)H(__builtin_fmaf16(G(a & 0x7bff), G(b & 0x7bff), G(c & 0x7bff)))"),
];

/// Operands of a case: values at which functions change their behaviour, and others.
fn operands(case: usize, turn: usize) -> [u32; 3] {
    const EDGES: [u32; 14] = [
        0,
        1,
        0x8000_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f7f_ffff,
        0x0080_0000,
        0x0040_0001,
        0x7f80_0000,
        0xff80_0000,
        0x4b00_0001,
        0x3fff_ffff,
        0x3eaa_aaab,
        0xffff_ffff,
    ];
    let mut random = Random((case * 97 + turn) as u64 + 1);
    let mut next = || random.next();
    std::array::from_fn(|_| match next() % 3 {
        0 => EDGES[next() as usize % EDGES.len()],
        // Singles near one.
        1 => next() & 0x807f_ffff | (120 + next() % 16) << 23,
        _ => next() << 1 ^ next(),
    })
}

const TURNS: usize = 24;

const START: &str = r#"
typedef unsigned u32; typedef unsigned long u64; typedef unsigned short u16;
#define device static __attribute__((device, always_inline))
device float F(u32 a) { return __builtin_bit_cast(float, a); }
device double D(u32 a, u32 b) { return __builtin_bit_cast(double, (u64)a << 32 | b); }
device _Float16 G(u32 a) { return __builtin_bit_cast(_Float16, (u16)a); }
template <class T> device u32 W(T a) { return __builtin_bit_cast(u32, a); }
device u32 X(double a) { u64 bits = __builtin_bit_cast(u64, a); return (u32)(bits >> 32) * 31 + (u32)bits; }
device u16 H(_Float16 a) { return __builtin_bit_cast(u16, a); }
// Which NaN comes out is nobody's promise.
device u32 N(float a) { return a != a ? 0x7fc00000u : __builtin_bit_cast(u32, a); }
"#;

/// For each case, a kernel that stores the folded value and one that stores the computed value.
fn source() -> String {
    let mut source = START.to_owned();
    for (case, (_, expression)) in CASES.iter().enumerate() {
        for folded in [true, false] {
            let name = if folded { "folded" } else { "computed" };
            let _ = writeln!(
                source,
                "extern \"C\" __attribute__((global)) void {name}{case}(u32* out, const u32* in) {{ u32 id = __builtin_amdgcn_workitem_id_x();"
            );
            for turn in 0..TURNS {
                let at = case * TURNS + turn;
                let [a, b, c] = operands(case, turn);
                let operands = match folded {
                    true => format!("const u32 a = {a:#x}u, b = {b:#x}u, c = {c:#x}u;"),
                    false => format!(
                        "u32 a = in[{} + id], b = in[{} + id], c = in[{} + id];",
                        at * 3,
                        at * 3 + 1,
                        at * 3 + 2
                    ),
                };
                let _ = writeln!(source, "  {{ {operands} out[{at} + id] = {expression}; }}");
            }
            source += "}\n";
        }
    }
    source
}

/// The names of the instructions in each kernel.
fn names(object: &[u8]) -> BTreeMap<String, BTreeSet<&'static str>> {
    let object = CodeObject::parse(object).unwrap();
    let function = |function: &unhang_isa::elf::Function<'_>| {
        let program = Program::decode(function.code, Chip::Gfx1010, false).unwrap();
        let names = program.instructions.iter().map(|instruction| instruction.definition.base_name()).collect();
        (function.name.to_owned(), names)
    };
    object.functions.iter().map(function).collect()
}

fn run(object: &[u8], kernel: &str) -> Vec<u32> {
    let mut machine = Machine::load(object, Mode::Hazards(Chip::Gfx1010)).unwrap();
    let input: Vec<u8> = (0..CASES.len() * TURNS)
        .flat_map(|at| operands(at / TURNS, at % TURNS))
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let input = machine.memory.allocate_bytes(&input);
    let size = CASES.len() * TURNS * 4;
    let output = machine.memory.allocate(size);
    let arguments: Vec<u8> = [output, input].iter().flat_map(|address| address.to_le_bytes()).collect();
    let dispatch = Dispatch::new(kernel, [1; 3], [1; 3], &arguments);
    machine.run(&dispatch).unwrap_or_else(|fault| panic!("{kernel}: {fault}"));
    let mut bytes = vec![0; size];
    machine.memory.read(output, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

#[test]
fn what_llvm_folds_is_what_the_emulator_computes() {
    let (bench, mut agreed, mut wrong) = (Bench::new().unwrap(), BTreeSet::new(), Vec::new());
    let compilers = Bench::compilers(&[19, 15]);
    if compilers.is_empty() {
        println!("skipped: no clang-19 and lld-19 to fold constants with");
        return;
    }
    for &clang in &compilers {
        let object = bench.compile(&source(), Target { clang, chip: Chip::Gfx1010, level: 3, wave64: false }).unwrap();
        let names = names(&object);
        for (case, (name, expression)) in CASES.iter().enumerate() {
            let [folded, computed] = ["folded", "computed"].map(|kind| format!("{kind}{case}"));
            let has = |kernel: &str| names[kernel].contains(name);
            let [expected, found] = [&folded, &computed].map(|kernel| run(&object, kernel));
            for turn in 0..TURNS {
                let at = case * TURNS + turn;
                if expected[at] != found[at] {
                    let operands = operands(case, turn);
                    wrong.push(format!(
                        "clang {clang}, {expression} of {operands:x?}: LLVM {:#x}, the emulator {:#x}",
                        expected[at], found[at]
                    ));
                }
            }
            if has(&computed) && !has(&folded) {
                agreed.insert(*name);
            } else {
                println!("clang {clang}: {name}: folded code has it: {}, computed: {}", has(&folded), has(&computed));
            }
        }
    }
    println!("{} of {} instructions agree with LLVM's folding: {agreed:?}", agreed.len(), CASES.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let missing = recorded::missing("folding", &agreed);
    assert!(missing.is_empty(), "not recorded: {missing:?}: UPDATE_DOCS=1 cargo test -p unhang-fuzz --test folding");
    // With only one compiler, fewer instructions agree.
    let lost = recorded::read("folding").into_iter().filter(|name| !agreed.contains(name.as_str())).count();
    assert!(compilers.len() < 2 || lost == 0, "{lost} of those that are recorded do not agree: only {agreed:?}");
}
