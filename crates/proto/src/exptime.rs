//! Times to live as clients write them, and what they mean.
//!
//! What it never does: read a clock; the executor hands the time in.

use nyx_base::UnixSeconds;

/// A time to live as it stands on the wire: 0 never ends, a negative one has ended already, up to
/// 30 days count from now, anything larger is a Unix time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Exptime(pub i64);

/// What an [`Exptime`] means at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The item never expires by time.
    Never,
    /// The item is gone from the start of this second on.
    At(UnixSeconds),
    /// The item is gone already.
    Expired,
}

/// The longest relative time to live in seconds: 30 days.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

impl Exptime {
    /// An item that never expires by time.
    pub const NEVER: Exptime = Exptime(0);

    /// What it means at `now`. A time beyond the last second that [`UnixSeconds`] can hold (the
    /// year 2106) ends at that second.
    #[inline]
    pub fn resolve(self, now: UnixSeconds) -> Expiry {
        let at = match self.0 {
            0 => return Expiry::Never,
            s if s < 0 => return Expiry::Expired,
            s if s <= RELATIVE_MAX_S => i64::from(now.0) + s,
            s => s,
        };
        if at <= i64::from(now.0) {
            return Expiry::Expired;
        }
        let last = UnixSeconds::NEVER.0 - 1;
        Expiry::At(UnixSeconds(u32::try_from(at).unwrap_or(last).min(last)))
    }
}

impl Expiry {
    /// As the store keeps it: [`UnixSeconds::NEVER`] for never, `now` for expired.
    #[inline]
    pub fn at(self, now: UnixSeconds) -> UnixSeconds {
        match self {
            Expiry::Never => UnixSeconds::NEVER,
            Expiry::At(second) => second,
            Expiry::Expired => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_700_000_000);

    #[test]
    fn thirty_days_is_the_last_relative_time() {
        let at = |s: u32| Expiry::At(UnixSeconds(s));
        assert_eq!(Exptime(0).resolve(NOW), Expiry::Never);
        assert_eq!(Exptime(1).resolve(NOW), at(NOW.0 + 1));
        assert_eq!(Exptime(2_592_000).resolve(NOW), at(NOW.0 + 2_592_000));
        assert_eq!(Exptime(2_592_001).resolve(NOW), Expiry::Expired);
        assert_eq!(Exptime(1_700_000_001).resolve(NOW), at(1_700_000_001));
        assert_eq!(Exptime(1_700_000_000).resolve(NOW), Expiry::Expired);
        assert_eq!(Exptime(-1).resolve(NOW), Expiry::Expired);
        assert_eq!(Exptime(i64::MIN).resolve(NOW), Expiry::Expired);
    }

    #[test]
    fn times_beyond_the_last_second_do_not_become_never() {
        let last = UnixSeconds(u32::MAX - 1);
        assert_eq!(Exptime(i64::MAX).resolve(NOW), Expiry::At(last));
        assert_eq!(Exptime(1 << 32).resolve(NOW), Expiry::At(last));
        assert_eq!(Exptime(i64::MAX).resolve(NOW).at(NOW), last);
        assert_eq!(Expiry::Never.at(NOW), UnixSeconds::NEVER);
        assert_eq!(Expiry::Expired.at(NOW), NOW);
    }
}
