//! The real binary as a block device: what clients of NBD read, after kills, in all modes, and
//! what is left in the image.

#[path = "rig/nbd.rs"]
mod nbd;

use nbd::{Client, Export, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const MODES: [&str; 5] = [
    "write-back",
    "write-through",
    "write-around",
    "write-invalidate",
    "pass-through",
];
const BLOCK: usize = 4096;
const IMAGE_BLOCKS: usize = 1024;
const IMAGE_BYTES: usize = IMAGE_BLOCKS * BLOCK;
/// A quarter of the image, so that lines are given up.
const SMALL: [&str; 2] = ["--fast-size", "1MiB"];

fn directory(image_bytes: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("deep"), vec![0; image_bytes]).expect("room");
    dir
}

fn image(dir: &Path) -> Vec<u8> {
    fs::read(dir.join("deep")).expect("the image")
}

/// Whether a program is there; says so where it is not.
fn has(test: &str, program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<_> = std::env::split_paths(&path).collect();
    dirs.push("/usr/sbin".into());
    let found = dirs.iter().any(|dir| dir.join(program).is_file());
    if !found {
        eprintln!("skipped {test}: {program} is missing (Debian package {package})");
    }
    found
}

/// Whether the images' file system lets a cache say that it was there; says so where it does not.
fn has_attributes(test: &str, dir: &Path) -> bool {
    let image = nyx_block::Image::at(&dir.join("deep"), "").expect("there is one");
    let has = image.last() != nyx_block::image::Last::Unknown;
    if !has {
        eprintln!(
            "skipped {test}: no user attributes of files in {}",
            dir.display()
        );
    }
    has
}

fn done(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn fio_finds_what_it_wrote_in_every_mode() {
    if !has("fio_finds_what_it_wrote_in_every_mode", "fio", "fio") {
        return;
    }
    let dir = directory(16 << 20);
    for (nth, mode) in MODES.into_iter().enumerate() {
        let line = ["4KiB", "16KiB", "64KiB"][nth % 3];
        let fast = format!("fast{nth}");
        let more = ["--fast-size", "4MiB", "--mode", mode, "--line", line];
        let export = Export::start(dir.path(), &fast, "deep", &more);
        let uri = format!("--uri={}", export.uri());
        let fio = |name: &str, more: &[&str]| {
            let common = [
                "--ioengine=nbd",
                &uri,
                "--verify=crc32c",
                "--verify_fatal=1",
            ];
            let dir = format!("--aux-path={}", dir.path().display());
            let mut command = Command::new("fio");
            command.arg(format!("--name={name}")).args(common).arg(dir);
            done(
                command
                    .args(["--size=16M", "--verify_state_save=0"])
                    .args(more),
            )
        };
        fio(
            "blocks",
            &["--rw=randrw", "--bs=4k", "--iodepth=16", "--fsync=64"],
        );
        fio(
            "sizes",
            &[
                "--rw=randwrite",
                "--bsrange=512-256k",
                "--bs_unaligned",
                "--iodepth=4",
            ],
        );
        fio("lines", &["--rw=write", "--bs=1M", "--iodepth=4"]);
        let seen = export.connect().read_all();
        export.stop();
        assert!(
            seen == image(dir.path()),
            "{mode}: the image is not what clients saw"
        );
    }
}

/// What the writers of the kill test know: for each block what it may be.
struct Known {
    may: Vec<Mutex<BTreeSet<u64>>>,
    next: AtomicU32,
    answered: AtomicU32,
}

fn stamp(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

impl Known {
    /// Writes and flushes until the server is gone. A client has blocks of its own: those whose
    /// number leaves `nth` when divided by two.
    fn work(&self, mut to: Client, nth: usize, rng: &mut fastrand::Rng) {
        loop {
            let mut flying = Vec::new();
            for _ in 0..rng.usize(1..16) {
                let block = rng.usize(..IMAGE_BLOCKS / 2) * 2 + nth;
                if flying.iter().any(|&(_, other, _)| other == block) {
                    continue;
                }
                let value = u64::from(self.next.fetch_add(1, Relaxed));
                self.may[block].lock().expect("no panic").insert(value);
                let flags = u16::from(rng.u8(..8) == 0);
                let at = (block * BLOCK) as u64;
                let sent = to.send((1, flags), at, BLOCK as u32, &stamp(value));
                let Ok(cookie) = sent else { return };
                flying.push((cookie, block, value));
            }
            while !flying.is_empty() {
                let Ok((cookie, error)) = to.reply() else {
                    return;
                };
                assert_eq!(error, 0);
                let at = flying.iter().position(|&(of, ..)| of == cookie);
                let (_, block, value) = flying.swap_remove(at.expect("it was asked"));
                *self.may[block].lock().expect("no panic") = BTreeSet::from([value]);
                self.answered.fetch_add(1, Relaxed);
            }
            if rng.u8(..4) == 0 && to.flush().is_err() {
                return;
            }
            let block = rng.usize(..IMAGE_BLOCKS);
            let sent = to.send((0, 0), (block * BLOCK) as u64, BLOCK as u32, &[]);
            if sent.is_err() || to.reply().is_err() {
                return;
            }
            let mut bytes = vec![0; BLOCK];
            if std::io::Read::read_exact(&mut to.stream, &mut bytes).is_err() {
                return;
            }
        }
    }

    /// What is there is what may be, and stays so.
    fn check(&self, bytes: &[u8], when: &str) {
        for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
            let value = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            assert!(bytes == stamp(value), "{when}: block {block} is torn");
            let mut may = self.may[block].lock().expect("no panic");
            assert!(
                may.contains(&value),
                "{when}: block {block} has {value}, not {may:?}"
            );
            *may = BTreeSet::from([value]);
        }
    }
}

/// A kill loses nothing that was answered, in whatever mode, with another mode after it; and what
/// is read stays what it is.
#[test]
fn fifty_kills_lose_nothing_that_was_answered() {
    let kills = std::env::var("NYX_BLOCK_KILLS").map_or(50, |n| n.parse().expect("a number"));
    let dir = directory(IMAGE_BYTES);
    let known = Known {
        may: (0..IMAGE_BLOCKS)
            .map(|_| Mutex::new(BTreeSet::from([0])))
            .collect(),
        next: AtomicU32::new(1),
        answered: AtomicU32::new(0),
    };
    let mut rng = fastrand::Rng::with_seed(1);
    for kill in 0..kills {
        // Every other time write-back, so that each mode meets its dirty lines.
        let mode = if kill % 2 == 0 {
            MODES[0]
        } else {
            MODES[1 + kill / 2 % 4]
        };
        let nhc = if kill % 3 == 0 {
            "classic"
        } else {
            "shortest-delay"
        };
        let more = [
            &SMALL[..],
            &["--mode", mode, "--nhc", nhc, "--dirty-most", "30"],
        ]
        .concat();
        let export = Export::start(dir.path(), "fast", "deep", &more);
        known.check(
            &export.connect().read_all(),
            &format!("kill {kill}, now {mode}"),
        );
        let enough = known.answered.load(Relaxed) + rng.u32(1..400);
        std::thread::scope(|scope| {
            for nth in 0..2 {
                let (client, known) = (export.connect(), &known);
                let mut rng = rng.fork();
                scope.spawn(move || known.work(client, nth, &mut rng));
            }
            let began = std::time::Instant::now();
            while known.answered.load(Relaxed) < enough {
                assert!(
                    began.elapsed().as_secs() < 60,
                    "kill {kill}: nothing is answered"
                );
                std::thread::yield_now();
            }
            export.kill();
        });
        if kill % 10 == 9 {
            // Somebody uses the image without us.
            let output = run(dir.path(), "fast", "deep", &["--flush-only"]);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            known.check(&image(dir.path()), &format!("the image after kill {kill}"));
        }
    }
}

/// What one cache has of an image is stale when another cache, or nobody's, has changed it.
#[test]
fn nothing_is_read_from_a_cache_that_was_left_out() {
    let dir = directory(IMAGE_BYTES);
    if !has_attributes("nothing_is_read_from_a_cache_that_was_left_out", dir.path()) {
        return;
    }
    let serve = |fast: &str, mode: &str| {
        let more = [&SMALL[..], &["--mode", mode]].concat();
        Export::start(dir.path(), fast, "deep", &more)
    };
    let first = serve("first", "write-through");
    assert_eq!(first.connect().write(0, &stamp(1)).expect("served"), 0);
    first.connect().read(0, 64 << 10);
    first.stop();
    // Found again, it is warm.
    let again = serve("first", "write-through");
    assert_eq!(again.connect().read(0, BLOCK), stamp(1));
    let log = again.stop();
    assert!(log.contains("hits=1 "), "{log}");
    let second = serve("second", "write-through");
    assert_eq!(second.connect().write(0, &stamp(2)).expect("served"), 0);
    second.kill();
    let first = serve("first", "write-back");
    assert_eq!(first.connect().read(0, BLOCK), stamp(2));
    let log = first.stop();
    assert!(log.contains("another cache"), "{log}");
    // Without any cache.
    let mut bytes = image(dir.path());
    bytes[..BLOCK].copy_from_slice(&stamp(3));
    fs::write(dir.path().join("deep"), &bytes).expect("room");
    let first = serve("first", "write-around");
    assert_eq!(first.connect().read(0, BLOCK), stamp(3));
    let log = first.stop();
    assert!(log.contains("was changed since"), "{log}");
}

#[test]
fn dirty_lines_are_put_before_no_other_image_and_no_other_cache_before_theirs() {
    let dir = directory(IMAGE_BYTES);
    if !has_attributes(
        "dirty_lines_are_put_before_no_other_image_and_no_other_cache_before_theirs",
        dir.path(),
    ) {
        return;
    }
    fs::write(dir.path().join("other"), vec![0; IMAGE_BYTES]).expect("room");
    let more = [&SMALL[..], &["--mode", "write-back", "--idle", "1000"]].concat();
    let export = Export::start(dir.path(), "fast", "deep", &more);
    let mut client = export.connect();
    assert_eq!(client.write(0, &stamp(7)).expect("served"), 0);
    assert_eq!(client.flush().expect("served"), 0);
    export.kill();
    let refused = |fast: &str, deep: &str, why: &str| {
        let output = run(
            dir.path(),
            fast,
            deep,
            &["--flush-only", "--fast-size", "1MiB"],
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused("fast", "other", "dirty lines, and its image is file");
    refused("new", "deep", "another cache (id ");
    assert!(image(dir.path())[..8] != 7u64.to_le_bytes());
    let output = run(dir.path(), "fast", "deep", &["--flush-only"]);
    assert!(output.status.success());
    assert!(image(dir.path())[..BLOCK] == stamp(7));
    // Nothing is dirty any more: the other image may have the cache, this one another.
    for (fast, deep) in [("fast", "other"), ("new", "deep")] {
        let output = run(
            dir.path(),
            fast,
            deep,
            &["--flush-only", "--fast-size", "1MiB"],
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn who_does_not_keep_to_the_protocol_ends_his_connection_only() {
    let dir = directory(IMAGE_BYTES);
    let export = Export::start(dir.path(), "fast", "deep", &SMALL);
    let mut good = export.connect();
    let mut bad = export.connect();
    std::io::Write::write_all(&mut bad.stream, &[0xff; 100]).expect("it listens");
    assert!(bad.reply().is_err(), "it is left");
    let mut long = export.connect();
    long.send((1, 0), 0, u32::MAX, &[]).expect("it listens");
    assert!(long.reply().is_err(), "it is left");
    // Refused, and served again.
    let mut odd = export.connect();
    let beyond = IMAGE_BYTES as u64 - 1;
    odd.send((1, 0), beyond, 4, b"abcd").expect("it listens");
    assert_eq!(odd.reply().expect("a reply").1, 28);
    odd.send((0, 0), beyond, 4, &[]).expect("it listens");
    assert_eq!(odd.reply().expect("a reply").1, 22);
    odd.send((99, 0), 0, 4, &[]).expect("it listens");
    assert_eq!(odd.reply().expect("a reply").1, 22);
    assert_eq!(odd.write(3, b"a few bytes").expect("served"), 0);
    assert_eq!(good.read(3, 11), b"a few bytes");
    // Zeroes, with and without a hole, and what is trimmed.
    for (kind, flags) in [(6, 0), (6, 2), (4, 0)] {
        assert_eq!(good.write(4096, &stamp(5)).expect("served"), 0);
        good.send((kind, flags), 4096, 8192, &[]).expect("served");
        assert_eq!(good.reply().expect("a reply").1, 0);
        assert_eq!(good.read(4096, 8192), vec![0; 8192]);
    }
    good.send((5, 0), 0, IMAGE_BYTES as u32, &[])
        .expect("served");
    assert_eq!(good.reply().expect("a reply").1, 0);
    export.stop();
}

#[test]
fn a_file_system_survives_the_way_through() {
    let test = "a_file_system_survives_the_way_through";
    let needed = [
        ("mkfs.ext4", "e2fsprogs"),
        ("nbdcopy", "libnbd-bin"),
        ("qemu-img", "qemu-utils"),
    ];
    if !needed
        .iter()
        .all(|(program, package)| has(test, program, package))
    {
        return;
    }
    let bytes = 32 << 20;
    let dir = directory(bytes);
    let path = |name: &str| dir.path().join(name);
    fs::write(path("ext4"), vec![0; bytes]).expect("room");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    done(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-d", sources])
            .arg(path("ext4")),
    );
    for mode in ["write-back", "write-through"] {
        fs::write(path("deep"), vec![0; bytes]).expect("room");
        let more = ["--fast-size", "8MiB", "--line", "16KiB", "--mode", mode];
        let export = Export::start(dir.path(), mode, "deep", &more);
        done(
            Command::new("nbdcopy")
                .arg("--flush")
                .arg(path("ext4"))
                .arg(export.uri()),
        );
        done(
            Command::new("nbdcopy")
                .arg(export.uri())
                .arg(path("copied")),
        );
        let convert = ["convert", "-f", "raw", "-O", "raw"];
        done(
            Command::new("qemu-img")
                .args(convert)
                .arg(export.uri())
                .arg(path("converted")),
        );
        let pattern = [
            "-f",
            "raw",
            "-c",
            "write -P 7 1000 5000",
            "-c",
            "read -P 7 1000 5000",
        ];
        let said = done(Command::new("qemu-io").args(pattern).arg(export.uri()));
        assert!(!said.contains("failed"), "{said}");
        let seen = export.connect().read_all();
        export.stop();
        let original = fs::read(path("ext4")).expect("room");
        assert!(fs::read(path("copied")).expect("room") == original);
        assert!(fs::read(path("converted")).expect("room") == original);
        assert!(image(dir.path()) == seen);
        // The boot block is nobody's, but for what qemu-io wrote over the superblock behind it.
        let mut mended = seen;
        mended[1000..6000].copy_from_slice(&original[1000..6000]);
        assert!(mended == original);
        fs::write(path("deep"), mended).expect("room");
        done(Command::new("e2fsck").args(["-f", "-n"]).arg(path("deep")));
    }
}

/// Whether a disk can be mounted that only this test sees.
fn can_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .stderr(std::process::Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// A full deep device refuses what it must and keeps serving; what it does not take stays dirty.
#[test]
fn a_full_disk_refuses_writes_and_loses_none() {
    if !can_mount() {
        eprintln!("skipped a_full_disk_refuses_writes_and_loses_none: no unshare -Urm here");
        return;
    }
    for mode in ["write-through", "write-back"] {
        let dir = directory(BLOCK);
        fs::create_dir(dir.path().join("disk")).expect("room");
        let more = ["--fast-size", "32MiB", "--mode", mode, "--dirty-most", "90"];
        let export = Export::on_small_disk(dir.path(), 4, 64, &more);
        let mut client = export.connect();
        let blocks = 3000u64;
        let mut written = Vec::new();
        for block in 0..blocks {
            match client
                .write(block * BLOCK as u64, &stamp(block + 1))
                .expect("served")
            {
                0 => written.push(block),
                error => assert_eq!(error, 28, "ENOSPC"),
            }
        }
        assert_eq!(client.flush().expect("served"), 0);
        match mode {
            "write-back" => assert_eq!(written.len() as u64, blocks),
            _ => assert!((100..2000).contains(&written.len()), "{}", written.len()),
        }
        for &block in &written {
            assert!(client.read(block * BLOCK as u64, BLOCK) == stamp(block + 1));
        }
        let (code, log) = export.end();
        match mode {
            "write-back" => {
                assert_eq!(code, Some(74), "{log}");
                assert!(log.contains("lines are still dirty"), "{log}");
                assert!(!log.contains("clean_errors=0"), "{log}");
            }
            _ => assert_eq!(code, Some(0), "{log}"),
        }
    }
}
