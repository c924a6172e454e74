//! `lease`: device time for accesses of a tenant's that are made elsewhere, as a program makes them
//! that has less memory than it uses (`nyx swap run --tenant`).
//!
//! Who makes them tells what was made since he asked last, which is charged to the tenant's account
//! as if a worker had made it, and gets device time for the next, which comes out of the tenant's
//! budget. So the policy sees one tenant, and its limit holds for both together. Of a tenant with a
//! deep device it is that one: programs page to devices of blocks.
//!
//! What it never does: wait. Who has to come again is told when.

use crate::engine::{Engine, Outcome};
use crate::session::Session;
use crate::worker::Worker;
use nyx_base::{DevicePs, Nanos, Now, TenantId};
use nyx_gate::cost::CHUNK_BYTES;
use nyx_gate::{Draw, Op};
use nyx_proto::{Lease, Leased, Out, reply};
use nyx_tier::Lane;

/// As much device time is given at once, at most.
const GRANT_MAX: DevicePs = DevicePs(10_000_000_000);
/// What was made is told so often, where something was: the controller's tick is about as long.
const AGAIN: Nanos = Nanos::from_millis(10);
/// Who has to wait longer asks in between, since limits change.
const AGAIN_MAX: Nanos = Nanos::from_millis(100);
/// More than any device does while somebody is away.
const ACCESSES_MAX: u64 = 1 << 32;
const BYTES_MAX: u64 = 1 << 48;
/// The kernel moves no more at once.
const ACCESS_BYTES_MAX: u64 = 1 << 31;

impl Engine {
    #[cold]
    pub(crate) fn lease(
        &self,
        worker: &mut Worker,
        session: &Session,
        lease: &Lease<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        let Some(tenant) = self.named(session, lease.tenant) else {
            let name = lease.tenant.escape_ascii();
            let message = format!("no tenant {name} within reach of this connection");
            reply::client_error(out, &message);
            return Outcome::Done;
        };
        if let Some(message) = wrong(lease) {
            reply::client_error(out, &message);
            return Outcome::Done;
        }
        let mut cx = self.cx(worker, tenant, now);
        cx.lane.note(Op::Read, lease.reads, lease.read_bytes);
        cx.lane.note(Op::Write, lease.writes, lease.written_bytes);
        cx.counters.cmd_lease.add(1);
        let want = DevicePs(lease.want_ps).min(GRANT_MAX);
        let (granted_ps, again) = match want {
            DevicePs::ZERO => (Some(0), AGAIN),
            want => match cx.lane.draw(now.mono, want) {
                Draw::Free => (None, AGAIN),
                Draw::Granted(granted) => (Some(granted.0), AGAIN),
                Draw::Closed { until } => (Some(0), until.since(now.mono).min(AGAIN_MAX)),
            },
        };
        let leased = Leased {
            granted_ps,
            // Never before the time has come.
            again_us: again.0.div_ceil(1_000),
            read_ps: prices(&cx.lane, Op::Read),
            write_ps: prices(&cx.lane, Op::Write),
        };
        reply::leased(out, &leased);
        Outcome::Done
    }

    /// The tenant of that name that a connection may reach.
    fn named(&self, session: &Session, name: &[u8]) -> Option<TenantId> {
        let mut within = session.tenants().into_iter();
        within.find(|tenant| self.tenants[tenant.index()].name().as_bytes() == name)
    }
}

/// What no device can have done.
fn wrong(lease: &Lease<'_>) -> Option<String> {
    let each = [
        ("reads", lease.reads, lease.read_bytes),
        ("writes", lease.writes, lease.written_bytes),
    ];
    each.into_iter().find_map(|(name, accesses, bytes)| {
        if accesses > ACCESSES_MAX || bytes > BYTES_MAX {
            return Some(format!(
                "{accesses} {name} of {bytes} bytes are too many at once: {ACCESSES_MAX} of \
                 {BYTES_MAX} bytes at most"
            ));
        }
        let is_long = accesses > 0 && bytes / accesses > ACCESS_BYTES_MAX;
        let is_odd = (accesses == 0) != (bytes == 0) || is_long;
        is_odd.then(|| format!("{accesses} {name} cannot be of {bytes} bytes"))
    })
}

/// Of an access of a page, and of each page beyond that.
fn prices(lane: &Lane<'_>, op: Op) -> [u64; 2] {
    let [one, two] = [CHUNK_BYTES, 2 * CHUNK_BYTES].map(|len| lane.price(op, len).0);
    [one, two.saturating_sub(one)]
}
