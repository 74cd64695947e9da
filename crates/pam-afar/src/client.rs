//! Requests to the clients of root's on this machine: by a thread that is the user, as a client knows by its socket who asks. Which clients is the rule
//! of `afs_control`.

use afs_control::{Client, Failure, Found, Search, Trust};
use afs_wire::control;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use crate::Options;

/// The user who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) uid: u32,
    /// Their group.
    pub(crate) gid: u32,
    /// The PAG that they are in.
    pub(crate) pag: Option<u32>,
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) struct Asked<T> {
    /// What was asked for, or why there is none.
    pub(crate) result: Result<T, String>,
    /// The clients that do not answer, in words.
    pub(crate) silent: Vec<String>,
    /// True if the time of the login is used up: it asks nothing any more.
    pub(crate) is_over: bool,
}

/// A new PAG, and the sockets of the clients that answer: tokens are for them.
#[derive(Debug)]
pub(crate) struct NewPag {
    pub(crate) group: u32,
    pub(crate) sockets: Vec<PathBuf>,
}

/// Makes a PAG for a user. The client that makes it tells the others.
pub(crate) fn new_pag(asker: Asker, options: &Options) -> Asked<NewPag> {
    as_user(asker, options, |clients| {
        let first = clients.first().ok_or("no client of root's is mounted here")?;
        let group = first.call(&control::NewPag {}).map_err(|failure| in_words(first, &failure))?.group;
        if !super::is_pag(group) {
            return Err(format!("the answer of the client of {} is no PAG", first.place().display()));
        }
        Ok(NewPag { group, sockets: sockets(clients) })
    })
}

/// The sockets of the clients that answer.
pub(crate) fn answering(asker: Asker, options: &Options) -> Asked<Vec<PathBuf>> {
    as_user(asker, options, |clients| Ok(sockets(clients)))
}

/// Ends a PAG, with its tokens, in all clients.
pub(crate) fn end_pag(asker: Asker, options: &Options) -> Asked<()> {
    as_user(asker, options, |clients| {
        for client in clients {
            match client.call(&control::EndPag {}) {
                // It does not know the PAG.
                Ok(_) | Err(Failure::Errno(_)) => {}
                Err(failure) => return Err(in_words(client, &failure)),
            }
        }
        Ok(())
    })
}

/// True if a PAG has a token in a client: one that was given. A ticket that a client makes from the cell's key is good outside as well.
pub(crate) fn has_tokens(asker: Asker, options: &Options) -> bool {
    let asked = as_user(asker, options, |clients| {
        Ok(clients.iter().any(|client| {
            let is_given = |token: &control::HeldToken| {
                let caller = client.call(&control::GetCaller { cell: token.cell.clone() });
                !caller.is_ok_and(|caller| caller.is_made_here)
            };
            client.call(&control::ListTokens {}).is_ok_and(|held| held.tokens.iter().any(is_given))
        }))
    });
    asked.result.unwrap_or(false)
}

fn sockets(clients: &[Client]) -> Vec<PathBuf> {
    clients.iter().map(|client| client.socket().to_owned()).collect()
}

fn as_user<T: Send>(
    asker: Asker,
    options: &Options,
    ask: impl FnOnce(&[Client]) -> Result<T, String> + Send,
) -> Asked<T> {
    let search = Search {
        trust: Trust::Root,
        named: options.socket.clone().map(|socket| vec![socket]),
        here: None,
        patience: options.patience,
        answers_within: options.patience,
    };
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let begin = Instant::now();
            if let Err(error) = become_user(asker) {
                return Asked {
                    result: Err(format!("acting as the user: {error}")),
                    silent: Vec::new(),
                    is_over: false,
                };
            }
            let Found { clients, passed_over } = search.all();
            let silent = passed_over.iter().filter_map(|one| match &one.why {
                Failure::Unreachable { error, .. } => {
                    Some(format!("the client of {} does not answer: {error}", one.place.display()))
                }
                _ => None,
            });
            let silent: Vec<_> = silent.collect();
            let result = ask(&clients);
            Asked { result, silent, is_over: begin.elapsed() >= options.patience }
        });
        let failed = |_| Asked {
            result: Err("asking the client failed".to_owned()),
            silent: Vec::new(),
            is_over: true,
        };
        asking.join().unwrap_or_else(failed)
    })
}

/// Makes this thread, and no other, the user's.
fn become_user(asker: Asker) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(asker.uid), Gid::from_raw(asker.gid));
    let pag: Vec<Gid> = asker.pag.map(Gid::from_raw).into_iter().collect();
    set_thread_groups(&pag)?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

fn in_words(client: &Client, failure: &Failure) -> String {
    let at = client.place().display();
    match failure {
        Failure::Errno(errno) => format!("the client of {at}: {}", io::Error::from_raw_os_error(*errno)),
        Failure::Unreachable { error, .. } => format!("the client of {at} does not answer: {error}"),
        failure => format!("the client of {at}: {failure:?}"),
    }
}
