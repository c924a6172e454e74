//! Which pages are read before they are wanted.
//!
//! * [`Prefetch::Cluster`]: those of the aligned cluster around the page (Ultraswap section 3.2).
//! * [`Prefetch::Trend`]: along the step that most of the last faults took (Leap, ATC'20), where
//!   there is one; else the cluster.
//! * [`Prefetch::Stream`]: none of these; the pager asks its streams (`streams.rs`).
//!
//! How many is found out: as many as were used of the last ones and a little more, as Linux has it
//! (`swap_vma_readahead`), so that on random access there are none.
//!
//! What it never does: know which pages are on the device; count memory.
//!
//! *Thread safety*: one owner.

/// How pages are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// None.
    Off,
    /// The cluster around the page.
    Cluster,
    /// Along the trend of the last faults.
    Trend,
    /// Where pages are wanted in order, up to 32 of those that follow, mapped before they are
    /// touched; zeros too. Other accesses have none.
    #[default]
    Stream,
}

/// The cluster at most, with the page itself (`page-cluster` 3).
pub const CLUSTER_PAGES_MAX: u32 = 8;
/// Steps that are remembered.
const STEPS: usize = 32;
/// A trend is looked for in so many of the last steps, then in twice as many (Leap section 4.2).
const STEPS_LEAST: usize = 8;
/// Without any use of what was read ahead, one fault in so many tries it all the same.
const TRY_ONE_IN: u32 = 64;

/// See the module.
#[derive(Clone, Debug)]
pub struct Ahead {
    rule: Prefetch,
    steps: [i64; STEPS],
    known: usize,
    last: Option<u32>,
    /// Pages that were read ahead and then wanted, since the last fault.
    hits: u32,
    window: u32,
    faults: u32,
}

impl Ahead {
    /// Nothing was seen yet.
    pub fn new(rule: Prefetch) -> Ahead {
        Ahead {
            rule,
            steps: [0; STEPS],
            known: 0,
            last: None,
            hits: 0,
            window: 1,
            faults: 0,
        }
    }

    /// A page that was read ahead is wanted.
    pub fn hit(&mut self, page: u32) {
        self.hits = self.hits.saturating_add(1);
        self.note(page);
    }

    /// A page is to be read that nobody had read ahead; the others to read with it, of `pages`.
    pub fn fault(&mut self, page: u32, pages: u32) -> Pages {
        if matches!(self.rule, Prefetch::Off | Prefetch::Stream) {
            return Pages::default();
        }
        let is_next = self.last.is_some_and(|last| page.abs_diff(last) == 1);
        self.note(page);
        let trend = match self.rule {
            Prefetch::Trend => self.trend(),
            _ => None,
        };
        self.faults = self.faults.wrapping_add(1);
        let wanted = match std::mem::take(&mut self.hits) {
            0 if is_next || trend.is_some() || self.faults.is_multiple_of(TRY_ONE_IN) => 2,
            0 => 1,
            hits => (hits.min(CLUSTER_PAGES_MAX) + 2)
                .next_power_of_two()
                .min(CLUSTER_PAGES_MAX),
        };
        self.window = wanted.max(self.window / 2);
        match trend {
            Some(step) => Pages::along(page, step, self.window, pages),
            None => Pages::around(page, self.window, pages),
        }
    }

    fn note(&mut self, page: u32) {
        if let Some(last) = self.last.replace(page) {
            self.steps[self.known % STEPS] = i64::from(page) - i64::from(last);
            self.known += 1;
        }
    }

    /// The step that more than half of the last ones took (Boyer and Moore's vote).
    fn trend(&self) -> Option<i64> {
        let mut len = STEPS_LEAST;
        while len <= STEPS.min(self.known) {
            let last = || (1..=len).map(|back| self.steps[(self.known - back) % STEPS]);
            let (mut step, mut votes) = (0, 0);
            for other in last() {
                match votes {
                    0 => (step, votes) = (other, 1),
                    _ if other == step => votes += 1,
                    _ => votes -= 1,
                }
            }
            if step != 0 && last().filter(|&other| other == step).count() > len / 2 {
                return Some(step);
            }
            len *= 2;
        }
        None
    }
}

/// Pages that are to be read with another; a handful, without an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    pages: [u32; CLUSTER_PAGES_MAX as usize],
    len: usize,
}

impl Pages {
    /// The others of an aligned cluster.
    fn around(page: u32, window: u32, pages: u32) -> Pages {
        let first = page / window * window;
        let last = first.saturating_add(window).min(pages);
        Pages::of((first..last).filter(|&other| other != page))
    }

    fn along(page: u32, step: i64, window: u32, pages: u32) -> Pages {
        let all = (1..i64::from(window)).map(|count| i64::from(page) + count * step);
        Pages::of(all.filter_map(|other| u32::try_from(other).ok().filter(|&is| is < pages)))
    }

    fn of(all: impl Iterator<Item = u32>) -> Pages {
        let mut pages = Pages::default();
        for page in all {
            pages.pages[pages.len] = page;
            pages.len += 1;
        }
        pages
    }

    /// In the order in which they are to be read.
    pub fn as_slice(&self) -> &[u32] {
        &self.pages[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 1 << 20;

    /// Faults of a program that touches pages in this order: those of `Ahead` it need not wait for.
    fn faults(rule: Prefetch, touched: impl Iterator<Item = u32>) -> (u32, u32, u32) {
        let mut ahead = Ahead::new(rule);
        let mut there = std::collections::BTreeSet::<u32>::new();
        let (mut faults, mut read, mut hits) = (0, 0, 0);
        for page in touched {
            if there.remove(&page) {
                ahead.hit(page);
                hits += 1;
                continue;
            }
            faults += 1;
            let pages = ahead.fault(page, PAGES);
            assert!(!pages.as_slice().contains(&page));
            read += pages.as_slice().len() as u32;
            there.extend(pages.as_slice());
        }
        (faults, read, hits)
    }

    #[test]
    fn in_order_there_is_one_fault_for_each_cluster() {
        for rule in [Prefetch::Cluster, Prefetch::Trend] {
            let (found, ..) = faults(rule, 0..8_000);
            assert!((1_000..=1_010).contains(&found), "{rule:?}: {found}");
        }
        assert_eq!(faults(Prefetch::Off, 0..100), (100, 0, 0));
    }

    #[test]
    fn on_random_access_next_to_nothing_is_read_ahead() {
        let mut rng = fastrand::Rng::with_seed(7);
        let touched: Vec<u32> = (0..10_000).map(|_| rng.u32(..PAGES)).collect();
        for rule in [Prefetch::Cluster, Prefetch::Trend] {
            let (found, read, _) = faults(rule, touched.iter().copied());
            assert!(found > 9_990, "{found}");
            // One try in 64, and its echo.
            assert!(read <= 10_000 / 32, "{rule:?}: {read}");
        }
    }

    #[test]
    fn a_trend_is_followed_where_clusters_are_of_no_use() {
        let strided = |rule| faults(rule, (0..4_000).map(|count| 400_000 - count * 17));
        let (cluster, ..) = strided(Prefetch::Cluster);
        let (trend, read, hits) = strided(Prefetch::Trend);
        assert_eq!(cluster, 4_000);
        assert!(
            trend < 1_000 && hits > read * 9 / 10,
            "{trend} {hits} {read}"
        );
    }

    #[test]
    fn a_cluster_is_aligned_and_ends_where_the_pages_do() {
        assert_eq!(Pages::around(13, 4, 15).as_slice(), [12, 14]);
        assert_eq!(Pages::around(13, 1, 15).as_slice(), [0; 0]);
        assert_eq!(Pages::along(2, -1, 8, 15).as_slice(), [1, 0]);
    }
}
