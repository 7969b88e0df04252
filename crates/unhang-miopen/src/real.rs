//! The real MIOpen, found among the mapped files, however it was loaded.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use unhang_miopen_api::Functions;

use crate::loader;

/// One mapped MIOpen.
pub(crate) struct Real {
    pub(crate) functions: Functions,
    /// Its file.
    pub(crate) path: String,
    /// Its base address, which distinguishes two of them.
    pub(crate) base: usize,
}

impl Real {
    fn load(path: &CStr, base: usize) -> Option<Real> {
        // SAFETY: the file is mapped already; this only counts a reference, which is never given back.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let getter = loader::real_dlsym(library, c"miopenGetTensorDescriptor");
        // A proxy has the name of MIOpen and none of its functions: they are in the library that it needs.
        if library.is_null() || loader::object_at(getter as usize).is_none_or(|(_, defined)| defined != base) {
            return None;
        }
        // SAFETY: the library holds MIOpen's functions, as was just seen, and is never given back.
        let functions = unsafe { Functions::load(&|name| loader::real_dlsym(library, name)) };
        Some(Real { functions, path: path.to_string_lossy().into_owned(), base })
    }
}

/// All that were found; we hold them, so they stay mapped.
static KNOWN: Mutex<Vec<&'static Real>> = Mutex::new(Vec::new());
/// The only one, as long as there is only one.
static ONLY: AtomicPtr<Real> = AtomicPtr::new(std::ptr::null_mut());
/// The one that each caller is linked to, by the caller's base address.
static OF_CALLERS: Mutex<Option<HashMap<usize, &'static Real>>> = Mutex::new(None);

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the C library hands over its entry and the place that was given to it below.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Vec<(CString, usize)>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a C string of the loader's, alive during this call.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if file.starts_with(b"libMIOpen") && file.windows(3).any(|it| it == b".so") {
        found.push((name.to_owned(), info.dlpi_addr as usize));
    }
    0
}

fn known() -> MutexGuard<'static, Vec<&'static Real>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Searches the mapped files. Called when a program starts to use a library: when it creates a handle, and when none is
/// known.
pub(crate) fn scan() {
    let mut found: Vec<(CString, usize)> = Vec::new();
    // SAFETY: the function above, with the place that it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let is_new = |base: usize| known().iter().all(|real| real.base != base);
    for (path, base) in found {
        // Not while the list is locked: the loader has a lock too, and under it constructors run that may come here.
        let Some(real) = is_new(base).then(|| Real::load(&path, base)).flatten() else { continue };
        let mut known = known();
        if known.iter().all(|real| real.base != base) {
            // Never given back: callers hold it.
            known.push(Box::leak(Box::new(real)));
        }
    }
    let known = known();
    let only = if let [only] = known[..] { std::ptr::from_ref(only).cast_mut() } else { std::ptr::null_mut() };
    ONLY.store(only, Ordering::Release);
}

/// The MIOpen that our caller would have called; `None` if none is mapped.
pub(crate) fn of_caller() -> Option<&'static Real> {
    let only = ONLY.load(Ordering::Acquire);
    if !only.is_null() {
        // SAFETY: set from a reference that lives for ever.
        return Some(unsafe { &*only });
    }
    if known().is_empty() {
        scan();
        let only = ONLY.load(Ordering::Acquire);
        if !only.is_null() {
            // SAFETY: as above.
            return Some(unsafe { &*only });
        }
    }
    among_several()
}

/// Of several, the one that the caller's own library is linked to, else the one of the last look-up.
fn among_several() -> Option<&'static Real> {
    let known = known().clone();
    let first = known.first().copied()?;
    let Some((caller, base)) = loader::caller() else { return Some(first) };
    let mut of_callers = OF_CALLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let of_callers = of_callers.get_or_insert_with(HashMap::new);
    if let Some(real) = of_callers.get(&base) {
        return Some(real);
    }
    unhang_session::say_once(&format!(
        "{} MIOpen libraries are in this process: each caller's own is used ({})",
        known.len(),
        known.iter().map(|real| real.path.as_str()).collect::<Vec<_>>().join(", ")
    ));
    let linked = loader::definition_for(&caller, c"miopenGetTensorDescriptor").or(Some(loader::looked_up()));
    let real = linked.and_then(|at| known.iter().find(|real| real.base == at)).copied().unwrap_or(first);
    of_callers.insert(base, real);
    Some(real)
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside the real library, or in a call that another face has planned: calls from there are
/// passed on. MIOpen calls some of its own functions through the table that leads here.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// Calls the real library.
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
        }
    }
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    let _leave = Leave;
    call()
}

/// For the face in torch's dispatcher: 1 says that this thread's following calls to MIOpen are planned already, 0 that
/// they no longer are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn unhang_miopen_planned(planned: c_int) {
    DEPTH.with(|depth| {
        let now = depth.get();
        depth.set(if planned != 0 { now + 1 } else { now.saturating_sub(1) });
    });
}
