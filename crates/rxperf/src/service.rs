//! The service that answers rxperf calls, whatever the security class.

use std::sync::Arc;

use bytes::Bytes;
use rx::{Abort, Call, CallError, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::security::ServerSecurity;

use crate::protocol::{MAGIC, MAX_LIST, MAX_SIZE, Request, SERVICE, VERSION};

/// The code that refuses a malformed request, as OpenAFS's server does.
const REFUSED: Abort = Abort(-1);

/// The service with the default limits, for clients of these security classes.
pub fn config(security: Vec<Arc<dyn ServerSecurity>>) -> ServiceConfig {
    let service = Service {
        id: SERVICE,
        security,
        check_reach: true,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    ServiceConfig::new(service, answer)
}

async fn answer(mut call: ServerCall) -> Result<(), Abort> {
    let (request, write_size) = read_request(&mut call).await?;
    let (mut expected, reply) = request.bytes();
    while expected > 0 {
        match call.recv().await.map_err(gone)? {
            Some(bytes) if bytes.len() as u64 <= expected => expected -= bytes.len() as u64,
            _ => return Err(REFUSED),
        }
    }
    send_zeroes(&mut call, reply, write_size).await.map_err(gone)?;
    if request.has_magic() {
        call.write_all(&MAGIC.to_be_bytes()).await.map_err(gone)?;
    }
    Ok(())
}

async fn read_request(call: &mut ServerCall) -> Result<(Request, u32), Abort> {
    if word(call).await? != VERSION {
        return Err(REFUSED);
    }
    let command = word(call).await?;
    let (_read_size, write_size) = (word(call).await?, word(call).await?);
    if write_size == 0 || write_size > MAX_SIZE {
        return Err(REFUSED);
    }
    let request = match command {
        0 => Request::Send(word(call).await?),
        1 => Request::Receive(word(call).await?),
        3 => Request::Rpc { send: word(call).await?, receive: word(call).await? },
        4 => {
            let count = word(call).await?;
            if count > MAX_LIST {
                return Err(REFUSED);
            }
            let mut list = Vec::new();
            for _ in 0..count {
                list.push(word(call).await?);
            }
            Request::File(list)
        }
        _ => return Err(REFUSED),
    };
    Ok((request, write_size))
}

async fn word(call: &mut ServerCall) -> Result<u32, Abort> {
    let mut bytes = [0; 4];
    call.read_exact(&mut bytes).await.map_err(gone)?;
    Ok(u32::from_be_bytes(bytes))
}

/// Sends `count` zeroes, `piece` bytes at a time (at most [`MAX_SIZE`]), without a copy.
///
/// # Errors
///
/// When the call has failed.
pub async fn send_zeroes(call: &mut Call, mut count: u64, piece: u32) -> Result<(), CallError> {
    static ZEROES: [u8; MAX_SIZE as usize] = [0; MAX_SIZE as usize];
    while count > 0 {
        let len = count.min(u64::from(piece)) as usize;
        call.send(Bytes::from_static(&ZEROES[..len])).await?;
        count -= len as u64;
    }
    Ok(())
}

/// The client has gone or its stream ended early: nobody hears the code.
fn gone(_error: CallError) -> Abort {
    REFUSED
}
