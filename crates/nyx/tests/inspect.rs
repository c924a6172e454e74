//! `nyx inspect` on what a real server left behind: counts that are right, damage that is told and
//! mended, files that are none of Nyx's.

#[path = "rig/surviving.rs"]
mod surviving;

use nyx_base::WorkerId;
use nyx_index::fast_fair::FastFair;
use nyx_index::heap::Heap;
use nyx_index::{Eras, Index, Persistent};
use nyx_media::Mapped;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use surviving::{Server, directory};

const DAMAGED: i32 = 65;
const UNAVAILABLE: i32 = 69;
const ITEMS: u64 = 2000;

fn inspect(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    let command = command.env_clear().arg("inspect").arg(file).args(more);
    command.output().expect("the binary")
}

/// What a look that finds nothing wrong says.
fn sound(file: &Path, more: &[&str]) -> String {
    let output = inspect(file, more);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

/// What one that does says, on both streams.
fn refusal(file: &Path, more: &[&str], code: i32) -> String {
    let output = inspect(file, more);
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn key(number: u64) -> String {
    format!("key:{number:05}")
}

/// Sets all items, and kills the server when it has acknowledged them.
fn fill(dir: &Path) {
    let mut server = Server::start(dir);
    let mut client = server.connect();
    for number in 0..ITEMS {
        let (key, value) = (key(number), "v".repeat(100 + number as usize % 7));
        let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        client
            .stream
            .write_all(request.as_bytes())
            .expect("a server");
        assert_eq!(client.line().as_deref(), Some("STORED\r\n"));
    }
    server.kill();
}

fn count(dir: &Path) -> u64 {
    let server = Server::start(dir);
    let mut client = server.connect();
    (0..ITEMS)
        .filter(|&number| client.get(&key(number)).is_some())
        .count() as u64
}

#[test]
fn an_image_is_told_of_checked_and_repaired() {
    let dir = directory("crash");
    fill(dir.path());
    let image = dir.path().join("first.image");
    let before = fs::read(&image).expect("the image");
    let said = sound(&image, &[]);
    for part in [
        "image of a tenant",
        "\"first\"",
        "32 MiB",
        "is gone",
        ", read",
        "sound",
    ] {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    let told: Value = serde_json::from_str(&sound(&image, &["--json"])).expect("JSON");
    assert_eq!(told["facts"]["items"]["all"], ITEMS);
    assert_eq!(told["facts"]["values"]["read"], true);
    assert!(fs::read(&image).expect("the image") == before, "a look");

    // Without its index it still has its items.
    // Buckets begin at the second large page of the parts (docs/format.md).
    let file = fs::OpenOptions::new().write(true).open(&image);
    file.expect("the image")
        .write_all_at(&[0; 1 << 16], 4096 + (2 << 20))
        .expect("a disk");
    let said = refusal(&image, &[], DAMAGED);
    assert!(said.contains("no entry of the index leads to"), "{said}");
    let said = sound(&image, &["--repair"]);
    assert!(
        said.ends_with("repaired\n") && said.contains("made anew from 2000"),
        "{said}"
    );
    assert!(sound(&image, &[]).contains("closed in order"));
    assert_eq!(count(dir.path()), ITEMS);
}

#[test]
fn values_are_compared_where_they_are_found() {
    let dir = directory("crash");
    fill(dir.path());
    let image = dir.path().join("first.image");
    let data = fs::read_dir(dir.path())
        .expect("a directory")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"NYXDATA")))
        .expect("a data file");
    assert!(sound(&data, &[]).contains("values, or nothing"));
    let away = dir.path().join("below").join("deeper");
    fs::create_dir_all(&away).expect("a directory");
    let moved = away.join("moved.data");
    fs::rename(&data, &moved).expect("a file");
    assert!(sound(&image, &[]).contains("not read (--data)"));
    let at = moved.to_str().expect("a path");
    assert!(sound(&image, &["--data", at]).contains(", read"));
    let file = fs::OpenOptions::new().write(true).open(&moved);
    file.expect("the file")
        .write_all_at(b"another", 4096 + 20)
        .expect("a disk");
    let said = refusal(&image, &["--data", at], DAMAGED);
    assert!(said.contains("1 values were not"), "{said}");
    assert!(said.contains("1999, of which"), "{said}");
    sound(&image, &["--data", at, "--repair"]);
    assert!(sound(&image, &["--data", at]).contains("1999, of which"));
}

#[test]
fn what_is_no_file_of_ours_or_in_use_is_refused() {
    let dir = directory("crash");
    let image = dir.path().join("first.image");
    let server = Server::start(dir.path());
    assert!(refusal(&image, &[], UNAVAILABLE).contains("in use"));
    drop(server);
    let other = dir.path().join("other");
    fs::write(&other, "hello, world").expect("a disk");
    assert!(refusal(&other, &[], DAMAGED).contains("hello, w"));
    refusal(&dir.path().join("nothing"), &[], 66);
    let whole = fs::read(&image).expect("the image");
    for len in [3, 100, 4096, whole.len() / 2] {
        fs::write(&other, &whole[..len]).expect("a disk");
        refusal(&other, &[], DAMAGED);
    }
    let mut lost = whole.clone();
    lost[2056] ^= 1;
    fs::write(&other, &lost).expect("a disk");
    assert!(refusal(&other, &["--repair"], DAMAGED).contains("--stale"));
    assert!(sound(&other, &[]).contains("of different ages"));
    sound(&other, &["--repair", "--stale"]);
}

#[test]
fn an_index_in_a_data_file_is_found_and_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("index");
    let make = || {
        let medium = Mapped::file(&path, 4 << 20).expect("a disk");
        let eras = Arc::new(Eras::new(1));
        let heap = Heap::format(medium, 64 << 10, 7, eras).expect("a heap");
        FastFair::open(Arc::new(heap), 2, WorkerId(0)).expect("a tree")
    };
    let tree: FastFair<Mapped> = make();
    for key in 0..500 {
        tree.put(WorkerId(0), key, key).expect("room");
    }
    drop(tree);
    let said = sound(&path, &[]);
    for part in [
        "heap of format 1",
        "opened   1 times",
        "FAST-FAIR tree at root 2: 500 entries",
    ] {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    let bytes = fs::read(&path).expect("the file");
    // Chunks begin at the second 64 KiB of the medium.
    let mut broken = bytes.clone();
    broken[4096 + (64 << 10)..][..4096].fill(0x77);
    fs::write(&path, &broken).expect("a disk");
    assert!(refusal(&path, &[], DAMAGED).contains("root 2 leads to nothing"));
    broken = bytes;
    broken[4096 + 16] ^= 1;
    fs::write(&path, &broken).expect("a disk");
    assert!(refusal(&path, &[], DAMAGED).contains("checksum"));
}
