//! The file system from the kernel's side, without a kernel: neither root nor /dev/fuse is needed. What only the real kernel can show is in
//! `crates/afar/tests`.

mod cell;
mod files;
mod kernel;
mod names;
mod reference;
mod snapshots;
mod together;
