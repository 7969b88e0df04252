//! The meaning of messages from AMD's runtime and of signals, for people who have not read its sources.

/// Text to look for in a child's output, and its meaning.
const MESSAGES: [(&str, &str); 11] = [
    (
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
        "the kernel used an address outside every aperture of the GPU: code of another chip, or a runtime and a library \
         of different versions",
    ),
    ("HSA_STATUS_ERROR_MEMORY_FAULT", "the kernel touched memory that is not mapped: it computed a wrong address"),
    // Of "Memory access fault by GPU node-1 … Reason: Generic hang recovery" the reason counts, so it comes first.
    ("Generic hang recovery", "the driver found the GPU hanging and reset it"),
    ("Memory access fault by GPU", "the kernel touched memory that is not mapped: it computed a wrong address"),
    (
        "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
        "the kernel holds an instruction that this chip does not have: code of another chip",
    ),
    (
        "HSA_STATUS_ERROR_EXCEPTION",
        "the hardware raised an exception in the kernel; ROCm ends the process for it from 6.0 on",
    ),
    (
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "the runtime could not get a queue or memory: often another process has hung on this GPU",
    ),
    ("HSA_STATUS_ERROR_INVALID_ISA", "no code in the library is for the chip that the runtime believes in"),
    ("invalid device function", "no code in the library is for the chip that the runtime believes in"),
    ("hipErrorNoBinaryForGpu", "no code in the library is for the chip that the runtime believes in"),
    ("GPU Hang", "the driver found the GPU hanging and reset it"),
];

/// The most telling line of a child's output: a known message with its meaning, or else the last line that is not
/// empty.
pub(crate) fn explain(output: &str) -> Option<String> {
    let lines = || output.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    for line in lines() {
        if let Some((_, meaning)) = MESSAGES.iter().find(|(message, _)| line.contains(message)) {
            return Some(format!("{} ({meaning})", shortened(line)));
        }
    }
    lines().next().map(shortened)
}

/// The name of a signal.
pub(crate) fn signal(number: i32) -> String {
    let name = match number {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    format!("{name} (signal {number})")
}

/// A child's text: one line, no control characters, shortened.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_message_is_found_and_explained() {
        let output = "MIOpen(HIP): Warning\n:0:rocdevice.cpp:2660: Callback: Queue 0x7f aborting with error : \
                      HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest \
                      legal address. code: 0x29\nAborted\n";
        let said = explain(output).unwrap();
        assert!(said.contains("HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION") && said.contains("outside every aperture"));
        assert_eq!(explain("first\n\x1b[31mlast\n\n").unwrap(), " [31mlast");
        assert_eq!(explain("\n \n"), None);
        let reset = "Memory access fault by GPU node-1 on address (nil). Reason: Generic hang recovery.";
        assert!(explain(reset).unwrap().contains("hanging and reset it"));
        assert_eq!(signal(11), "SIGSEGV (signal 11)");
        assert_eq!(signal(64), "signal 64");
    }
}
