//! The emulated RDNA1 as a driver: what the compiler made for the card runs on the CPU, instruction by instruction.
//!
//! Device memory is the emulator's own, handed out by [`Driver::allocate`]; every access of a kernel is checked against
//! it. Kernels run to their end within `launch`, which returns what the hardware would have done wrong as an error. It is
//! a tool for tests and for looking at kernels: minutes here are milliseconds on a card.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use unhang_conv::Problem;
use unhang_emulator::{ArgumentMetadata, Counts, Dispatch, Machine, Mode, Object, Perturbation};
use unhang_engine::{Engine, EngineError, EngineName, Operands, Unsupported};
use unhang_isa::Chip;

use super::{Description, Driver, DriverError, Function, StreamEvent};
use crate::choice::Choice;
use crate::compiler::Compiler;
use crate::model::DeviceModel;
use crate::plan::Form;
use crate::{FromHost, GpuEngine, GpuSettings};

/// An emulated card. Clones are the same card.
#[derive(Clone)]
pub struct Emulated(Arc<Card>);

struct Card {
    state: Mutex<EmulatedCard>,
    compiler: Arc<dyn Compiler>,
    description: Description,
}

struct EmulatedCard {
    machine: Machine,
    functions: Vec<(Object, String)>,
    events: Vec<Option<Instant>>,
    counts: Counts,
}

impl Emulated {
    /// A card with `silicon` for a chip, under a runtime that reports `reported`, which loads what `compiler` makes.
    /// Kernels are compiled for `target`: the silicon, unless a test wants to see what other code does there.
    pub fn new(silicon: Chip, reported: Chip, target: Chip, compiler: Arc<dyn Compiler>) -> Emulated {
        let description = Description {
            name: format!("emulated {silicon}"),
            reported_architecture: reported.name().into(),
            true_architecture: target.name().into(),
            driver: "emulator".into(),
            model: DeviceModel::rx_5600_xt(),
        };
        let state = EmulatedCard {
            machine: Machine::new(Mode::Hazards(silicon)),
            functions: Vec::new(),
            events: Vec::new(),
            counts: Counts::default(),
        };
        Emulated(Arc::new(Card { state: Mutex::new(state), compiler, description }))
    }

    /// After a fault the machine is as on a card: stopped, with its memory intact.
    fn state(&self) -> MutexGuard<'_, EmulatedCard> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates device memory with these contents.
    pub fn allocate(&self, contents: &[u8]) -> u64 {
        self.state().machine.memory.allocate_bytes(contents)
    }

    /// Copies device memory out.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.state().machine.memory.read(address, bytes).map_err(|fault| failed("read", &fault))
    }

    /// The work executed since the card was made.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Runs workgroups on that many threads from now on; 0 for one on each core.
    pub fn use_threads(&self, threads: usize) {
        self.state().machine.threads = threads;
    }

    /// Whether instructions take the emulator's fast path from now on, or the plain one that it is compared with.
    pub fn use_fast_path(&self, fast: bool) {
        self.state().machine.fast = fast;
    }

    /// Whether kernels stop from now on where two waves of a workgroup race.
    pub fn mind_races(&self, races: bool) {
        self.state().machine.races = races;
    }

    /// Shifts the results of approximate instructions from now on.
    pub fn perturb(&self, perturbation: Perturbation) {
        self.state().machine.perturbation = perturbation;
    }
}

/// Whether the caller, not the runtime, gives an argument.
fn is_given(argument: &ArgumentMetadata) -> bool {
    !argument.kind.starts_with("hidden_")
}

fn miscounted(entry: &str, takes: usize, given: usize) -> DriverError {
    let meaning = format!("{entry} takes {takes} arguments and was given {given}");
    DriverError::Call { call: "launch", code: 1, meaning }
}

/// The arguments of a kernel in memory, each at its declared offset.
pub(crate) fn pack_arguments(
    machine: &Machine,
    object: Object,
    entry: &str,
    given: &[&[u8]],
) -> Result<Vec<u8>, DriverError> {
    let metadata = machine.metadata(object, entry);
    let declared = metadata.into_iter().flat_map(|metadata| &metadata.arguments);
    let declared: Vec<_> = declared.filter(|argument| is_given(argument)).collect();
    if declared.len() != given.len() {
        return Err(miscounted(entry, declared.len(), given.len()));
    }
    let mut bytes = Vec::new();
    for (argument, given) in declared.iter().zip(given) {
        bytes.resize(argument.offset as usize, 0);
        bytes.extend_from_slice(given);
    }
    Ok(bytes)
}

/// HIP's error codes where HIP has one.
pub(crate) fn failed(call: &'static str, fault: &impl std::fmt::Display) -> DriverError {
    DriverError::Call { call, code: 719, meaning: fault.to_string() }
}

impl Driver for Emulated {
    fn description(&self) -> &Description {
        &self.0.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        self.0.compiler.clone()
    }

    fn load(&self, object: &[u8], entry: &str) -> Result<Function, DriverError> {
        let mut state = self.state();
        let object = state.machine.add(object).map_err(|error| DriverError::Call {
            call: "load",
            code: 200,
            meaning: error.to_string(),
        })?;
        if state.machine.metadata(object, entry).is_none() {
            let meaning = format!("the object has no kernel {entry:?} with metadata");
            return Err(DriverError::Call { call: "load", code: 500, meaning });
        }
        state.functions.push((object, entry.to_owned()));
        Ok(Function(state.functions.len() as u64 - 1))
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        arguments: &mut [*mut c_void],
        _stream: u64,
    ) -> Result<(), DriverError> {
        let mut guard = self.state();
        let state = &mut *guard;
        let (object, entry) = state.functions.get(function.0 as usize).ok_or(DriverError::Call {
            call: "launch",
            code: 400,
            meaning: "no such function".into(),
        })?;
        let metadata = state.machine.metadata(*object, entry);
        let kinds = metadata.into_iter().flat_map(|metadata| &metadata.arguments);
        let sizes: Vec<usize> =
            kinds.filter(|argument| is_given(argument)).map(|argument| argument.size as usize).collect();
        // SAFETY: the caller vouches that each argument is what the kernel declares, so it has that many bytes.
        let given = arguments
            .iter()
            .zip(&sizes)
            .map(|(argument, &size)| unsafe { std::slice::from_raw_parts(argument.cast_const().cast::<u8>(), size) });
        let given: Vec<&[u8]> = given.collect();
        if given.len() != arguments.len() {
            return Err(miscounted(entry, sizes.len(), arguments.len()));
        }
        let bytes = pack_arguments(&state.machine, *object, entry, &given)?;
        let dispatch = Dispatch::new(entry, grid, [block, 1, 1], &bytes);
        let counts = state.machine.run_in(*object, &dispatch).map_err(|fault| failed("launch", &fault))?;
        state.counts += counts;
        Ok(())
    }

    fn is_capturing(&self, _stream: u64) -> Result<bool, DriverError> {
        Ok(false)
    }

    fn create_event(&self) -> Result<StreamEvent, DriverError> {
        let mut state = self.state();
        state.events.push(None);
        Ok(StreamEvent(state.events.len() as u64 - 1))
    }

    fn record(&self, event: StreamEvent, _stream: u64) -> Result<(), DriverError> {
        // Everything before it is done already.
        if let Some(slot) = self.state().events.get_mut(event.0 as usize) {
            *slot = Some(Instant::now());
        }
        Ok(())
    }

    /// The time that the emulator took.
    fn elapsed(&self, from: StreamEvent, to: StreamEvent) -> Result<Option<f32>, DriverError> {
        let state = self.state();
        let [from, to] = [from, to].map(|event| state.events.get(event.0 as usize).copied().flatten());
        Ok(from.zip(to).map(|(from, to)| to.duration_since(from).as_secs_f32() * 1e3))
    }

    fn destroy_event(&self, event: StreamEvent) -> Result<(), DriverError> {
        if let Some(slot) = self.state().events.get_mut(event.0 as usize) {
            *slot = None;
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<u64, DriverError> {
        // Small numbers in every type.
        Ok(self.state().machine.memory.allocate_filled(bytes, 0x3c))
    }

    unsafe fn free(&self, address: u64) -> Result<(), DriverError> {
        self.state().machine.memory.free(address).map_err(|fault| failed("free", &fault))
    }

    unsafe fn read(&self, to: &mut [u8], from: u64, _stream: u64) -> Result<(), DriverError> {
        Emulated::read(self, from, to)
    }

    unsafe fn write(&self, to: u64, from: &[u8], _stream: u64) -> Result<(), DriverError> {
        self.state().machine.memory.write(to, from).map_err(|fault| failed("write", &fault))
    }
}

/// The GPU engine on an emulated card, as an engine on host memory.
pub struct EmulatedEngine {
    /// The card.
    pub card: Emulated,
    /// The engine on it.
    pub gpu: GpuEngine,
    choice: Mutex<Option<(Choice, Form)>>,
}

impl EmulatedEngine {
    /// An engine that compiles anew or takes objects from `settings`' cache.
    pub fn new(card: Emulated, settings: GpuSettings) -> EmulatedEngine {
        EmulatedEngine { gpu: GpuEngine::new(Box::new(card.clone()), settings), card, choice: Mutex::default() }
    }

    /// Computes everything with this choice from now on; `None` for the engine's own.
    pub fn use_choice(&self, choice: Option<Choice>) {
        self.use_form(choice.map(|choice| (choice, Form::Specialised)));
    }

    /// Computes everything with this choice in the given form from now on.
    pub fn use_form(&self, choice: Option<(Choice, Form)>) {
        *self.choice.lock().unwrap_or_else(PoisonError::into_inner) = choice;
    }

    fn compute(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), String> {
        let choice = *self.choice.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = match choice {
            Some((choice, form)) => self.gpu.prepare_form(problem, choice, form),
            None => self.gpu.prepare(problem),
        };
        let prepared = prepared.map_err(|error| error.to_string())?;
        FromHost::new(&self.gpu).run_prepared(&prepared, operands).map_err(|error| error.to_string())
    }
}

impl Engine for EmulatedEngine {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.gpu.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        self.compute(problem, operands).map_err(|message| EngineError::Failed { engine: EngineName::Jit, message })
    }
}
