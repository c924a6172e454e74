//! The real binary where its surroundings are wrong: a bad configuration, a full disk, data files
//! that are foreign, damaged, too small or taken, a port in use. Each has its exit code and a
//! message that names the culprit, and nothing that was there before is changed.

use nyx_media::Mapped;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this long a command that should have given up hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const USAGE: i32 = 64;
const NO_INPUT: i32 = 66;
const UNAVAILABLE: i32 = 69;
const CANT_CREATE: i32 = 73;
const NO_PERMISSION: i32 = 77;

const MIB: u64 = 1 << 20;

fn nyx(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    // No knob from outside may reach it.
    command.env_clear().args(args);
    command
}

/// Runs a command that must fail: its message, after its exit code was checked.
fn refusal(command: &mut Command, code: i32) -> String {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child of ours");
            panic!("{command:?} does not give up");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

/// Serves one device of 64 MiB whose data file is `path`; it must fail before it listens.
fn serve_file(path: &Path) -> Command {
    let data_dir = path.parent().expect("a file in a directory");
    let data_dir = text(data_dir).to_owned();
    let args = ["--data-dir", &data_dir, "--device-path", text(path)];
    let mut command = nyx(&["serve", "--listen", "127.0.0.1:0", "--device-size", "64MiB"]);
    command.args(args);
    command
}

/// Refused, with these words and the file's name, and the file stays as it was.
fn assert_file_refused(path: &Path, words: &[&str]) {
    let before = fs::read(path).expect("the file");
    let said = refusal(&mut serve_file(path), CANT_CREATE);
    assert_says(&said, words);
    assert_says(&said, &[text(path)]);
    assert!(fs::read(path).expect("the file") == before, "it changed");
}

/// A data file as a server leaves it, and its directory.
fn data_file(len: u64) -> (TempDir, PathBuf) {
    let dir = dir();
    let path = dir.path().join("main.media");
    let medium = Mapped::file(&path, len).expect("a data file");
    medium.mark_clean().expect("closed in order");
    (dir, path)
}

fn patch(path: &Path, at: usize, bytes: &[u8]) {
    let mut whole = fs::read(path).expect("the file");
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, whole).expect("the file");
}

#[test]
fn a_bad_configuration_is_refused_with_its_line_and_key() {
    let dir = dir();
    let path = dir.path().join("bad.toml");
    let file = text(&path);
    for (toml, words) in [
        ("[server]\nworkerz = 2\n", &["workerz", ":2"][..]),
        ("[server]\nworkers = \"many\"\n", &["workers", ":2"]),
        (
            "[[device]]\nname = \"d\"\nsize = \"12 parsecs\"\n",
            &["size", ":3"],
        ),
        (
            "[[tenant]]\nname = \"t\"\neviction = \"random\"\n",
            &["eviction", ":3"],
        ),
        (
            "[[tenant]]\nname = \"t\"\nsize = \"64MiB\"\n[[tenant]]\nname = \"t\"\n",
            &["\"t\""],
        ),
        ("[policy\nkind = 1", &["bad.toml", ":1"]),
        (
            "[[device]]\nsize = \"16MiB\"\n[[tenant]]\nname = \"t\"\nsize = \"1GiB\"\n",
            &["1 GiB does not fit", "16 MiB", ":5"],
        ),
    ] {
        fs::write(&path, toml).expect("a file");
        for args in [&["serve", "--config", file][..], &["check-config", file]] {
            let said = refusal(&mut nyx(args), USAGE);
            assert_says(&said, words);
        }
    }
    let missing = dir.path().join("missing.toml");
    for args in [
        &["serve", "--config", text(&missing)][..],
        &["check-config", text(&missing)],
    ] {
        let said = refusal(&mut nyx(args), NO_INPUT);
        assert_says(&said, &["missing.toml"]);
    }
    assert!(!dir.path().join("nyx-data").exists());
}

#[test]
fn bad_flags_are_usage_errors() {
    for args in [
        &["serve", "--no-such-flag"][..],
        &["serve", "--workers", "-1"],
        &["serve", "--device-size", "1KiB"],
        &["memcached", "-m", "lots"],
        &["memcached", "-p", "70000"],
        &["no-such-command"],
    ] {
        refusal(&mut nyx(args), USAGE);
    }
}

#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    let dir = dir();
    let path = dir.path().join("main.media");
    fs::write(&path, b"SQLite format 3\0 and all that").expect("a file");
    assert_file_refused(&path, &["not a Nyx data file"]);
    fs::write(&path, b"x").expect("a file");
    assert_file_refused(&path, &["not a Nyx data file"]);
    fs::write(&path, vec![0; 1 << 20]).expect("a file");
    assert_file_refused(&path, &["interrupted creation"]);
}

#[test]
fn a_damaged_or_newer_file_is_refused_and_left_alone() {
    let (_dir, path) = data_file(64 * MIB);
    patch(&path, 8, &2u32.to_le_bytes());
    assert_file_refused(&path, &["format 2", "format 1 only"]);
    let (_dir, path) = data_file(64 * MIB);
    patch(&path, 30, b"?");
    assert_file_refused(&path, &["checksum"]);
}

#[test]
fn a_truncated_file_is_refused_and_left_alone() {
    let (_dir, path) = data_file(64 * MIB);
    for len in [40 * MIB, 4096, 100] {
        let file = fs::OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.set_len(len))
            .expect("a shorter file");
        assert_file_refused(&path, &["truncated", &format!("{len} bytes")]);
    }
}

#[test]
fn a_medium_smaller_than_asked_is_refused_and_left_alone() {
    let (_dir, path) = data_file(16 * MIB);
    let (found, asked) = ((16 * MIB).to_string(), (64 * MIB).to_string());
    assert_file_refused(&path, &[&found, &asked]);
}

#[test]
fn a_file_that_another_server_has_is_refused() {
    let (_dir, path) = data_file(64 * MIB);
    let _other = Mapped::file(&path, 64 * MIB).expect("the file");
    let said = refusal(&mut serve_file(&path), CANT_CREATE);
    assert_says(&said, &["in use by another process", text(&path)]);
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = dir();
    let path = dir.path().join("main.media");
    fs::create_dir(&path).expect("a directory");
    let said = refusal(&mut serve_file(&path), CANT_CREATE);
    assert_says(&said, &[text(&path)]);
    // And a data directory that cannot be made.
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let below = file.join("data");
    let said = refusal(
        &mut nyx(&["serve", "--data-dir", text(&below)]),
        CANT_CREATE,
    );
    assert_says(&said, &[text(&below)]);
}

/// Makes a command run as somebody who may not read everything; false where it cannot be told how.
fn as_nobody(command: &mut Command, file: &Path) -> bool {
    use std::os::unix::process::CommandExt;
    if fs::File::open(file).is_err() {
        return true;
    }
    // Whoever runs this may read everything, so it runs as the user that owns nothing.
    command.uid(65_534).gid(65_534);
    let mut version = nyx(&["--version"]);
    let version = version.uid(65_534).gid(65_534).output();
    version.is_ok_and(|output| output.status.success())
}

#[test]
fn what_may_not_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    let (dir, path) = data_file(64 * MIB);
    let config = dir.path().join("nyx.toml");
    fs::write(&config, "[server]\n").expect("a file");
    set(dir.path(), 0o755);
    set(&path, 0o000);
    set(&config, 0o000);
    let (mut serve, mut check) = (serve_file(&path), nyx(&["check-config", text(&config)]));
    if !as_nobody(&mut serve, &path) || !as_nobody(&mut check, &config) {
        eprintln!("skipped: no user at hand who may run the binary and not read the files");
        return;
    }
    let said = refusal(&mut serve, CANT_CREATE);
    assert_says(&said, &["Permission denied", text(&path)]);
    let said = refusal(&mut check, NO_PERMISSION);
    assert_says(&said, &["Permission denied", "nyx.toml"]);
}

/// A small filesystem of its own, gone with the value.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// None where this process may not mount.
    fn new(size: &str) -> Option<SmallDisk> {
        let dir = dir();
        let options = format!("size={size}");
        let args = ["-t", "tmpfs", "-o", &options, "tmpfs", text(dir.path())];
        let mounted = Command::new("mount").args(args).output();
        mounted
            .is_ok_and(|output| output.status.success())
            .then(|| SmallDisk(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Where this fails the directory cannot be removed either, and the test says so.
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_refused_and_nothing_left_on_it() {
    let Some(disk) = SmallDisk::new("16m") else {
        eprintln!("skipped: mounting a small filesystem takes root");
        return;
    };
    let path = disk.0.path().join("main.media");
    let said = refusal(&mut serve_file(&path), CANT_CREATE);
    let whole = (64 * MIB + 4096).to_string();
    assert_says(&said, &["No space left", &whole, text(&path)]);
    assert!(!path.exists(), "an empty data file is left behind");
}

#[test]
fn a_disk_without_room_for_the_profile_is_refused() {
    let Some(disk) = SmallDisk::new("16m") else {
        eprintln!("skipped: mounting a small filesystem takes root");
        return;
    };
    let dir = disk.0.path();
    // The data file takes the last page there is: 16 MiB are 4096 pages, one is its header.
    let size = (16 * MIB - 4096).to_string();
    let mut command = nyx(&["serve", "--listen", "127.0.0.1:0", "--device-size", &size]);
    // A model's profile is simulated, which takes no time.
    let command = command.args(["--data-dir", text(dir), "--device-model", "optane-2dimm/8"]);
    let said = refusal(command, CANT_CREATE);
    assert_says(&said, &["main.profile.toml", "No space left"]);
}

#[test]
fn a_port_in_use_is_unavailable() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("its address");
    let port = address.port().to_string();
    let memcached = ["memcached", "-m", "64", "-l", "127.0.0.1", "-p", &port];
    let said = refusal(&mut nyx(&memcached), UNAVAILABLE);
    assert_says(&said, &["cannot listen", &address.to_string(), "in use"]);
    let dir = dir();
    let (listen, data_dir) = (address.to_string(), text(dir.path()));
    let mut serve = nyx(&["serve", "--listen", &listen, "--data-dir", data_dir]);
    let model = ["--device-size", "64MiB", "--device-model", "optane-2dimm/8"];
    let said = refusal(serve.args(model), UNAVAILABLE);
    assert_says(&said, &["cannot listen", &address.to_string(), "in use"]);
    let made = fs::read_dir(dir.path()).expect("the directory").count();
    assert_eq!(made, 0, "it is told before a device is opened or profiled");
}
