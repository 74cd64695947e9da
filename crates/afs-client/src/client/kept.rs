//! Users have their tokens again after a restart of the client.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rx_security::UnixTime;

use super::Client;
use afs_reach::fid::{Pag, User};
use afs_reach::users::kept::{Kept, KeptToken};

/// The time between two questions for a cell of which the DNS tells nothing.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

impl Client {
    /// Keeps users' tokens in a folder of the user `owner` from now on, and gives users those again that an earlier client has kept there: not
    /// those that have expired, nor those of PAGs without processes. To be called before the client is mounted. The files have the keys of
    /// users' sessions, so the folder has to be one that a reboot empties.
    ///
    /// # Errors
    ///
    /// When others can get at the folder, or it cannot be read.
    pub fn keep_tokens(&self, folder: &Path, owner: u32, alive: &HashSet<Pag>) -> io::Result<()> {
        let (kept, tokens) = Kept::open(folder, owner)?;
        let inner = &self.inner;
        inner.users.keep(kept);
        let now = UnixTime::of(inner.runtime.wall_clock());
        let mut unknown = Vec::new();
        for token in tokens {
            let User { uid, pag } = token.user;
            if token.end() < now || pag.is_some_and(|pag| !alive.contains(&pag)) {
                inner.users.forget_kept(&token);
                continue;
            }
            if pag.is_some_and(|pag| inner.pags.restore(pag, uid)) {
                self.distrust_copies();
            }
            if !self.restore(&token) {
                unknown.push(token);
            }
        }
        if !unknown.is_empty() {
            self.restore_when_known(unknown);
        }
        Ok(())
    }

    /// Keeps no tokens, for a reason that the log tells with the first token: before, nobody loses anything.
    pub fn keep_no_tokens(&self, why: io::Error) {
        self.inner.users.keep_none(why);
    }

    /// Gives a user a token again that was kept. False if its cell is not known.
    fn restore(&self, token: &KeptToken) -> bool {
        let Some(cell) = self.inner.cells.named(token.cell.as_str()) else { return false };
        if let Some(outcome) = self.inner.users.restore((cell.index, cell.name.as_str()), token) {
            tracing::info!(cell = %cell.name, uid = token.user.uid, name = token.holder.name, "a user has a token again");
            self.note_login(token.user, outcome);
        }
        true
    }

    /// Asks the DNS for the cells of tokens until it tells of them, or the tokens have expired.
    fn restore_when_known(&self, mut tokens: Vec<KeptToken>) {
        let (inner, runtime) = (Arc::downgrade(&self.inner), Arc::clone(&self.inner.runtime));
        self.inner.runtime.spawn(Box::pin(async move {
            while !tokens.is_empty() {
                let Some(client) = inner.upgrade().map(|inner| Self { inner }) else { return };
                for token in &tokens {
                    // It says so itself if it does not answer.
                    let _ = client.inner.dns.cell_named(token.cell.as_str()).await;
                }
                let now = UnixTime::of(runtime.wall_clock());
                tokens.retain(|token| token.end() >= now && !client.restore(token));
                drop(client);
                runtime.sleep_until(runtime.now() + ASK_AGAIN_AFTER).await;
            }
        }));
    }
}
