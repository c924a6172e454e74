//! Rings that poll their device. Few machines have a device for that: `cargo xtask vm-test`
//! emulates one.

use super::*;

/// The device that a test is run with by name.
fn device_of(variable: &str) -> Arc<BlockFile> {
    let path = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no device"));
    Arc::new(BlockFile::open(path.as_ref()).expect("a block device"))
}

fn queue_to(device: &Arc<BlockFile>, pool: &Pool, through: Through) -> Queue {
    let shape = QueueShape { depth: 16, through };
    Queue::new(device, std::slice::from_ref(pool), shape).expect("io_uring is allowed")
}

fn pool() -> Pool {
    Pool::new(32, 8 * BLOCK_BYTES as usize).expect("memory")
}

#[test]
#[ignore = "overwrites NYX_POLLED_DEVICE, one with poll queues; run by cargo xtask vm-test"]
fn a_device_with_poll_queues_is_polled() {
    let (device, pool) = (device_of("NYX_POLLED_DEVICE"), pool());
    let support = Support::of(&device).expect("it can be read");
    println!("{support}");
    assert!(support.is_polled(), "{support}");
    let mut queue = queue_to(&device, &pool, Through::UringPolled);
    assert!(queue.describe().contains("polled"), "{}", queue.describe());
    assert!(queue.event().is_none(), "nobody would wake a sleeper");
    // Poll, and split with requests of others between.
    let done = queue.poll(write(&pool, 3, 4, 7), 1).expect("room");
    assert_eq!((done.tag, done.result), (1, Ok(())));
    drop(done);
    let tickets = [(0, 2), (5, 8), (3, 1)].map(|(block, blocks)| {
        let ticket = queue.submit(read(&pool, block, blocks), block);
        ticket.expect("room")
    });
    let done = queue.wait(tickets[1]);
    assert_eq!((done.tag, done.result), (5, Ok(())));
    assert!(done.buffer.expect("a read has one")[..4096] == [7; 4096]);
    assert_eq!(queue.wait(tickets[2]).tag, 3);
    assert_eq!(queue.wait(tickets[0]).tag, 0);
    // What the kernel refuses to poll is told of, and goes to a queue with events.
    let refused = queue.poll(Request::Flush, 2).expect("room").result;
    assert_eq!(refused.map_err(|error| error.os_error), Err(Some(22)));
    let mut events = queue_to(&device, &pool, Through::Uring);
    assert_eq!(events.poll(Request::Flush, 3).expect("room").result, Ok(()));
}

#[test]
#[ignore = "overwrites NYX_POLLED_DEVICE, one with poll queues; run by cargo xtask vm-test"]
fn polled_requests_agree_with_bytes_in_memory() {
    let device = device_of("NYX_POLLED_DEVICE");
    let mut rng = nyx_base::Rng::with_seed(1);
    for _ in 0..8 {
        let pool = pool();
        let mut queue = queue_to(&device, &pool, Through::UringPolled);
        for block in (0..BLOCKS).step_by(8) {
            let cleared = queue.poll(write(&pool, block, 8, 0), 0).expect("room");
            assert_eq!(cleared.result, Ok(()));
        }
        let acts: Vec<Act> = (0..200)
            .map(|_| {
                let (block, blocks) = (rng.u64(0..BLOCKS - 8), rng.u64(1..=8));
                match rng.u8(0..10) {
                    0 => Act::Settle,
                    1..=4 => Act::Read(block, blocks),
                    _ => Act::Write(block, blocks, rng.u8(..)),
                }
            })
            .collect();
        agrees(&acts, queue, &pool);
        assert_eq!(pool.free(), 32);
    }
}

#[test]
#[ignore = "needs NYX_UNPOLLED_DEVICE, one without poll queues; run by cargo xtask vm-test"]
fn a_device_without_poll_queues_falls_back_to_events() {
    let (device, pool) = (device_of("NYX_UNPOLLED_DEVICE"), pool());
    let support = Support::of(&device).expect("it can be read");
    println!("{support}");
    assert!(
        !support.is_polled() && support.uring_ns.is_some(),
        "{support}"
    );
    assert_eq!(support.critical(), Through::Uring);
    let mut queue = queue_to(&device, &pool, Through::UringPolled);
    let refused = queue.poll(read(&pool, 0, 1), 0).expect("room").result;
    assert!(refused.is_err(), "it would wait for ever");
    let mut queue = queue_to(&device, &pool, support.critical());
    assert_eq!(
        queue.poll(read(&pool, 0, 1), 0).expect("room").result,
        Ok(())
    );
}
