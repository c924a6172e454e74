//! The real binary takes in tenants that are new in its configuration when it is told to by SIGHUP:
//! under load, by prefix and by login, without a restart and without dropping a connection; and one
//! that cannot be taken in changes nothing.
//!
//! What it never does: measure time by its own clock. Deadlines only turn a hang into a failure.

mod rig;

use rig::number;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this long what should have happened never will.
const PATIENCE: Duration = Duration::from_secs(90);

/// A tenant in the file: its name, and whatever else is said of it.
type Terms<'a> = (&'a str, &'a str);

/// A server, killed at the end, what it writes to its log, and what its file says but for tenants.
struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    head: String,
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
    /// With a device of 64 MiB and room for four tenants.
    fn start(policy: &str, workers: u16, tenants: &[Terms<'_>]) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        Server::start_in(dir, policy, workers, tenants)
    }

    /// In a directory where files of its own may be.
    fn start_in(dir: TempDir, policy: &str, workers: u16, tenants: &[Terms<'_>]) -> Server {
        let head = format!(
            "[server]\nlisten = [\"unix:{door}\"]\nworkers = {workers}\ndata_dir = {data:?}\n\
             max_tenants = 4\n[policy]\nkind = \"{policy}\"\n[[device]]\nname = \"main\"\n\
             kind = \"anon\"\nsize = \"64MiB\"\nmodel = \"optane-2dimm/8\"\n",
            door = dir.path().join("door").display(),
            data = dir.path(),
        );
        let file = dir.path().join("nyx.toml");
        fs::write(&file, text(&head, tenants)).expect("a configuration");
        let mut child = nyx(&["serve", "--config"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let mut server = Server {
            child,
            log,
            head,
            dir,
        };
        server.wait_for(&["listening"]);
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The log up to the line that has one of these in it.
    fn wait_for(&mut self, words: &[&str]) -> String {
        let (mut said, mut line) = (String::new(), String::new());
        while self.log.read_line(&mut line).expect("its log") > 0 {
            said += &line;
            if words.iter().any(|words| line.contains(words)) {
                return said;
            }
            line.clear();
        }
        panic!("the server has ended without {words:?}: {said}");
    }

    /// Reads the configuration again, with these tenants; what it says of it.
    fn reload(&mut self, tenants: &[Terms<'_>]) -> String {
        fs::write(self.path("nyx.toml"), text(&self.head, tenants)).expect("a configuration");
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("a signal");
        let said = self.wait_for(&["configuration read again", "everything stays as it is"]);
        // In its log a message is in quotation marks.
        said.replace("\\\"", "\"").replace("\\'", "'")
    }

    /// Reads the configuration again, which must take in these names.
    fn take_in(&mut self, tenants: &[Terms<'_>], names: &[&str]) {
        let said = self.reload(tenants);
        let taken_in: Vec<String> = said
            .lines()
            .filter(|line| line.contains("tenant taken in"))
            .filter_map(|line| Some(line.split_once("tenant=")?.1.trim().to_owned()))
            .collect();
        assert_eq!(taken_in, names, "{said}");
    }

    /// A connection to the shared door.
    fn client(&self) -> Client {
        Client::connect(&self.path("door"))
    }
}

fn nyx(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    command.env_clear().args(args);
    command
}

fn text(head: &str, tenants: &[Terms<'_>]) -> String {
    let mut text = head.to_owned();
    for (name, terms) in tenants {
        let segments = match terms.contains("segment_bytes") {
            true => "",
            false => "segment_bytes = \"128KiB\"\nitem_len_max = \"128KiB\"",
        };
        write!(text, "[[tenant]]\nname = \"{name}\"\n{segments}\n{terms}\n").expect("a string");
    }
    text
}

/// A connection that stays open.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(door: &Path) -> Client {
        let stream = UnixStream::connect(door).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Client(BufReader::new(stream))
    }

    /// One request, and its answer up to `end`.
    fn say(&mut self, request: &str, end: &str) -> String {
        let stream = self.0.get_mut();
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let n = self.0.read_until(b'\n', &mut answer).expect("an answer");
            assert!(n > 0, "closed after {}", answer.escape_ascii());
        }
        String::from_utf8(answer).expect("text")
    }

    fn set(&mut self, key: &str, value: &str) {
        let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(self.say(&request, "\r\n"), "STORED\r\n");
    }

    /// The value of a key, where there is one.
    fn get(&mut self, key: &str) -> Option<String> {
        let answer = self.say(&format!("get {key}\r\n"), "END\r\n");
        let (_, value) = answer.split_once("\r\n")?;
        Some(value.strip_suffix("\r\nEND\r\n")?.to_owned())
    }

    fn log_in(&mut self, login: &str) {
        self.set("login", login);
    }

    /// The figures of the tenants within reach, without their common beginning.
    fn figures(&mut self) -> Vec<String> {
        let answer = self.say("stats tenants\r\n", "END\r\n");
        let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT "));
        lines.map(str::to_owned).collect()
    }

    /// One figure of a tenant.
    fn figure(&mut self, name: &str) -> Option<String> {
        let figures = self.figures().into_iter();
        figures
            .filter_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()))
            .next()
    }

    fn number(&mut self, name: &str) -> f64 {
        let figure = self.figure(name).unwrap_or_else(|| panic!("no {name}"));
        figure
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {figure}"))
    }

    /// The server's clock, in seconds.
    fn now_s(&mut self) -> f64 {
        let answer = self.say("stats policy\r\n", "END\r\n");
        let now = answer
            .lines()
            .find_map(|line| line.strip_prefix("STAT now_s "));
        now.and_then(|now| now.parse().ok()).expect("a time")
    }
}

/// Sets and gets keys of its own until it is told to stop; every answer must be right.
fn load(mut client: Client, name: &str, rounds: &AtomicU64, stop: &AtomicBool) {
    const KEYS: usize = 50;
    let key = |at: usize| format!("{name}-{at}");
    let mut values = vec![None; KEYS];
    for round in 0.. {
        let (at, other) = (round % KEYS, (round * 7 + 3) % KEYS);
        let value = format!("{name}-{round}-{}", "v".repeat(round % 500));
        client.set(&key(at), &value);
        values[at] = Some(value);
        assert_eq!(client.get(&key(other)), values[other], "{name} has lost it");
        rounds.fetch_add(1, Relaxed);
        if stop.load(Relaxed) {
            break;
        }
    }
    // It was connected all the time and finds all that it ever wrote.
    for (at, value) in values.iter().enumerate() {
        assert_eq!(client.get(&key(at)), *value, "{name} has lost it");
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::yield_now();
    }
}

/// Waits until every load has gone so many rounds further.
fn go_on(loads: &[AtomicU64], rounds: u64) {
    let count = |load: &AtomicU64| load.load(Relaxed);
    let before: Vec<u64> = loads.iter().map(count).collect();
    let further = |(load, before): (&AtomicU64, &u64)| count(load) >= before + rounds;
    until("load goes on", || loads.iter().zip(&before).all(further));
}

/// Stops the loads, also where a check has failed: the scope waits for its threads.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

const WEB: Terms<'_> = ("web", "size = \"8MiB\"\nlimit = \"60%\"");
const TEAM: Terms<'_> = (
    "team",
    "size = \"8MiB\"\nkey_prefix = \"team:\"\nlimit = \"5%\"",
);

fn taken_in_under_load(workers: u16) {
    let mut server = Server::start("limit", workers, &[WEB]);
    let stop = AtomicBool::new(false);
    let loads: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for (at, rounds) in loads.iter().enumerate() {
            let (client, stop) = (server.client(), &stop);
            scope.spawn(move || load(client, &format!("load{at}"), rounds, stop));
        }
        // As many as it takes to have one on each worker.
        let mut old: Vec<Client> = (0..workers).map(|_| server.client()).collect();
        old[0].set("team:k", "web's");
        go_on(&loads, 100);
        assert_eq!(old[0].figure("team:items"), None);
        // Where it stands in the file does not matter.
        server.take_in(&[TEAM, WEB], &["team"]);
        // Connections that were there before follow, on every worker.
        assert_eq!(old[0].get("team:k"), None, "what is another one's is gone");
        for (at, client) in old.iter_mut().enumerate() {
            client.set(&format!("team:{at}"), &format!("from {at}"));
            assert_eq!(
                client.get(&format!("team:{at}")),
                Some(format!("from {at}"))
            );
        }
        go_on(&loads, 100);
        let mut new = server.client();
        for (at, client) in old.iter_mut().chain([&mut new]).enumerate() {
            let other = at % usize::from(workers);
            assert_eq!(
                client.get(&format!("team:{other}")),
                Some(format!("from {other}"))
            );
            assert_eq!(client.number("team:items"), f64::from(workers));
            assert_eq!(
                client.figure("team:limit_device_share"),
                Some("0.0500".into())
            );
            assert_eq!(
                client.figure("web:limit_device_share"),
                Some("0.6000".into())
            );
        }
        // A second one, while the first one's place is the last.
        let more = ("more", "size = \"8MiB\"\nkey_prefix = \"more:\"");
        server.take_in(&[more, TEAM, WEB], &["more"]);
        go_on(&loads, 100);
        old[0].set("more:k", "more");
        assert_eq!(new.get("more:k"), Some("more".into()));
        assert_eq!(new.get("team:0"), Some("from 0".into()));
        // Nothing new: nothing is taken in, and all goes on.
        server.take_in(&[WEB, TEAM, more], &[]);
        go_on(&loads, 10);
    });
}

#[test]
fn a_newcomer_is_taken_in_under_load_of_one_worker() {
    taken_in_under_load(1);
}

#[test]
fn a_newcomer_is_taken_in_under_load_of_two_workers() {
    taken_in_under_load(2);
}

#[test]
fn a_newcomer_is_taken_in_under_load_of_four_workers() {
    taken_in_under_load(4);
}

/// Asks for large values for two seconds of the server's clock: by its counters a tenant uses never
/// more than its limit, or that of its group, and it is the limit that it waits for.
fn assert_limited(client: &mut Client, name: &str, share: f64) {
    let key = format!("{name}:k");
    let begin_s = client.now_s();
    client.set(&key, &"x".repeat(64 << 10));
    let mut length_s = 0.0;
    while length_s < 2.0 {
        for _ in 0..50 {
            assert!(client.get(&key).is_some());
        }
        let used_s = client.number(&format!("{name}:device_seconds"));
        length_s = client.now_s() - begin_s;
        // Beyond the limit: what it saves up in a quarter of a second, and 2 ms for what one access
        // and a lease may overdraw.
        let may_s = share * (length_s + 0.25) + 0.002;
        assert!(
            used_s <= may_s,
            "{name}: {used_s} s of the device in {length_s} s"
        );
    }
    assert!(
        client.number(&format!("{name}:holds")) > 0.0,
        "{name} waited"
    );
}

#[test]
fn a_newcomers_limit_is_kept_from_its_first_request() {
    let mut server = Server::start("limit", 2, &[WEB]);
    let mut client = server.client();
    server.take_in(&[WEB, TEAM], &["team"]);
    assert_limited(&mut client, "team", 0.05);
    assert_eq!(client.number("web:holds"), 0.0);
}

#[test]
fn a_newcomer_may_be_in_a_group_that_is_there_or_in_one_that_is_new() {
    let group =
        |name: &str, limit: &str| format!("[[group]]\nname = \"{name}\"\nlimit = \"{limit}\"\n");
    let inside = |name: &str, group: &str| {
        format!("size = \"8MiB\"\nkey_prefix = \"{name}:\"\ngroup = \"{group}\"\n")
    };
    let one = inside("one", "jobs") + &group("jobs", "5%");
    let (two, late) = (
        inside("two", "jobs"),
        inside("late", "new") + &group("new", "4%"),
    );
    let [one, two, late] = [("one", &*one), ("two", &*two), ("late", &*late)];
    let mut server = Server::start("limit", 2, &[one, WEB]);
    let mut client = server.client();
    client.set("one:k", "before");
    server.take_in(&[two, one, WEB], &["two"]);
    assert_limited(&mut client, "two", 0.05);
    server.take_in(&[late, two, one, WEB], &["late"]);
    assert_limited(&mut client, "late", 0.04);
    assert_eq!(client.get("one:k"), Some("before".into()));
    assert_eq!(client.number("web:holds"), 0.0);
    let nowhere = inside("nowhere", "nobody");
    let said = server.reload(&[("nowhere", &nowhere), late, two, one, WEB]);
    assert!(
        said.contains("nobody") && said.contains("stays as it is"),
        "{said}"
    );
}

/// A tenant whose users log in at a door of their own in a directory.
fn with_login(dir: &Path, users: &str) -> String {
    let (door, users) = (dir.join("login"), dir.join(users));
    let door = format!("unix:{}", door.display());
    format!("size = \"8MiB\"\nlisten = [{door:?}]\nusers = {users:?}\n")
}

#[test]
fn a_newcomer_with_a_login_is_let_in_at_the_door_that_asks_for_one() {
    let dir = tempfile::tempdir().expect("a directory");
    for (file, users) in [("ann", "ann:a\n"), ("bob", "bob:b\n"), ("twin", "ann:c\n")] {
        fs::write(dir.path().join(file), users).expect("a file");
    }
    let [ann, bob, twin] = ["ann", "bob", "twin"].map(|users| with_login(dir.path(), users));
    let [ann, bob, twin] = [("ann", &*ann), ("bob", &*bob), ("twin", &*twin)];
    let mut server = Server::start_in(dir, "none", 2, &[WEB, ann]);
    let door = server.path("login");
    let mut old = Client::connect(&door);
    old.log_in("ann a");
    old.set("k", "ann's");
    // Connected, and not logged in yet.
    let mut early = Client::connect(&door);
    let said = server.reload(&[WEB, ann, twin]);
    let words = "user \"ann\" is tenant \"ann\"'s too";
    assert!(
        said.contains(words) && said.contains("stays as it is"),
        "{said}"
    );
    let refused = early.say("set login 0 0 5\r\nbob b\r\n", "\r\n");
    assert_eq!(refused, "CLIENT_ERROR authentication failure\r\n");
    server.take_in(&[WEB, ann, bob], &["bob"]);
    early.log_in("bob b");
    assert_eq!(early.get("k"), None, "it is another tenant's");
    early.set("k", "bob's");
    let mut late = Client::connect(&door);
    late.log_in("bob b");
    assert_eq!(late.get("k"), Some("bob's".into()));
    assert_eq!(late.figure("bob:items"), Some("1".into()));
    assert_eq!(late.figure("ann:items"), None, "beyond its reach");
    assert_eq!(old.get("k"), Some("ann's".into()));
}

/// What a refusal must leave alone: who there is, what each has and may.
fn state(client: &mut Client) -> Vec<String> {
    let kept = [
        "items",
        "size_bytes",
        "limit_device_share",
        "promised_device_share",
    ];
    let mut figures = client.figures();
    figures.retain(|line| {
        let name = line.split(' ').next().unwrap_or_default();
        kept.iter().any(|kept| name.ends_with(&format!(":{kept}")))
    });
    figures
}

/// What two residents say of themselves: `web` has all keys but those with `b:`, which are of
/// `batch`.
const MIN: Terms<'_> = ("web", "size = \"8MiB\"\nmin = \"40%\"");
const BATCH: Terms<'_> = (
    "batch",
    "size = \"8MiB\"\nkey_prefix = \"b:\"\nlimit = \"30%\"",
);

/// A newcomer with 8 MiB for the keys with `n:`.
fn new(terms: &str) -> String {
    format!("size = \"8MiB\"\nkey_prefix = \"n:\"\n{terms}")
}

/// A server with two residents, a connection that is open all the time, and what must stay so.
struct Residents {
    server: Server,
    client: Client,
    before: Vec<String>,
}

impl Residents {
    fn settle() -> Residents {
        let server = Server::start("qos", 2, &[MIN, BATCH]);
        let mut client = server.client();
        for (key, value) in [("k", "web's"), ("b:k", "batch's"), ("n:k", "web's too")] {
            client.set(key, value);
        }
        let before = state(&mut client);
        let items = before.iter().filter(|line| line.contains(":items "));
        assert_eq!(items.count(), 2, "{before:?}");
        Residents {
            server,
            client,
            before,
        }
    }

    /// Reads these tenants, which must be refused in these words and change nothing.
    fn refuses(&mut self, tenants: &[Terms<'_>], why: &str) {
        let said = self.server.reload(tenants);
        assert!(said.contains(why), "{why:?} is missing in {said}");
        assert!(said.contains("everything stays as it is"), "{said}");
        assert_eq!(state(&mut self.client), self.before, "{why}");
        assert_eq!(self.client.get("n:k"), Some("web's too".into()), "{why}");
    }

    /// The same of newcomers beside the residents.
    fn refuses_new(&mut self, newcomers: &[Terms<'_>], why: &str) {
        self.refuses(&[&[MIN, BATCH], newcomers].concat(), why);
    }

    /// Nothing of what was refused is in the way of who can be taken in.
    fn take_in_at_last(mut self) {
        let sound = new("");
        self.server
            .take_in(&[MIN, ("new", &sound), BATCH], &["new"]);
        let client = &mut self.client;
        assert_eq!(client.get("n:k"), None);
        client.set("n:k", "new's");
        for (key, value) in [("k", "web's"), ("b:k", "batch's"), ("n:k", "new's")] {
            assert_eq!(client.get(key), Some(value.into()));
        }
        let mut rest = state(client);
        rest.retain(|line| !line.starts_with("new:"));
        assert_eq!(rest, self.before);
    }
}

#[test]
fn who_has_no_space_or_is_promised_too_much_is_refused() {
    let mut residents = Residents::settle();
    // Well above what it takes alone, and well below what it takes beside the residents' parts.
    let hopeless = new("target = \"p99 1us\"");
    let said = residents.server.reload(&[MIN, BATCH, ("new", &hopeless)]);
    let tight = new(&format!("target = \"{}\"", alone(&said, 1.2)));
    let refused = [
        (
            new("").replace("8MiB", "49MiB"),
            "49 MiB does not fit: device \"main\" has 48 MiB left of 64 MiB",
        ),
        (
            new("segment_bytes = \"4MiB\""),
            "8 MiB hold less than 4 segments of 4 MiB",
        ),
        (
            new("segment_bytes = \"1MiB\""),
            "tenant \"new\": 8388608 B are too few: 2 workers and segments of 1048576 B take",
        ),
        (new("min = \"70%\""), "guarantees 110.0 % of the device"),
        // By the profile of a busy machine even the mean would be.
        (tight, "us would be missed: a "),
        (
            new("target = \"ops 9000000\""),
            "has no room: so many reads of 1024 B (assumed) take",
        ),
    ];
    for (terms, why) in refused {
        residents.refuses_new(&[("new", &terms)], why);
    }
    let three = ["n1", "n2", "n3"].map(|name| (name, "size = \"4MiB\""));
    let why = "max_tenants: 4 is less than the number of tenants, 5";
    residents.refuses_new(&three, why);
    residents.take_in_at_last();
}

#[test]
fn who_is_like_another_one_or_stands_elsewhere_is_refused() {
    let mut residents = Residents::settle();
    let gone = residents.server.path("gone");
    let elsewhere = format!("size = \"8MiB\"\nlisten = [\"unix:{}\"]", gone.display());
    let clashes = new("").replace("n:", "b:x");
    let mistaken = new("device = \"mian\"");
    let sound = new("");
    let refused = [
        (("web", &*sound), "\"web\" is there twice"),
        (
            ("new", &clashes),
            "\"b:x\" and \"b:\" of tenant \"batch\" would match the same keys",
        ),
        (
            ("new", "size = \"8MiB\""),
            "already leads to tenant \"web\"",
        ),
        (("new", &mistaken), "did you mean \"main\"?"),
        (
            ("new", &elsewhere),
            "a restart is needed for another listener, unix:",
        ),
    ];
    for (newcomer, why) in refused {
        residents.refuses_new(&[newcomer], why);
    }
    residents.take_in_at_last();
}

#[test]
fn a_newcomer_beside_what_waits_for_a_restart_waits_too() {
    let mut residents = Residents::settle();
    let sound = new("");
    let sound = ("new", &*sound);
    residents.refuses(
        &[MIN, sound],
        "a restart is needed for the end of tenant \"batch\"",
    );
    let larger = ("web", "size = \"9MiB\"\nmin = \"40%\"");
    residents.refuses(
        &[larger, BATCH, sound],
        "tenant \"web\", whose size would be 9 MiB instead of 8 MiB",
    );
    let unstated = ("web", "min = \"40%\"");
    residents.refuses(
        &[unstated, BATCH, sound],
        "tenant \"web\", whose size would be 48 MiB instead of 8 MiB",
    );
    residents.take_in_at_last();
}

/// A target of so many times what the idle device takes, and the CPU, from the refusal of one that
/// is too tight for both.
fn alone(said: &str, times: f64) -> String {
    assert!(said.contains("too tight even alone"), "{said}");
    let idle_us = number(said, "(assumed) take ", " us on the idle device");
    let cpu_us = number(said, "and the CPU ", " us");
    format!("p99 {:.0}ns", (idle_us * times + cpu_us) * 1e3)
}

/// A target that only just can be kept on the idle device: a newcomer with it is refused while a
/// resident whose own target is generous reads as much as it may, and a newcomer is taken in whose
/// target is generous too.
#[test]
fn what_residents_use_decides_over_a_newcomers_target() {
    // A resident that a busy machine keeps from reading uses too little to tell.
    let is_decided = (0..5).any(|_| decides_over_a_newcomers_target());
    assert!(is_decided, "it could not be told five times");
}

/// False where the server could not tell, and took the newcomer in with a warning.
fn decides_over_a_newcomers_target() -> bool {
    let busy = (
        "busy",
        "size = \"8MiB\"\nlimit = \"30%\"\ntarget = \"p99 10s\"",
    );
    let mut server = Server::start("qos", 1, &[busy]);
    let with =
        |target: &str| format!("size = \"8MiB\"\nkey_prefix = \"n:\"\ntarget = \"{target}\"");
    // What the CPU adds is read off all the time, and more of it where the machine is busy.
    let tight = |server: &mut Server| {
        let said = server.reload(&[busy, ("new", &with("p99 1us"))]);
        with(&alone(&said, 1.02))
    };
    let (rounds, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut client = server.client();
    client.set("big", &"x".repeat(64 << 10));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let mut load = server.client();
        scope.spawn({
            let (rounds, stop) = (&rounds, &stop);
            move || {
                while !stop.load(Relaxed) {
                    assert!(load.get("big").is_some());
                    rounds.fetch_add(1, Relaxed);
                }
            }
        });
        // What a resident does is read off once a second, by a clock of the server's.
        let begin_s = client.now_s();
        until("the server has seen the load", || {
            client.now_s() > begin_s + 3.0
        });
        assert!(rounds.load(Relaxed) > 0);
        let words = [
            "\"new\": target p99",
            "would be missed: a p99 of",
            "cannot be taken from the others (busy ",
        ];
        // Where the CPU's part grew between the two, the target is too tight even alone.
        let mut can_tell = true;
        until("the target is refused for what the resident uses", || {
            let tight = tight(&mut server);
            let said = server.reload(&[busy, ("new", &tight)]);
            can_tell = !said.contains("may or may not be kept");
            let becomes = if can_tell {
                "everything stays as it is"
            } else {
                "tenant taken in"
            };
            assert!(said.contains(becomes), "{said}");
            !can_tell || words.iter().all(|word| said.contains(word))
        });
        if !can_tell {
            return false;
        }
        assert_eq!(client.figure("new:items"), None);
        server.take_in(&[busy, ("new", &with("p99 10s"))], &["new"]);
        client.set("n:k", "new's");
        assert!(client.figure("new:target").is_some());
        true
    })
}

#[test]
fn top_and_explain_show_the_newcomer() {
    let mut server = Server::start("limit", 1, &[WEB]);
    server.take_in(&[WEB, TEAM], &["team"]);
    server.client().set("team:k", "x");
    let door = format!("unix:{}", server.path("door").display());
    for args in [vec!["top", "--json", &door], vec!["explain", "team", &door]] {
        let output = nyx(&args).output().expect("the binary");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("team"),
            "{args:?}: {said}"
        );
    }
}
