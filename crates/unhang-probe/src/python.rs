//! Starts all our Python children.
//!
//! `python -m` and `python -c` import from the working folder before anywhere else. In a folder that others can
//! write, that runs their code as this user. So a child starts with a line of code that removes the working folder
//! from `sys.path` before the first import. Relative entries of `PYTHONPATH` are not passed on. (`python -P` does less
//! and is missing before 3.11; `python -I` drops the user's `PYTHONPATH` and site, where torch may be.)

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::supervise::Child;

const PATH: &str = "PYTHONPATH";
/// The caller's folders come first, in their order. `sys` is built in and imported from no folder.
const BEFORE: &str =
    "import sys; sys.path[:] = list(dict.fromkeys(FOLDERS + [it for it in sys.path if it[:1] == '/']))";
/// Does what `-m` does: the first argument is the module's name.
const RUN_MODULE: &str =
    "sys.argv[:1] = []; import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)";

/// How a Python child is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonStart {
    /// The interpreter and its arguments.
    pub command: Vec<String>,
    /// Variables to set; a variable without a value is unset.
    pub environment: Vec<(String, Option<String>)>,
}

impl PythonStart {
    /// Runs a module, as `-m` does.
    pub fn module(interpreter: &str, module: &str, arguments: &[&str]) -> PythonStart {
        let mut start = PythonStart::new(interpreter, "[]", RUN_MODULE);
        start.command.push(module.to_owned());
        start.command.extend(arguments.iter().map(|&it| it.to_owned()));
        start
    }

    /// Runs a module with these folders before the interpreter's own: a list in Python's syntax.
    pub fn module_with(interpreter: &str, folders: &str, module: &str, arguments: &[&str]) -> PythonStart {
        let mut start = PythonStart::module(interpreter, module, arguments);
        start.command[2] = code(folders, RUN_MODULE);
        start
    }

    /// Runs a few statements, as `-c` does.
    pub fn statements(interpreter: &str, statements: &str) -> PythonStart {
        PythonStart::new(interpreter, "[]", statements)
    }

    fn new(interpreter: &str, folders: &str, statements: &str) -> PythonStart {
        let command = vec![interpreter.to_owned(), "-c".to_owned(), code(folders, statements)];
        let path = std::env::var_os(PATH).map(|path| (PATH.to_owned(), absolute_entries(&path)));
        PythonStart { command, environment: path.into_iter().collect() }
    }

    /// As a supervised child.
    pub fn supervised(self, deadline: Duration) -> Child {
        Child { command: self.command, environment: self.environment, deadline }
    }

    /// As a command of the standard library.
    pub fn to_command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}

fn code(folders: &str, statements: &str) -> String {
    format!("{}; {statements}", BEFORE.replace("FOLDERS", folders))
}

/// An empty or relative entry means the working folder, or one below it. `PYTHONPATH=$PYTHONPATH:/x` contains one by
/// accident.
fn absolute_entries(path: &OsStr) -> Option<String> {
    let entries: Vec<String> = std::env::split_paths(path)
        .filter(|entry| entry.is_absolute())
        .filter_map(|entry| entry.to_str().map(str::to_owned))
        .collect();
    (!entries.is_empty()).then(|| entries.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_entries_of_the_users_path_are_handed_on() {
        assert_eq!(
            absolute_entries(OsStr::new(":/opt/torch:.:sub:/home/u/lib:")).as_deref(),
            Some("/opt/torch:/home/u/lib")
        );
        assert_eq!(absolute_entries(OsStr::new("")), None);
        assert_eq!(absolute_entries(OsStr::new(".:")), None);
    }

    #[test]
    fn a_module_gets_its_arguments_and_nothing_from_the_working_folder() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["runpy", "os", "json", "seen"] {
            std::fs::write(folder.path().join(format!("{name}.py")), "print('theirs')\n").unwrap();
        }
        let other = tempfile::tempdir().unwrap();
        let module = "import json, sys; print(__name__, sys.argv[1:], '' in sys.path)";
        std::fs::write(other.path().join("seen.py"), module).unwrap();
        let folders = format!("[{:?}]", other.path().to_str().unwrap());
        let start = PythonStart::module_with("python3", &folders, "seen", &["a b", "--c"]);
        let output = start.to_command().current_dir(folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "__main__ ['a b', '--c'] False\n", "{output:?}");
        let look = PythonStart::statements("python3", "import json; print(json.__file__)");
        let output = look.to_command().current_dir(folder.path()).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("theirs"), "{output:?}");
        assert!(output.status.success(), "{output:?}");
    }
}
