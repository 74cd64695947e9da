//! From a Kerberos ticket to a token in the client: the steps of `aklog` for one cell, and of `klog`.

use super::cells::KnownCell;
use super::{kafs, status};
use crate::calls::Caller;
use crate::fs::client::{Client, Clients};
use crate::fs::errors::{ENOSPC, Failure};
use crate::login::{clock, has_rxgk};
use crate::output::harmless;
use crate::printer::{Printer, complain, say};
use afs_admin::negotiation::{Ticket as Shown, negotiate};
use afs_admin::ptdb::ProtectionDb;
use afs_admin::{DatabaseServers, Login as DatabaseLogin};
use afs_client::users::kept::given_rxgk;
use afs_kerberos::services::{self, Search, Service, codes};
use afs_kerberos::{Cache, Error, Kerberos, Principal, Ticket};
use afs_wire::Errno;
use afs_wire::control;
use afs_wire::ids::{AfsTime, Name, ViceId};
use afs_wire::rxgk::Rxgk;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_security::keys::EncType;
use rx_security::linux_key::Tokens;
use rx_security::rxgk::{self, Secret};
use rx_security::{Identity, KeySet, Level, Token, UnixTime, ticket};
use rxgen::xdr::Opaque;
use std::path::Path;
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// The time for which the protection database is waited for: without its answer there is a token all the same.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The default and the longest lifetime of the token of `-keytab`, in hours.
const DEFAULT_HOURS: u32 = 10;
const HOURS_MAX: u32 = 720;

/// The client's limit is in tokens of all PAGs together.
const TOO_MANY: &str =
    "you have too many tokens in all your sessions together; 'unlog' in one of them throws its tokens away";

/// The client is of a release before there were tokens of rxgk alone.
const TOO_OLD: &str = "it is of an older version, which takes no token of rxgk without a ticket for afs/CELL";

/// The longest ticket in bytes that OpenAFS's servers receive where the network carries packets of 1500 bytes (Security notes 2.3).
const OPENAFS_TICKET_MAX: usize = 8436;

/// The clocks of two machines may differ, so a ticket that is made here begins before.
const TICKET_AGE: Duration = Duration::from_secs(300);

/// It has failed, and what there is to say has been said: the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) u8);

/// One who logs in.
pub(crate) struct Login<'a> {
    pub(crate) printer: &'a Printer,
    /// The name of the program, for complaints.
    pub(crate) program: &'static str,
    /// The clients that are to have the tokens.
    pub(crate) clients: &'a Clients,
    /// The realm of the cell, if the user says it.
    pub(crate) given_realm: Option<&'a str>,
    /// True if the protection database is asked for numbers.
    pub(crate) asks_database: bool,
    /// True if a token is set that is there already.
    pub(crate) is_forced: bool,
    /// True if each step is told.
    pub(crate) says_all: bool,
    /// True if Linux's own client is to have the tokens, and ours none.
    pub(crate) is_for_linux: bool,
    /// The cells that have a token now.
    pub(crate) set_cells: Vec<String>,
}

/// Somebody who needs no Kerberos, as the cell's key is here.
pub(crate) struct Impersonation {
    keys: KeySet,
    who: Principal,
    life: Option<Duration>,
}

impl Impersonation {
    /// Reads the key, for a principal.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub(crate) fn new(keytab: &Path, principal: &str, hours: Option<&str>) -> Result<Self, String> {
        let bytes = std::fs::read(keytab).map(Zeroizing::new);
        let bytes = bytes.map_err(|error| format!("{}: {error}", keytab.display()))?;
        let keys = KeySet::parse_keytab(&bytes).map_err(|error| format!("{}: {error}", keytab.display()))?;
        let who = Principal::parse(principal);
        let who = who.ok_or_else(|| format!("'{principal}' is not the name of a principal"))?;
        let hours = match hours.map(str::parse) {
            None => DEFAULT_HOURS,
            Some(Ok(hours)) if hours <= HOURS_MAX => hours,
            Some(_) => return Err(format!("-token-lifetime is a number of hours, up to {HOURS_MAX}")),
        };
        let life = (hours > 0).then(|| Duration::from_secs(u64::from(hours) * 3600));
        Ok(Self { keys, who, life })
    }

    fn token(&self, cell: &str, seed: [u8; 32]) -> Result<Token, String> {
        let realm = cell.to_uppercase();
        let local = self.who.realm.is_empty() || self.who.realm == realm;
        let who = Principal {
            realm: if local { realm.clone() } else { self.who.realm.clone() },
            ..self.who.clone()
        };
        let name = who.name_in_cell(&realm).and_then(|name| Identity::parse(&name));
        let name = name.ok_or_else(|| "AFS has no name for this principal".to_owned())?;
        let now = SystemTime::now();
        let end = self.life.unwrap_or(Duration::from_secs(u64::from(HOURS_MAX) * 3600) - TICKET_AGE);
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + end));
        ticket::for_user(&self.keys, &name, cell, times, &mut StdRng::from_seed(seed))
            .map_err(|error| error.to_string())
    }
}

/// Kerberos's code for a token that has ended or has not begun. A KDC and its library accept a ticket some minutes before it begins and
/// after it has ended; servers of AFS do not.
fn useless_at(token: &Token, now: SystemTime) -> Option<i32> {
    if token.end <= token.start || token.end <= UnixTime::of(now) {
        Some(codes::EXPIRED)
    } else {
        (token.start > UnixTime::of(now + TICKET_AGE)).then_some(codes::NOT_YET_VALID)
    }
}

/// Renews the ticket-granting ticket of the caller's credential cache.
///
/// # Errors
///
/// The KDC's.
pub(crate) fn renew(kerberos: &Kerberos) -> Result<(), Error> {
    let cache = kerberos.default_cache()?;
    let mut renewed = cache.renewed()?;
    cache.begin_with(&mut renewed)
}

/// Says what Kerberos says, and what to do about it.
pub(crate) fn complain_of(printer: &Printer, program: &str, error: &Error, doing: &str) {
    complain!(printer, "{program}: {} while {doing}\n", harmless(&error.text));
    if let Some(advice) = services::advice(error.code) {
        complain!(printer, "{program}: {advice}\n");
    }
}

impl Login<'_> {
    fn debug(&self, text: &str) {
        if self.says_all {
            say!(self.printer, "{}\n", harmless(text));
        }
    }

    /// Returns what came, or prints the complaint that it did not.
    pub(crate) fn kerberos<T>(&self, result: Result<T, Error>, doing: &str) -> Result<T, Refusal> {
        result.map_err(|error| {
            complain_of(self.printer, self.program, &error, doing);
            Refusal(status::KERBEROS)
        })
    }

    /// Gets a ticket from the caller's cache or by it, and sets it as token.
    pub(crate) fn log_in_by_cache(
        &mut self,
        cell: &KnownCell,
        kerberos: &Kerberos,
        cache: &Cache<'_>,
    ) -> Result<(), Refusal> {
        let server = cell.servers.first().map(ToString::to_string).unwrap_or_default();
        self.debug(&format!("Authenticating to cell {} (server {server}).", cell.name));
        let user = cache.principal().map_err(|error| {
            complain!(self.printer, "{}: Couldn't determine realm of user:", self.program);
            complain_of(self.printer, self.program, &error, "getting realm");
            Refusal(status::KERBEROS)
        })?;
        let mut tried = Vec::new();
        let ticket = match self.ticket(cell, kerberos, cache, &user, &mut tried) {
            Err(error) if tried.len() == 1 && services::is_of_every_service(error.code) => {
                return Err(self.no_tickets(cell, &error, &[]));
            }
            ticket => ticket,
        };
        let rxkad = ticket.as_ref().ok().map(|ticket| self.usable(ticket)).transpose();
        // The cell's realm is that of the ticket: a referral may have led there. Without one it may be any that was asked.
        let realms: Vec<String> = match &ticket {
            Ok(ticket) => vec![realm_of(ticket)],
            Err(_) => {
                tried.iter().filter_map(|service| service.rsplit('@').next()).map(str::to_owned).collect()
            }
        };
        let rxgk = self.rxgk(cell, cache, realms, &mut tried)?;
        let rxkad = match rxkad {
            Err(refusal) if rxgk.is_none() => return Err(refusal),
            rxkad => rxkad.ok().flatten(),
        };
        let realm = match (&ticket, &rxgk) {
            (Ok(ticket), _) => realm_of(ticket),
            (Err(error), Some((_, realm))) => {
                self.debug(&format!("No token of rxkad, only one of rxgk: {}", error.text));
                realm.clone()
            }
            (Err(error), None) => return Err(self.no_tickets(cell, error, &tried)),
        };
        let user = Principal::parse(&user);
        let is_foreign = user.as_ref().is_some_and(|user| user.is_foreign_to(&realm));
        let name = user.and_then(|user| user.name_in_cell(&realm));
        self.set(cell, name.as_deref(), is_foreign, &Got { rxkad, rxgk: rxgk.map(|(token, _)| token) })
    }

    /// The token of rxkad that a ticket is.
    fn usable(&self, ticket: &Ticket) -> Result<Token, Refusal> {
        self.debug("Using Kerberos V5 ticket natively");
        let token = ticket.token().ok_or_else(|| {
            let what = "the ticket's session key, or its length, is of no use to AFS";
            complain!(self.printer, "{}: {what}: its encryption type is {}\n", self.program, ticket.key_kind);
            Refusal(status::KERBEROS)
        })?;
        let useless = useless_at(&token, SystemTime::now()).and_then(services::advice);
        if let Some(advice) = useless {
            complain!(self.printer, "{}: {advice}\n", self.program);
            return Err(Refusal(status::KERBEROS));
        }
        if token.ticket.len() > OPENAFS_TICKET_MAX {
            let (program, length) = (self.program, token.ticket.len());
            complain!(
                self.printer,
                "{program}: your ticket has {length} bytes, and servers of OpenAFS do not answer tickets of more than {OPENAFS_TICKET_MAX}: ask your \
                 realm for a smaller one (members of many groups have large ones)\n"
            );
        }
        Ok(token)
    }

    /// Says that there is no ticket, and of what was tried.
    fn no_tickets(&self, cell: &KnownCell, error: &Error, tried: &[String]) -> Refusal {
        let program = self.program;
        complain!(self.printer, "{program}: Couldn't get {} AFS tickets:\n", cell.name);
        complain_of(self.printer, program, error, "getting AFS tickets");
        if !tried.is_empty() {
            let tried = harmless(&tried.join(", "));
            complain!(self.printer, "{program}: no ticket for any of {tried}\n");
        }
        Refusal(status::KERBEROS)
    }

    /// A token of rxgk, if there is a ticket for the service that the database servers negotiate one with, and its realm, which is one of
    /// these. Once a client has had one, there has to be one: that a realm has no such service can be said by anybody on the way.
    fn rxgk(
        &self,
        cell: &KnownCell,
        cache: &Cache<'_>,
        realms: Vec<String>,
        tried: &mut Vec<String>,
    ) -> Result<Option<(rxgk::Token, String)>, Refusal> {
        let failed = |why: &str| {
            let (program, cell) = (self.program, &cell.name);
            complain!(self.printer, "{program}: no token of rxgk for {cell}: {}\n", harmless(why));
            Refusal(status::KERBEROS)
        };
        let mut asked = None;
        for realm in realms {
            let service = services::negotiation(&cell.name, &realm);
            if tried.contains(&service) {
                continue;
            }
            self.debug(&format!("Getting tickets: {service}"));
            let answer = cache.ticket(&service);
            tried.push(service);
            let is_last =
                answer.as_ref().map_or_else(|error| !services::may_be_another(error.code), |_| true);
            asked = Some(answer);
            if is_last {
                break;
            }
        }
        let ticket = match asked {
            None => return Ok(None),
            Some(Ok(ticket)) => ticket,
            Some(Err(error)) => {
                // What a client makes itself is another matter.
                let name = Name::new(cell.name.as_str());
                let had_one = |client: &Client| {
                    has_rxgk(client, &cell.name)
                        && name.as_ref().is_ok_and(|name| !makes_tickets(client, name))
                };
                if self.clients.all().iter().any(had_one) {
                    return Err(failed(&format!(
                        "{}; you had one before, and 'unlog' forgets that the cell has rxgk",
                        error.text
                    )));
                }
                return Ok(None);
            }
        };
        let caller = Caller::new().and_then(|caller| Ok((caller.seed()?, caller)));
        let (seed, caller) = caller.map_err(|error| failed(&error.to_string()))?;
        let session = Secret::new(EncType(ticket.key_kind), &ticket.key);
        let session = session.ok_or_else(|| failed("the ticket's session key is of no use to rxgk"))?;
        let of = realm_of(&ticket);
        let (principal, realm) = ticket.client.rsplit_once('@').unwrap_or((&ticket.client, ""));
        let servers =
            DatabaseServers::new::<Rxgk>(caller.endpoint(), &cell.servers, &DatabaseLogin::anonymous());
        let shown = Shown { bytes: &ticket.bytes, session, principal, realm };
        let now = UnixTime::of(SystemTime::now());
        let mut random = StdRng::from_seed(seed);
        let token = caller.run(negotiate(&servers, shown, now, &mut random));
        let token = token.map_err(|error| failed(&error.to_string()))?;
        if !self.is_for_linux {
            return Ok(Some((token, of)));
        }
        let token = kafs::linux_token(&caller, cell, token, random.random()).map_err(|why| failed(&why))?;
        Ok(Some((token, of)))
    }

    /// Makes a token from the cell's key, and sets it.
    pub(crate) fn log_in_by_key(&mut self, cell: &KnownCell, key: &Impersonation) -> Result<(), Refusal> {
        let seed = Caller::new().and_then(|caller| caller.seed()).map_err(|error| error.to_string());
        let token = seed.and_then(|seed| key.token(&cell.name, seed)).map_err(|why| {
            complain!(self.printer, "{}: {why}\n", self.program);
            Refusal(status::KERBEROS)
        })?;
        let realm = if key.who.realm.is_empty() { String::new() } else { cell.name.to_uppercase() };
        let name = key.who.name_in_cell(&realm);
        self.set(cell, name.as_deref(), false, &Got { rxkad: Some(token), rxgk: None })
    }

    /// The first ticket that there is for a cell's servers, or why the last that was tried is not there.
    fn ticket(
        &self,
        cell: &KnownCell,
        kerberos: &Kerberos,
        cache: &Cache<'_>,
        user: &str,
        tried: &mut Vec<String>,
    ) -> Result<Ticket, Error> {
        let user_realm = Principal::parse(user).map(|user| user.realm).unwrap_or_default();
        let mut search = Search {
            cell: &cell.name,
            user_realm: &user_realm,
            server: None,
            server_realm: None,
            given_realm: self.given_realm,
        };
        match self.given_realm {
            Some(realm) => self.debug(&format!("We were told to authenticate to realm {realm}.")),
            None => self.debug(&format!("Trying to authenticate to user's realm {user_realm}.")),
        }
        let first = search.services().remove(0);
        let mut failure = match self.ask(cache, &first, tried) {
            Ok(ticket) => return Ok(ticket),
            Err(error) => error,
        };
        if services::may_be_another(failure.code) {
            // Only now, as the name may have to be asked of the DNS.
            let host = cell.host();
            let realm = host.as_deref().map(|host| kerberos.host_realm(host).unwrap_or_default());
            (search.server, search.server_realm) = (host.as_deref(), realm.as_deref());
            for service in search.services().iter().filter(|service| **service != first) {
                let shown = if service.realm.is_empty() { "of the KDC's choice" } else { &service.realm };
                self.debug(&format!("We've deduced that we need to authenticate to realm {shown}."));
                failure = match self.ask(cache, service, tried) {
                    Ok(ticket) => return Ok(ticket),
                    Err(error) => error,
                };
                if !services::may_be_another(failure.code) {
                    break;
                }
            }
        }
        Err(failure)
    }

    fn ask(&self, cache: &Cache<'_>, service: &Service, tried: &mut Vec<String>) -> Result<Ticket, Error> {
        self.debug(&format!("Getting tickets: {service}"));
        let service = service.to_string();
        tried.push(service.clone());
        match cache.ticket(&service) {
            // A KDC may get this wrong once.
            Err(error) if error.code == codes::MESSAGE_TYPE => cache.ticket(&service),
            result => result,
        }
    }

    /// Gives the client a token, under the number that the cell's protection database has for its owner.
    fn set(
        &mut self,
        cell: &KnownCell,
        name: Option<&str>,
        is_foreign: bool,
        got: &Got,
    ) -> Result<(), Refusal> {
        let database = if self.asks_database { Caller::new().ok() } else { None };
        let database = database.as_ref().zip(name);
        let id = database.and_then(|(caller, name)| {
            self.debug(&format!("About to resolve name {name} to id in cell {}.", cell.name));
            id_of(caller, cell, name, &got.by_rxgk(caller).unwrap_or_default())
        });
        if let Some(id) = id {
            self.debug(&format!("Id {id}"));
        }
        let told = name.unwrap_or_default();
        self.debug(&format!("Setting tokens. {told} @ {}", cell.name));
        let is_new = self.give(cell, told, id.unwrap_or(ViceId::ANONYMOUS), got)?;
        self.set_cells.push(cell.name.clone());
        if !is_new {
            self.debug("Identical tokens already exist; skipping.");
        }
        if let (Some((caller, name)), true, Some(ViceId::ANONYMOUS)) = (database, is_foreign, id) {
            self.enter(caller, cell, name, got)?;
        }
        Ok(())
    }

    /// Gives each client that knows the cell a token. Returns whether the one that has told of the cell has not had this token before.
    fn give(
        &self,
        cell: &KnownCell,
        name: &str,
        id: ViceId,
        Got { rxkad, rxgk }: &Got,
    ) -> Result<bool, Refusal> {
        if self.is_for_linux {
            let rxkad = rxkad.as_ref().map(|token| (token, id.0));
            let tokens = Tokens { rxgk: rxgk.as_ref(), rxkad };
            return kafs::add(&cell.name, tokens).map(|()| true).map_err(|why| {
                complain!(self.printer, "{}: no key for {}: {why}\n", self.program, cell.name);
                Refusal(status::TOKEN)
            });
        }
        let failed = |why: &str| {
            let program = self.program;
            complain!(
                self.printer,
                "{program}: a pioctl failed while setting tokens for cell {}\n",
                cell.name
            );
            complain!(self.printer, "{program}: {why}\n");
            Refusal(status::TOKEN)
        };
        let first = self.clients.first().map_err(|failure| failed(&failure.to_string()))?;
        let client = self.clients.all().get(cell.told_by).unwrap_or(first);
        let too_long = |_| failed("a name or the ticket is too long");
        let (cell_name, holder) = (Name::new(cell.name.as_str()), Name::new(name));
        let (cell_name, holder) = (cell_name.map_err(too_long)?, holder.map_err(too_long)?);
        let given = |token: &Token| {
            Ok(control::GivenToken {
                cell: cell_name.clone(),
                holder: holder.clone(),
                id,
                kvno: token.kvno,
                session_key: control::SessionKey(token.session_key.bytes()),
                start: AfsTime(token.start.0),
                end: AfsTime(token.end.0),
                ticket: Opaque::new(token.ticket.clone()).map_err(too_long)?,
            })
        };
        let rxkad = rxkad.as_ref().map(given).transpose()?;
        let rxkad = rxkad.map(|token| control::SetToken { token, is_forced: self.is_forced });
        let rxgk = rxgk.as_ref().map(|rxgk| given_rxgk(&cell.name, rxgk)).transpose().map_err(too_long)?;
        let set = Set { cell: cell_name, holder, id, rxkad, rxgk };
        let set_here = || set.give_to(client).map_err(|failure| failed(&reason(&failure)));
        // An administrator's mount keeps its ticket from the cell's key, unless its user means just this mount.
        let mut is_new = match client.is_here() || !makes_tickets(client, &set.cell) {
            true => Some(set_here()?),
            false => None,
        };
        for other in self.clients.all().iter().filter(|other| !std::ptr::eq(*other, client)) {
            let outcome = if other.has_session_of(client) {
                give_another(other, cell, &set)
            } else {
                Err("it does not know the PAG of this session, and all your sessions would have the token there".to_owned())
            };
            match outcome {
                Ok(took) => is_new = is_new.or(took),
                Err(why) => {
                    let (program, at, name) = (self.program, other.place().display(), &cell.name);
                    complain!(
                        self.printer,
                        "{program}: the client of {at} has got no token for {name}: {why}\n"
                    );
                }
            }
        }
        match is_new {
            Some(is_new) => Ok(is_new),
            // There is no other that knows the cell.
            None => set_here(),
        }
    }

    /// Enters a user of another realm in the protection database, which such users may do themselves.
    fn enter(&self, caller: &Caller, cell: &KnownCell, name: &str, got: &Got) -> Result<(), Refusal> {
        let by_rxkad = || got.rxkad.clone().map(|token| DatabaseLogin::with_token(token, Level::Auth));
        let owner = got.by_rxgk(caller).or_else(by_rxkad).unwrap_or_default();
        let database = ProtectionDb::new(caller.endpoint(), &cell.protection, &owner);
        match caller.wait(database.create_user(name, None)) {
            Ok(id) => {
                let cell_name = &cell.name;
                say!(self.printer, "created cross-cell entry for {name} (Id {id}) at {cell_name}\n");
                // So that `tokens` tells the number.
                self.give(cell, name, id, got).map(drop)
            }
            Err(code) => {
                let (program, cell) = (self.program, &cell.name);
                complain!(
                    self.printer,
                    "{program}: {code} so unable to create remote PTS user {name} in cell {cell} (status: {}).\n",
                    code.0
                );
                Ok(())
            }
        }
    }
}

/// The tokens that a user gets: at least one of them.
struct Got {
    rxkad: Option<Token>,
    rxgk: Option<rxgk::Token>,
}

impl Got {
    /// The owner of the token of rxgk, for questions that nobody on the way is to hear.
    fn by_rxgk(&self, caller: &Caller) -> Option<DatabaseLogin> {
        let (token, seed) = (self.rxgk.clone()?, caller.seed().ok()?);
        Some(DatabaseLogin::anonymous().and_rxgk(token, clock(), seed))
    }
}

/// What a client is given.
struct Set {
    cell: Name,
    holder: Name,
    id: ViceId,
    rxkad: Option<control::SetToken>,
    rxgk: Option<control::GivenRxgk>,
}

impl Set {
    /// Gives it to a client. Returns whether it was new to it.
    fn give_to(&self, client: &Client) -> Result<bool, Failure> {
        let Some(rxkad) = &self.rxkad else {
            let token = self.rxgk.clone().expect("there is one of the two");
            client.call(&control::SetOnlyRxgk { holder: self.holder.clone(), id: self.id, token })?;
            return Ok(true);
        };
        let is_new = client.call(rxkad)?.is_new;
        if let Some(token) = self.rxgk.clone() {
            client.call(&control::SetRxgk { token })?;
        }
        Ok(is_new)
    }
}

/// The realm of a ticket's service.
fn realm_of(ticket: &Ticket) -> String {
    Principal::parse(&ticket.server).map(|server| server.realm).unwrap_or_default()
}

/// True if a client makes the caller's tickets for a cell itself, from the cell's key.
fn makes_tickets(client: &Client, cell: &Name) -> bool {
    client.call(&control::GetCaller { cell: cell.clone() }).is_ok_and(|caller| caller.is_made_here)
}

/// Gives another client of this machine a token too: if it knows the same cell, and does not make the user's tickets itself. A cell of the same name
/// at other servers is another one, and a token of the user's for that would be lost. Returns whether it was new to the client, if it is for it.
fn give_another(client: &Client, cell: &KnownCell, set: &Set) -> Result<Option<bool>, String> {
    let name = &set.cell;
    let known = match client.call(&control::FindCell { name: name.clone() }) {
        Ok(found) => found.cell,
        Err(Failure::Errno(_)) => return Ok(None),
        Err(failure) => return Err(failure.to_string()),
    };
    let is_same =
        known.name == *name && known.servers.iter().any(|server| cell.servers.contains(&server.ip()));
    if !is_same || makes_tickets(client, name) {
        return Ok(None);
    }
    set.give_to(client).map(Some).map_err(|failure| reason(&failure))
}

/// The reason why a client does not take a token.
fn reason(failure: &Failure) -> String {
    match failure {
        Failure::Errno(errno) if *errno == ENOSPC => TOO_MANY.to_owned(),
        Failure::Errno(errno) if *errno == Errno::ENOSYS.0 => TOO_OLD.to_owned(),
        failure => failure.to_string(),
    }
}

/// The number of a name; [`ViceId::ANONYMOUS`] if there is none of it, and `None` if the database does not answer.
fn id_of(caller: &Caller, cell: &KnownCell, name: &str, login: &DatabaseLogin) -> Option<ViceId> {
    let database = ProtectionDb::new(caller.endpoint(), &cell.protection, login);
    let names = [name];
    let asked = caller.run(async { tokio::time::timeout(DATABASE_TIMEOUT, database.ids_of(&names)).await });
    asked.ok()?.ok()?.first().copied()
}
