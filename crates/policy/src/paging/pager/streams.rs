//! Pages that are wanted in order: which follow, and how many of them are worth having ahead (as
//! Linux's `mm/readahead.c` has it).
//!
//! A *stream* is born where a page is wanted that stands beside one which was wanted lately, and
//! goes on where the page behind its window is wanted, or the window's *marker*. Its window is
//! twice as large each time, half as large where the marker had left again before it was wanted.
//! Several streams go on beside each other and beside accesses in no order.
//!
//! Of pages that are read a stream may have a longer step, as where a matrix is walked through
//! across its columns (ours): it is born where three pages that are wanted one after the other are
//! equally far apart, give or take one, since steps are seldom whole pages. Its step is known the
//! better the farther it went.
//!
//! What they never do: know which pages are there; count memory; allocate.
//!
//! *Thread safety*: one owner.

/// The window at most.
pub(super) const WINDOW_PAGES_MAX: u32 = 32;
/// Streams beside each other.
const STREAMS: usize = 8;
/// Pages that were wanted lately.
const LATELY: usize = 8;
/// The window at most where steps are longer: those pages are read one by one.
const FAR_WINDOW_PAGES_MAX: u32 = 8;
/// Steps are no longer, in pages.
const STEP_MAX: i64 = 1 << 14;
/// Parts of a page in which places and steps are counted.
const PARTS: i64 = 1 << 16;
/// This part of an error is corrected.
const CORRECTED: i64 = 3;

/// The middle of a page, in parts.
fn middle(page: u32) -> i64 {
    i64::from(page) * PARTS + PARTS / 2
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Whether there are longer steps.
    goes_far: bool,
    /// The last two pages that were wanted and began nothing, the later one first.
    last: [Option<u32>; 2],
    lately: [Option<u32>; LATELY],
    wanted: usize,
    streams: [Stream; STREAMS],
    /// Times that a stream went on.
    steps: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// In parts of a page; 0 where there is no stream.
    step: i64,
    /// Where the window ends, in parts: in the page behind it.
    next: i64,
    /// Steps from where it began to `next`.
    steps: i64,
    /// A page of the window of whose touch is told.
    marker: Option<u32>,
    window: u32,
    /// When it went on last.
    at: u64,
}

/// What is to be had ahead; [`Streams::had`] is to be told what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    stream: usize,
    /// In parts of a page, as the step.
    first: i64,
    step: i64,
    /// So many pages.
    pub(super) len: u32,
}

impl Run {
    /// The pages that follow, as far as there are so many.
    pub(super) fn within(self, pages: u32) -> impl Iterator<Item = u32> {
        let all = (0..i64::MAX).map(move |count| self.first + count * self.step);
        all.map_while(move |at| {
            let page = u32::try_from(at.div_euclid(PARTS)).ok();
            page.filter(|&page| page < pages)
        })
    }
}

impl Stream {
    /// The page is wanted: the window is behind it.
    fn is_at(&mut self, page: u32) {
        if self.is_far() {
            let back = self.was_at(page);
            self.next += (back + 1) * self.step;
            self.steps += back + 1;
        } else {
            self.next = middle(page) + self.step;
        }
    }

    /// A page of the window is wanted, so many steps from its end: where it was taken for another
    /// one, the place in its page and the step are corrected by a part of that.
    fn was_at(&mut self, page: u32) -> i64 {
        let Some(back) = self.steps_to(page).filter(|_| self.is_far()) else {
            return 0;
        };
        let at = self.next + back * self.step;
        let wrong = i64::from(page) - at.div_euclid(PARTS);
        let by = wrong * PARTS / CORRECTED;
        self.step += by / (self.steps + back).max(1);
        self.next = at + by - back * self.step;
        back
    }

    fn is_far(&self) -> bool {
        self.step.abs() > PARTS
    }

    /// Steps from `next` to a page of its window, or behind that; none where it is none of them.
    fn steps_to(&self, page: u32) -> Option<i64> {
        if !self.is_far() {
            return (middle(page) == self.next).then_some(0);
        }
        let off = middle(page) - self.next;
        let steps = (off + self.step / 2).div_euclid(self.step);
        let is_near = (off - steps * self.step).abs() <= PARTS + PARTS / 2;
        (is_near && (-i64::from(self.window)..=0).contains(&steps)).then_some(steps)
    }
}

impl Streams {
    /// None yet; with longer steps than a page too, or not.
    pub(super) fn new(goes_far: bool) -> Streams {
        Streams {
            goes_far,
            last: [None; 2],
            lately: [None; LATELY],
            wanted: 0,
            streams: [Stream::default(); STREAMS],
            steps: 0,
        }
    }

    /// A page is wanted that is not there; what to have ahead of the next, `most` pages at most.
    pub(super) fn want(&mut self, page: u32, most: u32) -> Option<Run> {
        let number = match self.find(|stream| stream.marker == Some(page)) {
            Some(number) => {
                self.streams[number].window /= 4;
                number
            }
            None => match self.find(|stream| stream.steps_to(page).is_some()) {
                Some(number) => number,
                None => self.bear(page)?,
            },
        };
        self.streams[number].is_at(page);
        Some(self.go_on(number, most))
    }

    /// A page is wanted that is there already; what to have next where it is a marker.
    pub(super) fn touch(&mut self, page: u32, most: u32) -> Option<Run> {
        let number = self.find(|stream| stream.marker == Some(page))?;
        self.streams[number].was_at(page);
        Some(self.go_on(number, most))
    }

    /// So many pages of a run were looked at; of a touch of the marker is to be told.
    pub(super) fn had(&mut self, run: Run, looked_at: u32, marker: Option<u32>) {
        let stream = &mut self.streams[run.stream];
        stream.next = run.first + i64::from(looked_at) * run.step;
        stream.steps += i64::from(looked_at);
        stream.marker = marker;
    }

    fn find(&self, is_it: impl Fn(&Stream) -> bool) -> Option<usize> {
        let mut all = self.streams.iter();
        all.position(|stream| stream.step != 0 && is_it(stream))
    }

    /// A stream begins with this page, where one beside it was wanted before.
    fn bear(&mut self, page: u32) -> Option<usize> {
        let is_beside = |other: &Option<u32>| other.is_some_and(|other| page.abs_diff(other) == 1);
        let stream = match self.lately.iter().position(is_beside) {
            Some(place) => {
                let other = self.lately[place].take()?;
                let step = (i64::from(page) - i64::from(other)) * PARTS;
                Stream {
                    step,
                    ..Stream::default()
                }
            }
            None => {
                let far = self.far_from(page);
                self.lately[self.wanted % LATELY] = Some(page);
                self.wanted = self.wanted.wrapping_add(1);
                self.last = [Some(page), self.last[0]];
                far?
            }
        };
        let oldest = (0..STREAMS).min_by_key(|&number| self.streams[number].at)?;
        self.streams[oldest] = stream;
        Some(oldest)
    }

    /// A stream of longer steps, where the last two pages are one and two of them away.
    fn far_from(&self, page: u32) -> Option<Stream> {
        let [Some(last), Some(first)] = self.last else {
            return None;
        };
        let [first, last, page] = [first, last, page].map(i64::from);
        let (one, other) = (last - first, page - last);
        let is_even = (one - other).abs() <= 1 && (2..=STEP_MAX).contains(&one.abs());
        (self.goes_far && is_even).then(|| Stream {
            step: (page - first) * PARTS / 2,
            next: page * PARTS + PARTS / 2,
            steps: 2,
            ..Stream::default()
        })
    }

    fn go_on(&mut self, number: usize, most: u32) -> Run {
        self.steps += 1;
        let stream = &mut self.streams[number];
        stream.at = self.steps;
        let most = match stream.is_far() {
            // No farther than the step is known for.
            true => most.min(FAR_WINDOW_PAGES_MAX).min(stream.steps as u32 / 2),
            false => most.min(WINDOW_PAGES_MAX),
        };
        stream.window = (stream.window * 2).clamp(1, most.max(1));
        stream.marker = None;
        Run {
            stream: number,
            first: stream.next,
            step: stream.step,
            len: stream.window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAGES: u32 = 1 << 20;

    /// A program, and memory for all that was had ahead of it.
    struct World {
        streams: Streams,
        /// Pages that are there, and which of them are markers.
        there: BTreeSet<u32>,
        markers: BTreeSet<u32>,
        misses: u32,
        ahead: u32,
    }

    impl World {
        fn new() -> World {
            World {
                streams: Streams::new(true),
                there: BTreeSet::new(),
                markers: BTreeSet::new(),
                misses: 0,
                ahead: 0,
            }
        }

        fn touch(&mut self, page: u32) {
            let run = match self.there.remove(&page) {
                true if !self.markers.remove(&page) => return,
                true => self.streams.touch(page, WINDOW_PAGES_MAX),
                false => {
                    self.misses += 1;
                    self.streams.want(page, WINDOW_PAGES_MAX)
                }
            };
            let Some(run) = run else {
                return;
            };
            let pages: Vec<u32> = run.within(PAGES).take(run.len as usize).collect();
            assert!(!pages.contains(&page));
            let there = self.there.len();
            self.there.extend(&pages);
            self.ahead += (self.there.len() - there) as u32;
            self.markers.extend(pages.first());
            self.streams
                .had(run, pages.len() as u32, pages.first().copied());
        }
    }

    #[test]
    fn in_order_nothing_is_waited_for_after_the_second_page_up_and_down() {
        let mut world = World::new();
        (1_000..4_000).for_each(|page| world.touch(page));
        (500_000..503_000).rev().for_each(|page| world.touch(page));
        assert_eq!(world.misses, 4);
        assert!(
            (6_000..6_200).contains(&world.ahead),
            "two windows are left"
        );
        assert_eq!(Run::within(run(2, -PARTS, 8), PAGES).last(), Some(0));
        assert_eq!(Run::within(run(2, PARTS, 8), 4).last(), Some(3));
    }

    fn run(first: u32, step: i64, len: u32) -> Run {
        let stream = 0;
        Run {
            stream,
            first: middle(first),
            step,
            len,
        }
    }

    #[test]
    fn several_streams_go_on_beside_accesses_in_no_order() {
        let mut world = World::new();
        let mut rng = fastrand::Rng::with_seed(3);
        for count in 0..2_000 {
            for stream in 0..3 {
                world.touch(stream * 10_000 + count);
                world.touch(100_000 + rng.u32(..900_000));
            }
        }
        let random = 6_000;
        assert!(
            (random..random + 100).contains(&world.misses),
            "{}",
            world.misses
        );
    }

    #[test]
    fn on_random_access_next_to_nothing_is_read_ahead() {
        let mut world = World::new();
        let mut rng = fastrand::Rng::with_seed(7);
        (0..10_000).for_each(|_| world.touch(rng.u32(..PAGES)));
        assert!(
            world.misses > 9_990 && world.ahead <= 5,
            "{} {}",
            world.misses,
            world.ahead
        );
    }

    #[test]
    fn the_window_doubles_is_limited_and_is_halved_where_its_marker_left() {
        let mut streams = Streams::new(true);
        assert!(streams.want(9, 32).is_none());
        let mut run = streams.want(10, 32).expect("beside 9");
        let mut windows = vec![run.len];
        for _ in 0..6 {
            let marker = (run.first / PARTS) as u32;
            streams.had(run, run.len, Some(marker));
            run = streams.touch(marker, 32).expect("its marker");
            windows.push(run.len);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 32, 32]);
        let marker = (run.first / PARTS) as u32;
        streams.had(run, run.len, Some(marker));
        assert!(
            streams.touch(marker + 1, 32).is_none(),
            "no more than a page"
        );
        run = streams.want(marker, 32).expect("it had left");
        assert_eq!((run.first, run.len), (middle(marker + 1), 16));
        // Where there was room for three, the stream goes on behind them.
        streams.had(run, 3, None);
        let run = streams.want(marker + 4, 20).expect("behind its window");
        assert_eq!((run.first, run.len), (middle(marker + 5), 20));
    }

    /// Pages that are walked through by a step in parts of a page, from one on.
    fn walk(first: u32, step: f64, count: u32) -> impl Iterator<Item = u32> {
        (0..count).map(move |at| first + (f64::from(at) * step) as u32)
    }

    #[test]
    fn along_longer_steps_few_pages_are_waited_for_whatever_part_of_a_page_they_are() {
        for step in [2.0, 14.65, 29.3, 43.945, 100.0, 1_000.5] {
            let mut world = World::new();
            walk(7, step, 1_000).for_each(|page| world.touch(page));
            let (misses, ahead) = (world.misses, world.ahead);
            // Where a page's neighbour is taken for it, it is waited for.
            assert!(misses < 250, "{step}: {misses}");
            assert!(ahead < 1_400, "{step}: {ahead}");
        }
    }

    #[test]
    fn columns_of_tiles_in_turns_are_streams_beside_each_other() {
        let mut world = World::new();
        // As LAPACK has them: every third of twelve columns, then the next of them.
        let columns: Vec<u32> = walk(500, 14.648, 1_200).collect();
        for tile in columns.chunks(12) {
            for first in 0..3 {
                tile.iter()
                    .skip(first)
                    .step_by(3)
                    .for_each(|&page| world.touch(page));
            }
        }
        let (misses, ahead) = (world.misses, world.ahead);
        assert!(misses < 300, "{misses} of 1,200");
        // Where a place is taken for its neighbour that one is read for nothing.
        assert!(ahead < 1_750, "{ahead}");
    }
}
