//! The runtime's queues: the functions that create and destroy them, the one that returns a kernel's address, and the
//! watching thread.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use unhang_watchdog::HangReport;
use unhang_watchdog::report::{HANG_OUTSIDE, LONGEST_FAREWELL};

use crate::queues::{
    DISPATCH, Packet, Reading, Stands, TAKEN, View, deadline, kernel_name, remember_kernel, waits_for_the_host,
};
use crate::table::{ERROR, Status, entry, replace};

/// Where the entries lie in the core table.
const QUEUE_CREATE: usize = 72;
const QUEUE_DESTROY: usize = 88;
const LOAD_READ_INDEX: usize = 112;
const LOAD_WRITE_INDEX: usize = 128;
const SYMBOL_GET_INFO: usize = 760;

/// `HSA_EXECUTABLE_SYMBOL_INFO_NAME_LENGTH`, `…_NAME` and `…_KERNEL_OBJECT`.
const NAME_LENGTH: u32 = 1;
const NAME: u32 = 2;
const KERNEL_OBJECT: u32 = 22;
/// Kernels with longer names are not noted.
const LONGEST_NAME: u32 = 1 << 16;
const LOOK_EVERY: Duration = Duration::from_millis(500);

unsafe extern "C" {
    fn _exit(code: c_int) -> !;
}

type QueueCreate = unsafe extern "C" fn(u64, u32, u32, *const c_void, *mut c_void, u32, u32, *mut *mut Queue) -> Status;
type QueueDestroy = unsafe extern "C" fn(*mut Queue) -> Status;
type LoadIndex = unsafe extern "C" fn(*const Queue) -> u64;
type SymbolGetInfo = unsafe extern "C" fn(u64, u32, *mut c_void) -> Status;

/// The functions that we replace and those that we call, by address; 0 before.
static ORIGINAL_CREATE: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL_DESTROY: AtomicUsize = AtomicUsize::new(0);
static ORIGINAL_GET_INFO: AtomicUsize = AtomicUsize::new(0);
static READ_INDEX: AtomicUsize = AtomicUsize::new(0);
static WRITE_INDEX: AtomicUsize = AtomicUsize::new(0);

/// The existing queues. Readers hold the lock, and a queue leaves the list before it is destroyed.
static QUEUES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The beginning of `hsa_queue_t`.
#[repr(C)]
struct Queue {
    kind: u32,
    features: u32,
    packets: *const Packet,
    doorbell: u64,
    size: u32,
}

/// Starts watching, if `unhang run` asked for it.
///
/// # Safety
///
/// `table` is null or points to the runtime's table.
pub(crate) unsafe fn begin(table: *mut u8) {
    let Some(deadline) = deadline(|name| std::env::var(name).ok()) else { return };
    // SAFETY: the caller vouches for the table.
    let address = |offset| unsafe { entry(table, offset).map(|entry| entry.read()) };
    let (Some(read), Some(write)) = (address(LOAD_READ_INDEX), address(LOAD_WRITE_INDEX)) else { return };
    // SAFETY: the caller vouches for the table, and the functions have the entries' types.
    let is_watched = unsafe {
        replace(table, QUEUE_DESTROY, queue_destroy as *const () as usize, &ORIGINAL_DESTROY)
            && replace(table, QUEUE_CREATE, queue_create as *const () as usize, &ORIGINAL_CREATE)
    };
    if !is_watched {
        return;
    }
    // Not earlier: a second runtime, which was refused just now, must not read the first one's queues.
    READ_INDEX.store(read, Ordering::SeqCst);
    WRITE_INDEX.store(write, Ordering::SeqCst);
    // SAFETY: as above. Without it kernels have no names.
    unsafe { replace(table, SYMBOL_GET_INFO, symbol_get_info as *const () as usize, &ORIGINAL_GET_INFO) };
    static THREAD: Once = Once::new();
    THREAD.call_once(|| {
        let _ = std::thread::Builder::new().name("unhang-queues".to_owned()).spawn(move || look_on(deadline));
    });
}

/// Forgets every queue: they end with the runtime, which may not have destroyed each.
pub(crate) fn end() {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// In place of `hsa_queue_create`.
///
/// # Safety
///
/// As of the function that it replaces.
#[allow(clippy::too_many_arguments, reason = "the interface's")]
unsafe extern "C" fn queue_create(
    agent: u64,
    size: u32,
    kind: u32,
    callback: *const c_void,
    data: *mut c_void,
    private_size: u32,
    group_size: u32,
    queue: *mut *mut Queue,
) -> Status {
    let address = ORIGINAL_CREATE.load(Ordering::SeqCst);
    if address == 0 {
        return ERROR;
    }
    // SAFETY: the address was read from the entry for a function of this type, which gets what it would have got.
    let status = unsafe {
        let original = std::mem::transmute::<usize, QueueCreate>(address);
        original(agent, size, kind, callback, data, private_size, group_size, queue)
    };
    if status == 0 && !queue.is_null() {
        // SAFETY: the function succeeded, so it wrote the queue's address there.
        let made = unsafe { *queue } as usize;
        QUEUES.lock().unwrap_or_else(PoisonError::into_inner).push(made);
    }
    status
}

/// In place of `hsa_queue_destroy`.
///
/// # Safety
///
/// As of the function that it replaces.
unsafe extern "C" fn queue_destroy(queue: *mut Queue) -> Status {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner).retain(|it| *it != queue as usize);
    let address = ORIGINAL_DESTROY.load(Ordering::SeqCst);
    if address == 0 {
        return ERROR;
    }
    // SAFETY: the address was read from the entry for a function of this type, which gets what it would have got.
    unsafe { std::mem::transmute::<usize, QueueDestroy>(address)(queue) }
}

/// In place of `hsa_executable_symbol_get_info`: a program that asks for a kernel's address is about to launch it.
///
/// # Safety
///
/// As of the function that it replaces.
unsafe extern "C" fn symbol_get_info(symbol: u64, attribute: u32, value: *mut c_void) -> Status {
    let address = ORIGINAL_GET_INFO.load(Ordering::SeqCst);
    if address == 0 {
        return ERROR;
    }
    // SAFETY: the address was read from the entry for a function of this type.
    let original = unsafe { std::mem::transmute::<usize, SymbolGetInfo>(address) };
    // SAFETY: the original gets what it would have got.
    let status = unsafe { original(symbol, attribute, value) };
    if status == 0 && attribute == KERNEL_OBJECT && !value.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut length = 0u32;
            // SAFETY: the attribute is a number of 32 bits.
            if unsafe { original(symbol, NAME_LENGTH, (&raw mut length).cast()) } != 0 || length > LONGEST_NAME {
                return;
            }
            let mut name = vec![0u8; length as usize];
            // SAFETY: the attribute has as many bytes as were just asked for; and the kernel's address was written to `value`.
            let object = unsafe {
                if original(symbol, NAME, name.as_mut_ptr().cast()) != 0 {
                    return;
                }
                value.cast::<u64>().read_unaligned()
            };
            remember_kernel(object, unhang_guard::text::printable_line(&String::from_utf8_lossy(&name)));
        }));
    }
    status
}

/// Watches the queues until nothing moves for that long.
fn look_on(deadline: Duration) {
    let mut stands = Stands::default();
    let (mut looked, mut now) = (Instant::now(), Duration::ZERO);
    loop {
        std::thread::sleep(LOOK_EVERY);
        // Time in which the process was stopped does not count.
        now += looked.elapsed().min(2 * LOOK_EVERY);
        looked = Instant::now();
        let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        stands.keep(|queue| queues.contains(&queue));
        let mut standing = Vec::new();
        for &queue in queues.iter() {
            let reading = read(queue);
            let time = stands.note(queue, now, reading);
            if reading.read < reading.written {
                standing.push((queue, reading, time));
            }
        }
        // One queue may wait for another that still works: it is a hang only if none moves.
        let shortest = standing.iter().map(|(_, _, time)| *time).min();
        if let Some(time) = shortest.filter(|time| *time >= deadline) {
            let hung: Vec<(usize, Reading)> = without_those_that_wait_for_the_host(&queues, &standing);
            if hung.is_empty() {
                continue;
            }
            let names: Vec<String> = hung.iter().filter_map(|(queue, reading)| kernel_at(*queue, *reading)).collect();
            drop(queues);
            end_process(time, hung.len(), &names);
        }
    }
}

/// The queues that stand still, except those at a barrier that only the program itself can release. Called only if the
/// process would end: signals of packets that were not taken still exist.
fn without_those_that_wait_for_the_host(
    queues: &[usize],
    standing: &[(usize, Reading, Duration)],
) -> Vec<(usize, Reading)> {
    let rings: Vec<Ring> = queues.iter().map(|queue| Ring::of(*queue)).collect();
    let packets: Vec<_> = rings.iter().map(|ring| move |index: u64| ring.packet(index).unwrap_or_default()).collect();
    let readings = queues.iter().map(|queue| read(*queue));
    let views: Vec<View<'_>> = readings
        .zip(&packets)
        .map(|(reading, packet)| View { reading, packet: packet as &dyn Fn(u64) -> Packet })
        .collect();
    let waits = |queue: usize| {
        let place = queues.iter().position(|it| *it == queue);
        place.is_some_and(|place| waits_for_the_host(&views, place, signal_value))
    };
    standing.iter().filter(|(queue, ..)| !waits(*queue)).map(|(queue, reading, _)| (*queue, *reading)).collect()
}

/// A signal's value. A handle is the address of an `amd_signal_t`: its kind, then its value.
fn signal_value(signal: u64) -> i64 {
    // SAFETY: a packet that the card has not taken names it, so the program may not have destroyed it.
    unsafe { (signal as *const i64).add(1).read_volatile() }
}

/// The packets of a queue.
struct Ring {
    packets: *const Packet,
    size: u64,
}

impl Ring {
    fn of(queue: usize) -> Ring {
        // SAFETY: a queue in the list is there, and begins so.
        let queue = unsafe { &*(queue as *const Queue) };
        Ring { packets: queue.packets, size: u64::from(queue.size) }
    }

    /// The packet with that number; `None` if the queue shows no packets.
    fn packet(&self, index: u64) -> Option<Packet> {
        if self.packets.is_null() || !self.size.is_power_of_two() {
            return None;
        }
        // SAFETY: a queue has `size` packets, a power of two. Others write to them meanwhile: nothing is believed but a kernel's
        // address, which is looked up, and signals of packets that were not taken.
        Some(unsafe { self.packets.add((index & (self.size - 1)) as usize).read_volatile() })
    }
}

fn read(queue: usize) -> Reading {
    let load = |address: &AtomicUsize| {
        // SAFETY: the address was read from an entry for a function of this type when the first queue could be made. A
        // queue in the list is there.
        unsafe { std::mem::transmute::<usize, LoadIndex>(address.load(Ordering::SeqCst))(queue as *const Queue) }
    };
    // In this order: a queue that moves meanwhile looks emptier, not fuller.
    let written = load(&WRITE_INDEX);
    Reading { written, read: load(&READ_INDEX) }
}

/// The kernel at which a queue stands: that of the next packet, or of the last one taken, which may still run.
fn kernel_at(queue: usize, reading: Reading) -> Option<String> {
    let ring = Ring::of(queue);
    let next = ring.packet(reading.read)?;
    if next.kind() == DISPATCH {
        return kernel_name(next.kernel_object());
    }
    let earlier = (1..=reading.read.min(ring.size - 1).min(64)).filter_map(|back| ring.packet(reading.read - back));
    earlier.filter(|it| it.kind() == TAKEN).find_map(|it| kernel_name(it.kernel_object()))
}

/// Reports the hang to `unhang run` and to standard error, and ends the process.
fn end_process(time: Duration, queues: usize, names: &[String]) -> ! {
    let _ = std::thread::Builder::new().name("unhang-farewell".to_owned()).spawn(|| {
        std::thread::sleep(LONGEST_FAREWELL);
        exit_at_once()
    });
    let report = HangReport::of_this_process("on the accelerator", time);
    if let Some(folder) = std::env::var_os("UNHANG_RUN_FOLDER").filter(|folder| !folder.is_empty()) {
        report.write(folder.as_ref());
    }
    let what = if queues == 1 { "a queue has".to_owned() } else { format!("{queues} queues have") };
    let place = match names {
        [] => "no kernel is known there".to_owned(),
        names => format!("at kernel {}", names.join(" and ")),
    };
    let text = format!(
        "unhang: HANG on the accelerator, outside watched convolutions: {what} held packets and not moved for {:.1} s, \
         {place}. Ending process {} with code {HANG_OUTSIDE}\n",
        time.as_secs_f64(),
        report.process
    );
    crate::log::line(format_args!("{}", text.trim_end()));
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    exit_at_once()
}

fn exit_at_once() -> ! {
    // SAFETY: ends the process without running anything of it; threads that wait for the card would keep `exit` waiting.
    unsafe { _exit(c_int::from(HANG_OUTSIDE)) }
}
