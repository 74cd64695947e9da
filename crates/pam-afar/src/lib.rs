//! `pam_afar.so`: each login gets a PAG of its own, and its tokens if it has Kerberos tickets. The client makes the number of the PAG,
//! this adds the group to the program that logs somebody in, which is root and passes its groups on, and runs `aklog` in it.
//!
//! Tickets are left to pam_krb5, pam_sss or ssh. What PAM calls is in `sys`; what is asked of the client, in `client`.
//!
//! Nothing here keeps anybody out: where there is no client, or no ticket, the login goes on without.

#![deny(unsafe_code)]

mod client;
mod run;
#[cfg(not(test))]
mod sys;

/// Tests are no modules of PAM's, so nothing of it is there.
#[cfg(test)]
mod sys {
    use std::io;

    pub(crate) fn set_groups(_: &[u32]) -> io::Result<()> {
        Ok(())
    }
}

use std::path::PathBuf;

use client::Asker;

/// The program that gets tokens, with `aklog` as its first argument.
const PROGRAM: &str = "/usr/bin/afar";

/// The environment variable that tells `aklog` where the client listens that tokens are for.
const SOCKET_VARIABLE: &str = "AFAR_SOCKET";

/// The request of PAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// A session begins, or its credentials: the PAG, and tokens.
    Begin,
    /// The tickets are new ones: the same PAG, and tokens anew.
    Renew,
    /// The session ends.
    End,
}

/// The options that the administrator writes behind the module's name.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// The program that gets tokens (`program=PATH`).
    program: PathBuf,
    /// The control socket of the client (`socket=PATH`); without, that of root's newest mount.
    socket: Option<PathBuf>,
    /// True if tokens are wanted also where nobody has said where the tickets are (`always_aklog`).
    always_aklog: bool,
}

impl Options {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut options = Self { program: PROGRAM.into(), socket: None, always_aklog: false };
        for word in words {
            match word.split_once('=') {
                Some(("program", path)) => options.program = path.into(),
                Some(("socket", path)) => options.socket = Some(path.into()),
                _ => options.always_aklog |= word == "always_aklog",
            }
        }
        options
    }
}

/// A login, as PAM has it.
trait Login {
    /// The user who logs in.
    fn user(&self) -> Option<nix::unistd::User>;
    /// The PAG that this login has from before.
    fn pag(&self) -> Option<u32>;
    /// Notes it.
    fn set_pag(&self, group: u32) -> bool;
    /// True if it has had tokens.
    fn has_tokens(&self) -> bool;
    /// Notes that.
    fn note_tokens(&self);
    /// The environment of the login: it says where the tickets are.
    fn environment(&self) -> Vec<(String, String)>;
}

/// Serves a request of PAM. Returns whether anything was done.
fn serve(login: &impl Login, request: Request, options: &Options) -> Result<bool, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let user = login.user().ok_or("no such user")?;
    let known = login.pag();
    if request == Request::End {
        let Some(pag) = known else { return Ok(false) };
        let asker = Asker { uid: user.uid.as_raw(), gid: user.gid.as_raw(), pag: Some(pag) };
        let ended = client::end_pag(asker, options.socket.clone());
        // What the program does next is no part of the login.
        let groups = nix::unistd::getgroups().map_err(|error| error.to_string())?;
        let groups = without_pag(groups.into_iter().map(nix::unistd::Gid::as_raw)).collect::<Vec<_>>();
        sys::set_groups(&groups).map_err(|error| format!("taking a group away: {error}"))?;
        return ended.map(|()| true);
    }
    let pag = match known {
        Some(pag) => pag,
        None => {
            let asker = Asker { uid: user.uid.as_raw(), gid: user.gid.as_raw(), pag: None };
            let pag = client::new_pag(asker, options.socket.clone())?;
            if !login.set_pag(pag) {
                return Err("PAM keeps no data".to_owned());
            }
            pag
        }
    };
    // The program may have set its groups anew since.
    let groups = nix::unistd::getgroups().map_err(|error| error.to_string())?;
    let groups = with_pag(groups.into_iter().map(nix::unistd::Gid::as_raw), pag);
    sys::set_groups(&groups).map_err(|error| format!("adding a group: {error}"))?;
    let mut environment = login.environment();
    // Tokens are for the client that has made the PAG.
    environment.retain(|(name, _)| name != SOCKET_VARIABLE);
    environment
        .extend(options.socket.iter().map(|path| (SOCKET_VARIABLE.to_owned(), path.display().to_string())));
    let has_tickets = environment.iter().any(|(name, _)| name == "KRB5CCNAME");
    // The tickets may come later than the PAG: with the session, if pam_krb5 or ssh only has them then.
    if (!login.has_tokens() || request == Request::Renew) && (has_tickets || options.always_aklog) {
        run::run_as(&user, pag, &options.program, &environment, run::TIMEOUT)
            .map_err(|error| format!("{} aklog: {error}", options.program.display()))?;
        login.note_tokens();
    }
    Ok(true)
}

/// True if a group is that of a PAG (docs/decisions/0007-pags.md).
const fn is_pag(group: u32) -> bool {
    group >> 24 == 0x41
}

/// Groups with that of a PAG, in place of another one.
fn with_pag(groups: impl Iterator<Item = u32>, pag: u32) -> Vec<u32> {
    without_pag(groups).chain([pag]).collect()
}

/// Groups without that of a PAG.
fn without_pag(groups: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    groups.filter(|group| !is_pag(*group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_login_is_in_one_pag() {
        let groups = with_pag([4, 0x4100_0007, 100].into_iter(), 0x4100_0009);
        assert_eq!(groups, [4, 100, 0x4100_0009]);
        assert!(!is_pag(0x4200_0000));
        assert_eq!(without_pag(groups.into_iter()).collect::<Vec<_>>(), [4, 100]);
    }

    #[test]
    fn options_are_words_and_others_are_passed_over() {
        let options = Options::parse(["debug", "program=/a", "socket=/b", "always_aklog"].into_iter());
        let expected = Options { program: "/a".into(), socket: Some("/b".into()), always_aklog: true };
        assert_eq!(options, expected);
    }

    /// One who logs in, with the tickets that there are so far.
    struct Plain {
        pag: Option<u32>,
        tickets: Option<&'static str>,
        has_tokens: Cell<bool>,
    }

    fn plain(pag: Option<u32>) -> Plain {
        Plain { pag, tickets: None, has_tokens: Cell::new(false) }
    }

    impl Login for Plain {
        fn user(&self) -> Option<nix::unistd::User> {
            nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap()
        }

        fn pag(&self) -> Option<u32> {
            self.pag
        }

        fn has_tokens(&self) -> bool {
            self.has_tokens.get()
        }

        fn note_tokens(&self) {
            self.has_tokens.set(true);
        }

        fn set_pag(&self, _: u32) -> bool {
            true
        }

        fn environment(&self) -> Vec<(String, String)> {
            self.tickets.map(|at| ("KRB5CCNAME".to_owned(), at.to_owned())).into_iter().collect()
        }
    }

    /// No tokens were had with tickets that came after the PAG.
    #[test]
    fn tickets_that_come_with_the_session_give_tokens_too() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let options = |program: &str| Options::parse([&*format!("program={program}")].into_iter());
        let mut login = plain(Some(0x4100_0001));
        assert_eq!(
            serve(&login, Request::Begin, &options("/bin/false")),
            Ok(true),
            "without tickets it is not run"
        );
        login.tickets = Some("FILE:/tmp/x");
        assert!(serve(&login, Request::Begin, &options("/bin/false")).is_err());
        assert_eq!(serve(&login, Request::Begin, &options("/bin/true")), Ok(true));
        assert_eq!(serve(&login, Request::Begin, &options("/bin/false")), Ok(true), "once is enough");
        assert!(serve(&login, Request::Renew, &options("/bin/false")).is_err(), "but for new ones");
    }

    #[test]
    fn where_no_client_answers_a_login_goes_on_without_a_pag() {
        let options = Options::parse(["socket=/nonexistent/socket"].into_iter());
        let is_root = rustix::process::geteuid().is_root();
        let refused = serve(&plain(None), Request::Begin, &options);
        assert!(if is_root {
            refused.is_err_and(|why| why.contains("/nonexistent"))
        } else {
            refused == Ok(false)
        });
        assert_eq!(serve(&plain(None), Request::End, &options), Ok(false), "it has none that could end");
        // One that a login has already is kept.
        assert_eq!(serve(&plain(Some(0x4100_0001)), Request::Renew, &options), Ok(is_root));
    }
}
