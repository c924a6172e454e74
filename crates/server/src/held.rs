//! Connections whose tenant must wait. One queue per tenant, first come first served: when the
//! tenant's time has come its connections go on in order until the gate closes again.

use nyx_base::{Instant, Nanos, TenantId};
use std::collections::VecDeque;

/// A connection as the worker names it: its slot and the slot's generation.
pub(crate) type ConnId = (usize, u32);

/// A tenant that must wait waits for what it earns in so long. It comes in bursts as long as that,
/// at its limit, and a worker that has nothing else to do wakes as often.
pub(crate) const HOLD_MIN: Nanos = Nanos::from_micros(50);

/// How soon a tenant is asked again where only the controller can tell when its time has come.
const ASK_AGAIN: Nanos = Nanos::from_millis(1);
/// How soon it is asked again in any case: its limit may have been raised meanwhile.
const ASK_AGAIN_MOST: Nanos = Nanos::from_millis(20);

#[derive(Default)]
struct Queue {
    until: Option<Instant>,
    conns: VecDeque<ConnId>,
    /// How many stand at the front that came back without having had their part. The next one that
    /// does goes behind them, so that all keep their order.
    came_back: usize,
    /// How many went on when it was last due.
    released: usize,
}

impl Queue {
    /// How many go on now: as many as had their part the last time and one more, so that of many
    /// who wait for a device on which each has to wait again only a few ask in vain; twice as many
    /// where all had.
    fn portion(&self, most: usize) -> usize {
        let portion = match self.came_back {
            0 => 2 * self.released,
            back => self.released.saturating_sub(back) + 1,
        };
        portion.clamp(1, most)
    }
}

/// The held connections of one worker.
#[derive(Default)]
pub(crate) struct Held {
    queues: Vec<Queue>,
    len: usize,
    /// Since it was last asked.
    changed: bool,
}

impl Held {
    /// Holds `conn` until `until`. `first` puts it before those that wait already: it had its turn
    /// and could not finish.
    pub(crate) fn hold(
        &mut self,
        tenant: TenantId,
        conn: ConnId,
        until: Instant,
        now: Instant,
        first: bool,
    ) {
        let until = match until {
            Instant::NEVER => now + ASK_AGAIN,
            until => until.min(now + ASK_AGAIN_MOST),
        };
        let at = tenant.index();
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let queue = &mut self.queues[at];
        // The newest answer of the gate counts: it knows what was used since.
        queue.until = Some(until);
        if first {
            queue.conns.insert(queue.came_back, conn);
            queue.came_back += 1;
        } else {
            queue.conns.push_back(conn);
        }
        self.len += 1;
        self.changed = true;
    }

    /// How many connections wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many connections wait for each tenant, where that has changed since it was last asked.
    /// Tenants beyond the last for whom somebody ever waited are left out.
    pub(crate) fn news(&mut self) -> Option<impl Iterator<Item = usize>> {
        let changed = std::mem::take(&mut self.changed);
        changed.then(|| self.queues.iter().map(|queue| queue.conns.len()))
    }

    /// When the first tenant may go on; `NEVER` where nobody waits.
    pub(crate) fn next(&self) -> Instant {
        self.queues
            .iter()
            .filter_map(|q| q.until)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// Takes up to `most` connections of each tenant whose time has come.
    pub(crate) fn take_due(&mut self, now: Instant, most: usize, into: &mut Vec<ConnId>) {
        for queue in &mut self.queues {
            if queue.until.is_none_or(|until| until > now) {
                continue;
            }
            let n = queue.conns.len().min(queue.portion(most));
            into.extend(queue.conns.drain(..n));
            (queue.released, queue.came_back) = (n, 0);
            self.len -= n;
            self.changed = true;
            if queue.conns.is_empty() {
                queue.until = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(3);
    const NOW: Instant = Instant(10);

    #[test]
    fn nobody_sleeps_so_long_that_a_raised_limit_goes_unnoticed() {
        let mut held = Held::default();
        held.hold(A, (1, 0), NOW + Nanos::from_secs(10), NOW, false);
        assert_eq!(held.next(), NOW + ASK_AGAIN_MOST);
    }

    #[test]
    fn tenants_wait_apart_and_in_order() {
        let mut held = Held::default();
        held.hold(A, (1, 0), Instant(100), NOW, false);
        held.hold(A, (2, 0), Instant(110), NOW, false);
        held.hold(B, (3, 0), Instant(50), NOW, false);
        assert_eq!((held.len(), held.next()), (3, Instant(50)));
        let mut due = Vec::new();
        held.take_due(Instant(60), 8, &mut due);
        assert_eq!(due, [(3, 0)]);
        assert_eq!(held.next(), Instant(110));
        due.clear();
        held.take_due(Instant(110), 8, &mut due);
        assert_eq!(due, [(1, 0)]);
        held.hold(A, (1, 0), Instant(120), NOW, true);
        due.clear();
        held.take_due(Instant(120), 8, &mut due);
        assert_eq!(due, [(1, 0)], "who was served first keeps its place");
        due.clear();
        held.take_due(Instant(120), 8, &mut due);
        assert_eq!(due, [(2, 0)]);
        assert_eq!((held.len(), held.next()), (0, Instant::NEVER));
    }

    #[test]
    fn who_comes_back_empty_handed_keeps_its_place() {
        let mut held = Held::default();
        for slot in 1..=8 {
            held.hold(A, (slot, 0), Instant(100), NOW, false);
        }
        let mut due = Vec::new();
        for _ in 0..3 {
            due.clear();
            held.take_due(Instant(100), 8, &mut due);
        }
        assert_eq!(due, [(4, 0), (5, 0), (6, 0), (7, 0)]);
        // One had its part and holds another request; the others could not go on.
        held.hold(A, (4, 0), Instant(120), NOW, false);
        for slot in 5..=7 {
            held.hold(A, (slot, 0), Instant(120), NOW, true);
        }
        due.clear();
        held.take_due(Instant(120), 8, &mut due);
        assert_eq!(due, [(5, 0), (6, 0)]);
        due.clear();
        held.take_due(Instant(120), 8, &mut due);
        assert_eq!(due, [(7, 0), (8, 0), (4, 0)]);
    }

    #[test]
    fn as_many_are_asked_as_had_their_part_before() {
        let mut held = Held::default();
        for slot in 0..64 {
            held.hold(A, (slot, 0), NOW, NOW, false);
        }
        let mut due = Vec::new();
        let mut asked = |held: &mut Held, go_on: usize| {
            held.take_due(NOW, 16, &mut due);
            let asked = due.len();
            for (at, id) in due.drain(..).enumerate() {
                held.hold(A, id, NOW, NOW, at >= go_on);
            }
            asked
        };
        // All go on, and the fifth time two.
        let growing = [16, 16, 16, 16, 2].map(|go_on| asked(&mut held, go_on));
        assert_eq!(growing, [1, 2, 4, 8, 16]);
        // Two each time: one is asked in vain. Then none.
        let even = [2, 2, 2, 0, 0].map(|go_on| asked(&mut held, go_on));
        assert_eq!(even, [3, 3, 3, 3, 1]);
    }

    #[test]
    fn who_waits_is_told_by_tenant_and_only_when_that_changed() {
        let mut held = Held::default();
        let news = |held: &mut Held| held.news().map(Iterator::collect::<Vec<usize>>);
        assert_eq!(news(&mut held), None);
        held.hold(B, (1, 0), Instant(100), NOW, false);
        held.hold(B, (2, 0), Instant(100), NOW, false);
        assert_eq!(news(&mut held), Some(vec![0, 0, 0, 2]));
        assert_eq!(news(&mut held), None);
        let mut due = Vec::new();
        held.take_due(Instant(99), 8, &mut due);
        assert_eq!(news(&mut held), None);
        held.take_due(Instant(100), 1, &mut due);
        assert_eq!(news(&mut held), Some(vec![0, 0, 0, 1]));
    }

    #[test]
    fn who_waits_for_the_controller_is_asked_again_soon() {
        let mut held = Held::default();
        held.hold(A, (1, 0), Instant::NEVER, NOW, false);
        assert_eq!(held.next(), NOW + ASK_AGAIN);
    }
}
