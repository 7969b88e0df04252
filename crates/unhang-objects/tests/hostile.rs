//! Containers made to fill the disk or the memory, or to run something.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use unhang_objects::{WalkEvent, rewrite, walk};

const OBJECT: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/hazards.co");

/// What a walk encounters: bytes of code objects, and what could not be read.
fn met(path: &Path) -> (usize, Vec<String>) {
    let (mut bytes, mut errors) = (0, Vec::new());
    let result = walk(path, &mut |event| match event {
        WalkEvent::Object { bytes: object, .. } => bytes += object.len(),
        WalkEvent::Unreadable { error, .. } => errors.push(error.to_string()),
        _ => {}
    });
    errors.extend(result.err().map(|error| error.to_string()));
    (bytes, errors)
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A zip archive of that many members with one packed body: each has its own copy, or all share one.
fn archive(body: &[u8], size: u32, members: usize, shared: bool) -> Vec<u8> {
    let (mut out, mut directory, mut at) = (Vec::new(), Vec::new(), 0u32);
    for index in 0..members {
        let name = format!("lib/{index}.so");
        let mut common = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend((body.len() as u32).to_le_bytes());
        common.extend(size.to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        if index == 0 || !shared {
            at = out.len() as u32;
            out.extend(b"PK\x03\x04");
            out.extend(&common);
            out.extend(name.bytes());
            out.extend(body);
        }
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.bytes());
    }
    let (start, size) = (out.len() as u32, directory.len() as u32);
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([(members as u16).to_le_bytes(); 2].concat());
    out.extend(size.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// Something with that many bytes that starts like a code object.
fn large_object(length: usize) -> Vec<u8> {
    let mut bytes = OBJECT.to_vec();
    bytes.resize(length, 0);
    bytes
}

#[test]
fn a_wheel_that_names_the_same_bytes_many_times_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.whl");
    let object = large_object(8 << 20);
    fs::write(&path, archive(&deflated(&object), object.len() as u32, 20_000, true)).unwrap();
    let (bytes, errors) = met(&path);
    assert_eq!(bytes, 0, "160 GB would be unpacked from {} bytes", fs::metadata(&path).unwrap().len());
    assert!(errors[0].contains("overlap"), "{errors:?}");
}

#[test]
fn a_wheel_unpacks_to_a_hundred_times_its_size_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.whl");
    let object = large_object(8 << 20);
    fs::write(&path, archive(&deflated(&object), object.len() as u32, 100, false)).unwrap();
    let limit = 100 * fs::metadata(&path).unwrap().len() as usize + (64 << 20);
    let (bytes, errors) = met(&path);
    assert!(bytes <= limit && limit < 100 * object.len(), "{bytes} bytes of {limit}");
    assert!(errors.iter().any(|error| error.contains("all that is packed in it")), "{errors:?}");
    fs::write(&path, archive(&deflated(OBJECT), OBJECT.len() as u32, 100, false)).unwrap();
    assert_eq!(met(&path), (100 * OBJECT.len(), Vec::new()), "and what is packed as usual is read");
}

const TABLE: &str = "CREATE TABLE kern_db (id INTEGER PRIMARY KEY, kernel_name TEXT, kernel_args TEXT,
                     kernel_blob BLOB, kernel_hash TEXT, uncompressed_size INT);";

fn database(path: &Path, sql: &str, blobs: &[(&[u8], i64)]) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch(sql).unwrap();
    for (blob, size) in blobs {
        let sql = "INSERT INTO kern_db (kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size)
                   VALUES ('conv.cpp', '', ?1, '', ?2)";
        connection.execute(sql, rusqlite::params![blob, size]).unwrap();
    }
}

#[test]
fn a_small_database_does_not_become_gigabytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.ukdb");
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    let mut object = large_object(40 << 20);
    encoder.write_all(&object).unwrap();
    let packed = encoder.finish().unwrap();
    object.clear();
    database(&path, TABLE, &[(packed.as_slice(), 40 << 20); 10]);
    let (bytes, errors) = met(&path);
    assert_eq!(bytes, 40 << 20, "the first is within the budget, the next is not");
    assert!(errors.len() == 9 && errors[0].contains("all that is packed in it"), "{errors:?}");
}

#[test]
fn a_database_that_computes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("evil.ukdb"), folder.path().join("copy.ukdb"));
    let computed = "CREATE TABLE kern_db (id INTEGER PRIMARY KEY, kernel_name TEXT, kernel_args TEXT, kernel_hash TEXT,
                    kernel_blob BLOB AS (zeroblob(1000000000)) VIRTUAL, uncompressed_size INT);
                    INSERT INTO kern_db (kernel_name, uncompressed_size) VALUES ('x', 0);";
    database(&path, computed, &[]);
    let (bytes, errors) = met(&path);
    assert!(bytes == 0 && errors[0].contains("computed columns"), "{bytes} bytes, {errors:?}");
    fs::remove_file(&path).unwrap();

    let triggers = format!(
        "{TABLE} CREATE TABLE ran (x);
         CREATE TRIGGER evil AFTER UPDATE ON kern_db BEGIN
             INSERT INTO ran WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000000000) SELECT x FROM n;
         END;"
    );
    database(&path, &triggers, &[(OBJECT, 0)]);
    let refused = rewrite(&path, &copy, &mut |found| Some(found.bytes.to_vec())).unwrap_err();
    assert!(refused.to_string().contains("the trigger evil"), "{refused}");
    assert!(!copy.exists());
}

#[test]
fn what_cannot_be_read_in_a_database_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("a.ukdb"), folder.path().join("copy.ukdb"));
    database(&path, TABLE, &[(OBJECT, 0), (b"no bzip2 at all", 100)]);
    let unreadable = rewrite(&path, &copy, &mut |_| None).unwrap();
    assert!(unreadable.len() == 1 && unreadable[0].starts_with("conv.cpp: "), "{unreadable:?}");
}

#[test]
fn a_copy_has_no_rights_that_its_owner_did_not_give() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("a.co"), folder.path().join("copy.co"));
    fs::write(&path, OBJECT).unwrap();
    let mode = || fs::metadata(&copy).unwrap().mode() & 0o7777;
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    rewrite(&path, &copy, &mut |_| None).unwrap();
    assert_eq!(mode(), 0o755, "set-id bits would make it run as us, whoever wrote it");
    if chown(&path, Some(65534), Some(65534)).is_err() {
        println!("skipped: a file of another user needs root");
        return;
    }
    fs::set_permissions(&path, Permissions::from_mode(0o4666)).unwrap();
    rewrite(&path, &copy, &mut |_| None).unwrap();
    assert_eq!(mode(), 0o644, "what changed hands is written by its new owner alone");
    fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
    rewrite(&path, &copy, &mut |_| None).unwrap();
    assert_eq!(mode(), 0o600, "their group is not ours");
}
