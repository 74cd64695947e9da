//! How a machine joins a cell by an invitation, and gets tokens with its device key from then on: what both ends compute, as values
//! (Join notes: docs/notes/join.md; the reasons: docs/decisions/0011-invitations.md).
//!
//! - [`Invitation`]: the line that `afar invite` prints and `afar join` reads;
//! - [`KeyPair`] and [`PublicKey`]: the keys of the cell and of devices;
//! - [`Initiator`], [`Responder`], [`Channel`]: the handshake; [`Membership`]: the calls of a device in which it travels;
//! - [`Door`]: what a server asks of strangers first: cookies, rates, and handshakes that are under way.
//!
//! Nothing here does I/O, reads a clock or makes random numbers. Left to others: the calls in which messages travel
//! (`afs_wire::join`), invitations and devices as the databases have them (`afs_celldb::devices`), and tokens.
//!
//! # What to open for a change
//!
//! - The form of the line: `src/line.rs`; a line of another form begins with another mark.
//! - The messages: `src/handshake.rs`, and `JoinRequest` and `JoinReply` in `crates/afs-wire/src/interfaces/join.rs`.
//! - What costs a server how much, and what it refuses: `src/server.rs`, `src/cookie.rs`, `src/rates.rs`.
#![forbid(unsafe_code)]

mod cookie;
mod device;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod keys;
mod line;
mod rates;
mod server;

pub use cookie::{Cookie, CookieJar};
pub use device::{AnswerError, Asked, Begun, Membership};
pub use handshake::{Chance, Channel, HandshakeError, Initiator, PAYLOAD_MAX, Responder};
pub use keys::{KEY_BYTES, KeyPair, PublicKey};
pub use line::{Invitation, LineError, PORT, SERVERS_MAX, digest};
pub use rates::{Limits, Rates};
pub use server::{Door, Refusal, Shown};
