//! Who makes changes durable: a thread for each tenant with a journal, so that a slow disk is
//! nobody else's.
//!
//! What it never does: touch an item.

use crate::shared::Shared;
use crate::worker::Inbox;
use nyx_base::{Clock, TenantId};
use nyx_engine::{Engine, Journal, SyncMode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The longest that a stop, or a disk that has room again, can go unnoticed.
const NAP_MAX: Duration = Duration::from_millis(100);

/// Syncs the journal of one tenant for as long as the server runs.
pub(crate) struct Syncer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tenant: TenantId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Syncer {
    pub(crate) fn run(self) -> io::Result<()> {
        let tenant = &self.engine.tenants()[self.tenant.index()];
        let Some(journal) = tenant.store().journal() else {
            return Ok(());
        };
        journal.attend();
        let nap = match journal.sync_mode() {
            SyncMode::Every(period) => Duration::from_nanos(period.0).min(NAP_MAX),
            SyncMode::Each => NAP_MAX,
        };
        let mut told = Told::default();
        while !self.shared.is_stopping() {
            // What went wrong the journal says itself.
            let _ = tenant.store().sync(self.clock.now());
            self.wake()?;
            told.tell(tenant.name(), journal);
            std::thread::park_timeout(nap);
        }
        Ok(())
    }

    /// Wakes workers that have answers that wait.
    fn wake(&self) -> io::Result<()> {
        for (worker, inbox) in self.shared.workers.iter().zip(&self.inboxes) {
            if worker.waits_for_journal.load(Relaxed) {
                inbox.wake()?;
            }
        }
        Ok(())
    }
}

/// What was said last of what is wrong with a journal.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    fn tell(&mut self, tenant: &str, journal: &Journal) {
        let trouble = journal.trouble();
        if self.0 == trouble {
            return;
        }
        match &trouble {
            Some(error) => tracing::error!(tenant, error, "the journal is in trouble"),
            None => tracing::info!(tenant, "the journal is well again"),
        }
        self.0 = trouble;
    }
}
