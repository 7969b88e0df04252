//! `dlsym`: frameworks that look MIOpen's functions up in a handle are not reached by preloading alone.
//!
//! What is not ours goes on by a jump, so that the real `dlsym` sees its caller's address: RTLD_NEXT depends on it.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::interpose;
use crate::loader::{self, REAL, real_dlsym};

/// Our function if a look-up is for one; null otherwise, and the real `dlsym` is called.
///
/// # Safety
/// As `dlsym`.
unsafe extern "C" fn ours_or_null(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = loader::real();
    if name.is_null() || handle == libc::RTLD_NEXT {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller gives a C string.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"miopen") {
        return std::ptr::null_mut();
    }
    let Some(ours) = interpose::exported(name) else { return std::ptr::null_mut() };
    // A library that lacks this function must still appear to lack it.
    // SAFETY: as the caller's own call.
    let found = real.map_or(std::ptr::null_mut(), |dlsym| unsafe { dlsym(handle, name.as_ptr()) });
    if found.is_null() {
        return found;
    }
    // Behind a proxy the look-up finds our function; this one is MIOpen's alone.
    if real_dlsym(handle, c"miopenGetTensorDescriptor").is_null() {
        // In the whole program the only such function is ours, preloaded. A program that asks whether MIOpen is loaded
        // must learn that it is not. This leaves the loader's own message for `dlerror`.
        let absent = [name.to_bytes(), b" (no MIOpen is loaded)"].concat();
        if let Ok(absent) = CString::new(absent) {
            real_dlsym(handle, &absent);
        }
        return NOTHING;
    }
    loader::note_look_up(handle);
    ours
}

/// Means "no such function"; null means "ask the real one".
const NOTHING: *mut c_void = std::ptr::without_provenance_mut(1);

/// As in the C library, but that MIOpen's convolutions are ours.
///
/// # Safety
/// As in the C library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {hook}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "cmp rax, {nothing}",
        "jne 3f",
        "xor eax, eax",
        "3:",
        "ret",
        "2:",
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        hook = sym ours_or_null,
        real = sym REAL,
        nothing = const 1,
    )
}
