//! The driver's structures, as `linux/kfd_ioctl.h` lays them out, and the numbers that go with them.

/// The reported interface version: the last before debugging by exceptions, which needs a trap handler.
pub(crate) const VERSION: (u32, u32) = (1, 9);

/// The letter of the driver's requests.
pub(crate) const LETTER: u32 = b'K' as u32;

#[repr(C)]
pub(crate) struct Version {
    pub major: u32,
    pub minor: u32,
}

/// Queue types.
pub(crate) const QUEUE_SDMA: u32 = 1;
pub(crate) const QUEUE_AQL: u32 = 2;
pub(crate) const QUEUE_SDMA_XGMI: u32 = 3;

#[repr(C)]
pub(crate) struct CreateQueue {
    pub ring: u64,
    pub write_pointer: u64,
    pub read_pointer: u64,
    pub doorbell_offset: u64,
    pub ring_size: u32,
    pub gpu_id: u32,
    pub kind: u32,
    pub percentage: u32,
    pub priority: u32,
    pub queue_id: u32,
    pub end_of_pipe_address: u64,
    pub end_of_pipe_size: u64,
    pub save_address: u64,
    pub save_size: u32,
    pub control_stack_size: u32,
}

#[repr(C)]
pub(crate) struct DestroyQueue {
    pub queue_id: u32,
    pub padding: u32,
}

#[repr(C)]
pub(crate) struct UpdateQueue {
    pub ring: u64,
    pub queue_id: u32,
    pub ring_size: u32,
    pub percentage: u32,
    pub priority: u32,
}

#[repr(C)]
pub(crate) struct SetMask {
    pub queue_id: u32,
    pub count: u32,
    pub mask: u64,
}

#[repr(C)]
pub(crate) struct ClockCounters {
    pub gpu: u64,
    pub processor: u64,
    pub system: u64,
    pub system_frequency: u64,
    pub gpu_id: u32,
    pub padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Apertures {
    pub local_base: u64,
    pub local_limit: u64,
    pub scratch_base: u64,
    pub scratch_limit: u64,
    pub gpu_base: u64,
    pub gpu_limit: u64,
    pub gpu_id: u32,
    pub padding: u32,
}

#[repr(C)]
pub(crate) struct ProcessApertures {
    pub apertures: u64,
    pub nodes: u32,
    pub padding: u32,
}

/// Event types.
pub(crate) const EVENT_SIGNAL: u32 = 0;
pub(crate) const EVENT_HARDWARE_EXCEPTION: u32 = 3;
pub(crate) const EVENT_DEBUG: u32 = 5;
pub(crate) const EVENT_MEMORY: u32 = 8;
pub(crate) const EVENT_TYPES: u32 = 9;
/// How many events of type signal a process may have.
pub(crate) const EVENT_LIMIT: u32 = 4096;

/// `reset_cause` of a hang, and the memory event's error type for it.
pub(crate) const RESET_CAUSE_HANG: u32 = 0;
pub(crate) const MEMORY_ERROR_HANG: u32 = 3;

#[repr(C)]
pub(crate) struct CreateEvent {
    pub page_offset: u64,
    pub trigger_data: u32,
    pub kind: u32,
    pub auto_reset: u32,
    pub node: u32,
    pub event_id: u32,
    pub slot: u32,
}

/// Arguments of the calls that name an event.
#[repr(C)]
pub(crate) struct NamedEvent {
    pub event_id: u32,
    pub padding: u32,
}

/// The data that a wait returns for an event: a memory exception, or in its first words a hardware exception.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventPayload {
    pub words: [u32; 8],
}

impl EventPayload {
    /// A memory exception: page not present, or read-only.
    pub(crate) fn memory(gpu_id: u32, address: u64, is_read_only: bool) -> EventPayload {
        let (low, high) = (address as u32, (address >> 32) as u32);
        EventPayload { words: [u32::from(!is_read_only), u32::from(is_read_only), 0, 0, low, high, gpu_id, 0] }
    }

    /// A memory exception that reports a reset after a hang.
    pub(crate) fn memory_hang(gpu_id: u32) -> EventPayload {
        EventPayload { words: [0, 0, 0, 0, 0, 0, gpu_id, MEMORY_ERROR_HANG] }
    }

    /// A hardware exception that reports a reset after a hang, with memory lost.
    pub(crate) fn hardware_hang(gpu_id: u32) -> EventPayload {
        EventPayload { words: [0, RESET_CAUSE_HANG, 1, gpu_id, 0, 0, 0, 0] }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventData {
    pub payload: EventPayload,
    pub extension: u64,
    pub event_id: u32,
    pub padding: u32,
}

/// Results of a wait.
pub(crate) const WAIT_COMPLETE: u32 = 0;
pub(crate) const WAIT_TIMEOUT: u32 = 1;
pub(crate) const WAIT_FAIL: u32 = 2;

#[repr(C)]
pub(crate) struct WaitEvents {
    pub events: u64,
    pub count: u32,
    pub for_all: u32,
    pub timeout: u32,
    pub result: u32,
}

#[repr(C)]
pub(crate) struct TileConfiguration {
    pub tiles: u64,
    pub macro_tiles: u64,
    pub tile_count: u32,
    pub macro_tile_count: u32,
    pub gpu_id: u32,
    pub address_configuration: u32,
    pub banks: u32,
    pub ranks: u32,
}

#[repr(C)]
pub(crate) struct AcquireMemory {
    pub render_descriptor: u32,
    pub gpu_id: u32,
}

/// Kinds of memory.
pub(crate) const MEMORY_VIDEO: u32 = 1;
pub(crate) const MEMORY_SYSTEM: u32 = 1 << 1;
pub(crate) const MEMORY_USER: u32 = 1 << 2;
pub(crate) const MEMORY_DOORBELL: u32 = 1 << 3;
pub(crate) const MEMORY_REGISTERS: u32 = 1 << 4;
pub(crate) const MEMORY_WRITABLE: u32 = 1 << 31;

#[repr(C)]
pub(crate) struct Allocate {
    pub address: u64,
    pub size: u64,
    pub handle: u64,
    pub offset: u64,
    pub gpu_id: u32,
    pub flags: u32,
}

#[repr(C)]
pub(crate) struct Free {
    pub handle: u64,
}

/// Arguments of map and unmap.
#[repr(C)]
pub(crate) struct MapMemory {
    pub handle: u64,
    pub devices: u64,
    pub count: u32,
    pub done: u32,
}

#[repr(C)]
pub(crate) struct AvailableMemory {
    pub available: u64,
    pub gpu_id: u32,
    pub padding: u32,
}

#[repr(C)]
pub(crate) struct RetryMode {
    pub enabled: i32,
}
