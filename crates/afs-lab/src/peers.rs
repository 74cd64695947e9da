//! Peers that we did not write, started for a test. OpenAFS's programs and stock kernels are `crates/interop`'s.

pub mod etcd;
pub mod kdc;
pub mod systemd;
