//! The nyx binary: glue only.
fn main() {}
