//! The real machine: addresses of servers, folders, programs that run, and a cell of them.

pub mod address;
pub mod afar;
pub mod capture;
pub mod cell;
pub mod folder;
pub mod machines;
pub mod mount;
pub mod process;
pub mod proxy;
pub mod relay;
pub mod wait;
