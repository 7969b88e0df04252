//! Machine code made safe for a chip that it was not compiled for.
//!
//! Code that was compiled for RDNA1 is left alone but for descriptors of buffers that put every access out of range
//! (`buffer_descriptors.rs`): their constant is changed where it stands.
//!
//! [`repair_object`] repairs a whole code object. What can be repaired by changing a word is changed where it stands
//! (`s_inst_prefetch` becomes `s_nop`, workgroup-processor mode is turned off). A function that needs more is laid out
//! anew behind everything else, in a new executable segment, with the work-around instructions that LLVM
//! inserts when it compiles for the chip; its descriptor, its symbols and whoever calls it by a known address are aimed
//! at the new place. Data stays where it is, and so does the old code.
//!
//! A function is moved only if all that depends on its place is understood and if the audit of the result finds nothing
//! that could have been repaired; otherwise it is left as it is and the reason is reported. An instruction that cannot be
//! repaired does not keep others from it: the function is laid out with that one as it was, and the reason is reported too.
//!
//! [`repair_in_place`] is the second best: it never changes the size of anything, and repairs what it can.

mod dead;
mod encode;
mod in_place;
mod object;
mod relayout;
mod spare;
mod substitute;

use thiserror::Error;

pub use in_place::{Patch, Repaired, repair_in_place};
pub use object::assemble;

use crate::audit::{Context, Hazards, Rule, audit, has_wide_local_accesses};
use crate::buffer_descriptors::with_checked_offsets;
use crate::elf::{CodeObject, ElfError, Function, KernelDescriptor, Mode};
use crate::opcode::S_NOP;
use crate::{Chip, Program, ProgramError};

/// `s_nop 0`
const NOP: u32 = S_NOP.with_immediate(0);
/// How a code object is to be repaired.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The chip on which the code will run.
    pub chip: Chip,
    /// Whether nothing may change its size: then nothing is laid out anew, and some findings stay.
    pub keep_size: bool,
}

/// What was done with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Nothing: there was nothing to repair, or it could not be.
    Untouched,
    /// Words were changed where they stand.
    InPlace,
    /// It was laid out anew.
    Moved,
}

impl Treatment {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Treatment::Untouched => "untouched",
            Treatment::InPlace => "repaired in place",
            Treatment::Moved => "laid out anew",
        }
    }
}

/// Why findings are left in a function.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// It cannot be decoded.
    #[error("it cannot be decoded: {0}")]
    Undecodable(#[from] ProgramError),
    /// The chip does not have one of its instructions.
    #[error("it has {0} instructions that the chip does not have, or has with another meaning; it must be recompiled")]
    IllegalInstructions(u64),
    /// A branch leaves the function, or lands inside an instruction.
    #[error("a branch leaves the function or lands inside an instruction")]
    StrayBranch,
    /// Its last instruction goes on into whatever stands behind it.
    #[error("it runs on into what stands behind it, which would stand elsewhere")]
    RunsOn,
    /// A jump goes to where is not known.
    #[error("the jump at {offset:#x} goes to an address that the code does not show")]
    UnresolvedJump {
        /// Bytes from the start of the function.
        offset: u32,
    },
    /// The code uses its own address in a way that is not understood.
    #[error("the code uses its own address at {offset:#x} in a way that is not understood")]
    UnknownAddress {
        /// Bytes from the start of the function.
        offset: u32,
    },
    /// With the insertions, a branch does not reach its target.
    #[error("with the insertions, the branch at {offset:#x} would not reach its target")]
    BranchOutOfReach {
        /// Bytes from the start of the function.
        offset: u32,
    },
    /// The descriptor does not start the kernel where its symbol says.
    #[error("its descriptor starts it elsewhere than its symbol says")]
    OtherEntry,
    /// Flat accesses store or partly overwrite their own address, so an offset cannot be added to it beforehand, and
    /// there are no registers to add it in.
    #[error("{0} flat accesses with an offset store or partly overwrite their own address, and no registers are free")]
    FlatAccess(u64),
    /// Misaligned local accesses in a kernel whose workgroups might not fit one compute unit.
    #[error("its workgroups might not fit one compute unit, so workgroup-processor mode cannot be turned off")]
    WorkgroupProcessorMode,
    /// Buffers whose descriptors put every access out of range are not made of a constant that is theirs alone.
    #[error(
        "{0} buffer accesses are out of range on this chip, and their descriptor is no constant of the code, or one with other uses; \
         compile it again (Triton: AMDGCN_USE_BUFFER_OPS=0)"
    )]
    BufferDescriptor(u64),
    /// It was compiled for this family of chips.
    #[error("it was compiled for RDNA1: of such code only buffer descriptors are repaired")]
    NativeCode,
    /// There is no room, and nothing may change its size.
    #[error("there is no room for the work-arounds, and the size had to be kept")]
    NoRoom,
    /// The object has no place for another segment.
    #[error("the code object cannot take another segment: {0}")]
    NoSegment(&'static str),
    /// The result of the layout was not safe; it was thrown away.
    #[error("laid out anew it would still not be safe")]
    NotRepaired,
}

/// What was found and done in one function.
#[derive(Clone, Debug)]
pub struct FunctionRepair {
    /// Its name.
    pub name: String,
    /// Whether it is a kernel, and not something that kernels call.
    pub is_kernel: bool,
    /// What was done.
    pub treatment: Treatment,
    /// Whether workgroup-processor mode was turned off.
    pub mode_changed: bool,
    /// How many instructions were inserted.
    pub inserted: u32,
    /// The findings before.
    pub before: Hazards,
    /// The findings that are left.
    pub after: Hazards,
    /// Why findings are left, if some are, or why it was not looked at.
    pub reason: Option<Reason>,
}

/// A function's repair, ready to be put into a copy of the object by [`assemble`].
#[derive(Clone, Debug)]
pub struct FunctionPlan {
    /// What the report says about it.
    pub report: FunctionRepair,
    change: Change,
    /// The new `COMPUTE_PGM_RSRC1` of the descriptor.
    resource1: Option<u32>,
    /// Addresses that code which stays computes from its own.
    references: Vec<relayout::PlacedReference>,
}

#[derive(Clone, Debug)]
enum Change {
    None,
    /// The code, as long as it was.
    Code(Vec<u8>),
    Layout(relayout::Layout),
}

/// A code object after its repair.
#[derive(Clone, Debug)]
pub struct ObjectRepair {
    /// The chip for which it was compiled; `None` if it is outside the gfx10 family, and then nothing was looked at.
    pub target: Option<Chip>,
    /// The repaired object; `None` if nothing was changed.
    pub bytes: Option<Vec<u8>>,
    /// Its functions in the order of their addresses.
    pub functions: Vec<FunctionRepair>,
}

/// Repairs a code object for a chip, function by function.
///
/// The result depends on the input alone, and repairing it again changes nothing.
pub fn repair_object(bytes: &[u8], options: Options) -> Result<ObjectRepair, ElfError> {
    let object = CodeObject::parse(bytes)?;
    let plans = match object.chip() {
        Some(_) => object.functions.iter().map(|function| plan_function(&object, function, options)).collect(),
        None => Vec::new(),
    };
    Ok(assemble(&object, plans))
}

/// Decides how one function of an object is repaired. The functions are independent of each other.
pub fn plan_function(object: &CodeObject<'_>, function: &Function<'_>, options: Options) -> FunctionPlan {
    let mut plan = FunctionPlan {
        report: FunctionRepair {
            name: function.name.to_owned(),
            is_kernel: function.descriptor.is_some(),
            treatment: Treatment::Untouched,
            mode_changed: false,
            inserted: 0,
            before: Hazards::default(),
            after: Hazards::default(),
            reason: None,
        },
        change: Change::None,
        resource1: None,
        references: Vec::new(),
    };
    let target = object.chip().unwrap_or(options.chip);
    let mode = object.mode_of(function);
    let program = match Program::decode(function.code, target, mode.wave64) {
        Ok(program) => program,
        Err(error) => {
            plan.report.reason = Some(Reason::Undecodable(error));
            return plan;
        }
    };
    let limit = object.workgroup_limit(function.name);
    let entered_by = object.descriptors.iter().filter(|it| it.entry_address() == function.address).count();
    let subject = Subject { function, code: function.code, mode, limit, is_shared: entered_by > 1 };
    let program = match repair_descriptors(&program, function.code, options.chip) {
        Some((code, repaired)) => {
            repair(&mut plan, &repaired, Subject { code: &code, ..subject }, options);
            let context = Context { workgroup_processor_mode: mode.workgroup_processor };
            plan.report.before = Hazards::count(&audit(&program, options.chip, context));
            if matches!(plan.change, Change::None) {
                plan.report.treatment = Treatment::InPlace;
                plan.change = Change::Code(code);
            }
            repaired
        }
        None => {
            repair(&mut plan, &program, subject, options);
            program
        }
    };
    let report = &mut plan.report;
    if report.after.total() > 0 && report.reason.is_none() {
        report.reason = Some(if report.after.get(Rule::BufferRange) > 0 {
            Reason::BufferDescriptor(report.after.get(Rule::BufferRange))
        } else if report.after.get(Rule::Illegal) > 0 {
            Reason::IllegalInstructions(report.after.get(Rule::Illegal))
        } else if target.is_rdna1() {
            Reason::NativeCode
        } else if report.after.get(Rule::FlatOffset) > 0 {
            Reason::FlatAccess(report.after.get(Rule::FlatOffset))
        } else if report.after.get(Rule::LocalMisaligned) > 0 {
            Reason::WorkgroupProcessorMode
        } else if options.keep_size {
            Reason::NoRoom
        } else {
            Reason::NotRepaired
        });
    }
    if !matches!(plan.change, Change::Layout(_)) {
        plan.references = relayout::references_in_place(&program);
    }
    plan
}

/// What is repaired: a function, how it runs, and the most lanes of its workgroups.
#[derive(Clone, Copy)]
struct Subject<'a> {
    function: &'a Function<'a>,
    /// Its code, with the constants of descriptors already repaired.
    code: &'a [u8],
    mode: Mode,
    limit: u32,
    /// Whether several kernels start with it. Then no descriptor is changed: what suits one need not suit the others.
    is_shared: bool,
}

impl Subject<'_> {
    /// The vector registers that a layout needs beside those in use, if it needs any and they are available. Where there are
    /// too few for every instruction, there may be enough for some.
    fn spare(&self, program: &Program, chip: Chip) -> Option<spare::Spare> {
        let descriptor = self.function.descriptor.filter(|_| !self.is_shared)?;
        let numbers = relayout::spare_registers(program, chip);
        numbers.into_iter().find_map(|count| spare::find(program, &descriptor, count, self.limit))
    }
}

/// The code with descriptors whose constants put every access out of range repaired, and its program; `None` if there are none.
fn repair_descriptors(program: &Program, code: &[u8], chip: Chip) -> Option<(Vec<u8>, Program)> {
    let code = chip.is_rdna1().then(|| with_checked_offsets(program, code)).flatten()?;
    let repaired = Program::decode(&code, program.chip, program.wave64).ok()?;
    Some((code, repaired))
}

fn repair(plan: &mut FunctionPlan, program: &Program, subject: Subject<'_>, options: Options) {
    let Subject { function, code, mode, limit, is_shared } = subject;
    let chip = options.chip;
    let mut context = Context { workgroup_processor_mode: mode.workgroup_processor };
    let findings = audit(program, chip, context);
    let before = Hazards::count(&findings);
    (plan.report.before, plan.report.after) = (before, before);
    // Of code that was compiled for the family only descriptors are repaired: nothing in it is moved.
    if program.chip.is_rdna1() {
        return;
    }
    let spare = if options.keep_size { None } else { subject.spare(program, chip) };
    // The alignment of most local accesses cannot be known beforehand; on one compute unit it does not matter.
    if chip.is_rdna1()
        && !program.chip.is_rdna1()
        && !is_shared
        && let Some(descriptor) = function.descriptor.filter(|_| has_wide_local_accesses(program))
        && descriptor.workgroup_processor_mode()
        && spare::fits(spare.map_or(descriptor.resource1, |it| it.resource1), descriptor.wave64(), 1, limit)
    {
        plan.resource1 = Some(descriptor.resource1 & !KernelDescriptor::WORKGROUP_PROCESSOR_MODE);
        plan.report.mode_changed = true;
        context.workgroup_processor_mode = false;
        plan.report.after = Hazards::count(&audit(program, chip, context));
    }
    let open =
        |hazards: &Hazards| hazards.total() - hazards.get(Rule::LocalMisaligned) - hazards.get(Rule::BufferRange);
    if open(&plan.report.after) == 0 {
        return;
    }
    if options.keep_size {
        let Ok(repaired) = repair_in_place(code, program.chip, program.wave64, chip, context) else { return };
        if !repaired.patches.is_empty() {
            plan.report.treatment = Treatment::InPlace;
            plan.report.after = repaired.after;
            plan.change = Change::Code(repaired.code);
        }
        return;
    }
    if open(&plan.report.after) == plan.report.after.get(Rule::InstructionPrefetch) {
        let mut code = code.to_vec();
        for finding in findings.iter().filter(|finding| finding.rule == Rule::InstructionPrefetch) {
            code[finding.offset as usize..][..4].copy_from_slice(&NOP.to_le_bytes());
        }
        settle(plan, program, Change::Code(code), chip, context);
        return;
    }
    if function.descriptor.is_some_and(|descriptor| descriptor.entry_address() != function.address) {
        plan.report.reason = Some(Reason::OtherEntry);
        return;
    }
    let registers = spare.map(|it| it.registers);
    let setting = relayout::Setting { is_kernel: function.descriptor.is_some(), chip, spare: registers };
    match relayout::relayout(program, setting) {
        Ok(layout) => {
            settle(plan, program, Change::Layout(layout), chip, context);
            if let (Treatment::Moved, Some(spare)) = (plan.report.treatment, spare) {
                let resource1 = plan.resource1.unwrap_or(spare.resource1);
                plan.resource1 = Some(resource1 & !spare::GRANULES | spare.resource1 & spare::GRANULES);
            }
        }
        Err(reason) => plan.report.reason = Some(reason),
    }
}

/// Takes a change if the audit of the changed code finds nothing that the change should have repaired.
fn settle(plan: &mut FunctionPlan, program: &Program, change: Change, chip: Chip, context: Context) {
    let (code, inserted, treatment) = match &change {
        Change::None => return,
        Change::Code(code) => (code, 0, Treatment::InPlace),
        Change::Layout(layout) => (&layout.code, layout.inserted, Treatment::Moved),
    };
    let Ok(repaired) = Program::decode(code, program.chip, program.wave64) else {
        plan.report.reason = Some(Reason::NotRepaired);
        return;
    };
    let after = Hazards::count(&audit(&repaired, chip, context));
    // What has no replacement, or none without registers that are not there, stays and is reported.
    let stays = [Rule::Illegal, Rule::FlatOffset, Rule::LocalMisaligned, Rule::BufferRange];
    let left = after.total() - stays.iter().map(|&rule| after.get(rule)).sum::<u64>();
    if left > 0 {
        plan.report.reason = Some(Reason::NotRepaired);
    }
    if left > 0 || after.total() >= plan.report.after.total() {
        return;
    }
    plan.report.after = after;
    plan.report.inserted = inserted;
    plan.report.treatment = treatment;
    plan.change = change;
}
