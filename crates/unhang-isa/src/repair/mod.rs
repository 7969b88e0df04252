//! Machine code made safe for a chip that it was not compiled for.
//!
//! Of code that was compiled for RDNA1 two things are repaired. One is descriptors of buffers that put every access out
//! of range (`buffer_descriptors.rs`): their constant is changed where it stands. The other is hazards across calls,
//! which no compiler looks for.
//!
//! [`repair_object`] repairs a whole code object. What can be repaired by changing a word is changed where it stands
//! (`s_inst_prefetch` becomes `s_nop`, workgroup-processor mode is turned off). A function that needs more is laid out
//! anew behind everything else, in a new executable segment. It gets the work-around instructions that LLVM inserts
//! when it compiles for the chip. Its descriptor, its symbols and whoever calls it by a known address are aimed at the
//! new place. Data stays where it is, and so does the old code.
//!
//! A function is moved only if all that depends on its place is understood. The audit of the result must also find
//! nothing that could have been repaired. Otherwise the function is left as it is and the reason is reported. An
//! instruction that cannot be repaired does not keep others from it: the function is laid out with that one as it was,
//! and the reason is reported too.
//!
//! [`repair_in_place`] is the second best: it never changes the size of anything, and repairs what it can.

mod dead;
mod encode;
mod in_place;
mod object;
mod plan;
mod reason;
mod relayout;
mod spare;
mod substitute;

use encode::NOP;
pub use in_place::{Patch, Repaired, repair_in_place};
pub use object::assemble;
use plan::Change;
pub use plan::{FunctionPlan, FunctionRepair, ObjectRepair, Options, Treatment};
pub use reason::Reason;

use crate::audit::{Context, Hazards, Rule, audit, audit_across_calls, has_wide_local_accesses, may_begin_misaligned};
use crate::buffer_descriptors::with_checked_offsets;
use crate::elf::{CodeObject, ElfError, Function, KernelDescriptor, Mode};
use crate::{Chip, Program};

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
        } else if report.after.get(Rule::ImageAddresses) > 0 {
            Reason::ImageAddresses(report.after.get(Rule::ImageAddresses))
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

/// Whether a native kernel may access the local memory that a launch adds where the chip gets that wrong.
pub fn may_misalign(program: &Program, descriptor: &KernelDescriptor) -> bool {
    descriptor.workgroup_processor_mode() && may_begin_misaligned(program, descriptor.group_segment_size)
}

fn repair(plan: &mut FunctionPlan, program: &Program, subject: Subject<'_>, options: Options) {
    let Subject { function, code, mode, limit, is_shared } = subject;
    let chip = options.chip;
    let context = Context { workgroup_processor_mode: mode.workgroup_processor };
    let findings = audit(program, chip, context);
    let before = Hazards::count(&findings);
    (plan.report.before, plan.report.after) = (before, before);
    // Compilers do not look across calls, whichever chip they compile for: it takes a layout with their waits.
    let is_called = function.descriptor.is_none();
    let across_calls = |program: &Program| audit_across_calls(program, chip, context, is_called).len();
    let across = if options.keep_size { 0 } else { across_calls(program) };
    // And none looks into inline assembly, which rocPRIM has, or behind a cast. Apart from these, native code has nothing to repair.
    let is_aligned = program.chip.is_rdna1() && !function.descriptor.is_some_and(|it| may_misalign(program, &it));
    if is_aligned && before.total() == 0 && across == 0 {
        return;
    }
    let spare = if options.keep_size { None } else { subject.spare(program, chip) };
    // The alignment of most local accesses cannot be known beforehand; on one compute unit it does not matter. A compiler for RDNA1 knows.
    if chip.is_rdna1()
        && !is_aligned
        && !is_shared
        && let Some(descriptor) = function.descriptor.filter(|_| has_wide_local_accesses(program))
        && descriptor.workgroup_processor_mode()
        && spare::fits(spare.map_or(descriptor.resource1, |it| it.resource1), descriptor.wave64(), 1, limit)
    {
        plan.resource1 = Some(descriptor.resource1 & !KernelDescriptor::WORKGROUP_PROCESSOR_MODE);
        plan.report.mode_changed = true;
    }
    let context = Context { workgroup_processor_mode: context.workgroup_processor_mode && !plan.report.mode_changed };
    if plan.report.mode_changed {
        plan.report.after = Hazards::count(&audit(program, chip, context));
    }
    let open =
        |hazards: &Hazards| hazards.total() - hazards.get(Rule::LocalMisaligned) - hazards.get(Rule::BufferRange);
    if open(&plan.report.after) == 0 && across == 0 {
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
    if across == 0 && open(&plan.report.after) == plan.report.after.get(Rule::InstructionPrefetch) {
        let mut code = code.to_vec();
        for finding in findings.iter().filter(|finding| finding.rule == Rule::InstructionPrefetch) {
            code[finding.offset as usize..][..4].copy_from_slice(&NOP.to_le_bytes());
        }
        settle(plan, program, Change::Code(code), chip, context, |_| false);
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
            settle(plan, program, Change::Layout(layout), chip, context, |it| across_calls(it) < across);
            if let (Treatment::Moved, Some(spare)) = (plan.report.treatment, spare) {
                let resource1 = plan.resource1.unwrap_or(spare.resource1);
                plan.resource1 = Some(resource1 & !spare::GRANULES | spare.resource1 & spare::GRANULES);
            }
        }
        // What is left across calls is not a finding and needs no reason.
        Err(reason) => plan.report.reason = Some(reason).filter(|_| before.total() > 0),
    }
}

/// Takes a change if the audit of the changed code finds nothing that the change should have repaired, and less than before: in the
/// function, or as `improves` says, across calls, which the audit does not count. So no change is made twice.
fn settle(
    plan: &mut FunctionPlan,
    program: &Program,
    change: Change,
    chip: Chip,
    context: Context,
    improves: impl Fn(&Program) -> bool,
) {
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
    let stays = [Rule::Illegal, Rule::FlatOffset, Rule::LocalMisaligned, Rule::BufferRange, Rule::ImageAddresses];
    let left = after.total() - stays.iter().map(|&rule| after.get(rule)).sum::<u64>();
    if left > 0 {
        plan.report.reason = Some(Reason::NotRepaired);
        return;
    }
    let before = plan.report.after.total();
    if after.total() > before || after.total() == before && !improves(&repaired) {
        return;
    }
    plan.report.after = after;
    plan.report.inserted = inserted;
    plan.report.treatment = treatment;
    plan.change = change;
}
