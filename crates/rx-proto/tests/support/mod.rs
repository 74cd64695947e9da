//! What several files of tests use: a server that is packets only, and a crowd of clients of one server.

pub(crate) mod crowd;
pub(crate) mod raw_server;
