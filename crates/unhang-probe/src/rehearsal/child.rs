//! The child that plays the card.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use unhang_conv::{DataType, Problem};
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, Operands};

use super::table::{Behaviour, Table};
use crate::child::{Speaker, compare, numbers};
use crate::protocol::{Answer, CameBack, Request, Stage};

/// What the GPU's runtime prints on a bad address.
const RUNTIME_MESSAGE: &str = "rehearsed: Queue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent \
                               attempted to access memory beyond the largest legal address. code: 0x29";
/// The file that marks the rehearsed card as lost.
const LOST: &str = "card-is-lost";

/// Serves requests on the socket until it is closed, according to the table; `engine` computes what works. `state` is a
/// folder that all children of one rehearsal share: it represents the card.
pub fn serve(socket: UnixStream, table: &Table, engine: &dyn Engine, state: &Path) -> std::io::Result<()> {
    let child = Child { table, engine, state };
    crate::child::serve(socket, || "rehearsal".to_owned(), |request, speaker| child.answer(request, speaker))
}

struct Child<'a> {
    table: &'a Table,
    engine: &'a dyn Engine,
    state: &'a Path,
}

impl Child<'_> {
    fn answer(&self, request: &Request, speaker: &Speaker) -> std::io::Result<Answer> {
        let id = request.id;
        let mut answer = Answer::new(id, CameBack::Computed, "");
        if request.canary {
            if self.state.join(LOST).exists() {
                hang();
            }
            return Ok(answer);
        }
        let (problem, engine) = match (request.problem.parse::<Problem>(), request.engine.parse()) {
            (Ok(problem), Ok(engine)) => (problem, engine),
            _ => {
                return Ok(Answer { ended: CameBack::Error, detail: "no such problem or engine".to_owned(), ..answer });
            }
        };
        let line = self.table.line(&problem, engine, &request.variant);
        let behaviour = line.map_or(Behaviour::Unsupported, |line| line.behaviour);
        if behaviour == Behaviour::Unsupported {
            let detail = "the table has it declined".to_owned();
            return Ok(Answer { ended: CameBack::Unsupported, detail, ..answer });
        }
        let began = Instant::now();
        // An attempt that never returns needs no result.
        let never =
            matches!(behaviour, Behaviour::HangCompile | Behaviour::HangFind | Behaviour::HangRun | Behaviour::Lost);
        let expected = match if never { Ok(Vec::new()) } else { compute(self.engine, &problem) } {
            Ok(expected) => expected,
            Err(error) => return Ok(Answer { ended: CameBack::Error, detail: error.to_string(), ..answer }),
        };
        let seconds = began.elapsed().as_secs_f64();
        speaker.stage(id, Stage::Compile)?;
        match behaviour {
            Behaviour::HangCompile => hang(),
            Behaviour::HangFind => {
                speaker.stage(id, Stage::Find)?;
                hang();
            }
            _ => speaker.stage(id, Stage::Run)?,
        }
        match behaviour {
            Behaviour::HangRun => hang(),
            Behaviour::Lost => {
                std::fs::write(self.state.join(LOST), "")?;
                hang();
            }
            Behaviour::Abort => {
                eprintln!("{RUNTIME_MESSAGE}");
                std::process::abort();
            }
            Behaviour::Segfault => die_of(Signal::SEGV),
            Behaviour::Killed => die_of(Signal::KILL),
            Behaviour::Exit => std::process::exit(0),
            Behaviour::Garbage => {
                speaker.say_bytes(b"\x00\xff[2Jnot an answer\n")?;
                hang();
            }
            Behaviour::Flood => {
                while speaker.say_bytes(&[b'{'; 4096]).is_ok() {}
                std::process::exit(0);
            }
            Behaviour::Error => {
                return Ok(Answer { ended: CameBack::Error, detail: "no suitable algorithm".to_owned(), ..answer });
            }
            _ => {}
        }
        speaker.stage(id, Stage::Check)?;
        // Spoils the CPU engine's result. The comparison then finds that it is wrong.
        let mut found = expected.clone();
        match behaviour {
            Behaviour::Wrong => found.iter_mut().step_by(7).for_each(|number| *number = 1.0 - *number),
            Behaviour::NotNumbers => found.iter_mut().step_by(11).for_each(|number| *number = f32::NAN),
            _ => {}
        }
        (answer.relative_error, answer.not_numbers) =
            compare(found.iter().zip(&expected).map(|(&found, &expected)| (found.into(), expected.into())));
        (answer.seconds, answer.first_seconds) = (Some(seconds), Some(seconds));
        Ok(answer)
    }
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn die_of(signal: Signal) -> ! {
    loop {
        // Rust's own SIGSEGV handler takes the first signal for a stack overflow and lets the next one through.
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The CPU engine's result on values that are the same each time.
fn compute(engine: &dyn Engine, problem: &Problem) -> Result<Vec<f32>, EngineError> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    // Single precision stands for every type, because the result is compared with a copy of itself.
    let problem = problem.with_data_type(DataType::F32);
    let (first, second) = (numbers(first, 1), numbers(second, 2));
    let mut computed = vec![f32::NAN; result];
    let operands = Operands {
        first: Elements::F32(&first),
        second: Elements::F32(&second),
        bias: None,
        result: ElementsMut::F32(&mut computed),
    };
    engine.run(&problem, operands)?;
    Ok(computed)
}
