//! The tests of the crate: lines of invitations, and handshakes whose messages somebody changes, replays or steals.

mod handshakes;
mod lines;
