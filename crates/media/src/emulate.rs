//! A device model laid over a real medium: the bytes are real, the time is the model's. The
//! issuing thread is held until the model lets it go on (NyxCache has no such layer; it owned the
//! device).
//!
//! What it never does: make an access faster than the medium beneath, or fail. Where the medium or
//! the processor is slower than the model, the time is theirs; emulate a divided device
//! (`optane-2dimm/8`) where that matters.
//!
//! *Thread safety*: as the medium's and the model's; it has no state of its own.

use crate::model::Params;
use crate::model::o1::{Model, Timing};
use crate::{Evidence, Front, Media, Via};
use nyx_base::{Clock, DevicePs, Instant};
use std::sync::Arc;

/// A medium that takes as long as a modelled device. See the module.
pub struct Emulated<M> {
    medium: M,
    model: Model,
    clock: Arc<dyn Clock>,
    evidence: Evidence,
}

impl<M: Media> Emulated<M> {
    /// Over a clock that counts real nanoseconds: numbers from here are [`Evidence::Emulated`].
    pub fn in_real_time(medium: M, params: Params, clock: Arc<dyn Clock>) -> Emulated<M> {
        let evidence = Evidence::Emulated;
        Emulated {
            medium,
            model: Model::new(params),
            clock,
            evidence,
        }
    }

    /// Over a virtual clock: numbers from here are [`Evidence::Simulated`].
    pub fn in_virtual_time(medium: M, params: Params, clock: Arc<dyn Clock>) -> Emulated<M> {
        let evidence = Evidence::Simulated;
        Emulated {
            medium,
            model: Model::new(params),
            clock,
            evidence,
        }
    }

    /// The model, for audits of charged against true device time ([`Model::busy`]).
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The device time of all accesses so far, by the model's own count.
    pub fn busy(&self) -> DevicePs {
        self.model.busy()
    }

    /// The medium beneath.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Accesses the medium beneath and holds the thread until the model lets it go on.
    #[inline]
    pub(crate) fn timed<R>(
        &self,
        front: &mut Front,
        timing: impl FnOnce(&Model, &mut Front, Instant) -> Timing,
        access: impl FnOnce(&M, &mut Front) -> R,
    ) -> R {
        let now = self.clock.now();
        let timing = timing(&self.model, front, now);
        let result = access(&self.medium, front);
        if timing.free > now {
            self.clock.spin_until(timing.free);
        }
        result
    }
}

impl<M: Media> Media for Emulated<M> {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, front: &mut Front, at: u64, into: &mut [u8]) {
        let len = into.len() as u64;
        self.timed(
            front,
            |model, front, now| model.read(front, now, at, len),
            |medium, front| medium.read(front, at, into),
        );
    }

    fn write(&self, front: &mut Front, at: u64, from: &[u8], via: Via) {
        let len = from.len() as u64;
        self.timed(
            front,
            |model, front, now| match via {
                Via::NonTemporal => model.write_nt(now, at, len),
                Via::Cached => model.write_cached(front, now, at, len),
            },
            |medium, front| medium.write(front, at, from, via),
        );
    }

    /// Costs what the medium beneath costs: the model charges evictions when the bytes are written.
    fn persist(&self, front: &mut Front, at: u64, len: u64) {
        self.medium.persist(front, at, len);
    }

    fn settle(&self, front: &mut Front) {
        self.clock.spin_until(self.model.settled(front));
        self.medium.settle(front);
    }

    fn prefetch(&self, at: u64, len: usize) {
        self.medium.prefetch(at, len);
    }

    fn prefetch_write(&self, at: u64, len: usize) {
        self.medium.prefetch_write(at, len);
    }

    fn evidence(&self) -> Evidence {
        self.evidence
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Mapped, TscClock, evaluate};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A clock that moves only when somebody waits for it.
    #[derive(Default)]
    pub(crate) struct Virtual(AtomicU64);

    impl Clock for Virtual {
        fn now(&self) -> Instant {
            Instant(self.0.load(Relaxed))
        }
        fn spin_until(&self, until: Instant) {
            self.0.fetch_max(until.0, Relaxed);
        }
    }

    fn optane(clock: Arc<dyn Clock>) -> Emulated<Mapped> {
        let params = Params::resolve("optane-2dimm").expect("a preset");
        let medium = Mapped::anonymous(1 << 20).expect("memory");
        Emulated::in_virtual_time(medium, params, clock)
    }

    #[test]
    fn bytes_are_real_and_time_is_the_models() {
        let clock = Arc::new(Virtual::default());
        let device = optane(clock.clone());
        let front = &mut Front::default();
        device.write(front, 0, b"abc", Via::NonTemporal);
        assert_eq!(clock.now(), Instant(19), "one 64 B store of 18.3 ns");
        let mut seen = [0; 3];
        device.read(front, 0, &mut seen);
        assert_eq!(&seen, b"abc");
        device.settle(front);
        let took = clock.now().0 - 19;
        assert!(
            (490..=495).contains(&took),
            "a load of 490.7 ns took {took} ns"
        );
        assert_eq!(device.evidence(), Evidence::Simulated);
        assert_eq!(device.len(), 1 << 20);
    }

    #[test]
    fn an_evaluations_write_is_charged_as_any_other_and_moves_its_bytes() {
        let clock = Arc::new(Virtual::default());
        let device = optane(clock.clone());
        let front = &mut Front::default();
        let written = evaluate::Target::write(&device, front, 512, &[7; 256], 64);
        written.expect("memory does not fail");
        assert_eq!(clock.now(), Instant(74), "four times 64 B of 18.3 ns");
        let mut seen = [0; 256];
        device.read(front, 512, &mut seen);
        assert_eq!(seen, [7; 256]);
    }

    #[test]
    fn loads_overlap_up_to_the_window() {
        let clock = Arc::new(Virtual::default());
        let device = optane(clock.clone());
        let front = &mut Front::default();
        let mut bytes = [0; 256];
        for i in 0..2 {
            device.read(front, i * 256, &mut bytes);
        }
        assert!(
            clock.now() < Instant(120),
            "two 256 B loads are outstanding"
        );
        device.read(front, 512, &mut bytes);
        assert!(clock.now() >= Instant(490), "the third waits for the first");
    }

    #[test]
    fn an_emulated_access_takes_at_least_its_modelled_time() {
        let params = Params::resolve("ull-ssd").expect("a preset");
        let clock = Arc::new(TscClock::start());
        let medium = Arc::new(Mapped::anonymous(1 << 20).expect("memory"));
        let device = Emulated::in_real_time(medium, params, clock.clone());
        let start = clock.now();
        (0..10).for_each(|i| device.read(&mut Front::default(), i * 4096, &mut [0; 64]));
        assert!(
            clock.now().since(start).0 >= 89_000,
            "ten page reads of 8.9 us"
        );
        assert_eq!(device.evidence(), Evidence::Emulated);
        assert_eq!(device.busy(), DevicePs(10 * 8_500_000 / 5));
    }
}
