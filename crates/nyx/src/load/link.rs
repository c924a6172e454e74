//! One connection: its buffers, and the requests that have no reply yet.
//!
//! What it never does: decide what to ask, look at a clock, or block.

use super::LoadError;
use super::address::{Address, Socket};
use super::wire::{self, Answer, Refusal};
use nyx_proto::response::{self, Kind, Parse};
use std::collections::VecDeque;
use std::io;

/// The first size of the input buffer, in bytes. It grows to the largest reply.
const INPUT_BYTES: usize = 64 << 10;
/// How much of a reply that is not understood is shown, in bytes.
const REPLY_SHOWN_BYTES: usize = 80;

/// A kind of request, by what a client does about the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Read one or several keys.
    Get,
    /// Store a value because the workload says so.
    Set,
    /// Store a value because a read missed.
    Fill,
    /// Forget a key.
    Delete,
    /// Add to a number.
    Incr,
    /// Give a new time to live.
    Touch,
    /// Store a key that is not there yet.
    Insert,
    /// Read keys in their order.
    Scan,
    /// Read a key that is written next.
    Look,
    /// Store what was read before.
    Rmw,
}

/// The names of [`Ask`]s in tables and JSON, in their order.
pub(crate) const ASKS: [&str; 10] = [
    "get", "set", "fill", "delete", "incr", "touch", "insert", "scan", "look", "rmw",
];

/// A request that has no reply yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Its kind.
    pub(crate) ask: Ask,
    /// How many keys it still waits for; those after the first are in [`Pending`]. Of a scan, how
    /// many it has room for.
    pub(crate) keys: u16,
    /// The first of them; of a scan, the least that may come next.
    pub(crate) key: u64,
    /// The length of that key, in bytes.
    pub(crate) key_len: u16,
    /// The length of a hit's value where it is known, in bytes.
    pub(crate) value_len: u32,
    /// When it was due, in nanoseconds of the generator's clock.
    pub(crate) since_ns: u64,
}

/// What became of one key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// Read; the data, unless it was skipped by its known length.
    Hit(Option<&'a [u8]>),
    /// Stored, deleted, touched, counted.
    Done,
    /// There was no such key.
    Miss,
    /// The server answered an error.
    Refused(Refusal),
}

/// How to treat replies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Length of the prefix of every key, in bytes.
    pub(crate) prefix_len: usize,
    /// Whether hits are handed on with their data, instead of being skipped by their length.
    pub(crate) with_data: bool,
}

/// Who is told what the replies say.
pub(crate) trait Sink {
    /// Bytes have arrived; what they say follows.
    fn arrived(&mut self);

    /// What became of one key.
    fn key(&mut self, asked: &Asked, key: u64, outcome: Outcome<'_>);

    /// A whole reply is there.
    fn reply(&mut self, asked: &Asked);

    /// The reply to a scan is over before it has all that it may: it is to go on at its key. Only
    /// who scans is told.
    fn more(&mut self, _asked: &Asked) {}
}

/// Requests without a reply, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    asked: VecDeque<Asked>,
    /// The second and further keys of the `get`s among them, in order.
    keys: VecDeque<u64>,
}

impl Pending {
    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// When the oldest request was due, in nanoseconds.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.asked.front().map(|asked| asked.since_ns)
    }

    /// Whether every request has its reply.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Notes a request that was written to [`Link::out`].
    #[inline]
    pub(crate) fn push(&mut self, asked: Asked) {
        self.asked.push_back(asked);
    }

    /// Notes a further key of the `get` that was pushed last.
    #[inline]
    pub(crate) fn push_key(&mut self, key: u64) {
        self.keys.push_back(key);
    }

    /// Whether a `get` of `key` alone has no reply yet.
    pub(crate) fn reads(&self, key: u64) -> bool {
        self.asked
            .iter()
            .any(|asked| asked.ask == Ask::Get && asked.key == key)
    }

    /// Takes the next key of the oldest `get`.
    fn next_key(&mut self) -> Option<u64> {
        let front = self.asked.front_mut().filter(|front| front.keys > 0)?;
        let key = front.key;
        front.keys -= 1;
        if front.keys > 0 {
            front.key = self.keys.pop_front().unwrap_or_default();
        }
        Some(key)
    }

    /// A value for `key` came: the keys before it were misses. False where it was not asked for.
    fn value(&mut self, key: u64, data: &[u8], sink: &mut impl Sink) -> bool {
        let Some(asked) = self.asked.front().copied() else {
            return false;
        };
        match asked.ask {
            Ask::Get | Ask::Look => {}
            Ask::Scan => return self.item(key, data, sink),
            _ => return false,
        }
        while let Some(next) = self.next_key() {
            if next == key {
                sink.key(&asked, key, Outcome::Hit(Some(data)));
                return true;
            }
            sink.key(&asked, next, Outcome::Miss);
        }
        false
    }

    /// The oldest request, a scan, gave the item `key`. False where it has all already.
    fn item(&mut self, key: u64, data: &[u8], sink: &mut impl Sink) -> bool {
        let Some(scan) = self.asked.front_mut().filter(|scan| scan.keys > 0) else {
            return false;
        };
        sink.key(scan, key, Outcome::Hit(Some(data)));
        scan.keys -= 1;
        scan.key = key.saturating_add(1);
        true
    }

    /// The reply to the oldest request, a scan, is over. False where `answer` is none to it.
    fn scanned(&mut self, mut scan: Asked, answer: Answer, sink: &mut impl Sink) -> bool {
        match answer {
            Answer::More(key) if scan.keys > 0 => {
                scan.key = key.saturating_add(1);
                sink.more(&scan);
            }
            Answer::End | Answer::More(_) => sink.reply(&scan),
            Answer::Refused(refusal) => {
                sink.key(&scan, scan.key, Outcome::Refused(refusal));
                sink.reply(&scan);
            }
            Answer::Done | Answer::Not => return false,
        }
        self.asked.pop_front();
        true
    }

    /// The reply to the oldest request is over. False where `answer` is none to such a request.
    fn answer(&mut self, answer: Answer, sink: &mut impl Sink) -> bool {
        let Some(asked) = self.asked.front().copied() else {
            return false;
        };
        let outcome = match (asked.ask, answer) {
            (Ask::Scan, _) => return self.scanned(asked, answer, sink),
            (_, Answer::Refused(refusal)) => Outcome::Refused(refusal),
            (Ask::Get | Ask::Look, Answer::End) => Outcome::Miss,
            (Ask::Get | Ask::Look, _) | (_, Answer::End | Answer::More(_)) => return false,
            (_, Answer::Done) => Outcome::Done,
            (_, Answer::Not) => Outcome::Miss,
        };
        while let Some(key) = self.next_key() {
            sink.key(&asked, key, outcome);
        }
        sink.reply(&asked);
        self.asked.pop_front();
        true
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    address: Address,
    /// What is to be sent; `sent` bytes of it are.
    pub(crate) out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// The unread part of `input`.
    start: usize,
    end: usize,
    /// What has been asked.
    pub(crate) pending: Pending,
}

impl Link {
    /// A fresh connection to `address`.
    pub(crate) fn new(socket: Socket, address: Address) -> Link {
        Link {
            socket,
            address,
            out: Vec::with_capacity(16 << 10),
            sent: 0,
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            pending: Pending::default(),
        }
    }

    /// The socket, to register it.
    pub(crate) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Where it leads.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends what is to be sent, as far as it goes; the rest follows when the socket is writable.
    /// Gives the number of bytes that went.
    pub(crate) fn flush(&mut self) -> Result<usize, LoadError> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(self.sent - before),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
        let went = self.sent - before;
        self.out.clear();
        self.sent = 0;
        Ok(went)
    }

    /// Reads replies until the socket is empty or nothing is outstanding; where the other side is
    /// `closing`, to the very end, since no further event will tell of it. Gives the number of
    /// bytes read.
    pub(crate) fn receive(
        &mut self,
        reading: Reading,
        closing: bool,
        sink: &mut impl Sink,
    ) -> Result<usize, LoadError> {
        let mut bytes = 0;
        loop {
            let room = self.input.len() - self.end;
            match self.socket.read(&mut self.input[self.end..]) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => {
                    self.end += n;
                    bytes += n;
                    sink.arrived();
                    self.digest(reading, sink)?;
                    // A short read has emptied the socket: what comes later is a new event.
                    if !closing && (n < room || self.pending.is_empty()) {
                        return Ok(bytes);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(bytes),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
    }

    /// Takes all whole replies out of the input.
    fn digest(&mut self, reading: Reading, sink: &mut impl Sink) -> Result<(), LoadError> {
        while self.start < self.end {
            let input = &self.input[self.start..self.end];
            let Some(front) = self.pending.asked.front() else {
                return Err(self.foreign());
            };
            if front.ask == Ask::Get && front.keys == 1 && !reading.with_data {
                let key_len = usize::from(front.key_len);
                if let Some(used) = wire::known_hit(input, key_len, front.value_len) {
                    sink.key(front, front.key, Outcome::Hit(None));
                    sink.reply(front);
                    self.pending.asked.pop_front();
                    self.start += used;
                    continue;
                }
            }
            let (response, used) = match response::parse(input) {
                Parse::Done { response, used } => (response, used),
                Parse::Need { at_least } => {
                    self.make_room(at_least);
                    return Ok(());
                }
                Parse::Bad => return Err(self.foreign()),
            };
            let understood = match response.kind {
                Kind::Value { .. } => wire::key_number(response.rest, reading.prefix_len)
                    .is_some_and(|key| self.pending.value(key, response.data, sink)),
                Kind::More => wire::key_number(response.rest, reading.prefix_len)
                    .is_some_and(|key| self.pending.answer(Answer::More(key), sink)),
                _ => wire::answer(&response).is_some_and(|a| self.pending.answer(a, sink)),
            };
            if !understood {
                return Err(self.foreign());
            }
            self.start += used;
        }
        self.start = 0;
        self.end = 0;
        Ok(())
    }

    /// Makes `bytes` from `start` on fit into the input buffer, with room to read on.
    fn make_room(&mut self, bytes: usize) {
        if self.start > 0 && (self.end == self.input.len() || bytes > self.input.len() - self.start)
        {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if bytes > self.input.len() || self.end == self.input.len() {
            self.input
                .resize(bytes.next_power_of_two().max(2 * INPUT_BYTES), 0);
        }
    }

    fn closed(&self) -> LoadError {
        LoadError::Closed {
            address: self.address.clone(),
            outstanding: self.pending.len(),
        }
    }

    fn broken(&self, source: io::Error) -> LoadError {
        let outstanding = self.pending.len();
        LoadError::Broken {
            address: self.address.clone(),
            outstanding,
            source,
        }
    }

    fn foreign(&self) -> LoadError {
        let shown = &self.input[self.start..self.end.min(self.start + REPLY_SHOWN_BYTES)];
        LoadError::Protocol {
            address: self.address.clone(),
            what: self
                .pending
                .asked
                .front()
                .map_or("nothing", |a| ASKS[a.ask as usize]),
            reply: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}
