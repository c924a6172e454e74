//! Programs that everybody has: sort, gzip, xz, SQLite's shell, git.
//!
//! What it never does: compare what a program may do in either of two ways; then it is checked by
//! the program's own means.

use crate::rig::{self, MIB, Room, can_page, program, run};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Lines of random numbers, of which some are twice.
fn numbers() -> &'static Path {
    static FILE: OnceLock<tempfile::TempPath> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut rng = fastrand::Rng::with_seed(1);
        let lines = (0..700_000).map(|_| format!("{}\n", rng.u32(..300_000_000)));
        let text: String = lines.collect();
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
        fs::write(file.path(), text).expect("written");
        file.into_temp_path()
    })
}

#[test]
fn sort_sorts() {
    let name = "sort_sorts";
    let Some(sort) = program(name, "sort") else {
        return;
    };
    rig::compare(name, 9 * MIB, || {
        let mut command = Command::new(&sort);
        command.args(["-n", "--buffer-size=120M", "--parallel=2"]);
        command.arg(numbers()).env("LC_ALL", "C");
        command
    });
}

/// Its buffers are no large memory of `malloc`: it runs as ever beside the library.
#[test]
fn gzip_packs() {
    let name = "gzip_packs";
    let Some(gzip) = program(name, "gzip").filter(|_| can_page(name)) else {
        return;
    };
    let pack = |room| {
        let mut command = Command::new(&gzip);
        command.args(["-n", "-c", "-6"]).arg(numbers());
        run(&mut command, room).well(name).stdout
    };
    let room = Room {
        limit: MIB,
        len: 1 << 30,
    };
    assert!(pack(None) == pack(Some(room)), "other output");
}

#[test]
fn xz_packs_and_unpacks() {
    let name = "xz_packs_and_unpacks";
    let Some(xz) = program(name, "xz") else {
        return;
    };
    let dir = rig::dir();
    // Much of it again, so that what is far behind is looked at.
    let text = fs::read(numbers()).expect("there");
    let text = [&text[..150_000], &text[..100_000], &text[50_000..150_000]].concat();
    let (plain, packed) = (dir.path().join("plain"), dir.path().join("packed"));
    fs::write(&plain, &text).expect("written");
    let xz = |args: &[&str], file: &Path| {
        let mut command = Command::new(&xz);
        command.args(args).arg("-c").arg(file);
        command
    };
    // Of the hundreds of MiB that it asks for it touches some 10.
    rig::compare(name, 3 * MIB, || xz(&["-9", "--threads=1"], &plain));
    fs::write(
        &packed,
        run(&mut xz(&["-9"], &plain), None).well(name).stdout,
    )
    .expect("written");
    if can_page(name) {
        let room = Room {
            limit: MIB,
            len: 1 << 30,
        };
        let ended = run(&mut xz(&["-d"], &packed), Some(room)).well(name);
        assert!(ended.stdout == text, "other text");
    }
}

const QUESTIONS: &str = "
PRAGMA temp_store = memory;
CREATE TABLE t (id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
INSERT INTO t SELECT value, (value * 7919) % 100003, hex(zeroblob(40)) || value
    FROM generate_series(1, 60000);
CREATE INDEX by_k ON t (k);
SELECT count(*), sum(k), max(v) FROM t;
UPDATE t SET v = v || k WHERE k % 7 = 0;
DELETE FROM t WHERE k % 11 = 0;
SELECT k, count(*), min(v) FROM t GROUP BY k % 13 ORDER BY 2, 1;
SELECT a.id, b.id FROM t a JOIN t b ON a.k = b.id WHERE b.v LIKE '%99' ORDER BY 1, 2 LIMIT 50;
PRAGMA integrity_check;
";

#[test]
fn sqlite_keeps_a_database_in_memory() {
    let name = "sqlite_keeps_a_database_in_memory";
    let Some(sqlite) = program(name, "sqlite3") else {
        return;
    };
    rig::compare(name, 6 * MIB, || {
        let mut command = Command::new(&sqlite);
        // Its pages are one block of 22 MiB, which is large; else they are small ones.
        command.args([
            "-batch",
            "-pagecache",
            "4400",
            "5000",
            ":memory:",
            QUESTIONS,
        ]);
        command
    });
}

/// What `git fast-import` makes a repository of: hundreds of commits, some of large files that
/// change a little.
fn history() -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut letters = |len: usize| -> Vec<u8> {
        let letter = |_| rng.alphanumeric() as u8;
        (0..len).map(letter).collect()
    };
    let mut files: Vec<Vec<u8>> = (0..4).map(|n| letters(400_000 + n * 200_000)).collect();
    let mut text = Vec::new();
    for commit in 0..300 {
        let small = letters(300);
        let number = commit % 40 / 10;
        let held = if commit % 10 == 0 {
            let file = &mut files[number];
            for part in 0..3 {
                let at = (commit * 7_919 + part * 104_729) % (file.len() - 5_000);
                file[at..at + 5_000].copy_from_slice(&letters(5_000));
            }
            &*file
        } else {
            &small
        };
        let name = if commit % 10 == 0 {
            number
        } else {
            10 + commit % 10
        };
        let head = format!(
            "commit refs/heads/main\ncommitter A <a@b.c> {commit} +0000\ndata 2\nc\n\
             M 100644 inline file-{name}\ndata {}\n",
            held.len()
        );
        text.extend_from_slice(head.as_bytes());
        text.extend_from_slice(held);
        text.push(b'\n');
    }
    text
}

/// A run of git in a repository, with nobody's configuration.
fn git(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args);
    for name in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"] {
        command.env(name, "/dev/null");
    }
    command
}

#[test]
fn git_packs_a_repository() {
    let name = "git_packs_a_repository";
    if program(name, "git").is_none() || !can_page(name) {
        return;
    }
    let dir = rig::dir();
    let dir = dir.path();
    let room = Some(Room {
        limit: 6 * MIB,
        len: 1 << 30,
    });
    fs::write(dir.join("history"), history()).expect("written");
    run(
        &mut git(dir, &["init", "-q", "--bare", "--initial-branch=main", "."]),
        None,
    )
    .well(name);
    let mut import = git(dir, &["fast-import", "--quiet"]);
    import.stdin(fs::File::open(dir.join("history")).expect("there"));
    rig::begin(&mut import, room).end().well(name).paged(name);
    let said = |args: &[&str], room| run(&mut git(dir, args), room).well(name).stdout;
    let head = said(&["rev-parse", "main"], None);
    let list = [
        "cat-file",
        "--batch-check",
        "--batch-all-objects",
        "--unordered",
    ];
    let sorted = |said: Vec<u8>| {
        let text = String::from_utf8(said).expect("text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let objects = sorted(said(&list, None));
    assert!(objects.len() >= 900, "{}", objects.len());
    let repack = "-c pack.threads=2 repack -adfq --depth=20 --window=6";
    for packing in [repack, "gc -q --prune=now"] {
        let words: Vec<&str> = packing.split(' ').collect();
        let ended = run(&mut git(dir, &words), room).well(name);
        let figures = ended.paged(name);
        // The other one has little to do.
        if packing == repack {
            assert!(figures.major_faults > 0, "{figures:?}");
        }
        assert_eq!(said(&["rev-parse", "main"], None), head);
        assert_eq!(sorted(said(&list, None)), objects);
        // By a git that has no library.
        said(&["fsck", "--full", "--strict"], None);
        let packs = fs::read_dir(dir.join("objects/pack")).expect("packs");
        for pack in packs.flatten().map(|pack| pack.path()) {
            if pack.extension().is_some_and(|end| end == "idx") {
                said(&["verify-pack", &pack.to_string_lossy()], None);
            }
        }
    }
    // Large files are read in paged memory.
    for args in [
        &["fsck", "--full"][..],
        &["log", "--stat", "-p", "--max-count=12"],
    ] {
        let paged = run(&mut git(dir, args), room).well(name);
        assert_eq!(paged.stdout, said(args, None), "{args:?}");
    }
}
