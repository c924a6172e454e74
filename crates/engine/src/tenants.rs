//! The table of tenants: appended to while workers look things up in it, and never taken from. A
//! tenant's id is its place, for as long as the engine lives.
//!
//! What it never does: move a tenant, lock, or allocate after it was made.
//!
//! *Thread safety*: everybody may look up at any time, by one acquire load. One thread at a time
//! appends: the engine's lock over its ground sees to that.
//!
//! *Invariants*: places below the published length are taken, all others may be about to be.

use crate::tenant::Tenant;
use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};

/// The tenants of an engine; the index is a tenant's id as a number.
pub struct Tenants {
    /// Boxed, because a tenant is large and most places stay free.
    places: Box<[OnceLock<Box<Tenant>>]>,
    taken: AtomicUsize,
}

impl Tenants {
    /// No tenants, and room for so many.
    pub(crate) fn with_room(room: usize) -> Tenants {
        Tenants {
            places: (0..room).map(|_| OnceLock::new()).collect(),
            taken: AtomicUsize::new(0),
        }
    }

    /// Appends a tenant, whose id is the length before. One thread at a time.
    ///
    /// Panics where there is no room.
    pub(crate) fn push(&self, tenant: Tenant) {
        let at = self.len();
        debug_assert_eq!(tenant.id.index(), at, "an id is a place");
        let place = self.places[at].set(Box::new(tenant));
        assert!(place.is_ok(), "one thread at a time appends");
        self.taken.store(at + 1, Release);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.taken.load(Acquire)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there may ever be.
    pub fn room(&self) -> usize {
        self.places.len()
    }

    /// The tenant at a place; none where there is none yet.
    pub fn get(&self, at: usize) -> Option<&Tenant> {
        self.places.get(at)?.get().map(|tenant| &**tenant)
    }

    /// Those that there are now, in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Tenant> + Clone {
        (0..self.len()).map(|at| &self[at])
    }
}

impl Index<usize> for Tenants {
    type Output = Tenant;

    /// Panics where there is none.
    #[inline]
    fn index(&self, at: usize) -> &Tenant {
        self.places[at]
            .get()
            .expect("an id is the place of a tenant")
    }
}
