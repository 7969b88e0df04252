//! `unhang emulate`: runs one kernel of a code object on the emulator, and shows what helps when it goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};
use unhang_emulator::{Counts, Dispatch, Fault, FaultKind, Follow, Machine, Mode, Moment, Object, Observer, Unit};
use unhang_guard::input::read_named;
use unhang_isa::Chip;

use super::text::{print_safe_json, print_text, wrapped};
use crate::output::{CANNOT_TELL, FOUND_ERRORS, printable, tell};

/// The largest code object that is accepted.
const LARGEST_FILE: u64 = 1 << 30;

/// Run one kernel of a code object on the emulator: results, trace, registers, counts.
#[derive(Args)]
#[command(after_help = "\
Examples:
  unhang emulate a.co
  unhang emulate a.co --kernel scale --groups 4 --args floats=256 f32=2
  unhang emulate a.co --kernel scale --lanes 32 --trace --args floats=32 f32=2
  unhang emulate a.co --kernel scale --break 0x40 --args floats=32 f32=2

Values for --args, in the order of the kernel's arguments:
  floats=N                             a buffer of N floats: 0, 1, 2, …
  zeros=N                              a buffer of N bytes
  file=PATH                            a buffer with the file's bytes
  i32=N u32=N i64=N u64=N f32=X f64=X  a value

Offsets are bytes from the kernel's first instruction, such as 0x1c0, as faults and disassemblers show them. The card is \
emulated: results are exact, and times mean nothing.

Exit codes:
  0  the kernel ended, or reached the breakpoint
  1  a fault stopped it
  2  wrong usage
  3  the wave never reached an offset that --dump or --break names")]
pub(crate) struct Emulate {
    /// The code object.
    file: PathBuf,
    /// The kernel; without it, the kernels are listed.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// The kernel's arguments.
    #[arg(long, num_args = 0.., value_name = "KIND=VALUE")]
    args: Vec<String>,
    /// Workgroups along each axis: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = three)]
    groups: [u32; 3],
    /// Work-items of a workgroup along each axis.
    #[arg(long, value_name = "X,Y,Z", default_value = "32", value_parser = three)]
    lanes: [u32; 3],
    /// Bytes of LDS in addition to what the kernel declares.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    dynamic_lds: u32,
    /// The chip to emulate; by default the one for which the code was compiled.
    #[arg(long, visible_alias = "arch")]
    chip: Option<Chip>,
    /// Do not stop at hazards and missing waits, like an ideal chip.
    #[arg(long)]
    ignore_hazards: bool,
    /// Stop where two waves of a workgroup touch the same bytes with neither a barrier nor atomics between them.
    #[arg(long)]
    races: bool,
    /// Print each instruction of the wave.
    #[arg(long)]
    trace: bool,
    /// Print the wave's registers each time it comes to this offset.
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    dump: Vec<i64>,
    /// Print the wave's registers when it comes to this offset, and stop there.
    #[arg(long = "break", value_name = "OFFSET", value_parser = offset)]
    stop: Vec<i64>,
    /// Print how often each instruction was executed, by all waves.
    #[arg(long)]
    counts: bool,
    /// The wave for --trace, --dump and --break, by its number in the first workgroup.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    wave: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn three(text: &str) -> Result<[u32; 3], String> {
    let mut axes = [1; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err("at most three numbers: X,Y,Z".into());
    }
    for (axis, part) in axes.iter_mut().zip(parts) {
        *axis = part.trim().parse().map_err(|_| format!("{part:?} is not a number"))?;
    }
    Ok(axes)
}

fn offset(text: &str) -> Result<i64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is not an offset: expected one such as 0x1c0"))
}

/// A buffer created for an argument.
struct Buffer {
    argument: String,
    address: u64,
    size: usize,
    floats: bool,
}

/// The arguments as they are in memory, with the buffers that they refer to.
#[derive(Default)]
struct Arguments {
    bytes: Vec<u8>,
    buffers: Vec<Buffer>,
}

impl Emulate {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let file = self.file.display().to_string();
        let bytes = read_named(&self.file, LARGEST_FILE).with_context(|| format!("cannot read {file}"))?;
        let mut machine = Machine::new(Mode::Compute);
        let object = machine.add(&bytes).with_context(|| format!("{file} is not a code object"))?;
        let target = machine.target().unwrap_or(Chip::Gfx1010);
        let chip = self.chip.unwrap_or(target);
        if !self.ignore_hazards {
            machine.mode = Mode::Hazards(chip);
        }
        let Some(kernel) = &self.kernel else { return self.list(&machine, object) };
        if !machine.kernels().any(|name| name == kernel) {
            return Err(anyhow!("hint: it has {}", all_kernels(&machine))
                .context(format!("{file} has no kernel named {kernel}")));
        }
        let arguments = self.arguments(&mut machine, object, kernel)?;
        let watch = Arc::new(Watch::new(&self));
        if self.trace || self.counts || !self.dump.is_empty() || !self.stop.is_empty() {
            machine.observer = Some(watch.clone());
        }
        machine.races = self.races;
        let dispatch = Dispatch {
            kernel,
            workgroups: self.groups,
            workgroup_size: self.lanes,
            arguments: &arguments.bytes,
            dynamic_local: self.dynamic_lds,
        };
        let outcome = machine.run(&dispatch);
        self.print(&machine, chip, &arguments, &watch.seen(), outcome)
    }

    fn list(&self, machine: &Machine, object: Object) -> anyhow::Result<ExitCode> {
        let names: Vec<&str> = machine.kernels().collect();
        if self.json {
            let kernel = |name: &&str| json!({ "name": name, "arguments": described(machine, object, name) });
            print_safe_json(&json!({ "schema": 1, "kernels": names.iter().map(kernel).collect::<Vec<_>>() }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = String::new();
        for name in names {
            let arguments = described(machine, object, name).join(", ");
            let arguments = if arguments.is_empty() { "no arguments" } else { &arguments };
            let _ = writeln!(text, "{}", wrapped(&format!("{}: {arguments}", printable(name)), 0, 4));
        }
        print_text(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn arguments(&self, machine: &mut Machine, object: Object, kernel: &str) -> anyhow::Result<Arguments> {
        let expected: Option<Vec<(u64, u64)>> = machine.metadata(object, kernel).map(|metadata| {
            let own = metadata.arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_"));
            own.map(|argument| (argument.offset, argument.size)).collect()
        });
        if let Some(expected) = &expected
            && expected.len() != self.args.len()
        {
            let listed = described(machine, object, kernel).join(", ");
            return Err(anyhow!("hint: its arguments are {listed}; give each as KIND=VALUE after --args")
                .context(format!("{kernel} takes {} arguments, and {} were given", expected.len(), self.args.len())));
        }
        let mut arguments = Arguments::default();
        for (place, text) in self.args.iter().enumerate() {
            let value = value(machine, text, &mut arguments.buffers).with_context(|| format!("argument {place}"))?;
            let at = match expected.as_ref().and_then(|expected| expected.get(place)) {
                Some(&(_, size)) if size != value.len() as u64 => {
                    bail!("argument {place} of {kernel} has {size} bytes, and {text} has {}", value.len())
                }
                Some(&(offset, _)) => usize::try_from(offset)?,
                None => arguments.bytes.len().next_multiple_of(value.len()),
            };
            let end = at + value.len();
            arguments.bytes.resize(arguments.bytes.len().max(end), 0);
            arguments.bytes[at..end].copy_from_slice(&value);
        }
        Ok(arguments)
    }

    fn print(
        &self,
        machine: &Machine,
        chip: Chip,
        arguments: &Arguments,
        seen: &Seen,
        outcome: Result<Counts, Fault>,
    ) -> anyhow::Result<ExitCode> {
        let at_breakpoint = seen.stopped;
        let fault = match &outcome {
            Err(fault) if !(at_breakpoint && fault.kind == FaultKind::Stopped) => Some(fault),
            _ => None,
        };
        let missed = if outcome.is_ok() { self.missed(seen) } else { Vec::new() };
        let code = match (fault, missed.is_empty()) {
            (Some(_), _) => ExitCode::from(FOUND_ERRORS),
            (None, false) => ExitCode::from(CANNOT_TELL),
            (None, true) => ExitCode::SUCCESS,
        };
        if self.json {
            let counts = outcome.as_ref().ok().map(counts_json);
            print_safe_json(&json!({
                "schema": 1, "emulated": true, "chip": chip.name(), "kernel": self.kernel,
                "fault": fault.map(ToString::to_string), "at_breakpoint": at_breakpoint, "counts": counts,
                "not_reached": missed.iter().map(|offset| format!("{offset:#x}")).collect::<Vec<_>>(),
                "executed": self.counts.then_some(&seen.executed), "events": seen.lines,
                "buffers": arguments.buffers.iter().map(|buffer| beginning(machine, buffer)).collect::<Vec<_>>(),
            }))?;
            return Ok(code);
        }
        let mut text: String = seen.lines.iter().map(|line| printable(line) + "\n").collect();
        if self.counts {
            let mut by_count: Vec<(&String, &u64)> = seen.executed.iter().collect();
            by_count.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            by_count.iter().for_each(|(name, count)| text += &format!("{count:>12} {name}\n"));
        }
        if let Ok(counts) = &outcome {
            let _ = writeln!(text, "on the emulated {chip}: {counts}");
        }
        for buffer in &arguments.buffers {
            let shown = beginning(machine, buffer);
            let _ = writeln!(text, "{} at {:#x}: {shown}", printable(&buffer.argument), buffer.address);
        }
        print_text(&text)?;
        if let Some(fault) = fault {
            tell(&format!("on the emulated {chip}: {fault}"));
        }
        for offset in missed {
            tell(&format!("wave {} of the first workgroup never reached {offset:#x}", self.wave));
            tell(&format!("hint: {}", self.hint_for_missed(offset, seen)));
        }
        Ok(code)
    }

    /// The requested offsets that the wave did not reach.
    fn missed(&self, seen: &Seen) -> Vec<i64> {
        let asked: BTreeSet<i64> = self.dump.iter().chain(&self.stop).copied().collect();
        asked.into_iter().filter(|offset| !seen.reached.contains(offset)).collect()
    }

    fn hint_for_missed(&self, offset: i64, seen: &Seen) -> String {
        if !seen.waves.contains(&self.wave) {
            let last = seen.waves.last().copied().unwrap_or(0);
            return format!("the first workgroup has no such wave; --wave takes 0 to {last}");
        }
        match seen.reached_elsewhere.contains(&offset) {
            true => "other waves did; choose one with --wave".into(),
            false => {
                "no wave did, or no instruction begins there; --trace prints the offsets that a wave reaches".into()
            }
        }
    }
}

fn all_kernels(machine: &Machine) -> String {
    let names: Vec<&str> = machine.kernels().collect();
    if names.is_empty() { "no kernels".into() } else { names.join(", ") }
}

/// The kernel's own arguments, in words.
fn described(machine: &Machine, object: Object, kernel: &str) -> Vec<String> {
    let Some(metadata) = machine.metadata(object, kernel) else { return Vec::new() };
    let own = metadata.arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_"));
    own.map(|argument| match argument.kind.as_str() {
        "global_buffer" => "a buffer".into(),
        kind => format!("{} bytes {}", argument.size, kind.replace('_', " ")),
    })
    .collect()
}

/// The bytes of one argument.
fn value(machine: &mut Machine, text: &str, buffers: &mut Vec<Buffer>) -> anyhow::Result<Vec<u8>> {
    let kinds = "floats=N, zeros=N, file=PATH, i32=N, u32=N, i64=N, u64=N, f32=X or f64=X";
    let (kind, value) = text.split_once('=').with_context(|| format!("{text:?} is not one of {kinds}"))?;
    let wrong = || format!("{text}: {value:?} is not such a number");
    /// More than that is a typing mistake.
    const MOST: usize = 1 << 30;
    let contents = match kind {
        "i32" => return Ok(value.parse::<i32>().with_context(wrong)?.to_le_bytes().to_vec()),
        "u32" => return Ok(value.parse::<u32>().with_context(wrong)?.to_le_bytes().to_vec()),
        "i64" => return Ok(value.parse::<i64>().with_context(wrong)?.to_le_bytes().to_vec()),
        "u64" => return Ok(value.parse::<u64>().with_context(wrong)?.to_le_bytes().to_vec()),
        "f32" => return Ok(value.parse::<f32>().with_context(wrong)?.to_le_bytes().to_vec()),
        "f64" => return Ok(value.parse::<f64>().with_context(wrong)?.to_le_bytes().to_vec()),
        "floats" | "zeros" => {
            let count: usize = value.parse().with_context(wrong)?;
            anyhow::ensure!(count <= MOST / 4, "{text}: a buffer has at most {} elements", MOST / 4);
            match kind {
                "floats" => (0..count).flat_map(|value| (value as f32).to_le_bytes()).collect(),
                _ => vec![0; count],
            }
        }
        "file" => read_named(value.as_ref(), MOST as u64).with_context(|| format!("cannot read {value}"))?,
        _ => bail!("{text:?} is not one of {kinds}"),
    };
    let address = machine.memory.allocate_bytes(&contents);
    buffers.push(Buffer { argument: text.into(), address, size: contents.len(), floats: kind == "floats" });
    Ok(address.to_le_bytes().to_vec())
}

/// The beginning of a buffer.
fn beginning(machine: &Machine, buffer: &Buffer) -> Value {
    let mut bytes = vec![0; buffer.size.min(32)];
    if machine.memory.read(buffer.address, &mut bytes).is_err() {
        return Value::Null;
    }
    let words = bytes.as_chunks::<4>().0.iter();
    match buffer.floats {
        true => words.map(|&word| json!(f32::from_le_bytes(word))).collect(),
        false => words.map(|&word| json!(format!("{:#010x}", u32::from_le_bytes(word)))).collect(),
    }
}

fn counts_json(counts: &Counts) -> Value {
    let units = Unit::ALL.iter().map(|&unit| (unit.name().to_owned(), json!(counts[unit])));
    json!({
        "instructions": counts.instructions(), "lane_operations": counts.lane_operations,
        "issue_cycles_by_the_model": counts.issue_cycles(), "by_unit": units.collect::<serde_json::Map<_, _>>(),
    })
}

/// What the observer saw.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    /// How often each instruction was executed, by name.
    executed: BTreeMap<String, u64>,
    stopped: bool,
    /// The requested offsets that the wave reached, and those that other waves of the first workgroup reached.
    reached: BTreeSet<i64>,
    reached_elsewhere: BTreeSet<i64>,
    /// The waves of the first workgroup.
    waves: BTreeSet<u32>,
}

/// Sees each instruction, and notes what was requested.
struct Watch {
    trace: bool,
    counts: bool,
    dump: Vec<i64>,
    stop: Vec<i64>,
    wave: u32,
    seen: Mutex<Seen>,
}

impl Watch {
    fn new(command: &Emulate) -> Watch {
        Watch {
            trace: command.trace,
            counts: command.counts,
            dump: command.dump.clone(),
            stop: command.stop.clone(),
            wave: command.wave,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Watch {
    fn before(&self, moment: &Moment<'_>) -> Follow {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.counts {
            *seen.executed.entry(moment.instruction.definition.mnemonic.to_owned()).or_default() += 1;
        }
        if moment.workgroup() != [0; 3] {
            return Follow::On;
        }
        let offset = moment.offset();
        let (stops, dumps) = (self.stop.contains(&offset), self.dump.contains(&offset));
        seen.waves.insert(moment.wave());
        if moment.wave() != self.wave {
            if stops || dumps {
                seen.reached_elsewhere.insert(offset);
            }
            return Follow::On;
        }
        if self.trace {
            seen.lines.push(format!("{offset:#8x}  {:<56} exec {:#x}", moment.text(), moment.exec()));
        }
        if stops || dumps {
            seen.reached.insert(offset);
            seen.lines.extend(registers(moment));
        }
        seen.stopped |= stops;
        if stops { Follow::Stop } else { Follow::On }
    }
}

/// The registers of a wave, one line for each that is not zero.
fn registers(moment: &Moment<'_>) -> Vec<String> {
    let (m0, scalars) = moment.scalars();
    let mut lines = vec![format!("before {:#x}: {}", moment.offset(), moment.text())];
    lines.push(format!("  exec {:#x}  vcc {:#x}  scc {}  m0 {m0:#x}", moment.exec(), moment.vcc(), moment.scc() as u8));
    for (row, values) in scalars.chunks(8).enumerate().filter(|(_, values)| values.iter().any(|&value| value != 0)) {
        let values: Vec<String> = values.iter().map(|value| format!("{value:08x}")).collect();
        lines.push(format!("  s{:<4} {}", row * 8, values.join(" ")));
    }
    for register in 0..moment.vector_registers() {
        let values = moment.vector(register);
        match values.first() {
            Some(first) if values.iter().all(|value| value == first) => {
                if *first != 0 {
                    lines.push(format!("  v{register:<4} {first:08x} in every lane"));
                }
            }
            _ => {
                for (row, values) in values.chunks(8).enumerate() {
                    let name = if row == 0 { format!("v{register}") } else { String::new() };
                    let values: Vec<String> = values.iter().map(|value| format!("{value:08x}")).collect();
                    lines.push(format!("  {name:<5} {}", values.join(" ")));
                }
            }
        }
    }
    lines
}
