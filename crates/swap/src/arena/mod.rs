//! Engine P.

mod terms;

pub use terms::{ArenaFigures, LIBRARY, TERMS, Terms};
