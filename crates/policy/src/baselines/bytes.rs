//! A bandwidth limit, as for DRAM: each byte counts the same, read or written, alone or in a crowd
//! (NyxCache section 4.2 compares with this). Bytes are counted by the gate, exactly.

use crate::{Policy, Seen, Want};
use nyx_base::{DevicePs, Instant, Nanos};

/// A limit on bytes for each tenant.
#[derive(Debug)]
pub struct ByteRate {
    limits: Vec<Option<f64>>,
}

impl ByteRate {
    /// `limits[i]` is the bytes per second of tenant `i`; `None` is no limit.
    ///
    /// Panics where a limit is not positive and finite: configurations are checked before.
    pub fn new(limits: Vec<Option<f64>>) -> ByteRate {
        super::assert_positive(limits.iter().flatten());
        ByteRate { limits }
    }
}

impl Policy for ByteRate {
    fn name(&self) -> &'static str {
        "bytes"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        for (want, &limit) in want.iter_mut().zip(&self.limits) {
            *want = limit.map_or(Want::default(), limited);
        }
    }
}

/// A limit of `b` bytes a second is a second a second, of which each byte takes `1/b`; a picosecond
/// at least, because nothing would be no price.
pub(super) fn limited(bytes_per_s: f64) -> Want {
    Want {
        rate: Some(DevicePs::SECOND),
        byte_price: Some(DevicePs::of_max_iops(bytes_per_s).max(DevicePs(1))),
        ..Want::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_costs_its_part_of_the_second() {
        let mut want = [Want::default(); 2];
        ByteRate::new(vec![Some(1e9), None]).step(
            Instant(0),
            &[Seen::default(), Seen::default()],
            &mut want,
        );
        assert_eq!(want[0].byte_price, Some(DevicePs(1000)));
        assert_eq!(want[0].rate, Some(DevicePs::SECOND));
        assert_eq!(want[1], Want::default());
    }
}
