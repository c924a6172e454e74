//! The price of an access: device time, `1/MaxIOPS(op, size)`, in steps of 64 B to 4 KiB (NyxCache
//! section 3.3). Larger accesses are charged as 4 KiB chunks and a rest, because the device is at
//! its maximum bandwidth from 4 KiB on.

use nyx_base::DevicePs;
use nyx_media::Op;

/// Sizes are priced in steps of this many bytes.
pub const STEP_BYTES: usize = 64;
/// The largest size with a price of its own.
pub const CHUNK_BYTES: usize = 4096;
/// How many sizes have a price.
pub const STEPS: usize = CHUNK_BYTES / STEP_BYTES;
/// The size of a standard operation, the unit in which people state limits: one random read of
/// 1 KiB of this device.
pub const STANDARD_BYTES: usize = 1024;

/// Prices of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    read: [DevicePs; STEPS],
    write: [DevicePs; STEPS],
}

impl CostTable {
    /// A table from `MaxIOPS` of random reads and writes; entry `i` is for `(i + 1) * 64` bytes.
    ///
    /// Panics where a rate is not positive and finite: profiles are validated when they are read.
    pub fn from_max_iops(read: &[f64; STEPS], write: &[f64; STEPS]) -> CostTable {
        CostTable {
            read: read.map(DevicePs::of_max_iops),
            write: write.map(DevicePs::of_max_iops),
        }
    }

    /// A table that charges by bytes alone: what a bandwidth limit believes. The `bytes` baseline.
    pub fn by_bytes(bytes_per_s: f64) -> CostTable {
        let prices = std::array::from_fn(|i| {
            DevicePs::of_max_iops(bytes_per_s / ((i + 1) * STEP_BYTES) as f64)
        });
        CostTable {
            read: prices,
            write: prices,
        }
    }

    /// A table without prices, where nothing is limited: accounts count operations and bytes, and
    /// no device time.
    pub fn unpriced() -> CostTable {
        CostTable {
            read: [DevicePs::ZERO; STEPS],
            write: [DevicePs::ZERO; STEPS],
        }
    }

    /// What one access of `len` bytes costs. Nothing for an empty one.
    #[inline]
    pub fn price(&self, op: Op, len: usize) -> DevicePs {
        let prices = match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
        };
        if len == 0 {
            return DevicePs::ZERO;
        }
        if len <= CHUNK_BYTES {
            return prices[(len - 1) / STEP_BYTES];
        }
        let chunks = (len / CHUNK_BYTES) as u64;
        let whole = DevicePs(prices[STEPS - 1].0 * chunks);
        match len % CHUNK_BYTES {
            0 => whole,
            rest => whole + prices[(rest - 1) / STEP_BYTES],
        }
    }

    /// What one standard operation costs.
    pub fn standard(&self) -> DevicePs {
        self.price(Op::Read, STANDARD_BYTES)
    }

    /// How many standard operations the device does in a second at most; zero where it is unpriced.
    pub fn standard_ops_per_s(&self) -> u64 {
        DevicePs::SECOND
            .0
            .checked_div(self.standard().0)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> CostTable {
        let read = std::array::from_fn(|i| 1e6 / (i + 1) as f64);
        let write = std::array::from_fn(|i| 1e5 / (i + 1) as f64);
        CostTable::from_max_iops(&read, &write)
    }

    #[test]
    fn a_size_pays_the_step_that_holds_it() {
        let t = table();
        assert_eq!(t.price(Op::Read, 0), DevicePs(0));
        assert_eq!(t.price(Op::Read, 1), DevicePs(1_000_000));
        assert_eq!(t.price(Op::Read, 64), DevicePs(1_000_000));
        assert_eq!(t.price(Op::Read, 65), DevicePs(2_000_000));
        assert_eq!(t.price(Op::Write, 4096), DevicePs(640_000_000));
    }

    #[test]
    fn beyond_4_kib_chunks_and_the_rest_are_charged() {
        let t = table();
        let chunk = t.price(Op::Read, 4096);
        assert_eq!(t.price(Op::Read, 8192), DevicePs(2 * chunk.0));
        assert_eq!(
            t.price(Op::Read, 8193),
            DevicePs(2 * chunk.0) + t.price(Op::Read, 1)
        );
    }

    #[test]
    fn the_bytes_baseline_does_not_tell_a_write_from_a_read() {
        let t = CostTable::by_bytes(12e9);
        assert_eq!(t.price(Op::Read, 1024), t.price(Op::Write, 1024));
        assert_eq!(t.price(Op::Read, 4096).0, 4 * t.price(Op::Read, 1024).0 + 1);
    }
}
