//! What Han et al. published of their device (section 2.2): one module of 128 GB, App Direct,
//! non-temporal stores, the processor's prefetcher off, built without optimisation, means of five
//! runs that differ by 5 % at most. To stand beside readings, never among them.
//!
//! Where the paper prints a time in milliseconds, its two digits are all that is known. Its curves
//! (figures 1 to 14) are drawn without values.
//!
//! What this file never does: take part in a computation of the models in [`crate::model`]. (A
//! memory as far away as the module is made of it: [`crate::pmem::distant`].)

/// Latencies of one thread at random and at sequential addresses, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// The size of an access.
    pub bytes: usize,
    /// At random addresses.
    pub random_ns: f64,
    /// One behind the other.
    pub sequential_ns: f64,
}

const fn row(bytes: usize, random_ns: f64, sequential_ns: f64) -> Latencies {
    Latencies {
        bytes,
        random_ns,
        sequential_ns,
    }
}

/// Tables 3 and 4: reads.
pub const READS: [Latencies; 15] = [
    row(8, 200.0, 30.0),
    row(16, 196.0, 53.0),
    row(32, 196.0, 70.0),
    row(64, 201.0, 101.0),
    row(128, 198.0, 124.0),
    row(256, 241.0, 191.0),
    row(512, 309.0, 304.0),
    row(1 << 10, 611.0, 589.0),
    row(4 << 10, 2_361.0, 2_326.0),
    row(16 << 10, 7_368.0, 7_273.0),
    row(64 << 10, 29_086.0, 28_850.0),
    row(256 << 10, 0.12e6, 0.12e6),
    row(1 << 20, 1.09e6, 1.09e6),
    row(4 << 20, 5.68e6, 5.68e6),
    row(16 << 20, 22.81e6, 22.82e6),
];

/// Tables 5 and 6: writes.
pub const WRITES: [Latencies; 15] = [
    row(8, 658.0, 694.0),
    row(16, 669.0, 717.0),
    row(32, 663.0, 774.0),
    row(64, 190.0, 187.0),
    row(128, 203.0, 199.0),
    row(256, 218.0, 217.0),
    row(512, 279.0, 259.0),
    row(1 << 10, 538.0, 503.0),
    row(4 << 10, 2_006.0, 2_004.0),
    row(16 << 10, 8_000.0, 8_089.0),
    row(64 << 10, 31_597.0, 32_115.0),
    row(256 << 10, 0.13e6, 0.13e6),
    row(1 << 20, 0.51e6, 0.51e6),
    row(4 << 20, 2.61e6, 2.60e6),
    row(16 << 20, 10.37e6, 10.50e6),
];

/// Tables 7 and 8: DRAM of the same machine at random addresses: bytes, a read and a write in
/// nanoseconds.
pub const DRAM_RANDOM_NS: [(usize, f64, f64); 8] = [
    (8, 46.0, 238.0),
    (16, 33.0, 238.0),
    (32, 33.0, 239.0),
    (64, 40.0, 174.0),
    (128, 43.0, 185.0),
    (256, 57.0, 200.0),
    (512, 93.0, 234.0),
    (1 << 10, 173.0, 361.0),
];

/// The most that the module reads and writes, in gigabytes a second (section 2.2.2).
pub const MODULE_GB_PER_S: [f64; 2] = [7.0, 2.0];
/// The most that the SSD of the same machine reads and writes (section 2.2.3).
pub const SSD_GB_PER_S: [f64; 2] = [0.87, 0.68];
/// What DRAM reads and writes at least (section 2.2.3).
pub const DRAM_GB_PER_S_LEAST: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::SIZES_BYTES;

    #[test]
    fn the_tables_have_the_sizes_that_are_measured() {
        for table in [READS, WRITES] {
            assert_eq!(table.map(|row| row.bytes), SIZES_BYTES);
        }
        assert_eq!(DRAM_RANDOM_NS.map(|row| row.0)[..], SIZES_BYTES[..8]);
    }
}
