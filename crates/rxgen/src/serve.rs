//! The server's part of a call: receive the arguments, have a handler answer, send the results.
//!
//! A handler implements [`Serve`] for its procedure and is given a [`ServerCall`]; it never sees the bytes of
//! arguments or results. A transport implements [`CallStream`], one per call, and hands it to [`serve_call`] or, when
//! it knows the opcode already, to [`Dispatch::dispatch`]. Ending the call (the last packet after success, an abort
//! with the code after failure), timeouts, and how many calls run at once are left to the transport.

use crate::collect::{Collector, Rest};
use crate::rpc::{Abort, Interface, Rpc, Split, StreamsIn, StreamsOut};
use crate::xdr::{DecodeError, Xdr};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

/// The most bytes that the arguments of one call may take, unless a server says otherwise.
///
/// The largest arguments in the protocols this is for are a security token of 1 MiB less a little, and a few hundred
/// names; so nothing real is refused, and a thousand calls in progress hold no more than 1 GiB, which their senders
/// have to have sent.
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// A call in progress at the server's end, as the transport gives it.
pub trait CallStream: Send {
    /// Sends some of `bytes`, which are not empty, and says how many: at least one. What was taken counts as sent;
    /// there is no way to take it back and none needed to push it out.
    ///
    /// # Errors
    ///
    /// The code with which the call was aborted, by the peer or by this end.
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Abort>>;

    /// Puts the bytes that came next at the start of `out`, which is not empty, and says how many; 0 is the end of
    /// what the client sends, and stays so.
    ///
    /// # Errors
    ///
    /// The code with which the call was aborted, by the peer or by this end.
    fn poll_receive(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize, Abort>>;

    /// Becomes ready when the call has failed, and says how. A transport that cannot tell never is.
    fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let _ = cx;
        Poll::Pending
    }

    /// The address that the call comes from.
    fn peer(&self) -> SocketAddr;

    /// The caller, as the connection's security class has established it; for a connection without one, the
    /// empty string.
    fn security(&self) -> &str;

    /// The number of the connection's security class; 0 for none.
    fn class(&self) -> u8 {
        0
    }

    /// How well what is said is protected: 0 not at all, 1 so that nobody on the way can change it, 2 so that nobody can read it
    /// either.
    fn level(&self) -> u8 {
        0
    }

    /// Told before a call is ended because its arguments could not be decoded; the peer learns only
    /// [`Abort::SS_UNMARSHAL`]. A transport that keeps a log writes it there.
    fn arguments_refused(&mut self, rpc: &'static str, error: &DecodeError) {
        let _ = (rpc, error);
    }
}

/// The way in which a call has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing comes from the caller any more, as if its program or its machine had ended.
    CallerIsGone,
    /// The caller, who is there, or this end has ended it with this code.
    Ended(Abort),
}

/// The handler of procedure `R`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no handler for `{R}`",
    label = "`Serve<{R}>` is not implemented",
    note = "a server has a handler for every procedure of the interfaces it serves"
)]
pub trait Serve<R: Rpc> {
    /// Answers one call.
    ///
    /// # Errors
    ///
    /// The code with which the client is to see the call fail. Results and data sent before are lost then.
    fn serve(&self, call: ServerCall<'_, R>, args: R)
    -> impl Future<Output = Result<R::Reply, Abort>> + Send;
}

/// An interface whose procedures `S` serves, all of them. Implemented by [`interface!`](crate::interface!).
pub trait Dispatch<S: ?Sized>: Interface {
    /// Answers a call of `opcode`, which was read from `stream` already: receives arguments of at most
    /// `max_argument_bytes`, calls the handler, and sends the results. What the client sent and nobody wanted may be
    /// left in the stream.
    ///
    /// # Errors
    ///
    /// The code with which the call is to be aborted: the handler's, [`Abort::OPCODE`], [`Abort::SS_UNMARSHAL`], or
    /// that of the stream.
    fn dispatch(
        server: &S,
        opcode: u32,
        stream: &mut dyn CallStream,
        max_argument_bytes: usize,
    ) -> impl Future<Output = Result<(), Abort>> + Send;
}

/// Answers a call from its first byte, with the handlers that `server` has for interface `I`.
///
/// # Errors
///
/// [`Abort::DECODE`] when the client sent no opcode, else as [`Dispatch::dispatch`].
pub async fn serve_call<I: Dispatch<S>, S: Sync + ?Sized>(
    server: &S,
    stream: &mut dyn CallStream,
    max_argument_bytes: usize,
) -> Result<(), Abort> {
    let opcode = receive_opcode(stream).await?;
    I::dispatch(server, opcode, stream, max_argument_bytes).await
}

/// Reads the opcode, the first word of every call, and no byte more.
///
/// # Errors
///
/// [`Abort::DECODE`] when the client ended before that.
pub async fn receive_opcode(stream: &mut dyn CallStream) -> Result<u32, Abort> {
    let mut word = [0; 4];
    let mut filled = 0;
    while filled < word.len() {
        filled += match receive(stream, &mut word[filled..]).await? {
            0 => return Err(Abort::DECODE),
            length => length,
        };
    }
    Ok(u32::from_be_bytes(word))
}

/// A handler's view of its call: the caller, and in a split call the data.
pub struct ServerCall<'a, R: Rpc> {
    stream: &'a mut dyn CallStream,
    /// Data that came along with the arguments.
    early: Rest,
    rpc: PhantomData<fn() -> R>,
}

impl<'a, R: Rpc> ServerCall<'a, R> {
    /// Makes a call whose client's data are `early` and then the rest of `stream`.
    pub fn new(stream: &'a mut dyn CallStream, early: Rest) -> Self {
        Self { stream, early, rpc: PhantomData }
    }

    /// The address that the call comes from.
    pub fn peer(&self) -> SocketAddr {
        self.stream.peer()
    }

    /// The caller, as the connection's security class has established it; empty when it has none.
    pub fn security(&self) -> &str {
        self.stream.security()
    }

    /// The number of the connection's security class; 0 for none.
    pub fn class(&self) -> u8 {
        self.stream.class()
    }

    /// How well what is said is protected; see [`CallStream::level`].
    pub fn level(&self) -> u8 {
        self.stream.level()
    }

    /// True if nobody on the way can read what is said.
    pub fn is_encrypted(&self) -> bool {
        self.level() >= 2
    }

    /// Waits until the call has failed, for handlers that work for long without sending or receiving. Loses nothing if it is dropped.
    pub async fn failure(&mut self) -> Failure {
        poll_fn(|cx| self.stream.poll_failure(cx)).await
    }

    /// True if the call has failed because nothing comes from its caller any more.
    pub fn caller_is_gone(&mut self) -> bool {
        self.stream.poll_failure(&mut Context::from_waker(Waker::noop()))
            == Poll::Ready(Failure::CallerIsGone)
    }
}

impl<R: StreamsOut> ServerCall<'_, R> {
    /// Sends data ahead of the results, and waits while the client does not take it.
    ///
    /// A call that carries no data does not have this:
    ///
    /// ```
    /// # use rxgen::*;
    /// # use files::*;
    /// # mod files { rxgen::interface! { /// I.
    /// # Files on service 1 port 7000 {
    /// /// Some bytes.
    /// 1 Read (length: u32) split from_server;
    /// # } } }
    /// # struct Server;
    /// impl Serve<Read> for Server {
    ///     async fn serve(&self, mut call: ServerCall<'_, Read>, _: Read) -> Result<reply::Read, Abort> {
    ///         call.send_data(b"bytes").await?;
    ///         Ok(reply::Read {})
    ///     }
    /// }
    /// ```
    ///
    /// ```compile_fail
    /// # use rxgen::*;
    /// # use files::*;
    /// # mod files { rxgen::interface! { /// I.
    /// # Files on service 1 port 7000 {
    /// /// Some bytes.
    /// 1 Read (length: u32);
    /// # } } }
    /// # struct Server;
    /// impl Serve<Read> for Server {
    ///     async fn serve(&self, mut call: ServerCall<'_, Read>, _: Read) -> Result<reply::Read, Abort> {
    ///         call.send_data(b"bytes").await?; // `Read: StreamsOut` is not satisfied
    ///         Ok(reply::Read {})
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The code with which the call was aborted meanwhile. The handler should return it.
    pub async fn send_data(&mut self, bytes: &[u8]) -> Result<(), Abort> {
        send(self.stream, bytes).await
    }
}

impl<R: StreamsIn> ServerCall<'_, R> {
    /// Puts the data that came next at the start of `out` and says how many bytes; 0 is the end of the data, or an
    /// empty `out`. Waits while there is none.
    ///
    /// # Errors
    ///
    /// The code with which the call was aborted meanwhile. The handler should return it.
    pub async fn receive_data(&mut self, out: &mut [u8]) -> Result<usize, Abort> {
        match self.early.read(out) {
            0 if !out.is_empty() => receive(self.stream, out).await,
            length => Ok(length),
        }
    }
}

/// Answers a call of `R` behind its opcode. For [`interface!`](crate::interface!), and for servers that are written
/// without it.
///
/// # Errors
///
/// As [`Dispatch::dispatch`].
pub async fn answer<R: Rpc, S: Serve<R> + Sync + ?Sized>(
    server: &S,
    stream: &mut dyn CallStream,
    max_argument_bytes: usize,
) -> Result<(), Abort> {
    let (args, early) = receive_arguments::<R>(stream, max_argument_bytes).await?;
    let reply = server.serve(ServerCall::new(stream, early), args).await?;
    let mut out = Vec::with_capacity(<R::Reply as Xdr>::SIZE.min);
    reply.encode(&mut out);
    send(stream, &out).await
}

/// Receives the arguments of `R`, and with them perhaps the beginning of the data that follows.
///
/// Without data to follow it waits for the client's end too, so that a handler does not answer in the midst of the
/// request. Bytes after the arguments are ignored then, as other servers do; one read of them is enough to go on.
///
/// # Errors
///
/// [`Abort::SS_UNMARSHAL`], of which the stream is told the reason, or the code of the stream.
pub async fn receive_arguments<R: Rpc>(
    stream: &mut dyn CallStream,
    max_argument_bytes: usize,
) -> Result<(R, Rest), Abort> {
    let mut collector = Collector::new(max_argument_bytes);
    let mut ended = false;
    let args = loop {
        match collector.decode::<R>(ended) {
            Ok(Some(args)) => break args,
            Ok(None) => {}
            Err(error) => {
                stream.arguments_refused(R::NAME, &error);
                return Err(Abort::SS_UNMARSHAL);
            }
        }
        match receive(stream, collector.room()).await? {
            0 => ended = true,
            length => collector.filled(length),
        }
    };
    let rest = collector.into_rest();
    if R::SPLIT == Some(Split::FromClient) {
        return Ok((args, rest));
    }
    if rest.is_empty() && !ended {
        receive(stream, &mut [0; 4]).await?;
    }
    Ok((args, Rest::default()))
}

async fn receive(stream: &mut dyn CallStream, out: &mut [u8]) -> Result<usize, Abort> {
    let length = poll_fn(|cx| stream.poll_receive(cx, out)).await?;
    assert!(length <= out.len(), "poll_receive() puts no more into a buffer than fits");
    Ok(length)
}

async fn send(stream: &mut dyn CallStream, mut bytes: &[u8]) -> Result<(), Abort> {
    while !bytes.is_empty() {
        let length = poll_fn(|cx| stream.poll_send(cx, bytes)).await?;
        assert!(length > 0, "poll_send() is pending, or takes at least one byte");
        bytes = &bytes[length..];
    }
    Ok(())
}
