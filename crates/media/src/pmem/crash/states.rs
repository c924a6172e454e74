//! The states of a log: see [`super`].

use super::Event;
use crate::pmem::LINE_WORDS;
use nyx_base::Rng;
use std::collections::BTreeMap;
use std::thread::ThreadId;

/// How many states to look at between two fences.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Up to so many are all shown.
    pub all_up_to: u64,
    /// Where there are more: everything, nothing, each line alone with and without, and so many
    /// drawn at random.
    pub drawn: u64,
    /// Of the random draws.
    pub seed: u64,
}

impl Default for Depth {
    fn default() -> Depth {
        Depth {
            all_up_to: 128,
            drawn: 16,
            seed: 1,
        }
    }
}

/// One state that a crash could have left.
#[derive(Debug)]
pub struct Crash<'a> {
    /// Every word.
    pub image: &'a [u64],
    /// What [`super::Recorder::acknowledge`] said last before the last moment at which this state
    /// is legal: so much must be there.
    pub acknowledged: u64,
}

/// Stores to one line that are not durable for certain.
#[derive(Debug, Default)]
struct Line {
    /// Words and values in the order in which they become durable.
    stores: Vec<(usize, u64)>,
    /// A store that waits for the next one to its line.
    late: Option<(usize, u64)>,
    /// How many of them each thread has flushed and not fenced.
    flushed: BTreeMap<u64, usize>,
}

impl Line {
    fn store(&mut self, word: usize, value: u64, late: bool) {
        let before = self.late.take();
        if late {
            self.stores.extend(before);
            self.late = Some((word, value));
        } else {
            self.stores.push((word, value));
            self.stores.extend(before);
        }
    }

    fn flush(&mut self, thread: u64) {
        let late = self.late.take();
        self.stores.extend(late);
        self.flushed.insert(thread, self.stores.len());
    }
}

/// The memory as it is while the log is read.
struct Tracker<'l> {
    durable: Vec<u64>,
    lines: BTreeMap<usize, Line>,
    threads: Vec<ThreadId>,
    acknowledged: u64,
    depth: Depth,
    rng: Rng,
    seen: u64,
    see: &'l mut dyn FnMut(&Crash<'_>),
}

pub(super) fn explore(
    durable: &[u64],
    events: &[Event],
    depth: Depth,
    mut see: impl FnMut(&Crash<'_>),
) -> u64 {
    let mut tracker = Tracker {
        durable: durable.to_vec(),
        lines: BTreeMap::new(),
        threads: Vec::new(),
        acknowledged: 0,
        depth,
        rng: Rng::with_seed(depth.seed),
        seen: 0,
        see: &mut see,
    };
    for &event in events {
        tracker.take(event);
    }
    tracker.finish()
}

impl Tracker<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Store { word, value, late } => {
                let line = self.lines.entry(word / LINE_WORDS).or_default();
                line.store(word, value, late);
            }
            Event::Flush { line, thread } => {
                let thread = self.thread(thread);
                if let Some(line) = self.lines.get_mut(&line) {
                    line.flush(thread);
                }
            }
            Event::Fence { thread } => {
                let thread = self.thread(thread);
                self.fence(thread);
            }
            Event::Acknowledged(count) => self.acknowledged = count,
        }
    }

    fn thread(&mut self, id: ThreadId) -> u64 {
        let known = self.threads.iter().position(|&known| known == id);
        known.unwrap_or_else(|| {
            self.threads.push(id);
            self.threads.len() - 1
        }) as u64
    }

    /// Shows the states that this fence forbids, then makes durable what it waits for.
    fn fence(&mut self, thread: u64) {
        let least: BTreeMap<usize, usize> = self
            .lines
            .iter()
            .filter_map(|(&at, line)| Some((at, *line.flushed.get(&thread)?)))
            .filter(|&(_, count)| count > 0)
            .collect();
        if !least.is_empty() {
            self.show(|prefix| least.iter().any(|(at, &count)| prefix[at] < count));
        }
        for (at, count) in least {
            self.settle(at, count);
        }
        self.lines
            .values_mut()
            .for_each(|line| line.flushed.retain(|&of, _| of != thread));
        self.lines
            .retain(|_, line| !line.stores.is_empty() || line.late.is_some());
    }

    /// Makes the first `count` stores to a line durable.
    fn settle(&mut self, at: usize, count: usize) {
        let line = self.lines.get_mut(&at).expect("a line with stores");
        for (word, value) in line.stores.drain(..count) {
            self.durable[word] = value;
        }
        for flushed in line.flushed.values_mut() {
            *flushed = flushed.saturating_sub(count);
        }
    }

    /// Everything that is still legal after the last event.
    fn finish(mut self) -> u64 {
        for line in self.lines.values_mut() {
            let late = line.late.take();
            line.stores.extend(late);
        }
        self.show(|_| true);
        self.seen
    }

    /// Shows the states of which `which` says so, given how many stores of each line are durable.
    fn show(&mut self, which: impl Fn(&BTreeMap<usize, usize>) -> bool) {
        for prefix in self.choices() {
            if which(&prefix) {
                self.show_one(&prefix);
            }
        }
    }

    fn show_one(&mut self, prefix: &BTreeMap<usize, usize>) {
        let mut undo = Vec::new();
        for (at, &count) in prefix {
            for &(word, value) in &self.lines[at].stores[..count] {
                undo.push((word, std::mem::replace(&mut self.durable[word], value)));
            }
        }
        self.seen += 1;
        (self.see)(&Crash {
            image: &self.durable,
            acknowledged: self.acknowledged,
        });
        for (word, value) in undo.into_iter().rev() {
            self.durable[word] = value;
        }
    }

    /// How many stores of each line are durable, in all states or in a choice of them.
    fn choices(&mut self) -> Vec<BTreeMap<usize, usize>> {
        let most: Vec<(usize, usize)> = self
            .lines
            .iter()
            .map(|(&at, line)| (at, line.stores.len()))
            .collect();
        let states = most.iter().try_fold(1u64, |product, &(_, count)| {
            let product = product.checked_mul(count as u64 + 1)?;
            (product <= self.depth.all_up_to).then_some(product)
        });
        match states {
            Some(states) => (0..states).map(|number| nth(&most, number)).collect(),
            None => self.some(&most),
        }
    }

    fn some(&mut self, most: &[(usize, usize)]) -> Vec<BTreeMap<usize, usize>> {
        let all: BTreeMap<usize, usize> = most.iter().copied().collect();
        let none: BTreeMap<usize, usize> = most.iter().map(|&(at, _)| (at, 0)).collect();
        let mut chosen = Vec::new();
        for &(at, count) in most {
            // One line alone got there, or everything but its last store, or all but the line.
            chosen.push(BTreeMap::from_iter(
                none.iter()
                    .map(|(&a, &n)| (a, if a == at { count } else { n })),
            ));
            for less in [count, 1] {
                chosen.push(BTreeMap::from_iter(all.iter().map(|(&a, &n)| {
                    (
                        a,
                        if a == at {
                            count.saturating_sub(less)
                        } else {
                            n
                        },
                    )
                })));
            }
        }
        for _ in 0..self.depth.drawn {
            let draw = |&(at, count): &(usize, usize)| (at, self.rng.usize(0..=count));
            chosen.push(most.iter().map(draw).collect());
        }
        chosen.extend([all, none]);
        chosen.sort();
        chosen.dedup();
        chosen
    }
}

/// The `number`th of all states, counted in a mixed radix.
fn nth(most: &[(usize, usize)], mut number: u64) -> BTreeMap<usize, usize> {
    most.iter()
        .map(|&(at, count)| {
            let radix = count as u64 + 1;
            let prefix = (number % radix) as usize;
            number /= radix;
            (at, prefix)
        })
        .collect()
}
