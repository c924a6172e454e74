//! PageRank by power iteration: a random graph's matrix in compressed sparse rows, times a vector.
//!
//! What it never does: keep a list of edges beside the graph, or write all over it. The edges are
//! drawn from the same seed again and again, to count and to fill some rows at a time, so that the
//! most memory it has is what it works on, and what is measured is the ranking: filled in the order
//! of its edges, a graph with less memory than it needs faults several times for each of them.
//!
//! *Thread safety*: the threads that rank read one graph, and write each its own nodes' ranks.

use crate::checksum;

pub(crate) const NODES: usize = 655_000;
pub(crate) const EDGES: usize = 7_500_000;
const ITERATIONS: usize = 20;
const DAMPING: f64 = 0.85;
const SEED: u64 = 42;
/// Rows are filled in so many turns.
const TURNS: usize = 16;

/// Who points at a node: `from[starts[node]..starts[node + 1]]`.
struct Graph {
    starts: Vec<u32>,
    from: Vec<u32>,
    /// The part of its rank that it gives, beside `from`.
    parts: Vec<f64>,
    /// How many a node points at.
    out: Vec<u32>,
}

/// The checksum of the ranks, to the last bit.
pub(crate) fn run(nodes: usize, edges: usize, threads: usize) -> u64 {
    let graph = Graph::of(nodes, || random(nodes, edges));
    checksum(graph.ranks(threads).iter().map(|rank| rank.to_bits()))
}

fn random(nodes: usize, edges: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (0..edges).map(move |_| (rng.usize(..nodes), rng.usize(..nodes)))
}

impl Graph {
    /// `edges` has to give the same ones each time.
    fn of<E: Iterator<Item = (usize, usize)>>(nodes: usize, edges: impl Fn() -> E) -> Graph {
        let mut starts = vec![0u32; nodes + 1];
        let mut out = vec![0u32; nodes];
        for (from, to) in edges() {
            out[from] += 1;
            starts[to + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut from = vec![0; starts[nodes] as usize];
        let mut parts = vec![0.0; from.len()];
        let rows = nodes.div_ceil(TURNS).max(1);
        for first in (0..nodes).step_by(rows) {
            let these = first..first + rows;
            // Each start moves to its end while its row is filled, and is moved back afterwards.
            for (source, to) in edges().filter(|(_, to)| these.contains(to)) {
                from[starts[to] as usize] = source as u32;
                parts[starts[to] as usize] = 1.0 / f64::from(out[source]);
                starts[to] += 1;
            }
        }
        starts.copy_within(..nodes, 1);
        starts[0] = 0;
        Graph {
            starts,
            from,
            parts,
            out,
        }
    }

    fn ranks(&self, threads: usize) -> Vec<f64> {
        let nodes = self.out.len();
        let mut ranks = vec![1.0 / nodes as f64; nodes];
        let mut next = vec![0.0; nodes];
        for _ in 0..ITERATIONS {
            // Who points at nobody points at all.
            let lost = self.out.iter().zip(&ranks);
            let lost: f64 = lost
                .filter(|(out, _)| **out == 0)
                .map(|(_, rank)| rank)
                .sum();
            let base = (1.0 - DAMPING + DAMPING * lost) / nodes as f64;
            let rows = nodes.div_ceil(threads);
            let mut shares = next.chunks_mut(rows).enumerate();
            let own = shares.next();
            std::thread::scope(|scope| {
                let rank = |(share, next)| self.rank(share * rows, next, (&ranks, base));
                for share in shares {
                    scope.spawn(move || rank(share));
                }
                own.map(rank);
            });
            std::mem::swap(&mut ranks, &mut next);
        }
        ranks
    }

    /// One iteration for the nodes from `first` on: `base` and what their rows give them.
    fn rank(&self, first: usize, next: &mut [f64], (ranks, base): (&[f64], f64)) {
        for (node, rank) in (first..).zip(next) {
            let row = self.starts[node] as usize..self.starts[node + 1] as usize;
            let given = self.from[row.clone()].iter().zip(&self.parts[row]);
            let given = given.map(|(&from, part)| ranks[from as usize] * part);
            *rank = base + DAMPING * given.sum::<f64>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_who_points_at_a_node() {
        let edges = [(0, 2), (1, 2), (2, 0), (0, 1)];
        let graph = Graph::of(3, || edges.into_iter());
        assert_eq!(graph.starts, [0, 1, 2, 4]);
        assert_eq!(graph.from, [2, 0, 0, 1]);
        assert_eq!(graph.out, [2, 1, 1]);
        assert_eq!(graph.parts, [1.0, 0.5, 0.5, 1.0]);
    }

    #[test]
    fn a_ring_has_equal_ranks_and_a_star_has_not() {
        let ring = Graph::of(4, || (0..4).map(|node| (node, (node + 1) % 4))).ranks(1);
        assert!(
            ring.iter().all(|rank| (rank - 0.25).abs() < 1e-12),
            "{ring:?}"
        );
        let star = Graph::of(4, || (1..4).map(|node| (node, 0))).ranks(3);
        assert!(star[0] > 2.0 * star[1], "{star:?}");
        assert!((star.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{star:?}");
    }

    #[test]
    fn the_same_graph_has_the_same_checksum() {
        for threads in [1, 2, 7, 1000] {
            assert_eq!(run(100, 700, threads), run(100, 700, 1));
        }
        assert_ne!(run(100, 700, 1), run(100, 701, 1));
    }
}
