//! A P4800X with queues: what is submitted to one is fetched in its order, and the device goes
//! round the queues (NVMe's round robin), so that a request in a queue of its own waits for one
//! transfer at most.
//!
//! The model is [`nyx_media::model::block`]: channels that work at once behind one bus. Its preset
//! `optane-ssd` is another device (Orthus' table); here rates are those of the P4800X at random
//! pages (550 and 500 thousand a second, section 1.2), a lone page takes 10 us, and latencies are
//! not spread, so that what is asserted is exact.
//!
//! What it never does: hold bytes; merge; read a clock. *Thread safety*: one owner. *Invariants*:
//! times never go back.

use nyx_base::{Instant, Nanos};
use nyx_media::model::block::{BlockModel, BlockParams};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// A lone page, read or written.
pub const ALONE_NS: u64 = 10_000;
const READS_PER_S: u64 = 550_000;
const WRITES_PER_S: u64 = 500_000;
/// Enough that the bus is what limits it.
const CHANNELS: u32 = 16;

/// How requests of one queue are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// As the device does: several at once, fetched in their order.
    Parallel,
    /// One after the other, each for all of its time: what section 2.3 says of the queue.
    InOrder,
}

/// A request for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The page.
    pub page: u32,
    /// A write, or a read.
    pub is_write: bool,
    /// Somebody waits for it.
    pub is_critical: bool,
    /// The queue that it was submitted to.
    pub queue: usize,
    /// When.
    pub submitted: Instant,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Device {
    model: BlockModel,
    service: Service,
    queues: Vec<VecDeque<Request>>,
    /// Where each queue's last request is done, if it is served in order.
    last: Vec<Instant>,
    /// The queue that is looked at first.
    next: usize,
    bus_free: Instant,
    in_flight: BTreeMap<(Instant, u64), Request>,
    number: u64,
}

/// The parameters, as the module says.
pub fn p4800x() -> BlockParams {
    let transfer_ns = |per_s: u64| 1_000_000_000 / per_s;
    BlockParams {
        name: "p4800x".to_owned(),
        channels: CHANNELS,
        read_latency_ns: ALONE_NS - transfer_ns(READS_PER_S),
        write_latency_ns: ALONE_NS - transfer_ns(WRITES_PER_S),
        read_bytes_per_s: READS_PER_S * PAGE_BYTES,
        write_bytes_per_s: WRITES_PER_S * PAGE_BYTES,
        spread: 0.0,
    }
}

impl Device {
    /// With so many queues.
    pub fn new(service: Service, queues: usize) -> Device {
        Device {
            model: BlockModel::new(p4800x(), 1),
            service,
            queues: vec![VecDeque::new(); queues],
            last: vec![Instant(0); queues],
            next: 0,
            bus_free: Instant(0),
            in_flight: BTreeMap::new(),
            number: 0,
        }
    }

    /// A request comes now.
    pub fn submit(&mut self, request: Request) {
        let now = request.submitted;
        self.fetch(now);
        match self.service {
            Service::Parallel => {
                self.queues[request.queue].push_back(request);
                self.fetch(now);
            }
            Service::InOrder => {
                let last = &mut self.last[request.queue];
                *last = now.max(*last) + Nanos(ALONE_NS);
                let done = *last;
                self.fly(done, request);
            }
        }
    }

    /// When something may be done next.
    pub fn next_event(&self) -> Option<Instant> {
        let done = self.in_flight.keys().next().map(|&(done, _)| done);
        let waits = self.queues.iter().any(|queue| !queue.is_empty());
        let fetched = waits.then_some(self.bus_free);
        done.into_iter().chain(fetched).min()
    }

    /// One request that is done by now.
    pub fn done(&mut self, now: Instant) -> Option<Request> {
        self.fetch(now);
        let first = self.in_flight.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Fetches what the bus has had time for by now.
    fn fetch(&mut self, now: Instant) {
        let queues = self.queues.len();
        while self.bus_free <= now {
            let order = (0..queues).map(|step| (self.next + step) % queues);
            let Some(queue) = order.into_iter().find(|&at| !self.queues[at].is_empty()) else {
                return;
            };
            let Some(request) = self.queues[queue].pop_front() else {
                return;
            };
            self.next = (queue + 1) % queues;
            let begin = self.bus_free.max(request.submitted);
            let done = self.model.submit(begin, request.is_write, PAGE_BYTES);
            let params = self.model.params();
            let latency_ns = match request.is_write {
                true => params.write_latency_ns,
                false => params.read_latency_ns,
            };
            self.bus_free = done - Nanos(latency_ns);
            self.fly(done, request);
        }
    }

    fn fly(&mut self, done: Instant, request: Request) {
        self.number += 1;
        self.in_flight.insert((done, self.number), request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(page: u32, queue: usize) -> Request {
        Request {
            page,
            is_write: false,
            is_critical: false,
            queue,
            submitted: Instant(0),
        }
    }

    fn done_ns(device: &mut Device, page: u32) -> u64 {
        loop {
            let now = device.next_event().expect("it is on its way");
            while let Some(request) = device.done(now) {
                if request.page == page {
                    return now.0;
                }
            }
        }
    }

    #[test]
    fn alone_a_page_takes_its_time_and_many_have_the_rate() {
        let mut device = Device::new(Service::Parallel, 1);
        device.submit(request(0, 0));
        assert!(done_ns(&mut device, 0).abs_diff(ALONE_NS) <= 1);
        let mut device = Device::new(Service::Parallel, 1);
        for page in 0..10_000 {
            device.submit(request(page, 0));
        }
        let per_s = 1e13 / done_ns(&mut device, 9_999) as f64;
        assert!((per_s / READS_PER_S as f64 - 1.0).abs() < 0.01, "{per_s}");
    }

    #[test]
    fn in_a_queue_of_its_own_a_request_waits_for_one_transfer_at_most() {
        let in_queue = |queue| {
            let mut device = Device::new(Service::Parallel, 2);
            for page in 0..64 {
                device.submit(request(page, 0));
            }
            device.submit(request(99, queue));
            done_ns(&mut device, 99)
        };
        let transfer_ns = 1_000_000_000 / READS_PER_S;
        assert!(in_queue(1) <= ALONE_NS + transfer_ns + 2, "{}", in_queue(1));
        assert!(
            in_queue(0) >= ALONE_NS + 64 * transfer_ns,
            "{}",
            in_queue(0)
        );
    }
}
