//! Tables in Markdown that can also be read on a terminal, and how values are written in them.
//!
//! What it never does: round away what was measured: three digits are kept, and whoever needs more
//! reads the JSON.

use crate::plot::number;
use nyx_base::Bytes;
use nyx_media::evaluate::Reading;
use std::fmt::Write;

/// Readings whose rounds differ by more than this are marked, and those that are not quiet.
pub const NOISY: f64 = 0.10;
/// The mark.
pub const NOISY_MARK: char = '~';

/// A table: a head and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// What the columns are.
    pub head: Vec<String>,
    /// The rows; the first cell says what a row is.
    pub rows: Vec<Vec<String>>,
}

impl Grid {
    /// As Markdown, with columns as wide as their widest cell.
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |at: usize| lines().map(|line| line[at].chars().count()).max();
        let widths: Vec<usize> = (0..self.head.len())
            .map(|at| width(at).unwrap_or(0).max(2))
            .collect();
        let mut out = String::new();
        for (number, line) in lines().enumerate() {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(out, "| {cell:>width$} ");
            }
            out.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(out, "|{:-<width$}:", "", width = width + 1);
                }
                out.push_str("|\n");
            }
        }
        out
    }
}

/// A cell without a value.
pub fn none() -> String {
    "-".to_owned()
}

/// A size.
pub fn size(bytes: usize) -> String {
    Bytes(bytes as u64).to_string()
}

/// A time with its unit, three digits.
pub fn time(ns: f64) -> String {
    let (value, unit) = in_unit(ns);
    format!("{} {unit}", digits(value))
}

/// A round time with its unit, as an axis has it.
pub fn tick(ns: f64) -> String {
    let (value, unit) = in_unit(ns);
    format!("{} {unit}", number(value))
}

fn in_unit(ns: f64) -> (f64, &'static str) {
    match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "us"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    }
}

/// A rate in gigabytes a second, three digits.
pub fn gb_per_s(bytes_per_s: f64) -> String {
    digits(bytes_per_s / 1e9)
}

/// A ratio.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Three digits of a value, at most four behind the point.
pub fn digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.9995 => format!("{value:.2}"),
        value if value >= 0.09995 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

/// A reading's latency, marked where it is noisy.
pub fn latency(reading: &Reading) -> String {
    marked(time(reading.latency_ns), reading)
}

/// A reading's bandwidth in gigabytes a second, marked where it is noisy.
pub fn bandwidth(reading: &Reading) -> String {
    marked(gb_per_s(reading.bytes_per_s), reading)
}

/// Whether a reading is marked.
pub fn is_noisy(reading: &Reading) -> bool {
    reading.spread > NOISY || !reading.is_quiet
}

fn marked(mut text: String, reading: &Reading) -> String {
    if is_noisy(reading) {
        text.push(NOISY_MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_three_digits_and_say_their_unit() {
        let times = [4.567, 46.78, 999.4, 999.6, 29_086.0, 1.09e6, 22.81e6, 2.5e9];
        let told = [
            "4.57 ns", "46.8 ns", "999 ns", "1.00 us", "29.1 us", "1.09 ms", "22.8 ms", "2.50 s",
        ];
        assert_eq!(times.map(time), told);
        assert_eq!([20.0, 1e4, 5e6].map(tick), ["20 ns", "10 us", "5 ms"]);
        let rates = [1.6e7, 9.99e8, 1.234e9, 1.29e11].map(gb_per_s);
        assert_eq!(rates, ["0.0160", "0.999", "1.23", "129"]);
        assert_eq!(size(16 << 20), "16 MiB");
    }

    #[test]
    fn a_grid_is_markdown_with_aligned_columns() {
        let grid = Grid {
            head: vec!["size".into(), "real".into()],
            rows: vec![
                vec!["8 B".into(), "4.57 ns".into()],
                vec!["16 MiB".into(), none()],
            ],
        };
        let expected = "|   size |    real |\n|-------:|--------:|\n\
                        |    8 B | 4.57 ns |\n| 16 MiB |       - |\n";
        assert_eq!(grid.markdown(), expected);
    }
}
