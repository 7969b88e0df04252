//! Creates a queue: checks the runtime's request and starts the thread that serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::abi::{CreateQueue, QUEUE_AQL, QUEUE_SDMA, QUEUE_SDMA_XGMI};
use super::memory::{DOORBELLS, is_mapped};
use super::queues::{Control, Running};
use crate::process::Process;
use crate::queue::{Queue, QueuePlace};
use crate::threads::without_signals;
use crate::{Errno, aql, sdma};

/// How many queues a process may have; each has a doorbell of eight bytes.
const MOST: u32 = (DOORBELLS / 8) as u32;

/// Makes a queue and starts its thread.
pub(super) fn create(process: &'static Process, arguments: &mut CreateQueue) -> Result<(), Errno> {
    let card = process.card(arguments.gpu_id)?;
    let ring_size = u64::from(arguments.ring_size);
    let pointers = [arguments.read_pointer, arguments.write_pointer];
    let is_sdma = matches!(arguments.kind, QUEUE_SDMA | QUEUE_SDMA_XGMI);
    if arguments.percentage > 100
        || arguments.priority > 15
        || !ring_size.is_power_of_two()
        || ring_size < 1024
        || !(is_sdma || arguments.kind == QUEUE_AQL)
        || pointers.iter().any(|pointer| *pointer == 0 || !pointer.is_multiple_of(8))
        || !arguments.ring.is_multiple_of(64)
    {
        return Err(libc::EINVAL);
    }
    if !is_mapped(arguments.ring & !0xfff, ring_size) || pointers.iter().any(|pointer| !is_mapped(pointer & !0xfff, 8))
    {
        return Err(libc::EFAULT);
    }
    let mut running = process.queues.lock();
    let same = running.values().filter(|it| it.card == card && it.kind != QUEUE_AQL).count();
    if is_sdma && same >= process.cards[card].sdma_queues as usize {
        return Err(libc::ENOMEM);
    }
    let id = (0..MOST).find(|id| !running.contains_key(id)).ok_or(libc::ENOMEM)?;
    let (offset, doorbells) = process.memory.doorbells(card);
    // Slots of different cards differ too; ids are the process's.
    let doorbell = doorbells.host().cast::<u64>().wrapping_add(id as usize);
    let control = Arc::new(Control { stop: AtomicBool::new(false), active: AtomicBool::new(arguments.percentage > 0) });
    let place = QueuePlace {
        card,
        ring: arguments.ring as *mut u8,
        ring_size,
        read: arguments.read_pointer as *mut u64,
        write: arguments.write_pointer as *mut u64,
        doorbell,
    };
    let queue = Queue { process, place, control: control.clone(), id };
    // No packet yet: for AQL the last packet's number, for SDMA the end of what was written.
    queue.word(doorbell).store(if is_sdma { 0 } else { u64::MAX }, Ordering::Release);
    let thread = without_signals(|| {
        std::thread::Builder::new().name(format!("card queue {id}")).spawn(move || match is_sdma {
            true => sdma::serve(&queue),
            false => aql::serve(&queue),
        })
    })
    .map_err(|_| libc::ENOMEM)?;
    running.insert(id, Running { control, thread, card, kind: arguments.kind });
    arguments.queue_id = id;
    arguments.doorbell_offset = offset + u64::from(id) * 8;
    Ok(())
}
