//! The general kernels that come with the package: compiled when it is built, audited, listed with their hashes, and what a
//! card executes first. No compiler is needed for them.
//!
//! Two files in one folder: `kernels.json` lists the objects (what each is, for which chips, its SHA-256, its figures),
//! `kernels.bin` holds them, compressed one by one. An object whose hash differs from its line is not loaded.
//!
//! Objects are compiled for gfx1010 and serve gfx1010 to gfx1013: these differ in instructions that gfx1010 lacks and that
//! are therefore not used, and gfx1010 has the hazards of all of them (LLVM's target gfx10-1-generic rests on the same). They
//! are audited for each chip, and retagged for it as for a spoofed runtime.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_isa::Chip;

use crate::GpuError;
use crate::cache::{Cache, Key};
use crate::choice::{Choice, GENERAL_TILES};
use crate::compiler::{CompileError, Compiler};
use crate::engine::audited_and_tagged;
use crate::object::{self, ObjectError};
use crate::plan::Plan;
use crate::sources::Kernel;

/// The chip that objects are compiled for, and the chips that they serve.
pub const TARGETS: [(Chip, &[Chip]); 2] =
    [(Chip::Gfx1010, &[Chip::Gfx1010, Chip::Gfx1011, Chip::Gfx1012, Chip::Gfx1013]), (Chip::Gfx1030, &[Chip::Gfx1030])];

const LIST: &str = "kernels.json";
const OBJECTS: &str = "kernels.bin";
const FORMAT: u32 = 1;

/// One object of the package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is, in words.
    pub name: String,
    /// What it was made of: source and constants.
    pub key: String,
    /// The chip that it was compiled for.
    pub target: String,
    /// The chips that it serves.
    pub chips: Vec<String>,
    /// Of the object, as the compiler made it.
    pub sha256: String,
    /// Bytes of the object.
    pub bytes: u64,
    /// Where it begins in the file, compressed.
    pub offset: u64,
    /// How many bytes it has there.
    pub packed_bytes: u64,
    /// The most vector registers of its kernels.
    pub vgprs: u32,
    /// The most bytes of LDS.
    pub lds_bytes: u32,
    /// The fewest waves that a SIMD holds.
    pub waves_per_simd: u32,
}

#[derive(Serialize, Deserialize)]
struct List {
    format: u32,
    compiler: String,
    objects: Vec<Entry>,
}

/// Why an object of the package is not used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShippedError {
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(PathBuf, #[source] io::Error),
    /// The list is not what this version writes.
    #[error("{0} is not a list of kernels that this version reads: {1}")]
    List(PathBuf, String),
    /// Its bytes are not the ones that were listed.
    #[error("{name} is not loaded: its SHA-256 is {found}, and {listed} is listed; reinstall the package")]
    Changed {
        /// What it is.
        name: String,
        /// The hash of what is there.
        found: String,
        /// The hash of what should be.
        listed: String,
    },
    /// It is unsafe on the chip, or cannot be tagged for it.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// The package's objects.
#[derive(Debug)]
pub struct Shipped {
    folder: PathBuf,
    compiler: String,
    entries: Vec<Entry>,
    /// By key and chip.
    index: HashMap<(String, String), usize>,
}

/// What names a kernel here: its source and constants, whatever compiler made it and whichever of its functions is meant.
fn key_of(kernel: &Kernel) -> String {
    let (text, definitions) = (kernel.source.text(), kernel.definitions());
    Key::of(std::iter::once(text.as_str()).chain(definitions.iter().map(String::as_str))).to_string()
}

fn hash_of(object: &[u8]) -> String {
    Sha256::digest(object).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Shipped {
    /// Reads the list in a folder.
    pub fn open(folder: &Path) -> Result<Shipped, ShippedError> {
        let path = folder.join(LIST);
        let text = fs::read(&path).map_err(|error| ShippedError::Unreadable(path.clone(), error))?;
        let list: List =
            serde_json::from_slice(&text).map_err(|error| ShippedError::List(path.clone(), error.to_string()))?;
        if list.format != FORMAT {
            return Err(ShippedError::List(path, format!("its format is {}, not {FORMAT}", list.format)));
        }
        let places = list.objects.iter().enumerate();
        let index = places
            .flat_map(|(at, entry)| entry.chips.iter().map(move |chip| ((entry.key.clone(), chip.clone()), at)))
            .collect();
        Ok(Shipped { folder: folder.to_owned(), compiler: list.compiler, entries: list.objects, index })
    }

    /// What compiled them.
    pub fn compiler(&self) -> &str {
        &self.compiler
    }

    /// Every object.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether there is anything for a chip.
    pub fn serves(&self, chip: &str) -> bool {
        self.entries.iter().any(|entry| entry.chips.iter().any(|served| served == chip))
    }

    /// The object of a kernel for a chip.
    pub fn entry(&self, kernel: &Kernel, chip: &str) -> Option<&Entry> {
        self.index.get(&(key_of(kernel), chip.to_owned())).map(|&at| &self.entries[at])
    }

    /// The bytes of an object, as they were listed.
    pub fn read(&self, entry: &Entry) -> Result<Vec<u8>, ShippedError> {
        use std::os::unix::fs::FileExt;
        let path = self.folder.join(OBJECTS);
        let unreadable = |error| ShippedError::Unreadable(path.clone(), error);
        let file = fs::File::open(&path).map_err(unreadable)?;
        let mut packed = vec![0; entry.packed_bytes as usize];
        file.read_exact_at(&mut packed, entry.offset).map_err(unreadable)?;
        let mut object = Vec::with_capacity(entry.bytes as usize);
        // No more than was listed, whatever the bytes say; damage shows in the hash.
        let _ = DeflateDecoder::new(&packed[..]).take(entry.bytes).read_to_end(&mut object);
        let found = hash_of(&object);
        if found == entry.sha256 {
            return Ok(object);
        }
        Err(ShippedError::Changed { name: entry.name.clone(), found, listed: entry.sha256.clone() })
    }

    /// The object of a kernel, audited for the true chip and tagged for the reported one; `None` where none came along.
    pub fn object(&self, kernel: &Kernel, chip: &str, reported: &str) -> Option<Result<Vec<u8>, ShippedError>> {
        let entry = self.entry(kernel, chip)?;
        let (target, chip) = (entry.target.parse().ok()?, chip.parse().ok()?);
        let reported = reported.parse().unwrap_or(chip);
        let tagged = |object| audited_and_tagged(object, target, chip, reported).map_err(ShippedError::from);
        Some(self.read(entry).and_then(tagged))
    }
}

/// The kernels that a package carries, each once: what general plans of problems of every kind ask for.
pub fn kernels() -> Vec<Kernel> {
    let mut found: BTreeMap<String, Kernel> = BTreeMap::new();
    for problem in kinds() {
        for choice in general_choices(&problem) {
            let Ok(plan) = Plan::general(&problem, &choice) else { continue };
            for stage in plan.stages {
                found.entry(key_of(&stage.kernel)).or_insert(stage.kernel);
            }
        }
    }
    let mut kernels: Vec<Kernel> = found.into_values().collect();
    kernels.sort();
    kernels
}

/// A problem of each kind that general kernels tell apart: type, layout, direction; few channels and many, in quads and not;
/// planes in quads and not; 1×1 and larger windows; and the windows of depthwise layers, which are unrolled.
fn kinds() -> Vec<Problem> {
    let base = Specification { batch: 1, in_size: [8, 8], padding: [1, 1], kernel: [3, 3], ..Specification::default() };
    let mut shapes = Vec::new();
    for (in_channels, out_channels) in [(64, 64), (65, 65), (3, 64), (3, 65), (64, 3)] {
        for in_size in [[8, 8], [7, 7]] {
            let dense = Specification { in_channels, out_channels, in_size, ..base };
            let [pointwise, square] = [dense.clone(), dense.clone()];
            shapes.push(Specification { kernel: [1, 1], padding: [0, 0], ..pointwise });
            shapes.push(Specification { kernel: [5, 5], padding: [2, 2], ..square });
            shapes.push(dense);
        }
    }
    // The windows of first layers, which `direct` unrolls; both strides of a row are whole quads or pairs.
    for (kernel, stride) in [(1, 1), (3, 1), (3, 2), (7, 2)] {
        let window =
            Specification { kernel: [kernel; 2], padding: [kernel / 2; 2], stride: [stride; 2], ..base.clone() };
        shapes.push(Specification { in_channels: 16, out_channels: 16, in_size: [16, 16], ..window });
    }
    for kernel in [3, 5, 7] {
        for stride in [1, 2] {
            // Rows of whole quads, of pairs, and of neither.
            for width in [16, 18, 15] {
                let window =
                    Specification { kernel: [kernel; 2], padding: [kernel / 2; 2], stride: [stride; 2], ..base };
                let size =
                    Specification { in_size: [16, width], in_channels: 32, out_channels: 32, groups: 32, ..window };
                shapes.push(size);
            }
        }
    }
    let mut problems = Vec::new();
    for specification in shapes {
        for data_type in DataType::ALL {
            for layout in Layout::ALL {
                for direction in Direction::ALL {
                    problems.extend(Problem::new(Specification { data_type, layout, direction, ..specification }));
                }
            }
        }
    }
    problems
}

fn general_choices(problem: &Problem) -> BTreeSet<Choice> {
    let mut choices = BTreeSet::from([Choice::Plain]);
    if problem.is_depthwise() {
        let stride = problem.stride()[0] as u32;
        for strip in [1, 2, 4].map(|strip: u32| strip.next_multiple_of(stride)) {
            choices.extend([Choice::Depthwise { strip, splits: 2 }, Choice::DepthwiseQuads { strip, splits: 2 }]);
        }
    } else {
        choices.insert(Choice::WinogradFused);
        for (rows, width, strip) in DIRECT {
            choices.insert(Choice::Direct { rows, width, strip });
        }
        for tile in GENERAL_TILES {
            choices.extend([false, true].map(|flat| Choice::Gemm { tile, packed: true, flat, splits: 1 }));
            choices.extend([Choice::Gemm { tile, packed: true, flat: false, splits: 2 }]);
            choices.extend([Choice::Weights { tile, splits: 2 }, Choice::Winograd { tile, splits: 2 }]);
        }
    }
    choices.into_iter().filter_map(Choice::as_general).collect()
}

/// Channels, columns and rows of a thread of the general `direct` kernels.
const DIRECT: [(u32, u32, u32); 7] = [(4, 4, 2), (4, 4, 4), (8, 4, 1), (8, 4, 2), (16, 2, 1), (16, 2, 2), (16, 4, 1)];

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
    entry: Entry,
    object: Vec<u8>,
}

/// Compiles kernels for every target, audits them for every chip, and writes them into a folder. Returns what it holds, and
/// why others were left out: a kernel that spills or needs more than 128 registers is not carried. One that calls or has a
/// hazard is an error.
pub fn build(
    kernels: &[Kernel],
    compiler: &dyn Compiler,
    folder: &Path,
) -> Result<(Shipped, Vec<ShipError>), ShipError> {
    let (mut made, mut left_out) = (Vec::new(), Vec::new());
    for (target, chips) in TARGETS {
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
    let entry = Entry {
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
    let list = serde_json::to_vec_pretty(&List { format: FORMAT, compiler, objects })?;
    for (name, bytes) in [(OBJECTS, &all), (LIST, &list)] {
        let temporary = folder.join(format!("{name}.new"));
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, folder.join(name))?;
    }
    Ok(())
}
