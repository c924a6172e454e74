//! The requests of a queue: where each is between its submission and its being told of.
//!
//! What it never does: carry anything out, or read a clock.
//!
//! *Thread safety*: one thread's. *Invariants*: a number is in `free`, or its flight is under way,
//! or it is in `landed`; the buffer of a request lies here from its submission until it is told of.

use super::{BLOCK_BYTES, BlockError, BlockOp, Buffer, Done, Job, Landed, Pool, Request};
use nyx_base::{Instant, Nanos};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A request that was submitted. Worth one [`super::Queue::wait`], as long as it was not reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    queue: u64,
    flight: u32,
    turn: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flights {
    /// A number that no other queue of this process has.
    queue: u64,
    all: Box<[Flight]>,
    free: Vec<u32>,
    landed: VecDeque<u32>,
    pools: Vec<Pool>,
}

#[derive(Debug)]
struct Flight {
    tag: u64,
    op: BlockOp,
    at: u64,
    len_bytes: u64,
    /// So many are done.
    done_bytes: u64,
    buffer: Option<Buffer>,
    pool: Option<u16>,
    began: Instant,
    /// Some when it is over.
    result: Option<Result<(), BlockError>>,
    /// Counts the requests that had this number.
    turn: u32,
}

impl Flights {
    pub(super) fn new(depth: u32, pools: &[Pool]) -> Flights {
        let flight = |_| Flight {
            tag: 0,
            op: BlockOp::Flush,
            at: 0,
            len_bytes: 0,
            done_bytes: 0,
            buffer: None,
            pool: None,
            began: Instant(0),
            result: None,
            turn: 0,
        };
        static QUEUES: AtomicU64 = AtomicU64::new(0);
        Flights {
            queue: QUEUES.fetch_add(1, Relaxed),
            all: (0..depth).map(flight).collect(),
            free: (0..depth).rev().collect(),
            landed: VecDeque::with_capacity(depth as usize),
            pools: pools.to_vec(),
        }
    }

    /// Those under way.
    pub(super) fn in_flight(&self) -> u32 {
        (self.all.len() - self.free.len() - self.landed.len()) as u32
    }

    pub(super) fn has_landed(&self) -> bool {
        !self.landed.is_empty()
    }

    /// A request begins; without a free number it is given back.
    pub(super) fn begin(
        &mut self,
        request: Request,
        tag: u64,
        now: Instant,
    ) -> Result<(Ticket, Job), Request> {
        let Some(number) = self.free.pop() else {
            return Err(request);
        };
        let (op, at, len_bytes, buffer) = match request {
            Request::Read { at, into } => (BlockOp::Read, at, into.len() as u64, Some(into)),
            Request::Write {
                at,
                from,
                is_durable,
            } => {
                let op = match is_durable {
                    true => BlockOp::WriteDurably,
                    false => BlockOp::Write,
                };
                (op, at, from.len() as u64, Some(from))
            }
            Request::Flush => (BlockOp::Flush, 0, 0, None),
            Request::Zero { at, len_bytes } => (BlockOp::Zero, at, len_bytes, None),
        };
        let pool = buffer
            .as_ref()
            .and_then(|buffer| self.number_of(buffer.pool()));
        let flight = &mut self.all[number as usize];
        let turn = flight.turn;
        *flight = Flight {
            tag,
            op,
            at,
            len_bytes,
            done_bytes: 0,
            buffer,
            pool,
            began: now,
            result: None,
            turn,
        };
        let ticket = Ticket {
            queue: self.queue,
            flight: number,
            turn,
        };
        Ok((ticket, flight.job(number)))
    }

    fn number_of(&self, pool: &Pool) -> Option<u16> {
        let number = self.pools.iter().position(|known| known.is(pool))?;
        Some(number as u16)
    }

    /// Something has landed: what is still to be done, or nothing if that was all.
    pub(super) fn land(&mut self, landed: Landed) -> Option<Job> {
        let flight = &mut self.all[landed.flight as usize];
        assert!(flight.result.is_none(), "{landed:?} landed before");
        let result = match flight.after(landed.result) {
            Step::Over(result) => result,
            Step::GoesOn => return Some(flight.job(landed.flight)),
        };
        flight.result = Some(result);
        self.landed.push_back(landed.flight);
        None
    }

    /// The first that is over and not told of, and when it began.
    pub(super) fn next(&mut self) -> Option<(Done, Instant)> {
        let number = self.landed.pop_front()?;
        Some(self.tell(number))
    }

    /// That one, if it is over.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<(Done, Instant)> {
        assert_eq!(ticket.queue, self.queue, "this ticket is another queue's");
        let flight = &self.all[ticket.flight as usize];
        assert_eq!(flight.turn, ticket.turn, "this request was told of before");
        flight.result.as_ref()?;
        let place = self
            .landed
            .iter()
            .position(|&number| number == ticket.flight);
        self.landed
            .remove(place.expect("it is over and not told of"));
        Some(self.tell(ticket.flight))
    }

    fn tell(&mut self, number: u32) -> (Done, Instant) {
        let flight = &mut self.all[number as usize];
        flight.turn = flight.turn.wrapping_add(1);
        let done = Done {
            tag: flight.tag,
            op: flight.op,
            buffer: flight.buffer.take(),
            result: flight.result.expect("it is over"),
            took: Nanos(0),
        };
        self.free.push(number);
        (done, flight.began)
    }
}

enum Step {
    Over(Result<(), BlockError>),
    GoesOn,
}

impl Flight {
    /// What is left of it, for a driver.
    fn job(&self, flight: u32) -> Job {
        let address = self.buffer.as_ref().map(|buffer| {
            // SAFETY: fewer bytes are done than the buffer has.
            unsafe { buffer.address().add(self.done_bytes as usize) }
        });
        Job {
            flight,
            op: self.op,
            at: self.at + self.done_bytes,
            len_bytes: self.len_bytes - self.done_bytes,
            address,
            pool: self.pool,
        }
    }

    /// What is next after a driver's `result`.
    fn after(&mut self, result: i64) -> Step {
        let is_passing = |code| {
            [Errno::INTR, Errno::AGAIN]
                .map(Errno::raw_os_error)
                .contains(&code)
        };
        match (result, self.op) {
            (..0, _) if is_passing(-result as i32) => Step::GoesOn,
            (..0, _) => Step::Over(Err(self.error(Some(-result as i32)))),
            (0.., BlockOp::Flush | BlockOp::Zero) => Step::Over(Ok(())),
            (0.., BlockOp::Read | BlockOp::Write | BlockOp::WriteDurably) => {
                let left = self.len_bytes - self.done_bytes;
                if result as u64 >= left {
                    return Step::Over(Ok(()));
                }
                // What is gone on with begins at a block again.
                let whole = result as u64 / BLOCK_BYTES * BLOCK_BYTES;
                self.done_bytes += whole;
                match whole {
                    0 => Step::Over(Err(self.error(None))),
                    _ => Step::GoesOn,
                }
            }
        }
    }

    fn error(&self, os_error: Option<i32>) -> BlockError {
        BlockError {
            op: self.op,
            at: self.at,
            len_bytes: self.len_bytes,
            os_error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landed(flight: u32, result: i64) -> Landed {
        Landed { flight, result }
    }

    #[test]
    fn what_was_transferred_in_part_goes_on_where_it_stopped() {
        let pool = Pool::new(2, 16384).expect("memory");
        let mut flights = Flights::new(2, std::slice::from_ref(&pool));
        let into = pool.take().expect("free");
        let address = into.address();
        let read = Request::Read { at: 40960, into };
        let (ticket, job) = flights.begin(read, 7, Instant(5)).expect("room");
        assert_eq!((job.at, job.len_bytes, job.pool), (40960, 16384, Some(0)));
        for (transferred, at, left) in [(4096, 45056, 12288), (5000, 49152, 8192)] {
            let job = flights
                .land(landed(job.flight, transferred))
                .expect("it goes on");
            assert_eq!((job.at, job.len_bytes), (at, left));
            let passed = (at - 40960) as usize;
            assert_eq!(
                job.address.map(|now| now.as_ptr()),
                Some(address.as_ptr().wrapping_add(passed))
            );
        }
        assert!(
            flights.land(landed(job.flight, -4)).is_some(),
            "interrupted"
        );
        assert!(flights.take(ticket).is_none());
        assert!(flights.land(landed(job.flight, 8192)).is_none());
        let (done, began) = flights.take(ticket).expect("over");
        assert_eq!((done.tag, done.result, began), (7, Ok(()), Instant(5)));
        assert_eq!(done.buffer.map(|buffer| buffer.len()), Some(16384));
    }

    #[test]
    fn a_device_that_ends_and_one_that_fails_are_told_apart() {
        let pool = Pool::new(2, 8192).expect("memory");
        let mut flights = Flights::new(2, &[]);
        let mut fails = |result| {
            let into = pool.take().expect("free");
            let read = Request::Read { at: 4096, into };
            let (_, job) = flights.begin(read, 0, Instant(0)).expect("room");
            assert_eq!(job.pool, None);
            assert!(flights.land(landed(job.flight, result)).is_none());
            let (done, _) = flights.next().expect("over");
            assert!(done.buffer.is_some());
            done.result.expect_err("it failed").to_string()
        };
        assert_eq!(
            fails(0),
            "read of 8192 bytes at 4096: the device ends there"
        );
        assert_eq!(
            fails(100),
            "read of 8192 bytes at 4096: the device ends there"
        );
        let failed = fails(-5);
        assert!(
            failed.starts_with("read of 8192 bytes at 4096: Input/output error"),
            "{failed}"
        );
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn a_full_queue_gives_requests_back_and_order_is_that_of_landing() {
        let mut flights = Flights::new(3, &[]);
        let begun: Vec<_> = (0..3)
            .map(|tag| {
                flights
                    .begin(Request::Flush, tag, Instant(0))
                    .expect("room")
            })
            .collect();
        assert!(flights.begin(Request::Flush, 3, Instant(0)).is_err());
        assert_eq!((flights.in_flight(), flights.has_landed()), (3, false));
        for at in [2, 0, 1] {
            assert!(flights.land(landed(begun[at].1.flight, 0)).is_none());
        }
        assert!(flights.begin(Request::Flush, 3, Instant(0)).is_err());
        let (first, _) = flights.next().expect("over");
        let (waited_for, _) = flights.take(begun[1].0).expect("over");
        let (last, _) = flights.next().expect("over");
        assert_eq!((first.tag, waited_for.tag, last.tag), (2, 1, 0));
        assert!(flights.next().is_none());
    }

    #[test]
    #[should_panic(expected = "another queue's")]
    fn nobody_waits_with_another_queues_ticket() {
        let mut queues = [Flights::new(1, &[]), Flights::new(1, &[])];
        let begun = queues[0].begin(Request::Flush, 0, Instant(0));
        let (ticket, _) = begun.expect("room");
        queues[1].take(ticket);
    }

    #[test]
    #[should_panic(expected = "told of before")]
    fn nobody_waits_for_what_was_told_of() {
        let mut flights = Flights::new(1, &[]);
        let (ticket, job) = flights.begin(Request::Flush, 0, Instant(0)).expect("room");
        flights.land(landed(job.flight, 0));
        flights.next();
        flights.take(ticket);
    }
}
