//! LLVM's own compiler as a program, which compiles the package's kernels. It takes half of the time of hiprtc, which
//! reads its headers for every kernel, and several can run at once. No vendor header or device library is needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use unhang_guard::PrivateFolder;
use unhang_guard::process::Handle;

use super::{CompileError, Compiler};
use crate::sources::Kernel;

/// A kernel takes less than a second; a compiler that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// The version for packages: the one that Debian 12's ROCm 5.2 is built from.
const FOR_PACKAGES: &str = "clang-15";
/// The newest version to look for: it knows every chip up to gfx1201.
const NEWEST: &str = "clang-19";
/// What HIP's headers would define.
const KEYWORDS: [&str; 4] = [
    "-D__global__=__attribute__((global))",
    "-D__device__=__attribute__((device))",
    "-D__shared__=__attribute__((shared))",
    "-D__launch_bounds__(threads,...)=__attribute__((amdgpu_flat_work_group_size(1,threads)))",
];

/// clang with its AMDGPU target, and lld.
#[derive(Debug)]
pub struct Clang {
    program: PathBuf,
    version: String,
    folder: PrivateFolder,
}

impl Clang {
    /// The version for packages; `folder` holds its input and output.
    pub fn find(folder: &Path) -> Result<Clang, CompileError> {
        Clang::named(FOR_PACKAGES, folder)
    }

    /// The newest version, for chips that the other does not know.
    pub fn newest(folder: &Path) -> Result<Clang, CompileError> {
        Clang::named(NEWEST, folder)
    }

    /// The one whose program has this name.
    pub fn named(program: &str, folder: &Path) -> Result<Clang, CompileError> {
        let unusable = |reason: String| CompileError::Unusable(reason);
        let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
        let version = said.lines().find(|line| line.contains("clang version"));
        let version = version.ok_or_else(|| unusable(format!("{program} is not installed")))?;
        let folder = PrivateFolder::open(folder).map_err(|error| unusable(error.to_string()))?;
        Ok(Clang { program: program.into(), version: version.trim().to_owned(), folder })
    }

    fn failed(&self, kernel: &Kernel, meaning: String, log: String) -> CompileError {
        CompileError::Failed { call: "clang", code: 1, meaning, kernel: kernel.to_string(), log }
    }

    /// Runs the compiler in a folder that has the source.
    fn compile_in(&self, folder: &PrivateFolder, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let failed = |what: &str, error: io::Error| self.failed(kernel, format!("{what}: {error}"), String::new());
        let [source, object, log] = ["kernel.hip", "kernel.co", "log"].map(|name| folder.path().join(name));
        fs::write(&source, kernel.source.text()).map_err(|error| failed("the source cannot be written", error))?;
        let messages = fs::File::create(&log).map_err(|error| failed("the log cannot be written", error))?;
        let mut child = Command::new(&self.program)
            .args(options)
            .arg("-o")
            .args([&object, &source])
            // It leaves an empty folder behind for each chip.
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages)
            .spawn()
            .map_err(|error| failed("it cannot be started", error))?;
        let handle = Handle::of_child(&child);
        if !handle.wait_until(Instant::now() + PATIENCE) {
            // A process that has ended meanwhile needs no signal.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| failed("it cannot be waited for", error))?;
        if !status.success() {
            let log = fs::read(&log).unwrap_or_default();
            let meaning = format!("it ended with {status}");
            return Err(self.failed(kernel, meaning, String::from_utf8_lossy(&log).into_owned()));
        }
        fs::read(&object).map_err(|error| failed("its object cannot be read", error))
    }
}

impl Compiler for Clang {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        let mut options: Vec<String> = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc"]
            .into_iter()
            .chain(["-nogpulib", "-O3", "-std=c++17", "-mcumode"])
            .chain(KEYWORDS)
            .map(String::from)
            .collect();
        options.push(format!("--offload-arch={architecture}"));
        options.extend(kernel.definitions());
        options
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let folder =
            self.folder.new_folder("clang").map_err(|error| self.failed(kernel, error.to_string(), String::new()))?;
        let compiled = self.compile_in(&folder, kernel, options);
        // A file left in the folder does no harm.
        let _ = folder.remove_all();
        compiled
    }
}
