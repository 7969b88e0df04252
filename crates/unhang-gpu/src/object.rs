//! AMD's code objects: what a compiled kernel costs, whether it is safe on the chip, and how it is made loadable under a
//! spoofed runtime.
//!
//! With `HSA_OVERRIDE_GFX_VERSION` the runtime believes in another chip than is there and loads objects for that one
//! only. Ours are compiled for the true chip, with all of its work-arounds, and then *retagged*: the ELF flags and the
//! target's name in the metadata say what the runtime wants to hear. The machine code stays that of the true chip.

use std::fmt;

use rmpv::Value;
use thiserror::Error;
use unhang_isa::audit::{Context, Rule, audit};
use unhang_isa::elf::{CodeObject, ElfError, Function};
use unhang_isa::{Chip, Program};

/// The figures of a compiled kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// The function.
    pub name: String,
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// Vector registers that were spilled.
    pub vgpr_spills: u32,
    /// Scalar registers that were spilled.
    pub sgpr_spills: u32,
    /// Bytes of LDS of a workgroup.
    pub lds_bytes: u32,
    /// Bytes of scratch of a lane.
    pub scratch_bytes: u32,
    /// Lanes of a wave.
    pub lanes: u32,
    /// Waves that one SIMD can hold at a time.
    pub waves_per_simd: u32,
    /// Whether its code was decoded and audited, which is done for gfx10; for later chips only the compiler's figures
    /// are known.
    pub audited: bool,
    /// Multiply-adds among all instructions of the innermost loop that has most of them; 0 without a loop.
    pub fma_share: f64,
    /// Places that are unsafe on the chip, by rule and offset.
    pub hazards: Vec<(Rule, u32)>,
    /// Calls: callees get no work-arounds, so there must be none.
    pub calls: u32,
}

/// Why an object is not loaded, or not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It cannot be read.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// It cannot be decoded.
    #[error("{function} cannot be decoded: {reason}")]
    Code {
        /// The function.
        function: String,
        /// Why not.
        reason: String,
    },
    /// The metadata is not as expected.
    #[error("the object's metadata cannot be used: {0}")]
    Metadata(String),
    /// It is unsafe on the chip.
    #[error("{function} is unsafe on {chip} and is not loaded: {reason}")]
    Unsafe {
        /// The function.
        function: String,
        /// The chip.
        chip: Chip,
        /// What was found, where.
        reason: String,
    },
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { name, vgprs, sgprs, lds_bytes, waves_per_simd, .. } = self;
        write!(f, "{name}: {vgprs} VGPRs, {sgprs} SGPRs, {lds_bytes} bytes of LDS, {waves_per_simd} waves a SIMD")
    }
}

/// The figures of every kernel in an object, with the audit for `chip`, which the code was compiled for.
pub fn figures(object: &[u8], chip: Chip) -> Result<Vec<Figures>, ObjectError> {
    let code = CodeObject::parse(object)?;
    let mut all = compiled_figures(&code, chip.name())?;
    for figures in &mut all {
        let function = code
            .functions
            .iter()
            .find(|function| function.name == figures.name && function.descriptor.is_some())
            .ok_or_else(|| ObjectError::Metadata(format!("no function {:?} for its kernel", figures.name)))?;
        let (program, hazards) = audit_function(function, chip)?;
        (figures.fma_share, figures.calls) = (fma_share(&program), program.calls);
        (figures.hazards, figures.audited) = (hazards, true);
    }
    Ok(all)
}

/// Figures for any AMD chip: audited for gfx10, the compiler's figures for later ones.
pub fn figures_for(object: &[u8], architecture: &str) -> Result<Vec<Figures>, ObjectError> {
    match architecture.parse() {
        Ok(chip) => figures(object, chip),
        Err(_) => compiled_figures(&CodeObject::parse(object)?, architecture),
    }
}

/// The compiler's figures of the kernels in an object.
fn compiled_figures(code: &CodeObject<'_>, architecture: &str) -> Result<Vec<Figures>, ObjectError> {
    let metadata = metadata(code)?;
    let kernels = field(&metadata, "amdhsa.kernels").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let figures = |kernel: &Value| {
        let number = |key: &str| field(kernel, key).and_then(Value::as_u64).unwrap_or(0) as u32;
        let (vgprs, lds_bytes) = (number(".vgpr_count"), number(".group_segment_fixed_size"));
        Figures {
            name: field(kernel, ".name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            vgprs,
            sgprs: number(".sgpr_count"),
            vgpr_spills: number(".vgpr_spill_count"),
            sgpr_spills: number(".sgpr_spill_count"),
            lds_bytes,
            scratch_bytes: number(".private_segment_fixed_size"),
            lanes: number(".wavefront_size"),
            waves_per_simd: waves_per_simd(architecture, vgprs, lds_bytes, number(".max_flat_workgroup_size")),
            audited: false,
            fma_share: 0.0,
            hazards: Vec::new(),
            calls: 0,
        }
    };
    Ok(kernels.iter().map(figures).collect())
}

/// Refuses an object that is unsafe on the chip: hazards, instructions that the chip lacks, calls, indirect jumps.
pub fn refuse_unsafe(object: &[u8], chip: Chip) -> Result<(), ObjectError> {
    let code = CodeObject::parse(object)?;
    for function in &code.functions {
        let (program, hazards) = audit_function(function, chip)?;
        let refuse = |reason: String| Err(ObjectError::Unsafe { function: function.name.to_owned(), chip, reason });
        if let Some((rule, offset)) = hazards.first() {
            return refuse(format!("{} places, the first is {rule:?} at {offset:#x}", hazards.len()));
        }
        if program.calls > 0 {
            return refuse(format!("it makes {} calls, whose targets were not looked at", program.calls));
        }
        if program.unresolved_jumps > 0 || program.stray_branches > 0 {
            return refuse("it jumps to where cannot be told".into());
        }
    }
    Ok(())
}

fn audit_function(function: &Function<'_>, chip: Chip) -> Result<(Program, Vec<(Rule, u32)>), ObjectError> {
    let wave64 = function.descriptor.is_some_and(|descriptor| descriptor.wave64());
    let program = Program::decode(function.code, chip, wave64)
        .map_err(|error| ObjectError::Code { function: function.name.to_owned(), reason: error.to_string() })?;
    let context = Context {
        workgroup_processor_mode: function.descriptor.is_some_and(|descriptor| descriptor.workgroup_processor_mode()),
    };
    let hazards = audit(&program, chip, context).iter().map(|finding| (finding.rule, finding.offset)).collect();
    Ok((program, hazards))
}

fn metadata(code: &CodeObject<'_>) -> Result<Value, ObjectError> {
    let mut bytes = code.metadata.ok_or_else(|| ObjectError::Metadata("there is none".into()))?;
    rmpv::decode::read_value(&mut bytes).map_err(|error| ObjectError::Metadata(error.to_string()))
}

fn field<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

/// Vector registers of a lane in a SIMD, their allocation granularity, and how many waves a SIMD holds: LLVM's figures
/// for waves of 32 lanes (`AMDGPUBaseInfo.cpp`).
fn register_file(architecture: &str) -> (u32, u32, u32) {
    match architecture {
        "gfx1010" | "gfx1011" | "gfx1012" | "gfx1013" => (1024, 8, 20),
        "gfx1100" | "gfx1101" | "gfx1151" | "gfx1200" | "gfx1201" => (1536, 24, 16),
        _ => (1024, 16, 16),
    }
}

/// Waves of 32 lanes on a SIMD, two of which share 64 KiB of LDS.
fn waves_per_simd(architecture: &str, vgprs: u32, lds_bytes: u32, threads: u32) -> u32 {
    let (registers, portion, most) = register_file(architecture);
    let by_registers = registers / vgprs.max(1).next_multiple_of(portion);
    let waves = threads.max(32).div_ceil(32);
    let by_lds = 65536u32.checked_div(lds_bytes).map_or(most, |groups| (groups * waves).div_ceil(2));
    by_registers.min(by_lds).min(most)
}

/// Loops are found by branches that go back; among those that hold no other, the one with most multiply-adds counts.
fn fma_share(program: &Program) -> f64 {
    let mut loops: Vec<(u32, u32)> = Vec::new();
    for (index, block) in program.blocks.iter().enumerate() {
        for successor in block.successors.into_iter().flatten().filter(|&to| to as usize <= index) {
            loops.push((program.blocks[successor as usize].first, block.end));
        }
    }
    let innermost = loops
        .iter()
        .filter(|outer| !loops.iter().any(|inner| inner != *outer && inner.0 >= outer.0 && inner.1 <= outer.1));
    let counted = innermost.map(|&(first, end)| {
        let instructions = &program.instructions[first as usize..end as usize];
        let fused = instructions
            .iter()
            .filter(|instruction| {
                let name = instruction.definition.base_name();
                name.starts_with("v_fma") || name.starts_with("v_mac") || name.starts_with("v_pk_fma")
            })
            .count();
        (fused, instructions.len())
    });
    match counted.max() {
        Some((fused, all)) if all > 0 => fused as f64 / all as f64,
        _ => 0.0,
    }
}

/// Makes an object compiled for `from` loadable by a runtime that reports `to`.
pub fn retag(object: &[u8], from: Chip, to: Chip) -> Result<Vec<u8>, ObjectError> {
    let code = CodeObject::parse(object)?;
    if code.chip() != Some(from) {
        return Err(ObjectError::Metadata(format!("the object is not for {from} (flags {:#x})", code.flags)));
    }
    let note = code.metadata.ok_or_else(|| ObjectError::Metadata("there is none".into()))?;
    let note_at = note.as_ptr() as usize - object.as_ptr() as usize;
    let target = field(&metadata(&code)?, "amdhsa.target").and_then(Value::as_str).map(str::to_owned);
    let mut tagged = object.to_vec();
    // e_flags of a 64-bit ELF file. RDNA2 has no xnack, so the bits for it go too.
    let features = if to.is_rdna1() { code.flags & 0xf00 } else { 0 };
    tagged[48..52].copy_from_slice(&(u32::from(to.machine()) | features).to_le_bytes());
    // Tells the shield what the code really is.
    unhang_isa::elf::mark(&mut tagged, from);
    if let Some(target) = target {
        let (old, new) = (from.name().as_bytes(), to.name().as_bytes());
        let at = note
            .windows(target.len())
            .position(|window| window == target.as_bytes())
            .zip(target.find(from.name()))
            .map(|(text, name)| note_at + text + name)
            .ok_or_else(|| ObjectError::Metadata(format!("the target {target:?} does not name {from}")))?;
        if old.len() != new.len() || target.ends_with(['+', '-']) {
            return Err(ObjectError::Metadata(format!("the target {target:?} cannot become {to} in place")));
        }
        tagged[at..at + new.len()].copy_from_slice(new);
    }
    Ok(tagged)
}
