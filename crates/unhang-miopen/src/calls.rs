//! Macros for functions with MIOpen's names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use unhang_miopen_api::{BAD_PARAMETER, INTERNAL_ERROR, NOT_INITIALIZED, SUCCESS, Status};

use crate::real::{self, Real};

// SAFETY for whatever is written by these: every exported function has the contract of MIOpen's function of its name, and what is
// passed on is what was given.

/// Calls the real library's function; without one, returns "not implemented".
macro_rules! forward {
    ($function:expr, $($argument:expr),*) => {
        match $function {
            // SAFETY: see above.
            Some(function) => $crate::real::inside(|| unsafe { function($($argument),*) }),
            None => unhang_miopen_api::NOT_IMPLEMENTED,
        }
    };
}

/// Functions that programs call.
macro_rules! exported {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As MIOpen's function of this name.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "MIOpen's names and arguments")]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> unhang_miopen_api::Status $body
        )*
    };
}

/// Writes a result if the caller wants it.
pub(crate) fn answer<T>(to: *mut T, value: impl FnOnce() -> T) -> Status {
    if to.is_null() {
        return BAD_PARAMETER;
    }
    // SAFETY: a place of the caller's for a value of this type.
    unsafe { to.write(value()) };
    SUCCESS
}

/// Runs a function that is not one of the eight convolution calls, and catches its panics.
pub(crate) fn guarded(body: impl FnOnce(&'static Real) -> Status) -> Status {
    let Some(real) = real::of_caller() else { return NOT_INITIALIZED };
    catch_unwind(AssertUnwindSafe(|| body(real))).unwrap_or(INTERNAL_ERROR)
}
