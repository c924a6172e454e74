//! Touches of pages that stand for the paper's five programs (table 5), a few thousand pages each
//! instead of a million. One touch is all that a program does with a page before it goes to
//! another; how long that takes is stated for each, from what the algorithm does with 4 KiB.
//!
//! Each begins by writing all of its pages once, as its input is loaded. Each has as many
//! processors as the paper gave it (table 5): what can be done side by side is divided among them
//! in stretches, as even as they come (linpack's last does a quarter more than its first), and none
//! waits for another.
//!
//! What it never does: sort, multiply or learn; look at a clock. *Thread safety*: plain values.

use nyx_base::Rng;
use std::ops::Range;

/// A program's touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The page.
    pub page: u32,
    /// Whether it is written to.
    pub is_write: bool,
    /// What the program does with it.
    pub compute_ns: u32,
}

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Partitions of integers, halved until one fits into a page.
    Quicksort,
    /// The same samples read over and over.
    Kmeans,
    /// Weights read in their order for each batch, activations written between them.
    Inference,
    /// Edges in their order, and for each a node anywhere.
    Pagerank,
    /// A matrix factored block by block.
    Linpack,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Which.
    pub kind: Kind,
    /// Pages that it has.
    pub pages: u32,
    /// What each of its processors does.
    pub touches: Vec<Vec<Touch>>,
}

/// Loading a page: what a copy into it takes.
const LOAD_NS: u32 = 1_000;

/// 1,024 integers through a partition at 2.5 ns each: half of the branches are mispredicted.
const PARTITION_NS: u32 = 2_560;
/// Levels of a sort of 8 GiB of integers; those within a page are one touch.
const SORT_LEVELS: u32 = 31;

const KMEANS_PASSES: u32 = 6;
/// Such that Linux at 60 % takes 2.2 times as long as with all memory: section 2.3 has 238 s and
/// 527 s. Fitted; linpack's [`BLOCKS`] are chosen by a
/// count too, and nothing else of a program is.
const SAMPLES_NS: u32 = 13_100;

const BATCHES: u32 = 6;
const LAYERS: u32 = 32;
/// 1,024 weights used a thousand times each (positions, batch), two operations each, at 50 GFLOP/s.
const WEIGHTS_NS: u32 = 40_000;
/// Activations: a layer's are written once and read once.
const ACTIVATIONS_NS: u32 = 10_000;

const RANK_PASSES: u32 = 4;
/// 640 bytes for an edge (4.8 GB, 7.5 million): objects of an interpreted program, six in a page.
/// That to read them would write their counts of references is left out.
const EDGES_PER_PAGE: u32 = 6;
/// An edge in networkx' loop over dictionaries takes that (1.96 us measured, one virtual CPU).
const EDGE_NS: u32 = 2_000;
/// Of so many pages one has values of nodes: some 250 bytes each (655,000).
const PAGES_PER_NODES: u32 = 32;
/// A prime that no number of nodes is a multiple of.
const HUBS_APART: u64 = 1_000_000_007;

/// Blocks of a row, which make a third as many passes: seven, which is what 400,000 faults of whole
/// clusters are (table 6, 20 % of 1.8 GB). Chosen by that count, not by how variants differ; with
/// clusters that are not whole it has half as many faults again.
const BLOCKS: u32 = 21;
/// A page of a block's product: 512 elements, a multiplication and an addition for each of a
/// block's 714 rows (of 15,000), at 50 GFLOP/s.
const PRODUCT_NS: u32 = 14_600;

impl Kind {
    /// All, in the paper's order.
    pub const ALL: [Kind; 5] = [
        Kind::Quicksort,
        Kind::Kmeans,
        Kind::Inference,
        Kind::Pagerank,
        Kind::Linpack,
    ];

    /// The paper's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Quicksort => "quicksort",
            Kind::Kmeans => "kmeans",
            Kind::Inference => "tensorflow",
            Kind::Pagerank => "pagerank",
            Kind::Linpack => "linpack",
        }
    }

    /// Processors that it runs on (table 5).
    pub fn processors(self) -> u32 {
        match self {
            Kind::Quicksort | Kind::Kmeans => 1,
            Kind::Inference => 2,
            Kind::Pagerank => 3,
            Kind::Linpack => 4,
        }
    }
}

impl Program {
    /// A program on so many pages, a few hundred at least; linpack's are whole pages of each block,
    /// 441 or a multiple. The same seed, the same touches.
    pub fn new(kind: Kind, pages: u32, seed: u64) -> Program {
        let blocks = BLOCKS * BLOCKS;
        let pages = match kind {
            Kind::Linpack => ((pages + blocks / 2) / blocks).max(1) * blocks,
            _ => pages,
        };
        let touches = (0..kind.processors()).map(|processor| {
            let part = Part {
                number: processor,
                of: kind.processors(),
            };
            let mut touches: Vec<Touch> = part.of_range(0..pages).map(load).collect();
            match kind {
                Kind::Quicksort => sort(&mut touches, 0, pages, SORT_LEVELS),
                Kind::Kmeans => {
                    for _ in 0..KMEANS_PASSES {
                        touches.extend((0..pages).map(|page| touch(page, false, SAMPLES_NS)));
                    }
                }
                Kind::Inference => infer(&mut touches, pages, part),
                Kind::Pagerank => rank(&mut touches, pages, seed, part),
                Kind::Linpack => factor(&mut touches, pages, part),
            }
            touches
        });
        Program {
            kind,
            pages,
            touches: touches.collect(),
        }
    }

    /// What each of its processors does, as a machine takes it.
    pub fn by_processor(&self) -> Vec<&[Touch]> {
        self.touches.iter().map(Vec::as_slice).collect()
    }

    /// So much of its pages, in percent.
    pub fn limit_pages(&self, percent: u32) -> u32 {
        (self.pages * percent / 100).max(1)
    }
}

/// What one of several processors has to do.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    of: u32,
}

impl Part {
    /// Its stretch of a range.
    fn of_range(self, range: Range<u32>) -> Range<u32> {
        let len = range.end - range.start;
        let at = |number: u32| {
            range.start + (u64::from(len) * u64::from(number) / u64::from(self.of)) as u32
        };
        at(self.number)..at(self.number + 1)
    }
}

fn load(page: u32) -> Touch {
    touch(page, true, LOAD_NS)
}

fn touch(page: u32, is_write: bool, compute_ns: u32) -> Touch {
    Touch {
        page,
        is_write,
        compute_ns,
    }
}

/// Two ends that move towards each other, and then each half.
fn sort(touches: &mut Vec<Touch>, from: u32, to: u32, levels: u32) {
    if to - from <= 1 {
        let compute_ns = PARTITION_NS * levels;
        touches.extend((from..to).map(|page| touch(page, true, compute_ns)));
        return;
    }
    for step in 0..(to - from).div_ceil(2) {
        let (low, high) = (from + step, to - 1 - step);
        touches.push(touch(low, true, PARTITION_NS));
        if high != low {
            touches.push(touch(high, true, PARTITION_NS));
        }
    }
    let middle = from + (to - from) / 2;
    sort(touches, from, middle, levels.saturating_sub(1));
    sort(touches, middle, to, levels.saturating_sub(1));
}

/// The first pages are activations, of two layers in turns, as large as weights of a layer are.
fn infer(touches: &mut Vec<Touch>, pages: u32, part: Part) {
    let each = pages / (LAYERS + 2);
    let activations = each * 2;
    let weights = pages - activations;
    for _ in 0..BATCHES {
        for layer in 0..LAYERS {
            let (from, to) = (layer % 2 * each, (layer + 1) % 2 * each);
            let layer_pages = |layer: u32| activations + weights * layer / LAYERS;
            let mine = part.of_range(layer_pages(layer)..layer_pages(layer + 1));
            touches.extend(mine.map(|page| touch(page, false, WEIGHTS_NS)));
            for page in part.of_range(0..each) {
                touches.push(touch(from + page, false, ACTIVATIONS_NS));
                touches.push(touch(to + page, true, ACTIVATIONS_NS));
            }
        }
    }
}

/// The first pages are values of nodes, the others edges, which are gone through in their order;
/// each adds to a node that may be anywhere. Few nodes have most of the edges.
fn rank(touches: &mut Vec<Touch>, pages: u32, seed: u64, part: Part) {
    let rng = &mut Rng::with_seed(seed.wrapping_add(part.number.into()));
    let nodes = (pages / PAGES_PER_NODES).max(1);
    for _ in 0..RANK_PASSES {
        for edges in part.of_range(nodes..pages) {
            touches.push(touch(edges, false, 0));
            for _ in 0..EDGES_PER_PAGE {
                let node = (rng.f64().powi(3) * f64::from(nodes)) as u32;
                // Hubs lie anywhere.
                let page = (u64::from(node) * HUBS_APART % u64::from(nodes)) as u32;
                touches.push(touch(page, true, EDGE_NS));
            }
        }
    }
}

/// Right-looking, of a matrix that lies column by column, as LAPACK has it: the column, then each
/// column behind it, less the product of that column and its own first block. Rows of the column
/// are divided, and then the columns.
fn factor(touches: &mut Vec<Touch>, pages: u32, part: Part) {
    let block_pages = pages / (BLOCKS * BLOCKS);
    let mut block = |row: u32, column: u32, is_write: bool, compute_ns: u32| {
        let first = (column * BLOCKS + row) * block_pages;
        let all = first..first + block_pages;
        touches.extend(all.map(|page| touch(page, is_write, compute_ns)));
    };
    for k in 0..BLOCKS {
        for row in part.of_range(k..BLOCKS) {
            block(row, k, true, PRODUCT_NS);
        }
        for column in part.of_range(k + 1..BLOCKS) {
            block(k, column, true, PRODUCT_NS);
            for row in k + 1..BLOCKS {
                block(row, k, false, 0);
                block(row, column, true, PRODUCT_NS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_touches_all_of_its_pages_and_no_other() {
        for kind in Kind::ALL {
            let program = Program::new(kind, 2_000, 1);
            let mut seen = vec![0; program.pages as usize];
            for touch in program.touches.iter().flatten() {
                seen[touch.page as usize] += 1;
            }
            // Loaded, and used.
            assert!(seen.iter().all(|&times| times > 1), "{kind:?}");
        }
    }

    #[test]
    fn each_page_is_loaded_by_one_of_the_processors() {
        for kind in Kind::ALL {
            let program = Program::new(kind, 2_000, 1);
            assert_eq!(program.touches.len() as u32, kind.processors());
            let loads = program.touches.iter().map(|touches| {
                let is_load = |touch: &&Touch| touch.is_write && touch.compute_ns == LOAD_NS;
                touches.iter().take_while(is_load).count()
            });
            assert_eq!(loads.sum::<usize>() as u32, program.pages, "{kind:?}");
        }
    }

    #[test]
    fn parts_of_a_range_are_the_range() {
        for (range, of) in [(0..0, 3), (7..9, 4), (5..105, 3), (0..u32::MAX, 4)] {
            let mut at = range.start;
            for number in 0..of {
                let part = Part { number, of }.of_range(range.clone());
                assert_eq!(part.start, at);
                at = part.end;
            }
            assert_eq!(at, range.end);
        }
    }
}
