//! What is read ahead of a program that is not changed, by who hears of its faults.

use super::*;

const PAGE_BYTES: usize = 4096;
/// So much is scanned, in less than half as much memory.
const SCANNED_BYTES: usize = 56 << 20;
const MEMORY: &str = "24M";
const SCANS: usize = 3;
/// Fewer are asked for than nine in ten of those that go by in all scans, since some stay.
const SPARED_PAGES: u64 = (SCANNED_BYTES / PAGE_BYTES * SCANS) as u64 / 10 * 9;

/// Runs the scan below with such a `--read-ahead`; its report, and that it was right.
fn scan(rig: &Rig, read_ahead: &str) -> serde_json::Value {
    let program = own_program("ahead::scans_its_memory");
    let flags = [
        "--read-ahead",
        read_ahead,
        "--no-probe",
        "--report",
        "report.json",
    ];
    let output = rig.run(MEMORY, &flags, &program).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("right"),
        "{}",
        text(&output.stdout)
    );
    rig.report("report.json")
}

/// A scan without reading ahead, and one with, until they are as they should be.
fn compare_scans(test: &str, are_right: impl Fn(&serde_json::Value, &serde_json::Value) -> bool) {
    let Some(rig) = rig(test) else {
        return;
    };
    let alone = scan(&rig, "off");
    assert!(alone["read_ahead"].is_null(), "{alone:#}");
    // Where other tests have the CPUs it comes too late, now and then.
    until("reading ahead", || {
        let ahead = scan(&rig, "on");
        if let Some(why) = ahead["read_ahead_refused"].as_str() {
            assert!(
                why.contains("perf") || why.contains("process_madvise"),
                "{why}"
            );
            eprintln!("skipped {test}: {why}");
            return Some(());
        }
        let (with, without) = (
            number(&ahead, "major_faults"),
            number(&alone, "major_faults"),
        );
        let read = &ahead["read_ahead"];
        eprintln!("{with} faults with a read, {without} without, {read}");
        are_right(&alone, &ahead).then_some(())
    });
}

fn number(report: &serde_json::Value, key: &str) -> u64 {
    report[key].as_u64().unwrap()
}

#[test]
fn a_scan_finds_what_it_wants_read_and_is_right() {
    let test = "a_scan_finds_what_it_wants_read";
    compare_scans(test, |alone, ahead| {
        let (with, without) = (number(ahead, "major_faults"), number(alone, "major_faults"));
        let read = &ahead["read_ahead"];
        let (used, unused) = (number(read, "used_pages"), number(read, "unused_pages"));
        let is_most = number(read, "pages") > (SCANNED_BYTES / PAGE_BYTES) as u64;
        // Elsewhere each read brings eight pages; on zram one.
        is_most && used > 4 * unused && with * 3 < without * 2
    });
}

#[test]
fn what_a_scan_has_passed_leaves_and_less_is_read_in_again() {
    let test = "what_a_scan_has_passed_leaves";
    compare_scans(test, |_, ahead| {
        let read = &ahead["read_ahead"];
        let is_left = number(read, "sent_pages") > (SCANNED_BYTES / PAGE_BYTES) as u64 / 2;
        let is_spared = number(read, "pages") + number(ahead, "major_faults") < SPARED_PAGES;
        is_left && is_spared
    });
}

#[test]
fn on_zram_and_without_a_reclaimer_nobody_hears_of_faults_unless_told_to() {
    let test = "on_zram_and_without_a_reclaimer";
    let Some(rig) = rig(test) else {
        return;
    };
    let reads = |flags: &[&str]| {
        let report = ["--no-probe", "--report", "report.json"];
        let flags: Vec<&str> = flags.iter().chain(&report).copied().collect();
        let output = rig.run("64M", &flags, &["true"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report = rig.report("report.json");
        !report["read_ahead"].is_null() || !report["read_ahead_refused"].is_null()
    };
    assert_eq!(reads(&[]), rig.device != "zram");
    assert!(reads(&["--read-ahead", "on"]));
    assert!(!reads(&["--read-ahead", "off"]));
    assert!(!reads(&["--pool", "off"]));
    let flags = ["--pool", "off", "--read-ahead", "on", "--no-probe"];
    let output = rig.run("64M", &flags, &["true"]).output().unwrap();
    let why = text(&output.stderr);
    assert!(
        !output.status.success() && why.contains("--read-ahead on needs memory"),
        "{why}"
    );
}

/// By the names of its threads, on which CPUs each of them may run.
fn threads_of(process: u32) -> Option<Vec<(String, String, i32)>> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let files = |thread: fs::DirEntry| {
        let read = |name| fs::read_to_string(thread.path().join(name)).ok();
        Some((read("status")?, read("stat")?))
    };
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim().to_owned())
    };
    let told = |(status, stat): (String, String)| {
        // The nineteenth, and the second is the name in parentheses.
        let nice = stat.rsplit_once(") ")?.1.split(' ').nth(16)?;
        Some((
            field(&status, "Name:")?,
            field(&status, "Cpus_allowed_list:")?,
            nice.parse().ok()?,
        ))
    };
    Some(
        threads
            .flatten()
            .filter_map(files)
            .filter_map(told)
            .collect(),
    )
}

#[test]
fn the_reclaimer_is_kept_to_no_cpu_and_goes_after_the_program_unless_told() {
    let test = "the_reclaimer_is_kept_to_no_cpu";
    let Some(rig) = rig(test) else {
        return;
    };
    let own = threads_of(std::process::id()).unwrap();
    let (all, nice) = (own[0].1.clone(), own[0].2);
    let Some(last) = all.rsplit([',', '-']).next().filter(|last| *last != all) else {
        return eprintln!("skipped {test}: there is one CPU");
    };
    let first = all.split([',', '-']).next().unwrap();
    for (flags, reclaimer, reader, goes_after) in [
        (vec!["--read-ahead", "on"], all.as_str(), last, true),
        (
            vec!["--read-ahead", "on", "--cpu", first],
            first,
            first,
            false,
        ),
    ] {
        let mut run = rig.run("64M", &flags, &["cat"]);
        let mut run = run.stdin(Stdio::piped()).spawn().unwrap();
        // `cat` goes on until its input ends.
        let input = run.stdin.take();
        until("threads where they are to be", || {
            let threads = threads_of(run.id())?;
            let of = |name: &str| threads.iter().find(|(found, ..)| found == name);
            let (_, reclaims_at, reclaimers) = of("nyx-reclaimer")?;
            let (_, reads_at, readers) = of("nyx-readahead")?;
            let (_, _, counters) = of("nyx-counts")?;
            let is_there = reclaims_at == reclaimer && reads_at == reader;
            let is_in_order = readers < reclaimers && (*reclaimers > nice) == goes_after;
            let go_before = readers.max(counters) < &nice;
            (is_there && is_in_order && go_before).then_some(())
        });
        drop(input);
        assert!(run.wait().unwrap().success());
    }
}

/// Not a test of its own: what the first two run.
#[test]
#[ignore = "what the first two run"]
fn scans_its_memory() {
    let mut bytes = vec![0u8; SCANNED_BYTES];
    let value = |page: usize| {
        (page as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    };
    let mut rng = fastrand::Rng::with_seed(6);
    for (number, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
        rng.fill(page);
        page[..8].copy_from_slice(&value(number));
    }
    for _ in 0..SCANS {
        for (number, page) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
            assert_eq!(page[..8], value(number), "page {number}");
        }
    }
    println!("\nright");
}
