//! rxkad against OpenAFS's own: at every level and with both forms of ticket, our client at a stock server that knows its key, and a
//! stock client, with a token that we have made, at ours. And clients that are refused, with what code, in both directions.

use std::sync::Arc;
use std::time::SystemTime;

use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::process::hex;
use afar_interop::service::{self, Outcome, Pattern, Request};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig, ServerCall};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxkad::{Client, Level, Server, ServerOptions, codes};
use rx_security::ticket::{self, Token};
use rx_security::{Identity, UnixTime};

use crate::sides::{TIMEOUT, bind, expect_outcome, expect_said, failed, soon, stock_client, stock_server};

const CELL: &str = "lab.test";

/// Sizes around those of packets at the three levels: of 1416, 1412 and 1408 bytes, 8 are command and argument.
const REQUESTS: [Request; 9] = [
    Request::Echo { n: 0 },
    Request::Echo { n: 1 },
    Request::Echo { n: 1399 },
    Request::Echo { n: 1400 },
    Request::Echo { n: 1401 },
    Request::Echo { n: 1409 },
    Request::Echo { n: 100_000 },
    Request::Source { n: 5_000_000 },
    Request::Sink { n: 5_000_000 },
];

/// A kind of key, with how the stock server is told it.
#[derive(Clone, Copy)]
struct KeyKind {
    name: &'static str,
    kind: EncType,
}

const KEY_KINDS: [KeyKind; 5] = [
    KeyKind { name: "aes256", kind: EncType::AES256 },
    KeyKind { name: "aes128", kind: EncType::AES128 },
    KeyKind { name: "des3", kind: EncType::DES3 },
    KeyKind { name: "rc4", kind: EncType::RC4 },
    KeyKind { name: "des", kind: EncType(0) },
];
const KVNO: i32 = 3;

fn secret(kind: EncType) -> Vec<u8> {
    // Good as a DES key too: every byte has odd parity.
    let pattern =
        [0x01, 0x02, 0x04, 0x07, 0x08, 0x0b, 0x0d, 0x0e, 0x10, 0x13, 0x15, 0x16, 0x19, 0x1a, 0x1c, 0x1f];
    pattern.into_iter().cycle().take(kind.key_len().unwrap_or(8)).collect()
}

fn keys(kind: EncType) -> KeySet {
    let secret = secret(kind);
    let key = match kind.0 {
        0 => Key::rxkad(KVNO, secret[..].try_into().expect("eight bytes")),
        _ => Key::rxkad_krb5(KVNO, kind, &secret),
    };
    KeySet::of([key]).expect("a good key")
}

fn now() -> UnixTime {
    UnixTime::of(SystemTime::now())
}

fn rng() -> StdRng {
    StdRng::from_os_rng()
}

fn token_of(kind: EncType, name: &str) -> Result<Token, Trouble> {
    token_for(kind, name, (UnixTime(now().0 - 60), UnixTime(now().0 + 36_000)))
}

fn token_for(kind: EncType, name: &str, times: (UnixTime, UnixTime)) -> Result<Token, Trouble> {
    if name == "afs" {
        return Ok(ticket::local_superuser(&keys(kind), &mut rng()).map_err(|error| error.to_string())?);
    }
    let who = Identity::parse(name).ok_or_else(|| "a good name".to_owned())?;
    Ok(ticket::for_user(&keys(kind), &who, CELL, times, &mut rng()).map_err(|error| error.to_string())?)
}

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, check: Box<dyn Fn(&Lab) -> Verdict + Send>| {
        let lab = Arc::clone(lab);
        cases.push(Case::new(format!("rxkad/{name}"), Weight::Busy, move || check(&lab)));
    };
    for level in Level::ALL {
        for KeyKind { name, kind } in KEY_KINDS {
            // Long transfers once for each level are enough: what differs is the ticket.
            let requests = if name == "aes256" { &REQUESTS[..] } else { &REQUESTS[..2] };
            for who in ["afs", "user1", "user1.admin"] {
                add(
                    format!("our_{who}_calls_at_{level}_with_{name}"),
                    Box::new(move |lab| our_client(lab, level, kind, who, requests)),
                );
                add(
                    format!("stock_{who}_calls_at_{level}_with_{name}"),
                    Box::new(move |lab| stock_caller(lab, level, kind, who, requests)),
                );
            }
        }
    }
    add("our_client_is_told_that_it_is_not_welcome".to_owned(), Box::new(our_unwelcome_client));
    for (name, bad, code) in REFUSALS {
        add(format!("our_client_is_told_of_{name}"), Box::new(move |lab| our_bad_client(lab, bad, code)));
        add(format!("stock_client_is_told_of_{name}"), Box::new(move |lab| stock_bad_client(lab, bad, code)));
    }
    cases
}

/// A stock server that takes rxkad from this level on, with this key, of this caller only.
fn stock_with_key(
    lab: &Lab,
    network: &Network,
    level: Level,
    kind: EncType,
    only: &str,
) -> Result<afar_interop::process::Server, Trouble> {
    let key = format!("{KVNO}:{}:{}", kind.0, hex(&secret(kind)));
    stock_server(lab, network, &["--rxkad", level.name(), "--key", &key, "--only", only])
}

/// How OpenAFS names a caller: in three parts, the cell of its own superuser being empty.
fn stock_name(name: &str) -> String {
    match name.split_once('.') {
        _ if name == "afs" => "afs.@".to_owned(),
        Some((name, instance)) => format!("{name}.{instance}@{}", CELL.to_uppercase()),
        None => format!("{name}.@{}", CELL.to_uppercase()),
    }
}

fn our_client(lab: &Lab, level: Level, kind: EncType, who: &'static str, requests: &[Request]) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_with_key(lab, &network, level, kind, &stock_name(who))?;
    let address = network.stock(server.port());
    let token = Arc::new(token_of(kind, who)?);
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let client = Box::new(Client::new(token, level));
        let connection = endpoint.connect(address, service::SERVICE, client);
        let pattern = Pattern::default();
        for request in requests {
            let got = soon("a call", service::outcome(&connection, &pattern, *request)).await?;
            expect_outcome(*request, &got, &request.outcome())?;
        }
        Ok(())
    })
}

/// That the stock server's look at names means something.
fn our_unwelcome_client(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_with_key(lab, &network, Level::Clear, EncType::AES256, &stock_name("user1"))?;
    let token = Arc::new(token_of(EncType::AES256, "user1.admin")?);
    refused(&network, server.port(), token, codes::NOAUTH)
}

/// Our client calls a stock server, and has to hear this code.
fn refused(network: &Network, port: u16, token: Arc<Token>, code: AbortCode) -> Verdict {
    network.at_ours(async || {
        let endpoint = bind(network, EndpointConfig::default())?;
        let client = Box::new(Client::new(token, Level::Crypt));
        let connection = endpoint.connect(network.stock(port), service::SERVICE, client);
        let request = Request::Echo { n: 100 };
        let got = soon("a call", service::outcome(&connection, &Pattern::default(), request)).await?;
        expect_outcome(request, &got, &Outcome::Abort(code.0))
    })
}

/// Our server, for rxkad alone, and for this caller.
fn our_server(
    network: &Network,
    level: Level,
    kind: EncType,
    who: &'static str,
) -> Result<Endpoint, Trouble> {
    let endpoint = bind(network, EndpointConfig::default())?;
    let options = ServerOptions { min_level: level, ..ServerOptions::of_cell(CELL) };
    let mut config = service::service(true, CallLimits::default(), |_| ());
    config.service.security = vec![Arc::new(Server::new(keys(kind), options, Arc::new(now)))];
    let answer = Arc::clone(&config.handler);
    config.handler = Arc::new(move |call: ServerCall| {
        let caller = call.identity().map(str::to_owned);
        let is_welcome = caller.as_deref() == Some(who)
            && caller
                .as_deref()
                .and_then(Identity::parse)
                .is_some_and(|i| i.is_local_superuser() == (who == "afs"));
        let answer = Arc::clone(&answer);
        async move { if is_welcome { answer.handle(call).await } else { Err(rx::Abort(WRONG_CALLER)) } }
    });
    endpoint.add_service(config);
    Ok(endpoint)
}

/// A code that nobody else uses.
const WRONG_CALLER: i32 = 9100;

fn stock_token(token: &Token) -> String {
    format!("{}:{}:{}", token.kvno, hex(&token.session_key.bytes()), hex(&token.ticket))
}

fn stock_caller(lab: &Lab, level: Level, kind: EncType, who: &'static str, requests: &[Request]) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let token = stock_token(&token_of(kind, who)?);
    network.at_ours(async || {
        let endpoint = our_server(&network, level, kind, who)?;
        for request in requests {
            let options = ["--rxkad", level.name(), "--token", &token];
            let client = stock_client(lab, &network, endpoint.local_addr(), &options, *request)?;
            let finished = tokio::task::spawn_blocking(move || client.finish(TIMEOUT)).await;
            let finished = finished.map_err(|error| error.to_string())??;
            expect_said(*request, &finished, &request.outcome())?;
        }
        Ok(())
    })
}

/// What is wrong with a client.
#[derive(Clone, Copy)]
enum Bad {
    /// Its ticket is for another key of that version.
    Key,
    /// Its ticket is for a version that the server does not have.
    Version,
    /// Its ticket has expired.
    Expired,
    /// Its ticket is not yet good.
    TooEarly,
    /// It knows a ticket, and not the key in it.
    Stolen,
}

const REFUSALS: [(&str, Bad, AbortCode); 5] = [
    ("a_wrong_key", Bad::Key, codes::BADTICKET),
    ("an_unknown_key", Bad::Version, codes::UNKNOWNKEY),
    ("an_expired_ticket", Bad::Expired, codes::EXPIRED),
    ("a_ticket_from_the_future", Bad::TooEarly, codes::NOAUTH),
    ("a_stolen_ticket", Bad::Stolen, codes::SEALEDINCON),
];

fn bad_token(bad: Bad) -> Result<Token, Trouble> {
    let kind = EncType::AES256;
    let now = now().0;
    let times = |start, end| token_for(kind, "user1", (UnixTime(start), UnixTime(end)));
    let of_key = |kvno, secret: &[u8]| {
        let keys = KeySet::of([Key::rxkad_krb5(kvno, kind, secret)]).map_err(|error| error.to_string())?;
        ticket::local_superuser(&keys, &mut rng()).map_err(|error| Trouble::Failed(error.to_string()))
    };
    match bad {
        Bad::Key => of_key(KVNO, &[9; 32]),
        Bad::Version => of_key(KVNO + 1, &secret(kind)),
        Bad::Expired => times(now - 7200, now - 3600),
        Bad::TooEarly => times(now + 3600, now + 7200),
        Bad::Stolen => {
            Ok(Token { session_key: ticket::SessionKey::new([0x10; 8]), ..token_of(kind, "user1")? })
        }
    }
}

fn our_bad_client(lab: &Lab, bad: Bad, code: AbortCode) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_with_key(lab, &network, Level::Clear, EncType::AES256, "nobody.@")?;
    refused(&network, server.port(), Arc::new(bad_token(bad)?), code)
}

fn stock_bad_client(lab: &Lab, bad: Bad, code: AbortCode) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let token = stock_token(&bad_token(bad)?);
    network.at_ours(async || {
        let endpoint = our_server(&network, Level::Clear, EncType::AES256, "afs")?;
        let (request, want) = (Request::Echo { n: 100 }, code.0.to_string());
        let options = ["--expect", "abort", &want, "--rxkad", "crypt", "--token", &token];
        let client = stock_client(lab, &network, endpoint.local_addr(), &options, request)?;
        let finished = tokio::task::spawn_blocking(move || client.finish(TIMEOUT)).await;
        let finished = finished.map_err(|error| error.to_string())??;
        expect_said(request, &finished, &Outcome::Abort(code.0))?;
        match endpoint.metrics().calls_served {
            0 => Ok(()),
            served => failed(format!("{served} calls were served")),
        }
    })
}
