//! The real machine: addresses of servers, programs that run.

pub mod address;
pub mod process;
