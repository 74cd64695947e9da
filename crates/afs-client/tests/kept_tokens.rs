//! Tokens over a restart of the client: who has theirs again, who has not, and what is made of files that others could have written.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use afs_client::users::Holder;
use afs_client::{Client, Config, Pag, User};
use afs_config::{CellName, CellServDb};
use afs_lab::real::folder::Folder;
use rx_security::keys::EncType;
use rx_security::rxgk::{Dialect, RxgkTime, Secret};
use rx_security::ticket::SessionKey;
use rx_security::{Token, UnixTime, rxgk};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const ALICE: User = User::of(1);
const CAROL: User = User::of(3);

/// A folder of tokens.
struct Kept(Folder);

impl Kept {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        Self(folder)
    }

    fn names(&self) -> Vec<String> {
        let names =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// A client that knows these cells, and keeps tokens there. Whoever drops it has killed it.
    async fn client(&self, cells: &str, alive: &[Pag]) -> Client {
        let client = client(cells).await;
        self.keep(&client, alive).unwrap();
        client
    }

    fn keep(&self, client: &Client, alive: &[Pag]) -> io::Result<()> {
        let owner = fs::metadata(&self.0).unwrap().uid();
        client.keep_tokens(&self.0, owner, &alive.iter().copied().collect())
    }
}

async fn client(cells: &str) -> Client {
    let text: String = cells.split(' ').map(|cell| format!(">{cell} #\n192.0.2.1 #a\n")).collect();
    let cells = CellServDb::parse(&text, Path::new("F")).unwrap();
    let mut config = Config::new(CellName::new("one.test").unwrap(), cells);
    config.bind = ([127, 0, 0, 1], 0).into();
    Client::start(config).await.unwrap()
}

/// Gives somebody a token that is good for so long, with the name in its key.
fn log_in(client: &Client, user: User, cell: &str, name: &str, seconds: i64) {
    let now = i64::from(UnixTime::of(client.runtime().wall_clock()).0);
    let time = |seconds| UnixTime(u32::try_from(now + seconds).unwrap());
    let mut key = [0; 8];
    key[..name.len()].copy_from_slice(name.as_bytes());
    let (session_key, ticket) = (SessionKey::new(key), vec![name.as_bytes()[0]; 100]);
    let token = Token { session_key, ticket, kvno: 256, start: time(-1000), end: time(seconds) };
    client.log_in(user, cell, holder(name), token, false).unwrap();
}

fn holder(name: &str) -> Holder {
    Holder { name: name.to_owned(), id: None }
}

/// Returns a user's name in a cell, and the key of the token that they hold.
fn held(client: &Client, user: User, cell: &str) -> Option<(String, Token)> {
    client.held_token(user, cell).map(|(holder, token)| (holder.name, (*token).clone()))
}

/// Each start of the client took everybody's tokens away.
#[tokio::test]
async fn users_have_their_tokens_again_after_the_client_was_killed() {
    let folder = Kept::new("again");
    let first = folder.client("one.test two.test", &[]).await;
    let [open, over] = [(), ()].map(|()| first.make_pag(2).unwrap());
    let [open_s, over_s] = [open, over].map(|pag| User { uid: 2, pag: Some(pag) });
    log_in(&first, ALICE, "one.test", "old", 1000);
    log_in(&first, ALICE, "one.test", "alice", 1000);
    log_in(&first, ALICE, "two.test", "expired", -10);
    log_in(&first, CAROL, "one.test", "carol", 1000);
    log_in(&first, CAROL, "two.test", "carol", 1000);
    for session in [open_s, over_s] {
        log_in(&first, session, "one.test", "bob", 1000);
    }
    let two = first.tokens(CAROL).last().unwrap().cell;
    assert_eq!(first.log_out(CAROL, Some(two)), 1);
    let before = [ALICE, CAROL, open_s].map(|user| held(&first, user, "one.test"));
    drop(first);

    let second = folder.client("one.test two.test", &[open]).await;
    let tokens = [ALICE, CAROL, open_s, over_s].map(|user| held(&second, user, "one.test"));
    let [alice, carol, bob] = before;
    assert_eq!(tokens, [alice, carol, bob, None]);
    let of_two = [ALICE, CAROL].map(|user| held(&second, user, "two.test"));
    assert_eq!(of_two, [None, None], "one has expired, the other was thrown away");
    assert_eq!(second.user(2, 2, [open.group()].into_iter()), open_s, "it is the session's PAG still");
    second.log_out(CAROL, None);
    second.end_pag(open_s);
    drop(second);

    let third = folder.client("one.test two.test", &[open]).await;
    let tokens = [ALICE, CAROL, open_s].map(|user| third.tokens(user).len());
    assert_eq!(tokens, [1, 0, 0]);
    assert_eq!(folder.names(), ["1.0.one.test"]);
}

/// A token of rxgk that has none of rxkad beside it.
#[tokio::test]
async fn a_token_of_rxgk_alone_is_there_again_after_the_client_was_killed() {
    let folder = Kept::new("rxgk");
    let first = folder.client("one.test", &[]).await;
    let end = |seconds: i64| {
        let now = i64::from(UnixTime::of(first.runtime().wall_clock()).0);
        RxgkTime::of(UnixTime(u32::try_from(now + seconds).unwrap()))
    };
    let token = |seconds| rxgk::Token {
        dialect: Dialect::OURS,
        secret: Secret::new(EncType::AES256, &[7; 32]).unwrap(),
        level: rx_security::Level::Crypt,
        lifetime: 1000,
        bytelife: 20,
        end: end(seconds),
        token: vec![9; 100],
    };
    for (user, name, seconds) in [(ALICE, "alice", 1000), (CAROL, "carol", -10)] {
        first.log_in_by_rxgk_alone(user, "one.test", holder(name), token(seconds)).await.unwrap();
    }
    let (before, tokens) = (first.held_rxgk(ALICE, "one.test").unwrap(), first.tokens(ALICE));
    drop(first);
    let second = folder.client("one.test", &[]).await;
    assert_eq!(second.held_rxgk(ALICE, "one.test"), Some(before));
    assert_eq!((second.held_token(ALICE, "one.test"), second.tokens(ALICE)), (None, tokens));
    assert_eq!(second.held_rxgk(CAROL, "one.test"), None, "it has ended");
    assert_eq!(folder.names(), ["1.0.one.test"]);
}

#[tokio::test]
async fn a_token_for_a_cell_that_is_not_known_yet_can_be_thrown_away() {
    let folder = Kept::new("unknown");
    let first = folder.client("one.test two.test", &[]).await;
    for user in [ALICE, CAROL] {
        log_in(&first, user, "two.test", "name", 1000);
    }
    drop(first);
    let second = folder.client("one.test", &[]).await;
    second.log_out(CAROL, None);
    drop(second);
    let third = folder.client("one.test two.test", &[]).await;
    assert_eq!([ALICE, CAROL].map(|user| third.tokens(user).len()), [1, 0]);
}

#[tokio::test]
async fn a_file_that_others_can_have_written_gives_nobody_a_token() {
    let folder = Kept::new("others");
    let first = folder.client("one.test", &[]).await;
    log_in(&first, ALICE, "one.test", "alice", 1000);
    drop(first);
    let good = fs::read(folder.0.join("1.0.one.test")).unwrap();
    let elsewhere = folder.0.with_extension("elsewhere");
    fs::write(&elsewhere, &good).unwrap();
    let refill = |name: &str, bytes: &[u8], mode| {
        fs::write(folder.0.join(name), bytes).unwrap();
        fs::set_permissions(folder.0.join(name), Permissions::from_mode(mode)).unwrap();
    };
    let file = folder.0.join("1.0.one.test");
    let cases: [(&str, &dyn Fn()); 7] = [
        ("a link", &|| symlink(&elsewhere, &file).unwrap()),
        ("another name", &|| fs::hard_link(&elsewhere, &file).unwrap()),
        ("one that others may read", &|| refill("1.0.one.test", &good, 0o640)),
        ("another user's", &|| refill("3.0.one.test", &good, 0o600)),
        ("one that was cut off", &|| refill("1.0.one.test", &good[..good.len() - 1], 0o600)),
        ("a longer one", &|| refill("1.0.one.test", &[&good[..], &[0; 100_000]].concat(), 0o600)),
        ("one that is not complete", &|| refill(".new", &good, 0o600)),
    ];
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o600)).unwrap();
    for (what, make) in cases {
        fs::remove_file(&file).ok();
        make();
        let client = folder.client("one.test", &[]).await;
        assert_eq!([ALICE, CAROL].map(|user| client.tokens(user).len()), [0, 0], "{what}");
        assert_eq!(folder.names(), Vec::<String>::new(), "{what}");
    }
    fs::remove_file(&elsewhere).unwrap();
    refill("1.0.one.test", &good, 0o600);
    fs::set_permissions(&folder.0, Permissions::from_mode(0o750)).unwrap();
    let refused = folder.keep(&client("one.test").await, &[]).unwrap_err();
    assert!(refused.to_string().contains("nobody else may enter"), "{refused}");
}

#[tokio::test]
async fn a_user_with_very_many_tokens_fills_no_folder() {
    let folder = Kept::new("many");
    let client = folder.client("one.test", &[]).await;
    log_in(&client, ALICE, "one.test", "alice", 1000);
    let sessions: Vec<_> =
        (0..70).map(|_| User { uid: CAROL.uid, pag: Some(client.make_pag(CAROL.uid).unwrap()) }).collect();
    for session in &sessions {
        log_in(&client, *session, "one.test", "carol", 1000);
    }
    assert_eq!(folder.names().len(), 65);
    drop(client);
    let alive: Vec<_> = sessions.iter().filter_map(|session| session.pag).collect();
    let client = folder.client("one.test", &alive).await;
    let has_one = |session: &User| client.tokens(*session).len() == 1;
    assert!(!sessions[..6].iter().any(has_one) && sessions[6..].iter().all(has_one), "the newest");
    assert!(has_one(&ALICE));
}

/// Counts the warnings of a thread.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && !metadata.is_span()
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Each start of a client in a container without a tmpfs at /run warned of tokens, though nobody had any.
#[tokio::test]
async fn that_tokens_are_not_kept_is_told_once_and_only_where_somebody_has_one() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let client = client("one.test two.test").await;
    client.keep_no_tokens(io::ErrorKind::Unsupported.into());
    assert_eq!(warnings.count(), 0);
    for (user, cell) in [(ALICE, "one.test"), (ALICE, "two.test"), (CAROL, "one.test")] {
        log_in(&client, user, cell, "them", 1000);
        assert_eq!(warnings.count(), 1, "{cell}");
    }
}
