//! What torch's profilers see of a convolution computed without Python: a record with the engine's name, inside torch's
//! own record of the call.

use std::ffi::{CStr, c_char, c_void};

use libloading::os::unix::Library;

use super::c_interface::Code;

type IsOn = unsafe extern "C" fn() -> bool;
type Start = unsafe extern "C" fn(*const c_char, *mut c_void, *const *mut c_void, u64, *mut *mut c_void) -> Code;
type End = unsafe extern "C" fn(*mut c_void) -> Code;

/// Torch's functions for records. `None` if this torch lacks one; there are no records then.
pub(super) struct Profiler(Option<(IsOn, Start, End)>);

impl Profiler {
    /// Finds them.
    pub(super) fn find(torch: &Library) -> Profiler {
        // SAFETY: as with `Functions`: the names are torch's, and so are the signatures.
        unsafe {
            let is_on = torch.get::<IsOn>(b"_ZN5torch8profiler4impl15profilerEnabledEv").ok().map(|it| *it);
            let start = torch.get::<Start>(b"aoti_record_function_start").ok().map(|it| *it);
            let end = torch.get::<End>(b"aoti_record_function_end").ok().map(|it| *it);
            Profiler(is_on.zip(start).zip(end).map(|((is_on, start), end)| (is_on, start, end)))
        }
    }

    /// Begins a record with that name, which ends when the returned value is dropped; `None` while nobody profiles.
    pub(super) fn record(&self, name: Option<&CStr>) -> Option<Record> {
        let (is_on, start, end) = self.0?;
        // SAFETY: no arguments.
        if !unsafe { is_on() } {
            return None;
        }
        let mut record = std::ptr::null_mut();
        // SAFETY: a text that torch copies, no inputs by name or position, and a valid pointer for the record.
        let code = unsafe { start(name?.as_ptr(), std::ptr::null_mut(), std::ptr::null(), 0, &mut record) };
        (code == 0).then_some(Record { record, end })
    }
}

/// A record that is under way.
pub(super) struct Record {
    record: *mut c_void,
    end: End,
}

impl Drop for Record {
    fn drop(&mut self) {
        // SAFETY: torch returned it, and this ends it once.
        unsafe { (self.end)(self.record) };
    }
}
