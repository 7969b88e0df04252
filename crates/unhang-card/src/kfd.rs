//! The driver's interface: what `ioctl` on `/dev/kfd` does.

#[deny(unsafe_code)]
pub(crate) mod abi;
#[deny(unsafe_code)]
pub(crate) mod events;
pub(crate) mod interrupts;
pub(crate) mod memory;
#[deny(unsafe_code)]
mod new_queue;
#[deny(unsafe_code)]
pub(crate) mod queues;

use std::time::Duration;

use self::abi::*;
use self::events::Waited;
use self::memory::{PAGE, Request, is_mapped};
use crate::process::Process;
use crate::signal::{NANOSECONDS_A_TICK, nanoseconds};
use crate::{Errno, files};

/// The addresses at which workgroups see local and private memory, and those that the card can reach.
const LOCAL_APERTURE: u64 = 1 << 48;
const SCRATCH_APERTURE: u64 = 2 << 48;
const APERTURE_SIZE: u64 = 1 << 32;
const GPU_BASE: u64 = 0x100_0000;
const GPU_LIMIT: u64 = (1 << 47) - 1;

/// Requests that some kernels' drivers have and this one refuses as a kernel without them does: exporting and importing
/// buffers, the management interface's events, shared virtual memory, checkpoints, debugging, counters.
const REFUSED: [u32; 18] =
    [0x06, 0x0d, 0x0e, 0x0f, 0x10, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x22, 0x24, 0x25, 0x26, 0x80, 0x82, 0x84];

/// The arguments of a request.
struct Arguments {
    pointer: *mut u8,
    size: usize,
}

impl Arguments {
    /// The arguments as a structure.
    fn get<T>(&self) -> Result<&'static mut T, Errno> {
        if self.size < size_of::<T>() {
            return Err(libc::EINVAL);
        }
        if !self.pointer.cast::<T>().is_aligned() || !is_there(self.pointer as u64, size_of::<T>()) {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller of `ioctl` gives a structure of the size that the request's number names. As for the
        // kernel, it is the caller's until the call returns, and no reference outlives the call.
        Ok(unsafe { &mut *self.pointer.cast() })
    }
}

/// Whether the program has memory there.
pub(crate) fn is_there(address: u64, size: usize) -> bool {
    let start = address & !(PAGE - 1);
    address.checked_add(size as u64).is_some_and(|end| address != 0 && is_mapped(start, end - start))
}

/// An array that arguments point to.
///
/// SAFETY of the callers: as with the kernel, the caller of `ioctl` vouches for the array.
fn array<T>(address: u64, count: u32) -> Result<&'static mut [T], Errno> {
    if count == 0 {
        return Ok(&mut []);
    }
    let pointer = address as *mut T;
    if count > 1 << 20 || !pointer.is_aligned() || !is_there(address, count as usize * size_of::<T>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: see above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count as usize) })
}

/// Answers a request on `/dev/kfd`.
pub(crate) fn ioctl(process: &'static Process, request: u64, pointer: *mut u8) -> Result<(), Errno> {
    let (number, letter, size) = (request as u32 & 0xff, request as u32 >> 8 & 0xff, request as u32 >> 16 & 0x3fff);
    if letter != LETTER {
        return Err(libc::ENOTTY);
    }
    let arguments = Arguments { pointer, size: size as usize };
    match number {
        0x01 => {
            let version: &mut Version = arguments.get()?;
            (version.major, version.minor) = VERSION;
            Ok(())
        }
        0x02 => new_queue::create(process, arguments.get()?),
        0x03 => process.queues.destroy(arguments.get::<DestroyQueue>()?.queue_id),
        0x05 => clock_counters(process, arguments.get()?),
        0x07 => process.queues.update(arguments.get()?),
        0x08..=0x0c => event_request(process, number, &arguments),
        0x12 => tile_configuration(process, arguments.get()?),
        0x14 => apertures(process, arguments.get()?),
        0x15 => acquire_memory(process, arguments.get()?),
        0x16..=0x19 | 0x23 => memory_request(process, number, &arguments),
        0x1a => {
            let mask: &SetMask = arguments.get()?;
            if mask.count == 0 || !mask.count.is_multiple_of(32) {
                return Err(libc::EINVAL);
            }
            process.queues.has(mask.queue_id).then_some(()).ok_or(libc::EINVAL)
        }
        // XNACK, retrying after page faults: RDNA does not have it, and reports that.
        0x21 => {
            let mode: &mut RetryMode = arguments.get()?;
            if mode.enabled > 0 {
                return Err(libc::EPERM);
            }
            mode.enabled = 0;
            Ok(())
        }
        // Caching policy, scratch's address, trap handler: the emulated card needs none of them.
        0x04 | 0x11 | 0x13 => Ok(()),
        _ => {
            if !REFUSED.contains(&number) {
                process.journal.say_once(&format!("request {number:#04x} of the driver is not known and was refused"));
            }
            process.journal.detail("refused", || serde_json::json!({ "request": number }));
            Err(libc::EINVAL)
        }
    }
}

/// A node without a card has clocks too: the runtime takes the system's frequency from the first node, which is the
/// CPU.
fn clock_counters(process: &Process, counters: &mut ClockCounters) -> Result<(), Errno> {
    let now = nanoseconds();
    counters.gpu = process.card(counters.gpu_id).map_or(0, |_| now / NANOSECONDS_A_TICK);
    counters.processor = now;
    counters.system = now;
    counters.system_frequency = 1_000_000_000;
    Ok(())
}

fn event_request(process: &Process, number: u32, arguments: &Arguments) -> Result<(), Errno> {
    let events = &process.events;
    match number {
        0x08 => {
            let event: &mut CreateEvent = arguments.get()?;
            if event.kind >= EVENT_TYPES {
                return Err(libc::EINVAL);
            }
            if event.page_offset != 0
                && let Some(page) = process.memory.stretch(event.page_offset)
            {
                process.interrupts.set_page(page);
            }
            event.event_id = events.create(event.kind, event.auto_reset != 0)?;
            event.trigger_data = event.event_id;
            if matches!(event.kind, EVENT_SIGNAL | EVENT_DEBUG) {
                event.slot = event.event_id;
                // Any nonzero value works: the page is memory that the runtime has allocated.
                event.page_offset = 2 << 62;
            }
            Ok(())
        }
        0x09 => events.destroy(arguments.get::<NamedEvent>()?.event_id),
        0x0a => events.raise(arguments.get::<NamedEvent>()?.event_id),
        0x0b => events.reset(arguments.get::<NamedEvent>()?.event_id),
        _ => {
            let wait: &mut WaitEvents = arguments.get()?;
            let data: &mut [EventData] = array(wait.events, wait.count)?;
            let ids: Vec<u32> = data.iter().map(|it| it.event_id).collect();
            let timeout = (wait.timeout != u32::MAX).then(|| Duration::from_millis(u64::from(wait.timeout)));
            let found = |place: usize, payload| data[place].payload = payload;
            wait.result = match events.wait(&ids, wait.for_all != 0, timeout, found)? {
                Waited::Complete => WAIT_COMPLETE,
                Waited::Timeout => WAIT_TIMEOUT,
                Waited::Failed => WAIT_FAIL,
            };
            Ok(())
        }
    }
}

fn memory_request(process: &Process, number: u32, arguments: &Arguments) -> Result<(), Errno> {
    let memory = &process.memory;
    match number {
        0x16 => {
            let it: &mut Allocate = arguments.get()?;
            let card = process.card(it.gpu_id)?;
            let request = Request { address: it.address, size: it.size, flags: it.flags, card, user: it.offset };
            (it.handle, it.offset) = memory.allocate(request)?;
            Ok(())
        }
        0x17 => memory.free(arguments.get::<Free>()?.handle),
        0x23 => {
            let it: &mut AvailableMemory = arguments.get()?;
            it.available = memory.available(process.card(it.gpu_id)?);
            Ok(())
        }
        _ => {
            let it: &mut MapMemory = arguments.get()?;
            let devices: &mut [u32] = array(it.devices, it.count)?;
            if it.done > it.count || it.count == 0 {
                return Err(libc::EINVAL);
            }
            for gpu_id in &devices[it.done as usize..] {
                let card = process.card(*gpu_id)?;
                if number == 0x18 {
                    memory.map(it.handle, card)?
                } else {
                    memory.unmap(it.handle, card)?
                }
                it.done += 1;
            }
            Ok(())
        }
    }
}

fn tile_configuration(process: &Process, tiles: &mut TileConfiguration) -> Result<(), Errno> {
    process.card(tiles.gpu_id)?;
    (tiles.tile_count, tiles.macro_tile_count) = (0, 0);
    (tiles.address_configuration, tiles.banks, tiles.ranks) = (0x44, 0, 0);
    Ok(())
}

fn apertures(process: &Process, it: &mut ProcessApertures) -> Result<(), Errno> {
    if it.nodes == 0 {
        it.nodes = process.cards.len() as u32;
        return Ok(());
    }
    let count = (it.nodes as usize).min(process.cards.len());
    let nodes: &mut [Apertures] = array(it.apertures, count as u32)?;
    for (node, card) in nodes.iter_mut().zip(&process.cards) {
        *node = Apertures {
            local_base: LOCAL_APERTURE,
            local_limit: LOCAL_APERTURE + APERTURE_SIZE - 1,
            scratch_base: SCRATCH_APERTURE,
            scratch_limit: SCRATCH_APERTURE + APERTURE_SIZE - 1,
            gpu_base: GPU_BASE,
            gpu_limit: GPU_LIMIT,
            gpu_id: card.gpu_id,
            padding: 0,
        };
    }
    it.nodes = count as u32;
    Ok(())
}

fn acquire_memory(process: &Process, it: &AcquireMemory) -> Result<(), Errno> {
    let card = process.card(it.gpu_id)?;
    let descriptor = i32::try_from(it.render_descriptor).ok().and_then(files::get).ok_or(libc::EINVAL)?;
    match descriptor.kind {
        files::NodeKind::Render(minor) if u32::from(minor) == process.cards[card].render_minor => Ok(()),
        _ => Err(libc::EINVAL),
    }
}
