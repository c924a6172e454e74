//! Which operation a request is, and which time to live a write gives.
//!
//! What it never does: draw where there is no choice.

use super::{OPS, Op, WorkloadError};
use nyx_base::Rng;
use std::fmt;
use std::str::FromStr;

/// Shares of the operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpMix {
    /// Weights in the order of [`OPS`].
    weights: [u32; OPS.len()],
    /// Their running sums.
    sums: [u32; OPS.len()],
}

impl OpMix {
    /// A mix of weights in the order of [`OPS`], of which one at least is not zero.
    pub fn new(weights: [u32; OPS.len()]) -> Option<OpMix> {
        let mut sums = weights;
        for i in 1..sums.len() {
            sums[i] = sums[i - 1].checked_add(sums[i])?;
        }
        (sums[OPS.len() - 1] > 0).then_some(OpMix { weights, sums })
    }

    /// The operation of the next request.
    #[inline]
    pub fn pick(&self, rng: &mut Rng) -> Op {
        let total = self.sums[OPS.len() - 1];
        if self.sums[0] == total {
            return Op::Get;
        }
        let drawn = rng.u32(0..total);
        OPS[self.sums.iter().position(|&s| drawn < s).unwrap_or(0)]
    }

    /// Whether `op` occurs at all.
    pub fn has(&self, op: Op) -> bool {
        self.weights[op as usize] > 0
    }
}

impl Default for OpMix {
    /// Gets alone.
    fn default() -> OpMix {
        OpMix {
            weights: [100, 0, 0, 0, 0],
            sums: [100; OPS.len()],
        }
    }
}

impl FromStr for OpMix {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<OpMix, WorkloadError> {
        let parsed = (|| {
            let mut weights = [0; OPS.len()];
            for part in text.split(',') {
                let (name, weight) = part.split_once(':')?;
                let op = OPS.into_iter().find(|op| op.name() == name.trim())?;
                weights[op as usize] = weight.trim().trim_end_matches('%').parse().ok()?;
            }
            OpMix::new(weights)
        })();
        parsed.ok_or_else(|| WorkloadError::Syntax {
            what: "operation mix",
            text: text.to_owned(),
            hint: "write weights as get:90,set:10 of get, set, delete, incr, touch",
        })
    }
}

impl fmt::Display for OpMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for op in OPS.into_iter().filter(|&op| self.has(op)) {
            write!(f, "{comma}{}:{}", op.name(), self.weights[op as usize])?;
            comma = ",";
        }
        Ok(())
    }
}

/// Shares of times to live, in seconds; 0 is for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtlMix(Vec<(u32, u32)>);

impl TtlMix {
    /// A mix of `(seconds, weight)`; nothing, or weights that are all zero, means for ever.
    pub fn new(entries: Vec<(u32, u32)>) -> TtlMix {
        match entries.iter().any(|&(_, weight)| weight > 0) {
            true => TtlMix(entries),
            false => TtlMix::default(),
        }
    }

    /// The time to live of the next write, in seconds.
    #[inline]
    pub fn pick(&self, rng: &mut Rng) -> u32 {
        if let [(only, _)] = self.0[..] {
            return only;
        }
        let mut drawn = rng.u32(0..self.0.iter().map(|&(_, weight)| weight).sum());
        for &(ttl, weight) in &self.0 {
            if drawn < weight {
                return ttl;
            }
            drawn -= weight;
        }
        0
    }
}

impl Default for TtlMix {
    /// For ever.
    fn default() -> TtlMix {
        TtlMix(vec![(0, 1)])
    }
}

impl FromStr for TtlMix {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<TtlMix, WorkloadError> {
        let parsed: Option<Vec<(u32, u32)>> = (text.split(','))
            .map(|part| {
                let (ttl, weight) = part.split_once(':').unwrap_or((part, "1"));
                let weight = weight.trim().trim_end_matches('%').parse().ok()?;
                Some((ttl.trim().trim_end_matches('s').parse().ok()?, weight))
                    .filter(|&(_, weight)| weight > 0 && weight <= 1_000_000)
            })
            .collect();
        parsed
            .filter(|entries| entries.len() <= 1000)
            .map(TtlMix)
            .ok_or_else(|| WorkloadError::Syntax {
                what: "time to live",
                text: text.to_owned(),
                hint: "write seconds (3600), or seconds by weight (60:80,3600:20); 0 is for ever",
            })
    }
}

impl fmt::Display for TtlMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(only, _)] = self.0[..] {
            return write!(f, "{only}");
        }
        for (i, (ttl, weight)) in self.0.iter().enumerate() {
            write!(f, "{}{ttl}:{weight}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_read_print_and_refuse() {
        for text in [
            "get:90,set:10",
            "set:100",
            "get:1,set:2,delete:3,incr:4,touch:5",
        ] {
            assert_eq!(text.parse::<OpMix>().expect(text).to_string(), text);
        }
        for text in ["", "get", "get:0", "put:3", "get:4294967295,set:1"] {
            assert!(text.parse::<OpMix>().is_err(), "{text}");
        }
        assert_eq!(
            "60:80,3600:20".parse::<TtlMix>().expect("fine").to_string(),
            "60:80,3600:20"
        );
        assert!("60:0".parse::<TtlMix>().is_err());
    }

    #[test]
    fn operations_come_in_their_shares() {
        let mix: OpMix = "get:70,set:20,touch:10".parse().expect("fine");
        let mut rng = Rng::with_seed(2);
        let mut seen = [0; OPS.len()];
        (0..100_000).for_each(|_| seen[mix.pick(&mut rng) as usize] += 1);
        assert!((69_000..71_000).contains(&seen[0]), "{seen:?}");
        assert!((19_000..21_000).contains(&seen[1]), "{seen:?}");
        assert_eq!(seen[2] + seen[3], 0);
    }

    #[test]
    fn times_to_live_come_in_their_shares() {
        let mix: TtlMix = "60:80,3600:20".parse().expect("fine");
        let mut rng = Rng::with_seed(2);
        let short = (0..10_000).filter(|_| mix.pick(&mut rng) == 60).count();
        assert!((7_800..8_200).contains(&short), "{short}");
        assert_eq!(TtlMix::default().pick(&mut rng), 0);
    }
}
