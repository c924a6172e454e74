//! What several tests of the binary need.
//!
//! What it never does: start anything.

/// Between these words of a message stands a number.
pub(crate) fn number(said: &str, before: &str, after: &str) -> f64 {
    let (_, rest) = said.split_once(before).expect(before);
    let (number, _) = rest.split_once(after).expect(after);
    number.trim().parse().expect("a number")
}
