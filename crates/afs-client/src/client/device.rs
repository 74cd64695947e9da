//! A user of a machine that has joined a cell: the client gets the user's tokens by the device's key, each long before the last one ends.

use std::sync::Arc;
use std::time::Duration;

use rx::Endpoint;
use rx_security::rxgk::Token;
use tokio::sync::Notify;

use super::Client;
use afs_reach::error::Error;
use afs_reach::fid::User;
use afs_reach::join::Refused;
use afs_reach::users::LoggedIn;
use afs_reach::wait;

/// The time between two attempts to get a token. Servers bear one in three seconds.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The time after which the cell is asked once more when it has said that it does not know the device.
const FINAL_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// The time for which the first token is waited for.
const FIRST_MAX: Duration = Duration::from_secs(5);

impl Client {
    /// Has a user be the one of this name in a cell for whom this machine is a device, and asks for tokens from now on: `ask` does it once.
    /// Waits a moment for the first: until then the user is anonymous, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`].
    pub async fn log_in_by_device<A, F>(
        &self,
        user: User,
        (cell, name): (&str, &str),
        mut ask: A,
    ) -> Result<(), Error>
    where
        A: FnMut(Endpoint) -> F + Send + 'static,
        F: Future<Output = Result<Token, Refused>> + Send,
    {
        let inner = &self.inner;
        let cell = inner.cells.find(cell)?;
        let (cell, index, name) = (cell.name.clone(), cell.index, name.to_owned());
        let (who, wanted) = inner.users.log_in_by_device(user, (index, cell.as_str()), &name);
        let (first, runtime) = (Arc::new(Notify::new()), Arc::clone(&inner.runtime));
        let (endpoint, is_answered) = (inner.connections.endpoint().clone(), Arc::clone(&first));
        let weak = Arc::downgrade(inner);
        inner.runtime.spawn(Box::pin(async move {
            let mut told = String::new();
            loop {
                let answer = ask(endpoint.clone()).await;
                let Some(client) = weak.upgrade().map(|inner| Self { inner }) else { return };
                if client.inner.closing.has_begun() {
                    return;
                }
                let users = &client.inner.users;
                let pause = match answer {
                    Ok(token) => {
                        told.clear();
                        if !users.renew_by_device(who, token) {
                            return;
                        }
                        // Where volumes are was asked by who could be lied to.
                        client.inner.locations.forget_all();
                        client.note_login(user, LoggedIn::Renewed(who));
                        users.rest_of(who) / 2
                    }
                    Err(refused) => {
                        if refused.is_final {
                            users.end_by_device(who);
                        }
                        if told != refused.why {
                            tracing::warn!(%cell, name, why = refused.why, "this device has got no token");
                            told = refused.why;
                        }
                        if refused.is_final { FINAL_AGAIN_AFTER } else { AGAIN_AFTER }
                    }
                };
                drop(client);
                is_answered.notify_one();
                // No sooner, also if servers refuse each token.
                runtime.sleep_until(runtime.now() + AGAIN_AFTER).await;
                wait::within(&runtime, pause.saturating_sub(AGAIN_AFTER), wanted.notified()).await;
            }
        }));
        wait::within(&inner.runtime, FIRST_MAX, first.notified()).await;
        Ok(())
    }
}
