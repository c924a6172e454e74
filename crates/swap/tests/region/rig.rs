//! What the tests of regions have in common.
//!
//! What it never does: take what fails for another reason than a missing userfaultfd for a skip.

use nyx_media::queue::{BlockOp, Refusals};
use nyx_policy::paging::pager::Why;
use nyx_swap::region::{Device, Region, RegionError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub(crate) const PAGE: usize = 4096;

/// A device of so many pages that is gone with the region.
pub(crate) fn device(slots: usize) -> Device {
    let shared = Path::new("/dev/shm");
    let dir = match shared.is_dir() {
        true => shared.to_owned(),
        false => std::env::temp_dir(),
    };
    Device::temporary(&dir, (slots * PAGE) as u64).expect("room for a device")
}

/// The region, or why the test is skipped.
pub(crate) fn made(name: &str, region: Result<Region, RegionError>) -> Option<Region> {
    match region {
        Ok(region) => Some(region),
        Err(reason @ RegionError::NoUserfaultfd { .. }) => {
            eprintln!("skipped {name}: {reason}");
            None
        }
        Err(other) => panic!("{name}: {other}"),
    }
}

/// A region of 64 pages of which 16 may be in memory, and whether its device refuses what is asked
/// of it in that way; or why the test is skipped. It does not at first.
pub(crate) fn refusing(name: &str, refused: BlockOp) -> Option<(Region, Arc<AtomicBool>)> {
    let refuses = Arc::new(AtomicBool::new(false));
    let rule = refuses.clone();
    let refusals =
        Refusals::new(move |op, _| (op == refused && rule.load(SeqCst)).then_some(libc::EIO));
    let device = device(64).refusing(refusals);
    let region = made(
        name,
        Region::new(64 * PAGE as u64, 16 * PAGE as u64, &device),
    )?;
    Some((region, refuses))
}

/// The first word of a page of the region, as a program may touch it.
pub(crate) fn page(region: &Region, page: usize) -> &AtomicU64 {
    assert!((page + 1) * PAGE <= region.len_bytes());
    // SAFETY: it lies in the region, which lives longer, and is aligned; tests reach it by atomics
    // and by the region's own copies.
    unsafe { &*region.as_ptr().add(page * PAGE).cast() }
}

/// The first word of [`bytes`].
pub(crate) fn word(page: usize, round: u64) -> u64 {
    let first = bytes(page, round)[..8].try_into();
    u64::from_le_bytes(first.expect("eight bytes"))
}

/// What a page holds in a round; never all zeros.
pub(crate) fn bytes(page: usize, round: u64) -> [u8; PAGE] {
    let mut rng = fastrand::Rng::with_seed(page as u64 * 1000 + round + 1);
    let mut bytes = [0; PAGE];
    bytes.fill_with(|| rng.u8(1..));
    bytes
}

pub(crate) fn fill(region: &Region, page: usize, round: u64) {
    let written = region.write_at(page * PAGE, &bytes(page, round));
    written.unwrap_or_else(|error| panic!("page {page}: {error}"));
}

pub(crate) fn check(region: &Region, page: usize, round: u64) {
    let mut into = [0; PAGE];
    let read = region.read_at(page * PAGE, &mut into);
    read.unwrap_or_else(|error| panic!("page {page}: {error}"));
    assert!(into == bytes(page, round), "page {page}, round {round}");
}

/// Which page an error is about, and why.
pub(crate) fn why(error: &RegionError) -> (usize, Why) {
    match error {
        RegionError::Page { at_bytes, why } => (*at_bytes as usize, *why),
        other => panic!("{other}"),
    }
}
