//! The rules of the house as tests: whatever a tool can check is checked here or by a lint, and is
//! no rule to remember.
//!
//! What it never does: change a file.

mod docs;
mod edges;
mod source;
mod tree;
