//! An interface as a server and a client see it: requests and replies byte by byte, handlers with and without data,
//! and what becomes of calls that are wrong.

use rxgen::xdr::{DecodeError, Problem, WireSize, XdrArray, XdrString};
use rxgen::{
    Abort, CallStream, Interface, Rpc, Serve, ServerCall, Split, StreamsIn, StreamsOut, decode_reply,
    encode_request, serve, wire_enum, wire_struct,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

wire_struct! {
    /// Names a file, as file servers do.
    #[derive(Copy, Hash)]
    struct Fid {
        /// Where it is.
        volume: u32,
        /// Which it is there.
        vnode: u32,
        /// Which of those that had this number.
        uniquifier: u32,
    }

    /// The shape of a file's status: 21 words.
    struct Status {
        /// Words of no meaning here.
        words: [u32; 21],
    }
}

wire_enum! {
    /// What a lock allows.
    enum Lock: i32 {
        /// Several readers.
        0 READ;
        /// One writer.
        1 WRITE;
        /// Nothing any more.
        -1 RELEASED;
    }
}

/// In the shape of a file service, with its opcodes.
mod files {
    use super::{Fid, Lock, Status};
    use rxgen::xdr::{Opaque, XdrArray, XdrString};

    rxgen::interface! {
        /// Files.
        Files on service 1 port 7000 {
            /// What a file is like.
              132 FetchStatus (fid: Fid) -> (status: Status, callback: [u32; 3], sync: [u32; 6]);
            /// Takes a lock on files.
              156 SetLocks (fids: XdrArray<Fid, 50>, lock: Lock) -> (lock: Lock);
            /// What the server can do.
            65540 GetCapabilities () -> (capabilities: XdrArray<u32, 196>);
            /// Bytes of a file.
            65537 FetchData (fid: Fid, pos: i64, length: i64) split from_server -> (status: u32);
            /// Bytes for a file.
            65538 StoreData (fid: Fid, name: XdrString<256>, length: u64) split from_client -> (sum: u64);
            /// Something with a secret.
            65541 SetToken (token: Opaque<1048576>);
        }
    }
}
use files::{FetchData, FetchStatus, Files, GetCapabilities, SetLocks, SetToken, StoreData, reply};

const FID: Fid = Fid { volume: 536_870_915, vnode: 1, uniquifier: 1 };

struct Server;

impl Serve<FetchStatus> for Server {
    async fn serve(
        &self,
        _: ServerCall<'_, FetchStatus>,
        args: FetchStatus,
    ) -> Result<reply::FetchStatus, Abort> {
        let mut words = [0; 21];
        words[0] = args.fid.vnode;
        Ok(reply::FetchStatus { status: Status { words }, callback: [1, 2, 3], sync: [0; 6] })
    }
}

impl Serve<SetLocks> for Server {
    async fn serve(&self, call: ServerCall<'_, SetLocks>, args: SetLocks) -> Result<reply::SetLocks, Abort> {
        if call.security() != "alice" || call.peer().port() != 7001 {
            return Err(Abort(13));
        }
        Ok(reply::SetLocks { lock: args.lock })
    }
}

impl Serve<GetCapabilities> for Server {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCapabilities>,
        GetCapabilities {}: GetCapabilities,
    ) -> Result<reply::GetCapabilities, Abort> {
        Ok(reply::GetCapabilities { capabilities: XdrArray::new(vec![1]).expect("one is below the limit") })
    }
}

impl Serve<FetchData> for Server {
    async fn serve(
        &self,
        mut call: ServerCall<'_, FetchData>,
        args: FetchData,
    ) -> Result<reply::FetchData, Abort> {
        let length = usize::try_from(args.length).map_err(|_| Abort(22))?;
        call.send_data(&vec![7; length]).await?;
        Ok(reply::FetchData { status: 9 })
    }
}

impl Serve<StoreData> for Server {
    async fn serve(
        &self,
        mut call: ServerCall<'_, StoreData>,
        _: StoreData,
    ) -> Result<reply::StoreData, Abort> {
        let mut sum = 0;
        let mut buffer = [0; 5];
        loop {
            match call.receive_data(&mut buffer).await? {
                0 => return Ok(reply::StoreData { sum }),
                length => sum += buffer[..length].iter().copied().map(u64::from).sum::<u64>(),
            }
        }
    }
}

impl Serve<SetToken> for Server {
    async fn serve(&self, _: ServerCall<'_, SetToken>, _: SetToken) -> Result<reply::SetToken, Abort> {
        Ok(reply::SetToken {})
    }
}

/// A call whose bytes arrive in pieces, with a pause before each, and whose client takes three bytes at a time.
struct Script {
    arriving: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    pause: bool,
    refused: Refused,
}

impl Script {
    fn new(request: &[u8], piece: usize) -> Self {
        let arriving = request.chunks(piece).map(<[u8]>::to_vec).collect();
        Self { arriving, sent: Vec::new(), pause: false, refused: None }
    }

    fn pause(&mut self, cx: &Context<'_>) -> bool {
        self.pause = !self.pause;
        if self.pause {
            cx.waker().wake_by_ref();
        }
        self.pause
    }
}

impl CallStream for Script {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Abort>> {
        if self.pause(cx) {
            return Poll::Pending;
        }
        let length = bytes.len().min(3);
        self.sent.extend_from_slice(&bytes[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize, Abort>> {
        assert!(!out.is_empty());
        if self.pause(cx) {
            return Poll::Pending;
        }
        let Some(mut piece) = self.arriving.pop_front() else { return Poll::Ready(Ok(0)) };
        let length = piece.len().min(out.len());
        out[..length].copy_from_slice(&piece[..length]);
        piece.drain(..length);
        if !piece.is_empty() {
            self.arriving.push_front(piece);
        }
        Poll::Ready(Ok(length))
    }

    fn peer(&self) -> SocketAddr {
        ([192, 0, 2, 1], 7001).into()
    }

    fn security(&self) -> &str {
        "alice"
    }

    fn arguments_refused(&mut self, rpc: &'static str, error: &DecodeError) {
        self.refused = Some((rpc, *error));
    }
}

fn block_on<F: Future + Send>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// In which procedure's arguments something was wrong, and what.
type Refused = Option<(&'static str, DecodeError)>;

/// The outcome of a request that arrives in pieces of `piece` bytes: what the server sent, or the abort, and why
/// arguments were refused.
fn serve_pieces(request: &[u8], piece: usize) -> (Result<Vec<u8>, Abort>, Refused) {
    let mut script = Script::new(request, piece);
    let result = block_on(serve::serve_call::<Files, _>(&Server, &mut script, 4096));
    (result.map(|()| script.sent), script.refused)
}

fn served(request: &[u8]) -> Result<Vec<u8>, Abort> {
    let whole = serve_pieces(request, usize::MAX).0;
    for piece in [1, 2, 3, 5, 8, 13] {
        assert_eq!(serve_pieces(request, piece).0, whole, "in pieces of {piece} bytes");
    }
    whole
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn check<R: Rpc>(args: R, reply: R::Reply)
where
    R::Reply: PartialEq + std::fmt::Debug,
{
    let bytes = served(&encode_request(&args)).expect("the server answers");
    assert_eq!(decode_reply::<R>(&bytes), Ok(reply), "reply of {}", R::NAME);
}

#[test]
fn requests_and_replies_are_those_of_the_protocol_notes() {
    let request = encode_request(&FetchStatus { fid: FID });
    assert_eq!(request, words(&[0x0000_0084, 0x2000_0003, 1, 1]));
    assert_eq!(served(&request).unwrap().len(), 120, "21, 3 and 6 words");
    assert_eq!(encode_request(&GetCapabilities {}), words(&[0x0001_0004]));
    assert_eq!(served(&words(&[0x0001_0004])).unwrap(), words(&[1, 1]));
}

#[test]
fn a_call_reaches_its_handler_and_its_results_come_back() {
    let fids = XdrArray::new(vec![FID; 3]).unwrap();
    check(SetLocks { fids, lock: Lock(13) }, reply::SetLocks { lock: Lock(13) });
    check(SetToken { token: rxgen::xdr::Opaque::new(vec![3; 3000]).unwrap() }, reply::SetToken {});
}

#[test]
fn data_from_the_server_stands_unpadded_before_the_results() {
    let sent = served(&encode_request(&FetchData { fid: FID, pos: 0, length: 5 })).unwrap();
    assert_eq!(sent, [7, 7, 7, 7, 7, 0, 0, 0, 9]);
    assert_eq!(decode_reply::<FetchData>(&sent[5..]), Ok(reply::FetchData { status: 9 }));
}

#[test]
fn data_from_the_client_is_found_behind_arguments_of_unknown_length() {
    let name = XdrString::try_from("a name").unwrap();
    for length in [0, 1, 4, 5, 9, 10, 1000] {
        let mut request = encode_request(&StoreData { fid: FID, name: name.clone(), length });
        request.extend((1..=length).map(|byte| byte as u8));
        let sum = (1..=length).map(|byte| u64::from(byte as u8)).sum();
        assert_eq!(decode_reply::<StoreData>(&served(&request).unwrap()), Ok(reply::StoreData { sum }));
    }
}

#[test]
fn wrong_calls_are_aborted_with_the_codes_of_the_protocol() {
    assert_eq!(served(&[]), Err(Abort::DECODE));
    assert_eq!(served(&[0, 0, 0]), Err(Abort::DECODE));
    assert_eq!(served(&words(&[9999])), Err(Abort::OPCODE));
    assert_eq!(served(&words(&[132, 1, 1])), Err(Abort::SS_UNMARSHAL));
    assert_eq!(served(&encode_request(&FetchData { fid: FID, pos: 0, length: -1 })), Err(Abort(22)));
}

#[test]
fn the_transport_is_told_which_argument_was_wrong() {
    let (result, refused) = serve_pieces(&words(&[156, 1, 7, 7]), 4);
    assert_eq!(result, Err(Abort::SS_UNMARSHAL));
    let (rpc, error) = refused.expect("the reason was told");
    assert_eq!((rpc, error.what, error.needed()), ("SetLocks", "SetLocks.fids", Some(4)));
    let (_, refused) = serve_pieces(&words(&[156, 51]), 4);
    assert_eq!(refused.unwrap().1.problem, Problem::TooLong { count: 51, max: 50 });
}

#[test]
fn arguments_beyond_the_servers_limit_are_refused_before_they_come() {
    let (result, refused) = serve_pieces(&words(&[65541, 5000]), 4);
    assert_eq!(result, Err(Abort::SS_UNMARSHAL));
    assert_eq!(refused.unwrap().1.problem, Problem::TooLong { count: 5004, max: 4096 });
}

#[test]
fn bytes_after_the_arguments_are_ignored() {
    let mut request = encode_request(&FetchStatus { fid: FID });
    request.extend([9; 500]);
    assert_eq!(served(&request).unwrap().len(), 120);
}

#[test]
fn a_reply_counts_only_when_it_is_decoded_completely() {
    let reply = words(&[1, 1]);
    assert!(decode_reply::<GetCapabilities>(&reply).is_ok());
    assert!(decode_reply::<GetCapabilities>(&reply[..7]).is_err());
    assert_eq!(
        decode_reply::<GetCapabilities>(&words(&[1, 1, 1])).unwrap_err().problem,
        Problem::Trailing { left: 4 }
    );
}

#[test]
fn the_table_has_what_was_declared() {
    assert_eq!((Files::NAME, Files::SERVICE_ID, Files::PORT), ("Files", 1, 7000));
    let rpc = rxgen::rpc::find(Files::RPCS, 65538).unwrap();
    assert_eq!((rpc.name, rpc.split), ("StoreData", Some(Split::FromClient)));
    assert_eq!(rpc.args, [("fid", "Fid"), ("name", "XdrString<256>"), ("length", "u64")]);
    assert_eq!(rpc.results, [("sum", "u64")]);
    assert_eq!(rpc.args_size, WireSize { min: 12 + 4 + 8, max: 12 + 4 + 256 + 8 });
    assert_eq!(rpc.results_size, WireSize::exactly(8));
    assert!(rxgen::rpc::find(Files::RPCS, 1).is_none());
    fn streams<R: StreamsIn, S: StreamsOut>() -> (u32, u32) {
        (R::OPCODE, S::OPCODE)
    }
    assert_eq!(streams::<StoreData, FetchData>(), (65538, 65537));
}

#[test]
fn an_unknown_value_of_an_enumeration_survives() {
    assert_eq!(rxgen::xdr::from_bytes::<Lock>(&[0xff; 4]), Ok(Lock::RELEASED));
    let unknown: Lock = rxgen::xdr::from_bytes(&[0, 0, 0, 13]).unwrap();
    assert_eq!(
        format!("{unknown:?} {unknown} {:?} {}", Lock::WRITE, Lock::WRITE),
        "Lock(13) 13 Lock::WRITE WRITE"
    );
    assert_eq!(rxgen::xdr::to_bytes(&unknown), [0, 0, 0, 13]);
    assert_eq!(Lock::NAMED, [Lock::READ, Lock::WRITE, Lock::RELEASED]);
}
