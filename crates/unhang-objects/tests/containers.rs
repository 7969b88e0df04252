//! Every container gives the same code object, and damaged ones are rejected without a panic.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use unhang_isa::Chip;
use unhang_objects::survey::{Options, survey};
use unhang_objects::{Found, ObjectsError, Size, WalkEvent, rewrite, walk};

const OBJECT: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/hazards.co");

fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    out.extend((entries.len() as u64).to_le_bytes());
    let mut offset = 4096u64;
    for (name, bytes) in entries {
        for value in [offset, bytes.len() as u64, name.len() as u64] {
            out.extend(value.to_le_bytes());
        }
        out.extend(name.bytes());
        offset = (offset + bytes.len() as u64).next_multiple_of(4096);
    }
    for (_, bytes) in entries {
        out.resize(out.len().next_multiple_of(4096), 0);
        out.extend(*bytes);
    }
    out
}

fn gpu_bundle() -> Vec<u8> {
    bundle(&[
        ("host-x86_64-unknown-linux--", b""),
        ("hipv4-amdgcn-amd-amdhsa--gfx1030", OBJECT),
        ("hipv4-amdgcn-amd-amdhsa--gfx90a", b"not read"),
    ])
}

/// A shared library that holds `contents` in its section for fat binaries, and nothing else.
fn library(contents: &[u8]) -> Vec<u8> {
    let names = b"\0.hip_fatbin\0.shstrtab\0";
    let (names_at, contents_at) = (64u64, 4096u64);
    let table_at = (contents_at + contents.len() as u64).next_multiple_of(8);
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(64, 0);
    out[16..20].copy_from_slice(&[3, 0, 62, 0]);
    out[40..48].copy_from_slice(&table_at.to_le_bytes());
    out[58..64].copy_from_slice(&[64, 0, 3, 0, 2, 0]);
    out.extend(names);
    out.resize(contents_at as usize, 0);
    out.extend(contents);
    out.resize(table_at as usize, 0);
    for (name, kind, at, size) in
        [(0u32, 0u32, 0, 0), (1, 1, contents_at, contents.len()), (13, 3, names_at, names.len())]
    {
        let mut section = [0; 64];
        section[0..4].copy_from_slice(&name.to_le_bytes());
        section[4..8].copy_from_slice(&kind.to_le_bytes());
        section[24..32].copy_from_slice(&at.to_le_bytes());
        section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        out.extend(section);
    }
    out
}

/// A zip archive; its members are compressed if `packed`.
fn archive(members: &[(&str, &[u8])], packed: bool) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let body = if packed {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            bytes.to_vec()
        };
        let mut common = vec![20, 0, 0, 0, if packed { 8 } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend((body.len() as u32).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(name.bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.bytes());
        out.extend(body);
    }
    let (start, size) = (out.len() as u32, directory.len() as u32);
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([(members.len() as u16).to_le_bytes(); 2].concat());
    out.extend(size.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

fn database(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE kern_db (id INTEGER PRIMARY KEY, kernel_name TEXT, kernel_args TEXT, kernel_blob BLOB,
             kernel_hash TEXT, uncompressed_size INT)",
        )
        .unwrap();
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
    encoder.write_all(OBJECT).unwrap();
    let packed = encoder.finish().unwrap();
    for (blob, size) in [(packed.as_slice(), OBJECT.len()), (OBJECT, 0)] {
        connection
            .execute(
                "INSERT INTO kern_db (kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size)
                 VALUES ('conv.cpp', '-mcpu', ?1, '', ?2)",
                rusqlite::params![blob, size as i64],
            )
            .unwrap();
    }
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    files: usize,
    objects: usize,
    others: Vec<String>,
    unreadable: Vec<String>,
}

fn see(path: &Path) -> Result<Seen, ObjectsError> {
    let mut seen = Seen::default();
    walk(path, &mut |event| match event {
        WalkEvent::File { .. } => seen.files += 1,
        WalkEvent::Object { bytes, .. } => {
            assert_eq!(bytes, OBJECT);
            seen.objects += 1;
        }
        WalkEvent::OtherTarget { target } => seen.others.push(target.to_owned()),
        WalkEvent::Unreadable { error, .. } => seen.unreadable.push(error.to_string()),
    })?;
    Ok(seen)
}

#[test]
fn every_container_leads_to_the_object() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let twice = [gpu_bundle(), vec![0; 5000], gpu_bundle()].concat();
    let wheel = [("package/readme.txt", &b"words"[..]), ("package/lib.so", &library(&gpu_bundle()))];
    assert_eq!(see(&file("kernel.co", OBJECT)).unwrap().objects, 1);
    assert_eq!(see(&file("kernel.hsaco", &gpu_bundle())).unwrap().objects, 1);
    assert_eq!(see(&file("lib.so", &library(&twice))).unwrap().objects, 2);
    assert_eq!(see(&file("lib.so", &library(&twice))).unwrap().others, ["gfx90a", "gfx90a"]);
    assert_eq!(see(&file("plain.so", &library(b""))).unwrap(), Seen { files: 1, ..Seen::default() });
    for packed in [false, true] {
        let seen = see(&file("package.whl", &archive(&wheel, packed))).unwrap();
        assert_eq!((seen.files, seen.objects, seen.unreadable.len()), (1, 1, 0), "packed: {packed}");
    }
    database(&folder.path().join("gfx1030_18.ukdb"));
    assert_eq!(see(&folder.path().join("gfx1030_18.ukdb")).unwrap().objects, 2);
    file("notes.txt", b"nothing here");
    let all = see(folder.path()).unwrap();
    assert_eq!((all.objects, all.unreadable.len()), (1 + 1 + 2 + 1 + 2, 0));
}

#[test]
fn what_holds_no_code_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("readme.txt");
    std::fs::write(&path, "hello").unwrap();
    let error = see(&path).unwrap_err().to_string();
    assert!(error.contains("68 65 6c 6c 6f"), "{error}");
    std::fs::write(&path, "").unwrap();
    assert!(see(&path).unwrap_err().to_string().contains("empty"));
    assert!(see(&folder.path().join("missing")).is_err());
    let other = rusqlite::Connection::open(folder.path().join("other.db")).unwrap();
    other.execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(see(&folder.path().join("other.db")).unwrap_err().to_string().contains("kern_db"));
}

#[test]
fn metadata_of_a_relocatable_object_is_absent() {
    let object = unhang_isa::elf::CodeObject::parse(OBJECT).unwrap();
    assert!(unhang_objects::metadata::read(&object).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("UNHANG_HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
    ))]

    #[test]
    fn damaged_containers_are_read_or_refused(
        kind in 0..4usize,
        early_changes in prop::collection::vec((0..200usize, any::<u8>()), 0..5),
        late_changes in prop::collection::vec((0..300usize, any::<u8>()), 0..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let wheel = [("lib.so", &library(&gpu_bundle())[..])];
        let mut bytes = match kind {
            0 => gpu_bundle(),
            1 => library(&gpu_bundle()),
            2 => archive(&wheel, true),
            _ => archive(&wheel, false),
        };
        let length = bytes.len();
        for (at, value) in early_changes {
            bytes[at] = value;
        }
        for (at, value) in late_changes {
            bytes[length - 1 - at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(length));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let options = Options { chip: Chip::Gfx1010, keep_findings: true };
        let _ = walk(file.path(), &mut |event| {
            if let WalkEvent::Object { bytes, .. } = event {
                let _ = survey(bytes, options);
            }
        });
    }
}

/// What a container holds, as [`walk`] finds it.
fn objects(path: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    walk(path, &mut |event| {
        if let WalkEvent::Object { bytes, .. } = event {
            found.push(bytes.to_vec());
        }
    })
    .unwrap();
    found
}

#[test]
fn containers_are_copied_with_other_objects_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    let mut longer = OBJECT.to_vec();
    longer.extend([7; 5000]);
    let mut same = OBJECT.to_vec();
    *same.last_mut().unwrap() ^= 1;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&gpu_bundle()).unwrap();
    let mut compressed = b"CCOB\x01\0\0\0".to_vec();
    compressed.extend((gpu_bundle().len() as u32).to_le_bytes());
    compressed.extend([0; 8]);
    compressed.extend(encoder.finish().unwrap());
    type Case<'c> = (&'c str, Vec<u8>, Size, Vec<&'c [u8]>);
    let cases: [Case<'_>; 5] = [
        ("object", OBJECT.to_vec(), Size::Any, vec![&longer]),
        ("bundle", gpu_bundle(), Size::Any, vec![&longer]),
        ("compressed bundle", compressed.clone(), Size::Any, vec![&longer]),
        ("library", library(&[gpu_bundle(), gpu_bundle()].concat()), Size::Same, vec![&same, &same]),
        ("library with a compressed bundle", library(&compressed), Size::Fixed, vec![OBJECT]),
    ];
    for (name, bytes, size, expected) in cases {
        std::fs::write(&input, &bytes).unwrap();
        rewrite(&input, &output, &mut |found: Found<'_>| {
            assert_eq!((found.bytes, found.size), (OBJECT, size), "{name}");
            Some(if size == Size::Any { longer.clone() } else { same.clone() })
        })
        .unwrap();
        assert_eq!(objects(&output), expected, "{name}");
        assert_eq!(std::fs::read(&input).unwrap(), bytes, "{name}");
        if size != Size::Any {
            // A replacement that is too long for its place is not written.
            rewrite(&input, &output, &mut |_| Some(vec![0; OBJECT.len() + 1])).unwrap();
            assert_eq!(objects(&output), objects(&input), "{name}");
        }
        rewrite(&input, &output, &mut |_| None).unwrap();
        assert_eq!(std::fs::read(&output).unwrap(), bytes, "{name}");
    }
    let leftovers: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(leftovers.len(), 2, "{leftovers:?}");
}

#[test]
fn kernel_databases_are_copied_with_their_hashes() {
    use md5::Digest;
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("a.ukdb"), folder.path().join("b.ukdb"));
    database(&input);
    let before = std::fs::read(&input).unwrap();
    rewrite(&input, &output, &mut |found| {
        let mut longer = found.bytes.to_vec();
        longer.extend([9; 100]);
        Some(longer)
    })
    .unwrap();
    assert_eq!(std::fs::read(&input).unwrap(), before);
    let changed = objects(&output);
    assert_eq!(changed.len(), 2);
    let hash: String = md5::Md5::digest(&changed[0]).iter().map(|byte| format!("{byte:02x}")).collect();
    let connection = rusqlite::Connection::open(&output).unwrap();
    let mut statement = connection.prepare("SELECT kernel_hash, uncompressed_size, kernel_args FROM kern_db").unwrap();
    let rows: Vec<(String, i64, String)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let length = OBJECT.len() as i64 + 100;
    assert_eq!(rows, [(hash.clone(), length, "-mcpu".to_owned()), (hash, 0, "-mcpu".to_owned())]);
    assert!(changed.iter().all(|object| object.len() == OBJECT.len() + 100));
}

#[test]
fn archives_are_not_rewritten_and_failures_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    let mut cut = gpu_bundle();
    cut.truncate(5000);
    for bytes in [archive(&[("a.co", OBJECT)], false), b"words".to_vec(), cut] {
        std::fs::write(&input, bytes).unwrap();
        assert!(rewrite(&input, &output, &mut |_| None).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
