//! Compiled objects on disk: what was compiled once is not compiled again.
//!
//! A file's name is a hash of everything that made it: source, options, compiler, true and reported architecture. Its
//! contents begin with a magic word, the length and a checksum; what does not fit is taken for absent and is written
//! anew. Files appear by renaming, so that many processes may use one cache. Code is loaded from here, so folder and files
//! are this user's alone ([`PrivateFolder`]). What is to run on an RDNA1 chip is audited whenever it is taken out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use unhang_guard::{NotPrivate, PrivateFolder};
use unhang_isa::Chip;

use crate::object;

/// Larger than any kernel of ours.
const MOST_BYTES: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"unhangK1";

/// A folder of compiled objects.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: Arc<PrivateFolder>,
    limit: u64,
}

/// What names an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// A key made of texts; their boundaries count.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Key {
        // FNV-1a in 128 bits: stable everywhere, and long enough to make collisions unlikely.
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let mut eat =
            |byte: u8| hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        for text in texts {
            (text.len() as u64).to_le_bytes().into_iter().for_each(&mut eat);
            text.bytes().for_each(&mut eat);
        }
        Key(hash)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Cache {
    /// Uses a folder, created if missing; one that others could have written to is refused.
    pub fn open(folder: &Path, limit: u64) -> Result<Cache, NotPrivate> {
        Ok(Cache { folder: Arc::new(PrivateFolder::open(folder)?), limit })
    }

    /// The user's own cache folder: `$XDG_CACHE_HOME/unhang/kernels`, else `~/.cache/unhang/kernels`.
    pub fn default_folder() -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("unhang").join("kernels"))
    }

    fn name(key: Key) -> String {
        format!("{key}.co")
    }

    /// The object with that key, if it is present, complete, and ours.
    pub fn get(&self, key: Key) -> Option<Vec<u8>> {
        let bytes = self.folder.read(&Cache::name(key), MOST_BYTES).ok()??;
        let object = open_envelope(&bytes)?.to_vec();
        // The least recently used object is deleted first; failing to note the time does no harm.
        if let Ok(file) = self.folder.open_or_make_file(&Cache::name(key)) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(object)
    }

    /// An object to run on this chip; an unsafe one counts as missing.
    pub fn get_safe(&self, key: Key, chip: Chip) -> Option<Vec<u8>> {
        self.get(key).filter(|object| !chip.is_rdna1() || object::refuse_unsafe(object, chip).is_ok())
    }

    /// Stores an object. Two processes may store the same one at once.
    pub fn put(&self, key: Key, object: &[u8]) -> Result<(), NotPrivate> {
        let length = (object.len() as u64).to_le_bytes();
        let bytes = [MAGIC, &length[..], &checksum(object).to_le_bytes()[..], object].concat();
        self.folder.write(&Cache::name(key), &bytes)?;
        self.shrink();
        Ok(())
    }

    /// Deletes the least recently used objects until the folder is within its limit.
    fn shrink(&self) {
        let mut files = Vec::new();
        let mut total = 0;
        for entry in fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                total += metadata.len();
                files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), entry.path()));
            }
        }
        files.sort();
        for (_, length, path) in files {
            if total <= self.limit {
                break;
            }
            // Another process may have deleted it already.
            let _ = fs::remove_file(path);
            total -= length;
        }
    }
}

pub(crate) fn checksum(object: &[u8]) -> u64 {
    object
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn open_envelope(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (sum, object) = rest.split_first_chunk::<8>()?;
    let whole = object.len() as u64 == u64::from_le_bytes(*length) && checksum(object) == u64::from_le_bytes(*sum);
    whole.then_some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_back_and_damaged_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 1 << 20).unwrap();
        let key = Key::of(["a", "b"]);
        assert_eq!(cache.get(key), None);
        cache.put(key, b"object").unwrap();
        assert_eq!(cache.get(key).as_deref(), Some(&b"object"[..]));
        assert_eq!(cache.get(Key::of(["ab", ""])), None);

        let path = folder.path().join(Cache::name(key));
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(cache.get(key), None);
        fs::write(&path, &bytes[..10]).unwrap();
        assert_eq!(cache.get(key), None);
        cache.put(key, b"object").unwrap();
        assert_eq!(cache.get(key).as_deref(), Some(&b"object"[..]));
    }

    #[test]
    fn what_is_unsafe_on_the_chip_is_not_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 1 << 30).unwrap();
        let fixture = |name: &str| {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../unhang-emulator/tests/fixtures");
            fs::read(fixtures.join(name)).unwrap()
        };
        for (name, is_safe) in [("kernels.gfx1010.co", true), ("kernels.gfx1030.co", false)] {
            let key = Key::of([name]);
            cache.put(key, &fixture(name)).unwrap();
            assert_eq!(cache.get_safe(key, Chip::Gfx1010).is_some(), is_safe, "{name}");
            assert!(cache.get_safe(key, Chip::Gfx1030).is_some(), "RDNA2 has none of the hazards");
        }
    }

    #[test]
    fn code_that_others_could_have_put_there_is_not_loaded() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache"), 1 << 20).unwrap();
        let key = Key::of(["a"]);
        cache.put(key, b"object").unwrap();
        let path = folder.path().join("cache").join(Cache::name(key));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(cache.get(key), None, "anybody can write the file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert_eq!(cache.get(key), None, "a link leads anywhere");
        fs::set_permissions(folder.path().join("cache"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(&folder.path().join("cache"), 1 << 20).is_err(), "anybody can write to the folder");
    }

    #[test]
    fn the_folder_is_private_and_bounded() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let cache = Cache::open(folder.path(), 3000).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
        for index in 0..8u8 {
            cache.put(Key::of([index.to_string().as_str()]), &[index; 1000]).unwrap();
        }
        let total: u64 = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(total <= 3000, "{total}");
    }
}
