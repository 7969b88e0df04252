//! What a code object says about its kernels: the msgpack note that compilers write.

use rmpv::Value;
use unhang_isa::elf::CodeObject;

/// The metadata of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMetadata {
    /// Its name.
    pub name: String,
    /// Bytes of arguments.
    pub kernarg_size: u64,
    /// Bytes of local data share.
    pub group_segment_size: u64,
    /// Bytes of scratch per lane.
    pub private_segment_size: u64,
    /// Vector registers per lane.
    pub vgprs: u64,
    /// Scalar registers.
    pub sgprs: u64,
    /// Vector registers spilled to memory.
    pub vgpr_spills: u64,
    /// Scalar registers spilled.
    pub sgpr_spills: u64,
    /// Lanes of a wave.
    pub wavefront_size: u64,
    /// The most lanes of a workgroup.
    pub max_workgroup_size: u64,
    /// The arguments in order.
    pub arguments: Vec<ArgumentMetadata>,
}

/// The metadata of one kernel argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArgumentMetadata {
    /// Its offset among the arguments.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// `by_value`, `global_buffer` or one of the `hidden_*` kinds.
    pub kind: String,
}

/// The target that the metadata names, such as `amdgcn-amd-amdhsa--gfx1010`, and the kernels. `None` if the object has
/// no metadata, or damaged metadata.
pub fn read(object: &CodeObject<'_>) -> Option<(String, Vec<KernelMetadata>)> {
    let mut bytes = object.metadata?;
    let root = rmpv::decode::read_value_with_max_depth(&mut bytes, 64).ok()?;
    let target = text(&root, "amdhsa.target");
    let kernels = get(&root, "amdhsa.kernels")?.as_array()?.iter().map(kernel).collect();
    Some((target, kernels))
}

fn get<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    value.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

fn number(value: &Value, key: &str) -> u64 {
    get(value, key).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, key: &str) -> String {
    get(value, key).and_then(Value::as_str).unwrap_or("").to_owned()
}

fn kernel(value: &Value) -> KernelMetadata {
    let arguments = get(value, ".args").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    KernelMetadata {
        name: text(value, ".name"),
        kernarg_size: number(value, ".kernarg_segment_size"),
        group_segment_size: number(value, ".group_segment_fixed_size"),
        private_segment_size: number(value, ".private_segment_fixed_size"),
        vgprs: number(value, ".vgpr_count"),
        sgprs: number(value, ".sgpr_count"),
        vgpr_spills: number(value, ".vgpr_spill_count"),
        sgpr_spills: number(value, ".sgpr_spill_count"),
        wavefront_size: number(value, ".wavefront_size"),
        max_workgroup_size: number(value, ".max_flat_workgroup_size"),
        arguments: arguments
            .iter()
            .map(|argument| ArgumentMetadata {
                offset: number(argument, ".offset"),
                size: number(argument, ".size"),
                kind: text(argument, ".value_kind"),
            })
            .collect(),
    }
}
