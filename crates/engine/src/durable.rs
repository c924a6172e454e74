//! Tenants whose changes go to a journal: when a change may be made, and when its answer may be
//! sent.
//!
//! What it never does: wait: a change that has to is held as one whose budget is used up, and an
//! answer that has to is kept by the driver, which asks [`Engine::is_settled`].
//!
//! *Thread safety*: as `engine`. Who makes changes durable is a thread of the driver's, one per
//! tenant ([`nyx_store::Store::sync`]).

use crate::config::EngineError;
use crate::engine::{Cx, Engine, Outcome, Request, Step};
use crate::session::Session;
use crate::tenant::Tenant;
use crate::worker::Worker;
use nyx_base::{Nanos, Now, TenantId, UnixSeconds};
use nyx_proto::{Command, Out, reply};
use nyx_store::{Journal, Ready, Replayed, SyncMode};

/// How soon a change is tried again for which the journal was not ready.
const TRY_AGAIN: Nanos = Nanos::from_millis(1);

/// An answer of a connection that may be sent when a tenant's journal is durable up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    tenant: TenantId,
    upto: u64,
}

/// The tenants of keys, each once.
fn tenants_of<'k>(session: &Session, keys: impl Iterator<Item = &'k [u8]>) -> Vec<TenantId> {
    let mut tenants: Vec<TenantId> = keys.filter_map(|key| session.tenant_of(key)).collect();
    tenants.sort_unstable();
    tenants.dedup();
    tenants
}

impl Cx<'_, '_> {
    /// Whether the next of several changes of one request can be made.
    pub(crate) fn journal_turn(&self) -> Step {
        match self
            .store
            .journal()
            .map(|journal| journal.ready(self.now.mono))
        {
            None | Some(Ready::Yes) => Step::Done,
            // Where it will not be, who tries again is told so.
            Some(_) => Step::Wait(self.now.mono + TRY_AGAIN),
        }
    }
}

/// Whether an answer may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It may.
    Yes,
    /// What it tells of is not durable yet.
    NotYet,
    /// And it will not be: the connection is to be closed without its answer.
    Never,
}

impl Engine {
    /// Does what a request says that changes something.
    pub(crate) fn execute_change(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        request: &Request<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        let (many, one);
        let tenants: &[TenantId] = match request.keys() {
            Some(keys) => {
                many = tenants_of(session, keys);
                &many
            }
            None => {
                one = request.tenant();
                one.as_slice()
            }
        };
        for &tenant in tenants {
            if let Some(not_now) = self.not_now(tenant, &request.command, now, out) {
                if not_now == Outcome::Done {
                    session.keys_done = 0;
                }
                return not_now;
            }
        }
        let outcome = self.execute_now(worker, session, request, now, out);
        for &tenant in tenants {
            self.owe(session, tenant);
        }
        outcome
    }

    /// What becomes of a change for which its tenant's journal is not ready.
    fn not_now(
        &self,
        tenant: TenantId,
        command: &Command<'_>,
        now: Now,
        out: &mut Out,
    ) -> Option<Outcome> {
        match self.journal(tenant)?.ready(now.mono) {
            Ready::Yes => None,
            Ready::Soon => Some(Outcome::Held {
                tenant,
                until: now.mono + TRY_AGAIN,
            }),
            Ready::No(why) => {
                if !command.noreply() {
                    reply::server_error(out, why);
                }
                Some(Outcome::Done)
            }
        }
    }

    /// Keeps in mind what must be durable before a connection is answered.
    fn owe(&self, session: &mut Session, tenant: TenantId) {
        let Some(journal) = self.journal(tenant) else {
            return;
        };
        // What was changed while it failed has no record.
        let upto = match journal.has_failed() {
            true => u64::MAX,
            false => journal.appended(),
        };
        if journal.sync_mode() == SyncMode::Each && upto > journal.durable() {
            session.owes.retain(|owed| owed.tenant != tenant);
            session.owes.push(Owed { tenant, upto });
        }
    }

    /// Whether what a connection was answered may be sent: all that it changed is durable, as far
    /// as that was promised. Asks for what is missing.
    #[inline]
    pub fn is_settled(&self, session: &mut Session) -> Settled {
        match session.owes.is_empty() {
            true => Settled::Yes,
            false => self.settle(session),
        }
    }

    #[cold]
    fn settle(&self, session: &mut Session) -> Settled {
        let durable = |tenant| self.journal(tenant).map_or(u64::MAX, Journal::durable);
        session.owes.retain(|owed| durable(owed.tenant) < owed.upto);
        let mut settled = Settled::Yes;
        for journal in session
            .owes
            .iter()
            .filter_map(|owed| self.journal(owed.tenant))
        {
            if journal.has_failed() {
                return Settled::Never;
            }
            journal.ask();
            settled = Settled::NotYet;
        }
        settled
    }

    fn journal(&self, tenant: TenantId) -> Option<&Journal> {
        self.tenants.get(tenant.index())?.store.journal()
    }

    /// Stores what the journals of tenants have whose images cannot be used, `tell`ing now and then
    /// how far it is, and at its end. To be called before anything else.
    pub fn replay(
        &self,
        worker: &mut Worker,
        now: UnixSeconds,
        tell: &mut dyn FnMut(&Tenant, &Replayed, bool),
    ) -> Result<(), EngineError> {
        for tenant in self.tenants.iter().filter(|one| one.store.is_to_replay()) {
            worker.enter();
            let at = Now {
                unix: now,
                ..Now::default()
            };
            let mut cx = self.cx(worker, tenant.id, at);
            let mut told = |replayed: &Replayed| tell(tenant, replayed, false);
            let replayed = cx.store.replay(cx.writer, &mut cx.lane, now, &mut told);
            let replayed = replayed.map_err(|source| EngineError::Store {
                tenant: tenant.name().to_owned(),
                source,
            })?;
            tell(tenant, &replayed, true);
            worker.leave();
        }
        Ok(())
    }
}
