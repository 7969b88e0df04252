//! The probe's child: what a prober asks is computed by MIOpen and compared with an engine that is trusted.

use std::os::unix::net::UnixStream;

use half::{bf16, f16};
use unhang_conv::{DataType, Problem};
use unhang_engine::{Elements, ElementsMut, Engine, EngineName, Operands};
use unhang_probe::child::{self, Speaker};
use unhang_probe::protocol::{Answer, CameBack, Request, Stage};

use crate::library::{Miopen, MiopenError};

/// Serves requests until the socket is closed. `judge` computes what is right.
pub fn serve(socket: UnixStream, mut miopen: Miopen, judge: &dyn Engine) -> std::io::Result<()> {
    // The runtime is started before anything is asked, within the deadline of a start.
    let about = miopen.describe().map_or_else(|error| error.to_string(), |it| it.software());
    child::serve(socket, || about, |request, speaker| answer(&mut miopen, judge, request, speaker))
}

/// Answers one request.
pub fn answer(
    miopen: &mut Miopen,
    judge: &dyn Engine,
    request: &Request,
    speaker: &Speaker,
) -> std::io::Result<Answer> {
    let id = request.id;
    if request.canary {
        return Ok(match miopen.copies() {
            Ok(true) => Answer::new(id, CameBack::Computed, ""),
            Ok(false) => Answer::new(id, CameBack::Error, "the device gives back other data than it was given"),
            Err(error) => Answer::new(id, CameBack::Error, error.to_string()),
        });
    }
    let problem: Problem = match request.problem.parse() {
        Ok(problem) if request.engine == EngineName::Miopen.name() => problem,
        Ok(_) => return Ok(Answer::new(id, CameBack::Unsupported, "this child has MIOpen alone")),
        Err(error) => return Ok(Answer::new(id, CameBack::Error, format!("no convolution: {error}"))),
    };
    match problem.data_type() {
        DataType::F32 => attempt::<f32>(miopen, judge, &problem, id, speaker),
        DataType::F16 => attempt::<f16>(miopen, judge, &problem, id, speaker),
        DataType::Bf16 => attempt::<bf16>(miopen, judge, &problem, id, speaker),
        DataType::F64 => Ok(Answer::new(id, CameBack::Unsupported, "MIOpen has no convolutions in double precision")),
    }
}

/// A type of elements.
trait Element: Copy + Into<f64> {
    fn of(number: f32) -> Self;
    fn elements(data: &[Self]) -> Elements<'_>;
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
element!(f16, F16, f16::from_f32);
element!(bf16, Bf16, bf16::from_f32);

/// An attempt begins in the stage in which operands are made: only the later ones are said.
fn attempt<T: Element>(
    miopen: &mut Miopen,
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
        return Ok(Answer::new(id, CameBack::Error, format!("the right result cannot be had: {error}")));
    }
    let lowered = problem.lower();
    let operands = if lowered.operands_exchanged { [&second, &first] } else { [&first, &second] };
    let mut found = vec![nothing; length];
    speaker.stage(id, Stage::Find)?;
    let mut told = Ok(());
    let convolved = miopen.convolve(&lowered.problem, operands.map(Vec::as_slice), &mut found, || {
        told = speaker.stage(id, Stage::Run);
    });
    told?;
    let convolved = match convolved {
        Ok(convolved) => convolved,
        Err(error @ MiopenError::NoAlgorithm) => return Ok(Answer::new(id, CameBack::Unsupported, error.to_string())),
        Err(error) => return Ok(Answer::new(id, CameBack::Error, error.to_string())),
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
