//! From a seed to a program.

use crate::program::{Function, Phase, Program, Statement, VARIABLES};
use crate::random::Random;

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariableKind {
    U32,
    I32,
    U64,
    I64,
    U16,
    I16,
    U8,
    F32,
    F64,
    F16,
    /// Two unsigned halves, two floating halves.
    Pair,
    HalfPair,
}

use VariableKind::{F16, F32, F64, HalfPair, I16, I32, I64, Pair, U8, U16, U32, U64};

/// In the order of [`VARIABLES`].
const KINDS: [VariableKind; 12] = [U32, I32, U64, I64, U16, I16, U8, F32, F64, F16, Pair, HalfPair];

impl VariableKind {
    fn name(self) -> &'static str {
        VARIABLES[self as usize].0
    }
}

struct Generator {
    random: Random,
    /// The return types of the functions that may be called.
    callable: Vec<VariableKind>,
    /// The number of enclosing loops.
    loops: usize,
    /// Whether the statements are in the kernel, where memory is available.
    in_kernel: bool,
    /// Whether the local memory of other threads may be read; it must not be written then.
    reads_others: bool,
}

/// The program of a seed.
pub fn generate(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let (functions, phases) = (random.below(4), 2 + random.below(4));
    let mut generator = Generator { random, callable: Vec::new(), loops: 0, in_kernel: false, reads_others: false };
    let functions = (0..functions).map(|number| generator.function(number)).collect();
    generator.in_kernel = true;
    let phases = (0..phases).map(|_| generator.phase()).collect();
    Program { seed, functions, phases }
}

impl Generator {
    fn function(&mut self, number: usize) -> Function {
        let kind = [U32, U64, F32, F64, I32][self.random.below(5)];
        let statements = self.statements(3, 1);
        let result = self.expression(kind, 2);
        self.callable.push(kind);
        Function { signature: format!("{} function{number}(u32 a, u64 b, float c)", kind.name()), statements, result }
    }

    fn phase(&mut self) -> Phase {
        if self.random.once_in(4) {
            return self.exchange();
        }
        self.reads_others = self.random.once_in(3);
        let count = 4 + self.random.below(8);
        Phase::Threads { is_call: self.random.once_in(3), statements: self.statements(count, 2) }
    }

    fn exchange(&mut self) -> Phase {
        let source = format!("s.u{}", self.random.below(5));
        let target = format!("s.u{}", self.random.below(5));
        let (constant, selects) = (self.random.below(32), [self.random.word(), self.random.word()]);
        let (device, host) = match self.random.below(7) {
            0 => ("bpermute(s.u0 & 31, x)".to_owned(), "result = old[(lane & 32) | (s.u0 & 31)];".to_owned()),
            1 => ("first_lane(x)".to_owned(), "result = old[0];".to_owned()),
            2 => (format!("__builtin_amdgcn_readlane(x, {constant})"), format!("result = old[{constant}];")),
            3 => ("ballot(x >> 7 & 1)".to_owned(), {
                "result = 0; for (u32 k = 0; k < 32; ++k) result |= (old[k] >> 7 & 1) << k;".to_owned()
            }),
            4 => {
                let pattern = self.random.bits() as u16 & 0x7fff;
                let (and, or, xor) = (pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31);
                let host = format!("result = old[(lane & 32) | (((lane & {and}) | {or}) ^ {xor})];");
                (format!("__builtin_amdgcn_ds_swizzle(x, {pattern})"), host)
            }
            5 => {
                let [low, high] = selects;
                let across = if self.random.once_in(2) { 16 } else { 0 };
                let name = if across == 16 { "permlanex16" } else { "permlane16" };
                let host = format!(
                    "result = old[((lane & 48) ^ {across}) | ((0x{high:08x}{low:08x}ul >> (lane & 15) * 4) & 15)];"
                );
                (format!("__builtin_amdgcn_{name}(x, x, 0x{low:x}u, 0x{high:x}u, false, false)"), host)
            }
            _ => {
                let count = 1 + self.random.below(15) as u32;
                let control = match self.random.below(7) {
                    0 => self.random.below(256) as u32,
                    1 => 0x100 + count,
                    2 => 0x110 + count,
                    3 => 0x120 + count,
                    4 => 0x140 + self.random.below(2) as u32,
                    5 => 0x150 + count,
                    _ => 0x160 + count,
                };
                let (rows, banks) = (1 + self.random.below(15), 1 + self.random.below(15));
                let zero = self.random.once_in(2);
                let old = "s.u1 + 5";
                let host = format!(
                    "i32 from = dpp_lane(0x{control:x}, lane); bool on = {rows} >> (lane / 16) & 1 && {banks} >> (lane / 4 & 3) & 1; \
                     result = !on || (from < 0 && !{zero}) ? {old} : from < 0 ? 0 : old[from];"
                );
                (format!("__builtin_amdgcn_update_dpp({old}, x, 0x{control:x}, {rows}, {banks}, {zero})"), host)
            }
        };
        Phase::Lanes { source, target, device, host }
    }

    fn statements(&mut self, count: usize, depth: usize) -> Vec<Statement> {
        (0..count).map(|_| self.statement(depth)).collect()
    }

    fn statement(&mut self, depth: usize) -> Statement {
        let inner = |this: &mut Generator| {
            let count = 1 + this.random.below(4);
            this.statements(count, depth - 1)
        };
        match self.random.below(if depth > 0 { 14 } else { 11 }) {
            0..=5 => self.assignment(),
            6 | 7 => self.store(),
            8 if self.in_kernel => self.atomic(),
            9 if self.loops > 0 => {
                let (condition, word) = (self.condition(1), self.random.pick(&["break", "continue"]));
                Statement::Line(format!("if ({condition}) {word};"))
            }
            8..=10 => self.assignment(),
            11 => {
                let mut blocks = vec![(format!("if ({})", self.condition(2)), inner(self))];
                if self.random.once_in(2) {
                    blocks.push(("else".to_owned(), inner(self)));
                }
                Statement::Blocks(blocks)
            }
            12 => {
                let (bound, counter) = (self.expression(U32, 1), format!("k{}", self.loops));
                self.loops += 1;
                let head =
                    format!("for (u32 {counter} = 0, n{counter} = ({bound}) & 7; {counter} < n{counter}; ++{counter})");
                let body = inner(self);
                self.loops -= 1;
                Statement::Blocks(vec![(head, body)])
            }
            _ => {
                // `break` would leave the switch, so its cases contain none.
                let (value, outer) = (self.expression(U32, 1), std::mem::take(&mut self.loops));
                let cases = (0..3).map(|case| {
                    let head = if case == 2 { "default:".to_owned() } else { format!("case {case}:") };
                    (head, inner(self))
                });
                let cases = cases.collect();
                self.loops = outer;
                Statement::Blocks(vec![(format!("switch (({value}) & 3)"), vec![Statement::Blocks(cases)])])
            }
        }
    }

    fn variable(&mut self, kind: VariableKind) -> String {
        let (_, name, count) = VARIABLES[kind as usize];
        format!("s.{name}{}", self.random.below(count))
    }

    fn assignment(&mut self) -> Statement {
        let kind = KINDS[self.random.below(KINDS.len())];
        let target = self.variable(kind);
        let depth = 1 + self.random.below(3);
        let value = self.expression(kind, depth);
        Statement::Line(format!("{target} = ({})({value});", kind.name()))
    }

    fn store(&mut self) -> Statement {
        let place = self.expression(U32, 1);
        let line = match self.random.below(if self.in_kernel { 8 } else { 6 }) {
            0 => format!("s.words[({place}) & 7] = {};", self.expression(U32, 2)),
            1 => format!("s.floats[({place}) & 3] = {};", self.expression(F32, 2)),
            2 => format!("s.bytes[({place}) & 31] = (u8)({});", self.expression(U8, 1)),
            3 => format!("put<u16>(s.bytes + ({place}) % 31, (u16)({}));", self.expression(U16, 1)),
            4 => format!("put<u32>(s.bytes + ({place}) % 29, {});", self.expression(U32, 1)),
            5 => format!("put<u64>(s.bytes + ({place}) % 25, {});", self.expression(U64, 1)),
            6 => format!("e.own[({place}) & 7] = {};", self.expression(U32, 2)),
            _ if self.reads_others => {
                format!("{} = e.local[({place}) & 255];", self.variable(U32))
            }
            _ => match self.random.below(3) {
                0 => format!("e.local[e.thread * 4 + (({place}) & 3)] = {};", self.expression(U32, 2)),
                1 => format!(
                    "put<u8>((u8 *)(e.local + e.thread * 4) + (({place}) & 15), (u8)({}));",
                    self.expression(U8, 1)
                ),
                _ => format!(
                    "put<u16>((u8 *)(e.local + e.thread * 4) + (({place}) & 14), (u16)({}));",
                    self.expression(U16, 1)
                ),
            },
        };
        Statement::Line(line)
    }

    /// Each counter has one operation, because different operations do not commute.
    fn atomic(&mut self) -> Statement {
        let counters = self.random.pick(&["e.counters", "e.local_counters"]);
        let operation = self.random.pick(&["add", "and", "or", "xor", "max", "min", "add64"]);
        let line = match operation {
            "min" => format!("atomic_min((i32 *){counters} + 5, {});", self.expression(I32, 1)),
            "add64" => format!("atomic_add64((u64 *)({counters} + 6), {});", self.expression(U64, 1)),
            _ => {
                let place = ["add", "and", "or", "xor", "max"].iter().position(|&name| name == operation).unwrap_or(0);
                format!("atomic_{operation}({counters} + {place}, {});", self.expression(U32, 1))
            }
        };
        Statement::Line(line)
    }

    fn condition(&mut self, depth: usize) -> String {
        let kind = [U32, I32, U64, I64, F32, F64, F16, U16, I16][self.random.below(9)];
        let (a, b) = (self.expression(kind, depth), self.expression(kind, depth - 1));
        match self.random.below(8) {
            0 if !matches!(kind, F32 | F64 | F16) => format!("(({a}) & 1) != 0"),
            1 if kind == F32 => format!("class_f32({a}, {})", self.random.below(1024)),
            1 if kind == F64 => format!("class_f64({a}, {})", self.random.below(1024)),
            _ => format!("({a}) {} ({b})", self.random.pick(&["<", "<=", "==", "!=", ">", ">="])),
        }
    }

    fn constant(&mut self, kind: VariableKind) -> String {
        let word = self.random.word();
        let wide =
            (self.random.word() as u64) << if self.random.once_in(2) { 32 } else { 0 } | self.random.word() as u64;
        match kind {
            U32 => format!("0x{word:x}u"),
            I32 => format!("(i32)0x{word:x}u"),
            // As `x ^ ~0` the compiler would recognise an inversion.
            U64 | I64 if wide == u64::MAX => format!("inverse(({})0)", kind.name()),
            U64 => format!("0x{wide:x}ul"),
            I64 => format!("(i64)0x{wide:x}ul"),
            U16 => format!("(u16)0x{:x}", word as u16),
            I16 => format!("(i16)0x{:x}", word as u16),
            U8 => format!("(u8)0x{:x}", word as u8),
            F32 if self.random.once_in(2) => format!("{}.0f", self.random.below(100)),
            F32 => format!("f32_of(0x{word:x}u)"),
            F64 if self.random.once_in(2) => format!("{}.5", self.random.below(100)),
            F64 => format!("f64_of(0x{:x}ul)", wide.rotate_left(self.random.below(64) as u32)),
            F16 => format!("f16_of((u16)0x{:x})", word as u16),
            Pair => format!("pair_of(0x{word:x}u)"),
            HalfPair => format!("half2{{f16_of((u16)0x{:x}), f16_of((u16)0x{:x})}}", word as u16, word >> 16),
        }
    }

    fn leaf(&mut self, kind: VariableKind) -> String {
        match self.random.below(8) {
            0 => self.constant(kind),
            1 if kind == U32 && self.loops > 0 => format!("k{}", self.random.below(self.loops)),
            1 | 2 if kind == U32 => {
                let index = self.variable(U32);
                match self.random.below(if self.in_kernel { 5 } else { 3 }) {
                    0 => format!("s.words[{index} & 7]"),
                    1 => format!("get<u32>(s.bytes + {index} % 29)"),
                    2 => format!("(u32)get<u16>(s.bytes + {index} % 31)"),
                    3 => format!("e.own[{index} & 7]"),
                    _ => format!("e.local[e.thread * 4 + ({index} & 3)]"),
                }
            }
            1 if kind == U64 => format!("get<u64>(s.bytes + {} % 25)", self.variable(U32)),
            1 if kind == U8 => format!("s.bytes[{} & 31]", self.variable(U32)),
            1 if kind == I16 => format!("get<i16>(s.bytes + {} % 31)", self.variable(U32)),
            1 if kind == F32 => format!("s.floats[{} & 3]", self.variable(U32)),
            _ => self.variable(kind),
        }
    }

    /// An expression of that type, at most `depth` deep.
    fn expression(&mut self, kind: VariableKind, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(kind);
        }
        if self.random.once_in(10) {
            let condition = self.condition(1);
            return format!(
                "(({condition}) ? {} : {})",
                self.expression(kind, depth - 1),
                self.expression(kind, depth - 1)
            );
        }
        if let Some(call) = self.call(kind, depth) {
            return call;
        }
        match kind {
            U32 | I32 | U64 | I64 | U16 | I16 | U8 => self.whole(kind, depth - 1),
            F32 | F64 | F16 => self.float(kind, depth - 1),
            Pair => self.pair(depth - 1),
            HalfPair => {
                let (a, b) = (self.expression(HalfPair, depth - 1), self.expression(HalfPair, depth - 1));
                format!("({a} {} {b})", self.random.pick(&["+", "-", "*"]))
            }
        }
    }

    fn call(&mut self, kind: VariableKind, depth: usize) -> Option<String> {
        let fitting: Vec<usize> = (0..self.callable.len()).filter(|&number| self.callable[number] == kind).collect();
        if fitting.is_empty() || !self.random.once_in(5) {
            return None;
        }
        let number = fitting[self.random.below(fitting.len())];
        let [a, b, c] = [U32, U64, F32].map(|kind| self.expression(kind, depth - 1));
        Some(format!("function{number}({a}, {b}, {c})"))
    }

    fn whole(&mut self, kind: VariableKind, depth: usize) -> String {
        let name = kind.name();
        let bits = match kind {
            U64 | I64 => 64,
            U16 | I16 => 16,
            U8 => 8,
            _ => 32,
        };
        let (a, b) = (self.expression(kind, depth), self.expression(kind, depth));
        // Signed sums wrap: both sides are compiled with that option.
        match self.random.below(22) {
            0..=3 => format!("({name})({a} {} {b})", self.random.pick(&["+", "-", "*"])),
            4..=6 => format!("({name})({a} {} {b})", self.random.pick(&["&", "|", "^"])),
            7 | 8 => format!("({name})({a} << ({b} & {}))", bits - 1),
            9 | 10 => format!("({name})({a} >> ({b} & {}))", bits - 1),
            11 => format!("quotient<{name}>({a}, {b})"),
            12 => format!("remainder_of<{name}>({a}, {b})"),
            13 => format!("({a} {} {b} ? {a} : {b})", self.random.pick(&["<", ">"])),
            14 if kind != U64 && kind != I64 => {
                let operation = self.random.pick(&["add", "sub"]);
                // Compilers before clang 20 promote narrow operands here; newer ones do not.
                let wide = if bits < 32 { "i32" } else { name };
                format!("__builtin_elementwise_{operation}_sat(({wide}){a}, ({wide}){b})")
            }
            15 if matches!(kind, U64 | I64) => format!("inverse({a})"),
            15 => format!("({name})~{a}"),
            16 | 17 => self.converted(kind, depth),
            _ => self.special(kind, depth, a, b),
        }
    }

    /// An expression converted from another type.
    fn converted(&mut self, kind: VariableKind, depth: usize) -> String {
        let from = [U32, I32, U64, I64, U16, I16, U8, F32, F64, F16, Pair, HalfPair][self.random.below(12)];
        let value = self.expression(from, depth);
        let name = kind.name();
        match (from, kind) {
            (F32 | F64, U32 | I32 | U64 | I64) if self.random.once_in(2) => format!("to_{name}({value})"),
            (F16, U16) => format!("to_u16({value})"),
            (F32 | F64 | F16, _) => format!("({name})bits({value})"),
            (Pair, _) => format!("({name})cast<u32>({value})"),
            (HalfPair, _) => format!("({name})bits(({value}).{})", self.random.pick(&["x", "y"])),
            _ => format!("({name})({value})"),
        }
    }

    /// Instructions for which the compiler has a function, and others by name.
    fn special(&mut self, kind: VariableKind, depth: usize, a: String, b: String) -> String {
        let choice = self.random.below(24);
        match kind {
            U32 => {
                let c = self.expression(U32, depth);
                match choice {
                    0..=9 => {
                        let names = [
                            "ubfe",
                            "sbfe",
                            "alignbit",
                            "alignbyte",
                            "perm",
                            "sad_u8",
                            "sad_hi_u8",
                            "sad_u16",
                            "msad_u8",
                            "lerp",
                        ];
                        format!("{}({a}, {b}, {c})", names[choice])
                    }
                    10 => format!("clz({a})"),
                    11 => format!("ctz({a})"),
                    12 => format!("(u32)__builtin_popcount({a})"),
                    13 => format!("__builtin_bitreverse32({a})"),
                    14 => format!("__builtin_bswap32({a})"),
                    15 => format!("rotate({a}, {b})"),
                    16 => format!("high_product({a}, {b})"),
                    17 => format!("cvt_pk_u8({}, {b}, {c})", self.expression(F32, depth)),
                    18 => format!("cvt_pknorm_i16({}, {})", self.expression(F32, depth), self.expression(F32, depth)),
                    19 => format!("cvt_pknorm_u16({}, {})", self.expression(F32, depth), self.expression(F32, depth)),
                    20 => format!("cvt_pk_u16({a}, {b})"),
                    21 => format!("cvt_pk_i16((i32){a}, (i32){b})"),
                    22 => format!("(({a} & 0xffffffu) * ({b} & 0xffffffu) + {c})"),
                    _ => format!("(u32)((({a} & 0xffffu) * ({b} & 0xffffu)) + {c})"),
                }
            }
            I32 => match choice {
                0..=4 => format!("high_product({a}, {b})"),
                5..=9 => format!("frexp_exponent({})", self.expression(F32, depth)),
                10..=14 => format!("frexp_exponent({})", self.expression(F64, depth)),
                _ => format!("({a} < 0 ? -{a} : {a})"),
            },
            U64 => match choice {
                0..=3 => format!("qsad({a}, {}, {b})", self.expression(U32, depth)),
                4..=7 => format!("mqsad({a}, {}, {b})", self.expression(U32, depth)),
                8..=11 => format!("(u64)clz64({a})"),
                12..=15 => format!("(u64)__builtin_popcountl({a})"),
                16 | 17 => format!("(u64)ctz64({a})"),
                _ => format!("((u64){} * {})", self.expression(U32, depth), self.expression(U32, depth)),
            },
            I64 => format!("((i64){} * {})", self.expression(I32, depth), self.expression(I32, depth)),
            _ => a,
        }
    }

    fn float(&mut self, kind: VariableKind, depth: usize) -> String {
        let name = kind.name();
        let (a, b) = (self.expression(kind, depth), self.expression(kind, depth));
        let suffix = if kind == F32 { "f" } else { "" };
        match self.random.below(18) {
            0..=5 => match self.random.pick(&["+", "-", "*"]) {
                "-" => format!("difference<{name}>({a}, {b})"),
                operator => format!("({name})({a} {operator} {b})"),
            },
            // Older compilers divide halves less exactly.
            6 | 7 if kind != F16 => format!("({a} / {b})"),
            8 | 9 if kind != F16 => format!("__builtin_fma{suffix}({a}, {b}, {})", self.expression(kind, depth)),
            8 | 9 => {
                let [x, y, z] = [F16, F16, F32].map(|kind| self.expression(kind, depth));
                format!("(half)__builtin_fmaf((float){x}, (float){y}, {z})")
            }
            10 => format!("(-({a}))"),
            11 if kind != F16 => format!("__builtin_fabs{suffix}({a})"),
            12 if kind != F16 => {
                format!("__builtin_{}{suffix}({a})", self.random.pick(&["floor", "ceil", "trunc", "rint"]))
            }
            13 => format!("({a} {} {b} ? {a} : {b})", self.random.pick(&["<", ">"])),
            14 | 15 => self.float_from(kind, depth),
            16 if kind == F32 => match self.random.below(5) {
                0 => format!("ldexp_f32({a}, {} & 255)", self.expression(I32, depth)),
                1 => format!("frexp_mantissa({a})"),
                2 => format!("fract_f32({a})"),
                3 => format!("med3({a}, {b}, {})", self.expression(F32, depth)),
                _ => format!("with_sign({a}, {b})"),
            },
            16 if kind == F64 => match self.random.below(4) {
                0 => format!("ldexp_f64({a}, ({} & 4095) - 2048)", self.expression(I32, depth)),
                1 => format!("frexp_mantissa({a})"),
                2 => format!("fract_f64({a})"),
                _ => format!("with_sign({a}, {b})"),
            },
            17 if kind == F32 => {
                let [x, y] = [F16, F16].map(|kind| self.expression(kind, depth));
                format!("__builtin_fmaf((float){x}, (float){y}, {a})")
            }
            _ => a,
        }
    }

    fn float_from(&mut self, kind: VariableKind, depth: usize) -> String {
        let name = kind.name();
        let from = [U32, I32, U64, I64, U16, U8, F32, F64, F16][self.random.below(9)];
        let value = self.expression(from, depth);
        match (from, kind) {
            (U32 | I32 | U64 | I64 | U16 | U8, F16) => format!("(half)(float)({value})"),
            _ => format!("({name})({value})"),
        }
    }

    fn pair(&mut self, depth: usize) -> String {
        let (a, b) = (self.expression(Pair, depth), self.expression(Pair, depth));
        match self.random.below(6) {
            0 => format!("({a} << ({b} & (u16)15))"),
            1 => format!("({a} >> ({b} & (u16)15))"),
            2 => format!("__builtin_elementwise_{}({a}, {b})", self.random.pick(&["max", "min", "add_sat", "sub_sat"])),
            3 => format!("pair_of({})", self.expression(U32, depth)),
            _ => format!("({a} {} {b})", self.random.pick(&["+", "-", "*", "^"])),
        }
    }
}
