//! Programs whose memory is measured: a sort, PageRank, and one of which most is cold, on seeded
//! random input.
//!
//! Each prints a line of JSON with a checksum of its result, which is the same however much memory
//! it had, and with however many threads. What they never do: read a file, know of swap.
//!
//! *Thread safety*: one thread, and with `--threads` those that a part of the work is given to,
//! until that is done.

mod hot;
mod pagerank;
mod sort;

use clap::{Parser, Subcommand};
use std::num::NonZeroUsize;
use std::time::Instant;

/// Programs that use memory, to be run in less of it.
#[derive(Parser)]
#[command(after_help = "Examples:
  programs sort                     1 GiB of random integers
  programs --scale 64 pagerank      a graph of a 64th of the nodes and edges

  programs --threads 2 sort         by two threads, once the integers are made

The line that is printed has a checksum of the result, equal for equal --scale.")]
struct Args {
    #[command(subcommand)]
    program: Program,
    /// Divide the size of the input, for tests.
    #[arg(long, global = true, value_name = "N", default_value = "1")]
    scale: NonZeroUsize,
    /// Threads that sort or rank; what they work on is made by one, and `hot` has one always.
    #[arg(long, global = true, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
}

#[derive(Clone, Copy, Subcommand)]
enum Program {
    /// Sort 1 GiB of random 32-bit integers in place.
    Sort,
    /// PageRank of a random graph of 655,000 nodes and 7.5 million edges, 20 iterations.
    Pagerank,
    /// Use a quarter of 1 GiB all the time and the rest never again, for some minutes.
    Hot,
}

#[derive(serde::Serialize)]
struct Line {
    program: &'static str,
    scale: usize,
    /// Of the result.
    checksum: String,
    /// From the start of the input's making to the checksum.
    run_ms: f64,
}

fn main() {
    let args = Args::parse();
    let (scale, threads) = (args.scale.get(), args.threads.get());
    let begin = Instant::now();
    let (program, checksum) = match args.program {
        Program::Sort => ("sort", sort::run(sort::NUMBERS / scale, threads)),
        Program::Pagerank => {
            let (nodes, edges) = (pagerank::NODES / scale, pagerank::EDGES / scale);
            ("pagerank", pagerank::run(nodes.max(1), edges, threads))
        }
        Program::Hot => {
            let (numbers, touches) = (hot::NUMBERS / scale, hot::TOUCHES / scale);
            ("hot", hot::run(numbers.max(1), touches))
        }
    };
    let line = Line {
        program,
        scale,
        checksum: format!("{checksum:016x}"),
        run_ms: begin.elapsed().as_secs_f64() * 1e3,
    };
    println!(
        "{}",
        serde_json::to_string(&line).expect("a line can be written")
    );
}

/// A checksum that depends on the order: FNV-1a's step, a word at a time.
fn checksum(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn a_checksum_depends_on_the_order() {
        assert_ne!(checksum([1, 2].into_iter()), checksum([2, 1].into_iter()));
        assert_eq!(checksum([1, 2].into_iter()), checksum([1, 2].into_iter()));
    }
}
