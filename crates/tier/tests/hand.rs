//! A worker's hand on a deep device: fetches and writes through a lane, against bytes in memory.

use nyx_base::{CachePadded, Clock, Instant, TenantId, WorkerId};
use nyx_gate::{Account, Budget, CostTable, Device, Usage, cost::STEPS};
use nyx_media::mapped::Mapped;
use nyx_media::queue::{DeepFile, Through};
use nyx_tier::{Away, Deep, Hand, Lane, Looked, Pair, Tolls, Wait, What};
use std::collections::BTreeSet;
use std::sync::Arc;

const TENANT: TenantId = TenantId(1);
const LEN: usize = 24 << 20;

/// Nobody waits here.
struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

struct Rig {
    tolls: Tolls,
    deep: Arc<Deep>,
    account: Arc<CachePadded<Account>>,
    bytes: Vec<u8>,
    now: Instant,
    _dir: tempfile::TempDir,
}

impl Rig {
    /// A deep device whose bytes are known, written through the lane.
    fn new() -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let file = DeepFile::open(&dir.path().join("deep"), Some(LEN as u64)).expect("room");
        let rates = [1e6; STEPS];
        let cost = CostTable::from_max_iops(&rates, &rates);
        let deep = Deep::new("ssd".into(), file, cost.clone(), Through::Auto, None);
        let deep = Arc::new(deep);
        let mut tolls = Tolls::new(WorkerId(0), Arc::new(Still));
        let media = Arc::new(Mapped::anonymous(1 << 16).expect("memory"));
        let device = Device {
            name: "pm".into(),
            media,
            cost: cost.clone(),
        };
        let account: Arc<CachePadded<Account>> = Arc::default();
        let budget = || Arc::new(Budget::unlimited());
        tolls.open(TENANT, Arc::new(device), Arc::default(), budget());
        tolls.add(Hand::new(deep.clone()).expect("queues"));
        let pair = Pair::new(deep.clone(), cost, Default::default(), 1);
        tolls.open_deep(TENANT, &Arc::new(pair), account.clone(), budget());
        let mut rng = nyx_base::Rng::with_seed(7);
        let mut rig = Rig {
            tolls,
            deep,
            account,
            bytes: std::iter::repeat_with(|| rng.u8(..)).take(LEN).collect(),
            now: Instant(0),
            _dir: dir,
        };
        for at in (0..LEN).step_by(Lane::PIECE_BYTES) {
            assert_eq!(rig.write(at, Lane::PIECE_BYTES), [true]);
        }
        rig
    }

    fn lane(&mut self) -> Lane<'_> {
        self.tolls.lane(TENANT)
    }

    /// Writes what is to be there; how it went.
    fn write(&mut self, at: usize, len: usize) -> Vec<bool> {
        let bytes = self.bytes[at..at + len].to_vec();
        let tag = at as u64;
        let mut lane = self.lane();
        lane.write_deep(tag, at as u64, len, |into| into.copy_from_slice(&bytes));
        self.land();
        let each = self.done(tag).into_iter();
        let told = each.map(|what| match what {
            What::Written => true,
            What::NotWritten => false,
            other => panic!("{other:?}"),
        });
        told.collect()
    }

    /// What came of errands, all of them of one tag.
    fn done(&mut self, tag: u64) -> Vec<What> {
        let each = std::iter::from_fn(|| self.tolls.next_done());
        let told = each.map(|done| {
            assert_eq!((done.tenant, done.tag), (TENANT, tag));
            done.what
        });
        told.collect()
    }

    /// Takes in what comes until nothing is on its way.
    fn land(&mut self) -> Vec<Away> {
        let mut landed = Vec::new();
        let now = self.now;
        loop {
            let before = landed.len();
            self.tolls.land(now, |away| landed.push(away));
            // Writes that are told of are for the caller to ask for.
            if landed.len() == before && !self.is_in_flight() {
                return landed;
            }
        }
    }

    fn is_in_flight(&mut self) -> bool {
        self.tolls.hands().iter().any(|hand| hand.in_flight() > 0)
    }

    /// What has landed for that.
    fn landed(&mut self, unique: u64) -> Option<Vec<u8>> {
        let mut lane = self.lane();
        match lane.look_deep(unique) {
            Looked::Here(landing) => Some(lane.landed(landing).to_vec()),
            _ => None,
        }
    }

    fn usage(&self) -> Usage {
        self.account.usage()
    }
}

#[test]
fn what_is_fetched_is_what_was_written_wherever_it_begins() {
    let mut rig = Rig::new();
    let before = rig.usage();
    let mut blocks = 0;
    let (tiny, usual) = ([(0, 1), (4095, 2), (4092, 8)], [(5000, 1000), (8192, 4096)]);
    let large = [
        (1, 16 << 20),
        (12_284, 16_384),
        (12_292, 16_388),
        (LEN - 9, 9),
    ];
    let all = tiny.into_iter().chain(usual).chain(large);
    for (unique, (at, len)) in all.enumerate() {
        let unique = unique as u64;
        let mut lane = rig.lane();
        assert_eq!(lane.look_deep(unique), Looked::None);
        let away = lane.fetch_deep(unique, at as u64, len);
        assert_eq!(
            lane.look_deep(unique),
            Looked::Coming(away),
            "one is enough"
        );
        assert_eq!(rig.land(), [away]);
        let landed = rig.landed(unique).expect("it has landed");
        assert!(landed == rig.bytes[at..at + len], "{len} bytes at {at}");
        blocks += ((at + len).div_ceil(4096) - at / 4096) as u64;
    }
    let usage = rig.usage() - before;
    assert_eq!((usage.reads, usage.read_bytes), (9, blocks * 4096));
    assert_eq!(
        usage.read_used.0,
        blocks * 1_000_000,
        "each block a microsecond"
    );
    assert_eq!(rig.deep.figures().read_bytes, blocks * 4096);
}

#[test]
fn all_buffers_are_used_and_who_finds_none_is_told_when_there_is_one() {
    let mut rig = Rig::new();
    let fetch = |rig: &mut Rig, unique: u64| rig.lane().fetch_deep(unique, unique * 4096, 100);
    let before = rig.usage();
    let begun: Vec<Away> = (0..200).map(|unique| fetch(&mut rig, unique)).collect();
    let is_refused = |away: &&Away| away.wait == Wait::ANY;
    assert_eq!(begun.iter().filter(is_refused).count(), 200 - 128);
    let indices: BTreeSet<usize> = begun.iter().map(|away| away.wait.index()).collect();
    assert_eq!(indices.len(), 129);
    assert!(indices.iter().all(|&index| index < Wait::COUNT));
    let landed = rig.land();
    assert_eq!(landed.len() - landed.iter().filter(is_refused).count(), 128);
    let reads = rig.usage().reads - before.reads;
    assert_eq!(reads, 128, "who is refused pays nothing");
    // Who was there needs it least, once the command is over.
    rig.landed(5).expect("landed");
    rig.tolls.land(Instant(0), |_| {});
    let again = fetch(&mut rig, 150);
    assert_eq!(
        again.wait.index(),
        begun[5].wait.index(),
        "that of who was there"
    );
    assert!(rig.landed(5).is_none() && rig.landed(4).is_some());
    rig.land();
    rig.tolls.land(Instant(0), |_| {});
    assert_ne!(fetch(&mut rig, 151).wait, Wait::ANY, "they had their time");
    rig.land();
    let expected = rig.bytes[151 * 4096..][..100].to_vec();
    assert_eq!(rig.landed(151), Some(expected));
}

#[test]
fn who_is_refused_is_told_even_if_nothing_lands_any_more() {
    let mut rig = Rig::new();
    let fetch = |rig: &mut Rig, unique: u64| rig.lane().fetch_deep(unique, 0, 1 << 20);
    for unique in 0..4 {
        assert_ne!(fetch(&mut rig, unique).wait, Wait::ANY);
    }
    assert_eq!(fetch(&mut rig, 4).wait, Wait::ANY);
    rig.land();
    for unique in 0..4 {
        rig.landed(unique).expect("landed");
    }
    let again = fetch(&mut rig, 4);
    assert_eq!(again.wait, Wait::ANY, "the command is not over");
    assert!(rig.tolls.is_busy() && rig.tolls.is_restless());
    let mut told = Vec::new();
    for _ in 0..3 {
        rig.tolls.land(Instant(0), |away| told.push(away.wait));
    }
    assert_eq!(told, [Wait::ANY]);
    assert!(!rig.tolls.is_restless());
    assert_ne!(fetch(&mut rig, 4).wait, Wait::ANY);
}

#[test]
fn what_has_landed_stays_until_the_command_is_over_and_is_not_taken_for_another() {
    let mut rig = Rig::new();
    for unique in 0..4 {
        rig.lane().fetch_deep(unique, unique * (2 << 20), 1 << 20);
    }
    rig.land();
    let landings: Vec<_> = (0..4).map(|unique| rig.lane().look_deep(unique)).collect();
    let Looked::Here(landing) = landings[2] else {
        panic!("it has landed");
    };
    for unique in 4..8 {
        assert_eq!(rig.lane().fetch_deep(unique, 0, 1 << 20).wait, Wait::ANY);
    }
    let expected = rig.bytes[4 << 20..5 << 20].to_vec();
    assert!(rig.lane().landed(landing) == expected);
    for _ in 0..3 {
        rig.tolls.land(Instant(0), |_| {});
    }
    let again = rig.lane().fetch_deep(9, 0, 1 << 20);
    // It was overtaken: nothing is done to the one that is on its way in its stead.
    rig.lane().forget(landing);
    rig.lane().set_checked(landing);
    assert_eq!(rig.lane().look_deep(9), Looked::Coming(again));
    assert_eq!(rig.land(), [again]);
    let Looked::Here(other) = rig.lane().look_deep(9) else {
        panic!("it has landed");
    };
    assert!(other != landing && !rig.lane().is_checked(other));
}

#[test]
fn many_writes_at_once_may_fail_and_are_one_failure() {
    let mut rig = Rig::new();
    rig.deep.drill.fail_writes(Some(5));
    let mut writes = 0;
    while rig.lane().takes_deep(Instant(0)) {
        let fill = |_: &mut [u8]| {};
        rig.lane().write_deep(writes, 4096 * writes, 4096, fill);
        writes += 1;
    }
    assert_eq!(writes, 8, "as many as there are buffers");
    rig.land();
    let failed = std::iter::from_fn(|| rig.tolls.next_done()).count();
    assert_eq!(failed, 8);
    let second = 1_000_000_000;
    assert!(!rig.lane().takes_deep(Instant(second - 1)));
    let takes = rig.lane().takes_deep(Instant(second));
    assert!(takes, "and not 16 of them");
}

#[test]
fn a_fetch_that_fails_is_told_of_once_and_may_be_made_again() {
    let mut rig = Rig::new();
    rig.deep.drill.fail_reads(Some(5));
    let away = rig.lane().fetch_deep(7, 0, 10);
    assert_eq!(rig.lane().look_deep(7), Looked::Coming(away));
    assert_eq!(rig.land(), [away]);
    assert_eq!(rig.lane().look_deep(7), Looked::Failed);
    assert_eq!(rig.lane().look_deep(7), Looked::None);
    assert_eq!(rig.deep.figures().read_errors, 1);
    rig.deep.drill.fail_reads(None);
    // As many as nobody comes back for.
    rig.deep.drill.fail_reads(Some(5));
    for unique in 100..400 {
        rig.lane().fetch_deep(unique, 0, 10);
        rig.land();
    }
    rig.deep.drill.fail_reads(None);
    assert_ne!(rig.lane().fetch_deep(7, 0, 10).wait, Wait::ANY);
    rig.land();
    assert_eq!(rig.landed(7), Some(rig.bytes[..10].to_vec()));
}

#[test]
fn writes_that_fail_in_a_row_are_followed_by_none_for_a_while() {
    let mut rig = Rig::new();
    rig.deep.drill.fail_writes(Some(28));
    for n in 0..4 {
        assert!(rig.lane().takes_deep(Instant(0)), "after {n} failures");
        assert_eq!(rig.write(0, 4096), [false]);
    }
    let second = 1_000_000_000;
    assert!(!rig.lane().takes_deep(Instant(second - 1)));
    // A second later one is tried again, in vain; then it is two.
    rig.now = Instant(second);
    let now = rig.now;
    assert!(rig.lane().takes_deep(now));
    assert_eq!(rig.write(0, 4096), [false]);
    assert!(!rig.lane().takes_deep(Instant(3 * second - 1)));
    rig.now = Instant(3 * second);
    rig.deep.drill.fail_writes(None);
    assert_eq!(rig.write(0, 4096), [true]);
    let now = rig.now;
    assert!(rig.lane().takes_deep(now));
    let figures = rig.deep.figures();
    assert_eq!(figures.write_errors, 5);
}

#[test]
fn a_device_that_stalls_tells_of_nothing_until_it_goes_on() {
    let mut rig = Rig::new();
    rig.deep.drill.stall(true);
    let away = rig.lane().fetch_deep(1, 0, 10);
    for _ in 0..100 {
        rig.tolls.land(Instant(0), |away| panic!("{away:?}"));
    }
    assert!(!rig.lane().takes_deep(Instant(0)) && rig.tolls.is_busy());
    rig.deep.drill.stall(false);
    assert_eq!(rig.land(), [away]);
}

#[test]
fn what_is_read_for_nobody_comes_as_it_was_written_and_is_charged() {
    let mut rig = Rig::new();
    let mut rng = nyx_base::Rng::with_seed(3);
    for round in 0..200 {
        let most = if round % 10 == 0 { 2 << 20 } else { 300_000 };
        let (at, len) = (rng.usize(..LEN - most), rng.usize(1..most));
        let before = rig.usage();
        assert!(rig.lane().read_behind(round, at as u64, len));
        let cost = &rig.deep.cost;
        let blocks = (at + len).next_multiple_of(4096) - at / 4096 * 4096;
        let charged = (rig.usage() - before).read_used.0;
        assert_eq!(charged, cost.price(nyx_media::Op::Read, blocks).0);
        rig.land();
        let mut told = rig.done(round);
        let Some(What::Read(buffer)) = told.pop() else {
            panic!("{told:?}");
        };
        assert!(buffer[..] == rig.bytes[at..at + len], "{len} bytes at {at}");
    }
    let figures = rig.deep.figures();
    assert_eq!((figures.reads, figures.read_errors), (200, 0));
}

#[test]
fn reads_for_nobody_leave_buffers_to_writes_and_to_fetches() {
    let mut rig = Rig::new();
    for len in [10, 1 << 20] {
        let sent = (0..20).filter(|&tag| rig.lane().read_behind(tag, 0, len));
        let sent = sent.count();
        assert!((1..=4).contains(&sent), "{sent} of {len} bytes");
        assert!(rig.lane().takes_deep(Instant(0)));
        let away = rig.lane().fetch_deep(7, 0, len);
        assert!(away.wait != Wait::ANY, "it has a buffer");
        rig.land();
        let told: Vec<_> = std::iter::from_fn(|| rig.tolls.next_done()).collect();
        assert_eq!(told.len(), sent);
        assert!(rig.landed(7).is_some());
        let Looked::Here(landing) = rig.lane().look_deep(7) else {
            panic!("it has landed");
        };
        rig.lane().forget(landing);
    }
}

#[test]
fn a_read_for_nobody_that_fails_is_told_of() {
    let mut rig = Rig::new();
    rig.deep.drill.fail_reads(Some(5));
    assert!(rig.lane().read_behind(4, 100, 1000));
    assert!(rig.tolls.is_busy() && rig.tolls.is_restless());
    rig.land();
    assert!(matches!(rig.done(4)[..], [What::NotRead]));
    rig.deep.drill.fail_reads(None);
    rig.deep.drill.stall(true);
    assert!(!rig.lane().read_behind(5, 100, 1000), "nothing is told of");
    rig.deep.drill.stall(false);
    assert!(rig.lane().read_behind(6, 100, 1000));
    rig.land();
    assert!(matches!(rig.done(6)[..], [What::Read(_)]));
    let figures = rig.deep.figures();
    assert_eq!((figures.reads, figures.read_errors), (1, 1));
}
