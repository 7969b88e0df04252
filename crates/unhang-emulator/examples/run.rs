//! Runs one kernel of a code object: `run FILE KERNEL WORKGROUPS LANES ARGUMENT…`.
//!
//! An argument is `floats=N` (a buffer of that many floats, numbered 0, 1, 2, …), `int=N` or `float=X`. The kernel runs
//! as on gfx1010 and stops at hazards. Prints what was executed and how the buffers begin afterwards.

use std::process::ExitCode;

use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;

fn run(arguments: &[String]) -> Result<(), String> {
    let [file, kernel, workgroups, lanes, rest @ ..] = arguments else {
        return Err("usage: run FILE KERNEL WORKGROUPS LANES floats=N|int=N|float=X…".into());
    };
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("{text:?} is not a number: {error}"));
    let object = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let mut machine =
        Machine::load(&object, Mode::Hazards(Chip::Gfx1010)).map_err(|error| format!("{file}: {error}"))?;
    let (mut bytes, mut buffers) = (Vec::new(), Vec::new());
    for argument in rest {
        match argument.split_once('=') {
            Some(("floats", count)) => {
                let values: Vec<f32> = (0..number(count)?).map(|value| value as f32).collect();
                let address = machine.memory.allocate_floats(&values);
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend(address.to_le_bytes());
                buffers.push((address, values.len()));
            }
            Some(("int", value)) => {
                bytes.extend(value.parse::<i32>().map_err(|error| format!("{argument}: {error}"))?.to_le_bytes());
            }
            Some(("float", value)) => {
                bytes.extend(value.parse::<f32>().map_err(|error| format!("{argument}: {error}"))?.to_le_bytes());
            }
            _ => return Err(format!("{argument:?} is neither floats=N nor int=N nor float=X")),
        }
    }
    let dispatch = Dispatch::new(kernel, [number(workgroups)?, 1, 1], [number(lanes)?, 1, 1], &bytes);
    println!("{}", machine.run(&dispatch).map_err(|fault| fault.to_string())?);
    for (address, count) in buffers {
        let values = machine.memory.read_floats(address, count.min(8)).map_err(|fault| fault.to_string())?;
        println!("{address:#x}: {values:?}");
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
