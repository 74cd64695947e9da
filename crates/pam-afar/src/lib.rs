//! `pam_afar.so`: a login that has Kerberos tickets gets tokens, in a PAG of its own. A client makes the number of the PAG; this runs `aklog` in it, and
//! then adds the group to the program that logs somebody in, which is root and passes its groups on. A login without tickets, or for which `aklog` has
//! got nothing, is in no PAG: in an empty one it would have less than without.
//!
//! Tickets are left to pam_krb5, pam_sss or ssh. What PAM calls is in `sys`; what is asked of clients, in `client`.
//!
//! Nothing here keeps anybody out: where there is no client, or no ticket, the login goes on without.
//!
//! # What to open for a change
//!
//! - Who gets a PAG, and how the rest of the machine knows it: [`client`]; docs/decisions/0007-pags.md has the
//!   reasons. Tests: `crates/afar/tests/pags/`, `crates/afar/tests/systemd.rs`.

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
use std::time::Duration;

use client::{Asked, Asker, NewPag};

/// The program that gets tokens, with `aklog` as its first argument.
const PROGRAM: &str = "/usr/bin/afar";

/// The environment variable that tells `aklog` where the clients listen that tokens are for.
const SOCKET_VARIABLE: &str = "AFAR_SOCKET";

/// The time for which a login waits for clients that do not answer, in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The request of PAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// A session begins, or its credentials: tokens, in a PAG.
    Begin,
    /// The tickets are new ones: the same PAG, and tokens anew.
    Renew,
    /// The session ends.
    End,
}

/// The options that the administrator writes behind the module's name. Those that pam_afs_session has too mean the same.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// The program that gets tokens (`program=PATH`).
    program: PathBuf,
    /// The control socket of the client (`socket=PATH`); without, all clients of root's are meant.
    socket: Option<PathBuf>,
    /// True if tokens are wanted also where nobody has said where the tickets are (`always_aklog`).
    always_aklog: bool,
    /// True if tokens are the user's, and no session's (`nopag`).
    nopag: bool,
    /// True if the end of a session leaves its tokens to what is left of it (`retain_after_close`).
    retain_after_close: bool,
    /// True if root's logins are left alone (`ignore_root`).
    ignore_root: bool,
    /// Users with lower numbers are left alone (`minimum_uid=NUMBER`).
    minimum_uid: u32,
    /// The words that are none of these.
    unknown: Vec<String>,
    /// The time for which a login waits for clients that do not answer, in all. No word changes it.
    patience: Duration,
}

impl Options {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut options = Self {
            program: PROGRAM.into(),
            socket: None,
            always_aklog: false,
            nopag: false,
            retain_after_close: false,
            ignore_root: false,
            minimum_uid: 0,
            unknown: Vec::new(),
            patience: PATIENCE,
        };
        for word in words {
            match (word.split_once('='), word) {
                (Some(("program", path)), _) => options.program = path.into(),
                (Some(("socket", path)), _) => options.socket = Some(path.into()),
                (Some(("minimum_uid", number)), _) => match number.parse() {
                    Ok(number) => options.minimum_uid = number,
                    Err(_) => options.unknown.push(word.to_owned()),
                },
                (None, "always_aklog") => options.always_aklog = true,
                (None, "nopag") => options.nopag = true,
                (None, "retain_after_close") => options.retain_after_close = true,
                (None, "ignore_root") => options.ignore_root = true,
                _ => options.unknown.push(word.to_owned()),
            }
        }
        options
    }

    fn is_for(&self, uid: u32) -> bool {
        uid >= self.minimum_uid && !(self.ignore_root && uid == 0)
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
    /// True if it has waited for clients as long as a login may.
    fn has_waited(&self) -> bool;
    /// Notes that.
    fn note_waited(&self);
    /// The environment of the login: it says where the tickets are.
    fn environment(&self) -> Vec<(String, String)>;
    /// Says something in the log of logins.
    fn log(&self, text: &str);
}

/// Serves a request of PAM. Returns whether anything was done.
fn serve(login: &impl Login, request: Request, options: &Options) -> Result<bool, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    for word in &options.unknown {
        login.log(&format!("the option '{word}' is not known, and does nothing"));
    }
    let user = login.user().ok_or("no such user")?;
    if !options.is_for(user.uid.as_raw()) {
        return Ok(false);
    }
    if request == Request::End { end(login, &user, options) } else { begin(login, &user, request, options) }
}

/// A session begins, or its tickets are new ones.
fn begin(
    login: &impl Login,
    user: &nix::unistd::User,
    request: Request,
    options: &Options,
) -> Result<bool, String> {
    let known = login.pag();
    if let Some(pag) = known {
        // The program may have set its groups anew since.
        enter(Some(pag))?;
    }
    let mut environment = login.environment();
    let has_tickets = environment.iter().any(|(name, _)| name == "KRB5CCNAME");
    // The tickets may come later than the credentials: with the session, if pam_krb5 or ssh only has them then.
    let wants = (!login.has_tokens() || request == Request::Renew) && (has_tickets || options.always_aklog);
    if !wants || login.has_waited() {
        return Ok(known.is_some());
    }
    let asker = |pag| Asker { uid: user.uid.as_raw(), gid: user.gid.as_raw(), pag };
    let (pag, sockets) = if known.is_some() || options.nopag {
        (known, heard(login, client::answering(asker(known), options))?)
    } else {
        let NewPag { group, sockets } = heard(login, client::new_pag(asker(None), options))?;
        (Some(group), sockets)
    };
    // Tokens are for the clients that answer: this has waited for the others.
    environment.retain(|(name, _)| name != SOCKET_VARIABLE);
    let sockets = std::env::join_paths(sockets).map_err(|error| error.to_string())?;
    environment.push((SOCKET_VARIABLE.to_owned(), sockets.to_string_lossy().into_owned()));
    let ran = run::run_as(user, pag, &options.program, &environment, run::TIMEOUT)
        .map_err(|error| format!("{} aklog: {error}", options.program.display()));
    if let (Some(new), None) = (pag, known) {
        // Of several cells it may have got tokens for some.
        if ran.is_err() && !client::has_tokens(asker(pag), options) {
            let _ = client::end_pag(asker(pag), options).result;
            return ran.map(|()| true);
        }
        if !login.set_pag(new) {
            let _ = client::end_pag(asker(pag), options).result;
            return Err("PAM keeps no data".to_owned());
        }
        enter(pag)?;
    }
    ran?;
    login.note_tokens();
    Ok(true)
}

/// A session ends.
fn end(login: &impl Login, user: &nix::unistd::User, options: &Options) -> Result<bool, String> {
    let Some(pag) = login.pag() else { return Ok(false) };
    let asker = Asker { uid: user.uid.as_raw(), gid: user.gid.as_raw(), pag: Some(pag) };
    let ended = if options.retain_after_close || login.has_waited() {
        Ok(())
    } else {
        heard(login, client::end_pag(asker, options))
    };
    // What the program does next is no part of the login.
    enter(None)?;
    ended.map(|()| true)
}

/// The result of a request to clients. Says which of them do not answer, and notes if the login is to wait no longer.
fn heard<T>(login: &impl Login, asked: Asked<T>) -> Result<T, String> {
    asked.silent.iter().for_each(|text| login.log(text));
    if asked.is_over {
        login.note_waited();
    }
    asked.result
}

/// Puts this process into a PAG in place of another one, or takes it out.
fn enter(pag: Option<u32>) -> Result<(), String> {
    let groups = nix::unistd::getgroups().map_err(|error| error.to_string())?;
    let groups: Vec<_> = in_pag(groups.into_iter().map(nix::unistd::Gid::as_raw), pag).collect();
    sys::set_groups(&groups).map_err(|error| format!("setting the groups: {error}"))
}

/// True if a group is that of a PAG (docs/decisions/0007-pags.md).
const fn is_pag(group: u32) -> bool {
    group >> 24 == 0x41
}

/// Groups with that of a PAG, or without, in place of another PAG's.
fn in_pag(groups: impl Iterator<Item = u32>, pag: Option<u32>) -> impl Iterator<Item = u32> {
    groups.filter(|group| !is_pag(*group)).chain(pag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_login_is_in_one_pag() {
        let groups: Vec<_> = in_pag([4, 0x4100_0007, 100].into_iter(), Some(0x4100_0009)).collect();
        assert_eq!(groups, [4, 100, 0x4100_0009]);
        assert!(!is_pag(0x4200_0000));
        assert_eq!(in_pag(groups.into_iter(), None).collect::<Vec<_>>(), [4, 100]);
    }

    #[test]
    fn options_are_words_and_unknown_ones_are_told() {
        let words = ["debug", "program=/a", "socket=/b", "always_aklog", "minimum_uid=x", "nopag=1"];
        let options = Options::parse(words.into_iter());
        assert_eq!((options.program.as_path(), options.socket), (Path::new("/a"), Some("/b".into())));
        assert!(options.always_aklog && !options.nopag);
        assert_eq!(options.unknown, ["debug", "minimum_uid=x", "nopag=1"]);
        if rustix::process::geteuid().is_root() {
            let login = plain(None);
            assert_eq!(serve(&login, Request::Begin, &Options::parse(["debug"].into_iter())), Ok(false));
            assert_eq!(*login.logged.borrow(), ["the option 'debug' is not known, and does nothing"]);
        }
    }

    #[test]
    fn users_who_are_to_be_left_alone_are() {
        let is_for = |words: &[&str]| {
            let options = Options::parse(words.iter().copied());
            assert!(options.unknown.is_empty(), "{words:?}");
            [0, 999, 1000].map(|uid| options.is_for(uid))
        };
        assert_eq!(is_for(&[]), [true; 3]);
        assert_eq!(is_for(&["ignore_root", "retain_after_close", "nopag"]), [false, true, true]);
        assert_eq!(is_for(&["minimum_uid=1000"]), [false, false, true]);
    }

    /// One who logs in, with the tickets that there are so far.
    struct Plain {
        pag: Cell<Option<u32>>,
        tickets: Option<&'static str>,
        has_tokens: Cell<bool>,
        has_waited: Cell<bool>,
        logged: RefCell<Vec<String>>,
    }

    fn plain(pag: Option<u32>) -> Plain {
        let (pag, logged) = (Cell::new(pag), RefCell::default());
        Plain { pag, tickets: None, has_tokens: Cell::new(false), has_waited: Cell::new(false), logged }
    }

    impl Login for Plain {
        fn user(&self) -> Option<nix::unistd::User> {
            nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap()
        }

        fn pag(&self) -> Option<u32> {
            self.pag.get()
        }

        fn has_tokens(&self) -> bool {
            self.has_tokens.get()
        }

        fn note_tokens(&self) {
            self.has_tokens.set(true);
        }

        fn has_waited(&self) -> bool {
            self.has_waited.get()
        }

        fn note_waited(&self) {
            self.has_waited.set(true);
        }

        fn set_pag(&self, group: u32) -> bool {
            self.pag.set(Some(group));
            true
        }

        fn environment(&self) -> Vec<(String, String)> {
            self.tickets.map(|at| ("KRB5CCNAME".to_owned(), at.to_owned())).into_iter().collect()
        }

        fn log(&self, text: &str) {
            self.logged.borrow_mut().push(text.to_owned());
        }
    }

    fn options(program: &str, socket: &Path) -> Options {
        let words = [format!("program={program}"), format!("socket={}", socket.display())];
        Options { patience: Duration::from_secs(60), ..Options::parse(words.iter().map(String::as_str)) }
    }

    /// A socket at which requests are taken and, by the answers, answered.
    struct Served {
        path: PathBuf,
        asked: Arc<Mutex<Vec<u32>>>,
    }

    impl Served {
        /// A client that answers each procedure so; without an answer, it hangs.
        fn new(name: &str, answer: impl Fn(u32) -> Option<Vec<u8>> + Send + 'static) -> Self {
            let path = std::env::temp_dir().join(format!("pam-afar-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
            let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
            let list = Arc::clone(&asked);
            std::thread::spawn(move || {
                let mut held = Vec::new();
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    loop {
                        let mut length = [0; 4];
                        if stream.read_exact(&mut length).is_err() {
                            break;
                        }
                        let mut request = vec![0; u32::from_be_bytes(length) as usize];
                        stream.read_exact(&mut request).unwrap();
                        let procedure = u32::from_be_bytes(*request.first_chunk().unwrap());
                        Mutex::lock(&list).unwrap().push(procedure);
                        let Some(answer) = answer(procedure) else {
                            held.push(stream);
                            break;
                        };
                        let answer = [&[0; 4][..], &answer].concat();
                        stream.write_all(&afs_wire::control::framed(&answer)).unwrap();
                    }
                }
            });
            Self { path, asked }
        }

        /// A client that makes PAGs and has no token.
        fn client(name: &str) -> Self {
            Self::new(name, |procedure| {
                Some(match procedure {
                    NEW_PAG => PAG.to_be_bytes().to_vec(),
                    GET_CALLER => vec![0; 8],
                    LIST_TOKENS => vec![0; 4],
                    _ => Vec::new(),
                })
            })
        }

        fn count(&self, procedure: u32) -> usize {
            self.asked.lock().unwrap().iter().filter(|asked| **asked == procedure).count()
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    const PAG: u32 = 0x4100_0001;
    const LIST_TOKENS: u32 = 60;
    const NEW_PAG: u32 = 67;
    const END_PAG: u32 = 68;
    const GET_CALLER: u32 = 71;

    /// Logins without tickets were in a PAG without tokens: root by sudo was nobody in a mount with `--localauth`.
    #[test]
    fn a_login_without_tickets_is_in_no_pag() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let client = Served::client("no-tickets");
        let options = |program: &str| options(program, &client.path);
        let mut login = plain(None);
        assert_eq!(serve(&login, Request::Begin, &options("/bin/true")), Ok(false));
        assert_eq!((login.pag(), client.count(NEW_PAG)), (None, 0), "nobody is asked for a PAG");
        // Nor is one in which aklog has got nothing.
        login.tickets = Some("FILE:/tmp/x");
        assert!(serve(&login, Request::Begin, &options("/bin/false")).is_err());
        assert_eq!((login.pag(), client.count(NEW_PAG), client.count(END_PAG)), (None, 1, 1));
        // The tickets may come with the session.
        assert_eq!(serve(&login, Request::Begin, &options("/bin/true")), Ok(true));
        assert_eq!(login.pag(), Some(PAG));
        assert_eq!(serve(&login, Request::Begin, &options("/bin/false")), Ok(true), "once is enough");
        assert!(serve(&login, Request::Renew, &options("/bin/false")).is_err(), "but for new ones");
        assert_eq!(login.pag(), Some(PAG), "and the PAG stays");
        assert_eq!(serve(&login, Request::End, &options("/bin/false")), Ok(true));
        assert_eq!((client.count(NEW_PAG), client.count(END_PAG)), (2, 2));
    }

    #[test]
    fn without_a_pag_tokens_are_the_users_and_stay_after_the_session() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let client = Served::client("nopag");
        let options = Options { nopag: true, ..options("/bin/true", &client.path) };
        let login = Plain { tickets: Some("FILE:/tmp/x"), ..plain(None) };
        assert_eq!(serve(&login, Request::Begin, &options), Ok(true));
        assert_eq!((login.pag(), login.has_tokens()), (None, true));
        assert_eq!(serve(&login, Request::End, &options), Ok(false));
        assert_eq!([NEW_PAG, END_PAG].map(|procedure| client.count(procedure)), [0, 0]);
    }

    /// `nohup`, tmux and screen lost their token with the logout.
    #[test]
    fn what_is_left_of_a_session_keeps_its_tokens_if_that_is_wanted() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let client = Served::client("retain");
        let options = Options { retain_after_close: true, ..options("/bin/true", &client.path) };
        let login = Plain { tickets: Some("FILE:/tmp/x"), ..plain(None) };
        assert_eq!(serve(&login, Request::Begin, &options), Ok(true));
        assert_eq!(serve(&login, Request::End, &options), Ok(true));
        assert_eq!((login.pag(), client.count(END_PAG)), (Some(PAG), 0));
    }

    /// Each of a login's three requests waited anew for a client that hung, and the log said "Resource temporarily unavailable".
    #[test]
    fn a_client_that_hangs_is_waited_for_once_in_a_login() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let client = Served::new("hangs", |_| None);
        let options = Options { patience: Duration::from_millis(300), ..options("/bin/true", &client.path) };
        let login = Plain { tickets: Some("FILE:/tmp/x"), ..plain(None) };
        assert!(serve(&login, Request::Begin, &options).is_err());
        assert!(login.has_waited());
        let logged = login.logged.borrow().join("\n");
        assert!(logged.contains("has not answered in time"), "{logged}");
        for request in [Request::Begin, Request::Renew, Request::End] {
            assert_eq!(serve(&login, request, &options), Ok(false));
        }
        assert_eq!(client.asked.lock().unwrap().len(), 1);
    }

    #[test]
    fn where_no_client_answers_a_login_goes_on_without_a_pag() {
        let options = options("/bin/true", Path::new("/nonexistent/socket"));
        let is_root = rustix::process::geteuid().is_root();
        let login = Plain { tickets: Some("FILE:/tmp/x"), ..plain(None) };
        let refused = serve(&login, Request::Begin, &options);
        if is_root {
            assert!(refused.is_err());
            assert!(login.logged.borrow()[0].contains("/nonexistent"), "{:?}", login.logged);
        } else {
            assert_eq!(refused, Ok(false));
        }
        assert_eq!(serve(&plain(None), Request::End, &options), Ok(false), "it has none that could end");
    }
}
