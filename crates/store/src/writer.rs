//! One worker's hand in one tenant's store: its open segments.

use nyx_base::WorkerId;

/// The open segments of one (worker, tenant). Made by [`crate::Store::writer`], used with that store
/// alone.
#[derive(Debug)]
pub struct Writer {
    worker: WorkerId,
}

impl Writer {
    pub(crate) fn new(worker: WorkerId) -> Writer {
        Writer { worker }
    }

    /// Whose it is.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }
}
