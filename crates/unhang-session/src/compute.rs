//! Computing a planned convolution: by our kernels in the caller's stream, or on the CPU through copies.

use std::sync::{Mutex, PoisonError};

use unhang_conv::Problem;
use unhang_cpu::CpuEngine;
use unhang_engine::{Engine, EngineError, EngineName, Operands, Tiled, Unsupported, Verdict};
use unhang_gpu::choice::Choice;
use unhang_gpu::strided::Move;
use unhang_gpu::{DevicePointers, FromHost, Prepared, Request};

use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::host::Numbers;
use crate::process::{Face, Process};
use crate::proof;
use crate::route::{Route, Settled};
use crate::session::{Session, locked};
use crate::talk::say_once as say;
use crate::view::View;

/// A call to compute: the caller's memory on the device, and the stream.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The operands in the problem's order: first, second, result.
    pub operands: [u64; 3],
    /// A workspace; 0 for none.
    pub workspace: u64,
    /// How large that is.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
}

/// Why nothing was computed in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotComputed {
    /// No engine takes the call.
    Declined,
    /// There is no memory.
    NoMemory,
    /// An engine or the device failed.
    Failed,
}

/// Computes a convolution with the first engine that succeeds. `vendors_own` runs the vendor's library in its plainest
/// way, which needs neither a search nor a workspace.
///
/// # Safety
/// The memory must be what the route's convolution says.
pub(crate) unsafe fn execute<F: Face>(
    process: &Process<F>,
    route: &Route,
    call: Call,
    vendors_own: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), NotComputed> {
    // SAFETY: the caller's promise.
    route.count(unsafe { compute(process, route, call, vendors_own) }?);
    Ok(())
}

/// Computes it without counting it, and returns the engine that did.
///
/// # Safety
/// As [`execute`].
pub(crate) unsafe fn compute<F: Face>(
    process: &Process<F>,
    route: &Route,
    call: Call,
    vendors_own: &dyn Fn() -> Result<(), Failure>,
) -> Result<EngineName, NotComputed> {
    let problem = &route.convolution.problem;
    let mut ended = NotComputed::Failed;
    for engine in &route.engines {
        // SAFETY: the caller's promise.
        let run = || unsafe {
            match engine {
                EngineName::Jit => jit(process.session(), route, call),
                EngineName::Cpu => on_host(route, call, &CpuEngine::new()),
                EngineName::Tiled => tiled(process.session(), route, call),
                EngineName::Miopen => vendors_own(),
                EngineName::Aten => Err(Failure::Declined("aten needs torch".to_owned())),
            }
        };
        let computed = process.watched(|| Some(call.stream), || Some(route.subject(*engine)), run);
        let computed = computed.and_then(|()| {
            // SAFETY: as above.
            if is_wrong_on_purpose() { unsafe { spoil(route, call) } } else { Ok(()) }
        });
        ended = match computed {
            Ok(()) => return Ok(*engine),
            Err(Failure::Declined(reason) | Failure::Misaligned(reason)) => {
                say(&format!("{engine} does not compute {problem}: {reason}"));
                NotComputed::Declined
            }
            Err(Failure::NoMemory(reason)) => {
                say(&format!("{engine} has no memory for {problem}: {reason}"));
                NotComputed::NoMemory
            }
            Err(Failure::Device(reason)) => {
                say(&format!("the device cannot compute {problem} now: {reason}"));
                return Err(NotComputed::Failed);
            }
            // Only its plainest way was tried: the outcome says nothing about the others.
            Err(Failure::Failed(_, detail)) if *engine == EngineName::Miopen => {
                say(&format!("MIOpen's naive solver failed on {problem}: {detail}"));
                NotComputed::Failed
            }
            Err(Failure::Failed(verdict, detail)) => {
                process.note_failure(route, *engine, verdict, &detail);
                NotComputed::Failed
            }
        };
    }
    Err(ended)
}

/// The workspace from the first address that kernels accept.
fn aligned(call: Call) -> (u64, u64) {
    let (at, bytes) = (call.workspace, call.bytes);
    let begin = at.next_multiple_of(256);
    if at == 0 { (0, 0) } else { (begin, (at + bytes).saturating_sub(begin)) }
}

/// Computes it with our kernels, in the caller's stream.
///
/// # Safety
/// As [`execute`].
unsafe fn jit(session: &Session, route: &Route, call: Call) -> Result<(), Failure> {
    let ((at, bytes), stream) = (aligned(call), call.stream);
    if let Some(settled) = route.settled().filter(|settled| settled.bytes <= bytes) {
        // SAFETY: the caller's promise; the workspace is large enough.
        match unsafe { launch(route, &settled.prepared, call.operands, at, stream) } {
            Err(Failure::Misaligned(_)) => {}
            ended => return ended,
        }
    }
    let engine = &route.device.engine;
    let is_recording = engine.driver().is_capturing(stream)?;
    // The caller gave less than was asked for.
    let is_too_little = bytes < route.packing.bytes;
    if is_too_little && is_recording {
        let reason = "a graph is being recorded, and no workspace was given for tensors that have to be rearranged";
        return Err(Failure::Declined(reason.to_owned()));
    }
    let bytes = if is_too_little { route.workspace_bytes().max(route.packing.bytes) } else { bytes };
    let limit = bytes - route.packing.bytes;
    let request = Request { stream, workspace_limit: Some(limit), wait: false };
    let prepared = engine.prepare_on(&route.convolution.problem, request)?;
    let is_proven = prove(session, &route.device, &prepared, is_recording)?;
    let scratch = is_too_little.then(|| route.device.scratch(stream));
    let mut held = scratch.as_ref().map(|scratch| scratch.lock().unwrap_or_else(PoisonError::into_inner));
    let at = match &mut held {
        Some(scratch) => scratch.at_least(engine.driver(), bytes)?,
        None => at,
    };
    // SAFETY: the caller's promise; kernels were prepared within the workspace, which nobody else puts launches for into this stream.
    let launched = unsafe { launch(route, &prepared, call.operands, at, stream) };
    match launched {
        Ok(()) => {
            if is_proven && !prepared.is_provisional() {
                let bytes = route.packing.bytes + prepared.workspace_bytes();
                route.settle(Settled { prepared, bytes });
            }
            Ok(())
        }
        // An unaligned address: plain kernels accept any.
        Err(Failure::Misaligned(reason)) => {
            if !route.device.may_run("plain") {
                return Err(Failure::Declined(format!("{reason}; the canary of the plain kernels did not pass")));
            }
            let plain = engine.prepare_as(&route.convolution.problem, Some(Choice::Plain))?;
            prove(session, &route.device, &plain, is_recording)?;
            // SAFETY: as above; plain kernels need no workspace.
            unsafe { launch(route, &plain, call.operands, at, stream) }
        }
        Err(failure) => Err(failure),
    }
}

/// Whether kernels are known to be right on this machine; unknown ones are tried once.
pub(crate) fn prove(
    session: &Session,
    device: &Device,
    prepared: &Prepared,
    is_recording: bool,
) -> Result<bool, Failure> {
    match session.first_result(&device.card, prepared) {
        Some((Verdict::Works, _)) => return Ok(true),
        Some((_, detail)) => return Err(Failure::Failed(Verdict::Wrong, detail)),
        None => {}
    }
    if is_recording || device.engine.driver().is_capturing(0)? {
        let reason = "a graph is being recorded, and the first result of these kernels was not compared yet";
        return Err(Failure::Declined(reason.to_owned()));
    }
    let Some((is_right, detail)) = proof::try_kernels(&device.engine, prepared)? else { return Ok(false) };
    let detail = session.keep_first_result(&device.card, prepared, is_right, &detail);
    if is_right { Ok(true) } else { Err(Failure::Failed(Verdict::Wrong, detail)) }
}

/// Packs the operands, runs the kernels and unpacks the result.
///
/// # Safety
/// Addresses of memory as the descriptors say, and a workspace of what packing and kernels need.
unsafe fn launch(
    route: &Route,
    prepared: &Prepared,
    operands: [u64; 3],
    workspace: u64,
    stream: u64,
) -> Result<(), Failure> {
    let engine = &route.device.engine;
    let packing = &route.packing;
    let behind = workspace + packing.bytes;
    if packing.bytes == 0 {
        let [first, second, result] = operands;
        let pointers = DevicePointers { first, second, bias: 0, result, workspace: behind };
        // SAFETY: the caller's promise.
        return unsafe { engine.launch(prepared, pointers, stream) }.map_err(Failure::from);
    }
    let moves = &route.moves(stream)?.0;
    let at = |index: usize| packing.places[index].map_or(operands[index], |place| workspace + place);
    for index in 0..2 {
        if let Some(copy) = &moves[index] {
            // SAFETY: the caller's promise; the copy has its place in the workspace.
            unsafe { engine.launch_move(copy, operands[index], at(index), stream)? };
        }
    }
    let pointers = DevicePointers { first: at(0), second: at(1), bias: 0, result: at(2), workspace: behind };
    // SAFETY: as above.
    unsafe {
        engine.launch(prepared, pointers, stream)?;
        if let Some(copy) = &moves[2] {
            engine.launch_move(copy, at(2), operands[2], stream)?;
        }
    }
    Ok(())
}

/// Computes it on the host: copies the operands there, runs an engine that works in this process's memory, and copies
/// the result back.
///
/// # Safety
/// As [`execute`].
unsafe fn on_host(route: &Route, call: Call, engine: &dyn Engine) -> Result<(), Failure> {
    let stream = call.stream;
    let (problem, driver) = (&route.convolution.problem, route.device.engine.driver());
    engine.supports(problem).map_err(EngineError::from)?;
    if driver.is_capturing(stream)? {
        let reason = "a graph is being recorded, and copies to the host cannot be part of one: run it once before";
        return Err(Failure::Declined(reason.to_owned()));
    }
    let (places, views, data_type) = (call.operands, &route.convolution.views, problem.data_type());
    let dense = views.map(|view| View::dense_strides(view.shape, problem.layout()));
    let bring = |index: usize| {
        // SAFETY: the caller's promise.
        unsafe { Numbers::read(driver, data_type, views[index].span(), places[index], stream) }
    };
    let first = bring(0)?.gathered(&views[0], dense[0]);
    let second = bring(1)?.gathered(&views[1], dense[1]);
    let mut result = Numbers::zeros(data_type, views[2].elements());
    let operands =
        Operands { first: first.elements(), second: second.elements(), bias: None, result: result.elements_mut() };
    engine.run(problem, operands)?;
    // The gaps of a tensor are not ours to change.
    let has_gaps = views[2].span() != views[2].elements();
    let mut whole = if has_gaps { bring(2)? } else { Numbers::zeros(data_type, views[2].span()) };
    whole.scatter(&views[2], &result, dense[2]);
    // SAFETY: the caller's promise.
    unsafe { whole.write(driver, places[2], stream) }.map_err(Failure::from)
}

/// Computes it in tiles, each with the engine that the plan names for them.
///
/// # Safety
/// As [`execute`].
unsafe fn tiled(session: &Session, route: &Route, call: Call) -> Result<(), Failure> {
    let Some(tile) = route.tile else { return Err(Failure::Declined("no tile was planned".to_owned())) };
    let failure = Mutex::new(None);
    let inner: Box<dyn Engine> = match tile.inner {
        EngineName::Cpu => Box::new(CpuEngine::new()),
        EngineName::Jit => Box::new(Tiles { session, device: &route.device, failure: &failure }),
        other => return Err(Failure::Declined(format!("tiles by {other} need torch"))),
    };
    // SAFETY: the caller's promise.
    let ended = unsafe { on_host(route, call, &Tiled::new(Inner(inner), tile.output_limit)) };
    // What our kernels said tells a lack of memory, a refusal and a dead device from a failure of theirs.
    ended.map_err(|error| locked(&failure).take().unwrap_or(error))
}

/// An engine behind a pointer.
struct Inner<'a>(Box<dyn Engine + 'a>);

impl Engine for Inner<'_> {
    fn name(&self) -> EngineName {
        self.0.name()
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.0.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        self.0.run(problem, operands)
    }
}

/// Our kernels on tiles cut in the host's memory, each tried before it is used.
struct Tiles<'a> {
    session: &'a Session,
    device: &'a Device,
    /// Why a tile was not computed.
    failure: &'a Mutex<Option<Failure>>,
}

impl Engine for Tiles<'_> {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.device.engine.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        let engine = &self.device.engine;
        let computed = || {
            let prepared = engine.prepare(problem)?;
            prove(self.session, self.device, &prepared, false)?;
            FromHost::new(engine).run_prepared(&prepared, operands).map_err(Failure::from)
        };
        computed().map_err(|failure| {
            let message = failure.reason().to_owned();
            *locked(self.failure) = Some(failure);
            EngineError::Failed { engine: EngineName::Jit, message }
        })
    }
}

/// Doubles a result, for tests that must fail.
///
/// # Safety
/// As [`execute`].
unsafe fn spoil(route: &Route, call: Call) -> Result<(), Failure> {
    let stream = call.stream;
    let (view, driver) = (&route.convolution.views[2], route.device.engine.driver());
    let (at, data_type) = (call.operands[2], route.convolution.problem.data_type());
    if let Some(add) = Move::add(data_type, view.shape, view.strides, view.strides)
        && route.engines.first() == Some(&EngineName::Jit)
    {
        let add = route.device.engine.load_move(add, stream)?;
        // SAFETY: the caller's promise; every thread reads and writes its own element.
        return unsafe { route.device.engine.launch_move(&add, at, at, stream) }.map_err(Failure::from);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut numbers = Numbers::read(driver, data_type, view.span(), at, stream)?;
        for index in 0..numbers.len() {
            numbers.set(index, numbers.get(index) * 2.0 + 1.0);
        }
        numbers.write(driver, at, stream).map_err(Failure::from)
    }
}

#[cfg(test)]
mod tests {
    use unhang_engine::{Elements, ElementsMut};

    use super::*;
    use crate::played;

    /// A tile without memory is as little an engine's failure as a whole convolution without it.
    #[test]
    fn a_tile_says_why_it_was_not_computed() {
        let problem: Problem = "forward:f32:nchw:1x2x5x5:3x2x3:s1x1:p0x0:d1x1:g1".parse().unwrap();
        let (x, w, mut y) = (vec![1.0f32; 50], vec![1.0f32; 36], vec![0.0f32; 36]);
        let (device, _, session) = played::device_with(Some(|_| {}), 0);
        let failure = Mutex::new(None);
        let tiles = Tiles { session: &session, device: &device, failure: &failure };
        let (first, second) = (Elements::F32(&x), Elements::F32(&w));
        let operands = Operands { first, second, bias: None, result: ElementsMut::F32(&mut y) };
        assert!(tiles.run(&problem, operands).is_err());
        assert!(matches!(locked(&failure).take(), Some(Failure::NoMemory(_))));
    }
}
