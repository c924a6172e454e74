//! Touches of pages that stand for the paper's five programs (table 5), a few thousand pages each
//! instead of a million. One touch is all that a program does with a page before it goes to
//! another; how long that takes is stated for each, from what the algorithm does with 4 KiB.
//!
//! Each begins by writing all of its pages once, as its input is loaded. All run on one processor,
//! also those that had two to four.
//!
//! What it never does: sort, multiply or learn; look at a clock. *Thread safety*: plain values.

use nyx_base::Rng;

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
    /// Edges in their order, and for each some nodes anywhere.
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
    /// What it does.
    pub touches: Vec<Touch>,
}

/// Loading a page: what a copy into it takes.
const LOAD_NS: u32 = 1_000;

/// 1,024 integers through a partition at 2.5 ns each: half of the branches are mispredicted.
const PARTITION_NS: u32 = 2_560;
/// Levels of a sort of 8 GiB of integers; those within a page are one touch.
const SORT_LEVELS: u32 = 31;

const KMEANS_PASSES: u32 = 6;
/// Such that Linux at 60 % takes 2.2 times as long as with all memory: section 2.3 has 238 s and
/// 527 s. The one figure of a program that is fitted.
const SAMPLES_NS: u32 = 13_100;

const BATCHES: u32 = 6;
const LAYERS: u32 = 32;
/// 1,024 weights used a thousand times each (positions, batch), two operations each, at 50 GFLOP/s.
const WEIGHTS_NS: u32 = 40_000;
/// Activations: a layer's are written once and read once.
const ACTIVATIONS_NS: u32 = 10_000;

const RANK_PASSES: u32 = 4;
/// Nodes' pages that are touched for a page of edges. Others are in the processor's caches.
const NODES_PER_EDGES: u32 = 8;
/// 512 edges in an interpreted program (640 bytes of memory for an edge say that it is one).
/// A prime that no number of nodes is a multiple of.
const HUBS_APART: u64 = 1_000_000_007;
const EDGES_NS: u32 = 50_000;
const NODE_NS: u32 = 2_000;

/// Pages of a block, and blocks of a row.
const BLOCK_PAGES: u32 = 16;
/// A page of a block's product: 512 elements, 256 multiplications and additions for each, at
/// 50 GFLOP/s.
const PRODUCT_NS: u32 = 5_200;

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
}

impl Program {
    /// A program on about so many pages. The same seed, the same touches.
    pub fn new(kind: Kind, pages: u32, seed: u64) -> Program {
        let pages = match kind {
            Kind::Linpack => {
                let row = (pages / BLOCK_PAGES).isqrt();
                row * row * BLOCK_PAGES
            }
            _ => pages,
        };
        let mut touches: Vec<Touch> = (0..pages).map(|page| touch(page, true, LOAD_NS)).collect();
        match kind {
            Kind::Quicksort => sort(&mut touches, 0, pages, SORT_LEVELS),
            Kind::Kmeans => {
                for _ in 0..KMEANS_PASSES {
                    touches.extend((0..pages).map(|page| touch(page, false, SAMPLES_NS)));
                }
            }
            Kind::Inference => infer(&mut touches, pages),
            Kind::Pagerank => rank(&mut touches, pages, &mut Rng::with_seed(seed)),
            Kind::Linpack => factor(&mut touches, pages),
        }
        Program {
            kind,
            pages,
            touches,
        }
    }

    /// So much of its pages, in percent.
    pub fn limit_pages(&self, percent: u32) -> u32 {
        (self.pages * percent / 100).max(1)
    }
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
fn infer(touches: &mut Vec<Touch>, pages: u32) {
    let each = pages / (LAYERS + 2);
    let activations = each * 2;
    let weights = pages - activations;
    for _ in 0..BATCHES {
        for layer in 0..LAYERS {
            let (from, to) = (layer % 2 * each, (layer + 1) % 2 * each);
            let layer_pages = |layer: u32| activations + weights * layer / LAYERS;
            let mine = layer_pages(layer)..layer_pages(layer + 1);
            touches.extend(mine.map(|page| touch(page, false, WEIGHTS_NS)));
            for page in 0..each {
                touches.push(touch(from + page, false, ACTIVATIONS_NS));
                touches.push(touch(to + page, true, ACTIVATIONS_NS));
            }
        }
    }
}

/// A third are edges. Nodes are as in a graph of which few have most of the edges.
fn rank(touches: &mut Vec<Touch>, pages: u32, rng: &mut Rng) {
    let nodes = pages * 2 / 3;
    for _ in 0..RANK_PASSES {
        for edges in nodes..pages {
            touches.push(touch(edges, false, EDGES_NS));
            for at in 0..NODES_PER_EDGES {
                let node = (rng.f64().powi(3) * f64::from(nodes)) as u32;
                // Hubs lie anywhere.
                let page = (u64::from(node) * HUBS_APART % u64::from(nodes)) as u32;
                touches.push(touch(page, at == 0, NODE_NS));
            }
        }
    }
}

/// Right-looking: the column, the row, then the product of both taken off what is left.
fn factor(touches: &mut Vec<Touch>, pages: u32) {
    let row = (pages / BLOCK_PAGES).isqrt();
    let mut block = |i: u32, j: u32, is_write: bool, compute_ns: u32| {
        let first = (i * row + j) * BLOCK_PAGES;
        let all = first..first + BLOCK_PAGES;
        touches.extend(all.map(|page| touch(page, is_write, compute_ns)));
    };
    for k in 0..row {
        for i in k..row {
            block(i, k, true, PRODUCT_NS);
        }
        for j in k + 1..row {
            block(k, j, true, PRODUCT_NS);
            for i in k + 1..row {
                block(i, k, false, 0);
                block(i, j, true, PRODUCT_NS);
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
            for touch in &program.touches {
                seen[touch.page as usize] += 1;
            }
            let once = seen.iter().filter(|&&times| times < 2).count();
            // Of pages that are chosen by chance some are not.
            let most = if kind == Kind::Pagerank { 400 } else { 0 };
            assert!(once <= most, "{kind:?}: {once} pages are loaded only");
            assert!(seen.iter().all(|&times| times > 0), "{kind:?}");
        }
    }
}
