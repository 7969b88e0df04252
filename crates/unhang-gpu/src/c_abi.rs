//! A small C interface: what a Python program needs to run the engine on its own tensors with `ctypes`.
//!
//! Every function that can fail returns null or a number other than 0 and leaves a text for [`unhang_gpu_error`]. Texts
//! that go in end in NUL; texts that come out are written into the caller's buffer, as much as fits.

mod operations;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use unhang_conv::Problem;

use crate::cache::Cache;
use crate::candidates::{Candidate, general_candidates, half_candidates};
use crate::choice::Choice;
use crate::compiler::Nvrtc;
use crate::driver::VendorDriver;
use crate::plan::{Form, LaunchPlan};
use crate::{DevicePointers, GpuEngine, GpuSettings, Prepared};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn report<T>(result: Result<T, String>) -> Option<T> {
    result
        .map_err(|message| {
            let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
            LAST_ERROR.with(|last| *last.borrow_mut() = text);
        })
        .ok()
}

/// # Safety
/// `text` must be null or end in NUL.
unsafe fn read<'a>(text: *const c_char) -> Result<&'a str, String> {
    if text.is_null() {
        return Err("a text is missing".into());
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|error| error.to_string())
}

/// # Safety
/// As [`read`].
unsafe fn read_problem(text: *const c_char) -> Result<Problem, String> {
    // SAFETY: the caller's promise.
    unsafe { read(text) }?.parse().map_err(|error: unhang_conv::KeyError| error.to_string())
}

/// # Safety
/// As [`read`].
unsafe fn read_choice(text: *const c_char) -> Result<Option<(Choice, Form)>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { read(text) }?;
    let (choice, form) = match text.strip_prefix("general:") {
        Some(choice) => (choice, Form::General),
        None => (text, Form::Specialised),
    };
    Ok(Some((choice.parse().map_err(|error: crate::choice::UnknownChoice| error.to_string())?, form)))
}

/// # Safety
/// `buffer` must have `length` bytes.
unsafe fn write(text: &str, buffer: *mut c_char, length: usize) -> usize {
    let count = text.len().min(length.saturating_sub(1));
    if length > 0 {
        // SAFETY: at most `length` bytes with the NUL.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
            *buffer.add(count) = 0;
        }
    }
    text.len() + 1
}

/// What went wrong last on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn unhang_gpu_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// An engine on NVIDIA's device with that number; null without such a device. Never freed.
///
/// # Safety
/// `cache_folder` must be null or end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_open(ordinal: i32, cache_folder: *const c_char) -> *mut GpuEngine {
    let engine = (|| {
        let mut settings = GpuSettings::default();
        if !cache_folder.is_null() {
            // SAFETY: the caller's promise.
            settings.cache_folder = Some(unsafe { read(cache_folder) }?.into());
        }
        let driver = VendorDriver::cuda(ordinal).map_err(|error| error.to_string())?;
        Ok(GpuEngine::new(Box::new(driver), settings))
    })();
    report(engine).map_or(std::ptr::null_mut(), |engine| Box::into_raw(Box::new(engine)))
}

/// Compiles a problem's kernels into a cache; needs no device, so that many processes can share the work.
///
/// # Safety
/// The texts must end in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_compile(
    problem: *const c_char,
    choice: *const c_char,
    architecture: *const c_char,
    cache_folder: *const c_char,
) -> i32 {
    let result = (|| {
        // SAFETY: the caller's promise.
        let (problem, choice, architecture, folder) =
            unsafe { (read_problem(problem)?, read_choice(choice)?, read(architecture)?, read(cache_folder)?) };
        let (choice, form) = choice.unwrap_or((Choice::Plain, Form::Specialised));
        let plan = LaunchPlan::with_form(&problem, &choice, form).map_err(|error| error.to_string())?;
        let compiler = Nvrtc::find().map_err(|error| error.to_string())?;
        let cache = Cache::open(folder.as_ref(), u64::MAX).map_err(|error| error.to_string())?;
        for stage in &plan.stages {
            crate::objects::object_for(&compiler, Some(&cache), &stage.kernel, architecture, architecture)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    })();
    report(result).map_or(1, |()| 0)
}

/// The ways to compute a problem, one a line: choice, the model's seconds, bytes of workspace. After them come the ways
/// used only on request, then those with general kernels (`general:` before the choice). Returns the bytes needed, or 0
/// for an error.
///
/// # Safety
/// An engine of [`unhang_gpu_open`], a text that ends in NUL, a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_candidates(
    engine: *const GpuEngine,
    problem: *const c_char,
    buffer: *mut c_char,
    length: usize,
) -> usize {
    let result = (|| {
        // SAFETY: the caller's promise.
        let (engine, problem) = unsafe { (&*engine, read_problem(problem)?) };
        engine.supports(&problem).map_err(|error| error.to_string())?;
        let model = &engine.driver().description().model;
        let line =
            |form: &str, c: &Candidate| format!("{form}{}\t{:e}\t{}", c.choice, c.seconds, c.plan.workspace_bytes);
        let half = half_candidates(&problem, model, 1 << 30);
        let mut lines: Vec<String> = engine.candidates(&problem).iter().chain(&half).map(|c| line("", c)).collect();
        let general = general_candidates(&problem, model, 1 << 30);
        lines.extend(general.iter().filter(|c| c.choice != Choice::Plain).map(|c| line("general:", c)));
        Ok(lines.join("\n"))
    })();
    // SAFETY: the caller's promise.
    report(result).map_or(0, |text| unsafe { write(&text, buffer, length) })
}

/// Compiles and loads a problem, with a choice or (null) the engine's own; null on error. Never freed.
///
/// # Safety
/// An engine of [`unhang_gpu_open`], texts that end in NUL, a place for the workspace's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_prepare(
    engine: *const GpuEngine,
    problem: *const c_char,
    choice: *const c_char,
    workspace: *mut u64,
) -> *const Prepared {
    let result = (|| {
        // SAFETY: the caller's promise.
        let (engine, problem, choice) = unsafe { (&*engine, read_problem(problem)?, read_choice(choice)?) };
        match choice {
            Some((choice, form)) => engine.prepare_form(&problem, choice, form),
            None => engine.prepare(&problem),
        }
        .map_err(|error| error.to_string())
    })();
    report(result).map_or(std::ptr::null(), |prepared| {
        // SAFETY: the caller's promise.
        unsafe { *workspace = prepared.workspace_bytes() };
        Arc::into_raw(prepared)
    })
}

/// The choice of a prepared problem.
///
/// # Safety
/// A value of [`unhang_gpu_prepare`] and a buffer of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_choice(prepared: *const Prepared, buffer: *mut c_char, length: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { write(&(*prepared).name(), buffer, length) }
}

/// Launches a prepared problem; 0 if all went well.
///
/// # Safety
/// As [`GpuEngine::launch`], with values of [`unhang_gpu_open`] and [`unhang_gpu_prepare`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_launch(
    engine: *const GpuEngine,
    prepared: *const Prepared,
    first: u64,
    second: u64,
    bias: u64,
    result: u64,
    workspace: u64,
    stream: u64,
) -> i32 {
    let pointers = DevicePointers { first, second, bias, result, workspace };
    // SAFETY: the caller's promise.
    let launched = unsafe { (*engine).launch(&*prepared, pointers, stream) };
    report(launched.map_err(|error| error.to_string())).map_or(1, |()| 0)
}
