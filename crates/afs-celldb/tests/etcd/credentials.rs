//! What an etcd wants to see before it answers, certificates and passwords, and what servers do when one of them changes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afs_celldb::store::etcd::{Config, Credentials, EtcdStore, Password, Tls};
use afs_celldb::store::{CellStore, check_changes};
use afs_lab::peers::etcd::{Etcd, is_here};
use afs_lab::require;
use afs_lab::skipped::skip_this;

use super::{SOON, eventually, has, made, open_with, take, taken, within};

fn password(user: &str, password: &str) -> Option<Password> {
    Some(Password { user: user.into(), password: password.to_owned().into() })
}

/// The certificates that are in an etcd's folder now.
fn tls_in(folder: &Path) -> Result<Tls, String> {
    let read = |name: &str| fs::read(folder.join(name)).map_err(|error| format!("{name}: {error}"));
    Ok(Tls {
        authorities: read("ca.pem")?,
        identity: Some((read("client.pem")?, read("client.key")?.into())),
    })
}

fn reach(
    endpoints: Vec<String>,
    prefix: &str,
    credentials: impl Fn() -> Result<Credentials, String> + Send + Sync + 'static,
) -> Arc<EtcdStore> {
    let config = Config { endpoints, prefix: prefix.into(), credentials: Arc::new(credentials) };
    Arc::new(EtcdStore::new(config).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_may_want_certificates_and_a_password() {
    require!(is_here());
    if !std::path::Path::new("/usr/bin/openssl").exists() {
        return skip_this("there is no openssl, which makes the certificates");
    }
    let etcd = Etcd::start_with_certificates("secret", 1);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "afar:afar-secret"],
        &["role", "add", "cell"],
        &["role", "grant-permission", "cell", "readwrite", "--prefix=true", "/afar/a.cell/"],
        &["user", "grant-role", "afar", "cell"],
        &["user", "add", "reader:reader-secret"],
        &["role", "add", "looks"],
        &["role", "grant-permission", "looks", "read", "--prefix=true", "/afar/a.cell/"],
        &["user", "grant-role", "reader", "looks"],
        &["auth", "enable"],
    ] {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    }
    let tls = || tls_in(etcd.folder()).unwrap();
    let reach_as = |user: &str, tls, secret: &str, prefix: &str| {
        let given = Credentials { tls: Some(tls), password: password(user, secret) };
        reach(etcd.endpoints(), prefix, move || Ok(given.clone()))
    };
    let reach = |tls, secret: &str, prefix: &str| reach_as("afar", tls, secret, prefix);
    let good = reach(tls(), "afar-secret", "/afar/a.cell/");
    let vldb = open_with(good.clone(), Duration::from_secs(3600)).await;
    let id = taken(&vldb).await;
    made(&vldb, id).await;
    assert!(has(&vldb, id).await);

    // A user that may only look is found out without a change, and one that may change changes nothing.
    let reader = reach_as("reader", tls(), "reader-secret", "/afar/a.cell/");
    let rows = good.scan(b"", None, 4096, None).await.unwrap().rows;
    check_changes(&*good).await.unwrap();
    assert_eq!(reader.scan(b"", None, 4096, None).await.unwrap().rows, rows);
    let refused = check_changes(&*reader).await.unwrap_err();
    assert!(refused.reason.contains("permission denied"), "{refused}");

    for (bad, why) in [
        (reach(tls(), "afar-secret", "/afar/b.cell/"), "permission denied"),
        (reach(tls(), "wrong", "/afar/a.cell/"), "authentication failed"),
        (reach(Tls { identity: None, ..tls() }, "afar-secret", "/afar/a.cell/"), ""),
    ] {
        // On a busy machine it may take some attempts until etcd says why.
        eventually(why, async || bad.read(b"x").await.unwrap_err().reason.contains(why)).await;
    }
}

/// Certificates end: a server that read them only when it started would one day reach etcd no more, as would one whose etcd has got a new
/// authority.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_replaced_need_no_restart() {
    require!(is_here());
    if !Path::new("/usr/bin/openssl").exists() {
        return skip_this("there is no openssl, which makes the certificates");
    }
    let mut etcd = Etcd::start_with_certificates("replaced", 1);
    let (folder, secret) = (etcd.folder().to_owned(), etcd.folder().join("password"));
    fs::write(&secret, "first").unwrap();
    let control = |etcd: &Etcd, command: &[&str]| {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    };
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "afar:first"],
        &["user", "grant-role", "afar", "root"],
        &["auth", "enable"],
    ] {
        control(&etcd, command);
    }
    let store = reach(etcd.endpoints(), "/afar/a.cell/", move || {
        let given = fs::read_to_string(&secret).map_err(|error| error.to_string())?;
        Ok(Credentials { tls: Some(tls_in(&folder)?), password: password("afar", &given) })
    });
    let vldb = open_with(store, Duration::from_secs(3600)).await;
    taken(&vldb).await;

    let as_root = ["--user", "root:secret"];
    control(&etcd, &[&as_root[..], &["user", "delete", "afar"]].concat());
    control(&etcd, &[&as_root[..], &["user", "add", "afar:second"]].concat());
    control(&etcd, &[&as_root[..], &["user", "grant-role", "afar", "root"]].concat());
    eventually("the old password is refused", async || take(&vldb).await.is_err()).await;
    fs::write(etcd.folder().join("password"), "second").unwrap();
    eventually("changes are taken with the new password", async || take(&vldb).await.is_ok()).await;

    etcd.kill(0);
    // Another authority signs the certificates of both.
    etcd.renew_certificates();
    etcd.restart(0);
    eventually("changes are taken with the new certificates", async || take(&vldb).await.is_ok()).await;

    // While a file is missing the connection in use goes on; a new one is made as soon as the file is back.
    let (key, aside) = (etcd.folder().join("client.key"), etcd.folder().join("aside"));
    fs::rename(&key, &aside).unwrap();
    taken(&vldb).await;
    etcd.kill(0);
    eventually("changes are refused", async || take(&vldb).await.is_err()).await;
    etcd.restart(0);
    etcd.wait_for(0);
    assert!(take(&vldb).await.is_err(), "there is no key for a connection");
    fs::rename(&aside, &key).unwrap();
    eventually("changes are taken when the key is back", async || take(&vldb).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_etcds_users_keeps_no_server_out() {
    let Some((etcd, store)) = etcd_with_passwords(10, 600) else { return };
    let control = |command: &[&str]| {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    };
    let vldb = open_with(store.clone(), Duration::from_secs(3600)).await;
    taken(&vldb).await;
    for user in ["one", "two"] {
        // From now on etcd takes no token from before.
        control(&["--user", "root:secret", "user", "add", &format!("{user}:{user}")]);
        within(SOON, "look-ups are answered", async || store.read(b"x").await.is_ok()).await;
        within(SOON, "changes are taken", async || take(&vldb).await.is_ok()).await;
        control(&["--user", "root:secret", "user", "delete", user]);
        eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
    }
}

/// Each question logged in for itself, and was given up after a second with its login: where a login takes longer, as when all servers
/// log in at once after an outage, no server ever came back.
#[tokio::test(flavor = "multi_thread")]
async fn logins_that_take_longer_than_a_question_do_not_keep_a_server_out() {
    let Some((mut etcd, store)) = etcd_with_slow_logins(600) else { return };
    let vldb = open_with(store, Duration::from_secs(3600)).await;
    taken(&vldb).await;
    etcd.kill(0);
    eventually("changes are refused", async || take(&vldb).await.is_err()).await;
    etcd.restart(0);
    etcd.wait_for(0);
    eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
}

/// The same where the token ends while the connection stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_does_not_keep_a_server_out_where_logins_take_long() {
    let Some((_etcd, store)) = etcd_with_slow_logins(10) else { return };
    let vldb = open_with(store, Duration::from_secs(3600)).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(25) {
        let _ = take(&vldb).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
}

/// The same where a login takes longer than a question, which is given up after a second, and less than a connection may: this machine says
/// at which cost.
fn etcd_with_slow_logins(seconds: u32) -> Option<(Etcd, Arc<EtcdStore>)> {
    for cost in 12.. {
        let (etcd, store) = etcd_with_passwords(cost, seconds)?;
        let login = |_| {
            let begun = Instant::now();
            // It gives a login up after 2 s.
            let _ = etcd.control(&["--user", "root:secret", "get", "x"]);
            begun.elapsed()
        };
        if (0..3).map(login).min() > Some(Duration::from_millis(1300)) {
            return Some((etcd, store));
        }
    }
    unreachable!("each cost is twice the one before")
}

/// An etcd of one member with a password, which it checks with this cost of bcrypt's, and with tokens that are good for so many seconds.
fn etcd_with_passwords(cost: u8, seconds: u32) -> Option<(Etcd, Arc<EtcdStore>)> {
    if !is_here() {
        return None;
    }
    if !std::path::Path::new("/usr/bin/openssl").exists() {
        return skip_this("there is no openssl, which makes the keys");
    }
    let etcd = Etcd::start_with_signed_tokens("passwords", 1, cost, seconds);
    let control = |command: &[&str]| {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    };
    control(&["user", "add", "root:secret"]);
    control(&["user", "grant-role", "root", "root"]);
    control(&["auth", "enable"]);
    let given = Credentials { tls: None, password: password("root", "secret") };
    let store = reach(etcd.endpoints(), "/afar/a.cell/", move || Ok(given.clone()));
    Some((etcd, store))
}
