//! What a (tenant, worker, device) has used: counters that the worker writes without a lock and the
//! controller adds up when it looks (NyxCache section 3.3: per thread, "only lazily combined").

use nyx_base::{Counter, DevicePs};
use nyx_media::Op;
use std::ops::{Add, Sub};

/// The counters of one (tenant, worker, device). *Thread safety*: one writer, many readers.
#[derive(Debug, Default)]
pub struct Account {
    pub(crate) read_ps: Counter,
    pub(crate) write_ps: Counter,
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) holds: Counter,
}

/// A reading of one account, or the sum of several. Counts wrap; differences survive that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Device time charged for reads.
    pub read_used: DevicePs,
    /// Device time charged for writes.
    pub write_used: DevicePs,
    /// Accesses that read.
    pub reads: u64,
    /// Accesses that wrote.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How often the gate was found closed.
    pub holds: u64,
}

impl Account {
    /// Adds accesses that took so much device time.
    #[inline]
    pub(crate) fn add(&self, op: Op, price_ps: u64, accesses: u64, bytes: u64) {
        match op {
            Op::Read => {
                self.read_ps.add(price_ps);
                self.reads.add(accesses);
                self.read_bytes.add(bytes);
            }
            Op::Write => {
                self.write_ps.add(price_ps);
                self.writes.add(accesses);
                self.written_bytes.add(bytes);
            }
        }
    }

    /// The counters as they stand, each possibly a little older than the next.
    pub fn usage(&self) -> Usage {
        Usage {
            read_used: DevicePs(self.read_ps.get()),
            write_used: DevicePs(self.write_ps.get()),
            reads: self.reads.get(),
            writes: self.writes.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            holds: self.holds.get(),
        }
    }
}

impl Usage {
    /// All device time charged. It wraps as its parts do.
    pub fn used(&self) -> DevicePs {
        DevicePs(self.read_used.0.wrapping_add(self.write_used.0))
    }

    fn zip(self, other: Usage, f: impl Fn(u64, u64) -> u64) -> Usage {
        Usage {
            read_used: DevicePs(f(self.read_used.0, other.read_used.0)),
            write_used: DevicePs(f(self.write_used.0, other.write_used.0)),
            reads: f(self.reads, other.reads),
            writes: f(self.writes, other.writes),
            read_bytes: f(self.read_bytes, other.read_bytes),
            written_bytes: f(self.written_bytes, other.written_bytes),
            holds: f(self.holds, other.holds),
        }
    }
}

impl Add for Usage {
    type Output = Usage;
    fn add(self, other: Usage) -> Usage {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for Usage {
    type Output = Usage;
    fn sub(self, other: Usage) -> Usage {
        self.zip(other, u64::wrapping_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_at_most_one_cache_line() {
        assert!(size_of::<Account>() <= 64);
        // Padded, so that two workers never write to one line, or to two that are fetched together.
        assert_eq!(size_of::<nyx_base::CachePadded<Account>>(), 128);
    }
}
