//! What a child written in Rust does with an attempt: it makes operands, has the device compute, and compares the
//! result with a trusted engine. The prober judges the error.

use std::os::unix::net::UnixStream;

use unhang_conv::{DataType, Problem};
use unhang_engine::{Elements, ElementsMut, Engine, EngineName, Operands, bf16, f16};

use crate::child::{self, Speaker};
use crate::protocol::{Answer, CameBack, Request, Stage};

/// What is known about a convolution, apart from its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Convolved {
    /// Seconds of preparation (search, compilation) and the first run together.
    pub first_seconds: f64,
    /// Seconds when warm.
    pub seconds: f64,
    /// What was chosen, in words.
    pub detail: String,
}

/// Why nothing was computed.
#[derive(Debug, Clone, PartialEq)]
pub enum NotComputed {
    /// It has nothing for this convolution.
    Unsupported(String),
    /// It failed.
    Failed(String),
}

/// Computes convolutions with a device, on operands in this process's memory.
pub trait Convolves {
    /// The engine.
    fn engine(&self) -> EngineName;

    /// A description for the prober.
    fn about(&mut self) -> String;

    /// Whether the device accepts data and returns it.
    fn copies(&mut self) -> Result<bool, String>;

    /// Computes a problem. Calls `ready` when search and compilation are done and the convolution itself begins.
    fn convolve<T: Element>(
        &mut self,
        problem: &Problem,
        operands: [&[T]; 2],
        result: &mut [T],
        ready: impl FnOnce(),
    ) -> Result<Convolved, NotComputed>;
}

/// An element type.
pub trait Element: Copy + Into<f64> {
    /// The nearest value to a number.
    fn of(number: f32) -> Self;
    /// Elements to read.
    fn elements(data: &[Self]) -> Elements<'_>;
    /// Elements to write.
    fn elements_mut(data: &mut [Self]) -> ElementsMut<'_>;
}

macro_rules! element {
    ($type:ty, $variant:ident, $of:expr) => {
        impl Element for $type {
            fn of(number: f32) -> Self {
                $of(number)
            }
            fn elements(data: &[Self]) -> Elements<'_> {
                Elements::$variant(data)
            }
            fn elements_mut(data: &mut [Self]) -> ElementsMut<'_> {
                ElementsMut::$variant(data)
            }
        }
    };
}
element!(f32, F32, std::convert::identity);
element!(f64, F64, f64::from);
element!(f16, F16, f16::from_f32);
element!(bf16, Bf16, bf16::from_f32);

/// Serves requests until the socket is closed. `judge` computes the correct result.
pub fn serve(socket: UnixStream, mut device: impl Convolves, judge: &dyn Engine) -> std::io::Result<()> {
    // The runtime starts before any request, within the deadline of a start.
    let about = device.about();
    child::serve(socket, || about, |request, speaker| answer(&mut device, judge, request, speaker))
}

/// Answers one request.
pub fn answer(
    device: &mut impl Convolves,
    judge: &dyn Engine,
    request: &Request,
    speaker: &Speaker,
) -> std::io::Result<Answer> {
    let id = request.id;
    if request.canary {
        return Ok(match device.copies() {
            Ok(true) => Answer::new(id, CameBack::Computed, ""),
            Ok(false) => Answer::new(id, CameBack::Error, "data copied to the device and back are not the same"),
            Err(error) => Answer::new(id, CameBack::Error, error),
        });
    }
    let problem: Problem = match request.problem.parse() {
        Ok(problem) if request.engine == device.engine().name() => problem,
        Ok(_) => {
            return Ok(Answer::new(id, CameBack::Unsupported, format!("this child has only {}", device.engine())));
        }
        Err(error) => return Ok(Answer::new(id, CameBack::Error, format!("no convolution: {error}"))),
    };
    match problem.data_type() {
        DataType::F32 => attempt::<f32>(device, judge, &problem, id, speaker),
        DataType::F16 => attempt::<f16>(device, judge, &problem, id, speaker),
        DataType::Bf16 => attempt::<bf16>(device, judge, &problem, id, speaker),
        DataType::F64 => attempt::<f64>(device, judge, &problem, id, speaker),
    }
}

/// An attempt begins in the stage that makes operands, so only later stages are reported.
fn attempt<T: Element>(
    device: &mut impl Convolves,
    judge: &dyn Engine,
    problem: &Problem,
    id: u64,
    speaker: &Speaker,
) -> std::io::Result<Answer> {
    let [first, second, length] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let make = |count, seed| child::numbers(count, seed).into_iter().map(T::of).collect::<Vec<T>>();
    let (first, second) = (make(first, 1), make(second, 2));
    let nothing = T::of(f32::NAN);
    let mut expected = vec![nothing; length];
    let operands = Operands {
        first: T::elements(&first),
        second: T::elements(&second),
        bias: None,
        result: T::elements_mut(&mut expected),
    };
    if let Err(error) = judge.run(problem, operands) {
        return Ok(Answer::new(id, CameBack::Error, format!("the right result could not be computed: {error}")));
    }
    let mut found = vec![nothing; length];
    speaker.stage(id, Stage::Find)?;
    let mut told = Ok(());
    let convolved = device.convolve(problem, [&first, &second], &mut found, || told = speaker.stage(id, Stage::Run));
    told?;
    let convolved = match convolved {
        Ok(convolved) => convolved,
        Err(NotComputed::Unsupported(reason)) => return Ok(Answer::new(id, CameBack::Unsupported, reason)),
        Err(NotComputed::Failed(reason)) => return Ok(Answer::new(id, CameBack::Error, reason)),
    };
    speaker.stage(id, Stage::Check)?;
    let (relative_error, not_numbers) =
        child::compare(found.iter().zip(&expected).map(|(&found, &expected)| (found.into(), expected.into())));
    Ok(Answer {
        seconds: Some(convolved.seconds),
        first_seconds: Some(convolved.first_seconds),
        relative_error,
        not_numbers,
        ..Answer::new(id, CameBack::Computed, convolved.detail)
    })
}
