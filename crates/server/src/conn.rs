//! A connection and its input buffer.
//!
//! An idle connection owns no buffer: input and output buffers belong to the worker's pool and are
//! lent for as long as bytes wait in them, so that ten thousand idle clients cost their sockets.

use crate::listen::Stream;
use nyx_base::Instant;
use nyx_engine::Session;
use nyx_proto::{Limits, Out};

/// The capacity in bytes of an input buffer as the pool keeps it. Longer requests grow their own.
pub(crate) const INPUT_BYTES: usize = 16 << 10;

/// Bytes read and not yet executed.
pub(crate) struct Input {
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn new() -> Input {
        Input {
            buf: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn is_pool_sized(&self) -> bool {
        self.buf.len() == INPUT_BYTES
    }

    /// Drops what was executed. What is left moves to the front only when there is no room behind
    /// it (see [`Input::room`]).
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start >= self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Room to read into, at least enough that `need` bytes fit in all.
    pub(crate) fn room(&mut self, need: usize) -> &mut [u8] {
        let held = self.end - self.start;
        if self.start > 0 && (self.buf.len() - self.start < need || self.end == self.buf.len()) {
            self.buf.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = held;
        }
        if self.buf.len() - self.start < need {
            self.buf.resize(self.start + need, 0);
        }
        &mut self.buf[self.end..]
    }

    /// Counts `n` bytes of the room as read.
    pub(crate) fn filled(&mut self, n: usize) {
        self.end += n;
    }
}

/// A client's connection.
pub(crate) struct Conn {
    pub(crate) stream: Stream,
    pub(crate) session: Session,
    /// What the parser accepts from it.
    pub(crate) limits: Limits,
    /// Unexecuted input, where there is any.
    pub(crate) input: Option<Input>,
    /// Output that the socket did not take, or that may not be sent yet, where there is any.
    pub(crate) out: Option<Out>,
    /// Its output tells of changes that are not durable.
    pub(crate) unsettled: bool,
    /// How many bytes of input are needed before parsing pays.
    pub(crate) need: usize,
    /// How many bytes of an oversized request are still to be dropped.
    pub(crate) swallow: usize,
    /// The socket may have bytes for us.
    pub(crate) readable: bool,
    /// It is on the ready list already.
    pub(crate) queued: bool,
    /// Its tenant must wait, or what it needs is on its way: it is in one of the queues for that.
    pub(crate) held: bool,
    /// It was held and had its turn again since.
    pub(crate) released: bool,
    /// The client sends no more, but there may be bytes of it to read.
    pub(crate) ending: bool,
    /// All that the client sent is read.
    pub(crate) eof: bool,
    /// Close as soon as the output is written.
    pub(crate) closing: bool,
    /// Since when its first request has been held, if it has.
    pub(crate) held_since: Option<Instant>,
    /// When bytes last came from the client or went to it.
    pub(crate) stirred: Instant,
}

impl Conn {
    pub(crate) fn new(stream: Stream, session: Session, limits: Limits, now: Instant) -> Conn {
        Conn {
            stream,
            session,
            limits,
            input: None,
            out: None,
            unsettled: false,
            need: 0,
            swallow: 0,
            readable: true,
            queued: false,
            held: false,
            released: false,
            ending: false,
            eof: false,
            closing: false,
            held_since: None,
            stirred: now,
        }
    }
}

/// Buffers that are not lent at the moment.
#[derive(Default)]
pub(crate) struct Pool {
    inputs: Vec<Input>,
    outs: Vec<Out>,
}

/// How many spare buffers of each kind a worker keeps.
const SPARE_MAX: usize = 128;

impl Pool {
    pub(crate) fn input(&mut self) -> Input {
        self.inputs.pop().unwrap_or_else(Input::new)
    }

    pub(crate) fn out(&mut self) -> Out {
        self.outs.pop().unwrap_or_default()
    }

    pub(crate) fn take_input(&mut self, input: Input) {
        debug_assert!(input.is_empty());
        if input.is_pool_sized() && self.inputs.len() < SPARE_MAX {
            self.inputs.push(input);
        }
    }

    pub(crate) fn take_out(&mut self, out: Out) {
        debug_assert!(out.is_empty());
        if self.outs.len() < SPARE_MAX {
            self.outs.push(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_moves_what_is_left_to_the_front_and_grows_for_long_requests() {
        let mut input = Input::new();
        let n = input.room(0).len();
        assert_eq!(n, INPUT_BYTES);
        input.room(0)[n - 3..].copy_from_slice(b"abc");
        input.filled(n);
        input.consume(n - 3);
        assert_eq!(input.bytes(), b"abc");
        assert_eq!(input.room(0).len(), INPUT_BYTES - 3);
        assert_eq!(input.bytes(), b"abc");
        assert!(input.room(100_000).len() >= 100_000 - 3);
        assert_eq!(input.bytes(), b"abc");
        assert!(!input.is_pool_sized());
        input.consume(3);
        assert!(input.is_empty());
    }
}
