//! The real binary, killed again and again while it is at work (`kill -9`), on the same data: what
//! it had acknowledged is there when it is started again, what it had deleted is not, and what was
//! under way is done or not done.

#[path = "rig/surviving.rs"]
mod surviving;

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use surviving::{Connection, Server, directory};

/// How often it is killed at work.
const KILLS: u64 = 200;
/// How often it is killed, in a row, while it looks through what it found.
const KILLS_AT_ONCE: u32 = 10;
const CONNECTIONS: usize = 2;
/// Requests that one connection sends before it waits for the answers.
const BATCH: usize = 40;
/// Keys of one connection: no other changes them.
const KEYS: u32 = 3000;

/// What a request does to the value of its key.
#[derive(Clone, Debug)]
enum Change {
    Set(Vec<u8>),
    Append(Vec<u8>),
    Delete,
    Add(u64),
    Touch,
}

impl Change {
    fn any(rng: &mut fastrand::Rng, counts: bool) -> Change {
        let digits = |rng: &mut fastrand::Rng| rng.u32(..).to_string().into_bytes();
        match rng.u8(..10) {
            0..=4 if counts => Change::Add(rng.u64(1..1000)),
            0..=4 => Change::Set(vec![rng.alphanumeric() as u8; rng.usize(1..900)]),
            5 => Change::Set(digits(rng)),
            6 if !counts => Change::Append(digits(rng)),
            6 | 7 => Change::Touch,
            _ => Change::Delete,
        }
    }

    fn write(&self, key: &str, into: &mut Vec<u8>) {
        let mut data = |verb: &str, value: &[u8]| {
            let _ = write!(into, "{verb} {key} 0 0 {}\r\n", value.len());
            into.extend(value);
            into.extend(b"\r\n");
        };
        match self {
            Change::Set(value) => data("set", value),
            Change::Append(value) => data("append", value),
            Change::Delete => into.extend(format!("delete {key}\r\n").bytes()),
            Change::Add(by) => into.extend(format!("incr {key} {by}\r\n").bytes()),
            Change::Touch => into.extend(format!("touch {key} 100000\r\n").bytes()),
        }
    }

    fn apply(&self, value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        match self {
            Change::Set(new) => Some(new.clone()),
            Change::Append(more) => value.map(|value| [value, more.clone()].concat()),
            Change::Delete => None,
            Change::Add(by) => value.map(|value| {
                let number: u64 = String::from_utf8_lossy(&value).parse().expect("digits");
                (number + by).to_string().into_bytes()
            }),
            Change::Touch => value,
        }
    }
}

/// What one connection knows of its keys: what was acknowledged, and what was sent.
#[derive(Default)]
struct Client {
    values: BTreeMap<String, Vec<u8>>,
    sent: VecDeque<(String, Change)>,
}

impl Client {
    /// Sends changes and takes answers until the server is gone.
    fn work(&mut self, mut to: Connection, id: usize, rng: &mut fastrand::Rng, acks: &AtomicU32) {
        loop {
            let mut batch = Vec::new();
            for _ in 0..rng.usize(1..BATCH) {
                let number = rng.u32(..KEYS);
                // One key in four counts.
                let key = format!("{id}:{number}");
                let change = Change::any(rng, number.is_multiple_of(4));
                change.write(&key, &mut batch);
                self.sent.push_back((key, change));
            }
            if to.stream.write_all(&batch).is_err() {
                return;
            }
            while !self.sent.is_empty() {
                let Some(answer) = to.line() else { return };
                assert!(!answer.contains("ERROR"), "{answer}");
                let (key, change) = self.sent.pop_front().expect("asked");
                match change.apply(self.values.remove(&key)) {
                    Some(value) => drop(self.values.insert(key, value)),
                    None => assert!(!answer.starts_with("STORED"), "{answer}"),
                }
                acks.fetch_add(1, Relaxed);
            }
        }
    }

    /// Compares every key with what was acknowledged, or that and what was under way, in its order;
    /// goes on from what it finds.
    fn check(&mut self, to: &mut Connection, id: usize) {
        let keys: Vec<String> = (0..KEYS).map(|number| format!("{id}:{number}")).collect();
        for keys in keys.chunks(BATCH) {
            for (key, found) in keys.iter().zip(to.get_all(keys)) {
                self.check_key(key, found);
            }
        }
        self.sent.clear();
    }

    fn check_key(&mut self, key: &str, found: Option<Vec<u8>>) {
        let mut may_be = self.values.remove(key);
        let mut under_way = self.sent.iter().filter(|(of, _)| of == key);
        while may_be != found {
            let Some((_, change)) = under_way.next() else {
                panic!("{key} is {found:?}, of what it may be the last is {may_be:?}");
            };
            may_be = change.apply(may_be);
        }
        if let Some(value) = found {
            self.values.insert(key.to_owned(), value);
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_it_is_killed() {
    let dir = directory("crash");
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::default()).collect();
    let rng = &mut fastrand::Rng::with_seed(9);
    let mut acknowledged = 0;
    for round in 0..KILLS {
        let mut server = Server::start(dir.path());
        check(&mut clients, &server);
        let acks = AtomicU32::new(0);
        let last = rng.u32(1..3000);
        let connections: Vec<Connection> = clients.iter().map(|_| server.connect()).collect();
        std::thread::scope(|scope| {
            let each = clients.iter_mut().zip(connections).enumerate();
            for (id, (client, connection)) in each {
                let rng = &mut fastrand::Rng::with_seed(round * 100 + id as u64);
                let (mut rng, acks) = (rng.clone(), &acks);
                scope.spawn(move || client.work(connection, id, &mut rng, acks));
            }
            while acks.load(Relaxed) < last {
                std::thread::yield_now();
            }
            server.kill();
        });
        acknowledged += acks.load(Relaxed);
    }
    assert!(acknowledged > 100_000, "{acknowledged}");
    // Killed in a row while it looks through what it found: one request, and gone.
    for _ in 0..KILLS_AT_ONCE {
        let mut server = Server::start(dir.path());
        let mut connection = server.connect();
        connection.get("0:1");
        server.kill();
    }
    let server = Server::start(dir.path());
    check(&mut clients, &server);
    // Now it is known what became of the changes that were under way at the last kill.
    let items: usize = clients.iter().map(|client| client.values.len()).sum();
    assert!(items > 1000, "{items}");
    let mut connection = server.connect();
    while connection.stat("swept_chains") < connection.stat("swept_chains_all") {
        std::thread::yield_now();
    }
    assert_eq!(connection.stat("items") as usize, items);
    assert_eq!(connection.stat("swept_dropped"), 0);
    assert_eq!(connection.stat("evictions"), 0);
}

fn check(clients: &mut [Client], server: &Server) {
    let mut connection = server.connect();
    for (id, client) in clients.iter_mut().enumerate() {
        client.check(&mut connection, id);
    }
}

/// A stop in order keeps a warm tenant; being killed empties it.
#[test]
fn a_warm_tenant_survives_a_stop() {
    let dir = directory("warm");
    let mut server = Server::start(dir.path());
    let mut connection = server.connect();
    write!(connection.stream, "set a 0 0 1\r\nx\r\n").expect("a server");
    assert_eq!(connection.line().as_deref(), Some("STORED\r\n"));
    for signal in ["-TERM", "-USR1", "-INT"] {
        server.stop(signal);
        server = Server::start(dir.path());
        assert_eq!(
            server.connect().get("a").as_deref(),
            Some(&b"x"[..]),
            "{signal}"
        );
    }
    server.kill();
    let server = Server::start(dir.path());
    assert_eq!(server.connect().get("a"), None, "it was not stopped");
}
