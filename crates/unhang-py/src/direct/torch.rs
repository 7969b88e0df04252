//! The torch of this process: its functions, and answers that need no tensor.

use std::ffi::{CStr, c_void};

use libloading::os::unix::Library;
use unhang_conv::DataType;

use super::accelerator::Accelerator;
use super::c_interface::{Boxed, Code, Functions, loaded};
use super::profiler::Profiler;

/// The version of the C interface used here: that of torch 2.10.
const SPOKEN: u64 = (2 << 56) | (10 << 48);

/// The least number that every symbolic integer stores as such; one below -2^62 would be taken for a pointer.
const LEAST: i64 = -(1 << 62);

/// The torch of this process.
pub struct Torch {
    pub(super) functions: Functions,
    delete_optional: DeleteOptional,
    pub(super) accelerator: Accelerator,
    pub(super) profiler: Profiler,
    pub(super) strided: i32,
}

enum DeleteOptional {
    /// From torch 2.13.
    Torchs(unsafe extern "C" fn(*mut u64) -> Code),
    /// Before that, it is a plain C++ object.
    Cpps(unsafe extern "C" fn(*mut c_void)),
}

/// Whether our frames and torch's have the same unwinder: an exception of torch's that passes through them uses both. A
/// linker that puts a second unwinder into this library would make the first exception end the process.
fn shares_the_unwinder(library: &Library) -> bool {
    unsafe extern "C" {
        fn _Unwind_GetLanguageSpecificData(context: *mut c_void) -> *const c_void;
    }
    let ours = _Unwind_GetLanguageSpecificData as *const () as usize;
    // SAFETY: only the address is used. The look-up covers torch and what torch is linked to.
    let torchs = unsafe { library.get::<*const ()>(b"_Unwind_GetLanguageSpecificData") };
    torchs.is_ok_and(|torchs| *torchs as usize == ours)
}

impl Torch {
    /// Finds the functions of the loaded torch; or says why calls must go through Python.
    pub fn find() -> Result<Torch, String> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err("torch's calling convention is not known on this processor".to_owned());
        }
        let library = loaded("libtorch_cpu.so").ok_or("libtorch_cpu.so is not loaded")?;
        let functions = Functions::find(&library)?;
        if !shares_the_unwinder(&library) {
            return Err("exceptions are unwound by different libraries in torch and in this package".to_owned());
        }
        // SAFETY: the signature in torch's header.
        let newer = unsafe { library.get::<unsafe extern "C" fn(*mut u64) -> Code>(b"torch_delete_stable_ivalue") };
        let delete_optional = match newer {
            Ok(delete) => DeleteOptional::Torchs(*delete),
            // SAFETY: `operator delete(void*)`.
            Err(_) => match unsafe { library.get::<unsafe extern "C" fn(*mut c_void)>(b"_ZdlPv") } {
                Ok(delete) => DeleteOptional::Cpps(*delete),
                Err(_) => return Err("C++'s operator delete is not found".to_owned()),
            },
        };
        // SAFETY: no arguments.
        let strided = unsafe { (functions.strided)() };
        let (accelerator, profiler) = (Accelerator::find(&library), Profiler::find(&library));
        let torch = Torch { functions, delete_optional, accelerator, profiler, strided };
        // The library is never closed, because it is torch.
        std::mem::forget(library);
        Ok(torch)
    }

    /// Registers kernels of a namespace for a dispatch key, for the life of the process.
    pub fn register(&self, namespace: &CStr, key: &CStr, kernels: &[(&CStr, Boxed)]) -> Result<(), String> {
        let mut library = std::ptr::null_mut();
        // SAFETY: texts that end in zero, and a valid pointer for the result. The result is never deleted: that would
        // remove the kernels while other threads run them.
        let code =
            unsafe { (self.functions.library)(namespace.as_ptr(), key.as_ptr(), c"unhang".as_ptr(), 0, &mut library) };
        if code != 0 {
            return Err("torch does not accept kernels".to_owned());
        }
        for (name, kernel) in kernels {
            // SAFETY: a library of torch's and a kernel that follows torch's rules; see `kernels.rs`.
            if unsafe { (self.functions.register)(library, name.as_ptr(), *kernel, SPOKEN) } != 0 {
                return Err(format!("torch does not accept {}", name.to_string_lossy()));
            }
        }
        Ok(())
    }

    /// Whether this thread records a graph with torch's tracer.
    pub fn is_tracing(&self) -> bool {
        // SAFETY: a reference to this thread's shared pointer, whose first word is the address that it points to.
        unsafe { !(*(self.functions.tracing)()).is_null() }
    }

    /// The number of threads that torch computes with.
    pub fn threads(&self) -> usize {
        let mut threads = 1;
        // SAFETY: a valid pointer for the number.
        unsafe { (self.functions.threads)(&mut threads) };
        threads as usize
    }

    /// The stream that this thread queues work on.
    pub fn stream(&self, device_index: i32) -> Option<u64> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a valid pointer for the stream.
        (unsafe { self.accelerator.stream?(device_index, &mut stream) } == 0).then_some(stream as u64)
    }

    /// Torch's number for the byte type.
    pub fn byte(&self) -> i32 {
        // SAFETY: no arguments.
        unsafe { (self.functions.byte)() }
    }

    /// Torch's number for our element type.
    pub fn number_of(&self, data_type: DataType) -> i32 {
        let functions = &self.functions;
        let ask = match data_type {
            DataType::F16 => functions.half,
            DataType::Bf16 => functions.brain,
            DataType::F32 => functions.single,
            DataType::F64 => functions.double,
        };
        // SAFETY: no arguments.
        unsafe { ask() }
    }

    /// The contents of a slot with an optional type.
    ///
    /// # Safety
    /// The slot holds an optional value that nobody else deletes.
    pub unsafe fn optional(&self, slot: u64) -> Option<u64> {
        let value = slot as *mut u64;
        if value.is_null() {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let inner = unsafe { *value };
        match self.delete_optional {
            // SAFETY: as above; torch allocated it for us to delete.
            DeleteOptional::Torchs(delete) => unsafe {
                delete(value);
            },
            // SAFETY: as above.
            DeleteOptional::Cpps(delete) => unsafe { delete(value.cast()) },
        }
        Some(inner)
    }

    /// The number in a slot, ready for torch's C++ entries, which take symbolic integers. A number too low to be stored
    /// as such is clamped: torch rejects every negative number of a convolution in the same way.
    pub fn number(&self, slot: u64) -> i64 {
        (slot as i64).max(LEAST)
    }
}
