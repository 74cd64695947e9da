//! The interfaces of AFS, one file each: every procedure with its opcode, arguments and results, in the notation of
//! `rxgen::interface`. The table is complete, so that a server knows which opcodes to refuse and how.
//!
//! Service and port are part of a declaration; what a procedure means is in the notes that its file names.

pub mod afsvol;
pub mod bos;
pub mod control;
pub mod join;
pub mod pt;
pub mod rxafs;
pub mod rxafscb;
pub mod rxgk;
pub mod rxstats;
pub mod ubik;
pub mod vl;

use rxgen::{Interface, RpcInfo};

/// An interface by name, with its table.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceInfo {
    /// Its name, for logs and metrics.
    pub name: &'static str,
    /// The service number.
    pub service: u16,
    /// The port where such servers are found by default.
    pub port: u16,
    /// Its procedures.
    pub rpcs: &'static [RpcInfo],
}

const fn info<I: Interface>() -> InterfaceInfo {
    InterfaceInfo { name: I::NAME, service: I::SERVICE_ID, port: I::PORT, rpcs: I::RPCS }
}

/// Every interface there is: for tools, and for tests that cover every procedure.
pub const INTERFACES: &[InterfaceInfo] = &[
    info::<rxafs::Rxafs>(),
    info::<rxafscb::Rxafscb>(),
    info::<afsvol::AfsVol>(),
    info::<vl::Vl>(),
    info::<pt::Pr>(),
    info::<bos::Bozo>(),
    info::<ubik::vote::Vote>(),
    info::<ubik::disk::Disk>(),
    info::<rxstats::RxStats>(),
    info::<control::Control>(),
    info::<rxgk::Rxgk>(),
    info::<join::Join>(),
];
