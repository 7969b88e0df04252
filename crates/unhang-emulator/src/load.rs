//! A code object in memory: its functions decoded, its data at addresses.

use std::sync::Arc;

use unhang_isa::elf::{CodeObject, ElfError, KernelDescriptor};
use unhang_isa::{Chip, Program};
use unhang_objects::metadata::{self, KernelMetadata};

use crate::semantics::Semantics;
use crate::{FaultKind, Memory, Unit};

/// A function that can be executed.
pub(crate) struct LoadedFunction {
    pub name: String,
    /// Its address in the emulated memory.
    pub base: u64,
    pub program: Program,
    /// What each instruction does, found once.
    pub semantics: Vec<Semantics>,
    /// What executes each instruction.
    pub units: Vec<Unit>,
}

/// A kernel that can be started.
pub(crate) struct LoadedKernel {
    pub name: String,
    /// The function and the instruction at which it starts, by its descriptor.
    pub entry: (usize, u32),
    pub descriptor: KernelDescriptor,
    pub metadata: Option<KernelMetadata>,
}

/// A code object that can be executed.
pub(crate) struct LoadedObject {
    pub chip: Chip,
    pub functions: Vec<Arc<LoadedFunction>>,
    pub kernels: Vec<LoadedKernel>,
}

impl LoadedObject {
    /// The function that holds an address, and the instruction that starts there.
    pub fn find(&self, address: u64) -> Result<(usize, u32), FaultKind> {
        let place = self.functions.partition_point(|function| function.base <= address);
        let number = place.checked_sub(1).ok_or(FaultKind::Jump { address })?;
        let function = &self.functions[number];
        let index = function.program.index_at((address - function.base) as usize);
        index.map(|index| (number, index)).ok_or(FaultKind::Jump { address })
    }
}

/// Copies a code object into memory and decodes its functions. A function that does not decode is left out: jumping to
/// it is a fault.
///
/// Silicon reads the words in its own way, whatever the object says: `silicon` is the chip that is emulated, if it is a
/// particular one. What it cannot read at all is decoded for the object's own chip, so that it is a fault where it is
/// reached and not before.
pub(crate) fn load(bytes: &[u8], silicon: Option<Chip>, memory: &mut Memory) -> Result<LoadedObject, ElfError> {
    let object = CodeObject::parse(bytes)?;
    let chip = object.chip().ok_or(ElfError::NotGpu { machine: object.flags as u16, class: 2 })?;
    // One allocation from the lowest to the highest address, so that code finds its data at the distance it expects.
    let segments: Vec<_> = object.segments().collect();
    let limit = bytes.len() as u64 * 64;
    let end = segments.iter().filter_map(|segment| segment.address.checked_add(segment.memory_size)).max().unwrap_or(0);
    if end > limit {
        return Err(ElfError::OutOfBounds { what: "a segment", size: bytes.len() });
    }
    let bias = memory.allocate(end as usize);
    for segment in &segments {
        let _ = memory.write(bias + segment.address, segment.contents);
    }
    let kernel_metadata = metadata::read(&object).map(|(_, kernels)| kernels).unwrap_or_default();
    let mut loaded = LoadedObject { chip, functions: Vec::new(), kernels: Vec::new() };
    let mut descriptors = Vec::new();
    for function in &object.functions {
        let wave64 = function.descriptor.is_some_and(|descriptor| descriptor.wave64());
        let decoded = Program::decode(function.code, silicon.unwrap_or(chip), wave64);
        let Ok(program) = decoded.or_else(|_| Program::decode(function.code, chip, wave64)) else { continue };
        let semantics = program.instructions.iter().map(Semantics::of).collect();
        let units = program.instructions.iter().map(Unit::of).collect();
        descriptors.extend(function.descriptor.map(|descriptor| (function.name, descriptor)));
        let base = bias + function.address;
        let name = function.name.to_owned();
        loaded.functions.push(Arc::new(LoadedFunction { name, base, program, semantics, units }));
    }
    loaded.functions.sort_by_key(|function| function.base);
    for (name, descriptor) in descriptors {
        // Hardware starts where the descriptor says, whatever the symbol does.
        let Ok(entry) = loaded.find(bias.wrapping_add(descriptor.entry_address())) else { continue };
        let metadata = kernel_metadata.iter().find(|kernel| kernel.name == name).cloned();
        loaded.kernels.push(LoadedKernel { name: name.to_owned(), entry, descriptor, metadata });
    }
    Ok(loaded)
}
