//! Why findings are left in a function.

use thiserror::Error;

use crate::ProgramError;

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
    /// Its last instruction continues into whatever follows it.
    #[error("it runs on into what stands behind it, which would stand elsewhere")]
    RunsOn,
    /// A jump has an unknown target.
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
    /// Flat accesses store or partly overwrite their own address, so an offset cannot be added to it beforehand. There
    /// are no registers to add it in.
    #[error("{0} flat accesses with an offset store or partly overwrite their own address, and no registers are free")]
    FlatAccess(u64),
    /// Misaligned local accesses in a kernel whose workgroups might not fit one compute unit.
    #[error("its workgroups might not fit one compute unit, so workgroup-processor mode cannot be turned off")]
    WorkgroupProcessorMode,
    /// Buffers whose descriptors put every access out of range are not made of a constant that is theirs alone.
    #[error(
        "{0} buffer accesses are out of range on this chip, and their descriptor is not a constant in the code, or has other uses; \
         compile it again (Triton: AMDGCN_USE_BUFFER_OPS=0)"
    )]
    BufferDescriptor(u64),
    /// Image instructions have more scattered address registers than the chip reads.
    #[error("{0} image instructions have more than five scattered address registers; it must be recompiled")]
    ImageAddresses(u64),
    /// There is no room, and nothing may change its size.
    #[error("there is no room for the work-arounds, and the size had to be kept")]
    NoRoom,
    /// The object has no place for another segment.
    #[error("the code object cannot take another segment: {0}")]
    NoSegment(&'static str),
    /// The result of the layout was not safe; it was thrown away.
    #[error("with a new layout it would still not be safe")]
    NotRepaired,
}
