//! Which blocks are asked for and where they lie, what is refused, and real bytes through both
//! devices.

use super::drive::Cell;
use super::target::{Said, Target};
use super::*;
use nyx_base::Nanos;
use nyx_policy::nhc::Nhc;
use nyx_sim::pair::{Installs, PairWindow};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const LEN: u64 = 8192;

fn layout(cache_blocks: u64, data_blocks: u64, depth: u32) -> Result<Layout, Failure> {
    let bytes = |blocks| Bytes(blocks * LEN);
    Layout::new(Bytes(LEN), bytes(cache_blocks), bytes(data_blocks), depth)
}

fn told<T>(result: Result<T, Failure>) -> String {
    let failure = result.err().expect("it is refused");
    assert_eq!(failure.code, Exit::Usage, "{failure}");
    failure.message
}

#[test]
fn addresses_force_the_hit_ratio_and_slots_are_never_hit() {
    let layout = layout(256, 1000, 28).expect("sound");
    assert_eq!((layout.kept, layout.slots, layout.all), (224, 32, 1000));
    assert_eq!(layout.blocks(Side::Fast), 256);
    let mut rng = Rng::with_seed(1);
    for hits in [0.0, 0.25, 0.8, 1.0] {
        let mut seen = vec![0u32; 1000];
        (0..100_000).for_each(|_| seen[layout.draw(&mut rng, hits) as usize] += 1);
        let found = f64::from(seen[..224].iter().sum::<u32>()) / 1e5;
        assert!((found - hits).abs() < 0.006, "{found} of {hits}");
        assert_eq!(
            seen[..224].iter().all(|&n| n > 0),
            hits > 0.0,
            "all of them"
        );
        assert_eq!(
            seen[224..].iter().all(|&n| n > 0),
            hits < 1.0,
            "all of them"
        );
    }
    assert!((0..1000).all(|_| layout.draw_missed(&mut rng) >= 224));
}

#[test]
fn sizes_out_of_range_are_told() {
    let refused = |len, cache, data| told(Layout::new(Bytes(len), Bytes(cache), Bytes(data), 84));
    assert!(refused(5000, 1 << 20, 4 << 20).contains("--len 4.88 KiB"));
    assert!(refused(32 << 20, 1 << 30, 4 << 30).contains("16 MiB at most"));
    let few = refused(4096, 1 << 19, 4 << 20);
    assert!(
        few.contains("--cache 512 KiB: 128 blocks") && few.contains("672 KiB"),
        "{few}"
    );
    assert!(refused(4096, 1 << 20, 1 << 19).contains("--data 512 KiB"));
}

#[test]
fn a_stamp_is_read_as_it_was_written() {
    let mut buffer = [7; 32];
    stamp(&mut buffer, 123_456, 9);
    assert_eq!(stamped(&buffer), (123_456, 9));
    assert_eq!(buffer[16..], [7; 16]);
    assert_ne!(stamped(&[0; 32]).0, 0, "zeroes are no block");
}

fn said(what: &str) -> Said<'_> {
    Said {
        what,
        model: None,
        may_overwrite: false,
    }
}

fn path_in(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).to_str().expect("text").to_owned()
}

#[test]
fn what_exists_is_written_only_where_that_was_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = path_in(&dir, "precious");
    let bytes = vec![42; 1 << 20];
    fs::write(&path, &bytes).expect("room");
    let open = |said, len, writes| Target::open(said, Side::Fast, len, writes);
    let refused = told(open(said(&path), LEN, Some("--reads is below 100")));
    for part in [
        "precious: exists",
        "--reads is below 100",
        "--overwrite fast",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    let short = told(open(said(&path), 2 << 20, None));
    assert!(
        short.contains("has 1 MiB, and 2 MiB are asked for"),
        "{short}"
    );
    let read = open(said(&path), LEN, None).expect("it is only read");
    assert!(!read.may_write);
    drop(read);
    let overwritten = Said {
        may_overwrite: true,
        ..said(&path)
    };
    assert!(
        open(overwritten, LEN, Some("why"))
            .expect("it was said")
            .may_write
    );
    assert_eq!(fs::read(&path).expect("still there"), bytes);
    let nowhere = told(open(said("/dev/null"), LEN, None));
    assert!(nowhere.contains("--fast: /dev/null: neither"), "{nowhere}");
}

#[test]
fn what_is_made_has_no_name_and_a_wrong_name_makes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = path_in(&dir, "new");
    let made = Target::open(said(&path), Side::Deep, 4 * LEN, Some("why")).expect("room");
    assert!(made.may_write && made.evidence() == nyx_media::Evidence::Real);
    assert!(made.file.len_bytes() >= 4 * LEN && !Path::new(&path).exists());
    let modelled = Said {
        model: Some("dram/2"),
        ..said(&path)
    };
    let modelled = Target::open(modelled, Side::Deep, LEN, None).expect("room");
    assert_eq!(modelled.evidence(), nyx_media::Evidence::Emulated);
    assert_eq!(modelled.name, format!("dram/2 over {path}"));
    let wrong = |what| told(Target::open(said(what), Side::Deep, LEN, None));
    let typing = wrong("optan-ssd/10");
    assert!(
        typing.contains("--deep") && typing.contains("optane-ssd"),
        "{typing}"
    );
    assert!(
        typing.contains("./NAME") && !Path::new("optan-ssd").exists(),
        "{typing}"
    );
    let both = Said {
        model: Some("dram"),
        ..said("nvm")
    };
    let both = told(Target::open(both, Side::Deep, LEN, None));
    assert!(both.contains("--deep-model lays another"), "{both}");
}

/// Files in memory, as fast as this machine is.
fn rig(dir: &TempDir, clients: u32) -> Rig {
    let depth = depth_of(clients);
    let layout = layout(4 * u64::from(depth), 12 * u64::from(depth), depth).expect("sound");
    let target = |side: Side| {
        let path = path_in(dir, &format!("{side:?}"));
        let len_bytes = layout.blocks(side) * LEN;
        fs::write(&path, vec![0; len_bytes as usize]).expect("room");
        let said = Said {
            may_overwrite: true,
            ..said(&path)
        };
        Target::open(said, side, len_bytes, None).expect("it is there")
    };
    let targets = Both([target(Side::Fast), target(Side::Deep)]);
    let mut rig = Rig::new(targets, layout, depth, &mut |_| {}).expect("a rig");
    rig.measure_costs(clients, Nanos::from_millis(2), &mut |_| {})
        .expect("costs");
    rig
}

fn cell(nhc: Nhc, hits: f64, writes: f64) -> Cell {
    Cell {
        nhc,
        hits,
        writes,
        clients: 8,
        load: None,
        installs: Installs::Before,
        warm_up: Nanos::from_millis(5),
        length: Nanos::from_millis(40),
        seed: 3,
    }
}

/// All bytes of a device's file, which a queue has written past us.
fn blocks(rig: &Rig, side: Side) -> Vec<Vec<u8>> {
    let bytes = fs::read(rig.targets[side].file.path()).expect("it is there");
    let blocks = rig.layout.blocks(side) as usize;
    let each = bytes.chunks_exact(LEN as usize).take(blocks);
    each.map(<[u8]>::to_vec).collect()
}

/// Each block reads as itself, from either device, whatever was written meanwhile.
fn check(rig: &Rig) -> [u64; 2] {
    let (fast, deep) = (blocks(rig, Side::Fast), blocks(rig, Side::Deep));
    let kept = rig.layout.kept as usize;
    for (at, block) in deep.iter().enumerate() {
        assert_eq!(stamped(block).0, at as u64, "deep");
    }
    assert!(fast[..kept] == deep[..kept], "what both have is the same");
    for slot in &fast[kept..] {
        let block = stamped(slot).0;
        assert!((rig.layout.kept..rig.layout.all).contains(&block) || stamped(slot).1 == 0);
    }
    let written = |of: &[Vec<u8>]| of.iter().filter(|block| stamped(block).1 > 0).count() as u64;
    [written(&fast), written(&deep)]
}

fn served(window: &PairWindow, kind: Kind, side: Side) -> u64 {
    window.seen.served[kind][side].count
}

#[test]
fn every_controller_reads_what_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rig = rig(&dir, 8);
    check(&rig);
    let split = Nhc::Split(0.5);
    for nhc in [
        Nhc::Classic,
        split,
        Nhc::Orthus,
        Nhc::Most,
        Nhc::ShortestDelay,
    ] {
        for (hits, writes, load) in [(1.0, 0.0, None), (0.7, 0.3, None), (0.7, 0.0, Some(0.5))] {
            let cell = Cell {
                load,
                ..cell(nhc, hits, writes)
            };
            let found = rig.run(cell).expect("it reads what was written");
            assert!(
                found.seen.count() > 0 && found.length.0 >= 40_000_000,
                "{nhc}"
            );
            assert_eq!(found.seen.bytes(), found.seen.count() * LEN);
            assert!(found.seen.latencies.count() >= found.seen.count(), "{nhc}");
            let near = found.seen.hits as f64 - hits * found.seen.looks as f64;
            assert!(
                near.abs() <= 4.0 * (found.seen.looks as f64).sqrt() + 1.0,
                "{nhc}"
            );
        }
        check(&rig);
    }
    let window = rig.run(cell(split, 1.0, 0.0)).expect("sound");
    let (fast, deep) = [Side::Fast, Side::Deep]
        .map(|side| served(&window, Kind::Read, side))
        .into();
    assert!(
        fast > 0 && deep > 0,
        "hits are read from either device: {fast}, {deep}"
    );
    let [fast, deep] = check(&rig);
    assert!(fast > 0 && deep > 0, "both were written");
}

#[test]
fn a_miss_is_answered_when_it_is_installed_or_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rig = rig(&dir, 8);
    let missed = |rig: &mut Rig, installs| {
        let cell = Cell {
            installs,
            ..cell(Nhc::Classic, 0.0, 0.0)
        };
        rig.run(cell).expect("sound")
    };
    let before = missed(&mut rig, Installs::Before);
    let reads = served(&before, Kind::Read, Side::Deep);
    let installed = before.copied_bytes[Side::Fast] / LEN;
    // Those that are in flight when a window begins or ends are in one count only.
    assert!(
        reads > 0 && installed.abs_diff(reads) <= 8,
        "{installed} of {reads}"
    );
    assert_eq!(before.seen.hits, 0);
    let behind = missed(&mut rig, Installs::Behind);
    assert!(behind.copied_bytes[Side::Fast] > 0);
    check(&rig);
}

#[test]
fn other_bytes_than_were_written_end_the_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rig = rig(&dir, 8);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(rig.targets[Side::Fast].file.path());
    let zeroes = vec![0; (rig.layout.kept * LEN) as usize];
    std::os::unix::fs::FileExt::write_all_at(&file.expect("it is there"), &zeroes, 0)
        .expect("room");
    let failure = rig
        .run(cell(Nhc::Classic, 1.0, 0.0))
        .expect_err("they are zeroes");
    assert_eq!(failure.code, Exit::Io);
    assert!(
        failure.message.contains("something else than was written"),
        "{failure}"
    );
}

#[test]
fn what_may_not_be_written_is_read_and_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = layout(128, 256, depth_of(8)).expect("sound");
    let before: Vec<u8> = (0..256 * LEN).map(|at| at as u8).collect();
    let target = |side: Side| {
        let path = path_in(&dir, &format!("{side:?}"));
        fs::write(&path, &before).expect("room");
        Target::open(said(&path), side, layout.blocks(side) * LEN, None).expect("it is there")
    };
    let targets = Both([target(Side::Fast), target(Side::Deep)]);
    let mut rig = Rig::new(targets, layout, depth_of(8), &mut |_| {}).expect("a rig");
    rig.measure_costs(8, Nanos::from_millis(2), &mut |_| {})
        .expect("costs");
    assert_eq!(
        rig.costs[Side::Fast][0],
        rig.costs[Side::Fast][1],
        "a write is taken for a read"
    );
    let found = rig.run(cell(Nhc::ShortestDelay, 1.0, 0.0)).expect("sound");
    assert!(found.seen.count() > 0);
    for side in Side::ALL {
        let path = rig.targets[side].file.path().to_owned();
        assert!(
            fs::read(path).expect("still there") == before,
            "{side:?} was written"
        );
    }
}

#[test]
fn a_model_is_laid_over_a_file_and_a_file_of_its_own_is_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = path_in(&dir, "mine.toml");
    let text = "name = \"mine\"\nchannels = 4\nread_latency_ns = 1000\nwrite_latency_ns = 1000\n\
                read_bytes_per_s = 1000000000\nwrite_bytes_per_s = 1000000000\nspread = 0.0\n";
    fs::write(&path, text).expect("room");
    let target = Target::open(said(&path), Side::Fast, LEN, Some("why")).expect("a model");
    assert_eq!(target.name, "mine");
    let pool = Pool::new(1, LEN as usize).expect("memory");
    let queue = target.queue(&pool, 1).expect("a queue");
    assert!(
        queue.describe().starts_with("emulated mine over"),
        "{}",
        queue.describe()
    );
    assert!(Arc::ptr_eq(queue.device(), &target.file));
    fs::write(&path, text.replace("channels = 4", "channels = 0")).expect("room");
    let refused = told(Target::open(said(&path), Side::Fast, LEN, None));
    assert!(refused.contains("channels is 0"), "{refused}");
}
