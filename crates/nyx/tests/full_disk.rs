//! The real binary with the image of its tenant on a disk that is full before the tenant is: sets
//! fail with their error, everything else goes on, and so does the next server that finds the
//! image.
//!
//! The disk is a tmpfs of a few MiB, mounted in a namespace of the test's own. Where a kernel or a
//! container allows no such thing the test says so and is skipped.

#[path = "rig/surviving.rs"]
mod surviving;

use std::fs;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use surviving::{Connection, number_behind};

const DISK_MIB: u32 = 6;
/// Of 200 bytes: much less than the items that a tenant of 64 MiB has room for.
const KEYS: u64 = 40_000;

/// Mounts a disk, runs a server, says its process, and another server when that has ended.
const SCRIPT: &str = r#"
mount -t tmpfs -o size="$1"m none "$2" || exit 3
"$0" serve --config "$3" & echo "process $!" >&2
wait $!
exec "$0" serve --config "$3"
"#;

/// Ends the shell, and with it whatever it became.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn can_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

fn key(number: u64) -> String {
    format!("{number:0200}")
}

/// A script in a namespace of its own, with a directory to mount a disk on, which is made, and a
/// configuration beside it.
fn on_a_disk(script: &str, disk: &Path, config: &str) -> Command {
    fs::create_dir(disk).expect("a directory");
    let file = disk.with_file_name("nyx.toml");
    fs::write(&file, config).expect("a configuration");
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_nyx")])
        .arg(DISK_MIB.to_string())
        .args([disk, &file]);
    command
}

/// Sets a key to its number; whether that was done.
fn set(client: &mut Connection, number: u64) -> bool {
    let (key, value) = (key(number), number.to_string());
    let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
    client
        .stream
        .write_all(request.as_bytes())
        .expect("a server");
    match client.line().as_deref() {
        Some("STORED\r\n") => true,
        Some("SERVER_ERROR out of memory storing object\r\n") => false,
        other => panic!("a set gave {other:?}"),
    }
}

fn assert_all(client: &mut Connection, numbers: &[u64]) {
    for &number in numbers {
        let value = client.get(&key(number));
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        assert_eq!(value, Some(number.to_string()));
    }
}

#[test]
fn a_full_disk_fails_sets_and_nothing_else() {
    if !can_mount() {
        println!("skipped: no mount in a namespace of one's own (unshare -Urm)");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("disk");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ndata_dir = {:?}\nimage_dir = {disk:?}\n\
         [policy]\nkind = \"none\"\n[[device]]\nkind = \"file\"\nsize = \"64MiB\"\n\
         [[tenant]]\nname = \"first\"\nsize = \"64MiB\"\ndurability = \"crash\"\n",
        dir.path()
    );
    let shell = on_a_disk(SCRIPT, &disk, &text)
        .stderr(Stdio::piped())
        .spawn();
    let mut shell = Ended(shell.expect("a shell"));
    let mut log = BufReader::new(shell.0.stderr.take().expect("piped"));
    let process = number_behind("process ", &mut log);
    let mut port = || u16::try_from(number_behind("127.0.0.1:", &mut log)).expect("a port");
    let mut client = Connection::to(port());

    let (stored, refused): (Vec<u64>, Vec<u64>) =
        (0..KEYS).partition(|&number| set(&mut client, number));
    assert!(stored.len() > 5000, "{} were stored", stored.len());
    assert!(refused.len() > 1000, "{} were refused", refused.len());
    assert_all(&mut client, &stored);
    for &number in &stored[..100] {
        write!(client.stream, "delete {}\r\n", key(number)).expect("a server");
        assert_eq!(client.line().as_deref(), Some("DELETED\r\n"));
    }

    let process = process.to_string();
    let killed = Command::new("kill").args(["-9", &process]).status();
    assert!(killed.expect("kill").success());
    let mut client = Connection::to(port());
    assert_all(&mut client, &stored[100..]);
    assert!(
        stored[..100]
            .iter()
            .all(|&it| client.get(&key(it)).is_none())
    );
    assert!(refused.iter().all(|&it| client.get(&key(it)).is_none()));
}

/// Mounts a disk and runs a server, whose exit code is the shell's.
const SCRIPT_ONCE: &str = r#"
mount -t tmpfs -o size="$1"m none "$2" || exit 3
"$0" serve --config "$3"
code=$?
ls -A "$2" >&2
exit $code
"#;

#[test]
fn a_deep_file_that_the_disk_has_no_room_for_is_refused_and_not_left_there() {
    if !can_mount() {
        println!("skipped: no mount in a namespace of one's own (unshare -Urm)");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("disk");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ndata_dir = {:?}\n\
         [[device]]\nname = \"pm\"\nkind = \"anon\"\nsize = \"8MiB\"\nmodel = \"cxl\"\n\
         [[device]]\nname = \"ssd\"\nkind = \"block\"\nsize = \"64MiB\"\npath = {:?}\n\
         [[tenant]]\nname = \"first\"\ntiers = [\"pm\", \"ssd\"]\n",
        dir.path(),
        disk.join("deep")
    );
    let ended = on_a_disk(SCRIPT_ONCE, &disk, &text).output();
    let ended = ended.expect("a shell");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(73), "{told}");
    // Behind it the disk's files would be told of.
    let last = told.lines().last().unwrap_or_default();
    assert!(
        last.contains("device \"ssd\"") && last.contains("No space left on device"),
        "{told}"
    );
}
