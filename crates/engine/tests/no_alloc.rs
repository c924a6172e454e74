//! In steady state neither a GET nor a SET allocates on its way through parser, engine and store,
//! evictions included, in a tenant that was there from the start and in one that was taken in. In a
//! file of its own: the allocator counts for the whole process.

mod rig;

use nyx_base::Bytes;
use nyx_engine::{Outcome, Session, TenantConfig};
use nyx_policy::baselines::Unlimited;
use nyx_proto::Out;
use rig::{Rig, roomy};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as for the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as for the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEYS: u64 = 20_000;
const VALUE_LEN: usize = 300;

/// The requests of one kind, written into the same memory each time.
struct Client {
    request: String,
    value: String,
    out: Out,
    next: u64,
}

impl Client {
    fn key(&mut self) -> u64 {
        // A full cycle through all keys in an order that no cache can guess (Knuth's multiplier).
        self.next = self.next.wrapping_add(1);
        self.next.wrapping_mul(2_654_435_761) % KEYS
    }

    fn write(&mut self, kind: &str) {
        let (key, other) = (self.key(), self.key());
        self.request.clear();
        let request = &mut self.request;
        let written = match kind {
            "get" => write!(request, "get key{key}\r\n"),
            "gets" => write!(request, "gets key{key} key{other} key{key}\r\n"),
            "mg" => write!(request, "mg key{key} v f t c s\r\n"),
            "set" => write!(
                request,
                "set key{key} 0 0 {VALUE_LEN}\r\n{}\r\n",
                self.value
            ),
            "ttl" => write!(
                request,
                "set key{key} 0 60 {VALUE_LEN}\r\n{}\r\n",
                self.value
            ),
            "ms" => write!(
                request,
                "ms key{key} {VALUE_LEN} T0 c\r\n{}\r\n",
                self.value
            ),
            other => panic!("no requests of kind {other}"),
        };
        written.expect("a string takes everything");
    }

    /// How many allocations so many requests made.
    fn run(&mut self, rig: &mut Rig, session: &mut Session, kind: &str, requests: u32) -> u64 {
        let limits = rig.engine.limits(session);
        let before = ALLOCATIONS.load(Relaxed);
        for _ in 0..requests {
            self.write(kind);
            let request = self.request.as_bytes();
            let outcome = rig.try_within(&limits, session, request, &mut self.out);
            assert_eq!(outcome, Outcome::Done);
            assert!(!self.out.is_empty());
            self.out.consume(self.out.len());
        }
        ALLOCATIONS.load(Relaxed) - before
    }
}

#[test]
fn gets_and_sets_do_not_allocate() {
    let full = TenantConfig {
        size: Bytes(4 << 20),
        ..roomy("full")
    };
    let newcomer = TenantConfig {
        name: "newcomer".into(),
        ..full.clone()
    };
    let mut rig = Rig::roomy(vec![full], Box::new(Unlimited), 4 << 20, 2);
    let mut client = Client {
        request: String::with_capacity(1024),
        value: "v".repeat(VALUE_LEN),
        out: Out::new(),
        next: 0,
    };
    let kinds = ["set", "get", "gets", "mg", "ttl", "ms"];
    for tenant in 0..2 {
        if tenant == 1 {
            let taken_in = rig
                .engine
                .take_in(vec![newcomer.clone()], Box::new(Unlimited));
            taken_in.expect("there is room");
        }
        let mut session = rig.to(tenant);
        for kind in kinds {
            client.run(&mut rig, &mut session, kind, 20_000);
        }
        for kind in kinds {
            let allocations = client.run(&mut rig, &mut session, kind, 20_000);
            assert_eq!(allocations, 0, "{kind} of tenant {tenant}");
        }
        let tenant = &rig.engine.tenants()[usize::from(tenant)];
        let counts = tenant.counts();
        assert!(counts.get_hits > 1000 && counts.get_misses > 1000);
        assert!(tenant.store().figures().evictions > 0);
    }
}
