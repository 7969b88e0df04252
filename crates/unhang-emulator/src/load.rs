//! A code object in memory: its segments at addresses, its kernels and functions by name.

use unhang_isa::Chip;
use unhang_isa::elf::{CodeObject, ElfError, KernelDescriptor};
use unhang_objects::metadata::{self, KernelMetadata};

use crate::Memory;

/// A function of a code object.
pub(crate) struct LoadedFunction {
    pub name: String,
    /// Its address in the emulated memory.
    pub base: u64,
    pub size: usize,
    pub wave64: bool,
}

/// A kernel that can be launched.
pub(crate) struct LoadedKernel {
    pub name: String,
    /// The address of its descriptor.
    pub address: u64,
    pub descriptor: KernelDescriptor,
    pub metadata: Option<KernelMetadata>,
}

/// A code object that can be executed.
pub(crate) struct LoadedObject {
    pub chip: Chip,
    /// In the order of their addresses.
    pub functions: Vec<LoadedFunction>,
    pub kernels: Vec<LoadedKernel>,
}

impl LoadedObject {
    /// The function that contains an address.
    pub(crate) fn function(&self, address: u64) -> Option<&LoadedFunction> {
        let place = self.functions.partition_point(|function| function.base <= address);
        let function = self.functions.get(place.checked_sub(1)?)?;
        (address - function.base < function.size as u64).then_some(function)
    }
}

/// Copies a code object into memory.
pub(crate) fn load(bytes: &[u8], memory: &mut Memory) -> Result<LoadedObject, ElfError> {
    let object = CodeObject::parse(bytes)?;
    let chip = object.chip().ok_or(ElfError::NotGpu { machine: object.flags as u16, class: 2 })?;
    // One allocation from the lowest to the highest address, so that code finds its data at the expected distance.
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
    for function in &object.functions {
        loaded.functions.push(LoadedFunction {
            name: function.name.to_owned(),
            base: bias.wrapping_add(function.address),
            size: function.code.len(),
            wave64: object.mode_of(function).wave64,
        });
        if let Some(descriptor) = function.descriptor {
            loaded.kernels.push(LoadedKernel {
                name: function.name.to_owned(),
                address: bias.wrapping_add(descriptor.address),
                descriptor,
                metadata: kernel_metadata.iter().find(|kernel| kernel.name == function.name).cloned(),
            });
        }
    }
    loaded.functions.sort_by_key(|function| function.base);
    Ok(loaded)
}
