//! As whom a command calls servers: as nobody, or, with `-localauth`, as the cell's own superuser, whose tickets are made
//! from the key in the servers' configuration folder.

use afs_admin::Login;
use afs_config::{Superuser, UserList};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_security::{KeySet, Level};
use std::path::Path;

/// There is no token to call servers with: no key, or none that can be read. Who wants one goes on as nobody, as OpenAFS's
/// tools do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoToken;

/// As whom, and how well protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `-noauth`.
    pub(crate) noauth: bool,
    /// `-localauth`.
    pub(crate) localauth: bool,
    /// Whether what is said goes in the clear. It is encrypted unless somebody asks for this.
    pub(crate) clear: bool,
}

/// The identity that is wished for. The folder is that of the servers' configuration, where the keys are; the seed is of good
/// randomness. A caller without `-localauth` is nobody: the tokens that `aklog` gives the client are not given out again.
pub(crate) fn log_in(wish: Wish, folder: &Path, seed: [u8; 32]) -> Result<Login, NoToken> {
    if wish.noauth {
        return Ok(Login::anonymous());
    }
    if !wish.localauth {
        return Err(NoToken);
    }
    let keys = KeySet::load(folder).map_err(|_| NoToken)?;
    let level = if wish.clear { Level::Clear } else { Level::Crypt };
    Login::local_superuser(&keys, level, &mut StdRng::from_seed(seed)).map_err(|_| NoToken)
}

/// Who `-localauth` is to file servers, to which the cell's own superuser is nobody: the first of the `UserList` in the folder of the
/// servers' configuration.
///
/// # Errors
///
/// When there is no such file, or nobody of this cell in it.
pub(crate) fn first_superuser(folder: &Path) -> Result<String, String> {
    let file = folder.join("UserList");
    let list = UserList::read(&file).map_err(|error| error.to_string())?;
    let local = list.users.into_iter().find_map(|user| match user {
        Superuser::Local(name) => Some(name),
        Superuser::Foreign { .. } | Superuser::Extended(_) => None,
    });
    local.ok_or_else(|| format!("{} names nobody of this cell", file.display()))
}
