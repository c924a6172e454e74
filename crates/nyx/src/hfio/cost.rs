//! What requests take of a device: of one at a time, and of many.
//!
//! What it never does: believe a model; what is laid over a slow file is as slow as that.

use super::Rig;
use crate::Failure;
use nyx_base::{Clock, Nanos, Rng};
use nyx_policy::nhc::{Both, Cost, Kind, Side};

/// However slow a device is, so many requests are waited for.
const LEAST: u64 = 16;

impl Rig {
    /// Measures both devices for so long each way, many being `depth` at once. Where nothing may be
    /// written, a write is taken to be what a read is. `told` hears how many of the eight are over.
    pub fn measure_costs(
        &mut self,
        depth: u32,
        length: Nanos,
        told: &mut dyn FnMut(usize),
    ) -> Result<(), Failure> {
        let mut costs = Both::default();
        for side in Side::ALL {
            let read = self.cost(side, Kind::Read, depth, length)?;
            told(4 * side as usize + 2);
            let write = match self.targets[side].may_write {
                true => self.cost(side, Kind::Write, depth, length)?,
                false => read,
            };
            costs[side] = [read, write];
            told(4 * side as usize + 4);
        }
        self.costs = costs;
        Ok(())
    }

    fn cost(&mut self, side: Side, kind: Kind, depth: u32, length: Nanos) -> Result<Cost, Failure> {
        let alone_ns = self.mean_ns(side, kind, 1, length)?;
        let each_ns = self.mean_ns(side, kind, depth, length)?;
        Ok(Cost {
            alone_ns,
            each_ns: each_ns.min(alone_ns),
        })
    }

    /// The mean time from one completion to the next with so many at once, once there were as many.
    fn mean_ns(
        &mut self,
        side: Side,
        kind: Kind,
        depth: u32,
        length: Nanos,
    ) -> Result<f64, Failure> {
        let mut rng = Rng::with_seed(1);
        (0..depth).for_each(|_| self.one_more(side, kind, &mut rng));
        let (mut done, mut began) = (0, None);
        while self.queues[side].in_flight() > 0 {
            let is_over = began.is_some_and(|began| {
                let took = self.clock.now().since(began);
                took >= length && done >= LEAST
            });
            if is_over {
                break;
            }
            let Some(landed) = self.queues[side].reap() else {
                std::hint::spin_loop();
                continue;
            };
            landed.result.map_err(|error| self.failed(side, error))?;
            let buffer = landed.buffer.expect("reads and writes have one");
            if kind == Kind::Read {
                self.check(side, landed.tag, &buffer)?;
            }
            drop(buffer);
            // The first ones are those that begin together.
            match began {
                None if done + 1 < u64::from(depth) => done += 1,
                None => (began, done) = (Some(self.clock.now()), 0),
                Some(_) => done += 1,
            }
            self.one_more(side, kind, &mut rng);
        }
        let took = self
            .clock
            .now()
            .since(began.expect("more than there are at once"));
        self.drain()?;
        Ok((took.0 as f64 / done as f64).max(1.0))
    }

    fn one_more(&mut self, side: Side, kind: Kind, rng: &mut Rng) {
        let buffer = self.buffer();
        match (kind, side) {
            (Kind::Read, _) => {
                let blocks = match (self.targets[side].may_write, side) {
                    // What lies in the slots is of any number.
                    (true, Side::Fast) => self.layout.kept,
                    _ => self.layout.blocks(side),
                };
                let block = rng.u64(0..blocks);
                self.submit(kind, side, block, buffer, block);
            }
            (Kind::Write, _) => {
                let block = self.layout.draw_missed(rng);
                self.submit_write(side, block, buffer, block);
            }
        }
    }

    /// Waits until nothing is in flight any more.
    pub(super) fn drain(&mut self) -> Result<(), Failure> {
        for side in Side::ALL {
            while self.queues[side].in_flight() > 0 {
                self.queues[side].rest();
                while let Some(done) = self.queues[side].reap() {
                    done.result.map_err(|error| self.failed(side, error))?;
                }
            }
        }
        Ok(())
    }
}
