//! Compiled objects on disk: what was compiled once is not compiled again.
//!
//! A file's name is a hash of everything that made it: source, options, compiler, true and reported architecture. Its
//! contents begin with a magic word, the length and a checksum; what does not fit is taken for absent and is written
//! anew. Files appear by renaming, so that many processes may use one cache; the folder belongs to the user alone.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"unhangK1";

/// A folder of compiled objects.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    limit: u64,
}

/// What names an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// A key of texts; their boundaries count.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Key {
        // FNV-1a in 128 bits: stable everywhere, and long enough that two objects do not meet by chance.
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
    /// Uses a folder, which is made if it is not there, readable by its owner only.
    pub fn open(folder: &Path, limit: u64) -> io::Result<Cache> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let permissions = fs::metadata(folder)?.permissions();
        if permissions.mode() & 0o077 != 0 {
            // Code is loaded from here: nobody else may write it.
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        Ok(Cache { folder: folder.to_owned(), limit })
    }

    /// The user's own cache folder: `$XDG_CACHE_HOME/unhang/kernels`, else `~/.cache/unhang/kernels`.
    pub fn default_folder() -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CACHE_HOME")
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("unhang").join("kernels"))
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key}.co"))
    }

    /// The object of that key, if it is there and whole.
    pub fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let object = open_envelope(&bytes)?.to_vec();
        // The time of the last use decides what is thrown away first; failing to note it does no harm.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(object)
    }

    /// Keeps an object. Two processes that keep the same one do each other no harm.
    pub fn put(&self, key: Key, object: &[u8]) -> io::Result<()> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let name = format!(".{}-{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let temporary = self.folder.join(name);
        let written = (|| {
            let mut file = fs::File::create_new(&temporary)?;
            file.write_all(MAGIC)?;
            file.write_all(&(object.len() as u64).to_le_bytes())?;
            file.write_all(&checksum(object).to_le_bytes())?;
            file.write_all(object)?;
            fs::rename(&temporary, self.path(key))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        self.shrink()
    }

    /// Throws away what was used longest ago until the folder is within its limit.
    fn shrink(&self) -> io::Result<()> {
        let mut files = Vec::new();
        let mut total = 0;
        for entry in fs::read_dir(&self.folder)?.flatten() {
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
            // Another process may have thrown it away already.
            let _ = fs::remove_file(path);
            total -= length;
        }
        Ok(())
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

        let path = cache.path(key);
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
