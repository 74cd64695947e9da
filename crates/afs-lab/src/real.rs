//! The real machine: addresses of servers, folders, programs that run.

pub mod address;
pub mod folder;
pub mod process;
pub mod relay;
pub mod wait;
