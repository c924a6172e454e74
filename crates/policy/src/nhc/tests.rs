//! Routings, bounds and names; each controller by what is handed to it.

use super::*;

/// Behind so much, of which it is not known how much is whose.
fn request(fast: (f64, f64), deep: (f64, f64), backlog_ns: [f64; 2]) -> Request {
    let cost = |(alone_ns, each_ns)| Cost { alone_ns, each_ns };
    Request {
        kind: Kind::Read,
        costs: Both([cost(fast), cost(deep)]),
        in_flight: Both(backlog_ns.map(|each_ns| InFlight { count: 0, each_ns })),
        bounds: Bounds::default(),
    }
}

/// A routing without exploration.
fn shortest() -> Routing {
    Routing {
        reads: Choice::Shortest,
        ..Routing::CLASSIC
    }
}

/// What was seen of so many looks, with that hit ratio and so many bytes.
fn seen(looks: u64, hit_ratio: f64, bytes: u64) -> PairSeen {
    let mut seen = PairSeen {
        looks,
        hits: (looks as f64 * hit_ratio).round() as u64,
        ..PairSeen::default()
    };
    seen.served[Kind::Read][Side::Fast].bytes = bytes;
    seen
}

#[test]
fn the_shortest_delay_counts_what_is_in_flight_and_what_is_dear() {
    let routing = shortest();
    let to = |backlog_ns| {
        let request = request((300.0, 100.0), (900.0, 150.0), backlog_ns);
        routing.side(routing.reads, &request, 0.5)
    };
    // With what is taken from the next one: 100 and 150.
    assert_eq!(to([0.0, 0.0]), Side::Fast);
    assert_eq!(to([849.0, 0.0]), Side::Fast, "1,049 against 1,050");
    assert_eq!(to([851.0, 0.0]), Side::Deep, "1,051 against 1,050");
    assert_eq!(to([851.0, 760.0]), Side::Fast, "1,051 against 1,060");
    assert_eq!(
        to([850.0, 0.0]),
        Side::Fast,
        "the fast one where both are even"
    );
}

#[test]
fn a_backlog_weighs_more_where_the_request_is_dear() {
    // Reads take 5 and 13 of the devices, writes 14 of either; in flight are reads and writes on
    // the fast one, writes on the deep one.
    let (read, write) = ((10.0, 5.0), (20.0, 14.0));
    let sides = |kind: (f64, f64), deep: (f64, f64), fast_ns: f64| {
        let in_flight = Both([
            InFlight {
                count: (fast_ns / 9.5) as u32,
                each_ns: fast_ns,
            },
            InFlight {
                count: 100,
                each_ns: 1400.0,
            },
        ]);
        let request = Request {
            in_flight,
            ..request(kind, deep, [0.0, 0.0])
        };
        shortest().shortest(&request)
    };
    assert_eq!(
        sides(read, (23.0, 13.0), 1900.0),
        Side::Fast,
        "1.4 times the backlog"
    );
    assert_eq!(sides(write, (24.0, 14.0), 1900.0), Side::Deep);
    assert_eq!(sides(read, (23.0, 13.0), 3800.0), Side::Deep, "2.7 times");
}

#[test]
fn a_slow_device_is_left_and_a_backlog_is_as_slow() {
    let mut routing = shortest();
    let request = request((300.0, 100.0), (900.0, 150.0), [0.0, 0.0]);
    // 300 and 900 ns, and 100 and 150 from the next one.
    routing.slowness[Kind::Read][Side::Fast] = 2.6;
    assert_eq!(routing.shortest(&request), Side::Fast);
    routing.slowness[Kind::Read][Side::Fast] = 2.7;
    assert_eq!(routing.shortest(&request), Side::Deep);
    routing.slowness[Kind::Read][Side::Deep] = 1.1;
    assert_eq!(routing.shortest(&request), Side::Fast);
}

#[test]
fn bounds_hold_whatever_is_decided() {
    let bounds = Bounds::new(0.25, 0.5).expect("in order");
    for choice in [
        Choice::Share(0.0),
        Choice::Share(0.3),
        Choice::Share(1.0),
        Choice::Shortest,
    ] {
        for backlog_ns in [[0.0, 1e9], [1e9, 0.0]] {
            let mut request = request((300.0, 100.0), (900.0, 150.0), backlog_ns);
            request.bounds = bounds;
            let fast = (0..1000)
                .filter(|&draw| {
                    let draw = f64::from(draw) / 1000.0;
                    shortest().side(choice, &request, draw) == Side::Fast
                })
                .count();
            assert!((250..=500).contains(&fast), "{choice:?}: {fast}");
        }
    }
    for (least, most) in [(0.6, 0.5), (-0.1, 1.0), (0.0, 1.1), (f64::NAN, 1.0)] {
        assert_eq!(Bounds::new(least, most), None);
    }
}

/// What was seen of reads that took so many times what was expected.
fn reads(side: Side, count: u64, times: f64) -> PairSeen {
    let mut seen = PairSeen::default();
    seen.served[Kind::Read][side] = Served {
        count,
        took_ns: count as f64 * 900.0 * times,
        expected_ns: count as f64 * 900.0,
        ..Served::default()
    };
    seen
}

#[test]
fn a_device_that_was_slow_is_tried_by_few_until_it_is_known() {
    let mut shortest = ShortestDelay::new();
    let deep = |routing: Routing, fast_ns: f64| {
        let request = request((300.0, 100.0), (900.0, 150.0), [fast_ns, 0.0]);
        let sides =
            (0..100_000).map(|draw| routing.side(routing.reads, &request, f64::from(draw) / 1e5));
        sides.filter(|&side| side == Side::Deep).count()
    };
    let mut at_ms = 0;
    let mut step = |seen: &PairSeen| {
        at_ms += 10;
        shortest.step(Instant(at_ms * 1_000_000), seen)
    };
    let slow = step(&reads(Side::Deep, 100, 10.0));
    assert_eq!(deep(slow, 2000.0), 0, "it is known to be slow");
    let unseen = step(&PairSeen::default());
    assert!((150..=250).contains(&deep(unseen, 2000.0)), "0.2 %");
    assert_eq!(deep(unseen, 500.0), 0, "nobody would go there were it fast");
    let recovered = step(&reads(Side::Deep, 100, 1.0));
    assert_eq!(deep(recovered, 2000.0), 100_000);
}

#[test]
fn a_device_that_takes_three_times_as_long_is_known_after_one_step() {
    let mut shortest = ShortestDelay::new();
    let mut step = |now_ms: u64, times: f64| {
        let mut seen = PairSeen::default();
        seen.served[Kind::Read][Side::Fast] = Served {
            count: 1000,
            took_ns: 1000.0 * 300.0 * times,
            expected_ns: 1000.0 * 300.0,
            ..Served::default()
        };
        let routing = shortest.step(Instant(now_ms * 1_000_000), &seen);
        routing.slowness[Kind::Read][Side::Fast]
    };
    assert!((step(10, 1.0) - 1.0).abs() < 0.01);
    assert!((step(20, 3.0) - 3.0).abs() < 0.01);
    assert!((step(30, 1.0) - 1.0).abs() < 0.01);
}

#[test]
fn mirroring_is_wanted_while_more_than_one_in_a_hundred_would_be_sooner() {
    let mut shortest = ShortestDelay::new();
    for (sooner_deep, wanted) in [(0, false), (9, false), (11, true), (1000, true)] {
        let seen = PairSeen {
            lone_reads: 1000,
            sooner_deep,
            ..PairSeen::default()
        };
        let routing = shortest.step(Instant(1), &seen);
        assert_eq!(routing.mirror_more, wanted, "{sooner_deep}");
    }
    for (mirrored_deep, wanted) in [(99, true), (50, false)] {
        let seen = PairSeen {
            lone_reads: 1000,
            sooner_deep: 500,
            mirrored_reads: 100,
            mirrored_deep,
            ..PairSeen::default()
        };
        let routing = shortest.step(Instant(1), &seen);
        assert_eq!(routing.mirror_more, wanted, "{mirrored_deep} of 100");
    }
}

#[test]
fn who_uses_a_busy_device_fills_it_little_by_little() {
    // Hits are stable; the device has time to spare, those who use it have none, or some.
    for (worked_ns, wanted) in [(0, 64), (6_900_000, 64), (7_100_000, 64 / 16)] {
        let mut sooner = ShortestDelay::new();
        let mut step = |at: u64| {
            let seen = PairSeen {
                worked_ns,
                ..seen(100_000, 0.95, 1000)
            };
            sooner.step(Instant(at * 10_000_000), &seen).data_admit
        };
        (1..=40).for_each(|at| {
            step(at);
        });
        let admits = (41..41 + 64).filter(|&at| step(at)).count();
        assert_eq!(admits, wanted, "{worked_ns}");
    }
}

/// A pair of which the throughput peaks at a load_admit, in steps of 20 ms.
fn climb(orthus: &mut Orthus, peak: f64, steps: u64, from_ms: u64) -> Routing {
    let mut routing = orthus.start();
    for step in 1..=steps {
        let Choice::Share(load_admit) = routing.reads else {
            panic!("{routing:?}");
        };
        let bytes = 1e6 * (1.0 - (load_admit - peak).abs());
        let seen = seen(100_000, 0.95, bytes as u64);
        routing = orthus.step(Instant((from_ms + 20 * step) * 1_000_000), &seen);
    }
    routing
}

#[test]
fn algorithm_1_fills_until_hits_are_stable_then_climbs() {
    let mut orthus = Orthus::new(OrthusParams::default());
    assert_eq!(orthus.start(), Routing::CLASSIC);
    // Two windows of 100 ms: stable. From 1.0 to 0.7 are 15 steps of three intervals.
    let routing = climb(&mut orthus, 0.7, 12 + 15 * 3, 0);
    assert!(!routing.data_admit);
    let routing = climb(&mut orthus, 0.7, 90, 2000);
    let Choice::Share(load_admit) = routing.reads else {
        panic!("{routing:?}");
    };
    assert!((load_admit - 0.7).abs() < 0.041, "{load_admit}");
    assert_eq!(routing.writes, Choice::Share(1.0), "writes are left alone");
}

#[test]
fn algorithm_1_begins_again_when_hits_fall_or_one_is_best() {
    let mut orthus = Orthus::new(OrthusParams::default());
    climb(&mut orthus, 0.5, 40, 0);
    assert!(!orthus.start().data_admit);
    for step in 1..=10 {
        let seen = seen(100_000, 0.80, 1000);
        orthus.step(Instant((800 + 20 * step) * 1_000_000), &seen);
    }
    assert!(orthus.start().data_admit, "0.80 is less than 0.95 * 0.95");
    let mut orthus = Orthus::new(OrthusParams::default());
    let mut admitted = Vec::new();
    for step in 1..=40 {
        climb(&mut orthus, 1.0, 1, 20 * (step - 1));
        admitted.push(orthus.start().data_admit);
    }
    // Two windows of 100 ms in which it fills, three trials that find 1.0 best, and again.
    let runs: Vec<usize> = admitted
        .chunk_by(|one, other| one == other)
        .map(<[bool]>::len)
        .collect();
    assert!(runs[0] >= 10, "{admitted:?}");
    assert_eq!(runs[1], 3, "{admitted:?}");
    assert!(runs[2] >= 10, "a whole cycle of filling: {admitted:?}");
}

#[test]
fn algorithm_1_stands_still_while_nobody_asks() {
    let mut orthus = Orthus::new(OrthusParams::default());
    let busy = climb(&mut orthus, 0.7, 90, 0);
    assert!(!busy.data_admit);
    for step in 1..=500 {
        orthus.step(Instant((1800 + 20 * step) * 1_000_000), &seen(0, 0.0, 0));
    }
    assert_eq!(orthus.start(), busy, "10 s of silence change nothing");
}

#[test]
fn an_interval_that_took_longer_is_no_better_for_it() {
    let mut orthus = Orthus::new(OrthusParams::default());
    climb(&mut orthus, 0.7, 57, 0);
    let mut now_ms = 57 * 20;
    for step in 0..90 {
        let Choice::Share(load_admit) = orthus.start().reads else {
            panic!("a share");
        };
        // Every second interval is twice as long.
        let took_ms = 20 + 20 * (step % 2);
        now_ms += took_ms;
        let per_ms = 50_000.0 * (1.0 - (load_admit - 0.7).abs());
        let seen = seen(100_000, 0.95, (per_ms * took_ms as f64) as u64);
        orthus.step(Instant(now_ms * 1_000_000), &seen);
    }
    let Choice::Share(load_admit) = orthus.start().reads else {
        panic!("a share");
    };
    assert!((load_admit - 0.7).abs() < 0.041, "{load_admit}");
}

#[test]
fn hits_that_vary_are_never_stable() {
    let mut orthus = Orthus::new(OrthusParams::default());
    for step in 1..=100 {
        let seen = seen(100_000, 0.5 + 0.001 * step as f64, 1000);
        let routing = orthus.step(Instant(20_000_000 * step), &seen);
        assert_eq!(routing, Routing::CLASSIC);
    }
}

#[test]
fn the_tail_may_be_the_goal() {
    let slow_below = |load_admit: f64| match load_admit < 0.9 {
        true => 3_000,
        false => 1_000 + (load_admit * 1000.0) as u64,
    };
    let goal = Goal::Tail(0.99);
    let mut orthus = Orthus::new(OrthusParams {
        goal,
        ..OrthusParams::default()
    });
    for step in 1..=200 {
        let Choice::Share(load_admit) = orthus.start().reads else {
            panic!("a share");
        };
        let counter = nyx_base::LatencyCounter::default();
        counter.add(Nanos(slow_below(load_admit)), 1000);
        let mut seen = seen(100_000, 0.95, 1000);
        counter.add_to(&mut seen.latencies);
        orthus.step(Instant(20_000_000 * step), &seen);
    }
    let Choice::Share(load_admit) = orthus.start().reads else {
        panic!("a share");
    };
    assert!((0.86..0.96).contains(&load_admit), "{load_admit}");
}

#[test]
fn most_offloads_two_percent_at_a_time_from_whoever_answers_later() {
    let mut most = Most::new(Both([300.0, 900.0]));
    let mut step = |fast_ns: f64, deep_ns: f64| {
        let mut seen = PairSeen::default();
        for (side, took_ns) in [(Side::Fast, fast_ns), (Side::Deep, deep_ns)] {
            seen.served[Kind::Read][side].count = 1;
            seen.served[Kind::Read][side].took_ns = took_ns;
        }
        most.step(Instant(0), &seen)
    };
    assert_eq!(step(300.0, 900.0).reads, Choice::Share(1.0));
    let routing = (0..10).map(|_| step(9000.0, 900.0)).last().expect("some");
    let Choice::Share(share) = routing.reads else {
        panic!("{routing:?}");
    };
    assert!((share - 0.8).abs() < 0.021, "{share}");
    assert_eq!(
        (routing.writes, routing.news),
        (routing.reads, routing.reads)
    );
    assert!(routing.mirror_more);
    for _ in 0..10 {
        step(900.0, 900.0);
    }
    let kept = step(900.0, 900.0).reads;
    assert_eq!(step(905.0, 900.0).reads, kept, "within 5 %");
}

#[test]
fn names_are_read_and_written() {
    for name in [
        "shortest-delay",
        "orthus",
        "most",
        "classic",
        "split:0.8",
        "split:0",
    ] {
        let nhc: Nhc = name.parse().expect("known");
        assert_eq!(nhc.to_string(), name);
        let controller = nhc.controller(Both([300.0, 900.0]));
        assert!(name.starts_with(controller.name()), "{name}");
    }
    for name in [
        "split:1.2",
        "split:",
        "split:x",
        "shortest",
        "",
        "split:NaN",
    ] {
        let refused = name.parse::<Nhc>().expect_err("unknown").to_string();
        assert!(
            refused.contains("shortest-delay") && refused.contains("split:0.8"),
            "{refused}"
        );
    }
    assert_eq!(Nhc::default().to_string(), "shortest-delay");
}
