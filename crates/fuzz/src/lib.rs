//! Fuzzing of everything that reads bytes from a peer. A target is a function from bytes to a number that says what
//! happened (`targets`); `engine` runs one on mutated inputs and keeps those that made something new happen, so it needs
//! neither a nightly compiler nor an instrumented build. Each input may cost only so much memory (`alloc`) and time.
//!
//! The command line is in `main.rs`; what inputs a target starts from is in `corpus/`, made by `examples/make_corpus.rs`.
//!
//! # What to open for a change
//!
//! - A fuzz target: [`targets`], which has a module for each.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "an allocator is unsafe by its nature; all of it is in this file")]
pub mod alloc;
pub mod engine;
pub mod mutate;
pub mod rng;
pub mod shape;
pub mod targets;
