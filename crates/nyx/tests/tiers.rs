//! The real binary with a tenant on two devices: more than the first holds comes back, figures say
//! where it lies, and what is no deep file of ours is refused with the reason.

#[path = "rig/surviving.rs"]
mod surviving;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surviving::{Connection, Server};
use tempfile::TempDir;

const VALUE_LEN: usize = 8000;
/// Three times what the first device holds.
const KEYS: usize = 3000;

/// A directory with a configuration; `device` and `tenant` are more lines of the deep device's and
/// the tenant's.
fn directory(device: &str, tenant: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ndata_dir = {:?}\n\
         [[device]]\nname = \"pm\"\nkind = \"anon\"\nsize = \"8MiB\"\nmodel = \"cxl\"\n\
         [[device]]\nname = \"ssd\"\nkind = \"block\"\nsize = \"64MiB\"\n{device}\n\
         [[tenant]]\nname = \"first\"\ntiers = [\"pm\", \"ssd\"]\nsegment_bytes = \"256KiB\"\n\
         item_len_max = \"64KiB\"\neviction = \"fifo\"\n{tenant}\n",
        dir.path()
    );
    fs::write(dir.path().join("nyx.toml"), text).expect("a configuration");
    dir
}

fn nyx(args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    command.env_clear().args(args).arg(dir.join("nyx.toml"));
    command
}

fn value(key: usize) -> Vec<u8> {
    format!("{key:0>VALUE_LEN$}").into_bytes()
}

fn set(to: &mut Connection, key: usize) {
    let mut request = format!("set key{key} 0 0 {VALUE_LEN}\r\n").into_bytes();
    request.extend(value(key));
    request.extend(b"\r\n");
    to.stream.write_all(&request).expect("a server");
    assert_eq!(to.line().as_deref(), Some("STORED\r\n"));
}

/// Lines of an answer of figures.
fn stats(to: &mut Connection, what: &str) -> Vec<String> {
    write!(to.stream, "stats{what}\r\n").expect("a server");
    let lines = std::iter::from_fn(|| to.line().filter(|line| line != "END\r\n"));
    lines.map(|line| line.trim_end().to_string()).collect()
}

fn figure(lines: &[String], name: &str) -> u64 {
    let begin = format!("STAT {name} ");
    let value = lines.iter().find_map(|line| line.strip_prefix(&begin));
    value.expect(name).parse().expect("a number")
}

/// Uses the tenant as a cache is used, setting what it misses, until it has three quarters of all
/// keys: what leaves the first device while the second takes nothing is missed and set again.
fn fill(to: &mut Connection) {
    let began = Instant::now();
    loop {
        let mut hits = 0;
        for key in 0..KEYS {
            match to.get(&format!("key{key}")) {
                Some(found) => {
                    assert!(found == value(key), "key{key}");
                    hits += 1;
                }
                None => set(to, key),
            }
        }
        if hits >= KEYS * 3 / 4 {
            return;
        }
        let waits = began.elapsed();
        assert!(waits < Duration::from_secs(60), "{hits} of {KEYS}");
    }
}

/// How a server ends that does not start: its exit code and what it says.
fn fails(dir: &Path) -> (i32, String) {
    let ended = nyx(&["serve", "--config"], dir)
        .output()
        .expect("the binary");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.code().expect("it exits"), told)
}

#[test]
fn what_leaves_the_first_device_comes_back_from_the_second() {
    let dir = directory("", "");
    let server = Server::start(dir.path());
    let mut client = server.connect();
    fill(&mut client);
    let lines = stats(&mut client, " tenants");
    let deep = |name: &str| figure(&lines, &format!("first:deep_{name}"));
    assert!(
        lines.contains(&"STAT first:deep_device ssd".to_string()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"STAT first:deep_evidence real".to_string()),
        "{lines:?}"
    );
    assert_eq!(deep("size_bytes"), 64 << 20);
    assert!(
        deep("live_bytes") as usize > KEYS / 2 * VALUE_LEN,
        "{lines:?}"
    );
    // Where the disk is slow some are written to it at once.
    let came = deep("demotions") + deep("arounds") + deep("mirrors");
    assert!(came as usize > KEYS / 2, "{lines:?}");
    assert!(deep("segments") > 20, "{lines:?}");
    assert!(deep("reads") as usize > KEYS / 2, "{lines:?}");
    assert!(deep("read_bytes") >= deep("reads") * 8192);
    assert!(deep("written_bytes") > deep("live_bytes") / 2, "{lines:?}");
    assert_eq!((deep("lost"), deep("stages_all")), (0, 2));
    assert!(!lines.contains(&"STAT first:deep_device_seconds 0.000000".to_string()));
    let sum = stats(&mut client, "");
    assert_eq!(figure(&sum, "nyx_deep_reads"), deep("reads"));
    let device = stats(&mut client, " devices");
    assert!(figure(&device, "ssd:reads") >= deep("reads"));
    assert_eq!(figure(&device, "ssd:read_errors"), 0);
    let settings = stats(&mut client, " settings");
    for line in [
        "first:write back",
        "first:nhc shortest-delay",
        "first:deep_item_len_min 512",
    ] {
        assert!(settings.contains(&format!("STAT {line}")), "{settings:?}");
    }
    // While it runs nobody else gets the file.
    let (code, told) = fails(dir.path());
    assert!(
        code == 73 && told.contains("in use by another process"),
        "{code}: {told}"
    );
}

#[test]
fn a_restart_takes_the_file_and_its_profile_as_they_are() {
    let dir = directory("", "");
    drop(Server::start(dir.path()));
    let profile = dir.path().join("ssd.profile.toml");
    let first = fs::read(&profile).expect("a profile");
    let deep = dir.path().join("ssd.deep");
    let header = fs::read(&deep).expect("a file")[..4096].to_vec();
    let server = Server::start(dir.path());
    set(&mut server.connect(), 1);
    drop(server);
    assert!(
        fs::read(&profile).expect("a profile") == first,
        "it was measured again"
    );
    assert!(fs::read(&deep).expect("a file")[..4096] == header);
    let text = String::from_utf8(first).expect("text");
    assert!(text.contains("write_is_assumed = false"), "{text}");
    // Whoever comes with another file has another device.
    fs::remove_file(&deep).expect("a file");
    drop(Server::start(dir.path()));
    assert!(fs::read_to_string(&profile).expect("a profile") != text);
}

#[test]
fn what_is_no_deep_file_of_ours_is_refused_and_stays() {
    let dir = directory("", "");
    let deep = dir.path().join("ssd.deep");
    fs::write(&deep, vec![7; 1 << 20]).expect("room");
    let (code, told) = fails(dir.path());
    assert!(
        code == 73 && told.contains("not a Nyx deep file"),
        "{code}: {told}"
    );
    assert!(fs::read(&deep).expect("a file") == vec![7; 1 << 20]);
    fs::remove_file(&deep).expect("a file");
    drop(Server::start(dir.path()));
    let sound = fs::read(&deep).expect("a file");
    let mut newer = sound.clone();
    newer[8] = 9;
    fs::write(&deep, &newer).expect("room");
    let (code, told) = fails(dir.path());
    assert!(code == 73 && told.contains("of format 9"), "{code}: {told}");
    fs::write(&deep, &sound).expect("room");
    let larger = dir.path().join("nyx.toml");
    let text = fs::read_to_string(&larger).expect("a configuration");
    fs::write(&larger, text.replace("\"64MiB\"\n\n", "\"65MiB\"\n\n")).expect("room");
    let (code, told) = fails(dir.path());
    let words = "holds a medium of 67108864 bytes, 68157440 bytes were asked for";
    assert!(code == 73 && told.contains(words), "{code}: {told}");
}

#[test]
fn a_modelled_device_has_emulated_figures_and_no_profile() {
    let dir = directory("model = \"optane-ssd\"\nio = \"threads\"", "");
    let server = Server::start(dir.path());
    let mut client = server.connect();
    set(&mut client, 0);
    assert!(client.get("key0").expect("it was just set") == value(0));
    let lines = stats(&mut client, " tenants");
    assert!(
        lines.contains(&"STAT first:deep_evidence emulated".to_string()),
        "{lines:?}"
    );
    assert!(!dir.path().join("ssd.profile.toml").exists());
}

#[test]
fn check_config_says_how_much_lies_where() {
    let dir = directory("", "nhc_least_percent = 20");
    let ended = nyx(&["check-config"], dir.path())
        .output()
        .expect("the binary");
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{told}");
    for words in [
        "64 MiB more on ssd",
        "ssd.deep, 64 MiB, io auto\n  no profile yet: the first start makes one\n",
        "values of 512 B and more, write back, nhc shortest-delay, within 20 to 100 %",
        "72 MiB in all, 11 % of it on pm; 64 to 72 B of memory for each value here (key of 30 B), \
         within its 8 MiB; full with values of ",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!dir.path().join("ssd.deep").exists(), "it touches nothing");
}

#[test]
fn a_limit_holds_on_the_second_device() {
    let dir = directory("model = \"sata-flash\"", "deep_limit = \"10%\"");
    let server = Server::start(dir.path());
    let mut client = server.connect();
    fill(&mut client);
    let used = |client: &mut Connection| {
        let lines = stats(client, " tenants");
        let line = lines
            .iter()
            .find_map(|line| line.strip_prefix("STAT first:deep_device_seconds "));
        line.expect("a figure").parse::<f64>().expect("seconds")
    };
    let (began, before) = (Instant::now(), used(&mut client));
    let mut asked = Vec::new();
    (0..KEYS).for_each(|key| write!(asked, "get key{key} \r\n").expect("memory"));
    let mut to = client.stream.try_clone().expect("a socket");
    let asks = std::thread::spawn(move || to.write_all(&asked));
    let mut ends = 0;
    while ends < KEYS {
        ends += usize::from(client.line().expect("an answer") == "END\r\n");
    }
    asks.join().expect("a thread").expect("a server");
    let used = used(&mut client) - before;
    let took = began.elapsed().as_secs_f64();
    assert!(
        used > 0.01 && used < 0.1 * took + 0.01,
        "{used} s of {took} s"
    );
    assert!(client.stat("deep_holds") > 0);
    let lines = stats(&mut client, " tenants");
    assert!(lines.contains(&"STAT first:deep_limit_device_share 0.1000".to_string()));
}

#[test]
fn sighup_leaves_two_devices_as_they_are() {
    let dir = directory("", "");
    let mut child = nyx(&["serve", "--config"], dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut wait_for = |words: &str| {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(
                log.read_line(&mut line).expect("its log") > 0,
                "without {words:?}"
            );
        }
        line
    };
    wait_for("listening");
    let path = dir.path().join("nyx.toml");
    let text = fs::read_to_string(&path).expect("a configuration");
    let pid = rustix::process::Pid::from_child(&child);
    let hup = || rustix::process::kill_process(pid, rustix::process::Signal::HUP);
    // But for the limit.
    fs::write(&path, format!("{text}deep_limit = \"20%\"\n")).expect("room");
    hup().expect("a signal");
    wait_for("configuration read again");
    fs::write(&path, format!("{text}nhc = \"classic\"\n")).expect("room");
    hup().expect("a signal");
    let told = wait_for("everything stays as it is");
    assert!(told.contains("a restart is needed for tenant"), "{told}");
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
}

#[test]
fn what_lies_on_both_devices_is_there_after_a_kill_and_after_a_stop() {
    let dir = directory("", "durability = \"crash\"\n");
    let path = dir.path().join("nyx.toml");
    let text = fs::read_to_string(&path).expect("a configuration");
    let text = text.replacen("kind = \"anon\"", "kind = \"file\"", 1);
    fs::write(&path, text.replacen("model = \"cxl\"\n", "", 1)).expect("room");
    let mut server = Server::start(dir.path());
    fill(&mut server.connect());
    for is_killed in [true, false] {
        let mut client = server.connect();
        let has = |client: &mut Connection, key: usize| {
            let found = client.get(&format!("key{key}"));
            found.inspect(|found| assert!(*found == value(key), "key{key}"))
        };
        let held = (0..KEYS).filter(|&key| has(&mut client, key).is_some());
        let held = held.count();
        match is_killed {
            true => server.kill(),
            false => server.stop("-TERM"),
        }
        server = Server::start(dir.path());
        let mut client = server.connect();
        let again = (0..KEYS).filter(|&key| has(&mut client, key).is_some());
        let again = again.count();
        // What comes back while it is asked for may have somebody else leave.
        assert!(again * 100 >= held * 99, "{again} of {held}, {is_killed}");
        assert_eq!(client.stat("first:deep_lost"), 0);
    }
}
