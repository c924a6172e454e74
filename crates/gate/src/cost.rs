//! The price of an access: device time, `1/MaxIOPS(op, size)`, in steps of 64 B to 4 KiB (NyxCache
//! section 3.3). Larger accesses are charged as 4 KiB chunks and a rest, because the device is at
//! its maximum bandwidth from 4 KiB on; a device of blocks is not, and says what further chunks
//! cost.
//!
//! Beside it stands the *latency price* of device time: how much more than a device second of 1 KiB
//! reads one of these operations hurts others' latency. Device time weighted so is *harm*. Limits
//! and shares count device time; who is looked at when a latency target is missed goes by harm.
//!
//! What it never does: weigh an access when it is made. Harm is worked out of what accounts have
//! counted, by whoever looks, and nobody pays for it on the way.

use crate::account::Usage;
use nyx_base::DevicePs;
use nyx_media::Op;
use nyx_media::profile::Profile;

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
    /// Of each whole chunk of an access behind its first.
    further_read: DevicePs,
    further_write: DevicePs,
    /// Latency prices in parts of [`HARM_ONE`].
    read_harm: [u32; STEPS],
    write_harm: [u32; STEPS],
}

/// A latency price of one. Fixed points, so that harm is exact and tables can be compared.
const HARM_ONE: u32 = 1 << 12;

impl CostTable {
    /// A table from `MaxIOPS` of random reads and writes; entry `i` is for `(i + 1) * 64` bytes.
    ///
    /// Panics where a rate is not positive and finite: profiles are validated when they are read.
    pub fn from_max_iops(read: &[f64; STEPS], write: &[f64; STEPS]) -> CostTable {
        CostTable::plain(
            read.map(DevicePs::of_max_iops),
            write.map(DevicePs::of_max_iops),
        )
    }

    /// The table of a device's profile, with its latency prices where it has them.
    pub fn of_profile(profile: &Profile) -> CostTable {
        let [read, write] = [Op::Read, Op::Write].map(|op| profile.max_ops_per_s(op));
        let table = CostTable::from_max_iops(read, write);
        match profile.latency() {
            Some(latency) => {
                table.with_latency_prices(&latency.prices(Op::Read), &latency.prices(Op::Write))
            }
            None => table,
        }
    }

    /// Every operation has the same latency price.
    fn plain(read: [DevicePs; STEPS], write: [DevicePs; STEPS]) -> CostTable {
        CostTable {
            read,
            write,
            further_read: read[STEPS - 1],
            further_write: write[STEPS - 1],
            read_harm: [HARM_ONE; STEPS],
            write_harm: [HARM_ONE; STEPS],
        }
    }

    /// The same table with latency prices, relative to that of reading 1 KiB; entry `i` is for
    /// `(i + 1) * 64` bytes. Negative ones count as nothing.
    #[must_use]
    pub fn with_latency_prices(mut self, read: &[f64; STEPS], write: &[f64; STEPS]) -> CostTable {
        let fixed = |price: f64| (price * f64::from(HARM_ONE)).round() as u32;
        self.read_harm = read.map(fixed);
        self.write_harm = write.map(fixed);
        self
    }

    /// The same table for a device that is not at its maximum bandwidth at 4 KiB: what each whole
    /// chunk of an access costs behind its first.
    #[must_use]
    pub fn with_further_chunks(mut self, read: DevicePs, write: DevicePs) -> CostTable {
        (self.further_read, self.further_write) = (read, write);
        self
    }

    /// A table that charges by bytes alone: what a bandwidth limit believes. The `bytes` baseline.
    pub fn by_bytes(bytes_per_s: f64) -> CostTable {
        let prices = std::array::from_fn(|i| {
            DevicePs::of_max_iops(bytes_per_s / ((i + 1) * STEP_BYTES) as f64)
        });
        CostTable::plain(prices, prices)
    }

    /// A table without prices, where nothing is limited: accounts count operations and bytes, and
    /// no device time.
    pub fn unpriced() -> CostTable {
        CostTable::plain([DevicePs::ZERO; STEPS], [DevicePs::ZERO; STEPS])
    }

    /// What one access of `len` bytes costs. Nothing for an empty one.
    #[inline]
    pub fn price(&self, op: Op, len: usize) -> DevicePs {
        let (prices, further) = match op {
            Op::Read => (&self.read, self.further_read),
            Op::Write => (&self.write, self.further_write),
        };
        if len == 0 {
            return DevicePs::ZERO;
        }
        if len <= CHUNK_BYTES {
            return prices[(len - 1) / STEP_BYTES];
        }
        let chunks = (len / CHUNK_BYTES) as u64;
        let whole = prices[STEPS - 1] + DevicePs(further.0 * (chunks - 1));
        match len % CHUNK_BYTES {
            0 => whole,
            rest => whole + prices[(rest - 1) / STEP_BYTES],
        }
    }

    /// How much more a device second of accesses of `len` bytes hurts the latency of others than
    /// one of 1 KiB reads. Above 4 KiB as at 4 KiB.
    pub fn latency_price(&self, op: Op, len: usize) -> f64 {
        f64::from(self.harm_factor(op, len as u64)) / f64::from(HARM_ONE)
    }

    fn harm_factor(&self, op: Op, len: u64) -> u32 {
        let factors = match op {
            Op::Read => &self.read_harm,
            Op::Write => &self.write_harm,
        };
        let step = len.saturating_sub(1) / STEP_BYTES as u64;
        factors[step.min(STEPS as u64 - 1) as usize]
    }

    /// The harm of what was used between two readings of an account (their difference): device time
    /// weighted by latency price, so many seconds of 1 KiB reads would do as much. Sizes are told
    /// from the mean of reads and that of writes, so that a mixture of sizes whose prices are not
    /// on a line is weighed as if all had the mean one.
    pub fn harm(&self, used: &Usage) -> DevicePs {
        let of = |op, used: DevicePs, accesses: u64, bytes: u64| {
            // Counters are read one by one: time may be there whose access is not counted yet.
            let mean = bytes.checked_div(accesses).unwrap_or(STANDARD_BYTES as u64);
            let weighted = u128::from(used.0) * u128::from(self.harm_factor(op, mean));
            (weighted / u128::from(HARM_ONE)) as u64
        };
        let reads = of(Op::Read, used.read_used, used.reads, used.read_bytes);
        let writes = of(Op::Write, used.write_used, used.writes, used.written_bytes);
        DevicePs(reads.wrapping_add(writes))
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

    /// Writes hurt three times as much as reads; small reads half as much as those of 1 KiB.
    fn hurtful() -> CostTable {
        let read = std::array::from_fn(|i| if i < 8 { 0.5 } else { 1.0 });
        table().with_latency_prices(&read, &[3.0; STEPS])
    }

    fn used(reads: (u64, u64, u64), writes: (u64, u64, u64)) -> Usage {
        Usage {
            read_used: DevicePs(reads.0),
            reads: reads.1,
            read_bytes: reads.2,
            write_used: DevicePs(writes.0),
            writes: writes.1,
            written_bytes: writes.2,
            ..Usage::default()
        }
    }

    #[test]
    fn harm_is_device_time_by_the_latency_price_of_what_was_done() {
        let t = hurtful();
        let harm = |reads, writes| t.harm(&used(reads, writes)).0;
        assert_eq!(harm((1000, 10, 10 * 1024), (0, 0, 0)), 1000);
        assert_eq!(harm((1000, 10, 10 * 512), (0, 0, 0)), 500);
        assert_eq!(harm((1000, 10, 10 * 512), (1000, 1, 64)), 3500);
        assert_eq!(harm((1000, 1, 1 << 20), (0, 0, 0)), 1000, "as 4 KiB");
        assert_eq!(harm((0, 0, 0), (0, 0, 0)), 0);
        assert_eq!(
            harm((700, 0, 0), (0, 0, 0)),
            700,
            "an access not counted yet"
        );
        // The mean size decides: 512 and 1536 B together are two of 1 KiB.
        assert_eq!(harm((1000, 2, 512 + 1536), (0, 0, 0)), 1000);
        assert_eq!(t.latency_price(Op::Write, 64), 3.0);
        assert_eq!(t.latency_price(Op::Read, 512), 0.5);
        assert_eq!(t.latency_price(Op::Read, 0), 0.5);
    }

    #[test]
    fn harm_of_differences_survives_a_wrap_and_large_times() {
        let t = hurtful();
        let before = used((u64::MAX - 9, 7, u64::MAX - 5), (u64::MAX, u64::MAX, 3));
        let after = used((90, 8, 1018), (99, 0, 67));
        assert_eq!(t.harm(&(after - before)).0, 100 + 300);
        let week = 7 * 24 * 3600 * DevicePs::SECOND.0;
        assert_eq!(t.harm(&used((0, 0, 0), (week, 1, 64))).0, 3 * week);
    }

    #[test]
    fn without_latency_prices_harm_is_device_time() {
        let usage = used((5, 1, 64), (7, 1, 4096));
        assert_eq!(table().harm(&usage), usage.used());
    }

    #[test]
    fn a_profile_brings_its_latency_prices() {
        use nyx_media::model::Params;
        use nyx_media::profile::{Effort, simulate};
        let params = Params::resolve("optane-2dimm").expect("a preset");
        let profile = simulate(&params, Effort::Quick, &mut |_| {});
        let t = CostTable::of_profile(&profile);
        let latency = profile.latency().expect("simulated");
        for (op, bytes) in [(Op::Read, 256), (Op::Read, 4096), (Op::Write, 640)] {
            let price = latency.prices(op)[bytes / STEP_BYTES - 1];
            assert!((t.latency_price(op, bytes) - price).abs() < 1e-3, "{bytes}");
        }
        assert_eq!(t.latency_price(Op::Read, STANDARD_BYTES), 1.0);
        assert!(t.latency_price(Op::Write, 256) > 2.0, "figure 1");
    }

    #[test]
    fn the_bytes_baseline_does_not_tell_a_write_from_a_read() {
        let t = CostTable::by_bytes(12e9);
        assert_eq!(t.price(Op::Read, 1024), t.price(Op::Write, 1024));
        assert_eq!(t.price(Op::Read, 4096).0, 4 * t.price(Op::Read, 1024).0 + 1);
    }
}
