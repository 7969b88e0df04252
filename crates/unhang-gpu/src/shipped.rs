//! The general kernels that come with the package: compiled when it is built, audited, emulated, listed with their hashes, and
//! what a card executes first. No compiler is needed for them. `selection` says which there are, `build` makes them.
//!
//! Two files in one folder: `kernels.json` lists the objects (what each is, for which chips, its SHA-256, its figures),
//! `kernels.bin` holds them, compressed one by one. An object whose hash differs from its line is not loaded.
//!
//! Objects are compiled for gfx1010 and serve gfx1010 to gfx1013: these differ in instructions that gfx1010 lacks and that
//! are therefore not used. gfx1010 also has the hazards of all of them (LLVM's target gfx10-1-generic rests on the
//! same). They are audited for each chip, and retagged for it as for a spoofed runtime.

mod build;
mod selection;

pub use build::{Keeping, ShipError, TARGETS, Target, build, note_proofs};
pub use selection::{general_choices, kernels, kinds};

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use unhang_guard::input::{open_plain, read_plain};

use crate::cache::Key;
use crate::object::ObjectError;
use crate::objects::audited_and_tagged;
use crate::sources::Kernel;

/// No kernel is larger.
const LARGEST: u64 = 64 << 20;
const LIST: &str = "kernels.json";
/// Bytes of the list that are read at most: all types for two chips have less than a tenth.
const MOST_OF_A_LIST: u64 = 16 << 20;
const OBJECTS: &str = "kernels.bin";
const FORMAT: u32 = 1;

/// One object of the package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShippedObject {
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
    /// On how many problems of the suite the emulated chip computed right with it before it was packed.
    #[serde(default)]
    pub emulated: u32,
}

#[derive(Serialize, Deserialize)]
struct List {
    format: u32,
    compiler: String,
    objects: Vec<ShippedObject>,
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
    entries: Vec<ShippedObject>,
    /// By key and chip.
    index: HashMap<(String, String), usize>,
}

/// What names a kernel here: its source and constants, whatever compiler made it and whichever of its functions is meant.
fn key_of(kernel: &Kernel) -> String {
    let (text, definitions) = (kernel.source.text(), kernel.definitions());
    Key::of(std::iter::once(text.as_str()).chain(definitions.iter().map(String::as_str))).to_string()
}

/// The SHA-256 of some bytes, as lists have it.
pub fn hash_of(object: &[u8]) -> String {
    Sha256::digest(object).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Shipped {
    /// Reads the list in a folder.
    pub fn open(folder: &Path) -> Result<Shipped, ShippedError> {
        let path = folder.join(LIST);
        let text = read_plain(&path, MOST_OF_A_LIST).map_err(|error| ShippedError::Unreadable(path.clone(), error))?;
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
    pub fn entries(&self) -> &[ShippedObject] {
        &self.entries
    }

    /// Whether there is anything for a chip.
    pub fn serves(&self, chip: &str) -> bool {
        self.entries.iter().any(|entry| entry.chips.iter().any(|served| served == chip))
    }

    /// The object of a kernel for a chip.
    pub fn entry(&self, kernel: &Kernel, chip: &str) -> Option<&ShippedObject> {
        self.index.get(&(key_of(kernel), chip.to_owned())).map(|&at| &self.entries[at])
    }

    /// The bytes of an object, as they were listed.
    pub fn read(&self, entry: &ShippedObject) -> Result<Vec<u8>, ShippedError> {
        use std::os::unix::fs::FileExt;
        let path = self.folder.join(OBJECTS);
        let unreadable = |error| ShippedError::Unreadable(path.clone(), error);
        let file = open_plain(&path).map_err(unreadable)?;
        // Numbers of a damaged list must not become allocations.
        let length = file.metadata().map_err(unreadable)?.len();
        if entry.packed_bytes > length || entry.bytes > LARGEST {
            let what = format!("{} is said to have {} bytes, {} packed", entry.name, entry.bytes, entry.packed_bytes);
            return Err(ShippedError::List(self.folder.clone(), what));
        }
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
