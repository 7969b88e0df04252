//! One machine that comes with the program: the RX 5600 XT with ROCm 5.7, spoofed, with the profile file that guides
//! for these cards tell people to write. For demonstrations and rehearsals on any machine; it is one of the fixtures.

use std::path::Path;

/// The name of the machine.
pub const NAME: &str = "rx5600xt-rocm5.7";

/// Writes the machine into a folder, for `--root` or [`crate::System::folder`].
pub fn write(folder: &Path) -> std::io::Result<()> {
    crate::cards::write_fixture(NAME, "", folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Environment, Options, System, Verdict, examine};

    #[test]
    fn it_is_affected() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let system = System::folder(folder.path(), Environment::default());
        let examination = examine(&system, &Options::default());
        assert_eq!(examination.verdict, Verdict::Affected);
        assert!(examination.machine.spoofed() && examination.has_errors());
    }
}
