//! Tests of mapped media: round trips, ranges, and every way in which a data file can be wrong.

use super::*;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const LEN: u64 = 64 << 10;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn data_file(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("data")
}

/// Creates a data file and returns it closed.
fn made(directory: &tempfile::TempDir) -> PathBuf {
    let path = data_file(directory);
    drop(Mapped::file(&path, LEN).expect("a new file"));
    path
}

fn patch(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the file");
    file.write_all_at(bytes, at).expect("a patch");
}

/// The error of opening the file, which names the path.
fn refusal(path: &Path, len: u64) -> String {
    let error = Mapped::file(path, len)
        .expect_err("the file is not fit")
        .to_string();
    assert!(
        error.contains(path.to_str().expect("a plain path")),
        "{error}"
    );
    error
}

fn round_trip(medium: &Mapped) {
    let front = &mut Front::default();
    for (via, len) in [Via::Cached, Via::NonTemporal]
        .into_iter()
        .zip([100usize, 5000])
    {
        let value: Vec<u8> = (0..len).map(|i| (i % 250) as u8).collect();
        for at in [0, 1, 4095, medium.len() - len as u64] {
            medium.write(front, at, &value, via);
            medium.persist(front, at, len as u64);
            let mut seen = vec![0xff; len];
            medium.prefetch(at, len);
            medium.read(front, at, &mut seen);
            assert_eq!(seen, value, "{via:?} at {at}");
        }
    }
}

#[test]
fn bytes_come_back_from_memory_and_from_a_file() {
    let directory = directory();
    let anonymous = Mapped::anonymous(LEN).expect("memory");
    round_trip(&anonymous);
    assert_eq!(
        (anonymous.kind(), anonymous.origin()),
        (Kind::Anonymous, Origin::Fresh)
    );
    let path = data_file(&directory);
    for durability in [Durability::ProcessCrash, Durability::PowerLoss] {
        let file = Mapped::file(&path, LEN)
            .expect("a file")
            .with_durability(durability);
        round_trip(&file);
        assert_eq!(file.failed_syncs(), 0);
        assert_eq!(file.path(), Some(path.as_path()));
    }
}

#[test]
fn a_file_keeps_its_bytes_and_says_how_it_was_left() {
    let directory = directory();
    let path = data_file(&directory);
    let front = &mut Front::default();
    for expected in [Origin::Fresh, Origin::Dirty] {
        let file = Mapped::file(&path, LEN).expect("a file");
        assert_eq!(file.origin(), expected);
        file.write(front, LEN - 5, b"hello", Via::NonTemporal);
    }
    let file = Mapped::file(&path, LEN).expect("a file");
    file.mark_clean().expect("a clean mark");
    let uuid = file.describe();
    drop(file);
    let file = Mapped::file(&path, LEN).expect("a file");
    assert_eq!(file.origin(), Origin::Clean);
    assert_eq!(file.describe(), uuid);
    let mut seen = [0; 5];
    file.read(front, LEN - 5, &mut seen);
    assert_eq!(&seen, b"hello");
    drop(file);
    assert_eq!(
        Mapped::file(&path, LEN).expect("a file").origin(),
        Origin::Dirty
    );
}

#[test]
fn two_servers_cannot_share_a_file() {
    let directory = directory();
    let path = data_file(&directory);
    let first = Mapped::file(&path, LEN).expect("a file");
    assert!(refusal(&path, LEN).contains("in use"));
    drop(first);
    Mapped::file(&path, LEN).expect("free again");
}

#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    let directory = directory();
    let path = data_file(&directory);
    for content in [&b"#!/bin/sh\n"[..], &[b'x'; 9000]] {
        std::fs::write(&path, content).expect("a foreign file");
        assert!(refusal(&path, LEN).contains("not a Nyx data file"));
        assert_eq!(std::fs::read(&path).expect("still there"), content);
    }
    assert!(refusal(&std::env::temp_dir(), LEN).contains("cannot open"));
    assert!(refusal(Path::new("/dev/null"), LEN).contains("not a regular file"));
}

#[test]
fn an_interrupted_creation_is_named() {
    let directory = directory();
    let path = data_file(&directory);
    std::fs::write(&path, vec![0; 9000]).expect("a file of zeros");
    assert!(refusal(&path, LEN).contains("interrupted"));
}

#[test]
fn a_newer_format_and_a_damaged_header_are_told_apart() {
    let directory = directory();
    let path = made(&directory);
    patch(&path, 8, &[2, 0, 0, 0]);
    assert!(refusal(&path, LEN).contains("format 2"));
    patch(&path, 8, &[1, 0, 0, 0]);
    patch(&path, 20, &[1]);
    assert!(refusal(&path, LEN).contains("checksum 0x"));
}

#[test]
fn a_truncated_and_a_small_file_give_both_sizes() {
    let directory = directory();
    let path = made(&directory);
    let error = refusal(&path, LEN + 1);
    assert!(
        error.contains("65536 bytes") && error.contains("65537 bytes"),
        "{error}"
    );
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file");
    file.set_len(5000).expect("truncation");
    let error = refusal(&path, LEN);
    assert!(
        error.contains("5000 bytes") && error.contains("69632"),
        "{error}"
    );
    file.set_len(20).expect("truncation");
    assert!(refusal(&path, LEN).contains("20 bytes"));
}

#[test]
fn a_larger_file_serves_a_smaller_medium() {
    let directory = directory();
    let path = made(&directory);
    assert_eq!(Mapped::file(&path, 4097).expect("part of it").len(), 4097);
}

#[test]
fn a_full_disk_is_an_error_at_start_and_leaves_no_file() {
    let directory = directory();
    let path = data_file(&directory);
    let error = refusal(&path, 1 << 60);
    assert!(
        error.contains("cannot allocate 1152921504606851072 bytes"),
        "{error}"
    );
    assert!(!path.exists());
}

#[test]
fn an_unreadable_directory_is_named() {
    let error = refusal(Path::new("/nonexistent/nyx/data"), LEN);
    assert!(error.contains("cannot open"), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for len in [0, u64::MAX, isize::MAX as u64] {
        let error = Mapped::file(Path::new("/nonexistent"), len).expect_err("no such size");
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    assert!(Mapped::anonymous(0).is_err());
}

/// Where the test runs there is either DAX or a clear reason.
#[test]
fn dax_works_or_says_why_not() {
    let directory = directory();
    let path = data_file(&directory);
    match Mapped::dax(&path, LEN) {
        Ok(medium) => round_trip(&medium),
        Err(error) => {
            assert!(error.to_string().contains("DAX"), "{error}");
            assert!(!path.exists(), "a refused file is left behind");
        }
    }
}

/// A directory that a variable names, for tests that need one of a kind that few machines have.
fn named(variable: &str) -> tempfile::TempDir {
    let parent = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set"));
    tempfile::tempdir_in(parent).expect("a directory there")
}

#[test]
#[ignore = "needs persistent memory at NYX_DAX_DIR: cargo xtask test vm has it"]
fn direct_access_keeps_bytes_and_says_how_they_were_left() {
    let directory = named("NYX_DAX_DIR");
    let path = data_file(&directory);
    let front = &mut Front::default();
    for expected in [Origin::Fresh, Origin::Dirty] {
        let medium = Mapped::dax(&path, LEN).expect("direct access");
        assert_eq!((medium.kind(), medium.origin()), (Kind::Dax, expected));
        assert!(medium.describe().contains("power loss (cache-line flush)"));
        round_trip(&medium);
        medium.write(front, LEN - 5, b"hello", Via::NonTemporal);
        medium.persist(front, LEN - 5, 5);
    }
    let medium = Mapped::dax(&path, LEN).expect("direct access");
    medium.mark_clean().expect("a clean mark");
    drop(medium);
    let medium = Mapped::dax(&path, LEN).expect("direct access");
    assert_eq!(medium.origin(), Origin::Clean);
    let mut seen = [0; 5];
    medium.read(front, LEN - 5, &mut seen);
    assert_eq!(&seen, b"hello");
    let in_use = Mapped::dax(&path, LEN).expect_err("it is open");
    assert!(in_use.to_string().contains("in use"), "{in_use}");
    drop(medium);
    patch(&path, 20, &[1]);
    let damaged = Mapped::dax(&path, LEN).expect_err("a damaged header");
    assert!(damaged.to_string().contains("checksum"), "{damaged}");
}

#[test]
#[ignore = "needs a filesystem without direct access at NYX_NO_DAX_DIR: cargo xtask test vm has it"]
fn direct_access_is_refused_where_there_is_none() {
    let directory = named("NYX_NO_DAX_DIR");
    let path = data_file(&directory);
    let refused = || {
        let error = Mapped::dax(&path, LEN).expect_err("no direct access");
        assert!(matches!(error, MediaError::NoDax { .. }), "{error}");
        error.to_string()
    };
    assert!(refused().contains("MAP_SYNC"));
    assert!(!path.exists(), "a refused file is left behind");
    let path = made(&directory);
    assert!(refused().contains("-o dax"));
    assert!(path.exists(), "a file that was here before is gone");
}

#[test]
fn pretouching_changes_nothing() {
    let directory = directory();
    let front = &mut Front::default();
    let path = data_file(&directory);
    for medium in [Mapped::anonymous(LEN), Mapped::file(&path, LEN)] {
        let medium = medium.expect("a medium");
        medium.write(front, 5000, b"kept", Via::Cached);
        medium.pretouch(3);
        let mut seen = [0; 4];
        medium.read(front, 5000, &mut seen);
        assert_eq!(&seen, b"kept");
    }
}

#[test]
#[should_panic(expected = "2 bytes at 65535 leave a medium of 65536 bytes")]
fn a_read_outside_panics() {
    let medium = Mapped::anonymous(LEN).expect("memory");
    medium.read(&mut Front::default(), LEN - 1, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "leave a medium")]
fn an_address_that_overflows_panics() {
    let medium = Mapped::anonymous(LEN).expect("memory");
    medium.write(&mut Front::default(), u64::MAX, b"xx", Via::Cached);
}
