//! Virtual disks that say that they rotate: what the kernel reads ahead, run after run.

use super::*;

const PAGE_BYTES: usize = 4096;
/// Too few for a huge page.
const PAGES: usize = 384;
/// Neighbours in memory are written to so many pages apart, and so leave, and lie on the disk.
const APART: usize = 77;
/// Pages that are touched in order, somewhere in the middle.
const TOUCHED: std::ops::Range<usize> = 200..264;
/// Drives all of them out of memory.
const FILLER_BYTES: usize = 40 << 20;

/// What the disk of a directory says of its rotation, where it is one that cannot know.
fn word_of_virtual_disk(dir: &Path) -> Option<PathBuf> {
    let number = fs::metadata(dir).unwrap().dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let disk = match disk.join("partition").exists() {
        true => disk.parent()?,
        false => &disk,
    };
    let driver = fs::read_link(disk.join("device/driver")).ok()?;
    let is_virtual = driver.ends_with("virtio_blk") || driver.ends_with("vbd");
    is_virtual.then(|| disk.join("queue/rotational"))
}

/// A rig on such a disk, and its word.
fn virtual_disk(test: &str) -> Option<(Rig, PathBuf)> {
    let rig = rig(test)?;
    let word = word_of_virtual_disk(rig.dir.path()).filter(|_| rig.device != "zram");
    let says = word.as_ref().map(|word| fs::read_to_string(word).unwrap());
    match word.filter(|_| says.is_some_and(|says| says.trim() == "1")) {
        Some(word) => Some((rig, word)),
        None => {
            eprintln!("skipped {test}: no virtual disk that says that it rotates is below");
            None
        }
    }
}

#[test]
fn a_virtual_disk_is_not_believed_that_it_rotates_and_says_it_again_afterwards() {
    let Some((rig, word)) = virtual_disk("a_virtual_disk_is_not_believed") else {
        return;
    };
    let is_doubted = |pool: &str| {
        let flags = ["--pool", pool, "--no-probe", "--report", "report.json"];
        let output = rig.run("64M", &flags, &["true"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        rig.report("report.json")["is_swap_doubted"] == true
    };
    // A run of another test may have changed its word just now.
    until("doubt", || is_doubted("auto").then_some(()));
    until("word", || {
        let says = fs::read_to_string(&word).unwrap();
        (says.trim() == "1").then_some(())
    });
    assert!(
        !is_doubted("off"),
        "without a reclaimer all is as it stands"
    );
}

/// The kernel counts areas that rotate: a run that had the disk say one thing when its area was
/// turned on and another one when it was turned off left all later runs reading ahead by the place
/// on the disk.
#[test]
fn what_lies_beside_a_page_in_memory_is_read_ahead_in_each_run_after_others() {
    let Some((rig, _)) = virtual_disk("what_lies_beside_a_page_in_memory_is_read_ahead") else {
        return;
    };
    let program = own_program("rotation::reads_touched_pages_back");
    for run in 1..=3 {
        // While another test has an area that rotates the kernel reads ahead otherwise.
        until("reading ahead by address", || {
            let flags = ["--read-ahead", "off", "--no-probe", "--no-report"];
            let output = rig.run("20M", &flags, &program).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            let output = text(&output.stdout);
            let faults = output.lines().find_map(|line| line.strip_prefix("faults "));
            let faults: usize = faults.expect(&output).parse().unwrap();
            eprintln!("run {run}: {faults} faults with a read for {TOUCHED:?}");
            (faults < TOUCHED.len() / 2).then_some(())
        });
    }
}

/// Not a test of its own: what the one above runs.
#[test]
#[ignore = "what what_lies_beside_a_page_in_memory_is_read_ahead_in_each_run_after_others runs"]
fn reads_touched_pages_back() {
    let mut bytes = vec![0; PAGES * PAGE_BYTES];
    let mut rng = fastrand::Rng::with_seed(5);
    for turn in 0..PAGES {
        rng.fill(&mut bytes[turn * APART % PAGES * PAGE_BYTES..][..PAGE_BYTES]);
    }
    let mut filler = vec![0u8; FILLER_BYTES];
    rng.fill(&mut filler);
    std::hint::black_box(&filler);
    let before = reads();
    for page in TOUCHED {
        std::hint::black_box(bytes[page * PAGE_BYTES]);
    }
    println!("\nfaults {}", reads() - before);
}

/// Faults of this process with a read: field 12 of proc_pid_stat(5).
fn reads() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after) = stat.rsplit_once(')').unwrap();
    after.split_whitespace().nth(9).unwrap().parse().unwrap()
}
