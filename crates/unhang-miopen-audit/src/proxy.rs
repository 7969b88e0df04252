//! A shared library without code: a name, versions, and the libraries that it needs. One page, laid out by hand.

/// This processor in an ELF header.
#[cfg(target_arch = "x86_64")]
pub const PROCESSOR: u16 = 62;
/// This processor in an ELF header.
#[cfg(target_arch = "aarch64")]
pub const PROCESSOR: u16 = 183;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SEGMENTS: usize = 3;
const DYNAMIC: usize = HEADER + SEGMENTS * SEGMENT;
const SYMBOL: usize = 24;
/// One bucket and one chain, both empty.
const HASH: [u32; 4] = [1, 1, 0, 0];
/// One version, for the one symbol that begins every table, and padding.
const SYMBOL_VERSIONS: usize = 4;
const DEFINITION: usize = 20;
const DEFINITION_NAME: usize = 8;
/// The largest page size of any processor.
const PAGE: u64 = 0x1_0000;

const LOAD: u32 = 1;
const DYNAMIC_SEGMENT: u32 = 2;
const STACK: u32 = 0x6474_e551;
/// Readable and writable: loaders before glibc 2.35 write addresses into the dynamic section.
const READ_WRITE: u32 = 6;

/// Tags of the dynamic section.
mod tag {
    pub(super) const NEEDED: u64 = 1;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRINGS: u64 = 5;
    pub(super) const SYMBOLS: u64 = 6;
    pub(super) const STRINGS_SIZE: u64 = 10;
    pub(super) const SYMBOL_SIZE: u64 = 11;
    pub(super) const NAME: u64 = 14;
    pub(super) const SYMBOL_VERSIONS: u64 = 0x6fff_fff0;
    pub(super) const DEFINITIONS: u64 = 0x6fff_fffc;
    pub(super) const DEFINITION_COUNT: u64 = 0x6fff_fffd;
}

/// Names one after the other, each ended by a zero byte; the first is empty.
struct Strings(Vec<u8>);

impl Strings {
    fn add(&mut self, name: &[u8]) -> u64 {
        let at = self.0.len();
        self.0.extend_from_slice(name);
        self.0.push(0);
        at as u64
    }
}

/// The hash of the System V ABI. The loader compares versions by it before it compares their names.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, &byte| {
        let sum = (hash << 4).wrapping_add(u32::from(byte));
        let high = sum & 0xf000_0000;
        (sum ^ (high >> 24)) & !high
    })
}

/// The library's bytes.
pub fn build(name: &[u8], needed: &[&[u8]], versions: &[Vec<u8>]) -> Vec<u8> {
    let mut strings = Strings(vec![0]);
    let own_name = strings.add(name);
    let mut entries: Vec<(u64, u64)> = needed.iter().map(|it| (tag::NEEDED, strings.add(it))).collect();
    entries.push((tag::NAME, own_name));
    // The first definition is the library's own name. A library without versions defines none.
    let mut definitions: Vec<(&[u8], u64)> = Vec::new();
    if !versions.is_empty() {
        definitions.push((name, own_name));
        definitions.extend(versions.iter().map(|it| (it.as_slice(), strings.add(it))));
    }
    let more = if definitions.is_empty() { 6 } else { 9 };
    let symbols = DYNAMIC + (entries.len() + more) * 16;
    let hashes = symbols + SYMBOL;
    let symbol_versions = hashes + size_of_val(&HASH);
    let defined = symbol_versions + SYMBOL_VERSIONS;
    let texts = defined + definitions.len() * (DEFINITION + DEFINITION_NAME);
    entries.extend([
        (tag::HASH, hashes as u64),
        (tag::STRINGS, texts as u64),
        (tag::SYMBOLS, symbols as u64),
        (tag::STRINGS_SIZE, strings.0.len() as u64),
        (tag::SYMBOL_SIZE, SYMBOL as u64),
    ]);
    if !definitions.is_empty() {
        entries.extend([
            (tag::SYMBOL_VERSIONS, symbol_versions as u64),
            (tag::DEFINITIONS, defined as u64),
            (tag::DEFINITION_COUNT, definitions.len() as u64),
        ]);
    }
    entries.push((0, 0));

    let mut bytes = header();
    let whole = (texts + strings.0.len()) as u64;
    let dynamic = (DYNAMIC as u64, entries.len() as u64 * 16);
    for (kind, (at, size), align) in [(LOAD, (0, whole), PAGE), (DYNAMIC_SEGMENT, dynamic, 8), (STACK, (0, 0), 16)] {
        bytes.extend([kind, READ_WRITE].iter().flat_map(|it| it.to_le_bytes()));
        bytes.extend([at, at, at, size, size, align].iter().flat_map(|it| it.to_le_bytes()));
    }
    bytes.extend(entries.iter().flat_map(|(tag, value)| [*tag, *value]).flat_map(u64::to_le_bytes));
    bytes.extend([0; SYMBOL]);
    bytes.extend(HASH.iter().flat_map(|it| it.to_le_bytes()));
    bytes.extend([0; SYMBOL_VERSIONS]);
    for (index, (name, at)) in definitions.iter().enumerate() {
        let (is_base, is_last) = (index == 0, index + 1 == definitions.len());
        bytes.extend([1, u16::from(is_base), index as u16 + 1, 1].iter().flat_map(|it| it.to_le_bytes()));
        let next = if is_last { 0 } else { DEFINITION + DEFINITION_NAME };
        bytes
            .extend([hash(name), DEFINITION as u32, next as u32, *at as u32, 0].iter().flat_map(|it| it.to_le_bytes()));
    }
    bytes.extend(strings.0);
    bytes
}

fn header() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // A shared object, of the only version of the format.
    bytes.extend([3, PROCESSOR, 1, 0].iter().flat_map(|it| it.to_le_bytes()));
    // No entry point, segments right after this header, no sections.
    bytes.extend([0, HEADER as u64, 0].iter().flat_map(|it| it.to_le_bytes()));
    bytes.extend(
        [0u16, 0, HEADER as u16, SEGMENT as u16, SEGMENTS as u16, 64, 0, 0].iter().flat_map(|it| it.to_le_bytes()),
    );
    bytes
}

#[cfg(test)]
#[allow(unsafe_code, reason = "has the loader open what was built")]
mod tests {
    use std::ffi::{CStr, CString};
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn loaded(bytes: &[u8]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libproxy.so");
        std::fs::write(&path, bytes).unwrap();
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a library without code.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: the loader's own C string.
            return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
        }
        // SAFETY: the library opened above.
        unsafe { libc::dlclose(library) };
        Ok(())
    }

    #[test]
    fn the_loader_takes_it_with_versions_and_without() {
        assert_eq!(loaded(&build(b"libMIOpen.so.1", &[b"libc.so.6"], &[])), Ok(()));
        let versions = [b"MIOPEN_HIP_1".to_vec(), b"MIOPEN_HIP_2".to_vec()];
        assert_eq!(loaded(&build(b"libMIOpen.so.1", &[b"libc.so.6"], &versions)), Ok(()));
    }

    #[test]
    fn what_it_needs_has_to_be_there() {
        let missing = loaded(&build(b"libMIOpen.so.1", &[b"libc.so.6", b"libnowhere.so"], &[])).unwrap_err();
        assert!(missing.contains("libnowhere.so"), "{missing}");
    }

    #[test]
    fn versions_hash_as_the_interface_says() {
        // From `readelf -V` of a C library: GLIBC_2.2.5.
        assert_eq!(hash(b"GLIBC_2.2.5"), 0x0969_1a75);
        assert_eq!(hash(b""), 0);
    }
}
