//! The software that convolutions run on: ROCm installations, torch installations, the C library.
//!
//! Read from files, without importing anything: `torch/version.py`, the folders next to it, `.info/version`. Order in
//! which torch installations are looked for: `PYTHONPATH`, those named by the caller, the active virtual environment
//! (`VIRTUAL_ENV`, `CONDA_PREFIX`), the first `python3` on `PATH`, the user's own packages, the system's.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::frameworks::{self, Framework};
use crate::library;
use crate::system::{SMALL, System};

/// The libraries that decide how a convolution runs.
const DECISIVE: &[&str] = &["libMIOpen.so", "libamdhip64.so", "libhsa-runtime64.so", "librocblas.so"];
/// More than any machine has.
const MOST_FOUND: usize = 32;

/// A ROCm installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rocm {
    /// For example `5.7.0-63`.
    pub version: Option<String>,
    /// Its folder.
    pub path: String,
    /// How it was found: under `/opt`, or in the linker's path.
    pub found_by: &'static str,
}

/// One of the decisive libraries, as a torch will load it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadedLibrary {
    /// For example `libMIOpen.so`.
    pub name: String,
    /// The file that will be loaded, if found.
    pub path: Option<String>,
    /// Whether it came with torch.
    pub bundled: bool,
    /// The chips that its GPU code is for; empty if it holds none.
    pub architectures: Vec<String>,
}

/// A torch installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Torch {
    /// For example `2.2.2+rocm5.7`.
    pub version: String,
    /// The version of the Python that it belongs to, for example `3.10`.
    pub python: Option<String>,
    /// The folder `torch`.
    pub path: String,
    /// The decisive libraries that came with it.
    pub bundled: Vec<String>,
    /// The chips that its own GPU code is for.
    pub architectures: Vec<String>,
    /// The HIP that it was built with (`torch.version.hip`), if any.
    pub hip: Option<String>,
    /// The CUDA that it was built with, if any.
    pub cuda: Option<String>,
    /// The decisive libraries as they will be loaded; only for a torch built with HIP.
    pub libraries: Vec<LoadedLibrary>,
    /// The version of the Triton that the same Python imports, if there is one.
    pub triton: Option<String>,
    /// Whether the same Python imports unhang.
    pub unhang: bool,
    /// The script that enters its environment, if that has one and is not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activate: Option<String>,
}

impl Torch {
    /// The folder with packages that it is in.
    pub fn packages(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Major and minor of the HIP that it was built with.
    pub fn hip_version(&self) -> Option<(u32, u32)> {
        two_numbers(self.hip.as_deref()?)
    }
}

/// The software.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Software {
    /// ROCm installations.
    pub rocm: Vec<Rocm>,
    /// Torch installations, the one that plain `python3` imports first.
    pub torch: Vec<Torch>,
    /// JAX and TensorFlow with parts for ROCm.
    pub frameworks: Vec<Framework>,
    /// The version of glibc.
    pub glibc: Option<(u32, u32)>,
}

impl Software {
    /// Examines the software. `pythons` are interpreters or environments to examine in addition to the active one.
    pub fn inspect(system: &System, pythons: &[PathBuf]) -> Software {
        let rocm = find_rocm(system);
        let folders = package_folders(system, pythons);
        let torch = find_torch(system, &folders, &rocm);
        let mut frameworks = frameworks::find(system, &folders);
        for framework in &mut frameworks {
            framework.activate = activate_script(system, Path::new(&framework.path));
            framework.unhang =
                imports_unhang(system, &folders, Path::new(&framework.path), framework.python.as_deref());
        }
        Software { rocm, torch, frameworks, glibc: find_glibc(system) }
    }
}

/// The first two numbers of `5.7.31921-d1770ee1b`.
pub(crate) fn two_numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn find_rocm(system: &System) -> Vec<Rocm> {
    let mut found: Vec<Rocm> = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut add = |path: &Path, found_by: &'static str| {
        let real = system.resolve_on_machine(path).unwrap_or_else(|_| path.to_owned());
        if seen.contains(&real) || found.len() >= MOST_FOUND {
            return;
        }
        let version = system
            .line(real.join(".info/version"))
            .or_else(|| system.line(real.join(".info/version-dev")))
            .map(|version| version.lines().next().unwrap_or_default().chars().take(40).collect::<String>())
            .or_else(|| library_version(system, &real.join("lib")));
        if version.is_some() {
            found.push(Rocm { version, path: real.display().to_string(), found_by });
            seen.push(real);
        }
    };
    for name in system.entries("/opt").iter().filter(|name| name.starts_with("rocm")) {
        add(&Path::new("/opt").join(name), "under /opt");
    }
    for folder in linker_folders(system) {
        // `/opt/rocm-5.7.0/lib` belongs to `/opt/rocm-5.7.0`; Debian's libraries are in a separate folder.
        match folder.parent() {
            Some(parent) if system.is_directory(parent.join(".info")) => add(parent, "in the linker's path"),
            _ => {}
        }
    }
    for folder in linker_folders(system) {
        let Some(version) = library_version(system, &folder) else { continue };
        let path = folder.display().to_string();
        let known = found.iter().any(|rocm| path.starts_with(&rocm.path));
        if !known && found.len() < MOST_FOUND {
            found.push(Rocm { version: Some(version), path, found_by: "in the linker's path" });
        }
    }
    found
}

/// The version at the end of `libamdhip64.so.5.2.21153`, if the folder holds such a file.
fn library_version(system: &System, folder: &Path) -> Option<String> {
    const LIBRARY: &str = "libamdhip64.so.";
    let version = system
        .entries(folder)
        .into_iter()
        .filter_map(|name| name.strip_prefix(LIBRARY).map(str::to_owned))
        .filter(|version| version.contains('.') && version.len() < 40)
        .max()?;
    // The name says it, so a bundle needs the name alone.
    system.record(&folder.join(format!("{LIBRARY}{version}")), Vec::new());
    Some(version)
}

/// The dynamic linker's search path: `LD_LIBRARY_PATH`, `/etc/ld.so.conf.d`, the usual folders.
fn linker_folders(system: &System) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ld_library_path(system);
    for name in system.entries("/etc/ld.so.conf.d") {
        if let Ok(text) = system.text(Path::new("/etc/ld.so.conf.d").join(name), SMALL) {
            folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
        }
    }
    folders.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    let mut unique = Vec::new();
    for folder in folders {
        // `/lib` is a link to `/usr/lib` on most systems.
        let folder = system.resolve_on_machine(&folder).unwrap_or(folder);
        if !unique.contains(&folder) && unique.len() < 64 {
            unique.push(folder);
        }
    }
    unique
}

fn ld_library_path(system: &System) -> Vec<PathBuf> {
    let value = system.variable("LD_LIBRARY_PATH").unwrap_or_default();
    value.split(':').filter(|part| part.starts_with('/')).map(PathBuf::from).take(64).collect()
}

/// The folders that every Python searches first: folders of packages, not environments.
fn python_path(system: &System) -> Vec<PathBuf> {
    let path = system.variable("PYTHONPATH").unwrap_or_default();
    path.split(':').filter(|part| part.starts_with('/')).map(PathBuf::from).take(64).collect()
}

/// The Python that `PATH` leads to.
fn first_python(system: &System) -> Option<PathBuf> {
    let path = system.variable("PATH").unwrap_or_default();
    let folders = path.split(':').filter(|part| part.starts_with('/')).take(64).map(Path::new);
    let pythons = folders.flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)));
    pythons.into_iter().find(|python| system.exists(python))
}

/// The folders with packages that the Pythons of this machine import from, with the Python's version.
fn package_folders(system: &System, pythons: &[PathBuf]) -> Vec<(Option<String>, PathBuf)> {
    let mut folders: Vec<(Option<String>, PathBuf)> =
        python_path(system).into_iter().map(|folder| (None, folder)).collect();

    let mut prefixes: Vec<PathBuf> = Vec::new();
    for python in pythons {
        prefixes.extend(prefixes_of(system, python));
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        prefixes.extend(system.variable(name).map(PathBuf::from));
    }
    if let Some(python) = first_python(system) {
        system.record(&python, Vec::new());
        prefixes.extend(prefixes_of(system, &python));
    }
    prefixes.extend(system.homes().into_iter().map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));

    for prefix in prefixes {
        folders.extend(packages_under(system, &prefix));
    }
    folders.truncate(64);
    folders
}

/// The package folders of one environment, with the Python's version.
fn packages_under(system: &System, prefix: &Path) -> Vec<(Option<String>, PathBuf)> {
    let mut folders = Vec::new();
    for library in ["lib", "lib64"] {
        let folder = prefix.join(library);
        for name in system.entries(&folder).into_iter().filter(|name| name.starts_with("python3")) {
            let version = name.strip_prefix("python").filter(|version| version.contains('.')).map(str::to_owned);
            for packages in ["site-packages", "dist-packages"] {
                let path = folder.join(&name).join(packages);
                if system.is_directory(&path) {
                    folders.push((version.clone(), path));
                }
            }
        }
    }
    folders
}

/// The package folders that a named interpreter or environment imports from; empty if it is neither.
pub fn packages_of(system: &System, python: &Path) -> Vec<PathBuf> {
    let prefixes = prefixes_of(system, python).into_iter();
    prefixes.flat_map(|prefix| packages_under(system, &prefix)).map(|(_, path)| path).collect()
}

/// An interpreter's or an environment's prefix; for a link to an interpreter both the link's and the target's.
fn prefixes_of(system: &System, python: &Path) -> Vec<PathBuf> {
    if system.is_directory(python) {
        return vec![python.to_owned()];
    }
    // A mistyped relative path has no parent: do not use the machine's root.
    let above = |path: &Path| path.parent()?.parent().filter(|it| !it.as_os_str().is_empty()).map(Path::to_owned);
    let own = above(python);
    // Only its existence matters; it holds paths and names, so a bundle gets an empty one.
    let environment = own.as_ref().is_some_and(|own| {
        let file = own.join("pyvenv.cfg");
        let there = system.is_file(&file);
        if there {
            system.record(&file, Vec::new());
        }
        there
    });
    let real = if environment || !system.exists(python) {
        None
    } else {
        system.resolve_on_machine(python).ok().and_then(|real| above(&real))
    };
    own.into_iter().chain(real).collect()
}

fn find_torch(system: &System, folders: &[(Option<String>, PathBuf)], rocm: &[Rocm]) -> Vec<Torch> {
    let mut found: Vec<Torch> = Vec::new();
    let mut seen = Vec::new();
    for (python, packages) in folders.iter().cloned() {
        let folder = packages.join("torch");
        let real = system.resolve_on_machine(&folder).unwrap_or_else(|_| folder.clone());
        if seen.contains(&real) || found.len() >= MOST_FOUND {
            continue;
        }
        let Some(version) = torch_version(system, &packages) else { continue };
        seen.push(real);
        found.push(inspect_torch(system, &folder, &packages, python, version, rocm));
    }
    for torch in &mut found {
        torch.unhang = imports_unhang(system, folders, Path::new(torch.packages()), torch.python.as_deref());
    }
    found
}

/// Whether the Python that imports from a folder of packages imports unhang too.
fn imports_unhang(
    system: &System,
    folders: &[(Option<String>, PathBuf)],
    packages: &Path,
    version: Option<&str>,
) -> bool {
    // An environment may see the system's packages: then its own folder comes before this one.
    let own = folders.iter().position(|(_, path)| path == packages);
    let mut imports =
        folders.iter().take(own.map_or(0, |own| own + 1)).filter(|(python, _)| python.as_deref() == version);
    python_path(system).iter().any(|folder| has_unhang(system, folder))
        || imports.any(|(_, path)| has_unhang(system, path))
}

/// Whether Pythons that import from a folder can import unhang: it is in the folder, or a path file leads to it.
fn has_unhang(system: &System, packages: &Path) -> bool {
    let is_package = |folder: &Path| {
        let file = folder.join("unhang/__init__.py");
        let there = system.is_file(&file);
        if there {
            // Only its existence matters; a bundle gets an empty one.
            system.record(&file, Vec::new());
        }
        there
    };
    is_package(packages)
        || system.entries(packages).iter().filter(|name| name.ends_with(".pth")).take(64).any(|name| {
            let text = system.text(packages.join(name), SMALL).unwrap_or_default();
            text.lines().map(str::trim).filter(|line| line.starts_with('/')).any(|line| is_package(Path::new(line)))
        })
}

/// The script that enters the environment of a folder of packages (`…/lib/python3.12/site-packages`); `None` if it has
/// none, or if `python` is of that environment already.
fn activate_script(system: &System, packages: &Path) -> Option<String> {
    let prefix = packages.ancestors().nth(3)?;
    let is_entered =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().any(|name| system.variable(name).map(Path::new) == Some(prefix));
    let script = prefix.join("bin/activate");
    if is_entered || first_python(system).is_some_and(|python| python.starts_with(prefix)) || !system.is_file(&script) {
        return None;
    }
    // Only its existence matters; a bundle gets an empty one.
    system.record(&script, Vec::new());
    Some(script.display().to_string())
}

/// The version of Triton among a folder's packages, by the name under which it was installed.
fn triton_version(system: &System, packages: &Path) -> Option<String> {
    if !system.is_directory(packages.join("triton")) {
        return None;
    }
    let names = system.entries(packages);
    let installed = ["triton-", "pytorch_triton_rocm-", "triton_rocm-"];
    let version = names.iter().find_map(|name| {
        let (_, rest) = installed.iter().find_map(|start| Some((start, name.strip_prefix(start)?)))?;
        rest.strip_suffix(".dist-info").map(|version| (name, version.chars().take(40).collect::<String>()))
    });
    if let Some((name, _)) = &version {
        system.record(&packages.join(name).join("METADATA"), Vec::new());
        system.record(&packages.join("triton/__init__.py"), Vec::new());
    }
    Some(version.map_or_else(|| "of unknown version".to_owned(), |(_, version)| version))
}

/// What `torch/version.py` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TorchVersion {
    pub version: String,
    pub hip: Option<String>,
    pub cuda: Option<String>,
}

/// Reads `torch/version.py` without running it.
///
/// ```text
/// __version__ = '2.2.2+rocm5.7'
/// debug = False
/// cuda: Optional[str] = None
/// hip: Optional[str] = '5.7.31921-d1770ee1b'
/// ```
pub(crate) fn parse_torch_version(text: &str) -> Option<TorchVersion> {
    let value = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            if name.split(':').next()?.trim() != wanted {
                return None;
            }
            let value = value.trim();
            let quote = value.chars().next().filter(|c| *c == '\'' || *c == '"')?;
            let inner = value[1..].split(quote).next()?;
            (!inner.is_empty()).then(|| inner.chars().take(80).collect::<String>())
        })
    };
    Some(TorchVersion { version: value("__version__")?, hip: value("hip"), cuda: value("cuda") })
}

/// Only the lines of `torch/version.py` that are read.
pub(crate) fn rebuilt_torch_version(text: &str) -> String {
    let Some(TorchVersion { version, hip, cuda }) = parse_torch_version(text) else { return String::new() };
    let line = |name: &str, value: Option<&String>| match value {
        Some(value) => format!("{name} = '{value}'\n"),
        None => format!("{name} = None\n"),
    };
    line("__version__", Some(&version)) + &line("cuda", cuda.as_ref()) + &line("hip", hip.as_ref())
}

/// From `torch/version.py`; if that cannot be read, from the name of the dist-info folder.
fn torch_version(system: &System, packages: &Path) -> Option<TorchVersion> {
    let folder = packages.join("torch");
    if !system.is_directory(&folder) {
        return None;
    }
    let read = system.text(folder.join("version.py"), SMALL).ok().and_then(|text| parse_torch_version(&text));
    read.or_else(|| {
        let name = system
            .entries(packages)
            .into_iter()
            .find_map(|name| Some(name.strip_prefix("torch-")?.strip_suffix(".dist-info")?.to_owned()))?;
        let hip = name.split_once("+rocm").map(|(_, rocm)| rocm.to_owned());
        Some(TorchVersion { version: name.chars().take(80).collect(), hip, cuda: None })
    })
}

fn inspect_torch(
    system: &System,
    folder: &Path,
    packages: &Path,
    python: Option<String>,
    version: TorchVersion,
    rocm: &[Rocm],
) -> Torch {
    let own = folder.join("lib");
    let names = system.entries(&own);
    let bundled_file = |name: &str| names.iter().find(|file| file.starts_with(name)).map(|file| own.join(file));
    let bundled: Vec<String> =
        DECISIVE.iter().filter(|name| bundled_file(name).is_some()).map(|name| (*name).to_owned()).collect();
    let mut torch = Torch {
        version: version.version,
        python,
        path: folder.display().to_string(),
        bundled,
        architectures: Vec::new(),
        hip: version.hip,
        cuda: version.cuda,
        libraries: Vec::new(),
        triton: triton_version(system, packages),
        unhang: false,
        activate: activate_script(system, packages),
    };
    if torch.hip.is_none() {
        return torch;
    }
    let kernels = library::inspect(system, &own.join("libtorch_hip.so"));
    let yields = kernels.as_ref().is_some_and(|library| library.yields_to_ld_library_path);
    torch.architectures = kernels.map(|library| library.architectures).unwrap_or_default();
    if torch.architectures.is_empty() {
        torch.architectures = tensile_folder(system, &own.join("rocblas/library"));
    }
    if torch.architectures.is_empty() {
        // AMD's own packages (TheRock) keep the libraries apart, in a package that is named for the family of chips.
        let names = system.entries(packages);
        for name in names.iter().filter(|name| DEVICE_PACKAGES.iter().any(|start| name.starts_with(start))) {
            system.record(&packages.join(name).join("__init__.py"), Vec::new());
        }
        torch.architectures = package_architectures(&names);
    }
    // AMD's own packages bring the libraries too: the system's are not loaded.
    let is_amds = |name: &String| ["_rocm_sdk_", "amd_torch_device_"].iter().any(|start| name.starts_with(start));
    if system.entries(packages).iter().any(is_amds) {
        return torch;
    }
    torch.libraries = DECISIVE
        .iter()
        .map(|name| {
            let (path, bundled) = will_load(system, name, bundled_file(name), yields, rocm);
            let mut architectures = path
                .as_ref()
                .and_then(|path| library::inspect(system, path))
                .map(|library| library.architectures)
                .unwrap_or_default();
            if let (true, Some(path)) = (*name == "librocblas.so", path.as_ref()) {
                // Most of rocBLAS's code is in files next to it.
                let beside = path.parent().map(|parent| tensile_folder(system, &parent.join("rocblas/library")));
                for more in beside.unwrap_or_default() {
                    if !architectures.contains(&more) {
                        architectures.push(more);
                    }
                }
                architectures.sort();
            }
            LoadedLibrary {
                name: (*name).to_owned(),
                path: path.map(|path| path.display().to_string()),
                bundled,
                architectures,
            }
        })
        .collect();
    torch
}

/// The file that the linker will load, and whether it came with torch.
fn will_load(
    system: &System,
    name: &str,
    own: Option<PathBuf>,
    yields: bool,
    rocm: &[Rocm],
) -> (Option<PathBuf>, bool) {
    let in_folder = |folder: &Path, exact: Option<&str>| {
        let names = system.entries(folder);
        names
            .into_iter()
            .find(|file| exact.map_or_else(|| file.starts_with(name), |exact| file == exact))
            .map(|file| folder.join(file))
    };
    if let Some(own) = own {
        // The exact name only: that is what torch's own libraries ask for.
        let exact = own.file_name().and_then(|file| file.to_str()).unwrap_or(name).to_owned();
        let shadow = ld_library_path(system).iter().find_map(|folder| in_folder(folder, Some(&exact)));
        return match shadow {
            Some(shadow) if yields && !shadow.starts_with(own.parent().unwrap_or(Path::new("/"))) => {
                (Some(shadow), false)
            }
            _ => (Some(own), true),
        };
    }
    let mut folders = linker_folders(system);
    folders.extend(rocm.iter().map(|rocm| Path::new(&rocm.path).join("lib")));
    (folders.iter().find_map(|folder| in_folder(folder, None)), false)
}

/// The chips of a folder of rocBLAS kernels. In a bundle, one file for each chip stands for all.
fn tensile_folder(system: &System, folder: &Path) -> Vec<String> {
    let found = tensile_architectures(&system.entries(folder));
    for gfx in &found {
        system.record(&folder.join(format!("TensileLibrary_{gfx}.co")), Vec::new());
    }
    found
}

/// The chips in file names such as `TensileLibrary_gfx1030.co` and `Kernels.so-000-gfx906-xnack-.hsaco`.
fn tensile_architectures(names: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for name in names {
        let Some(at) = name.find("gfx") else { continue };
        let digits: String = name[at..].chars().take_while(char::is_ascii_alphanumeric).collect();
        if digits.len() > 4 && digits.len() < 10 && !found.contains(&digits) {
            found.push(digits);
        }
    }
    found.sort();
    found
}

/// How AMD names the packages that hold code for chips: those of the wheels for one family, and `torch[device-gfx1010]`'s of the
/// wheels for all (ROCm/TheRock PR 4946).
const DEVICE_PACKAGES: [&str; 2] = ["_rocm_sdk_libraries_gfx", "amd_torch_device_gfx"];

/// The chips of packages such as `_rocm_sdk_libraries_gfx101X_dgpu` and `amd_torch_device_gfx1010-2.11.0.dist-info`.
fn package_architectures(names: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in names.iter().filter(|name| DEVICE_PACKAGES.iter().any(|start| name.starts_with(start))) {
        if name.contains("gfx101X") {
            found.extend(["gfx1010", "gfx1011", "gfx1012", "gfx1013"].map(str::to_owned));
        } else {
            found.extend(tensile_architectures(&[name.replace('_', "-")]));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn find_glibc(system: &System) -> Option<(u32, u32)> {
    let places = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ];
    let path = places.into_iter().find(|path| system.is_file(path))?;
    let file = system.open(path).ok()?;
    // Two megabytes on most systems; the text is in the middle.
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, 8 << 20), &mut content).ok()?;
    let (major, minor) = library::glibc_version(&content)?;
    system.record(Path::new(path), library::glibc_stand_in(major, minor).into_bytes());
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn torch_versions_of_old_and_new() {
        let new = "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n\
                   __version__ = '2.2.2+rocm5.7'\ndebug = False\ncuda: Optional[str] = None\ngit_version = 'x'\n\
                   hip: Optional[str] = '5.7.31921-d1770ee1b'\n";
        let read = parse_torch_version(new).unwrap();
        assert_eq!(
            (read.version.as_str(), read.hip.as_deref(), read.cuda),
            ("2.2.2+rocm5.7", Some("5.7.31921-d1770ee1b"), None)
        );
        let old = "__version__ = \"1.13.1+cu117\"\ncuda = '11.7'\nhip = None\n";
        let read = parse_torch_version(old).unwrap();
        assert_eq!((read.version.as_str(), read.hip, read.cuda.as_deref()), ("1.13.1+cu117", None, Some("11.7")));
        assert_eq!(two_numbers("5.7.31921-d1770ee1b"), Some((5, 7)));
    }

    #[test]
    fn a_torch_in_a_folder_of_packages_is_found_by_its_version_file() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        // Debian's, without HIP; and one before it in the path, without any dist-info.
        write("usr/lib/python3/dist-packages/torch/version.py", "__version__ = '2.6.0+debian'\nhip = None\n");
        write("w/site/torch/version.py", "__version__ = '2.6.0+debian.hip6.4.3'\nhip: Optional[str] = '6.4.43484'\n");
        let found = |environment: &str| {
            let system = System::new(root.path(), crate::system::Environment::parse(environment));
            let torch = Software::inspect(&system, &[]).torch;
            torch.into_iter().map(|torch| (torch.path, torch.hip)).collect::<Vec<_>>()
        };
        let debians = ("/usr/lib/python3/dist-packages/torch".to_owned(), None);
        assert_eq!(found(""), std::slice::from_ref(&debians));
        let ours = ("/w/site/torch".to_owned(), Some("6.4.43484".to_owned()));
        assert_eq!(found("PYTHONPATH=relative:/nowhere:/w/site"), [ours, debians]);

        write("w/ours/unhang/__init__.py", "");
        write("v/lib/python3.12/site-packages/torch/version.py", "__version__ = '2.5.1+rocm6.2'\nhip = '6.2'\n");
        let has_unhang = |environment: &str| {
            let system = System::new(root.path(), crate::system::Environment::parse(environment));
            let torch = Software::inspect(&system, &[]).torch;
            torch.into_iter().map(|torch| torch.unhang).collect::<Vec<_>>()
        };
        assert_eq!(has_unhang("VIRTUAL_ENV=/v\nPYTHONPATH=/w/site"), [false, false, false]);
        assert_eq!(
            has_unhang("VIRTUAL_ENV=/v\nPYTHONPATH=/w/site:/w/ours"),
            [true, true, true],
            "behind torch, for every Python"
        );
    }

    #[test]
    fn chips_in_file_names() {
        let names = ["Kernels.so-000-gfx906-xnack-.hsaco", "TensileLibrary_gfx1030.co", "TensileLibrary.dat"];
        assert_eq!(tensile_architectures(&names.map(str::to_owned)), ["gfx1030", "gfx906"]);
        let packages = ["_rocm_sdk_core", "_rocm_sdk_libraries_gfx101X_dgpu"].map(str::to_owned);
        assert_eq!(package_architectures(&packages)[0], "gfx1010");
    }

    proptest! {
        #[test]
        fn parsers_take_anything(text in "(?s).{0,300}") {
            let _ = parse_torch_version(&text);
            let _ = parse_torch_version(&format!("__version__ ={text}\nhip: x = '{text}"));
            let _ = two_numbers(&text);
            let _ = tensile_architectures(&[text.clone(), format!("gfx{text}")]);
        }
    }
}
