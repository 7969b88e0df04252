//! A stand-in for the HSA runtime: a table of the real layout, filled with functions that note what reached them, and
//! the library loaded as the runtime loads it.
//!
//! The chip and the log are read from the environment when they are first asked for. So everything that depends on them
//! runs in a separate process: this test program again, with one of the parts below.

use std::ffi::{c_int, c_void};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libloading::Library;
use unhang_isa::Chip;
use unhang_isa::elf::CodeObject;
use unhang_isa::repair::{Options, repair_object};

const KERNELS: &[u8] = include_bytes!("../../unhang-emulator/tests/fixtures/kernels.gfx1030.co");
const NATIVE: &[u8] = include_bytes!("../../unhang-emulator/tests/fixtures/kernels.gfx1010.co");
/// Native code whose buffers are out of range on the chip.
const BUFFERS: &[u8] = include_bytes!("../../unhang-emulator/tests/fixtures/buffers.gfx1010.co");
const MOVES: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/moves.co");

/// What the stand-in's functions were called with: an address and a length, or a descriptor and `FILE`.
static CALLS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
const FILE: usize = usize::MAX;

unsafe extern "C" fn note_memory(object: *const c_void, size: usize, reader: *mut u64) -> u32 {
    CALLS.lock().unwrap().push((object as usize, size));
    if !reader.is_null() {
        // SAFETY: the caller gave a place for the handle.
        unsafe { *reader = 77 };
    }
    if size == 0 { 0x1001 } else { 0 }
}

unsafe extern "C" fn note_file(file: c_int, _reader: *mut u64) -> u32 {
    CALLS.lock().unwrap().push((file as usize, FILE));
    0
}

/// What the stand-in's queue was filled to, and how often each runtime was asked how far it was read.
static WRITTEN: AtomicU64 = AtomicU64::new(0);
static LOOKS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// A queue; without packets that could be looked at, unless a test has some.
static QUEUE: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// The functions of one of two runtimes.
unsafe extern "C" fn create<const RUNTIME: usize>(
    _agent: u64,
    _size: u32,
    _kind: u32,
    _callback: *const c_void,
    _data: *mut c_void,
    _private_size: u32,
    _group_size: u32,
    queue: *mut *const u64,
) -> u32 {
    // SAFETY: the caller gave a place for the address.
    unsafe { *queue = QUEUE.as_ptr().cast() };
    // Two runtimes have two functions, which a compiler must not make one.
    std::hint::black_box(RUNTIME);
    0
}

unsafe extern "C" fn destroy<const RUNTIME: usize>(_queue: *const u64) -> u32 {
    std::hint::black_box(RUNTIME);
    0
}

unsafe extern "C" fn read_index<const RUNTIME: usize>(_queue: *const u64) -> u64 {
    LOOKS[RUNTIME].fetch_add(1, Ordering::SeqCst);
    0
}

unsafe extern "C" fn write_index<const RUNTIME: usize>(_queue: *const u64) -> u64 {
    std::hint::black_box(RUNTIME);
    WRITTEN.load(Ordering::SeqCst)
}

type Create = unsafe extern "C" fn(u64, u32, u32, *const c_void, *mut c_void, u32, u32, *mut *const u64) -> u32;
type FromMemory = unsafe extern "C" fn(*const c_void, usize, *mut u64) -> u32;
type FromFile = unsafe extern "C" fn(c_int, *mut u64) -> u32;
type OnLoad = unsafe extern "C" fn(*mut c_void, u64, u64, *const *const i8) -> bool;

/// The tables as the runtime lays them out.
struct Runtime {
    root: Vec<u64>,
    core: Vec<u64>,
}

impl Runtime {
    /// A core table of that many bytes.
    fn new(major: u32, length: usize) -> Runtime {
        let version = |major: u32, length: usize| u64::from(major) | (length as u64) << 32;
        let mut core = vec![0xdead_beef; 127];
        core[0] = version(major, length);
        core[1] = 0;
        core[936 / 8] = note_file as *const () as u64;
        core[944 / 8] = note_memory as *const () as u64;
        let root = vec![version(major, 48), 0, core.as_mut_ptr() as u64, 0, 0, 0];
        Runtime { root, core }
    }

    /// With the queues of one of two runtimes.
    fn with_queues<const RUNTIME: usize>() -> Runtime {
        let mut runtime = Runtime::new(1, 1016);
        runtime.core[72 / 8] = create::<RUNTIME> as *const () as u64;
        runtime.core[88 / 8] = destroy::<RUNTIME> as *const () as u64;
        runtime.core[112 / 8] = read_index::<RUNTIME> as *const () as u64;
        runtime.core[128 / 8] = write_index::<RUNTIME> as *const () as u64;
        runtime
    }

    fn make_queue(&self) {
        // SAFETY: the table holds a function of this type.
        let function = unsafe { std::mem::transmute::<u64, Create>(self.core[72 / 8]) };
        let (nothing, mut queue) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: there is a place for the address.
        assert_eq!(unsafe { function(0, 64, 0, nothing, nothing, 0, 0, &mut queue) }, 0);
        assert_eq!(queue, QUEUE.as_ptr().cast());
    }

    fn load(&mut self, library: &Library) -> bool {
        // SAFETY: the library's function, called as the runtime calls it.
        unsafe {
            let on_load = library.get::<OnLoad>(b"OnLoad").unwrap();
            on_load(self.root.as_mut_ptr().cast(), 0, 0, std::ptr::null())
        }
    }

    fn is_untouched(&self) -> bool {
        self.core[936 / 8] == note_file as *const () as u64 && self.core[944 / 8] == note_memory as *const () as u64
    }

    /// Loads an object through the table and returns what reached the runtime.
    fn load_memory(&self, object: &[u8]) -> Vec<u8> {
        // SAFETY: the table holds a function of this type.
        let function = unsafe { std::mem::transmute::<u64, FromMemory>(self.core[944 / 8]) };
        let mut reader = 0;
        // SAFETY: the object is there for the call.
        let status = unsafe { function(object.as_ptr().cast(), object.len(), &mut reader) };
        assert_eq!((status, reader), (0, 77));
        let (address, size) = CALLS.lock().unwrap().pop().unwrap();
        // SAFETY: what reaches the runtime lives until the process ends, or is `object` itself.
        unsafe { std::slice::from_raw_parts(address as *const u8, size) }.to_vec()
    }

    fn load_file(&self, file: &std::fs::File) -> (usize, usize) {
        // SAFETY: the table holds a function of this type.
        let function = unsafe { std::mem::transmute::<u64, FromFile>(self.core[936 / 8]) };
        // SAFETY: an open descriptor, and a place for the handle.
        assert_eq!(unsafe { function(file.as_raw_fd(), &mut 0) }, 0);
        CALLS.lock().unwrap().pop().unwrap()
    }
}

fn library_path() -> PathBuf {
    // Beside the test program, in deps/: the copy one folder up is only made by `cargo build`, and may be old.
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    [folder, folder.parent().unwrap()]
        .map(|folder| folder.join("libunhang_shield.so"))
        .into_iter()
        .find(|path| path.exists())
        .expect("libunhang_shield.so is built with the tests")
}

fn library() -> Library {
    // SAFETY: our own library; its start-up code is Rust's.
    unsafe { Library::new(library_path()) }.unwrap()
}

fn expected(object: &[u8]) -> Vec<u8> {
    repair_object(object, Options { chip: Chip::Gfx1010, keep_size: false }).unwrap().bytes.unwrap()
}

/// A machine with one card, as the kernel driver describes it.
fn machine(version: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("sys/class/kfd/kfd/topology/nodes/1");
    std::fs::create_dir_all(&node).unwrap();
    std::fs::write(node.join("properties"), format!("simd_count 72\ngfx_target_version {version}\n")).unwrap();
    folder
}

/// Runs one of the parts in a separate process and returns the log.
fn run_part(part: &str, card: &str, settings: &[(&str, &Path)]) -> String {
    let machine = machine(card);
    let log = machine.path().join("log");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "in_a_process_of_its_own", "--test-threads=1"]).env("UNHANG_SHIELD_PART", part);
    command.env("UNHANG_ROOT", machine.path()).env("UNHANG_SHIELD_LOG", &log).env_remove("UNHANG_SHIELD_CACHE");
    command.envs(settings.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    std::fs::read_to_string(&log).unwrap_or_default()
}

/// What a process that was started by [`run_part`] does; elsewhere it does nothing.
#[test]
fn in_a_process_of_its_own() {
    match std::env::var("UNHANG_SHIELD_PART").as_deref() {
        Ok("repairs") => part_repairs(),
        Ok("buffers") => part_buffers(),
        Ok("marks") => part_marks(),
        Ok("threads") => part_threads(),
        Ok("passes") => part_passes(),
        Ok("two runtimes") => part_two_runtimes(),
        Ok("hangs unread") => part_hangs_unread(),
        Ok("waits for its host") => part_waits_for_its_host(),
        Ok(other) => panic!("no part {other}"),
        Err(_) => {}
    }
}

#[test]
fn objects_are_repaired_on_an_affected_card() {
    let log = run_part("repairs", "100100", &[]);
    assert!(log.contains("the card is a gfx1010"), "{log}");
    assert!(log.contains("gfx1030 object of 14144 bytes: 8 functions, 28 findings, 0 left"), "{log}");
    assert!(log.contains("left_illegal stays unsafe"), "{log}");
}

#[test]
fn our_own_objects_pass_in_silence_if_the_audit_agrees_with_their_mark() {
    let log = run_part("marks", "100100", &[]);
    assert_eq!(log.matches(" object of ").count(), 1, "only the one with the wrong tag: {log}");
}

#[test]
fn native_code_is_repaired_where_it_is_unsafe() {
    let log = run_part("buffers", "100100", &[]);
    assert!(
        log.contains("gfx1010 object of 4336 bytes: 3 functions, 6 findings, 2 left, 0 instructions inserted"),
        "{log}"
    );
    assert!(log.contains("add_constant stays unsafe"), "{log}");
    assert_eq!(log.matches("gfx1010 object of 14144 bytes: 8 functions, ").count(), 2, "{log}");
    assert_eq!(log.matches(" object of ").count(), 3, "the safe one passes in silence: {log}");
}

fn part_buffers() {
    let library = library();
    let mut runtime = Runtime::new(1, 1016);
    assert!(runtime.load(&library));
    let repaired = expected(BUFFERS);
    assert_ne!(repaired, BUFFERS);
    assert_eq!(runtime.load_memory(BUFFERS), repaired);
    assert_eq!(runtime.load_memory(NATIVE), NATIVE);
    // As inline assembly is: without the waits that a compiler adds.
    let mut hasty = NATIVE.to_vec();
    for word in hasty.chunks_exact_mut(4).filter(|word| **word == 0xbfa3_ffe3u32.to_le_bytes()) {
        word.copy_from_slice(&0xbf80_0000u32.to_le_bytes());
    }
    assert_eq!(runtime.load_memory(&hasty), expected(&hasty));
    // As PyTorch's sums are: eight bytes are read of local memory that begins behind an odd number of bytes.
    let mut odd = NATIVE.to_vec();
    let read = odd.windows(4).position(|word| word == 0xd8dc_0100u32.to_le_bytes()).unwrap();
    odd[read..read + 4].copy_from_slice(&0xd9d8_0000u32.to_le_bytes());
    let code = CodeObject::parse(NATIVE).unwrap();
    let sum = code.functions.iter().find(|function| function.name == "block_sum").unwrap().descriptor.unwrap();
    odd[sum.file_offset] |= 1;
    // In workgroup-processor mode.
    odd[sum.file_offset + 51] |= 1 << 5;
    assert_ne!(expected(&odd), odd);
    assert_eq!(runtime.load_memory(&odd), expected(&odd));
}

fn part_marks() {
    let library = library();
    let mut runtime = Runtime::new(1, 1016);
    assert!(runtime.load(&library));
    let mut ours = NATIVE.to_vec();
    ours[48] = Chip::Gfx1030.machine();
    unhang_isa::elf::mark(&mut ours, Chip::Gfx1010);
    assert_eq!(runtime.load_memory(&ours), ours);
    let mut liar = KERNELS.to_vec();
    unhang_isa::elf::mark(&mut liar, Chip::Gfx1010);
    assert_eq!(runtime.load_memory(&liar), expected(&liar));
}

#[test]
fn what_stays_unsafe_is_named_once_on_standard_error() {
    let machine = machine("100100");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "in_a_process_of_its_own", "--test-threads=1", "--nocapture"]);
    command.env("UNHANG_SHIELD_PART", "repairs").env("UNHANG_ROOT", machine.path()).env_remove("UNHANG_SHIELD_LOG");
    let run = tempfile::tempdir().unwrap();
    command.env("UNHANG_RUN_FOLDER", run.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let told = std::fs::read_dir(run.path()).unwrap().map(|it| it.unwrap().path());
    let told = told.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("unsafe-"));
    let lines: String = told.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let line = lines.lines().find(|line| line.starts_with("left_illegal\t")).expect(&lines);
    assert_eq!(line.split('\t').nth(2), Some("no switch is known that avoids it"), "{line}");
    assert_eq!(text.matches("stays unsafe on this gfx1010: ").count(), 1, "{text}");
    assert!(text.contains("others (UNHANG_SHIELD_LOG=FILE lists them)"), "{text}");
}

fn part_repairs() {
    let library = library();
    let mut runtime = Runtime::new(1, 1016);
    assert!(runtime.load(&library));
    assert!(!runtime.is_untouched());
    for object in [KERNELS, MOVES] {
        assert_eq!(runtime.load_memory(object), expected(object));
        // From the cache the second time, wherever the bytes lie.
        let elsewhere = object.to_vec();
        assert_eq!(runtime.load_memory(&elsewhere), expected(object));
    }
    assert_eq!(runtime.load_memory(NATIVE), NATIVE, "native code is left alone");

    // What is no code object, or a damaged one, goes through.
    let mut other_family = KERNELS.to_vec();
    other_family[48] = 0x2f;
    let mut no_tables = KERNELS.to_vec();
    no_tables[40..48].fill(0xff);
    for object in [&b"words"[..], &[0; 4096], &KERNELS[..64], &KERNELS[..40], &other_family, &no_tables] {
        assert_eq!(runtime.load_memory(object), object);
    }
    // SAFETY: the table holds a function of this type.
    let function = unsafe { std::mem::transmute::<u64, FromMemory>(runtime.core[944 / 8]) };
    for (object, size) in [(std::ptr::null(), 0), (KERNELS.as_ptr(), 0), (std::ptr::null(), 64)] {
        // SAFETY: the stand-in does not read what it gets.
        unsafe { function(object.cast(), size, &mut 0) };
        assert_eq!(CALLS.lock().unwrap().pop(), Some((object as usize, size)));
    }

    // From a file: handed on as memory, and the file's position stays.
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, KERNELS).unwrap();
    file.seek(SeekFrom::Start(7)).unwrap();
    let (address, size) = runtime.load_file(&file);
    // SAFETY: what is repaired lives until the process ends.
    assert_eq!(unsafe { std::slice::from_raw_parts(address as *const u8, size) }, expected(KERNELS));
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, &KERNELS[7..]);
    let mut native = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut native, NATIVE).unwrap();
    assert_eq!(runtime.load_file(&native), (native.as_raw_fd() as usize, FILE));
    let folder = std::fs::File::open("/").unwrap();
    assert_eq!(runtime.load_file(&folder), (folder.as_raw_fd() as usize, FILE));

    // A runtime that starts again: the same table, then a new one.
    assert!(runtime.load(&library));
    assert_eq!(runtime.load_memory(KERNELS), expected(KERNELS));
    let mut second = Runtime::new(2, 2000);
    assert!(second.load(&library));
    assert_eq!(second.load_memory(KERNELS), expected(KERNELS));
}

#[test]
fn threads_that_load_at_once_all_get_the_same() {
    run_part("threads", "100102", &[]);
}

fn part_threads() {
    let library = library();
    let mut runtime = Runtime::new(1, 1016);
    assert!(runtime.load(&library));
    let function = runtime.core[944 / 8];
    let wanted: Vec<Vec<u8>> = [KERNELS, MOVES]
        .map(|object| repair_object(object, Options { chip: Chip::Gfx1012, keep_size: false }).unwrap().bytes.unwrap())
        .into();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                // SAFETY: the table holds a function of this type.
                let function = unsafe { std::mem::transmute::<u64, FromMemory>(function) };
                for round in 0..20 {
                    let object = [KERNELS, MOVES, NATIVE, b"words"][(thread + round) % 4];
                    // SAFETY: the object is there for the call.
                    assert_eq!(unsafe { function(object.as_ptr().cast(), object.len(), &mut 0) }, 0);
                }
            });
        }
    });
    let calls = std::mem::take(&mut *CALLS.lock().unwrap());
    assert_eq!(calls.len(), 160);
    for (address, size) in calls {
        // SAFETY: either a constant of this test or what is repaired; both live until the process ends.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, size) };
        assert!(wanted.iter().any(|wanted| wanted == bytes) || bytes == NATIVE || bytes == b"words");
    }
}

#[test]
fn on_other_cards_nothing_is_repaired() {
    for card in ["100300", "110000", "0"] {
        let log = run_part("passes", card, &[]);
        assert!(log.contains("no RDNA1 card"), "{log}");
    }
}

fn part_passes() {
    let library = library();
    let mut runtime = Runtime::new(1, 1016);
    assert!(runtime.load(&library));
    assert_eq!(runtime.load_memory(KERNELS), KERNELS);
}

#[test]
fn queues_are_read_by_their_own_runtime_and_not_after_it_has_shut_down() {
    run_part("two runtimes", "100100", &[("UNHANG_QUEUE_DEADLINE", Path::new("600"))]);
}

fn part_two_runtimes() {
    let library = library();
    let (mut first, mut second) = (Runtime::with_queues::<0>(), Runtime::with_queues::<1>());
    assert!(first.load(&library));
    first.make_queue();
    assert!(second.load(&library));
    let looks = || [0, 1].map(|runtime: usize| LOOKS[runtime].load(Ordering::SeqCst));
    let (before, started) = (looks()[0], Instant::now());
    while looks()[0] < before + 2 {
        assert!(started.elapsed() < Duration::from_secs(60) && looks()[1] == 0, "{:?}", looks());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(looks()[1], 0, "the second runtime read the first one's queue");
    // SAFETY: the library's function, called as the runtime calls it.
    unsafe { library.get::<extern "C" fn()>(b"OnUnload").unwrap()() };
    let before = looks();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(looks(), before, "a queue was read after its runtime had shut down");
}

#[test]
fn a_deadline_that_is_none_is_named_in_the_log() {
    let log = run_part("passes", "100300", &[("UNHANG_QUEUE_DEADLINE", Path::new("soon"))]);
    assert!(log.contains("queues are not watched: UNHANG_QUEUE_DEADLINE: 'soon' is not a duration"), "{log}");
}

#[test]
fn a_process_that_hangs_ends_though_nobody_reads_its_standard_error() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "in_a_process_of_its_own", "--nocapture"]).env("UNHANG_SHIELD_PART", "hangs unread");
    command.env("UNHANG_QUEUE_DEADLINE", "1").env("UNHANG_SHIELD_LOG", "stderr");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            None if started.elapsed() < Duration::from_secs(90) => std::thread::sleep(Duration::from_millis(50)),
            None => {
                child.kill().unwrap();
                panic!("it did not end: {}", child.wait().unwrap());
            }
            Some(status) => break status,
        }
    };
    assert_eq!(status.code(), Some(87));
}

fn part_hangs_unread() {
    let library = library();
    let mut runtime = Runtime::with_queues::<0>();
    assert!(runtime.load(&library));
    // Fills the pipe, and waits from then on.
    std::thread::spawn(|| {
        loop {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), &[b'.'; 4096]);
        }
    });
    // Nothing is said before the pipe is full.
    std::thread::sleep(Duration::from_secs(2));
    WRITTEN.store(1, Ordering::SeqCst);
    runtime.make_queue();
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn a_queue_that_waits_for_its_host_at_a_barrier_is_no_hang() {
    run_part("waits for its host", "100100", &[("UNHANG_QUEUE_DEADLINE", Path::new("1"))]);
}

fn part_waits_for_its_host() {
    /// A barrier, as HSA lays it out: five signals to wait for and one to count down.
    #[repr(align(64))]
    struct Ring([[u64; 8]; 4]);
    let signal: &'static [u64; 16] = Box::leak(Box::new([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let mut ring = Box::new(Ring([[0; 8]; 4]));
    ring.0[0] = [3, signal.as_ptr() as u64, 0, 0, 0, 0, 0, 0];
    let ring: &'static Ring = Box::leak(ring);
    QUEUE[1].store(ring.0.as_ptr() as u64, Ordering::SeqCst);
    QUEUE[3].store(ring.0.len() as u64, Ordering::SeqCst);
    let library = library();
    let mut runtime = Runtime::with_queues::<0>();
    assert!(runtime.load(&library));
    WRITTEN.store(1, Ordering::SeqCst);
    runtime.make_queue();
    // Four times as long as queues may stand; it would have ended by then.
    std::thread::sleep(Duration::from_secs(4));
}

#[test]
fn tables_that_are_not_known_are_left_alone() {
    let library = library();
    for (major, length) in [(1, 936), (1, 944), (1, 951), (1, 0), (0, 1016), (9, 1016)] {
        let mut runtime = Runtime::new(major, length);
        assert!(runtime.load(&library), "OnLoad always returns true");
        // With room for one of the two entries, neither is touched.
        assert!(runtime.is_untouched(), "version {major}, {length} bytes");
    }
    let mut no_core = Runtime::new(1, 1016);
    no_core.root[2] = 0;
    assert!(no_core.load(&library));
    // SAFETY: the library's function; a null table is allowed.
    unsafe {
        let on_load = library.get::<OnLoad>(b"OnLoad").unwrap();
        assert!(on_load(std::ptr::null_mut(), 0, 0, std::ptr::null()));
        library.get::<extern "C" fn()>(b"OnUnload").unwrap()();
    }
}

#[test]
fn a_folder_keeps_what_was_repaired_for_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let settings: &[(&str, &Path)] = &[("UNHANG_SHIELD_CACHE", folder.path())];
    let first = run_part("repairs", "100100", settings);
    assert!(first.contains("28 findings"), "{first}");
    let files = || -> Vec<PathBuf> { std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().path()).collect() };
    assert_eq!(files().len(), 2);
    let second = run_part("repairs", "100100", settings);
    assert!(!second.contains("28 findings"), "repaired again: {second}");
    assert!(second.contains("left_illegal stays unsafe"), "named from what was kept, too: {second}");
    // Damaged files are not trusted.
    for file in files() {
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let third = run_part("repairs", "100100", settings);
    assert!(third.contains("28 findings"), "{third}");
}

/// The numbers in `hsa.rs`, `table.rs` and `watch.rs` against the header of a real runtime.
#[test]
fn the_layout_is_that_of_the_runtime() {
    let header = Path::new("/usr/include/hsa/hsa_api_trace.h");
    let compiler = ["c++", "clang++", "clang++-15", "clang++-19", "g++"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
    let (true, Some(compiler)) = (header.exists(), compiler) else {
        println!("skipped: there is no {} or no C++ compiler here", header.display());
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // The header expects its companions under inc/.
    std::fs::create_dir(folder.path().join("inc")).unwrap();
    for name in ["hsa_ext_image.h", "hsa_ext_amd.h", "hsa_ext_finalize.h"] {
        std::fs::write(folder.path().join("inc").join(name), format!("#include <hsa/{name}>\n")).unwrap();
    }
    let source = folder.path().join("layout.cpp");
    std::fs::write(
        &source,
        "#include <hsa/hsa_api_trace.h>\n#include <cstdio>\nint main() {\n  std::printf(\"%zu %zu %zu %zu %d %d %zu %zu %zu %zu %zu\",\n\
         offsetof(HsaApiTable, core_), offsetof(CoreApiTable, hsa_code_object_reader_create_from_file_fn),\n\
         offsetof(CoreApiTable, hsa_code_object_reader_create_from_memory_fn), sizeof(CoreApiTable),\n\
         HSA_API_TABLE_MAJOR_VERSION, HSA_CORE_API_TABLE_MAJOR_VERSION,\n\
         offsetof(CoreApiTable, hsa_queue_create_fn), offsetof(CoreApiTable, hsa_queue_destroy_fn),\n\
         offsetof(CoreApiTable, hsa_queue_load_read_index_relaxed_fn),\n\
         offsetof(CoreApiTable, hsa_queue_load_write_index_relaxed_fn),\n\
         offsetof(CoreApiTable, hsa_executable_symbol_get_info_fn));\n}\n",
    )
    .unwrap();
    let program = folder.path().join("layout");
    let compiled = Command::new(compiler)
        .arg("-w")
        .arg("-I")
        .arg(folder.path())
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(program).output().unwrap().stdout;
    let found = String::from_utf8(output).unwrap();
    let fields: Vec<usize> = found.split(' ').map(|field| field.parse().unwrap()).collect();
    assert_eq!(fields[..3], [16, 936, 944], "core, from_file, from_memory");
    assert!(fields[3] >= 952 && fields[4..6] == [1, 1], "{found}");
    assert_eq!(fields[6..], [72, 88, 112, 128, 760], "queues made, destroyed, read, written; symbols");
}
