//! `afsio lock` and `unlock`, also of a fid: the file server's lock of a whole file, which stays when the command has ended, until it is
//! given back or the server takes it for forgotten, after five minutes. So this is beside what the client knows of locks of its own.

use super::{AfsioError, Session, Target};
use crate::classic::Given;
use crate::codes::Code;
use afs_client::{Error, LockKind};
use std::time::Duration;
use tokio::time::Instant;

/// How often a lock is asked for that somebody else has. Servers do not tell when it is free.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The lock that is asked for.
pub(super) struct Order {
    kind: LockKind,
    /// How long to wait for the lock; `None` waits without end, as OpenAFS's `afsio` does.
    patience: Option<Duration>,
}

impl Order {
    pub(super) fn new(given: &Given) -> Result<Self, AfsioError> {
        let kind = if given.has("readlock") { LockKind::Read } else { LockKind::Write };
        Ok(Self { kind, patience: patience(given)? })
    }
}

/// Returns the time that `-waitseconds` says, also where nothing is waited for.
pub(super) fn patience(given: &Given) -> Result<Option<Duration>, AfsioError> {
    let Some(text) = given.word("waitseconds") else { return Ok(None) };
    let invalid = || AfsioError::new(Code::EINVAL, format!("invalid value for waitseconds {text}"));
    let seconds: u32 = text.trim().parse().map_err(|_| invalid())?;
    Ok(Some(Duration::from_secs(seconds.into())))
}

impl Session {
    pub(super) async fn lock(&self, target: &Target, order: &Order) -> Result<(), AfsioError> {
        let fid = self.find(target).await?.fid;
        let until = order.patience.map(|patience| Instant::now() + patience);
        loop {
            match self.client.lock_at_server(self.user, fid, order.kind).await {
                Ok(()) => return Ok(()),
                Err(Error::Locked { .. }) if until.is_none_or(|until| Instant::now() < until) => {
                    let again = Instant::now() + ASK_EVERY;
                    tokio::time::sleep_until(until.map_or(again, |until| again.min(until))).await;
                }
                Err(error) => return Err(failed(&error, target)),
            }
        }
    }

    pub(super) async fn unlock(&self, target: &Target) -> Result<(), AfsioError> {
        let found = self.find(target).await?;
        // Servers would accept this, but the user has probably named the wrong file.
        if found.status.locks == 0 {
            let what = format!("failed to change lock status: nobody has locked {}", target.shown());
            return Err(AfsioError::new(Code::EINVAL, what));
        }
        let unlocked = self.client.unlock_at_server(self.user, found.fid).await;
        unlocked.map_err(|error| failed(&error, target))
    }
}

fn failed(error: &Error, target: &Target) -> AfsioError {
    AfsioError::of_client(error, format!("failed to change lock status: {}", target.shown()))
}
