//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod answers_lost;
mod data;
mod deaths;
mod dns;
mod kept_tokens;
mod locks;
mod moves;
mod names;
mod names_behind;
mod names_left;
mod names_random;
mod names_two;
mod offline;
mod outages;
mod prefetch;
mod replicas;
mod rounds;
mod rxgk;
mod servers;
mod statuses;
mod store_behind;
mod stores;
mod support;
mod tokens;
mod whole_cell;
mod write_behind;
