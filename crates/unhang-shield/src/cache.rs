//! Repaired objects: in memory for the process, and in a folder for later ones if one is named.
//!
//! Code is loaded from that folder, so it is this user's alone, and so is each file in it. What comes out of it is
//! audited again before it is handed on.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use unhang_guard::PrivateFolder;
use unhang_isa::audit::{Context, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program};

use crate::left::Left;

/// Larger objects pass unchanged; the largest known ones have some hundred megabytes.
pub(crate) const MAX_OBJECT: usize = 1 << 30;

/// Content by 128 bits of hash and its length.
type Key = (u64, u64, usize);

fn key(bytes: &[u8]) -> Key {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(bytes);
        hasher.finish()
    };
    (hash(1), hash(2), bytes.len())
}

/// What an object became, never freed: the runtime reads the bytes whenever it likes. `None` if it stayed as it was.
type Repaired = Option<&'static [u8]>;

static KNOWN: Mutex<Option<HashMap<Key, Repaired>>> = Mutex::new(None);

/// The repaired object from an earlier call or process, or else what `repair` makes of it. `repair` reports what stays
/// unsafe; of an object from an earlier process, this function does.
pub(crate) fn find_or_insert(
    object: &[u8],
    chip: Chip,
    repair: impl FnOnce() -> (Option<Vec<u8>>, Vec<Left>),
) -> Repaired {
    let key = key(object);
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&known) = lock().get_or_insert_default().get(&key) {
        return known;
    }
    // Without the lock: other threads load other objects meanwhile.
    let kept = folder().map(|folder| Kept { folder, name: file_name(key, chip), chip });
    let found = match kept.as_ref().and_then(Kept::read) {
        Some((repaired, left)) => {
            crate::log::name_what_is_left(&left, chip);
            Some(repaired)
        }
        None => {
            let (repaired, left) = repair();
            crate::log::name_what_is_left(&left, chip);
            if let (Some(kept), Some(repaired)) = (&kept, &repaired) {
                kept.write(repaired, &left);
            }
            repaired
        }
    };
    let mut known = lock();
    // If another thread was faster with the same object, its copy is as good.
    *known.get_or_insert_default().entry(key).or_insert_with(|| found.map(|bytes| &*bytes.leak()))
}

fn folder() -> Option<PrivateFolder> {
    let named = std::env::var_os("UNHANG_SHIELD_CACHE").filter(|folder| !folder.is_empty()).map(PathBuf::from)?;
    match PrivateFolder::open(&named) {
        Ok(folder) => Some(folder),
        Err(error) => {
            crate::log::line(format_args!("what was repaired is not kept: {error}"));
            None
        }
    }
}

/// Increase it when repair gains a rule between versions.
const RULES: u32 = 2;

fn file_name(key: Key, chip: Chip) -> String {
    // Another version repairs differently.
    let version = env!("CARGO_PKG_VERSION");
    format!("{:016x}{:016x}-{}-{chip}-{version}-{RULES}.co", key.0, key.1, key.2)
}

/// The path of an object in the folder.
struct Kept {
    folder: PrivateFolder,
    name: String,
    chip: Chip,
}

impl Kept {
    /// The object, and what stays unsafe in it. A file that is truncated, damaged, not ours, or less safe than when it
    /// was written counts as missing.
    fn read(&self) -> Option<(Vec<u8>, Vec<Left>)> {
        let mut bytes = self.folder.read(&self.name, MAX_OBJECT as u64).ok()??;
        let rest = bytes.split_off(CHECKSUM.min(bytes.len()));
        if bytes != checksum(&rest) {
            return None;
        }
        let (findings, rest) = take_number(&rest)?;
        let (length, rest) = take_number(rest)?;
        let (left, contents) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let left = Left::parse_all(&String::from_utf8_lossy(left));
        (self.findings(contents)? <= findings).then(|| (contents.to_vec(), left))
    }

    /// A checksum over the rest; the number of findings; the lines of what stays unsafe behind their length; the object.
    fn write(&self, contents: &[u8], left: &[Left]) {
        let Some(findings) = self.findings(contents) else { return };
        let left: String = left.iter().map(Left::line).collect();
        let length = left.len() as u64;
        let rest = [&findings.to_le_bytes()[..], &length.to_le_bytes(), left.as_bytes(), contents].concat();
        let bytes = [&checksum(&rest)[..], &rest].concat();
        if let Err(error) = self.folder.write(&self.name, &bytes) {
            crate::log::line(format_args!("what was repaired is not kept: {error}"));
        }
    }

    /// How much is unsafe in an object; `None` if it is not a code object.
    fn findings(&self, contents: &[u8]) -> Option<u64> {
        let object = CodeObject::parse(contents).ok()?;
        let target = object.chip()?;
        let count = |function| {
            let mode = object.mode_of(function);
            Program::decode(function.code, target, mode.wave64).map_or(1, |program| {
                let context = Context { workgroup_processor_mode: mode.workgroup_processor };
                audit(&program, self.chip, context).len() as u64
            })
        };
        Some(object.functions.iter().map(count).sum())
    }
}

fn take_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// The length of a checksum in bytes.
const CHECKSUM: usize = 16;

fn checksum(contents: &[u8]) -> [u8; CHECKSUM] {
    let (first, second, _) = key(contents);
    ((first as u128) << 64 | second as u128).to_le_bytes()
}
