//! The reasons why procedures of JOIN are refused to administrators (Join notes 5).

use afs_wire::Abort;
use afs_wire::abort::{AJBADARG, AJEXIST, AJIO, AJNOENT, AJTOOMANY};

use crate::database::ChangeError;
use crate::ubik::NO_QUORUM;

/// The reason why a change was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such device.
    NoEntry,
    /// There is such an invitation.
    Exists,
    /// There are too many.
    TooMany,
    /// A time or a name cannot be.
    BadArgument,
    /// The store of the databases has no quorum.
    NoQuorum,
    /// The store failed.
    Failed,
}

impl From<DeviceError> for Abort {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::NoEntry => AJNOENT,
            DeviceError::Exists => AJEXIST,
            DeviceError::TooMany => AJTOOMANY,
            DeviceError::BadArgument => AJBADARG,
            DeviceError::NoQuorum => NO_QUORUM,
            DeviceError::Failed => AJIO,
        }
    }
}

impl From<ChangeError> for DeviceError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NoQuorum(error) => {
                tracing::debug!(database = "devices", %error, "a change was refused");
                Self::NoQuorum
            }
            ChangeError::Store(_) | ChangeError::Reload(_) | ChangeError::Contended => {
                tracing::error!(database = "devices", %error, "a change was not made, or it is not known whether it was");
                Self::Failed
            }
        }
    }
}
