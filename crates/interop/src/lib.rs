//! Interop with OpenAFS's Rx: what the tests in `tests/interop` are made of. [`service`] is our implementation of the test
//! service, both ends, of which `interop/oafs-peer` is the other one; [`lab`] finds and builds the programs, [`process`]
//! runs them, [`road`] is what lies between the two sides, [`proxy`] records what is said on it and [`wire`] judges that.
//! [`suite`] runs the cases. [`celldb`] makes random calls to servers of the cell's databases.
//!
//! Nothing here is used outside of tests.

#![forbid(unsafe_code)]

pub mod celldb;
pub mod lab;
pub mod process;
pub mod proxy;
pub mod road;
pub mod service;
pub mod suite;
pub mod wire;
