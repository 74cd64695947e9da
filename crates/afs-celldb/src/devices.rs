//! The invitations of the cell, the devices that have joined by them, and the keys by which devices know the cell (Join notes). OpenAFS has
//! nothing of the kind.

mod change;
mod errors;
mod image;
mod records;
mod service;

pub use change::{Admitted, Denied, NewDevice, NewInvitation, Target};
pub use errors::DeviceError;
pub use image::Devices;
pub use records::{CellKey, Device, Digest, Invitation};
pub use service::{Granted, JoinService, NoToken, Randomness, Surroundings, TokenFor, TokenMaker, Uptime};
