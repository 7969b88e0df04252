//! What a plan would take on an RDNA1 card: its kernels are compiled for gfx1010, some of their workgroups run on the emulator, and
//! [`unhang_model`] plays what they did on a card. Predictions, not measurements: nobody here has the card.

use unhang_conv::Problem;
use unhang_emulator::{Dispatch, Machine, Mode};
use unhang_isa::Chip;
use unhang_model::{Card, Prediction, Sample};

use crate::GpuError;
use crate::cache::Cache;
use crate::compiler::Compiler;
use crate::driver::DriverError;
use crate::driver::emulated::{failed, pack_arguments};
use crate::objects::object_for;
use crate::plan::{LaunchPlan, Pointer, Stage};

/// One launch of a plan on each of the cards.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: String,
    /// What it would take, in the order of the cards.
    pub predictions: Vec<Prediction>,
}

/// Where the objects come from.
pub struct Objects<'a> {
    /// What compiles them.
    pub compiler: &'a dyn Compiler,
    /// Where they are kept, if anywhere.
    pub cache: Option<&'a Cache>,
}

/// Operands and workspace in the machine's memory.
struct Addresses {
    first: u64,
    second: u64,
    result: u64,
    workspace: u64,
}

/// Every launch of a plan, in order, on every card.
pub fn predict(
    problem: &Problem,
    plan: &LaunchPlan,
    objects: &Objects<'_>,
    cards: &[Card],
) -> Result<Vec<Launch>, GpuError> {
    // Hazards are looked for elsewhere; here it is the path that counts.
    let mut machine = Machine::new(Mode::Compute);
    let size = problem.data_type().size();
    let [first, second, result] =
        problem.operand_shapes().map(|shape| machine.memory.allocate(shape.iter().product::<usize>() * size));
    let workspace = machine.memory.allocate(plan.workspace_bytes as usize);
    let addresses = Addresses { first, second, result, workspace };
    plan.stages.iter().map(|stage| predict_stage(&mut machine, stage, &addresses, objects, cards)).collect()
}

fn predict_stage(
    machine: &mut Machine,
    stage: &Stage,
    addresses: &Addresses,
    objects: &Objects<'_>,
    cards: &[Card],
) -> Result<Launch, GpuError> {
    let chip = Chip::Gfx1010.name();
    let bytes = object_for(objects.compiler, objects.cache, &stage.kernel, chip, chip)?;
    let object = machine.add(&bytes).map_err(|error| DriverError::Call {
        call: "load",
        code: 200,
        meaning: error.to_string(),
    })?;
    let pointers: Vec<[u8; 8]> = stage
        .pointers
        .iter()
        .map(|pointer| match pointer {
            Pointer::First => addresses.first,
            Pointer::Second => addresses.second,
            Pointer::Result => addresses.result,
            Pointer::Workspace(offset) => addresses.workspace + offset,
            Pointer::Bias | Pointer::Null => 0,
        })
        .map(u64::to_le_bytes)
        .collect();
    let shape = stage.shape.bytes();
    let given: Vec<&[u8]> = pointers.iter().map(|pointer| &pointer[..]).chain([shape]).collect();
    let arguments = pack_arguments(machine, object, stage.kernel.entry, &given)?;
    let dispatch = Dispatch::new(stage.kernel.entry, stage.grid, [stage.block, 1, 1], &arguments);
    let sample = Sample::take(machine, object, &dispatch).map_err(|fault| failed("launch", &fault))?;
    let predictions = cards.iter().map(|card| sample.predict(card)).collect();
    Ok(Launch { kernel: stage.kernel.to_string(), predictions })
}

/// Seconds of all launches on the card in this place, one after the other.
pub fn seconds(launches: &[Launch], card: usize) -> f64 {
    launches.iter().map(|launch| launch.predictions[card].seconds).sum()
}
