//! Keys that came or went and that a tree does not know of yet: HybridIndex's way (Han et al.,
//! section 3.1), where a request waits for the hash alone and the tree follows.
//!
//! Keys are in stripes by their hash; those of a stripe are told to the tree in the order in which
//! they came and went. A stripe is bounded: who finds it full tells the tree of some itself.
//!
//! What it never does: know a tree, allocate once it is made (but for keys that go while the tree
//! has no memory for those that came before).
//!
//! *Thread safety*: a stripe is behind a lock, which is held while its keys are told to the tree,
//! so that nobody overtakes.

use nyx_base::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 16;
/// Bytes of keys that a stripe holds, with two bytes for each: some 1,000 short keys in all of
/// them, for which a range waits a millisecond.
const STRIPE_BYTES: usize = 2048;
/// Keys that are told to the tree where a stripe is full, before the next.
const AT_ONCE: usize = 8;

/// Whether a key came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Came,
    Went,
}

/// Tells a tree of a key, if it can be told.
type Tell<'t, E> = &'t mut dyn FnMut(News, &[u8]) -> Result<(), E>;

/// What a tree does not know of yet.
#[derive(Debug)]
pub(crate) struct Backlog {
    stripes: Box<[CachePadded<Mutex<Stripe>>]>,
    waiting: AtomicU64,
}

/// Keys in their order: whether it came, its length, its bytes.
#[derive(Debug)]
struct Stripe {
    bytes: Vec<u8>,
    /// The tree knows of what is before.
    told: usize,
}

impl Backlog {
    pub(crate) fn new() -> Backlog {
        let stripe = || Stripe {
            bytes: Vec::with_capacity(2 * STRIPE_BYTES),
            told: 0,
        };
        Backlog {
            stripes: (0..STRIPES)
                .map(|_| CachePadded(Mutex::new(stripe())))
                .collect(),
            waiting: AtomicU64::new(0),
        }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes() -> u64 {
        (STRIPES * 2 * STRIPE_BYTES) as u64
    }

    /// How many keys wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Acquire)
    }

    /// Notes that a key came or went, under the lock of its bucket. Where there are too many,
    /// `tell` tells the tree of some before; if it cannot, a key that came is not noted.
    pub(crate) fn note<E>(
        &self,
        hash: u64,
        (news, key): (News, &[u8]),
        tell: Tell<'_, E>,
    ) -> Result<(), E> {
        let mut stripe = self.lock(hash as usize % STRIPES);
        if stripe.len() + 2 + key.len() > STRIPE_BYTES {
            let told = self.tell(&mut stripe, AT_ONCE, tell);
            if let (Err(error), News::Came) = (told, news) {
                return Err(error);
            }
        }
        stripe
            .bytes
            .extend([u8::from(news == News::Came), key.len() as u8]);
        stripe.bytes.extend(key);
        self.waiting.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Tells the tree of all keys that had come or gone before this was called. Stops where it
    /// cannot be told.
    pub(crate) fn tell_all<E>(&self, tell: Tell<'_, E>) -> Result<(), E> {
        (0..STRIPES).try_for_each(|stripe| {
            let mut stripe = self.lock(stripe);
            self.tell(&mut stripe, usize::MAX, tell)
        })
    }

    fn tell<E>(&self, stripe: &mut Stripe, most: usize, tell: Tell<'_, E>) -> Result<(), E> {
        for _ in 0..most {
            let Some(&[came, len]) = stripe.bytes[stripe.told..].first_chunk() else {
                break;
            };
            let key = stripe.told + 2..stripe.told + 2 + usize::from(len);
            let news = if came == 1 { News::Came } else { News::Went };
            tell(news, &stripe.bytes[key.clone()])?;
            stripe.told = key.end;
            self.waiting.fetch_sub(1, Relaxed);
        }
        stripe.close_up();
        Ok(())
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        let stripe = self.stripes[stripe].lock();
        stripe.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stripe {
    /// Bytes of keys that wait.
    fn len(&self) -> usize {
        self.bytes.len() - self.told
    }

    /// Drops what was told, when that is all, or as much as there may be.
    fn close_up(&mut self) {
        if self.len() == 0 || self.told >= STRIPE_BYTES {
            self.bytes.drain(..self.told);
            self.told = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_tree_that_is_told_late_has_what_the_hash_has() {
        let backlog = Backlog::new();
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut hash, mut tree) = (BTreeSet::new(), BTreeSet::new());
        let apply = |tree: &mut BTreeSet<Vec<u8>>, news: News, key: &[u8]| {
            let fits = match news {
                News::Came => tree.insert(key.to_vec()),
                News::Went => tree.remove(key),
            };
            assert!(fits, "{news:?} {key:?} out of turn");
            Ok::<_, ()>(())
        };
        for _ in 0..100_000 {
            let number = rng.u8(..);
            let key = vec![number; usize::from(number) % 60 + 1];
            let news = match hash.remove(&key) {
                true => News::Went,
                false => News::Came,
            };
            if news == News::Came {
                hash.insert(key.clone());
            }
            let mut tell = |news, key: &[u8]| apply(&mut tree, news, key);
            let noted = backlog.note(u64::from(number), (news, &key), &mut tell);
            assert_eq!(noted, Ok(()));
            if rng.u16(..) < 20 {
                assert_eq!(backlog.tell_all(&mut tell), Ok(()));
                assert_eq!((backlog.waiting(), &tree), (0, &hash));
            }
        }
    }

    #[test]
    fn a_tree_without_memory_takes_no_more_keys_and_forgets_none() {
        let backlog = Backlog::new();
        let mut full = |_, _: &[u8]| Err("full");
        let noted = (0..).take_while(|_| {
            let key = (News::Came, b"twenty-bytes-of-key-".as_slice());
            backlog.note(0, key, &mut full).is_ok()
        });
        let noted = noted.count() as u64;
        assert_eq!(noted, (STRIPE_BYTES / 22) as u64);
        assert_eq!(backlog.note(0, (News::Went, b"key"), &mut full), Ok(()));
        assert_eq!(backlog.tell_all(&mut full), Err("full"));
        assert_eq!(backlog.waiting(), noted + 1);
        let mut told = 0;
        let counted = backlog.tell_all(&mut |_, _| {
            told += 1;
            Ok::<_, ()>(())
        });
        assert_eq!((counted, told, backlog.waiting()), (Ok(()), noted + 1, 0));
    }
}
