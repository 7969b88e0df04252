//! A random program as a tree of statements, from which parts can be removed.

use std::fmt::Write;

/// A statement. All variables exist from the start, so each statement can be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// One line.
    Line(String),
    /// `head { … }`, one after the other: `if` and `else`, loops, the cases of a `switch`.
    Blocks(Vec<(String, Vec<Statement>)>),
}

/// A part of the kernel between barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Each thread works by itself.
    Threads {
        /// Whether this is a call.
        is_call: bool,
        /// What each thread does.
        statements: Vec<Statement>,
    },
    /// Lanes exchange values. The device and the host have separate code; the host computes `result` for `lane` of the
    /// wave `old`.
    Lanes {
        /// The variable that is read, as an expression of `s`.
        source: String,
        /// The variable that is written.
        target: String,
        /// The device's expression of `x`, the source's value.
        device: String,
        /// The host's statement.
        host: String,
    },
}

/// A function with up to three arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its signature without attributes.
    pub signature: String,
    /// Its body.
    pub statements: Vec<Statement>,
    /// What it returns.
    pub result: String,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The seed that it came from.
    pub seed: u64,
    /// Functions. Each may call those before it.
    pub functions: Vec<Function>,
    /// The kernel.
    pub phases: Vec<Phase>,
}

/// The variables of a thread: type, name, and number. Each starts from an input word and is written as 64 bits.
pub const VARIABLES: [(&str, &str, usize); 12] = [
    ("u32", "u", 5),
    ("i32", "i", 3),
    ("u64", "w", 3),
    ("i64", "x", 2),
    ("u16", "t", 2),
    ("i16", "j", 1),
    ("u8", "c", 2),
    ("float", "f", 4),
    ("double", "d", 3),
    ("half", "h", 3),
    ("u16x2", "p", 2),
    ("half2", "q", 2),
];

/// Words of a thread's own buffer.
pub const OWN_WORDS: usize = 8;
/// Words that a thread reads.
pub const INPUT_WORDS: usize = 16;
/// Threads of a workgroup.
pub const THREADS: usize = 64;
/// Workgroups.
pub const GROUPS: usize = 2;
/// Counters for atomics, in global memory and again in local memory.
pub const COUNTERS: usize = 8;

/// 32-bit words that a thread writes at the end: every variable as 64 bits, and its arrays.
pub fn output_words() -> usize {
    VARIABLES.iter().map(|&(_, _, count)| count * 2).sum::<usize>() + ARRAY_WORDS
}

const ARRAY_WORDS: usize = 8 + 8 + 4;

fn write_statements(text: &mut String, statements: &[Statement], depth: usize) {
    let indent = "    ".repeat(depth);
    for statement in statements {
        let _ = match statement {
            Statement::Line(line) => writeln!(text, "{indent}{line}"),
            Statement::Blocks(blocks) => blocks.iter().try_for_each(|(head, body)| {
                writeln!(text, "{indent}{head} {{")?;
                write_statements(text, body, depth + 1);
                let end = if head.starts_with("case") || head.starts_with("default") { " break;" } else { "" };
                writeln!(text, "{indent}{end}}}")
            }),
        };
    }
}

fn as_wide(kind: &str, value: &str) -> String {
    match kind {
        "float" | "double" | "half" => format!("(u64)bits({value})"),
        "u16x2" => format!("(u64)cast<u32>({value})"),
        "half2" => format!("((u64)bits({value}.x) | (u64)bits({value}.y) << 16)"),
        _ => format!("(u64)({value})"),
    }
}

fn from_words(kind: &str, low: usize) -> String {
    let (first, second) = (format!("in[{}]", low % INPUT_WORDS), format!("in[{}]", (low + 1) % INPUT_WORDS));
    match kind {
        "float" => format!("f32_of({first})"),
        "double" => format!("f64_of((u64){first} << 32 | {second})"),
        "half" => format!("f16_of((u16){first})"),
        "u64" | "i64" => format!("({kind})((u64){first} << 32 | {second})"),
        "u16x2" => format!("cast<u16x2>({first})"),
        "half2" => format!("half2{{f16_of((u16){first}), f16_of((u16)({first} >> 16))}}"),
        _ => format!("({kind}){first}"),
    }
}

impl Program {
    /// The number of statements.
    pub fn size(&self) -> usize {
        fn count(statements: &[Statement]) -> usize {
            let blocks =
                |blocks: &[(String, Vec<Statement>)]| blocks.iter().map(|(_, body)| count(body)).sum::<usize>();
            statements.iter().map(|it| if let Statement::Blocks(inner) = it { 1 + blocks(inner) } else { 1 }).sum()
        }
        let phases = self.phases.iter().map(|phase| match phase {
            Phase::Threads { statements, .. } => count(statements),
            Phase::Lanes { .. } => 1,
        });
        phases.sum::<usize>() + self.functions.iter().map(|function| count(&function.statements)).sum::<usize>()
    }

    /// The program as C++ for both sides.
    pub fn source(&self) -> String {
        let mut text = format!("// Random program {} for the emulator; see docs/internals/emulator.md.\n", self.seed);
        text.push_str(include_str!("prelude.hpp"));
        text.push_str("\nstruct State {\n");
        for (kind, name, count) in VARIABLES {
            let names: Vec<String> = (0..count).map(|place| format!("{name}{place}")).collect();
            let _ = writeln!(text, "    {kind} {};", names.join(", "));
        }
        text.push_str("    u32 words[8];\n    u8 bytes[32];\n    float floats[4];\n};\n");
        text.push_str("struct Around { u32 *own, *counters, *local, *local_counters; u32 thread; };\n\n");
        for function in &self.functions {
            let _ = writeln!(text, "NOINLINE {} {{\n    State s{{}};", function.signature);
            text.push_str("    s.u0 = a; s.w0 = b; s.f0 = c; s.d0 = c; s.i0 = (i32)a; s.x0 = (i64)b;\n");
            write_statements(&mut text, &function.statements, 1);
            let _ = writeln!(text, "    return {};\n}}\n", function.result);
        }
        for (place, phase) in self.phases.iter().enumerate() {
            if let Phase::Threads { is_call, statements } = phase {
                let attribute = if *is_call { "NOINLINE" } else { "INLINE" };
                let _ = writeln!(text, "{attribute} void phase{place}(State &s, const Around &e) {{");
                write_statements(&mut text, statements, 1);
                text.push_str("}\n\n");
            }
        }
        self.write_ends(&mut text);
        self.write_kernel(&mut text);
        self.write_host(&mut text);
        text
    }

    /// The beginning and the end of each thread.
    fn write_ends(&self, text: &mut String) {
        text.push_str("INLINE void begin(State &s, const u32 *in) {\n");
        let mut word = 0;
        for (kind, name, count) in VARIABLES {
            for place in 0..count {
                let _ = writeln!(text, "    s.{name}{place} = {};", from_words(kind, word));
                word += 1;
            }
        }
        text.push_str("    for (u32 k = 0; k < 8; ++k) s.words[k] = in[k] + k;\n");
        text.push_str("    for (u32 k = 0; k < 32; ++k) s.bytes[k] = (u8)(in[k & 15] >> (k & 7));\n");
        text.push_str("    for (u32 k = 0; k < 4; ++k) s.floats[k] = f32_of(in[k + 4]);\n}\n\n");
        text.push_str("INLINE void end(const State &s, u32 *out) {\n    u32 at = 0;\n    u64 wide;\n");
        for (kind, name, count) in VARIABLES {
            for place in 0..count {
                let value = as_wide(kind, &format!("s.{name}{place}"));
                let _ = writeln!(text, "    wide = {value}; out[at++] = (u32)wide; out[at++] = (u32)(wide >> 32);");
            }
        }
        text.push_str("    for (u32 k = 0; k < 8; ++k) out[at++] = s.words[k];\n");
        text.push_str("    for (u32 k = 0; k < 8; ++k) out[at++] = get<u32>(s.bytes + 4 * k);\n");
        text.push_str("    for (u32 k = 0; k < 4; ++k) out[at++] = bits(s.floats[k]);\n}\n\n");
    }

    fn write_kernel(&self, text: &mut String) {
        let (threads, words, inputs) = (THREADS, output_words(), INPUT_WORDS);
        let _ =
            writeln!(text, "#if ON_DEVICE\nKERNEL void program(const u32 *in, u32 *out, u32 *own, u32 *counters) {{");
        let _ = writeln!(text, "    __attribute__((shared, aligned(16))) u32 local[{threads} * 4 + {COUNTERS}];");
        text.push_str("    u32 thread = __builtin_amdgcn_workitem_id_x();\n");
        let _ = writeln!(text, "    u32 all = __builtin_amdgcn_workgroup_id_x() * {threads} + thread;");
        let _ = writeln!(
            text,
            "    Around e = {{own + all * {OWN_WORDS}, counters, local, local + {threads} * 4, thread}};"
        );
        let _ = writeln!(text, "    for (u32 k = 0; k < 4; ++k) local[thread * 4 + k] = in[all * {inputs} + k];");
        let _ = writeln!(text, "    if (thread < {COUNTERS}) e.local_counters[thread] = thread;");
        let _ = writeln!(text, "    State s;\n    begin(s, in + all * {inputs});");
        let barrier = "    __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\");\n    __builtin_amdgcn_s_barrier();\n    \
                       __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");\n";
        text.push_str(barrier);
        for (place, phase) in self.phases.iter().enumerate() {
            match phase {
                Phase::Threads { .. } => {
                    let _ = writeln!(text, "    phase{place}(s, e);");
                    text.push_str(barrier);
                }
                Phase::Lanes { source, target, device, .. } => {
                    let _ = writeln!(text, "    {{ u32 x = {source}; {target} = {device}; }}");
                }
            }
        }
        let _ = writeln!(text, "    end(s, out + all * {words});");
        let _ = writeln!(
            text,
            "    for (u32 k = thread; k < {COUNTERS}; k += {threads}) atomic_xor(counters + {COUNTERS} + k, e.local_counters[k]);"
        );
        text.push_str("}\n");
    }

    fn write_host(&self, text: &mut String) {
        let (threads, words, inputs) = (THREADS, output_words(), INPUT_WORDS);
        let all = threads * GROUPS;
        let _ = writeln!(
            text,
            "#else\nstatic u32 in[{all} * {inputs}], out[{all} * {words}], own[{all} * {OWN_WORDS}], counters[{COUNTERS} * 2];"
        );
        let _ = writeln!(
            text,
            "int main() {{\n    if (fread(in, sizeof in, 1, stdin) != 1) return 1;\n    counters[1] = ~0u;"
        );
        let _ = writeln!(
            text,
            "    for (u32 group = 0; group < {GROUPS}; ++group) {{\n        static State state[{threads}];"
        );
        let _ =
            writeln!(text, "        static u32 local[{threads} * 4 + {COUNTERS}];\n        Around around[{threads}];");
        let _ = writeln!(
            text,
            "        for (u32 thread = 0; thread < {threads}; ++thread) {{\n            u32 all = group * {threads} + thread;"
        );
        let _ = writeln!(
            text,
            "            around[thread] = {{own + all * {OWN_WORDS}, counters, local, local + {threads} * 4, thread}};"
        );
        let _ =
            writeln!(text, "            for (u32 k = 0; k < 4; ++k) local[thread * 4 + k] = in[all * {inputs} + k];");
        let _ = writeln!(text, "            if (thread < {COUNTERS}) local[{threads} * 4 + thread] = thread;");
        let _ = writeln!(text, "            begin(state[thread], in + all * {inputs});\n        }}");
        for (place, phase) in self.phases.iter().enumerate() {
            match phase {
                Phase::Threads { .. } => {
                    let _ = writeln!(
                        text,
                        "        for (u32 thread = 0; thread < {threads}; ++thread) phase{place}(state[thread], around[thread]);"
                    );
                }
                Phase::Lanes { source, target, host, .. } => {
                    let _ = writeln!(
                        text,
                        "        for (u32 wave = 0; wave < {threads}; wave += LANES) {{\n            u32 old[LANES];"
                    );
                    let _ = writeln!(
                        text,
                        "            for (u32 lane = 0; lane < LANES; ++lane) {{ State &s = state[wave + lane]; old[lane] = {source}; }}"
                    );
                    let _ = writeln!(
                        text,
                        "            for (i32 lane = 0; lane < LANES; ++lane) {{\n                State &s = state[wave + lane];"
                    );
                    let _ = writeln!(
                        text,
                        "                u32 x = old[lane], result = x;\n                {host}\n                {target} = result;\n            }}\n        }}"
                    );
                }
            }
        }
        let _ = writeln!(
            text,
            "        for (u32 thread = 0; thread < {threads}; ++thread) end(state[thread], out + (group * {threads} + thread) * {words});"
        );
        let _ = writeln!(
            text,
            "        for (u32 k = 0; k < {COUNTERS}; ++k) counters[{COUNTERS} + k] ^= local[{threads} * 4 + k];\n    }}"
        );
        text.push_str("    fwrite(out, sizeof out, 1, stdout); fwrite(own, sizeof own, 1, stdout);\n");
        text.push_str("    return fwrite(counters, sizeof counters, 1, stdout) != 1;\n}\n#endif\n");
    }
}
