//! The OpenMP team of a library that is loaded already, as the team that computes.
//!
//! A process that computes by turns with us and with an OpenMP library has two sets of threads. Those of OpenMP go on
//! looking for work for a while after they have done theirs (milliseconds by default): ours would share the cores with
//! threads that do nothing. So we run on theirs, which are awake. Nothing is loaded: where the library, or OpenMP in
//! it, is not there, there is no such team.

use std::any::Any;
#[cfg(target_os = "linux")]
use std::ffi::{CStr, CString};
use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

/// `GOMP_parallel(work, data, threads, flags)`: GCC's entry to a parallel region, which LLVM's and Intel's runtimes have
/// too. It calls `work(data)` on each thread of a team, the caller among them, and waits for all. Within another region
/// the team is the caller alone.
type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
/// `omp_get_max_threads()`: the threads of the next region of the calling thread.
type MaxThreads = unsafe extern "C" fn() -> c_int;

/// `omp_pause_resource_all(kind)`: ends the threads of the calling thread's team; the next region starts them again.
type Pause = unsafe extern "C" fn(c_int) -> c_int;

/// The functions, and the process that found them: a forked child has none of the team's threads.
struct OpenMp {
    parallel: Parallel,
    max_threads: MaxThreads,
    pause: Option<Pause>,
    process: u32,
}

static FOUND: OnceLock<Option<OpenMp>> = OnceLock::new();

/// Has all computations of the process run on the threads of the OpenMP that a loaded library uses. This applies
/// whenever a computation is asked to use as many threads as that OpenMP would. True if there is such a library and it
/// has one. The first library that is named decides; later calls only say what it was. A version may follow the name.
///
/// The team's threads end before a fork, where OpenMP can end them (version 5.0 and newer). So its next region in the
/// child starts new ones, instead of waiting for threads that the child does not have.
///
/// ```
/// assert!(!unhang_cpu::use_openmp_of("libnobody-has-this.so"));
/// ```
pub fn use_openmp_of(library: &str) -> bool {
    FOUND.get_or_init(|| find(library).inspect(OpenMp::end_before_forks)).is_some()
}

/// The file of a loaded library, by its name with or without a version behind it.
#[cfg(target_os = "linux")]
fn loaded_file(library: &str) -> Option<CString> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let file = maps.lines().filter_map(|line| line.find('/').map(|path| &line[path..])).find(|file| {
        let name = file.rsplit('/').next().unwrap_or(file);
        name.strip_prefix(library).is_some_and(|version| version.is_empty() || version.starts_with('.'))
    });
    CString::new(file?).ok()
}

#[cfg(target_os = "linux")]
fn find(library: &str) -> Option<OpenMp> {
    let library = loaded_file(library)?;
    // SAFETY: a C string; nothing is loaded, so that no foreign code is run. The handle is never closed, so that what is
    // found in it stays.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle that was just opened and a C string; the library's dependencies are searched too.
    let symbol = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let (parallel, max_threads) = (symbol(c"GOMP_parallel"), symbol(c"omp_get_max_threads"));
    let pause = symbol(c"omp_pause_resource_all");
    if parallel.is_null() || max_threads.is_null() {
        return None;
    }
    // SAFETY: these names belong to OpenMP's runtimes, which give them these types.
    unsafe {
        Some(OpenMp {
            parallel: std::mem::transmute::<*mut c_void, Parallel>(parallel),
            max_threads: std::mem::transmute::<*mut c_void, MaxThreads>(max_threads),
            pause: (!pause.is_null()).then(|| std::mem::transmute::<*mut c_void, Pause>(pause)),
            process: std::process::id(),
        })
    }
}

#[cfg(not(target_os = "linux"))]
fn find(_: &str) -> Option<OpenMp> {
    None
}

/// Calls `work` once on each thread of the team and waits for all. False, without a call, where there is no team of
/// that many threads. The team may turn out smaller, down to the caller alone. A panic goes on here.
pub(crate) fn run_on_team(threads: usize, work: &(dyn Fn() + Sync)) -> bool {
    FOUND.get().is_some_and(|found| found.as_ref().is_some_and(|openmp| openmp.run(threads, work)))
}

/// What every fork calls first, on the thread that forks.
extern "C" fn before_fork() {
    const SOFT: c_int = 1;
    if let Some(Some(OpenMp { pause: Some(pause), .. })) = FOUND.get() {
        // SAFETY: it refuses where there is a region, and what it is given is one of its two kinds.
        unsafe { pause(SOFT) };
    }
}

impl OpenMp {
    fn end_before_forks(&self) {
        #[cfg(target_os = "linux")]
        if self.pause.is_some() {
            // SAFETY: a function that stays as long as the process, does not unwind, and takes no lock of ours.
            unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
        }
    }

    fn run(&self, threads: usize, work: &(dyn Fn() + Sync)) -> bool {
        // SAFETY: a function without conditions.
        let wanted = || usize::try_from(unsafe { (self.max_threads)() });
        // A team of another size would end threads that the next region of others has to start again.
        if self.process != std::process::id() || wanted() != Ok(threads) {
            return false;
        }
        let call = Call { work, panic: Mutex::new(None) };
        // SAFETY: `enter` gets a call that outlives the region: all threads are waited for. It does not unwind.
        unsafe { (self.parallel)(enter, (&raw const call).cast_mut().cast(), threads as c_uint, 0) };
        if let Some(panic) = call.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        true
    }
}

struct Call<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What every thread of the team calls.
extern "C" fn enter(call: *mut c_void) {
    // SAFETY: the caller's own, which it shares with all threads and changes only by its lock.
    let call = unsafe { &*call.cast_const().cast::<Call<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call.work)) {
        call.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A team as OpenMP's: the caller and new threads.
    unsafe extern "C" fn parallel(work: extern "C" fn(*mut c_void), data: *mut c_void, threads: c_uint, _: c_uint) {
        let data = data as usize;
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(|| work(data as *mut c_void))));
            work(data as *mut c_void);
        });
    }

    unsafe extern "C" fn three() -> c_int {
        3
    }

    fn team(process: u32) -> OpenMp {
        OpenMp { parallel, max_threads: three, pause: None, process }
    }

    #[test]
    fn every_thread_of_the_team_works() {
        let calls = AtomicUsize::new(0);
        let work = || {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        assert!(team(std::process::id()).run(3, &work));
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        assert!(!team(std::process::id()).run(2, &work), "a team of another size");
        assert!(!team(std::process::id() + 1).run(3, &work), "a team whose threads stayed with the parent");
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_loaded_library_is_found_by_its_name() {
        let file = loaded_file("libc.so").expect("the C library, with its version");
        assert!(file.to_str().is_ok_and(|file| file.contains("/libc.so.")), "{file:?}");
        assert_eq!(loaded_file("libc.s"), None);
    }

    #[test]
    fn a_panic_comes_back_to_the_caller() {
        let caller = std::thread::current().id();
        let work = || assert_eq!(std::thread::current().id(), caller, "not the caller");
        let ended = catch_unwind(|| team(std::process::id()).run(3, &work));
        let panic = ended.expect_err("two threads of the team panic");
        assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("not the caller")));
    }
}
