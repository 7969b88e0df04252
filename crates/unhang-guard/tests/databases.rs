//! Databases whose schema is a program.
#![cfg(feature = "sqlite")]

use rusqlite::Connection;
use unhang_guard::sqlite::{harden, open_untrusted, programs_in};

fn database(sql: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a b.db");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    (folder, path)
}

#[test]
fn a_column_that_is_computed_makes_no_gigabytes() {
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, big BLOB AS (zeroblob(900000000)) VIRTUAL);
               INSERT INTO t (id) VALUES (1);";
    let (_folder, path) = database(sql);
    let connection = open_untrusted(&path).unwrap();
    assert_eq!(programs_in(&connection).unwrap().as_deref(), Some("computed columns in t"));
    let read = connection.query_row("SELECT big FROM t", [], |row| row.get::<_, Vec<u8>>(0));
    assert!(read.is_err(), "longer than the file: {} bytes", read.unwrap().len());
}

#[test]
fn triggers_and_views_do_not_run() {
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, x);
               CREATE TABLE log (x);
               INSERT INTO t VALUES (1, 1);
               CREATE TRIGGER evil AFTER UPDATE ON t BEGIN INSERT INTO log VALUES ('ran'); END;";
    let (_folder, path) = database(sql);
    let connection = Connection::open(&path).unwrap();
    harden(&connection, 1 << 20).unwrap();
    assert_eq!(programs_in(&connection).unwrap().as_deref(), Some("the trigger evil"));
    connection.execute("UPDATE t SET x = 2", []).unwrap();
    assert_eq!(connection.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)).unwrap(), 0);

    let (_folder, path) = database("CREATE VIEW t AS SELECT 1 AS x;");
    let connection = open_untrusted(&path).unwrap();
    assert!(connection.query_row("SELECT x FROM t", [], |_| Ok(())).is_err());
    assert!(programs_in(&connection).unwrap().is_some());
}

#[test]
fn a_plain_database_is_read() {
    let (_folder, path) = database("CREATE TABLE t (x); INSERT INTO t VALUES (7); CREATE INDEX i ON t (x);");
    let connection = open_untrusted(&path).unwrap();
    assert_eq!(programs_in(&connection).unwrap(), None);
    assert_eq!(connection.query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 7);
    assert!(connection.execute("UPDATE t SET x = 8", []).is_err());
}
