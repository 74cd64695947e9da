//! Remote procedures over calls: what `rxgen` declares, called on a connection and served from a [`ServerCall`].

use std::net::SocketAddr;
use std::task::{Context, Poll};

use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rxgen::xdr::Xdr;
use rxgen::{Abort, CallStream, DecodeError, Failure, Rpc, decode_reply, encode_request};

use crate::client::{ClientCall, Connection, Peer};
use crate::error::{CallError, RpcError};
use crate::server::ServerCall;

/// Bytes taken from a handler's buffer at once, as one copy.
const COPY_BYTES: usize = 128 << 10;

impl Connection {
    /// Calls a procedure and waits for its results.
    ///
    /// # Errors
    ///
    /// When the call fails, or what comes is no reply of the procedure.
    pub async fn rpc<R: Rpc>(&self, args: &R) -> Result<R::Reply, RpcError> {
        self.call().await.map_err(failed::<R>)?.rpc(args).await
    }
}

impl Peer {
    /// Calls a procedure and waits for its results.
    ///
    /// # Errors
    ///
    /// When the call fails, or what comes is no reply of the procedure.
    pub async fn rpc<R: Rpc>(&self, args: &R) -> Result<R::Reply, RpcError> {
        self.call().await.map_err(failed::<R>)?.rpc(args).await
    }
}

impl ClientCall {
    /// Calls a procedure with this call, which must be new, and waits for its results.
    ///
    /// # Errors
    ///
    /// When the call fails, or what comes is no reply of the procedure.
    pub async fn rpc<R: Rpc>(mut self, args: &R) -> Result<R::Reply, RpcError> {
        self.send_request(args).await?;
        self.reply::<R>().await
    }

    /// Sends opcode and arguments; in a call split from the client, raw data may follow.
    ///
    /// # Errors
    ///
    /// When the call fails.
    pub async fn send_request<R: Rpc>(&mut self, args: &R) -> Result<(), RpcError> {
        self.send(Bytes::from(encode_request(args))).await.map_err(failed::<R>)
    }

    /// Ends the request and waits for the results: all that is left of the reply. In a call split from the server, the raw
    /// data must have been read.
    ///
    /// # Errors
    ///
    /// When the call fails, or what comes is no reply of the procedure.
    pub async fn reply<R: Rpc>(mut self) -> Result<R::Reply, RpcError> {
        self.finish().map_err(failed::<R>)?;
        let first = self.recv().await.map_err(failed::<R>)?.unwrap_or_default();
        // Most replies are one packet, and are decoded where they are.
        let whole = match self.recv().await.map_err(failed::<R>)? {
            None => first,
            Some(second) => self.collect::<R>([first, second].concat()).await.map_err(failed::<R>)?.into(),
        };
        let refused = |source| RpcError::Reply { rpc: R::NAME, peer: self.peer(), source };
        decode_reply::<R>(&whole).map_err(refused)
    }
}

impl ClientCall {
    /// The rest of a reply. A hostile server makes a client hold what the longest reply of the procedure has, and no more:
    /// most have some hundred bytes, lists of a protocol without limits some hundred megabytes. What is longer is no reply,
    /// as decoding it will say.
    async fn collect<R: Rpc>(&mut self, mut whole: Vec<u8>) -> Result<Vec<u8>, CallError> {
        while whole.len() <= R::Reply::SIZE.max {
            match self.recv().await? {
                Some(bytes) => whole.extend_from_slice(&bytes),
                None => break,
            }
        }
        Ok(whole)
    }
}

fn failed<R: Rpc>(source: CallError) -> RpcError {
    RpcError::Call { rpc: R::NAME, source }
}

impl CallStream for ServerCall {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Abort>> {
        let length = bytes.len().min(COPY_BYTES);
        let mut piece = Bytes::copy_from_slice(&bytes[..length]);
        (**self).poll_send(cx, &mut piece).map_ok(|()| length).map_err(abort_of)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize, Abort>> {
        self.poll_read(cx, out).map_err(abort_of)
    }

    fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        (**self).poll_failure(cx).map(|error| match error {
            CallError::Failed { code: AbortCode::CALL_DEAD, .. } => Failure::CallerIsGone,
            error => Failure::Ended(abort_of(error)),
        })
    }

    fn peer(&self) -> SocketAddr {
        (**self).peer()
    }

    fn security(&self) -> &str {
        self.identity().unwrap_or_default()
    }

    fn class(&self) -> u8 {
        Self::class(self).0
    }

    fn level(&self) -> u8 {
        Self::level(self).0
    }

    fn arguments_refused(&mut self, rpc: &'static str, error: &DecodeError) {
        tracing::warn!(rpc, peer = %(**self).peer(), %error, "arguments were refused");
    }
}

fn abort_of(error: CallError) -> Abort {
    Abort(error.code().0)
}
