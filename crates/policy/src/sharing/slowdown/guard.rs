//! Hard limits of slowdowns: who is nearest to one, and what the others use meanwhile.
//!
//! The others are seen by the device time that they use, not by how they fare, so that nobody is
//! out of reach because it was not yet alone.
//!
//! What this module never does: move a limit.

use crate::Seen;
use crate::mechanism::alone::{Alone, Fare};
use nyx_base::{DevicePs, Instant};

/// How near the limits are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Whose limit is the nearest.
    pub pressed: usize,
    /// Its slowdown as a part of its limit.
    pub pressure: f64,
}

/// Looks after tenants with a hard limit.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The limits.
    limits: Vec<Option<f64>>,
    /// The latest pressures.
    pressures: Vec<Option<f64>>,
    /// What was used in all when the last turn was taken, and when that was.
    mark: Vec<DevicePs>,
    marked: Option<Instant>,
    /// What is used in all now.
    now: Instant,
    used: Vec<DevicePs>,
    /// The share of the device that each used between the last two turns.
    shares: Vec<f64>,
}

impl Guard {
    /// With the hard limit of each tenant that has one.
    pub fn new(limits: Vec<Option<f64>>) -> Guard {
        let tenants = limits.len();
        Guard {
            limits,
            pressures: vec![None; tenants],
            mark: vec![DevicePs::default(); tenants],
            marked: None,
            now: Instant(0),
            used: vec![DevicePs::default(); tenants],
            shares: vec![0.0; tenants],
        }
    }

    /// Whether there is anybody to look after.
    pub fn has_limits(&self) -> bool {
        self.limits.iter().any(Option::is_some)
    }

    /// Those without a limit, and the share of the device that each used lately.
    pub fn others(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let each = self.limits.iter().zip(&self.shares).enumerate();
        each.filter(|(_, (limit, _))| limit.is_none())
            .map(|(tenant, (_, share))| (tenant, *share))
    }

    /// Notes what everybody used.
    pub fn see(&mut self, now: Instant, seen: &[Seen]) {
        if !self.has_limits() {
            return;
        }
        self.now = now;
        for (used, seen) in self.used.iter_mut().zip(seen) {
            *used = seen.used;
        }
        if self.marked.is_none_or(|marked| marked > now) {
            self.mark.copy_from_slice(&self.used);
            self.marked = Some(now);
        }
    }

    /// How those with a limit fared of whom enough was seen.
    pub fn fares(&self, alone: &mut Alone) -> Vec<(usize, Fare)> {
        let limited = (0..self.limits.len()).filter(|&i| self.limits[i].is_some());
        let fare = |tenant| Some((tenant, alone.take_one(tenant)?));
        limited.filter_map(fare).collect()
    }

    /// How near they are to their limits, now that this is known; none where it is not.
    pub fn turn(&mut self, fares: &[(usize, Fare)]) -> Option<Turn> {
        for (tenant, fare) in fares {
            let limit = self.limits[*tenant];
            self.pressures[*tenant] = fare.slowdown.zip(limit).map(|(is, most)| is / most);
        }
        self.take_shares();
        let each = self.pressures.iter().enumerate();
        each.filter_map(|(pressed, pressure)| Some((pressed, (*pressure)?)))
            .map(|(pressed, pressure)| Turn { pressed, pressure })
            .max_by(|a, b| a.pressure.total_cmp(&b.pressure))
    }

    fn take_shares(&mut self) {
        let time_s = self
            .marked
            .map_or(0.0, |marked| self.now.since(marked).as_secs_f64());
        if time_s > 0.0 {
            for ((share, used), mark) in self.shares.iter_mut().zip(&self.used).zip(&self.mark) {
                let used = DevicePs(used.0.wrapping_sub(mark.0)).as_secs_f64() / time_s;
                *share = used.clamp(0.0, 1.0);
            }
        }
        self.mark.copy_from_slice(&self.used);
        self.marked = Some(self.now);
    }
}

/// The level such that, if nobody used more than the level times its weight, all together would use
/// `left`; pairs of weight and use.
pub fn level(others: impl Iterator<Item = (f64, f64)>, left: f64) -> f64 {
    let mut others: Vec<(f64, f64)> = others.collect();
    others.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let mut left = left.max(0.0);
    let mut weights: f64 = others.iter().map(|other| other.0).sum();
    for (weight, used) in others {
        if used / weight >= left / weights {
            return left / weights;
        }
        left -= used;
        weights -= weight;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_takes_from_those_who_use_the_most() {
        let of = |others: &[(f64, f64)], left| level(others.iter().copied(), left);
        let others = [(1.0, 0.1), (1.0, 0.6), (1.0, 0.2)];
        assert!((of(&others, 0.7) - 0.4).abs() < 1e-12, "0.1, 0.4, 0.2");
        assert!((of(&others, 0.45) - 0.175).abs() < 1e-12);
        assert!((of(&others, 0.15) - 0.05).abs() < 1e-12, "a third each");
        assert_eq!(of(&others, 0.0), 0.0);
        assert_eq!(of(&others, -1.0), 0.0);
        assert_eq!(of(&others, 1.0), f64::INFINITY, "nobody is above it");
        let weighed = [(3.0, 0.6), (1.0, 0.6)];
        assert!((of(&weighed, 0.8) - 0.2).abs() < 1e-12, "0.6 and 0.2");
        assert_eq!(level(std::iter::empty(), 0.5), f64::INFINITY);
    }
}
