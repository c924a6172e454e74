//! What every queue does, whoever carries its requests out.

use super::*;
use crate::model::block::{BlockModel, BlockParams};
use proptest::prelude::*;
use std::ops::Range;
use std::time::Duration;

mod polled;

const BLOCKS: u64 = 64;

/// All that is to be had here. Polled rings need a device that no test machine has for sure: they
/// have tests of their own.
fn ways() -> Vec<(&'static str, Queue, Pool)> {
    let throughs = [
        Through::Auto,
        Through::Uring,
        Through::UringThread,
        Through::Threads,
        Through::Calls,
    ];
    let pool = || Pool::new(32, 8 * BLOCK_BYTES as usize).expect("memory");
    let mut ways = Vec::new();
    for (through, name) in
        throughs
            .into_iter()
            .zip(["auto", "uring", "uring-thread", "threads", "calls"])
    {
        let (pool, shape) = (pool(), QueueShape { depth: 16, through });
        match Queue::new(&device(), std::slice::from_ref(&pool), shape) {
            Ok(queue) => ways.push((name, queue, pool)),
            Err(refused) if through != Through::Auto && through != Through::Threads => {
                eprintln!("SKIPPED {name}: {refused}");
            }
            Err(refused) => panic!("{name}: {refused}"),
        }
    }
    let (through, depth) = (Through::Threads, 16);
    let (pool, shape) = (pool(), QueueShape { depth, through });
    let model = BlockModel::new(BlockParams::preset("optane-ssd").expect("known"), 1);
    let model = Arc::new(Mutex::new(Emulation::new(model)));
    let queue = Queue::emulated(&device(), std::slice::from_ref(&pool), shape, &model);
    ways.push(("emulated", queue.expect("made"), pool));
    ways
}

fn device() -> Arc<BlockFile> {
    let dir = tempfile::tempdir().expect("a directory");
    let device = BlockFile::create(&dir.path().join("device"), BLOCKS * BLOCK_BYTES);
    Arc::new(device.expect("room"))
}

fn filled(pool: &Pool, blocks: u64, with: u8) -> Buffer {
    let mut buffer = pool.take().expect("free");
    buffer.narrow(0..(blocks * BLOCK_BYTES) as usize);
    buffer.fill(with);
    buffer
}

fn write(pool: &Pool, block: u64, blocks: u64, with: u8) -> Request {
    Request::Write {
        at: block * BLOCK_BYTES,
        from: filled(pool, blocks, with),
        is_durable: with.is_multiple_of(2),
    }
}

fn read(pool: &Pool, block: u64, blocks: u64) -> Request {
    Request::Read {
        at: block * BLOCK_BYTES,
        into: filled(pool, blocks, 0xee),
    }
}

#[test]
fn what_was_written_is_read() {
    for (name, mut queue, pool) in ways() {
        let done = queue.poll(write(&pool, 3, 4, 7), 1).expect("room");
        assert_eq!(
            (done.tag, done.op, done.result),
            (1, BlockOp::Write, Ok(())),
            "{name}"
        );
        drop(done);
        assert_eq!(
            queue.poll(write(&pool, 5, 1, 8), 2).expect("room").op,
            BlockOp::WriteDurably
        );
        assert_eq!(
            queue.poll(Request::Flush, 3).expect("room").result,
            Ok(()),
            "{name}"
        );
        let zero = Request::Zero {
            at: 4 * BLOCK_BYTES,
            len_bytes: BLOCK_BYTES,
        };
        assert_eq!(queue.poll(zero, 4).expect("room").result, Ok(()), "{name}");
        let done = queue.poll(read(&pool, 2, 6), 5).expect("room");
        let bytes = done.buffer.expect("a read has one");
        let blocks: Vec<u8> = bytes
            .chunks(BLOCK_BYTES as usize)
            .map(|block| block[9])
            .collect();
        assert_eq!(blocks, [0, 7, 0, 8, 7, 0], "{name}");
        drop(bytes);
        assert_eq!((queue.in_flight(), pool.free()), (0, 32), "{name}");
        let mut counted = nyx_base::Latencies::default();
        queue.reads().add_to(&mut counted);
        assert_eq!(counted.count(), 1, "{name}");
        queue.writes().add_to(&mut counted);
        assert_eq!(counted.count(), 3, "{name}");
    }
}

#[test]
fn a_full_queue_gives_back_and_everything_is_told_of_once() {
    for (name, mut queue, pool) in ways() {
        for tag in 0..16 {
            assert!(
                queue.submit(write(&pool, tag, 1, tag as u8), tag).is_ok(),
                "{name}"
            );
        }
        assert!(
            matches!(queue.submit(Request::Flush, 16), Err(Request::Flush)),
            "{name}"
        );
        queue.kick();
        let mut told = [0; 16];
        while queue.in_flight() > 0 {
            queue.rest();
            while let Some(done) = queue.reap() {
                assert_eq!(done.result, Ok(()), "{name}");
                told[done.tag as usize] += 1;
            }
        }
        assert_eq!((told, queue.reap().is_none()), ([1; 16], true), "{name}");
    }
}

#[test]
fn between_the_halves_of_a_split_request_others_are_done() {
    for (name, mut queue, pool) in ways() {
        let critical = queue.submit(read(&pool, 0, 1), 100).expect("room");
        queue.kick();
        for tag in 0..8 {
            queue.submit(read(&pool, tag, 1), tag).expect("room");
        }
        let done = queue.wait(critical);
        assert_eq!((done.tag, done.result), (100, Ok(())), "{name}");
        let mut tags: Vec<u64> = Vec::new();
        while tags.len() < 8 {
            queue.rest();
            tags.extend(std::iter::from_fn(|| queue.reap()).map(|done| done.tag));
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..8).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_sleeper_is_woken_by_the_event() {
    use rustix::event::{PollFd, PollFlags, poll};
    for (name, mut queue, pool) in ways() {
        for tag in 0..3 {
            queue.submit(read(&pool, 1, 2), tag).expect("room");
            queue.kick();
            // As a worker does: it looks, sleeps where there is nothing, and looks again.
            let done = loop {
                if let Some(done) = queue.reap() {
                    break done;
                }
                let event = queue.event().expect("not polled");
                let timeout = Duration::from_secs(20).try_into().expect("short");
                let ready = poll(
                    &mut [PollFd::from_borrowed_fd(event, PollFlags::IN)],
                    Some(&timeout),
                );
                assert_eq!(ready, Ok(1), "{name}: nobody was woken");
            };
            assert_eq!((done.tag, done.result), (tag, Ok(())), "{name}");
        }
    }
}

#[test]
fn a_device_that_became_shorter_is_told_of_as_such() {
    for (name, mut queue, pool) in ways() {
        let path = queue.device().path().to_owned();
        // The directory is gone; the file is reached through its descriptor.
        assert!(!path.exists());
        rustix::fs::ftruncate(queue.device().file(), 10 * BLOCK_BYTES).expect("shorter");
        let done = queue.poll(read(&pool, 8, 4), 0).expect("room");
        let error = done.result.expect_err("half of it is gone").to_string();
        assert_eq!(
            error, "read of 16384 bytes at 32768: the device ends there",
            "{name}"
        );
    }
}

#[test]
fn who_drops_a_queue_gets_all_buffers_back() {
    for (name, mut queue, pool) in ways() {
        for tag in 0..12 {
            queue.submit(write(&pool, tag, 2, 1), tag).expect("room");
        }
        queue.kick();
        drop(queue);
        assert_eq!(pool.free(), 32, "{name}");
    }
}

#[test]
fn who_drops_a_queue_waits_for_what_is_in_flight() {
    let params = BlockParams::preset("sata-flash/20").expect("known");
    let least_ns = params.read_latency_ns / 2;
    let model = Arc::new(Mutex::new(Emulation::new(BlockModel::new(params, 1))));
    let (pool, shape) = (
        Pool::new(1, 4096).expect("memory"),
        QueueShape {
            depth: 1,
            through: Through::Auto,
        },
    );
    let mut queue = Queue::emulated(&device(), &[], shape, &model).expect("made");
    let clock = TscClock::start();
    queue.submit(read(&pool, 0, 1), 0).expect("room");
    drop(queue);
    assert!(
        clock.now().0 >= least_ns,
        "{:?} of {least_ns} ns",
        clock.now()
    );
    assert_eq!(pool.free(), 1);
}

#[test]
fn a_device_whose_queues_are_gone_is_free_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("device");
    for _ in 0..20 {
        let device = Arc::new(BlockFile::create(&path, 4096).expect("nobody has it"));
        let shape = QueueShape {
            depth: 4,
            through: Through::Auto,
        };
        let pool = Pool::new(1, 4096).expect("memory");
        let queue = Queue::new(&device, std::slice::from_ref(&pool), shape);
        assert!(
            queue
                .expect("made")
                .poll(read(&pool, 0, 1), 0)
                .expect("room")
                .result
                .is_ok()
        );
    }
}

#[test]
fn buffers_of_a_pool_that_nobody_was_told_of_serve_as_well() {
    let pool = Pool::new(1, 4096).expect("memory");
    for (name, mut queue, _) in ways() {
        assert_eq!(
            queue.poll(write(&pool, 0, 1, 3), 0).expect("room").result,
            Ok(()),
            "{name}"
        );
        let done = queue.poll(read(&pool, 0, 1), 1).expect("room");
        assert!(
            done.buffer
                .is_some_and(|bytes| bytes.iter().all(|&byte| byte == 3)),
            "{name}"
        );
    }
}

#[test]
fn a_queue_may_be_made_by_one_thread_and_used_by_another() {
    for (name, mut queue, pool) in ways() {
        std::thread::scope(|scope| {
            let used = scope.spawn(move || queue.poll(read(&pool, 0, 1), 0).expect("room").result);
            assert_eq!(used.join().expect("no panic"), Ok(()), "{name}");
        });
    }
}

#[test]
#[should_panic(expected = "4096 bytes at 262144 of a device of 262144 bytes")]
fn nothing_is_asked_for_behind_the_end() {
    let (_, mut queue, pool) = ways().remove(0);
    let _ = queue.submit(read(&pool, BLOCKS, 1), 0);
}

#[test]
fn an_emulated_device_takes_the_time_of_its_model() {
    let mut params = BlockParams::preset("optane-ssd/20").expect("known");
    params.spread = 0.0;
    let alone_ns = params.alone_ns(false, BLOCK_BYTES) as u64;
    let model = Arc::new(Mutex::new(Emulation::new(BlockModel::new(params, 1))));
    let pool = Pool::new(4, 4096).expect("memory");
    let shape = QueueShape {
        depth: 4,
        through: Through::Threads,
    };
    let mut queue = Queue::emulated(&device(), &[], shape, &model).expect("made");
    for _ in 0..20 {
        let done = queue.poll(read(&pool, 0, 1), 0).expect("room");
        assert!(done.took.0 >= alone_ns, "{:?} of {alone_ns} ns", done.took);
    }
    assert!(queue.describe().starts_with("emulated optane-ssd/20 over"));
}

#[derive(Clone, Debug)]
enum Act {
    Write(u64, u64, u8),
    Read(u64, u64),
    Zero(u64, u64),
    Settle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let range = || (0..BLOCKS - 8, 1..=8u64);
    let act = prop_oneof![
        4 => (range(), any::<u8>())
            .prop_map(|((block, blocks), with)| Act::Write(block, blocks, with)),
        4 => range().prop_map(|(block, blocks)| Act::Read(block, blocks)),
        1 => range().prop_map(|(block, blocks)| Act::Zero(block, blocks)),
        2 => Just(Act::Settle),
    ];
    proptest::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Requests one at a time or several together, where they do not touch each other's blocks.
    #[test]
    fn it_agrees_with_bytes_in_memory(acts in acts()) {
        for (_, queue, pool) in ways() {
            agrees(&acts, queue, &pool);
            prop_assert_eq!(pool.free(), 32);
        }
    }
}

fn agrees(acts: &[Act], mut queue: Queue, pool: &Pool) {
    let mut bytes = vec![0u8; BLOCKS as usize];
    let mut busy: Vec<Range<u64>> = Vec::new();
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for act in acts {
        let (block, blocks) = match *act {
            Act::Write(block, blocks, _) | Act::Read(block, blocks) => (block, blocks),
            Act::Zero(block, blocks) => (block, blocks),
            Act::Settle => (0, BLOCKS),
        };
        let touched = block..block + blocks;
        let meets = |other: &Range<u64>| touched.start < other.end && other.start < touched.end;
        if busy.iter().any(meets) || queue.in_flight() == 16 {
            settle(&mut queue, &expected);
            busy.clear();
        }
        let range = touched.start as usize..touched.end as usize;
        let request = match *act {
            Act::Settle => continue,
            Act::Write(_, _, with) => {
                bytes[range.clone()].fill(with);
                write(pool, block, blocks, with)
            }
            Act::Zero(..) => {
                bytes[range.clone()].fill(0);
                Request::Zero {
                    at: block * BLOCK_BYTES,
                    len_bytes: blocks * BLOCK_BYTES,
                }
            }
            Act::Read(..) => read(pool, block, blocks),
        };
        expected.push(bytes[range].to_vec());
        busy.push(touched);
        queue
            .submit(request, expected.len() as u64 - 1)
            .expect("room");
    }
    settle(&mut queue, &expected);
}

/// Waits for all, and looks at what was read.
fn settle(queue: &mut Queue, expected: &[Vec<u8>]) {
    queue.kick();
    while queue.in_flight() > 0 {
        queue.rest();
        while let Some(done) = queue.reap() {
            assert_eq!(done.result, Ok(()));
            let expected = &expected[done.tag as usize];
            let bytes = done.buffer.filter(|_| done.op == BlockOp::Read);
            for (block, found) in bytes
                .iter()
                .flat_map(|bytes| bytes.chunks(4096))
                .enumerate()
            {
                assert!(
                    found.iter().all(|&byte| byte == expected[block]),
                    "block {block}"
                );
            }
        }
    }
}

#[test]
fn what_a_device_refuses_is_not_done_and_the_rest_is() {
    let (pool, device) = (Pool::new(4, 4096).expect("memory"), device());
    let refusals = Refusals::new(|op, at| {
        (op == BlockOp::Write && at == 3 * BLOCK_BYTES).then_some(libc::EIO)
    });
    for through in [Through::Auto, Through::Threads, Through::Calls] {
        let shape = QueueShape { depth: 4, through };
        let queue = Queue::refusing(&device, &[], shape, &refusals);
        let mut queue = queue.expect("made");
        assert!(queue.event().is_some());
        for (block, result) in [(2, None), (3, Some(libc::EIO))] {
            let done = queue.poll(write(&pool, block, 1, 7), block).expect("room");
            let refused = done.result.err().and_then(|error| error.os_error);
            assert_eq!(refused, result, "{through:?}");
            queue
                .submit(write(&pool, block, 1, 7), block)
                .expect("room");
            queue.rest();
            assert_eq!(
                queue.reap().expect("done").result.is_err(),
                result.is_some()
            );
            let read = queue.poll(read(&pool, block, 1), 0).expect("room");
            let byte = read.buffer.expect("a read has one")[0];
            assert_eq!(byte, if result.is_some() { 0 } else { 7 }, "{through:?}");
        }
    }
}
