//! The service for which a ticket is asked. The name of a cell says nothing of the realm whose KDC has its key, so a few are tried, one
//! after the other, in the order of OpenAFS's aklog.

use std::fmt;

/// Codes of libkrb5 that decide what is done next.
pub mod codes {
    /// The KDC has no such service.
    pub const SERVICE_UNKNOWN: i32 = -1_765_328_377;
    /// The KDC refuses in a way that it has no words for.
    pub const GENERIC: i32 = -1_765_328_324;
    /// There is no such key in a keytab.
    pub const NOT_IN_KEYTAB: i32 = -1_765_328_203;
    /// An answer of a kind that was not asked for.
    pub const MESSAGE_TYPE: i32 = -1_765_328_344;
    /// There is no credential in the cache, and none can be had.
    pub const NO_CREDENTIAL: i32 = -1;
    /// The clocks of the two machines are too far apart.
    pub const CLOCK_SKEW: i32 = -1_765_328_347;
    /// The ticket has ended.
    pub const EXPIRED: i32 = -1_765_328_352;
    /// No KDC of a realm answers.
    pub const KDC_UNREACHABLE: i32 = -1_765_328_228;
    /// There is no such cache.
    pub const NO_CACHE: i32 = -1_765_328_189;
    /// The ticket is not good yet.
    pub const NOT_YET_VALID: i32 = -1_765_328_351;
}

/// The facts that are known before anything is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search<'a> {
    /// The cell's full name.
    pub cell: &'a str,
    /// The realm of the user.
    pub user_realm: &'a str,
    /// The host name of the cell's first database server, if it is known.
    pub server: Option<&'a str>,
    /// The realm of that host by krb5.conf; empty if that does not say: then the KDC may.
    pub server_realm: Option<&'a str>,
    /// The realm that the user says: no other is tried.
    pub given_realm: Option<&'a str>,
}

/// A principal of AFS's servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The cell's name behind `afs/`; without one, the name is `afs` alone.
    pub cell: Option<String>,
    /// Its realm; empty where the KDC is to say.
    pub realm: String,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cell {
            Some(cell) => write!(f, "afs/{cell}@{}", self.realm),
            None => write!(f, "afs@{}", self.realm),
        }
    }
}

/// The service with which a cell's tokens of rxgk are negotiated, in a realm (rxgk notes 7.1).
pub fn negotiation(cell: &str, realm: &str) -> String {
    format!("afs-rxgk/_afs.{cell}@{realm}")
}

impl Search<'_> {
    /// The services to ask for, in order, until one is there. None twice, and always one.
    pub fn services(&self) -> Vec<Service> {
        let mut realms: Vec<String> = Vec::new();
        match self.given_realm {
            Some(realm) => realms.push(realm.to_owned()),
            None => {
                realms.push(self.user_realm.to_owned());
                if let Some(realm) = self.server_realm {
                    realms.push(realm.to_owned());
                }
                // If krb5.conf says nothing of the host, its domain in capitals is the usual name.
                if self.server_realm.is_none_or(str::is_empty) {
                    let domain = self.server.and_then(|host| host.split_once('.')).map(|(_, domain)| domain);
                    realms
                        .push(domain.filter(|domain| !domain.is_empty()).unwrap_or(self.cell).to_uppercase());
                }
            }
        }
        let last = realms.last().cloned().unwrap_or_default();
        let mut services: Vec<Service> = Vec::new();
        for realm in realms {
            let service = Service { cell: Some(self.cell.to_owned()), realm };
            if !services.contains(&service) {
                services.push(service);
            }
        }
        if last.eq_ignore_ascii_case(self.cell) {
            services.push(Service { cell: None, realm: last });
        }
        services
    }
}

/// True if the next service is worth a try after this failure: the KDC does not know this one.
pub fn may_be_another(code: i32) -> bool {
    matches!(code, codes::SERVICE_UNKNOWN | codes::NOT_IN_KEYTAB | codes::GENERIC | codes::NO_CREDENTIAL)
}

/// True if any other service would fail in the same way: it is the user's tickets, the clock or the network.
pub fn is_of_every_service(code: i32) -> bool {
    use codes::{CLOCK_SKEW, EXPIRED, KDC_UNREACHABLE, NO_CACHE, NOT_YET_VALID};
    matches!(code, CLOCK_SKEW | EXPIRED | KDC_UNREACHABLE | NO_CACHE | NOT_YET_VALID)
}

/// Advice to the user about a failure, where the library's words do not say it.
pub fn advice(code: i32) -> Option<&'static str> {
    Some(match code {
        codes::CLOCK_SKEW => {
            "the clock of this machine differs from the KDC's: compare 'date' on both, and set the clock"
        }
        codes::NOT_YET_VALID => {
            "your Kerberos ticket is not valid yet: 'klist' shows from when on it is; if that is past, set this machine's clock"
        }
        codes::EXPIRED => "your Kerberos ticket has expired: run 'kinit' first",
        codes::NO_CACHE => "you have no Kerberos tickets: run 'kinit' first",
        codes::KDC_UNREACHABLE => {
            "no Kerberos server answers: check the network and the realm's 'kdc' in /etc/krb5.conf"
        }
        codes::SERVICE_UNKNOWN => "that realm has no key for this cell: name the cell's realm with -k",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(search: Search<'_>, want: &[&str]) {
        let services: Vec<String> = search.services().iter().map(ToString::to_string).collect();
        assert_eq!(services, want, "{search:?}");
    }

    const LAB: Search<'static> = Search {
        cell: "lab.test",
        user_realm: "LAB.TEST",
        server: Some("db1.lab.test"),
        server_realm: Some("LAB.TEST"),
        given_realm: None,
    };

    #[test]
    fn the_users_realm_is_asked_first_and_the_old_name_last() {
        check(LAB, &["afs/lab.test@LAB.TEST", "afs@LAB.TEST"]);
        let other = Search { user_realm: "OTHER.TEST", ..LAB };
        check(other, &["afs/lab.test@OTHER.TEST", "afs/lab.test@LAB.TEST", "afs@LAB.TEST"]);
    }

    #[test]
    fn where_nobody_knows_the_realm_the_kdc_is_asked_and_then_the_domain_is_tried() {
        let unknown = Search { user_realm: "OTHER.TEST", server_realm: Some(""), ..LAB };
        check(
            unknown,
            &["afs/lab.test@OTHER.TEST", "afs/lab.test@", "afs/lab.test@LAB.TEST", "afs@LAB.TEST"],
        );
        let elsewhere = Search { server: Some("db1.hosts.example"), ..unknown };
        check(elsewhere, &["afs/lab.test@OTHER.TEST", "afs/lab.test@", "afs/lab.test@HOSTS.EXAMPLE"]);
        for server in [Some("db1"), Some("db1."), None] {
            let services = Search { server, ..unknown }.services();
            assert_eq!(services[2].to_string(), "afs/lab.test@LAB.TEST", "{server:?}");
        }
    }

    #[test]
    fn a_realm_that_is_given_is_the_only_one() {
        check(Search { given_realm: Some("ONE.TEST"), ..LAB }, &["afs/lab.test@ONE.TEST"]);
        check(Search { given_realm: Some("Lab.Test"), ..LAB }, &["afs/lab.test@Lab.Test", "afs@Lab.Test"]);
    }

    #[test]
    fn only_an_unknown_service_leads_to_the_next() {
        for code in [codes::SERVICE_UNKNOWN, codes::GENERIC, codes::NOT_IN_KEYTAB, codes::NO_CREDENTIAL] {
            assert!(may_be_another(code) && !is_of_every_service(code), "{code}");
        }
        for code in [codes::CLOCK_SKEW, codes::EXPIRED, codes::KDC_UNREACHABLE, codes::MESSAGE_TYPE, 0] {
            assert!(!may_be_another(code), "{code}");
        }
        assert!(is_of_every_service(codes::EXPIRED) && is_of_every_service(codes::KDC_UNREACHABLE));
    }

    #[test]
    fn a_clock_that_is_off_is_said_to_be_off() {
        assert!(advice(codes::CLOCK_SKEW).is_some_and(|text| text.contains("clock")));
        assert_eq!(advice(0), None);
    }
}
