//! Procedures that are refused: the one that splits a volume, as by a server that does not have it, and those that do nothing in stock
//! servers either.

use afs_wire::afsvol::{GetNthVolume, SignalRestore, SplitVolume, reply};
use rxgen::{Abort, Serve, ServerCall};

use super::VolumeService;
use crate::codes;

macro_rules! refuse {
    ($($rpc:ident with $code:expr;)*) => { $(
        impl Serve<$rpc> for VolumeService {
            async fn serve(&self, _: ServerCall<'_, $rpc>, _: $rpc) -> Result<reply::$rpc, Abort> {
                Err($code)
            }
        }
    )* };
}

refuse! {
    SplitVolume with Abort::OPCODE;
    GetNthVolume with codes::NO_OP;
    SignalRestore with codes::NO_OP;
}
