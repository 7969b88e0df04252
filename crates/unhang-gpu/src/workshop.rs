//! Where kernels are compiled: once each, by whoever asks first, or by threads in the background.
//!
//! The threads only compile: nothing here touches the device, so a stream that records a graph is never disturbed. They
//! are started when there is work and end when there is none. A process that ends calls [`Workshop::close`], which
//! waits for what is being compiled, up to a given limit.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cache::{Cache, Key};
use crate::compiler::{CompileError, Compiler};
use crate::error::GpuError;
use crate::objects::{key_of, object_for};
use crate::shipped::Shipped;
use crate::sources::Kernel;

/// At most this many threads, and half of the cores: the user's program wants some too.
const MOST_THREADS: usize = 8;

/// How much nicer than the rest of the process the threads are.
const NICER: libc::c_int = 5;

/// Lets the process's other threads go first: what is compiled pays later, what they do is waited for now.
fn give_way() {
    // SAFETY: plain system calls, which on Linux concern the calling thread alone; where they fail nothing is changed.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, nice + NICER);
    }
}

/// A compiled object, or why there is none.
type Compiled = Result<Arc<Vec<u8>>, GpuError>;

pub(crate) struct Workshop {
    compiler: Arc<dyn Compiler>,
    cache: Option<Cache>,
    shipped: Option<Shipped>,
    true_architecture: String,
    reported_architecture: String,
    state: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Kernel>,
    being_compiled: HashSet<Kernel>,
    /// What was neither shipped nor in the cache when somebody looked, until it is compiled.
    absent: HashSet<Kernel>,
    /// What was compiled in the background and not yet asked for.
    done: HashMap<Kernel, Compiled>,
    threads: usize,
    closed: bool,
    /// Kernels that a compiler was run for in this process: none on a second start.
    compiled: u64,
}

impl Workshop {
    pub(crate) fn new(
        compiler: Arc<dyn Compiler>,
        cache: Option<Cache>,
        shipped: Option<Shipped>,
        true_architecture: &str,
        reported_architecture: &str,
    ) -> Arc<Workshop> {
        Arc::new(Workshop {
            compiler,
            cache,
            shipped,
            true_architecture: true_architecture.to_owned(),
            reported_architecture: reported_architecture.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// The state behind a poisoned lock is whole: no code of ours leaves it half changed.
    fn state(&self) -> MutexGuard<'_, Jobs> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came with the package.
    pub(crate) fn shipped(&self) -> Option<&Shipped> {
        self.shipped.as_ref()
    }

    /// Whether kernels can be compiled here.
    pub(crate) fn can_compile(&self) -> bool {
        self.compiler.missing().is_none()
    }

    /// Why no kernel is available at all.
    pub(crate) fn has_kernels(&self) -> Result<(), CompileError> {
        match self.compiler.missing() {
            Some(error) if !self.shipped.as_ref().is_some_and(|it| it.serves(&self.true_architecture)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether a kernel for this chip came with the package.
    pub(crate) fn is_shipped(&self, kernel: &Kernel) -> bool {
        self.shipped.as_ref().is_some_and(|shipped| shipped.entry(kernel, &self.true_architecture).is_some())
    }

    /// What a kernel's object is kept under.
    pub(crate) fn key(&self, kernel: &Kernel) -> Key {
        let shipped = self.shipped.as_ref().and_then(|shipped| shipped.entry(kernel, &self.true_architecture));
        if let Some(entry) = shipped {
            return Key::of([entry.sha256.as_str(), &self.reported_architecture]);
        }
        key_of(&*self.compiler, kernel, &self.true_architecture, &self.reported_architecture)
    }

    /// How many kernels were compiled in this process, and not found in the cache.
    pub(crate) fn compiled(&self) -> u64 {
        self.state().compiled
    }

    /// How many kernels are being compiled in the background, or wait for it.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.state();
        state.queue.len() + state.being_compiled.len()
    }

    /// How many kernels are kept in memory until somebody asks for them, or are going to be.
    pub(crate) fn held(&self) -> usize {
        let state = self.state();
        state.done.len() + state.queue.len() + state.being_compiled.len()
    }

    /// What came with the package, else what was compiled before. A shipped object that is damaged or refused is as good as
    /// absent; `unhang kernels list --shipped` says so.
    fn cached(&self, kernel: &Kernel) -> Option<Arc<Vec<u8>>> {
        let shipped = self.shipped.as_ref();
        let object =
            shipped.and_then(|it| it.object(kernel, &self.true_architecture, &self.reported_architecture)?.ok());
        if let Some(object) = object {
            return Some(Arc::new(object));
        }
        self.cache.as_ref()?.get(self.key(kernel)).map(Arc::new)
    }

    fn compile(&self, kernel: &Kernel) -> Compiled {
        self.state().compiled += 1;
        object_for(&*self.compiler, self.cache.as_ref(), kernel, &self.true_architecture, &self.reported_architecture)
            .map(Arc::new)
    }

    /// The object of a kernel if it is available without compiling: compiled in the background before, or in the cache.
    /// An error is that of the background's compiler. What was looked for in vain and waits to be compiled is not looked for again.
    pub(crate) fn at_once(&self, kernel: &Kernel) -> Option<Compiled> {
        {
            let state = self.state();
            if let Some(known) = state.done.get(kernel) {
                return Some(known.clone());
            }
            let waits = state.being_compiled.contains(kernel) || state.queue.contains(kernel);
            if waits && state.absent.contains(kernel) {
                return None;
            }
        }
        let found = self.cached(kernel);
        if found.is_none() {
            self.state().absent.insert(kernel.clone());
        }
        found.map(Ok)
    }

    /// The object of a kernel, compiled here and now if need be. Waits where a thread of ours is at it already.
    pub(crate) fn now(&self, kernel: &Kernel) -> Compiled {
        {
            let mut state = self.state();
            while state.being_compiled.contains(kernel) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(known) = state.done.remove(kernel) {
                return known;
            }
            state.queue.retain(|queued| queued != kernel);
        }
        match self.cached(kernel) {
            Some(object) => Ok(object),
            None => self.compile(kernel),
        }
    }

    /// Asks for kernels to be compiled in the background.
    pub(crate) fn later<'a>(self: &Arc<Workshop>, kernels: impl Iterator<Item = &'a Kernel>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        for kernel in kernels {
            let known = state.done.contains_key(kernel)
                || state.being_compiled.contains(kernel)
                || state.queue.contains(kernel);
            if !known {
                state.queue.push_back(kernel.clone());
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = state.queue.len().min(MOST_THREADS).min(cores.div_ceil(2));
        while state.threads < wanted {
            let own = Arc::clone(self);
            let thread = std::thread::Builder::new().name("unhang-compile".into()).spawn(move || own.work());
            if thread.is_err() {
                break; // No thread to be had: what was asked for is compiled when it is needed.
            }
            state.threads += 1;
        }
    }

    fn work(&self) {
        give_way();
        loop {
            let kernel = {
                let mut state = self.state();
                let Some(kernel) = state.queue.pop_front() else {
                    state.threads -= 1;
                    self.changed.notify_all();
                    return;
                };
                state.being_compiled.insert(kernel.clone());
                kernel
            };
            // Others wait for this kernel: a panic must not keep it for ever.
            let object =
                catch_unwind(AssertUnwindSafe(|| self.cached(&kernel).map_or_else(|| self.compile(&kernel), Ok)));
            let object = object.unwrap_or_else(|_| Err(CompileError::Unusable("it panicked".to_owned()).into()));
            let mut state = self.state();
            state.being_compiled.remove(&kernel);
            state.absent.remove(&kernel);
            state.done.insert(kernel, object);
            self.changed.notify_all();
        }
    }

    /// Waits until nothing is left to compile; false if the time ran out first.
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state();
        while state.threads > 0 {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Forgets what is queued and takes nothing more; waits up to that long for what is being compiled. A compiler
    /// must not be at work while the process takes its libraries down.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        {
            let mut state = self.state();
            state.closed = true;
            state.queue.clear();
        }
        self.settle(patience)
    }
}
