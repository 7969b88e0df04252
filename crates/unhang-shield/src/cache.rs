//! What was mended before: in memory for the process, in a folder beyond it if one is named.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use unhang_isa::Chip;

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

/// What an object became, for good: the runtime reads the bytes whenever it likes. `None` if it stayed as it was.
type Mended = Option<&'static [u8]>;

static KNOWN: Mutex<Option<HashMap<Key, Mended>>> = Mutex::new(None);

/// What an object became when it came before, or else what `mend` makes of it.
pub(crate) fn find_or_insert(object: &[u8], chip: Chip, mend: impl FnOnce() -> Option<Vec<u8>>) -> Mended {
    let key = key(object);
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&known) = lock().get_or_insert_default().get(&key) {
        return known;
    }
    // Not under the lock: other threads load other objects meanwhile.
    let file = folder().map(|folder| folder.join(file_name(key, chip)));
    let found = match file.as_deref().and_then(read) {
        Some(mended) => Some(mended),
        None => {
            let mended = mend();
            if let (Some(file), Some(mended)) = (&file, &mended) {
                let _ = write(file, mended);
            }
            mended
        }
    };
    let mut known = lock();
    // If another thread was faster with the same object, its copy is as good.
    *known.get_or_insert_default().entry(key).or_insert_with(|| found.map(|bytes| &*bytes.leak()))
}

fn folder() -> Option<PathBuf> {
    std::env::var_os("UNHANG_SHIELD_CACHE").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn file_name(key: Key, chip: Chip) -> String {
    // Another version mends otherwise.
    format!("{:016x}{:016x}-{}-{chip}-{}.co", key.0, key.1, key.2, env!("CARGO_PKG_VERSION"))
}

/// The bytes behind their hash; a file that is cut off or damaged is not there.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let contents = bytes.split_off(16.min(bytes.len()));
    (bytes == checksum(&contents)).then_some(contents)
}

fn write(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // A name of this thread's own, then the real one: others see the whole file or none.
    let temporary = folder.join(format!(".{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(&checksum(contents))?;
    file.write_all(contents)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

fn checksum(contents: &[u8]) -> [u8; 16] {
    let (first, second, _) = key(contents);
    ((first as u128) << 64 | second as u128).to_le_bytes()
}
