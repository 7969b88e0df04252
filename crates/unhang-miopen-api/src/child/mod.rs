//! MIOpen through its C interface, loaded by name at run time: a probe's child that needs no torch.
//!
//! * [`Miopen`] is a handle of the library on one device, with the HIP runtime that the library itself is linked to.
//! * [`Miopen::convolve`] does what torch does with it: asks for the workspace, has MIOpen find an algorithm (in the find
//!   mode that its variables name), executes the best one, and waits without blocking inside the driver.
//! * `unhang_probe::trial::serve` answers a prober's requests with that.
//!
//! It must not know torch, chips, evidence or plans, and judges nothing: it measures the error, and the prober
//! says what that means. Whoever calls it must expect that it never returns: it belongs in a supervised child.

#[allow(unsafe_code, reason = "calls MIOpen")]
mod convolution;
#[allow(unsafe_code, reason = "loads and calls MIOpen and the HIP runtime")]
mod library;
#[allow(unsafe_code, reason = "allocates on the device and copies")]
mod memory;
mod trial;

pub use library::{Description, Miopen, MiopenError};
