//! One client: bytes in, requests cut into pieces; pieces that are done, replies out.
//!
//! A connection has buffers of its own, as many as the longest request needs, so that a client who
//! does not take its replies in holds up nobody else. What it asks is read as far as there are
//! buffers; the rest waits in its socket.
//!
//! What it never does: answer a read of which a part failed with bytes.
//!
//! *Invariants*: each request is answered once; what is in flight of a connection that has ended is
//! known by its generation and dropped.

use super::socket::Socket;
use crate::cache::{self, Cache, Outcome, Piece};
use crate::fast::Fast;
use crate::geometry::STRIPE_BYTES;
use crate::wire::handshake::{End, Export, Handshake};
use crate::wire::{Errno, Head, REQUEST_BYTES_MAX, REQUEST_HEAD_BYTES, ReplyHead, Verb, WireError};
use nyx_media::MediaError;
use nyx_media::queue::{BLOCK_BYTES, Buffer, Pool};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Buffers of a connection: the longest read at any place, and some for what is next.
const BUFFERS: u32 = REQUEST_BYTES_MAX / STRIPE_BYTES as u32 + 16;
/// Requests of a connection that are under way, at most.
const ASKS_MAX: usize = 256;
/// Replies that wait to be sent; beyond that no request is read.
const OUT_MAX: usize = 2048;
/// Bytes that are read ahead.
const INPUT_BYTES: usize = 32 << 10;
/// Requests that are begun in one turn, so that others get theirs.
const BUDGET: u32 = 64;
/// The piece of a token that is a flush.
const FLUSH: u16 = u16::MAX;
/// How long a handshake may take.
const HANDSHAKE_MOST: Duration = Duration::from_secs(10);
/// Slices of one write.
const SLICES: usize = 64;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    #[error("it left")]
    Left,
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Which piece of whose request: connection, generation, request, piece, of 16 bits each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) connection: u16,
    pub(super) generation: u16,
    ask: u16,
    piece: u16,
}

impl Token {
    pub(super) fn unpack(token: u64) -> Token {
        Token {
            connection: (token >> 48) as u16,
            generation: (token >> 32) as u16,
            ask: (token >> 16) as u16,
            piece: token as u16,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.connection) << 48
            | u64::from(self.generation) << 32
            | u64::from(self.ask) << 16
            | u64::from(self.piece)
    }
}

/// A request that is under way.
#[derive(Debug)]
struct Ask {
    head: Head,
    /// Pieces, or a flush, that are.
    outstanding: u32,
    /// All of its pieces were submitted.
    is_cut: bool,
    is_flushed: bool,
    error: Option<Errno>,
    /// What was read.
    pieces: Vec<Option<(Buffer, Range<usize>)>>,
}

/// The request that is being cut.
#[derive(Debug)]
enum Current {
    None,
    /// So many bytes of a write that is refused.
    Skip(u32),
    /// What is left of it.
    Cut {
        ask: u16,
        bytes: Range<u64>,
        piece: u16,
    },
    /// A write's next piece is being read.
    Fill {
        ask: u16,
        rest: Range<u64>,
        buffer: Buffer,
        spare: Option<Buffer>,
        at: u64,
        bytes: Range<usize>,
        filled: usize,
    },
}

#[derive(Debug)]
enum Out {
    Bytes(Vec<u8>),
    Head(ReplyHead),
    Body(Buffer, Range<usize>),
}

impl Out {
    fn bytes(&self) -> &[u8] {
        match self {
            Out::Bytes(bytes) => bytes,
            Out::Head(head) => head.bytes(),
            Out::Body(buffer, range) => &buffer[range.clone()],
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    number: u16,
    pub(super) generation: u16,
    export_bytes: u64,
    began: Instant,
    handshake: Option<Handshake>,
    is_structured: bool,
    pool: Pool,
    input: Box<[u8]>,
    ready: Range<usize>,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// It asks nothing any more and goes when all is answered.
    leaves: bool,
    current: Current,
    asks: Vec<Option<Ask>>,
    free: Vec<u16>,
    out: VecDeque<Out>,
    sent: usize,
}

impl Connection {
    pub(super) fn new(
        socket: Socket,
        number: u16,
        generation: u16,
        export: &Export,
    ) -> Result<Connection, MediaError> {
        let handshake = Handshake::new(export.clone());
        let mut hello = Vec::new();
        handshake.begin(&mut hello);
        Ok(Connection {
            socket,
            number,
            generation,
            export_bytes: export.len_bytes,
            began: Instant::now(),
            handshake: Some(handshake),
            is_structured: false,
            pool: Pool::new(BUFFERS, STRIPE_BYTES as usize)?,
            input: vec![0; INPUT_BYTES].into(),
            ready: 0..0,
            is_readable: true,
            is_writable: true,
            leaves: false,
            current: Current::None,
            asks: Vec::new(),
            free: Vec::new(),
            out: VecDeque::from([Out::Bytes(hello)]),
            sent: 0,
        })
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Whether it has not said in time what it wants.
    pub(super) fn is_late(&self) -> bool {
        self.handshake.is_some() && self.began.elapsed() > HANDSHAKE_MOST
    }

    /// Requests that are under way.
    fn under_way(&self) -> usize {
        self.asks.len() - self.free.len()
    }

    /// Asks nothing more.
    pub(super) fn hang_up(&mut self) {
        self.leaves = true;
    }

    /// Reads and submits what there is; whether anything was.
    pub(super) fn advance<F: Fast>(&mut self, cache: &mut Cache<F>) -> Result<bool, Gone> {
        let mut any = false;
        for _ in 0..BUDGET {
            if self.leaves {
                let is_idle = self.under_way() == 0 && self.out.is_empty();
                return if is_idle { Err(Gone::Left) } else { Ok(any) };
            }
            let goes_on = match std::mem::replace(&mut self.current, Current::None) {
                Current::None if self.handshake.is_some() => self.shake()?,
                Current::None => self.next_request(cache)?,
                Current::Skip(bytes) => self.skip(bytes)?,
                Current::Cut { ask, bytes, piece } => self.cut(cache, ask, bytes, piece),
                fill @ Current::Fill { .. } => self.fill(cache, fill)?,
            };
            if !goes_on {
                return Ok(any);
            }
            any = true;
        }
        Ok(any)
    }

    /// Reads from the socket behind what is there; whether anything came.
    fn read_more(&mut self) -> Result<bool, Gone> {
        if !self.is_readable {
            return Ok(false);
        }
        if self.ready.start > 0 {
            self.input.copy_within(self.ready.clone(), 0);
            self.ready = 0..self.ready.len();
        }
        let from = self.ready.end;
        let read = read_socket(
            &mut self.socket,
            &mut self.input[from..],
            &mut self.is_readable,
        )?;
        self.ready.end += read;
        Ok(read > 0)
    }

    fn shake(&mut self) -> Result<bool, Gone> {
        let mut out = Vec::new();
        let handshake = self.handshake.as_mut().expect("it is asked for");
        let (used, end) = handshake.feed(&self.input[self.ready.clone()], &mut out)?;
        self.ready.start += used;
        if !out.is_empty() {
            self.out.push_back(Out::Bytes(out));
        }
        match end {
            Some(End::Requests { is_structured }) => {
                self.is_structured = is_structured;
                self.handshake = None;
            }
            Some(End::Left) => self.leaves = true,
            None if used == 0 => return self.read_more(),
            None => {}
        }
        Ok(true)
    }

    fn next_request<F: Fast>(&mut self, cache: &mut Cache<F>) -> Result<bool, Gone> {
        if self.under_way() >= ASKS_MAX || self.out.len() >= OUT_MAX {
            return Ok(false);
        }
        let input = &self.input[self.ready.clone()];
        let Some(head) = input.first_chunk::<REQUEST_HEAD_BYTES>() else {
            return self.read_more();
        };
        let head = Head::parse(head)?;
        self.ready.start += REQUEST_HEAD_BYTES;
        if head.verb == Verb::Disconnect {
            self.leaves = true;
            return Ok(true);
        }
        if let Err(errno) = head.check(self.export_bytes) {
            self.refuse(&head, errno);
            if head.verb == Verb::Write {
                self.current = Current::Skip(head.len_bytes);
            }
            return Ok(true);
        }
        let ask = self.begin(head);
        if head.len_bytes == 0 {
            self.all_cut(cache, ask);
            return Ok(true);
        }
        self.current = Current::Cut {
            ask,
            bytes: head.at..head.at + u64::from(head.len_bytes),
            piece: 0,
        };
        Ok(true)
    }

    fn begin(&mut self, head: Head) -> u16 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.asks.push(None);
            (self.asks.len() - 1) as u16
        });
        self.asks[usize::from(number)] = Some(Ask {
            head,
            outstanding: 0,
            is_cut: false,
            is_flushed: false,
            error: None,
            pieces: Vec::new(),
        });
        number
    }

    fn ask(&mut self, number: u16) -> &mut Ask {
        self.asks[usize::from(number)]
            .as_mut()
            .expect("it is under way")
    }

    /// Drops the payload of a write that is refused.
    fn skip(&mut self, bytes: u32) -> Result<bool, Gone> {
        let there = self.ready.len().min(bytes as usize);
        self.ready.start += there;
        let rest = bytes - there as u32;
        if rest == 0 {
            return Ok(true);
        }
        self.current = Current::Skip(rest);
        self.read_more()
    }

    /// Submits the next pieces of a request, as far as there are buffers; whether it goes on.
    fn cut<F: Fast>(
        &mut self,
        cache: &mut Cache<F>,
        ask: u16,
        bytes: Range<u64>,
        piece: u16,
    ) -> bool {
        let head = self.ask(ask).head;
        let stripe_end = (bytes.start / STRIPE_BYTES + 1) * STRIPE_BYTES;
        let end = bytes.end.min(stripe_end);
        let is_whole = bytes.start.is_multiple_of(BLOCK_BYTES) && end.is_multiple_of(BLOCK_BYTES);
        let needed = match head.verb {
            // A read keeps all of its buffers until it is answered.
            Verb::Read => (bytes.end - 1) / STRIPE_BYTES - bytes.start / STRIPE_BYTES + 1,
            _ if is_whole => 1,
            _ => 2,
        };
        if (self.pool.free() as u64) < needed {
            self.current = Current::Cut { ask, bytes, piece };
            return false;
        }
        let mut buffer = self.pool.take().expect("counted");
        let takes_spare = !matches!(head.verb, Verb::Read | Verb::Cache) && !is_whole;
        let spare = takes_spare.then(|| self.pool.take().expect("counted"));
        let at = bytes.start;
        let begin = (at % STRIPE_BYTES) as usize;
        let range = begin..begin + (end - at) as usize;
        let rest = end..bytes.end;
        let verb = match head.verb {
            Verb::Write => {
                self.current = Current::Fill {
                    ask,
                    rest,
                    buffer,
                    spare,
                    at,
                    bytes: range,
                    filled: 0,
                };
                return true;
            }
            Verb::Read => {
                self.ask(ask).pieces.push(None);
                cache::Verb::Read
            }
            Verb::Cache => cache::Verb::Read,
            // What is trimmed in parts of blocks keeps these.
            Verb::Trim if !is_whole => {
                self.go_on(cache, ask, rest, piece);
                return true;
            }
            _ if is_whole && !head.no_hole => cache::Verb::Zero,
            _ => {
                buffer[range.clone()].fill(0);
                cache::Verb::Write
            }
        };
        self.submit(
            cache,
            ask,
            piece,
            verb,
            at,
            range.len() as u64,
            buffer,
            spare,
        );
        self.go_on(cache, ask, rest, piece.saturating_add(1));
        true
    }

    /// What is next of a request.
    fn go_on<F: Fast>(&mut self, cache: &mut Cache<F>, ask: u16, rest: Range<u64>, piece: u16) {
        if rest.is_empty() {
            return self.all_cut(cache, ask);
        }
        let bytes = rest;
        self.current = Current::Cut { ask, bytes, piece };
    }

    #[allow(clippy::too_many_arguments, reason = "a piece is that much")]
    fn submit<F: Fast>(
        &mut self,
        cache: &mut Cache<F>,
        ask: u16,
        piece: u16,
        verb: cache::Verb,
        at: u64,
        len_bytes: u64,
        buffer: Buffer,
        spare: Option<Buffer>,
    ) {
        self.ask(ask).outstanding += 1;
        // Only reads are told apart by their pieces.
        let piece = piece.min(FLUSH - 1);
        let token = self.token(ask, piece);
        cache.submit(Piece {
            token,
            verb,
            at,
            len_bytes,
            buffer,
            spare,
        });
    }

    fn token(&self, ask: u16, piece: u16) -> u64 {
        Token {
            connection: self.number,
            generation: self.generation,
            ask,
            piece,
        }
        .pack()
    }

    /// Reads a write's piece, and submits it when it is there.
    fn fill<F: Fast>(&mut self, cache: &mut Cache<F>, fill: Current) -> Result<bool, Gone> {
        let Current::Fill {
            ask,
            rest,
            mut buffer,
            spare,
            at,
            bytes,
            mut filled,
        } = fill
        else {
            unreachable!("it is asked for a piece")
        };
        let there = self.ready.len().min(bytes.len() - filled);
        let from = self.ready.start;
        let begin = bytes.start + filled;
        buffer[begin..begin + there].copy_from_slice(&self.input[from..from + there]);
        self.ready.start += there;
        filled += there;
        while filled < bytes.len() && self.is_readable {
            let into = &mut buffer[bytes.start + filled..bytes.end];
            filled += read_socket(&mut self.socket, into, &mut self.is_readable)?;
        }
        if filled < bytes.len() {
            self.current = Current::Fill {
                ask,
                rest,
                buffer,
                spare,
                at,
                bytes,
                filled,
            };
            return Ok(false);
        }
        let len_bytes = bytes.len() as u64;
        self.submit(
            cache,
            ask,
            0,
            cache::Verb::Write,
            at,
            len_bytes,
            buffer,
            spare,
        );
        self.go_on(cache, ask, rest, 0);
        Ok(true)
    }

    fn all_cut<F: Fast>(&mut self, cache: &mut Cache<F>, number: u16) {
        let ask = self.ask(number);
        ask.is_cut = true;
        if ask.outstanding == 0 {
            self.conclude(cache, number);
        }
    }

    /// A piece, or a flush, is over.
    pub(super) fn settle<F: Fast>(&mut self, cache: &mut Cache<F>, outcome: Outcome) {
        let Token {
            ask: number, piece, ..
        } = Token::unpack(outcome.token);
        let ask = self.ask(number);
        ask.outstanding -= 1;
        match outcome.result {
            Err(refusal) => ask.error = Some(refusal.into()),
            Ok(()) if piece == FLUSH => ask.is_flushed = true,
            Ok(()) => {}
        }
        if ask.head.verb == Verb::Read && piece != FLUSH {
            let buffer = outcome.buffer.expect("a piece has one");
            let (begin, end) = (ask.head.at, ask.head.at + u64::from(ask.head.len_bytes));
            let stripe = begin / STRIPE_BYTES + u64::from(piece);
            let from = begin.max(stripe * STRIPE_BYTES) - stripe * STRIPE_BYTES;
            let to = end.min((stripe + 1) * STRIPE_BYTES) - stripe * STRIPE_BYTES;
            ask.pieces[usize::from(piece)] = Some((buffer, from as usize..to as usize));
        }
        if ask.outstanding == 0 && ask.is_cut {
            self.conclude(cache, number);
        }
    }

    /// Everything of a request is done: it is flushed where that is asked, and answered.
    fn conclude<F: Fast>(&mut self, cache: &mut Cache<F>, number: u16) {
        let ask = self.ask(number);
        let head = ask.head;
        let writes = matches!(head.verb, Verb::Write | Verb::WriteZeroes | Verb::Trim);
        let is_durable = head.verb == Verb::Flush || (head.is_durable && writes);
        if is_durable && !ask.is_flushed && ask.error.is_none() {
            ask.outstanding = 1;
            return cache.flush(self.token(number, FLUSH));
        }
        let ask = self.asks[usize::from(number)].take();
        let ask = ask.expect("it is under way");
        self.free.push(number);
        if let Some(errno) = ask.error {
            return self.refuse(&head, errno);
        }
        let is_read = head.verb == Verb::Read;
        self.out
            .push_back(Out::Head(match is_read && self.is_structured {
                true => ReplyHead::data(head.cookie, head.at, head.len_bytes),
                false => ReplyHead::simple(head.cookie, Ok(())),
            }));
        for (buffer, range) in ask.pieces.into_iter().flatten() {
            self.out.push_back(Out::Body(buffer, range));
        }
    }

    fn refuse(&mut self, head: &Head, errno: Errno) {
        let is_structured = self.is_structured && head.verb == Verb::Read;
        self.out.push_back(Out::Head(match is_structured {
            true => ReplyHead::refused(head.cookie, errno),
            false => ReplyHead::simple(head.cookie, Err(errno)),
        }));
    }

    /// Sends what the socket takes; whether anything.
    pub(super) fn send(&mut self) -> Result<bool, Gone> {
        let mut any = false;
        while self.is_writable && !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, out) in slices.iter_mut().zip(&self.out) {
                let skipped = if count == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&out.bytes()[skipped..]);
                count += 1;
            }
            match self.socket.write(&slices[..count]) {
                Ok(0) => return Err(Gone::Left),
                Ok(sent) => {
                    any = true;
                    self.sent += sent;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(out) = self.out.front()
                && self.sent >= out.bytes().len()
            {
                self.sent -= out.bytes().len();
                self.out.pop_front();
            }
        }
        Ok(any)
    }
}

/// What a socket has now; it is not readable any more where that is nothing.
fn read_socket(
    socket: &mut Socket,
    into: &mut [u8],
    is_readable: &mut bool,
) -> Result<usize, Gone> {
    loop {
        match socket.read(into) {
            Ok(0) => return Err(Gone::Left),
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                *is_readable = false;
                return Ok(0);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
