//! MIOpen through its C interface, loaded by name at run time: a probe's child that needs no torch.
//!
//! * [`Miopen`] is a handle of the library on one device, with the HIP runtime that the library itself is linked to.
//! * [`Miopen::convolve`] does what torch does with MIOpen. It asks for the workspace size, and has MIOpen find an
//!   algorithm (in the find mode that MIOpen's variables name). Then it executes the best one, and waits without
//!   blocking inside the driver.
//! * `unhang_probe::trial::serve` uses it to answer a prober's requests.
//!
//! It must not know torch, chips, evidence or plans. It judges nothing: it measures the error, and the prober says what
//! that means. Callers must expect that it never returns, so it belongs in a supervised child.

#[allow(unsafe_code, reason = "calls MIOpen")]
mod convolution;
#[allow(unsafe_code, reason = "loads and calls MIOpen and the HIP runtime")]
mod library;
#[allow(unsafe_code, reason = "allocates on the device and copies")]
mod memory;
mod trial;

pub use library::{Description, Miopen, MiopenError};
