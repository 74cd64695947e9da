//! Procedures that are refused: those that forward, convert or split a volume, as by a server that does not have them,
//! and those that do nothing in stock servers either.

use afs_wire::afsvol::{
    ConvertROtoRWvolume, Forward, ForwardMultiple, GetNthVolume, SetForwarding, SignalRestore, SplitVolume,
    reply,
};
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
    Forward with Abort::OPCODE;
    ForwardMultiple with Abort::OPCODE;
    ConvertROtoRWvolume with Abort::OPCODE;
    SplitVolume with Abort::OPCODE;
    SetForwarding with Abort::OPCODE;
    GetNthVolume with codes::NO_OP;
    SignalRestore with codes::NO_OP;
}
