//! A connection's output: bytes that wait to be written to its socket.
//!
//! All of its capacity is initialised all the time, so that a value can be read from a medium
//! straight into it by safe code. What it never does: scan, or copy byte by byte.

/// A growable queue of bytes: appended at the end, consumed from the front.
#[derive(Debug, Default)]
pub struct Out {
    /// Initialised through and through; its length is the capacity of the queue.
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

/// The first allocation in bytes.
const CAPACITY_MIN: usize = 4 << 10;
/// An empty buffer larger than this gives its memory back.
const CAPACITY_IDLE_MAX: usize = 256 << 10;

impl Out {
    /// An empty queue without memory.
    pub const fn new() -> Out {
        Out {
            buf: Vec::new(),
            start: 0,
            end: 0,
        }
    }

    /// Appends `n` bytes for the caller to fill. Until then they hold old output.
    #[inline]
    pub fn space(&mut self, n: usize) -> &mut [u8] {
        if self.buf.len() - self.end < n {
            self.grow(n);
        }
        let from = self.end;
        self.end += n;
        &mut self.buf[from..from + n]
    }

    /// Appends `bytes`.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends one byte.
    #[inline]
    pub fn put_byte(&mut self, byte: u8) {
        self.space(1)[0] = byte;
    }

    /// Appends a number in decimal.
    #[inline]
    pub fn put_number(&mut self, number: u64) {
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }

    /// How many bytes are pending: a place to [`truncate`](Out::truncate) to. It stays good until
    /// the next [`consume`](Out::consume).
    #[inline]
    pub fn mark(&self) -> usize {
        self.end - self.start
    }

    /// Takes back everything behind `mark`. A mark that is not behind the end changes nothing.
    #[inline]
    pub fn truncate(&mut self, mark: usize) {
        self.end = self.end.min(self.start + mark);
    }

    /// The bytes that wait, oldest first.
    #[inline]
    pub fn pending(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// How many bytes wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// How many bytes of memory it holds.
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Drops the first `n` pending bytes: they were written. An emptied buffer that has grown large
    /// gives its memory back.
    ///
    /// Panics where fewer than `n` bytes are pending.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        assert!(
            n <= self.len(),
            "{n} bytes consumed of {} pending",
            self.len()
        );
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.buf.len() > CAPACITY_IDLE_MAX {
                self.buf = Vec::new();
            }
        }
    }

    /// Makes room for `n` more bytes: moves what is pending to the front, into twice the memory
    /// where it would still be more than half full.
    #[cold]
    fn grow(&mut self, n: usize) {
        let pending = self.len();
        let wanted = pending + n;
        if wanted > self.buf.len() / 2 {
            let capacity = wanted
                .next_power_of_two()
                .max(self.buf.len() * 2)
                .max(CAPACITY_MIN);
            // Fresh zeroed memory: the allocator has large blocks of it at no cost.
            let mut larger = vec![0; capacity];
            larger[..pending].copy_from_slice(self.pending());
            self.buf = larger;
        } else {
            self.buf.copy_within(self.start..self.end, 0);
        }
        self.start = 0;
        self.end = pending;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Put(Vec<u8>),
        Number(u64),
        Truncate(usize),
        Consume(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..6000).prop_map(Op::Put),
            any::<u64>().prop_map(Op::Number),
            any::<usize>().prop_map(Op::Truncate),
            any::<usize>().prop_map(Op::Consume),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_queue_of_bytes(ops in prop::collection::vec(op(), 1..60)) {
            let mut out = Out::new();
            let mut model = Vec::new();
            for op in ops {
                match op {
                    Op::Put(bytes) => {
                        out.put(&bytes);
                        model.extend_from_slice(&bytes);
                    }
                    Op::Number(number) => {
                        out.put_number(number);
                        model.extend_from_slice(number.to_string().as_bytes());
                    }
                    Op::Truncate(at) => {
                        let mark = at % (out.mark() + 1);
                        out.truncate(mark);
                        model.truncate(mark);
                    }
                    Op::Consume(n) => {
                        let n = n % (out.len() + 1);
                        out.consume(n);
                        model.drain(..n);
                    }
                }
                prop_assert_eq!(out.pending(), &model[..]);
                prop_assert_eq!(out.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn memory_follows_what_is_pending() {
        let mut out = Out::new();
        assert_eq!(out.capacity(), 0);
        out.put(b"a");
        assert_eq!(out.capacity(), CAPACITY_MIN);
        // A connection that is read as fast as it is written to never grows.
        for _ in 0..10_000 {
            out.put(&[b'x'; 100]);
            out.consume(100);
        }
        assert_eq!(out.capacity(), CAPACITY_MIN);
        out.space(CAPACITY_IDLE_MAX).fill(b'y');
        assert_eq!(out.capacity(), CAPACITY_IDLE_MAX * 2);
        out.consume(out.len());
        assert_eq!(
            out.capacity(),
            0,
            "an idle connection gives its memory back"
        );
    }

    #[test]
    fn what_is_taken_back_was_never_there() {
        let mut out = Out::new();
        out.put(b"VALUE");
        let mark = out.mark();
        out.space(100).fill(0);
        out.truncate(mark);
        out.put(b" k");
        assert_eq!(out.pending(), b"VALUE k");
        out.truncate(100);
        assert_eq!(out.pending(), b"VALUE k");
    }

    #[test]
    #[should_panic(expected = "8 bytes consumed of 7 pending")]
    fn more_than_is_pending_cannot_be_consumed() {
        let mut out = Out::new();
        out.put(b"1234567");
        out.consume(8);
    }
}
