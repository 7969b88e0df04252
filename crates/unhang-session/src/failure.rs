//! Why an engine did not compute, and the test switch that makes every result wrong.

use unhang_engine::{EngineError, Verdict};
use unhang_gpu::GpuError;
use unhang_gpu::driver::DriverError;

use crate::talk::say_once as say;

/// Makes every result wrong on purpose: a test that passes with it has verified nothing.
const WRONG: &str = "UNHANG_MIOPEN_WRONG";

/// Why an engine did not compute.
pub enum Failure {
    /// It began nothing, and another engine may compute.
    Declined(String),
    /// It failed; the verdict says how to remember that.
    Failed(Verdict, String),
    /// There is no memory.
    NoMemory(String),
    /// An unaligned address, which these kernels do not accept.
    Misaligned(String),
    /// The device failed for the whole process, whatever the cause, or another thread records a graph. Nobody else can
    /// compute now, and the engine is not blamed.
    Device(String),
}

/// What the driver says to every call after an illegal access (700), an assert (710), a hardware stack error (714) or
/// an illegal instruction (715). Also after a misaligned (716) or foreign address (717), a broken program counter (718)
/// or a failed launch (719). 900 to 908 are about graphs that are being recorded.
fn is_of_the_device(code: i32) -> bool {
    matches!(code, 700 | 710 | 714..=719 | 900..=908)
}

impl Failure {
    /// What went wrong, in words.
    pub fn reason(&self) -> &str {
        match self {
            Failure::Declined(reason)
            | Failure::Failed(_, reason)
            | Failure::NoMemory(reason)
            | Failure::Misaligned(reason)
            | Failure::Device(reason) => reason,
        }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Failure {
        match &error {
            _ if error.is_refusal() => Failure::Declined(error.to_string()),
            GpuError::Driver(driver) if driver.is_out_of_memory() => Failure::NoMemory(error.to_string()),
            GpuError::Driver(DriverError::Call { code, .. }) if is_of_the_device(*code) => {
                Failure::Device(error.to_string())
            }
            GpuError::Misaligned { .. } => Failure::Misaligned(error.to_string()),
            _ => Failure::Failed(Verdict::Error, error.to_string()),
        }
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        GpuError::from(error).into()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        match &error {
            EngineError::Unsupported(_) => Failure::Declined(error.to_string()),
            EngineError::OutOfMemory { .. } => Failure::NoMemory(error.to_string()),
            _ => Failure::Failed(Verdict::Error, error.to_string()),
        }
    }
}

pub(crate) fn is_wrong_on_purpose() -> bool {
    static SET: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *SET.get_or_init(|| {
        let set = std::env::var(WRONG).is_ok_and(|value| !value.is_empty() && value != "0");
        if set {
            say(&format!("{WRONG} is set: results are wrong on purpose, for a test"));
        }
        set
    })
}
