//! The real binary with a tenant in memory that is larger than its DRAM: all comes back byte for
//! byte, the limit holds, items leave when it is full, and a device that fails is told of.
//!
//! What it never does: pass where such memory is to be had and does not do what it says. Where none
//! is to be had a test says why and is skipped.

#[path = "rig/surviving.rs"]
mod surviving;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use surviving::Connection;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const MEMORY: u64 = 8 * MIB;
/// What is left alone at the begin of a file.
const HEAD: u64 = 128 << 10;

/// A directory with a configuration; none where this machine has no such memory.
fn directory(test: &str, more: &str) -> Option<TempDir> {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 2\ndata_dir = {:?}\n\
         [[device]]\nname = \"far\"\nkind = \"paged\"\nsize = \"{SIZE}\"\nmemory = \"{MEMORY}\"\n\
         {more}\n[[tenant]]\nname = \"first\"\nitem_len_max = \"64KiB\"\n\
         segment_bytes = \"256KiB\"\n",
        dir.path()
    );
    fs::write(dir.path().join("nyx.toml"), text).expect("a configuration");
    let place = nyx_swap::region::Device::sparse(dir.path(), MIB).expect("a file");
    match nyx_swap::region::Paged::new("probe", MIB, MIB, &place) {
        Ok(_) => Some(dir),
        Err(reason) => {
            eprintln!("skipped {test}: {reason}");
            None
        }
    }
}

/// A server, and what it says.
struct Server {
    child: Child,
    log: PathBuf,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(dir: &Path) -> Server {
        let log = dir.join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_nyx"))
            .env_clear()
            .args(["serve", "--config"])
            .arg(dir.join("nyx.toml"))
            .stderr(fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("the binary");
        let mut server = Server {
            child,
            log,
            port: 0,
        };
        let began = Instant::now();
        while server.port == 0 {
            let said = server.said();
            let ended = server.child.try_wait().expect("a child of ours");
            assert!(
                ended.is_none() && began.elapsed() < Duration::from_secs(100),
                "{said}"
            );
            std::thread::sleep(Duration::from_millis(10));
            if let Some((_, port)) = said.split_once("127.0.0.1:") {
                let port: String = port.chars().take_while(char::is_ascii_digit).collect();
                server.port = port.parse().unwrap_or(0);
            }
        }
        server
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    fn connect(&self) -> Connection {
        Connection::to(self.port)
    }

    /// KiB of a kind that the process has in memory.
    fn kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.expect(name).trim_start_matches(':').trim();
        kib.trim_end_matches(" kB").parse().expect("a number")
    }

    fn end(mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return (status, self.said());
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Of 1 to 20,000 bytes, and no two alike.
fn value(key: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(key);
    let len = rng.usize(1..=20_000);
    (0..len).map(|_| rng.u8(..)).collect()
}

fn set(to: &mut Connection, key: u64) {
    let value = value(key);
    let mut request = format!("set key{key} 0 0 {}\r\n", value.len()).into_bytes();
    request.extend(value);
    request.extend(b"\r\n");
    to.stream.write_all(&request).expect("a server");
    assert_eq!(to.line().as_deref(), Some("STORED\r\n"));
}

fn figure(to: &mut Connection, name: &str) -> u64 {
    write!(to.stream, "stats devices\r\n").expect("a server");
    let lines: Vec<String> =
        std::iter::from_fn(|| to.line().filter(|line| line != "END\r\n")).collect();
    let begin = format!("STAT far:{name} ");
    let value = lines.iter().find_map(|line| line.strip_prefix(&begin));
    value.expect(name).trim().parse().expect("a number")
}

#[test]
fn what_is_larger_than_its_memory_comes_back_byte_for_byte_and_the_limit_holds() {
    let Some(dir) = directory("what_is_larger_than_its_memory", "") else {
        return;
    };
    let server = Server::start(dir.path());
    let before_kib = server.kib("VmRSS");
    let mut client = server.connect();
    // 40 MB in 8 MiB.
    let keys = 4_000;
    (0..keys).for_each(|key| set(&mut client, key));
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..2 {
        for at in 0..keys {
            let key = if round == 0 { at } else { rng.u64(..keys) };
            let found = client.get(&format!("key{key}"));
            assert!(found == Some(value(key)), "key{key} in round {round}");
        }
        let shared_kib = server.kib("RssShmem");
        assert!(shared_kib <= MEMORY / 1024, "{shared_kib} KiB");
    }
    // Nothing else of it has the values: keys, index and buffers are some MiB.
    let grown_kib = server.kib("VmRSS").saturating_sub(before_kib);
    assert!(grown_kib < 24 * 1024, "{grown_kib} KiB");
    assert_eq!(client.stat("evictions"), 0);
    let mut far = |name: &str| figure(&mut client, name);
    assert_eq!(far("memory_limit_bytes"), MEMORY);
    assert!(far("memory_bytes") <= MEMORY && far("memory_bytes") > MEMORY / 2);
    assert!(far("paged_out_bytes") > 20 * MIB);
    assert!(far("major_faults") + far("read_ahead_pages") > 5_000);
    assert!(far("fault_waits") > 1_000 && far("fault_wait_ns_p50") > 1_000);
    assert_eq!((far("failed_faults"), far("refused_pages")), (0, 0));
    // The first start has made a profile, of this part in memory.
    let profile = fs::read_to_string(dir.path().join("far.profile.toml")).expect("a profile");
    assert!(profile.contains("kind = \"paged\""), "{profile}");
    assert!(
        profile.contains(&format!("memory_bytes = {MEMORY}")),
        "{profile}"
    );
}

#[test]
fn items_leave_when_it_is_full_and_those_that_stay_are_right() {
    let Some(dir) = directory("items_leave_when_it_is_full", "") else {
        return;
    };
    let server = Server::start(dir.path());
    let mut client = server.connect();
    let keys = 10_000;
    (0..keys).for_each(|key| set(&mut client, key));
    let mut hits = 0;
    for key in 0..keys {
        if let Some(found) = client.get(&format!("key{key}")) {
            assert!(found == value(key), "key{key}");
            hits += 1;
        }
    }
    assert!(hits > keys / 3 && hits < keys * 3 / 4, "{hits} of {keys}");
    assert!(client.stat("evictions") > keys / 4);
    assert!(figure(&mut client, "memory_bytes") <= MEMORY);
}

#[test]
fn a_device_that_reads_no_more_ends_the_server_which_says_what_it_could_not_read() {
    let pages = "path = \"PAGES\"";
    let Some(dir) = directory("a_device_that_reads_no_more", pages) else {
        return;
    };
    let (path, config) = (dir.path().join("pages"), dir.path().join("nyx.toml"));
    let text = fs::read_to_string(&config).expect("a configuration");
    let text = text.replacen("PAGES", path.to_str().expect("a path"), 1);
    fs::write(&config, text).expect("a configuration");
    let file = fs::File::create(&path).expect("a file");
    let server = Server::start(dir.path());
    let mut client = server.connect();
    let keys = 2_000;
    (0..keys).for_each(|key| set(&mut client, key));
    // Whatever was written last is on the device after this, and nothing is written any more.
    (0..keys).for_each(|key| assert!(client.get(&format!("key{key}")) == Some(value(key))));
    let head = fs::read(&path).expect("a file")[..HEAD as usize].to_vec();
    assert!(head.iter().all(|byte| *byte == 0), "its head is left alone");
    file.set_len(HEAD).expect("a shorter file");
    for key in 0..keys {
        write!(client.stream, "get key{key}\r\n").expect("a socket");
        let Some(answer) = client.line() else { break };
        assert!(answer.starts_with("VALUE "), "{answer}");
        let mut bytes = vec![0; value(key).len() + 2];
        if std::io::Read::read_exact(&mut client.answers, &mut bytes).is_err() {
            break;
        }
        assert!(bytes[..bytes.len() - 2] == value(key), "key{key}");
        client.line();
    }
    let (status, said) = server.end();
    assert!(!status.success(), "{status}: {said}");
    let shown = path.display();
    let words = format!("medium \"far (pages at {shown})\" cannot read ");
    let told = said
        .lines()
        .find(|line| line.replace('\\', "").contains(&words) && line.contains("the process ends"));
    let told = told.unwrap_or_else(|| panic!("{words} in {said}"));
    assert!(told.contains("the page at byte ") && told.contains("the device cannot read it"));
}

/// How a server ends that does not start: its exit code and what it says.
fn fails(mut command: Command, dir: &Path) -> (i32, String) {
    let command = command
        .arg("serve")
        .arg("--config")
        .arg(dir.join("nyx.toml"));
    let ended = command.stdin(Stdio::null()).output().expect("the binary");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    (
        ended.status.code().unwrap_or_else(|| panic!("{told}")),
        told,
    )
}

fn nyx() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    command.env_clear();
    command
}

#[test]
fn where_pages_cannot_go_the_server_says_why_and_overwrites_nothing() {
    let Some(dir) = directory("where_pages_cannot_go", "path = \"PAGES\"") else {
        return;
    };
    let (path, config) = (dir.path().join("pages"), dir.path().join("nyx.toml"));
    let text = fs::read_to_string(&config).expect("a configuration");
    let at = |place: &Path| text.replacen("PAGES", place.to_str().expect("a path"), 1);
    let refused = |place: &Path, words: &str| {
        fs::write(&config, at(place)).expect("a configuration");
        let (code, told) = fails(nyx(), dir.path());
        let is_told = told.contains("device \"far\": path ") && told.contains(words);
        assert!(code == 73 && is_told, "{code}: {told}");
    };
    refused(&path, "is not there");
    // As btrfs has it: the first 64 KiB are zero.
    let mut bytes = vec![0; 2 * HEAD as usize];
    bytes[64 << 10] = 1;
    fs::write(&path, &bytes).expect("a file");
    refused(
        &path,
        "its first 128 KiB are not all zero, so it may be in use",
    );
    assert_eq!(fs::read(&path).expect("a file"), bytes);
    refused(
        Path::new("/dev/null"),
        "is neither a directory, a file nor a block device",
    );
    // Whoever has it has it alone.
    fs::write(&path, vec![0; 100]).expect("a file");
    fs::write(&config, at(&path)).expect("a configuration");
    let first = Server::start(dir.path());
    let (code, told) = fails(nyx(), dir.path());
    assert!(
        code == 73 && told.contains("in use by another process"),
        "{code}: {told}"
    );
    drop(first);
}

/// Starts a program that gets no userfaultfd, neither by the call nor by its device.
const FORBIDS: &str = r#"
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 4, 0, 323), (0x15, 0, 2, 16), (0x20, 0, 0, 24),
         (0x15, 1, 0, 0xaa00), (6, 0, 0, 0x7fff0000), (6, 0, 0, 0x50001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(program)) == 0
os.execve(sys.argv[1], sys.argv[1:], {})
"#;

#[test]
fn without_a_userfaultfd_the_server_does_not_start_and_says_what_is_missing() {
    const TEST: &str = "without_a_userfaultfd";
    let Some(dir) = directory(TEST, "") else {
        return;
    };
    let mut python = Command::new("python3");
    python.args(["-c", FORBIDS]);
    let can = Command::new("python3")
        .args(["-c", "import ctypes"])
        .output();
    let can = can.is_ok_and(|output| output.status.success());
    if !can || !cfg!(target_arch = "x86_64") {
        return eprintln!("skipped {TEST}: it takes python3 with ctypes, on x86-64");
    }
    python.arg(env!("CARGO_BIN_EXE_nyx"));
    let (code, told) = fails(python, dir.path());
    for words in [
        "device \"far\": no userfaultfd: ",
        "Operation not permitted",
        "seccomp",
    ] {
        assert!(code == 69 && told.contains(words), "{code}: {told}");
    }
}

#[test]
fn check_config_tells_how_much_of_it_is_in_memory() {
    let Some(dir) = directory("check_config_tells", "") else {
        return;
    };
    let checked = nyx()
        .arg("check-config")
        .arg(dir.path().join("nyx.toml"))
        .output();
    let told = String::from_utf8_lossy(&checked.expect("the binary").stdout).into_owned();
    let words = "device far: paged, 8 MiB of it in memory and the rest at ";
    assert!(
        told.contains(words) && told.contains(", 64 MiB\n"),
        "{told}"
    );
}
