//! `nyx top` and `nyx explain` on a real server with a modelled device: a tenant whose target
//! cannot be met, a limited one that is throttled for it, an idle one, and one behind a login.
//!
//! What it never does: judge a speed. Deadlines only turn a hang into a failure.

use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this long what should have happened never will.
const PATIENCE: Duration = Duration::from_secs(90);
/// An explanation that is asked for so often never says it.
const EXPLAINED_MOST: usize = 100;
const USAGE: i32 = 64;
const UNAVAILABLE: i32 = 69;
const NO_PERMISSION: i32 = 77;

fn nyx(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    // No knob from outside may reach it.
    command.env_clear().args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    nyx(args).output().expect("the binary")
}

/// What a command that succeeds prints.
fn said(args: &[&str]) -> String {
    let output = output(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// What a command that fails says, after its exit code was checked.
fn refusal(args: &[&str], code: i32) -> String {
    let output = output(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    errors
}

/// Sentences without the breaks of lines.
fn flat(said: &str) -> String {
    said.split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn assert_says(said: &str, words: &[&str]) {
    let flat = flat(said);
    for word in words {
        assert!(flat.contains(word), "{word:?} is missing in: {said}");
    }
}

/// A running server; it ends with the value.
struct Server {
    child: Child,
    dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is gone already where this fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(dir.path().join("users"), "operator:secret\n").expect("a file");
        let config = format!(
            r#"
[server]
listen = ["unix:{door}"]
data_dir = "{data}"
workers = 1
[policy]
kind = "qos"
# A target that must be missed.
oversubscribe = true
[[device]]
name = "main"
kind = "anon"
size = "64MiB"
model = "optane-2dimm/8"
[[tenant]]
name = "web"
size = "12MiB"
key_prefix = "web:"
target = "mean 1us"
[[tenant]]
name = "batch"
size = "12MiB"
key_prefix = "batch:"
limit = "5%"
[[tenant]]
name = "idle"
size = "12MiB"
[[tenant]]
name = "private"
size = "12MiB"
listen = ["unix:{login}"]
users = "{users}"
"#,
            door = at("door"),
            data = at("data"),
            login = at("login"),
            users = at("users"),
        );
        let file = dir.path().join("nyx.toml");
        std::fs::write(&file, config).expect("a file");
        let child = nyx(&["serve", "-qq", "--config", &at("nyx.toml")])
            .spawn()
            .expect("the binary");
        let mut server = Server { child, dir };
        let door = server.path("door");
        until("it answers", || {
            let ended = server.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "it ended: {ended:?}");
            answers(&door)
        });
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.path(name).display())
    }
}

/// A door that is bound before the server serves takes connections and closes them.
fn answers(door: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(door) else {
        return false;
    };
    let mut answer = [0; 4];
    let asked = stream.set_read_timeout(Some(PATIENCE));
    let asked = asked.and_then(|()| stream.write_all(b"mn\r\n"));
    asked.and_then(|()| stream.read_exact(&mut answer)).is_ok()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks the same again and again, each time once the answer is there.
fn ask(door: &Path, request: &str, answer_len: usize, stop: &AtomicBool) {
    let mut stream = UnixStream::connect(door).expect("a door");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut answer = vec![0; answer_len];
    while !stop.load(Relaxed) {
        stream
            .write_all(request.as_bytes())
            .expect("the server takes it");
        stream.read_exact(&mut answer).expect("an answer");
    }
}

/// Runs `check` while one tenant reads and another writes as much as it may.
fn under_load(server: &Server, check: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let door = server.path("door");
    let set = |key: &str| format!("set {key} 0 0 4000\r\n{}\r\n", "v".repeat(4000));
    let mut stream = UnixStream::connect(&door).expect("a door");
    stream
        .write_all(set("web:k").as_bytes())
        .expect("the server takes it");
    stream.read_exact(&mut [0; 8]).expect("an answer");
    let hit_len = "VALUE web:k 0 4000\r\n".len() + 4002 + "END\r\n".len();
    let miss_len = "END\r\n".len();
    struct StopOnDrop<'s>(&'s AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    std::thread::scope(|scope| {
        // Also where a check panics: the scope waits for its threads.
        let _stop = StopOnDrop(&stop);
        let get = "get web:k\r\nget web:none\r\n";
        scope.spawn(|| ask(&door, get, hit_len + miss_len, &stop));
        let store = set("batch:k").repeat(4);
        scope.spawn({
            let (door, stop) = (&door, &stop);
            move || ask(door, &store, 4 * "STORED\r\n".len(), stop)
        });
        check();
    });
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn tenant<'v>(board: &'v Value, name: &str) -> &'v Value {
    let tenants = board["tenants"].as_array().expect("tenants");
    let found = tenants.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing: {board}"))
}

fn number(of: &Value, key: &str) -> f64 {
    of[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is no number: {of}"))
}

/// The figures of an interval in which the policy had throttled `batch` for `web`.
fn throttled_board(door: &str) -> Value {
    let mut board = Value::Null;
    until("batch is throttled for web", || {
        board = json(&said(&["top", "--json", "--interval", "200ms", door]));
        let throttled = tenant(&board, "batch")["throttle_device_share"].is_number();
        throttled && tenant(&board, "web")["hurt_by"][0]["tenant"] == "batch"
    });
    board
}

fn check_board(board: &Value) {
    assert_eq!(board["policy"], "qos");
    assert!((0.2..5.0).contains(&number(board, "interval_s")));
    let web = tenant(board, "web");
    assert_eq!(
        (&web["evidence"], &web["target"]),
        (&"emulated".into(), &"mean 1.00 us".into())
    );
    assert!(
        number(web, "slack") < 0.0,
        "a microsecond over a socket is not to be had: {web}"
    );
    assert!(
        (number(web, "hit_ratio") - 0.5).abs() < 0.01,
        "every other key is there: {web}"
    );
    assert!(number(web, "requests_per_s") > 0.0);
    let quantile = |name: &str| number(web, name);
    let (p50, p99) = (quantile("latency_us_p50"), quantile("latency_us_p99"));
    assert!(
        1.0 < p50 && p50 <= p99 && p99 <= quantile("latency_us_p999"),
        "{web}"
    );
    let batch = tenant(board, "batch");
    assert_eq!(number(batch, "promised_device_share"), 0.05);
    assert!(number(batch, "throttle_device_share") < 0.05, "{batch}");
    // A limit is kept to 1 % of the device in any 100 ms.
    assert!(number(batch, "device_share") < 0.065, "{batch}");
    let idle = tenant(board, "idle");
    assert_eq!(number(idle, "requests_per_s"), 0.0);
    assert!(idle["latency_us_p50"].is_null() && idle["slack"].is_null());
    let tenants = board["tenants"].as_array().map(Vec::len);
    assert_eq!(tenants, Some(3), "the private one is not within reach");
}

#[test]
fn tenants_under_load_are_shown_and_explained() {
    let server = Server::start();
    let door = server.address("door");
    under_load(&server, || {
        check_board(&throttled_board(&door));
        let table = said(&["top", "--once", "--interval", "100ms", &door]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "{table}");
        let heads: Vec<&str> = lines[0].split_whitespace().collect();
        for line in &lines {
            assert_eq!(line.split_whitespace().count(), heads.len(), "{table}");
        }
        assert!(
            heads.starts_with(&["TENANT", "REQ/S", "HIT%", "P50", "P99"]),
            "{table}"
        );
        // The controller takes a throttle back now and then, for some tenths of a second.
        let of_batch = || said(&["explain", "batch", &door, "--interval", "200ms"]);
        let is_held = |said: &String| flat(said).contains("For the sake of others");
        let mut asked = std::iter::repeat_with(of_batch).take(EXPLAINED_MOST);
        let batch = asked.find(is_held);
        let batch = batch.expect("it is throttled for the sake of others");
        assert_says(
            &batch,
            &[
                "batch under policy qos",
                "at most 5.0 % of device main",
                "batch was throttled",
                "It hurts web",
            ],
        );
        let web = said(&["explain", "web", &door, "--interval", "200ms"]);
        assert_says(
            &web,
            &["its target is mean 1.00 us", "beyond its target", "batch"],
        );
        let explained = json(&said(&[
            "explain",
            "web",
            &door,
            "--interval",
            "200ms",
            "--json",
        ]));
        assert_eq!(explained["tenant"], "web");
        assert!(number(&explained["figures"], "slack") < 0.0);
        assert!(
            explained["advice"]
                .as_array()
                .is_some_and(|advice| !advice.is_empty())
        );
        // Not all tenants are within reach here, so no reason may be told.
        assert_says(
            &batch,
            &["concerns tenants that this connection does not reach"],
        );
    });
}

#[test]
fn a_login_shows_its_own_tenant_and_nothing_is_shown_without() {
    let server = Server::start();
    let address = server.address("login");
    let once = ["top", "--once", "--interval", "50ms", &address];
    let why = refusal(&once, NO_PERMISSION);
    assert_says(&why, &["asks for a login", "--login USER:PASSWORD"]);
    let wrong = [&once[..], &["--login", "operator:guess"]].concat();
    assert_says(
        &refusal(&wrong, NO_PERMISSION),
        &["refused the login", "operator"],
    );
    let right = [&once[..], &["--login", "operator:secret"]].concat();
    let table = said(&right);
    assert!(
        table.contains("private") && !table.contains("web"),
        "{table}"
    );
    let by_variable = nyx(&once).env("NYX_LOGIN", "operator:secret").output();
    assert!(by_variable.is_ok_and(|output| output.status.success()));
}

#[test]
fn what_cannot_be_shown_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let nowhere = format!("unix:{}", dir.path().join("nowhere").display());
    for args in [
        &["top", "--once", &nowhere][..],
        &["explain", "web", &nowhere],
    ] {
        assert_says(
            &refusal(args, UNAVAILABLE),
            &["cannot reach", "nowhere", "nyx serve"],
        );
    }
    let server = Server::start();
    let door = server.address("door");
    let unknown = refusal(&["explain", "wbe", &door, "--interval", "50ms"], USAGE);
    assert_says(&unknown, &["\"wbe\"", "idle, web, batch"]);
    assert_says(&refusal(&["top", &door], USAGE), &["no terminal", "--once"]);
}
