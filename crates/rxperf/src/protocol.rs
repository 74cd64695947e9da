//! The rxperf protocol (rxperf notes): what opens a call, and what closes it. All numbers are 32 bits, big-endian.

use rx_proto::ids::ServiceId;

/// The service.
pub const SERVICE: ServiceId = ServiceId(147);
/// The protocol's version, the first word of each call.
pub const VERSION: u32 = 3;
/// The last word of each reply but a FILE's.
pub const MAGIC: u32 = 0x4711;
/// Largest read and write size; OpenAFS's server refuses more.
pub const MAX_SIZE: u32 = 512 << 10;
/// Most numbers in a FILE's list: what nobody needs, and 64 KiB.
pub const MAX_LIST: u32 = 16 << 10;

/// The request of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The client sends so many bytes.
    Send(u32),
    /// The server sends so many bytes.
    Receive(u32),
    /// The client sends, then the server.
    Rpc {
        /// Bytes that the client sends.
        send: u32,
        /// Bytes that the server sends then.
        receive: u32,
    },
    /// Each number n but 0 is n times 4 bytes; 0 turns the direction. The client begins.
    File(Vec<u32>),
}

impl Request {
    /// The words that open the call; `sizes` are the client's read and write sizes.
    pub fn encode(&self, sizes: (u32, u32)) -> Vec<u8> {
        let mut words = vec![VERSION, 0, sizes.0, sizes.1];
        match self {
            Self::Send(bytes) => words.extend([*bytes]),
            Self::Receive(bytes) => words.extend([*bytes]),
            Self::Rpc { send, receive } => words.extend([*send, *receive]),
            Self::File(list) => {
                words.push(list.len() as u32);
                words.extend(list);
            }
        }
        words[1] = self.command();
        words.into_iter().flat_map(u32::to_be_bytes).collect()
    }

    const fn command(&self) -> u32 {
        match self {
            Self::Send(_) => 0,
            Self::Receive(_) => 1,
            Self::Rpc { .. } => 3,
            Self::File(_) => 4,
        }
    }

    /// Bytes that the client sends behind the opening words, and that the server sends before the magic.
    pub fn bytes(&self) -> (u64, u64) {
        match self {
            Self::Send(bytes) => (u64::from(*bytes), 0),
            Self::Receive(bytes) => (0, u64::from(*bytes)),
            Self::Rpc { send, receive } => (u64::from(*send), u64::from(*receive)),
            Self::File(list) => {
                // A call has one turn: what follows a second one cannot be carried by Rx and belongs to the server.
                let turn = list.iter().position(|n| *n == 0).unwrap_or(list.len());
                let sum = |part: &[u32]| part.iter().map(|n| u64::from(*n) * 4).sum();
                (sum(&list[..turn]), sum(&list[turn..]))
            }
        }
    }

    /// True if the reply ends with the magic.
    pub const fn has_magic(&self) -> bool {
        !matches!(self, Self::File(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_opens_as_the_notes_say() {
        let bytes = Request::Rpc { send: 5, receive: 6 }.encode((7, 8));
        let words: Vec<u32> = bytes.chunks(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).collect();
        assert_eq!(words, [3, 3, 7, 8, 5, 6]);
    }

    #[test]
    fn a_file_turns_at_its_zero() {
        assert_eq!(Request::File(vec![10, 1, 0, 20]).bytes(), (44, 80));
        assert_eq!(Request::File(vec![10]).bytes(), (40, 0));
    }
}
