//! How a package's kernels are made: compiled, audited, compressed, listed.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use thiserror::Error;
use unhang_isa::Chip;

use super::{FORMAT, LIST, List, OBJECTS, Shipped, ShippedError, ShippedObject, hash_of, key_of};
use crate::GpuError;
use crate::cache::{Cache, Key};
use crate::compiler::{CompileError, Compiler};
use crate::object;
use crate::sources::Kernel;

/// A chip that objects are compiled for, and the chips that they serve.
pub type Target = (Chip, &'static [Chip]);

/// What a whole package has.
pub const TARGETS: [Target; 2] =
    [(Chip::Gfx1010, &[Chip::Gfx1010, Chip::Gfx1011, Chip::Gfx1012, Chip::Gfx1013]), (Chip::Gfx1030, &[Chip::Gfx1030])];

/// A compiler that keeps what it made: several processes can share the work of a package, and the next build does only what
/// changed.
pub struct Keeping<'a> {
    /// What compiles.
    pub compiler: &'a dyn Compiler,
    /// Where objects are kept.
    pub cache: Cache,
}

impl Compiler for Keeping<'_> {
    fn version(&self) -> String {
        self.compiler.version()
    }

    fn options(&self, kernel: &Kernel, architecture: &str) -> Vec<String> {
        self.compiler.options(kernel, architecture)
    }

    fn compile(&self, kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let (text, version) = (kernel.source.text(), self.version());
        let key = Key::of([text.as_str(), &version].into_iter().chain(options.iter().map(String::as_str)));
        if let Some(object) = self.cache.get(key) {
            return Ok(object);
        }
        let object = self.compiler.compile(kernel, options)?;
        // A full disk costs the next build a compilation, and nothing now.
        let _ = self.cache.put(key, &object);
        Ok(object)
    }
}

/// An object that is ready to be carried.
struct Made {
    entry: ShippedObject,
    object: Vec<u8>,
}

/// Compiles kernels for some targets, audits them for every chip, and writes them into a folder. Returns what it holds, and
/// why others were left out: a kernel that spills or needs more than 128 registers is not carried. One that calls or has a
/// hazard is an error.
pub fn build(
    kernels: &[Kernel],
    targets: &[Target],
    compiler: &dyn Compiler,
    folder: &Path,
) -> Result<(Shipped, Vec<ShipError>), ShipError> {
    let (mut made, mut left_out) = (Vec::new(), Vec::new());
    for &(target, chips) in targets {
        for kernel in kernels {
            match make(kernel, compiler, target, chips) {
                Ok(object) => made.push(object),
                Err(refused @ ShipError::Refused { .. }) => left_out.push(refused),
                Err(error) => return Err(error),
            }
        }
    }
    write(made, compiler.version(), folder).map_err(|error| ShipError::Write(folder.to_owned(), error))?;
    Ok((Shipped::open(folder)?, left_out))
}

/// Why the package's kernels were not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShipError {
    /// One did not compile or is unsafe.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// One is not good enough to be carried.
    #[error("{kernel} for {target} is not carried: {reason}")]
    Refused {
        /// The kernel.
        kernel: String,
        /// The chip.
        target: Chip,
        /// Why not.
        reason: String,
    },
    /// The files cannot be written.
    #[error("{0} cannot be written: {1}")]
    Write(PathBuf, #[source] io::Error),
    /// What was written cannot be read.
    #[error(transparent)]
    Shipped(#[from] ShippedError),
}

fn make(kernel: &Kernel, compiler: &dyn Compiler, target: Chip, chips: &[Chip]) -> Result<Made, ShipError> {
    let options = compiler.options(kernel, target.name());
    let object = compiler.compile(kernel, &options).map_err(GpuError::from)?;
    let refused = |reason: String| ShipError::Refused { kernel: kernel.to_string(), target, reason };
    for &chip in chips.iter().filter(|chip| chip.is_rdna1()) {
        object::refuse_unsafe(&object, chip).map_err(GpuError::from)?;
    }
    let figures = object::figures(&object, target).map_err(GpuError::from)?;
    for one in &figures {
        if one.vgpr_spills + one.sgpr_spills + one.scratch_bytes > 0 {
            return Err(refused(format!("{} spills", one.name)));
        }
        if one.vgprs > 128 {
            return Err(refused(format!("{} needs {} vector registers", one.name, one.vgprs)));
        }
    }
    let most = |of: fn(&object::Figures) -> u32| figures.iter().map(of).max().unwrap_or(0);
    let entry = ShippedObject {
        name: kernel.to_string(),
        key: key_of(kernel),
        target: target.name().into(),
        chips: chips.iter().map(|chip| chip.name().into()).collect(),
        sha256: hash_of(&object),
        bytes: object.len() as u64,
        offset: 0,
        packed_bytes: 0,
        vgprs: most(|it| it.vgprs),
        lds_bytes: most(|it| it.lds_bytes),
        waves_per_simd: figures.iter().map(|it| it.waves_per_simd).min().unwrap_or(0),
        emulated: 0,
    };
    Ok(Made { entry, object })
}

/// Both files appear by renaming, the list last.
fn write(made: Vec<Made>, compiler: String, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let (mut objects, mut all) = (Vec::new(), Vec::new());
    for Made { mut entry, object } in made {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&object)?;
        let packed = encoder.finish()?;
        (entry.offset, entry.packed_bytes) = (all.len() as u64, packed.len() as u64);
        all.extend(packed);
        objects.push(entry);
    }
    replace(&folder.join(OBJECTS), &all)?;
    write_list(&List { format: FORMAT, compiler, objects }, folder)
}

fn write_list(list: &List, folder: &Path) -> io::Result<()> {
    replace(&folder.join(LIST), &serde_json::to_vec_pretty(list)?)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

/// Notes on how many problems each object was right on the emulated chip, by its SHA-256.
pub fn note_proofs(folder: &Path, proofs: &HashMap<String, u32>) -> Result<Shipped, ShipError> {
    let Shipped { compiler, mut entries, .. } = Shipped::open(folder)?;
    for entry in &mut entries {
        entry.emulated = proofs.get(&entry.sha256).copied().unwrap_or(0);
    }
    let list = List { format: FORMAT, compiler, objects: entries };
    write_list(&list, folder).map_err(|error| ShipError::Write(folder.to_owned(), error))?;
    Ok(Shipped::open(folder)?)
}
