//! Pages that are wanted in order: which follow, and how many of them are worth having ahead (as
//! Linux's `mm/readahead.c` has it).
//!
//! A *stream* is born where a page is wanted that stands beside one which was wanted lately, and
//! goes on where the page behind its window is wanted, or the window's *marker*. Its window is
//! twice as large each time, half as large where the marker had left again before it was wanted.
//! Several streams go on beside each other and beside accesses in no order.
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

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    lately: [Option<u32>; LATELY],
    wanted: usize,
    streams: [Stream; STREAMS],
    /// Times that a stream went on.
    steps: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// 1 or -1; 0 where there is no stream.
    step: i64,
    /// The page behind the window.
    next: i64,
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
    first: i64,
    step: i64,
    /// So many pages.
    pub(super) len: u32,
}

impl Run {
    /// The pages that follow, as far as there are so many.
    pub(super) fn within(self, pages: u32) -> impl Iterator<Item = u32> {
        let all = (0..i64::MAX).map(move |count| self.first + count * self.step);
        all.map_while(move |page| u32::try_from(page).ok().filter(|&page| page < pages))
    }
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            lately: [None; LATELY],
            wanted: 0,
            streams: [Stream::default(); STREAMS],
            steps: 0,
        }
    }

    /// A page is wanted that is not there; what to have ahead of the next, `most` pages at most.
    pub(super) fn want(&mut self, page: u32, most: u32) -> Option<Run> {
        let at = i64::from(page);
        let number = match self.find(|stream| stream.next == at || stream.marker == Some(page)) {
            Some(number) => number,
            None => self.bear(page)?,
        };
        let stream = &mut self.streams[number];
        if stream.marker == Some(page) {
            stream.window /= 4;
        }
        stream.next = at + stream.step;
        Some(self.go_on(number, most))
    }

    /// A page is wanted that is there already; what to have next where it is a marker.
    pub(super) fn touch(&mut self, page: u32, most: u32) -> Option<Run> {
        let number = self.find(|stream| stream.marker == Some(page))?;
        Some(self.go_on(number, most))
    }

    /// So many pages of a run were looked at; of a touch of the marker is to be told.
    pub(super) fn had(&mut self, run: Run, looked_at: u32, marker: Option<u32>) {
        let stream = &mut self.streams[run.stream];
        stream.next = run.first + i64::from(looked_at) * run.step;
        stream.marker = marker;
    }

    fn find(&self, is_it: impl Fn(&Stream) -> bool) -> Option<usize> {
        let mut all = self.streams.iter();
        all.position(|stream| stream.step != 0 && is_it(stream))
    }

    /// A stream begins with this page, where one beside it was wanted before.
    fn bear(&mut self, page: u32) -> Option<usize> {
        let is_beside = |other: &Option<u32>| other.is_some_and(|other| page.abs_diff(other) == 1);
        let Some(place) = self.lately.iter().position(is_beside) else {
            self.lately[self.wanted % LATELY] = Some(page);
            self.wanted = self.wanted.wrapping_add(1);
            return None;
        };
        let other = self.lately[place].take()?;
        let oldest = (0..STREAMS).min_by_key(|&number| self.streams[number].at)?;
        self.streams[oldest] = Stream {
            step: i64::from(page) - i64::from(other),
            ..Stream::default()
        };
        Some(oldest)
    }

    fn go_on(&mut self, number: usize, most: u32) -> Run {
        self.steps += 1;
        let stream = &mut self.streams[number];
        stream.at = self.steps;
        stream.window = (stream.window * 2).clamp(1, most.clamp(1, WINDOW_PAGES_MAX));
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
                streams: Streams::new(),
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
            self.ahead += pages.len() as u32;
            self.there.extend(&pages);
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
        assert_eq!(Run::within(run(2, -1, 8), PAGES).last(), Some(0));
        assert_eq!(Run::within(run(2, 1, 8), 4).last(), Some(3));
    }

    fn run(first: i64, step: i64, len: u32) -> Run {
        let stream = 0;
        Run {
            stream,
            first,
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
        let mut streams = Streams::new();
        assert!(streams.want(9, 32).is_none());
        let mut run = streams.want(10, 32).expect("beside 9");
        let mut windows = vec![run.len];
        for _ in 0..6 {
            let marker = run.first as u32;
            streams.had(run, run.len, Some(marker));
            run = streams.touch(marker, 32).expect("its marker");
            windows.push(run.len);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 32, 32]);
        let marker = run.first as u32;
        streams.had(run, run.len, Some(marker));
        assert!(
            streams.touch(marker + 1, 32).is_none(),
            "no more than a page"
        );
        run = streams.want(marker, 32).expect("it had left");
        assert_eq!((run.first, run.len), (i64::from(marker) + 1, 16));
        // Where there was room for three, the stream goes on behind them.
        streams.had(run, 3, None);
        let run = streams.want(marker + 4, 20).expect("behind its window");
        assert_eq!((run.first, run.len), (i64::from(marker) + 5, 20));
    }
}
