//! The table against a model, under two threads, and (with `--cfg loom`) under every interleaving of
//! a few small programs.
