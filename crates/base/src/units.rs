//! Units. `DevicePs` is the currency of the whole system: the time for which one operation keeps
//! the device busy, 1/MaxIOPS (NyxCache section 3.3, "Resource Usage Estimation").

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

/// Device time in picoseconds. 1 s of device time is 1e12; a `u64` holds 213 device-days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePs(pub u64);

impl DevicePs {
    /// Nothing.
    pub const ZERO: DevicePs = DevicePs(0);
    /// One second of device time.
    pub const SECOND: DevicePs = DevicePs(1_000_000_000_000);

    /// The cost of one operation on a device that does `iops` of them a second at most.
    ///
    /// A rate that is not positive and finite has no cost; callers validate profiles first.
    #[inline]
    pub fn of_max_iops(iops: f64) -> DevicePs {
        debug_assert!(
            iops.is_finite() && iops > 0.0,
            "MaxIOPS must be positive, got {iops}"
        );
        DevicePs((1e12 / iops).round() as u64)
    }

    /// In seconds of device time, for ratios and reports.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The difference, or zero where `other` is larger.
    #[inline]
    pub fn saturating_sub(self, other: DevicePs) -> DevicePs {
        DevicePs(self.0.saturating_sub(other.0))
    }
}

impl Add for DevicePs {
    type Output = DevicePs;
    #[inline]
    fn add(self, other: DevicePs) -> DevicePs {
        DevicePs(self.0 + other.0)
    }
}

impl AddAssign for DevicePs {
    #[inline]
    fn add_assign(&mut self, other: DevicePs) {
        self.0 += other.0;
    }
}

impl Sub for DevicePs {
    type Output = DevicePs;
    #[inline]
    fn sub(self, other: DevicePs) -> DevicePs {
        DevicePs(self.0 - other.0)
    }
}

impl Sum for DevicePs {
    fn sum<I: Iterator<Item = DevicePs>>(iter: I) -> DevicePs {
        iter.fold(DevicePs::ZERO, Add::add)
    }
}

/// A size as people write it: `64MiB`, `1GiB`, `512KiB`, `4096`. Binary units only; `MB` is refused
/// because half its readers take it for `MiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const SIZE_UNITS: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

impl Bytes {
    /// A number of KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }
    /// A number of MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }
    /// A number of GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, scale) in SIZE_UNITS {
            if self.0 >= scale {
                return match self.0 % scale {
                    0 => write!(f, "{} {name}", self.0 / scale),
                    _ => write!(f, "{:.2} {name}", self.0 as f64 / scale as f64),
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let bad =
            || format!("{text:?} is not a size: write bytes (4096) or 512KiB, 64MiB, 2GiB, 1TiB");
        let text_trimmed = text.trim();
        let split = text_trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text_trimmed.len());
        let (number, unit) = text_trimmed.split_at(split);
        let scale = match unit.trim() {
            "" | "B" => 1,
            unit => {
                SIZE_UNITS
                    .iter()
                    .find(|(name, _)| *name == unit)
                    .ok_or_else(bad)?
                    .1
            }
        };
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * scale as f64;
        if !bytes.is_finite() || bytes < 0.0 || bytes >= (1u64 << 53) as f64 || bytes.fract() != 0.0
        {
            return Err(bad());
        }
        Ok(Bytes(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_one_over_max_iops() {
        assert_eq!(DevicePs::of_max_iops(3e6), DevicePs(333_333));
        assert_eq!(DevicePs::of_max_iops(1e12), DevicePs(1));
    }

    #[test]
    fn sizes_read_and_print() {
        assert_eq!("64MiB".parse(), Ok(Bytes::mib(64)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::mib(1536)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert_eq!(Bytes::mib(64).to_string(), "64 MiB");
        assert_eq!(Bytes::mib(1536).to_string(), "1.50 GiB");
        assert_eq!(Bytes(1000).to_string(), "1000 B");
    }

    #[test]
    fn ambiguous_or_broken_sizes_are_refused_with_a_hint() {
        for text in ["64MB", "64m", "", "-1", "1.5", "GiB", "1e400", "nanGiB"] {
            let error = text.parse::<Bytes>().expect_err(text);
            assert!(error.contains("MiB"), "{error}");
        }
    }
}
