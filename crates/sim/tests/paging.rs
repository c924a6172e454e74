//! Ultraswap's requirements (U1 to U12: what section 3 says, as tests) and what its evaluation has
//! come out as, in virtual time: with Nyx's pager, and where it says so with Linux' lists.
//!
//! What it never does: time anything. *Thread safety*: one thread each.

use nyx_base::Instant;
use nyx_policy::paging::pool::Rule;
use nyx_sim::paging::costs::Part;
use nyx_sim::paging::device::{ALONE_NS, Request};
use nyx_sim::paging::machine::Event;
use nyx_sim::paging::{Ageing, Costs, Kind, Outcome, Program, Service, Setup, Touch, Variant, run};

const CLUSTER: u32 = 8;
const PAGES: u32 = 2_048;
/// Pages of the program that looks at one cluster, and how many of them may be in memory.
const PLACES: u32 = 1_024;
const PLACES_LIMIT: u32 = 256;

fn touch(page: u32, is_write: bool, compute_ns: u32) -> Touch {
    Touch {
        page,
        is_write,
        compute_ns,
    }
}

/// Writes all pages, slowly enough for a reclaimer.
fn load(pages: u32) -> Vec<Touch> {
    (0..pages).map(|page| touch(page, true, 20_000)).collect()
}

/// Loads, goes over some pages in their order so that whole clusters are read, and then touches
/// the page at this place of another cluster.
fn at_place(place: u32) -> (u32, Vec<Touch>) {
    let mut touches = load(PLACES);
    touches.extend((0..64).map(|page| touch(page, false, 100_000)));
    let page = 128 + place;
    touches.push(touch(page, false, 1_000_000));
    (page, touches)
}

fn logged(variant: Variant, limit_pages: u32) -> Setup {
    Setup {
        has_log: true,
        ..Setup::new(variant, limit_pages)
    }
}

fn aged(ageing: Ageing, setup: Setup) -> Setup {
    Setup { ageing, ..setup }
}

/// All variants with either ageing.
fn all() -> impl Iterator<Item = (Ageing, Variant)> {
    let with = |ageing| Variant::ALL.map(|variant| (ageing, variant));
    Ageing::ALL.into_iter().flat_map(with)
}

/// All programs with either ageing; fewer pages with the one that takes longer.
fn programs() -> impl Iterator<Item = (Program, Ageing)> {
    let with = |kind| {
        let sizes = [(8_192, Ageing::Nyx), (4_096, Ageing::Linux)];
        sizes.map(|(pages, ageing)| (Program::new(kind, pages, 1), ageing))
    };
    Kind::ALL.into_iter().flat_map(with)
}

/// The reads of the last fault on a page: when each was submitted and when it was done, in the
/// order of submission; and when the program went on.
struct Fault {
    reads: Vec<(Request, Instant)>,
    resumed: Instant,
}

fn fault_of(outcome: &Outcome, page: u32) -> Fault {
    let done_of = |wanted: &Request| {
        let mut done = outcome.log.iter().filter_map(|(at, event)| match event {
            Event::Done(request) if request == wanted => Some(*at),
            _ => None,
        });
        done.next().expect("all is done")
    };
    let cluster = page / CLUSTER;
    let submitted = outcome.log.iter().filter_map(|(_, event)| match event {
        Event::Submitted(request) if !request.is_write => Some(*request),
        _ => None,
    });
    let reads = submitted.filter(|request| request.page / CLUSTER == cluster);
    let mut resumed = outcome.log.iter().filter_map(|(at, event)| match event {
        Event::Resumed { page: other } if *other == page => Some(*at),
        _ => None,
    });
    Fault {
        reads: reads.map(|request| (request, done_of(&request))).collect(),
        resumed: resumed.next_back().expect("it went on"),
    }
}

fn critical_ns(variant: Variant, service: Service, place: u32) -> u64 {
    let (page, touches) = at_place(place);
    let setup = Setup {
        costs: Costs::NONE,
        service,
        ..logged(variant, PLACES_LIMIT)
    };
    let fault = fault_of(&run(&setup, PLACES, &[&touches]), page);
    assert_eq!(fault.reads.len(), CLUSTER as usize, "all of the cluster");
    let first = fault.reads[0].0.submitted;
    let critical = fault.reads.iter().find(|(request, _)| request.is_critical);
    critical.expect("one of them").1.since(first).0
}

#[test]
fn u2_a_critical_page_takes_one_service_time_whatever_its_place_in_the_cluster() {
    for place in 0..CLUSTER {
        for service in [Service::InOrder, Service::Parallel] {
            let ns = critical_ns(Variant::Ultraswap, service, place);
            assert!(
                ns.abs_diff(ALONE_NS) <= 1,
                "place {place}, {service:?}: {ns}"
            );
        }
        let ns = critical_ns(Variant::Linux, Service::InOrder, place);
        assert_eq!(ns, u64::from(place + 1) * ALONE_NS, "place {place}");
        // A device that works at several at once hides most of it, but not what the bus takes.
        let ns = critical_ns(Variant::Linux, Service::Parallel, place);
        let transfers_ns = u64::from(place) * 1_000_000_000 / 550_000;
        assert!(
            ns.abs_diff(ALONE_NS + transfers_ns) <= 10,
            "place {place}: {ns}"
        );
    }
}

#[test]
fn u1_polled_requests_are_waited_for_and_others_are_not() {
    let (page, touches) = at_place(3);
    let of = |variant| {
        let setup = Setup {
            costs: Costs::NONE,
            ..logged(variant, PLACES_LIMIT)
        };
        fault_of(&run(&setup, PLACES, &[&touches]), page)
    };
    let before = |fault: &Fault| {
        let others = fault
            .reads
            .iter()
            .filter(|(request, _)| !request.is_critical);
        others.filter(|&&(_, done)| done <= fault.resumed).count()
    };
    // Split: the others are submitted between the two halves of the critical one, which is done
    // when the program goes on.
    let split = of(Variant::Ultraswap);
    let (critical, done) = split.reads[0];
    assert!(critical.is_critical && critical.queue % 2 == 1);
    assert!(
        split.reads[1..]
            .iter()
            .all(|(other, _)| other.queue % 2 == 0)
    );
    assert!(split.reads[7].0.submitted < done && done <= split.resumed);
    // By interrupt: none is waited for.
    assert_eq!(before(&split), 0);
    // Polled: each is done before the next is submitted.
    let polled = of(Variant::PollOnly);
    assert_eq!(before(&polled), polled.reads.len() - 1);
    let pairs = polled.reads[1..].windows(2);
    assert!(
        pairs
            .into_iter()
            .all(|pair| pair[0].1 <= pair[1].0.submitted)
    );
}

#[test]
fn u3_the_critical_page_is_submitted_first_and_mostly_done_before_it_is_waited_for() {
    for place in 0..CLUSTER {
        let (page, touches) = at_place(place);
        let outcome = run(
            &logged(Variant::Ultraswap, PLACES_LIMIT),
            PLACES,
            &[&touches],
        );
        let fault = fault_of(&outcome, page);
        assert_eq!(fault.reads[0].0.page, page);
        assert!(fault.reads.len() > 1);
        let linux = run(&logged(Variant::Linux, PLACES_LIMIT), PLACES, &[&touches]);
        let reads = fault_of(&linux, page).reads;
        assert!(reads.is_sorted_by_key(|(request, _)| request.page));
    }
    let scan = Program::new(Kind::Kmeans, PAGES, 1);
    let setup = Setup::new(Variant::Ultraswap, scan.limit_pages(50));
    let spins = run(&setup, scan.pages, &scan.by_processor()).spin_after_submit_ns;
    assert!(spins.len() > 1_000);
    assert_eq!(Outcome::quantile(&spins, 0.95), 0);
}

#[test]
fn u4_a_cluster_of_up_to_eight_around_the_page_is_read() {
    for variant in [Variant::Ultraswap, Variant::Linux] {
        let (page, touches) = at_place(5);
        let outcome = run(&logged(variant, PLACES_LIMIT), PLACES, &[&touches]);
        let mut pages: Vec<u32> = fault_of(&outcome, page)
            .reads
            .iter()
            .map(|(request, _)| request.page)
            .collect();
        pages.sort_unstable();
        assert!(pages.into_iter().eq(128..136));
        // Read once each while it stays: 64 of the scan, and the cluster.
        let reads = outcome
            .log
            .iter()
            .filter(|(_, event)| matches!(event, Event::Submitted(request) if !request.is_write));
        assert!(reads.count() <= 64 + 8 + 8);
    }
}

#[test]
fn u5_each_page_is_a_request_and_only_linux_plugs() {
    let program = Program::new(Kind::Linpack, PAGES, 1);
    for (ageing, variant) in all() {
        let setup = aged(ageing, logged(variant, program.limit_pages(40)));
        let outcome = run(&setup, program.pages, &program.by_processor());
        let submitted = |is_write| {
            let all = outcome.log.iter();
            let found = all.filter_map(|(_, event)| match event {
                Event::Submitted(request) => Some(request.is_write),
                _ => None,
            });
            found.filter(|&other| other == is_write).count() as u64
        };
        let counts = outcome.counts;
        let expected = match variant {
            Variant::Ideal => (0, 0),
            _ => (counts.major_faults + counts.ahead, counts.writes),
        };
        assert_eq!((submitted(false), submitted(true)), expected, "{variant:?}");
        let plugged_ns = outcome.programs.get(Part::Plug);
        assert_eq!(plugged_ns > 0, variant == Variant::Linux, "{variant:?}");
    }
}

#[test]
fn u6_a_page_that_two_wait_for_is_read_once() {
    for (ageing, variant) in all() {
        let page = 300;
        let mut first = load(512);
        let wait_ns: u32 = first.iter().map(|touch| touch.compute_ns).sum();
        first.push(touch(0, false, 10_000_000));
        first.push(touch(page, false, 1_000));
        // Goes on where the first is about to touch the page.
        let second = [
            touch(511, true, wait_ns),
            touch(511, true, 20_000_000),
            touch(page, false, 1_000),
        ];
        let setup = aged(ageing, logged(variant, 64));
        let outcome = run(&setup, 512, &[&first, &second]);
        let reads = outcome.log.iter().filter(|(_, event)| {
            matches!(event, Event::Submitted(request)
                if request.page == page && !request.is_write)
        });
        let expected = usize::from(variant != Variant::Ideal);
        assert_eq!(reads.count(), expected, "{variant:?}");
    }
}

#[test]
fn u7_reclaim_waits_for_no_write_unless_it_polls() {
    let program = Program::new(Kind::Linpack, PAGES, 1);
    for (ageing, variant) in all() {
        let setup = aged(ageing, Setup::new(variant, program.limit_pages(40)));
        let outcome = run(&setup, program.pages, &program.by_processor());
        let spun_ns =
            outcome.programs.get(Part::WriteSpin) + outcome.reclaimer.get(Part::WriteSpin);
        assert_eq!(spun_ns > 0, variant == Variant::PollOnly, "{variant:?}");
        assert!(outcome.counts.writes > 1_000);
    }
}

#[test]
fn u8_with_a_reclaimer_the_program_pays_for_no_page_that_leaves() {
    let touches = [load(512), load(512)].concat();
    for (variant, is_beside) in [
        (Variant::Ultraswap, true),
        (Variant::InterruptOnly, true),
        (Variant::NoOffload, false),
        (Variant::Linux, false),
    ] {
        for rule in [Rule::Demand, Rule::Paper] {
            let setup = Setup {
                rule,
                ..Setup::new(variant, 128)
            };
            let outcome = run(&setup, 512, &[&touches]);
            let of_program = outcome.programs.sum(Part::is_swap_out);
            let beside = outcome.reclaimer.sum(Part::is_swap_out);
            assert!(outcome.counts.writes >= 512);
            assert_eq!(
                (of_program == 0, beside > 0),
                (is_beside, is_beside),
                "{variant:?}"
            );
            assert_eq!(outcome.programs.get(Part::Wake) > 0, is_beside);
        }
    }
}

#[test]
fn u9_without_its_reclaimer_a_program_keeps_the_limit_by_itself() {
    let touches = [load(512), load(512)].concat();
    for is_reclaimer_stopped in [false, true] {
        let setup = Setup {
            is_reclaimer_stopped,
            ..Setup::new(Variant::Ultraswap, 64)
        };
        let outcome = run(&setup, 512, &[&touches]);
        assert_eq!(outcome.counts.inline_reclaims > 0, is_reclaimer_stopped);
        assert!(outcome.used_pages_max <= 64);
        assert_eq!(outcome.reclaimer.sum(|_| true) == 0, is_reclaimer_stopped);
    }
    // With Linux' lists it pays for what it does in its faults, page by page.
    let setup = Setup {
        is_reclaimer_stopped: true,
        ..aged(Ageing::Linux, Setup::new(Variant::Ultraswap, 64))
    };
    let outcome = run(&setup, 512, &[&touches]);
    assert!(outcome.counts.inline_reclaims > 0 && outcome.used_pages_max <= 64);
    assert_eq!(outcome.reclaimer.sum(|_| true), 0);
    let each_ns = outcome.programs.get(Part::Unmap) / outcome.counts.writes;
    assert_eq!(each_ns, Costs::PAPER.unmap_ns);
}

#[test]
fn u10_slots_are_used_again_and_where_there_are_none_touches_fail() {
    let touches = [load(512), load(512)].concat();
    for (slots, fails) in [(512, false), (300, true)] {
        for ageing in Ageing::ALL {
            let setup = Setup {
                slots,
                ..aged(ageing, Setup::new(Variant::Ultraswap, 64))
            };
            let outcome = run(&setup, 512, &[&touches]);
            assert_eq!(outcome.failed_touches > 0, fails, "{slots} slots");
        }
    }
}

#[test]
fn u11_what_is_the_same_on_the_device_leaves_without_a_write() {
    let reads = |_| (0..512).map(|page| touch(page, false, 20_000));
    let clean = [load(512), (0..4).flat_map(reads).collect()].concat();
    let dirty = [load(512), load(512), load(512), load(512), load(512)].concat();
    for ageing in Ageing::ALL {
        let counts = |touches: &[Touch]| {
            let setup = aged(ageing, Setup::new(Variant::Ultraswap, 64));
            run(&setup, 512, &[touches]).counts
        };
        let (clean, dirty) = (counts(&clean), counts(&dirty));
        assert!(clean.writes <= 512, "{clean:?}");
        assert!(clean.dropped > 4 * 400, "{clean:?}");
        assert!(dirty.writes > 4 * 400, "{dirty:?}");
    }
}

#[test]
fn u12_no_more_pages_are_in_memory_than_may_be() {
    for kind in Kind::ALL {
        let program = Program::new(kind, 1_024, 1);
        for (ageing, variant) in all() {
            for percent in [5, 20, 60] {
                let setup = aged(ageing, Setup::new(variant, program.limit_pages(percent)));
                let outcome = run(&setup, program.pages, &program.by_processor());
                let limit = setup.limit_pages;
                assert!(
                    outcome.used_pages_max <= limit,
                    "{kind:?} {ageing:?} {variant:?} {percent} %"
                );
                assert!(outcome.used_pages_max > limit / 2);
            }
        }
    }
}

#[test]
fn with_linux_lists_a_page_that_is_touched_all_the_time_stays() {
    let passes = (0..4).flat_map(|_| 1..512);
    let cold_and_hot = passes.flat_map(|page| [page, 0]);
    let reads = cold_and_hot.map(|page| touch(page, false, 5_000));
    let touches = [load(512), reads.collect()].concat();
    for variant in Variant::ALL {
        let setup = aged(Ageing::Linux, logged(variant, 128));
        let outcome = run(&setup, 512, &[&touches]);
        let faults = outcome
            .log
            .iter()
            .filter(|(_, event)| matches!(event, Event::Resumed { page: 0 }));
        // It is fresh once, it may have left while others were loaded, and it is seen twice more
        // where a scan has unmapped it.
        assert!(faults.count() <= 4, "{variant:?}");
        assert!(outcome.counts.major_faults + outcome.counts.ahead > 4 * 300);
    }
}

/// Run times, or whatever it is, of a program at 80, 60, 40 and 20 %.
fn at_ratios<T>(
    program: &Program,
    (ageing, variant): (Ageing, Variant),
    of: impl Fn(&Outcome) -> T,
) -> [T; 4] {
    [80, 60, 40, 20].map(|percent| {
        let setup = aged(ageing, Setup::new(variant, program.limit_pages(percent)));
        of(&run(&setup, program.pages, &program.by_processor()))
    })
}

fn mean(all: [f64; 4]) -> f64 {
    all.iter().sum::<f64>() / 4.0
}

fn run_ns(outcome: &Outcome) -> f64 {
    outcome.run_ns as f64
}

#[test]
fn figure_8_ultraswap_lies_between_linux_and_the_ideal() {
    for (program, ageing) in programs() {
        let kind = program.kind;
        let times = |variant| at_ratios(&program, (ageing, variant), run_ns);
        let (linux, ours) = (times(Variant::Linux), times(Variant::Ultraswap));
        for (linux, ours) in linux.into_iter().zip(ours) {
            assert!(
                ours < linux * 0.96,
                "{kind:?}, {ageing:?}: {ours} of {linux}"
            );
        }
        // In the mean: reclaim beside the program may be better than the ideal, which has none.
        let ideal = mean(times(Variant::Ideal));
        assert!(ideal < mean(ours) * 1.02, "{kind:?}, {ageing:?}");
    }
}

/// Section 4.4.1: both are slower than all of it, polling alone more than interrupts alone, and
/// most for those programs that less memory slows down most.
#[test]
fn figure_9_polling_alone_costs_most_and_kmeans_pagerank_and_linpack_more_than_others() {
    for ageing in Ageing::ALL {
        let mut polled = Vec::new();
        for (program, _) in programs().filter(|(_, one)| *one == ageing) {
            let kind = program.kind;
            let time = |variant| mean(at_ratios(&program, (ageing, variant), run_ns));
            let all = time(Variant::Ultraswap);
            let [interrupts, polls] =
                [Variant::InterruptOnly, Variant::PollOnly].map(|variant| time(variant) / all);
            let how = format!("{kind:?}, {ageing:?}: {interrupts} {polls}");
            assert!(interrupts > 1.0 && polls > 1.0, "{how}");
            assert!(polls > interrupts * 1.05, "{how}");
            polled.push((kind, polls));
        }
        let is_slowed = |kind| !matches!(kind, Kind::Quicksort | Kind::Inference);
        let (more, less): (Vec<_>, Vec<_>) = polled.iter().partition(|(kind, _)| is_slowed(*kind));
        let least = more.iter().map(|(_, times)| *times).reduce(f64::min);
        let most = less.iter().map(|(_, times)| *times).reduce(f64::max);
        assert!(least > most, "{ageing:?}: {polled:?}");
    }
}

/// The window grows by hits since the last fault, which is mostly another scan's.
#[test]
fn scans_side_by_side_have_next_to_nothing_read_ahead_by_clusters() {
    const PAGES: u32 = 8_192;
    let [one, four] = [1, 4].map(|scans| {
        let each: Vec<Vec<Touch>> = (0..scans)
            .map(|number| {
                let scan = PAGES / scans * number..PAGES / scans * (number + 1);
                let rounds = (0..4).flat_map(|_| scan.clone());
                rounds.map(|page| touch(page, true, 10_000)).collect()
            })
            .collect();
        let each: Vec<&[Touch]> = each.iter().map(Vec::as_slice).collect();
        run(&Setup::new(Variant::Ultraswap, PAGES / 4), PAGES, &each).counts
    });
    let how = format!("of one {one:?}, of four {four:?}");
    println!("{how}");
    assert!(one.ahead > one.major_faults * 6, "{how}");
    assert!(four.ahead * 10 < four.major_faults, "{how}");
}

/// By Linux' lists not always where most is in memory: there it depends on the number of pages
/// (docs/runs/2026-11-29-swap-processors.md).
#[test]
fn table_6_polling_alone_faults_more() {
    let program = Program::new(Kind::Linpack, 16_384, 1);
    for ageing in Ageing::ALL {
        let faults = |outcome: &Outcome| outcome.counts.major_faults as f64;
        let [all, polled] = [Variant::Ultraswap, Variant::PollOnly]
            .map(|variant| at_ratios(&program, (ageing, variant), faults));
        let how = format!("{ageing:?}: {polled:?} {all:?}");
        let first = usize::from(ageing == Ageing::Linux);
        assert!((first..4).all(|ratio| polled[ratio] > all[ratio]), "{how}");
        assert!(mean(polled) > mean(all) * 1.1, "{how}");
    }
}

#[test]
fn table_7_the_kernel_takes_less_of_each_program_once_reclaim_is_beside_it() {
    for (program, ageing) in programs() {
        let kind = program.kind;
        let kernel_ns = |variant| {
            let setup = aged(ageing, Setup::new(variant, program.limit_pages(50)));
            run(&setup, program.pages, &program.by_processor())
                .programs
                .kernel_ns() as f64
        };
        let less = 1.0 - kernel_ns(Variant::Ultraswap) / kernel_ns(Variant::NoOffload);
        assert!(less > 0.05, "{kind:?}, {ageing:?}: {less}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (ageing, variant) in all() {
        let runs = [1, 1, 2].map(|seed| {
            let program = Program::new(Kind::Pagerank, 1_024, seed);
            let setup = aged(ageing, logged(variant, program.limit_pages(30)));
            run(&setup, program.pages, &program.by_processor())
        });
        assert_eq!(runs[0], runs[1], "{variant:?}");
        assert_ne!(runs[0], runs[2], "{variant:?}");
    }
}
