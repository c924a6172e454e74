//! Connections that wait for something from a deep device: by what they wait for, each woken once
//! when that has landed, whatever has become of it.
//!
//! What it never does: know who asked for what; whoever is woken executes its request again.

use crate::held::ConnId;
use nyx_engine::{Away, Wait};

/// The waiting connections of one worker.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By hand and what is waited for there. They keep their room.
    queues: Vec<Vec<ConnId>>,
}

impl Waiting {
    /// From now on `conn` waits.
    pub(crate) fn add(&mut self, away: Away, conn: ConnId) {
        let at = place(away);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Vec::new);
        }
        self.queues[at].push(conn);
    }

    /// Takes those who wait for what has landed.
    pub(crate) fn take(&mut self, landed: Away, into: &mut Vec<ConnId>) {
        if let Some(queue) = self.queues.get_mut(place(landed)) {
            into.append(queue);
        }
    }
}

fn place(away: Away) -> usize {
    away.hand * Wait::COUNT + away.wait.index()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_woken_once_and_by_what_it_waits_for() {
        let away = |hand| Away {
            hand,
            wait: Wait::ANY,
        };
        let mut waiting = Waiting::default();
        let mut woken = Vec::new();
        waiting.take(away(1), &mut woken);
        waiting.add(away(0), (7, 0));
        waiting.add(away(1), (8, 0));
        waiting.add(away(1), (9, 3));
        waiting.take(away(1), &mut woken);
        assert_eq!(woken, [(8, 0), (9, 3)]);
        waiting.take(away(1), &mut woken);
        assert_eq!(woken.len(), 2);
        woken.clear();
        waiting.take(away(0), &mut woken);
        assert_eq!(woken, [(7, 0)]);
    }
}
