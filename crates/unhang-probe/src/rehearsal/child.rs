//! The child that plays the card.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use unhang_conv::{DataType, Problem};
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, Operands};

use super::table::{Behaviour, Table};
use crate::protocol::{Answer, CameBack, Message, Request, Stage};

/// How often the child says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// What the GPU's runtime prints on a bad address, in its form.
const RUNTIME_MESSAGE: &str = "rehearsed: Queue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent \
                               attempted to access memory beyond the largest legal address. code: 0x29";
/// The file that says that the rehearsed card was lost.
const LOST: &str = "card-is-lost";

/// Serves requests on the socket until it is closed, as the table says; `engine` computes what works. `state` is a folder
/// that all children of one rehearsal share: it stands for the card.
pub fn serve(socket: UnixStream, table: &Table, engine: &dyn Engine, state: &Path) -> std::io::Result<()> {
    // It must not outlive its prober, however that ends; and a crash that is meant needs no dump of memory.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let requests = BufReader::new(socket.try_clone()?);
    let socket = Arc::new(Mutex::new(socket));
    let child = Child { socket: socket.clone(), table, engine, state };
    child.say(&Message::Ready { about: "rehearsal".to_owned() })?;
    // Ends with the process, or when nobody listens any more.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(HEARTBEAT);
            if say(&socket, &Message::Heartbeat).is_err() {
                return;
            }
        }
    });
    for line in requests.lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = child.answer(&request)?;
        child.say(&Message::Answer(answer))?;
    }
    Ok(())
}

fn say(socket: &Mutex<UnixStream>, message: &Message) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
}

struct Child<'a> {
    socket: Arc<Mutex<UnixStream>>,
    table: &'a Table,
    engine: &'a dyn Engine,
    state: &'a Path,
}

impl Child<'_> {
    fn say(&self, message: &Message) -> std::io::Result<()> {
        say(&self.socket, message)
    }

    fn answer(&self, request: &Request) -> std::io::Result<Answer> {
        let id = request.id;
        let mut answer = Answer {
            id,
            ended: CameBack::Computed,
            seconds: None,
            first_seconds: None,
            relative_error: None,
            not_numbers: 0,
            detail: String::new(),
        };
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
        // What never comes back needs no numbers.
        let never =
            matches!(behaviour, Behaviour::HangCompile | Behaviour::HangFind | Behaviour::HangRun | Behaviour::Lost);
        let expected = match if never { Ok(Vec::new()) } else { compute(self.engine, &problem) } {
            Ok(expected) => expected,
            Err(error) => return Ok(Answer { ended: CameBack::Error, detail: error.to_string(), ..answer }),
        };
        let seconds = began.elapsed().as_secs_f64();
        self.say(&Message::Stage { id, stage: Stage::Compile })?;
        match behaviour {
            Behaviour::HangCompile => hang(),
            Behaviour::HangFind => {
                self.say(&Message::Stage { id, stage: Stage::Find })?;
                hang();
            }
            _ => self.say(&Message::Stage { id, stage: Stage::Run })?,
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
                let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
                socket.write_all(b"\x00\xff[2Jnot an answer\n")?;
                drop(socket);
                hang();
            }
            Behaviour::Flood => {
                let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
                while socket.write_all(&[b'{'; 4096]).is_ok() {}
                std::process::exit(0);
            }
            Behaviour::Error => {
                return Ok(Answer { ended: CameBack::Error, detail: "no suitable algorithm".to_owned(), ..answer });
            }
            _ => {}
        }
        self.say(&Message::Stage { id, stage: Stage::Check })?;
        // The numbers are those of the CPU engine, spoilt; that they are wrong is then measured.
        let mut found = expected.clone();
        match behaviour {
            Behaviour::Wrong => found.iter_mut().step_by(7).for_each(|number| *number = 1.0 - *number),
            Behaviour::NotNumbers => found.iter_mut().step_by(11).for_each(|number| *number = f32::NAN),
            _ => {}
        }
        (answer.relative_error, answer.not_numbers) = compare(&found, &expected);
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
        // The language's own handler of SIGSEGV takes the first for a stack overflow's and lets the next one through.
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The CPU engine's result on numbers that are the same each time.
fn compute(engine: &dyn Engine, problem: &Problem) -> Result<Vec<f32>, EngineError> {
    let [first, second, result] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    // Single precision plays every type: what is compared is a copy of these same numbers.
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

/// Numbers between -1 and 1 that are the same each time.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// The largest error of the finite numbers relative to the largest expected one, and how many are not finite.
fn compare(found: &[f32], expected: &[f32]) -> (Option<f64>, u64) {
    let scale = expected.iter().fold(f64::MIN_POSITIVE, |largest, number| largest.max(f64::from(number.abs())));
    let (mut worst, mut not_numbers) = (0.0f64, 0);
    for (found, expected) in found.iter().zip(expected) {
        match f64::from(found - expected).abs() / scale {
            error if error.is_finite() => worst = worst.max(error),
            _ => not_numbers += 1,
        }
    }
    (Some(worst), not_numbers)
}
