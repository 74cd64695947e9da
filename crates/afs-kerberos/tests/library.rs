//! The real library, where there is one: what it gives is what a KDC has made, so the structures that are shared with it are as they are
//! taken to be.

use afs_kerberos::services::codes;
use afs_kerberos::{Kerberos, Principal, TicketLife, Unusable};
use afs_lab::peers::kdc::{self, Kdc, PASSWORD, Realm};
use afs_lab::real::address::own_address;
use afs_lab::real::folder::Folder;
use afs_lab::skipped::skip;
use rx_security::KeySet;
use rx_security::ticket::{KVNO_TICKET, NameRules, open};
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::Zeroizing;

/// In a process of its own, as the environment says where krb5.conf is: the test below runs itself.
const INSIDE: &str = "AFS_KERBEROS_INSIDE";

#[test]
fn a_ticket_of_the_library_opens_with_the_services_key() {
    const NAME: &str = "a_ticket_of_the_library_opens_with_the_services_key";
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Err(why) = kdc::available() {
        return skip(NAME, &why);
    }
    let folder = Folder::new("kerberos");

    let address = own_address();
    let kdc = Kdc::start(&folder, &Realm { name: "LAB.TEST", address, more: "" }).unwrap();
    kdc.add_user("alice/admin").unwrap();
    kdc.add_service("afs/lab.test", "aes256-cts", &folder.join("keytab")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    kdc.prepare(&mut command);
    let output = command
        .env(INSIDE, &folder)
        .args(["--exact", &format!("library::{NAME}"), "--nocapture"])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    drop(kdc);
}

/// Seconds since 1970.
fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn inside() {
    let folder = PathBuf::from(std::env::var_os(INSIDE).unwrap());
    let kerberos = Kerberos::open().unwrap();
    assert_eq!(kerberos.default_realm().unwrap(), "LAB.TEST");
    assert_eq!(kerberos.host_realm("db1.lab.test").unwrap(), "", "krb5.conf says nothing of it");
    let none = kerberos.default_cache().unwrap();
    assert_eq!(none.principal().unwrap_err().code, codes::NO_CACHE);
    let password = |text: &str| Zeroizing::new(text.to_owned());
    let life = TicketLife { seconds: Some(3600), renewable_seconds: Some(7200) };
    let wrong = kerberos.log_in_by_password("alice/admin", Some(&password("no")), life).unwrap_err();
    assert!(!wrong.text.is_empty(), "{wrong:?}");
    let before = now();
    let mut first = kerberos.log_in_by_password("alice/admin", Some(&password(PASSWORD)), life).unwrap();
    let after = now();
    let ticket = first.ticket().unwrap();
    assert_eq!(ticket.client, "alice/admin@LAB.TEST");
    assert_eq!(ticket.server, "krbtgt/LAB.TEST@LAB.TEST");
    // The library says until when and the KDC from when on: a second may begin between the two.
    for second in [ticket.start, ticket.end - 3600, ticket.renewable_until - 7200] {
        assert!((before..=after).contains(&second), "{second} is not in {before}..={after}");
    }

    let cache = kerberos.new_cache("MEMORY").unwrap();
    cache.begin_with(&mut first).unwrap();
    assert_eq!(cache.principal().unwrap(), "alice/admin@LAB.TEST");
    let service = cache.ticket("afs/lab.test@LAB.TEST").unwrap();
    assert_eq!(service.server, "afs/lab.test@LAB.TEST");
    let token = service.token().unwrap();
    assert_eq!(token.kvno, KVNO_TICKET);
    let keys = KeySet::parse_keytab(&std::fs::read(folder.join("keytab")).unwrap()).unwrap();
    let opened = open(&keys, token.kvno, &token.ticket, token.start, NameRules::default()).unwrap();
    assert_eq!((opened.name.as_str(), opened.instance.as_str()), ("alice", "admin"));
    assert_eq!(opened.realm, "LAB.TEST");
    assert_eq!(opened.session_key, token.session_key, "client and server derive one key");
    assert_eq!((opened.start, opened.end), (token.start, token.end));
    let user = Principal::parse(&service.client).unwrap();
    assert_eq!(user.name_in_cell("LAB.TEST").as_deref(), Some("alice.admin"));

    assert_eq!(cache.ticket("afs/other.test@LAB.TEST").unwrap_err().code, codes::SERVICE_UNKNOWN);
    assert!(cache.ticket("afs/lab.test\0@LAB.TEST").is_err());
    let renewed = cache.renewed().unwrap().ticket().unwrap();
    assert!(renewed.end >= ticket.end && renewed.renewable_until == ticket.renewable_until);
}

#[test]
fn a_machine_without_the_library_is_told_what_to_install() {
    if let Err(error) = Kerberos::open() {
        assert!(matches!(error, Unusable::Missing(_)), "{error}");
        assert!(error.to_string().contains("apt-get install libkrb5-3"));
    }
}
