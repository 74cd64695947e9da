//! Asks one question after another of an Rx endpoint, and asks again when no answer comes (Rx notes 14). Knows
//! datagrams and the clock; what is asked, and what an answer means, is for the caller.

use rx_proto::debug::{self, DebugKind, DebugRequest, FIRST_QUESTION, TOOL_EPOCH, VERSION_REQUEST};
use rx_proto::ids::CallNumber;
use rx_proto::packet::{HEADER_LEN, Header, MAX_PACKET_LEN, PacketError, PacketType};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The times for which an answer is waited for before the question is sent again, and at last given up: as OpenAFS
/// does (Rx notes 14). 31 seconds in all.
pub(super) const WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// No answer, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The server does not know the question.
    #[error("the server does not know this question")]
    NotSupported,
    /// Nothing came for so long.
    #[error("no answer within {} seconds; is this the right port, does Rx run there, is there a firewall?", .0.as_secs())]
    Silence(Duration),
    /// The list of connections or peers has no end.
    #[error("the list has no end")]
    Endless,
    /// The answer is too short.
    #[error("the answer cannot be read: {0}")]
    Malformed(PacketError),
    /// The system refused.
    #[error("cannot send or receive: {0}")]
    Io(io::Error),
}

/// A socket, and who is asked.
pub(super) struct Probe {
    socket: UdpSocket,
    server: SocketAddr,
    waits: Vec<Duration>,
    next: CallNumber,
    buffer: Vec<u8>,
}

impl Probe {
    /// Opens a socket to ask this server; `waits` are those between the sendings of a question.
    pub(super) fn new(server: SocketAddr, waits: &[Duration]) -> io::Result<Self> {
        let any = match server {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        // Not connected: a server with several addresses may answer from another than it was asked at.
        let socket = UdpSocket::bind(any)?;
        let buffer = vec![0; MAX_PACKET_LEN];
        Ok(Self { socket, server, waits: waits.to_vec(), next: FIRST_QUESTION, buffer })
    }

    /// Asks a DEBUG question; `read` makes sense of the answer's body.
    pub(super) fn ask<T>(
        &mut self,
        kind: DebugKind,
        index: i32,
        read: impl FnOnce(&[u8]) -> Result<T, PacketError>,
    ) -> Result<T, ProbeError> {
        let question = DebugRequest { kind, index };
        let body = self.exchange(PacketType::DEBUG, &question.to_bytes())?;
        if debug::is_not_supported(body) {
            return Err(ProbeError::NotSupported);
        }
        read(body).map_err(ProbeError::Malformed)
    }

    /// Asks for the version text.
    pub(super) fn version(&mut self) -> Result<String, ProbeError> {
        Ok(debug::parse_version(self.exchange(PacketType::VERSION, &VERSION_REQUEST)?))
    }

    /// Sends a question until it is answered; returns the answer's body.
    fn exchange(&mut self, kind: PacketType, body: &[u8]) -> Result<&[u8], ProbeError> {
        let number = self.next;
        self.next = number.next();
        let mut question = debug::request_header(kind, number).to_bytes().to_vec();
        question.extend_from_slice(body);
        for wait in self.waits.clone() {
            self.socket.send_to(&question, self.server).map_err(ProbeError::Io)?;
            if let Some(len) = self.receive(kind, number, wait).map_err(ProbeError::Io)? {
                return Ok(&self.buffer[HEADER_LEN..len]);
            }
        }
        Err(ProbeError::Silence(self.waits.iter().sum()))
    }

    /// Waits for the answer to this question; returns its length, header included.
    fn receive(&mut self, kind: PacketType, number: CallNumber, wait: Duration) -> io::Result<Option<usize>> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let (len, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(datagram) => datagram,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                },
            };
            if from.port() == self.server.port() && is_answer(&self.buffer[..len], kind, number) {
                return Ok(Some(len));
            }
        }
    }
}

fn is_answer(packet: &[u8], kind: PacketType, number: CallNumber) -> bool {
    Header::parse(packet).is_ok_and(|header| {
        header.kind == kind && header.call == number && header.epoch == TOOL_EPOCH && !header.is_from_client()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(20);

    /// A server that answers each datagram with what `answer` makes of it, until that is `None`.
    fn serve(mut answer: impl FnMut(&[u8]) -> Option<Vec<Vec<u8>>> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let Some(replies) = answer(&buffer[..len]) else { return };
                replies.iter().for_each(|reply| drop(socket.send_to(reply, from)));
            }
        });
        address
    }

    fn reply(question: &[u8], body: &[u8]) -> Vec<u8> {
        let header = debug::reply_header(&Header::parse(question).unwrap()).unwrap();
        [&header.to_bytes()[..], body].concat()
    }

    #[test]
    fn a_question_is_asked_again_until_it_is_answered() {
        let mut asked = 0;
        let server = serve(move |question| {
            asked += 1;
            Some(if asked < 3 { vec![] } else { vec![reply(question, b"at last\0")] })
        });
        let mut probe = Probe::new(server, &[SOON, SOON, LATE]).unwrap();
        assert_eq!(probe.version().unwrap(), "at last");
    }

    #[test]
    fn silence_is_an_error_after_all_waits() {
        let server = serve(|_| Some(vec![]));
        let mut probe = Probe::new(server, &[SOON, SOON]).unwrap();
        let error = probe.version().unwrap_err();
        assert!(matches!(error, ProbeError::Silence(waited) if waited == 2 * SOON), "{error}");
    }

    #[test]
    fn only_the_answer_to_this_question_counts() {
        let server = serve(|question| {
            let right = reply(question, &[0, 0, 0, 9]);
            let mut old = right.clone();
            old[11] -= 1;
            let mut of_version = right.clone();
            of_version[20] = 13;
            Some(vec![question.to_vec(), vec![1, 2, 3], old, of_version, right])
        });
        let mut probe = Probe::new(server, &[LATE]).unwrap();
        let answer = probe.ask(DebugKind::PEER, 3, |body| Ok(body.to_vec())).unwrap();
        assert_eq!(answer, [0, 0, 0, 9]);
    }

    #[test]
    fn a_server_that_does_not_know_the_question_says_so() {
        let server = serve(|question| Some(vec![reply(question, &DebugRequest::NOT_SUPPORTED.to_bytes())]));
        let mut probe = Probe::new(server, &[LATE]).unwrap();
        assert!(matches!(probe.ask(DebugKind(99), 0, |_| Ok(())), Err(ProbeError::NotSupported)));
    }
}
