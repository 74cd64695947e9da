//! How a user who has a ticket of Kerberos gets a token of rxgk from the database servers of a cell (rxgk notes 7.1).

use afs_wire::abort::RXGK_SEALED_INCON;
use afs_wire::rxgk::{
    GSSNegotiate, RxgkClientInfo, RxgkData, RxgkEnctypes, RxgkLevel, RxgkLevels, RxgkNonce, RxgkStartParams,
};
use rand::RngCore;
use rand::rngs::StdRng;
use rx_security::gss::Initiator;
use rx_security::keys::EncType;
use rx_security::rxgk::{Dialect, ENCTYPES, Fault, RxgkTime, Secret, Token};
use rx_security::{Level, UnixTime};
use rxgen::Abort;
use rxgen::xdr::{from_bytes, to_bytes};

use crate::database::DatabaseServers;
use crate::error::Error;

/// A ticket for the service `afs-rxgk/_afs.CELL`, and whose it is.
#[derive(Debug)]
pub struct Ticket<'a> {
    /// The ticket, in DER.
    pub bytes: &'a [u8],
    /// Its session key.
    pub session: Secret,
    /// The owner's principal, without the realm.
    pub principal: &'a str,
    /// The owner's realm.
    pub realm: &'a str,
}

/// How long a transport key is used, in seconds, and for how many bytes, as a power of two: what OpenAFS asks for.
const LIFETIME: u32 = 36_000;
const BYTELIFE: u32 = 30;

/// Gets a token of level crypt. The servers are those of [`afs_wire::rxgk::Rxgk`], called as nobody.
///
/// # Errors
///
/// What the servers say, and if they are not those that have the service's key.
pub async fn negotiate(
    servers: &DatabaseServers,
    ticket: Ticket<'_>,
    now: UnixTime,
    random: &mut StdRng,
) -> Result<Token, Error> {
    let Ticket { bytes, session, principal, realm } = ticket;
    let mut nonce = vec![0; 20];
    random.fill_bytes(&mut nonce);
    let start = RxgkStartParams {
        enctypes: RxgkEnctypes::new(ENCTYPES.map(|kind| kind.0).to_vec()).expect("four"),
        levels: RxgkLevels::new(vec![RxgkLevel(Level::Crypt.number())]).expect("one"),
        lifetime: LIFETIME,
        bytelife: BYTELIFE,
        client_nonce: RxgkNonce::new(nonce.clone()).expect("it is short"),
    };
    let (initiator, message) = Initiator::start(bytes, session, (principal, realm), now, random);
    let question = GSSNegotiate {
        client_start: start.clone(),
        input_token_buffer: RxgkData::new(message).map_err(|_| bad("the ticket is too long"))?,
        opaque_in: RxgkData::default(),
    };
    let reply = servers.call(&question).await?;
    if reply.gss_major_status != 0 {
        let why = match reply.gss_major_status >> 16 {
            7 => {
                "it has no key for the ticket: put the service's keytab into its configuration folder as rxgk.keytab"
            }
            10 => "it has another key than the ticket is for",
            11 => "the ticket has expired",
            _ => "it does not take the ticket",
        };
        return Err(bad(&format!("the database server gives no token: {why}")));
    }
    let no_context = |error| bad(&format!("the database server's answer is not believed: {error}"));
    let context = initiator.finish(&reply.output_token_buffer).map_err(no_context)?;
    let info = context.unwrap(&reply.rxgk_info).map_err(no_context)?;
    let info: RxgkClientInfo = from_bytes(&info).map_err(|_| bad("the database server's answer is none"))?;
    if info.error_code != 0 {
        let code = Abort(info.error_code);
        return Err(Error::Local {
            what: format!("the database server gives no token: {}", said(code)),
            code,
        });
    }
    context.verify(&to_bytes(&start), &info.mic).map_err(no_context)?;
    let kind = EncType(info.enctype);
    let is_wanted = ENCTYPES.contains(&kind) && info.level == RxgkLevel(Level::Crypt.number());
    let length = kind.key_len().filter(|_| is_wanted && info.expiration >= 0);
    let length = length.filter(|_| !info.token.is_empty() && !info.server_nonce.is_empty());
    let length = length.ok_or_else(|| bad("the database server gives another token than was asked for"))?;
    let secret = context.pseudo_random(&[&nonce[..], &info.server_nonce].concat(), length);
    Ok(Token {
        dialect: Dialect::OURS,
        secret: Secret::new(kind, &secret).ok_or_else(|| bad("the token's enctype is unknown"))?,
        level: Level::Crypt,
        lifetime: info.lifetime,
        bytelife: info.bytelife,
        end: RxgkTime(info.expiration),
        token: info.token.to_vec(),
    })
}

fn said(code: Abort) -> String {
    let fault = rx_security::rxgk::codes::fault(Dialect::OURS, rx_proto::abort::AbortCode(code.0));
    fault.map_or_else(|| code.0.to_string(), |fault: Fault| fault.to_string())
}

fn bad(what: &str) -> Error {
    Error::Local { what: what.to_owned(), code: RXGK_SEALED_INCON }
}
