//! JOIN: the procedures by which machines join the cell and get tokens, on a [`Database`] of invitations and devices (Join notes).
//!
//! Nobody is asked who they are in the first three: the handshake shows it, and [`Door`] sees that strangers cost little. Tokens are made by
//! who has the cell's key, which the server supplies as a [`TokenMaker`].

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afs_join::{Chance, Door, KEY_BYTES, KeyPair, Limits, Shown, digest};
use afs_wire::abort::{AJBADARG, AJENCREQ, AJIO, AJNOKEY, AJNOTOKEN, AJPERM};
use afs_wire::ids::AfsTime;
use afs_wire::join::*;
use rxgen::xdr::{Opaque, OpaqueFixed, XdrArray, XdrString, from_bytes, to_bytes};
use rxgen::{Abort, Rpc, Serve, ServerCall};
use zeroize::Zeroizing;

use super::change::{Admitted, DEVICES_MAX, Denied, NewDevice, NewInvitation, Target};
use super::errors::DeviceError;
use super::image::Devices;
use super::records::{Device, Invitation};
use crate::caller::{Authority, Caller, Identity};
use crate::database::{ChangeError, Database, Rows};
use crate::serving::{Clock, yield_once};
use crate::ubik::NO_QUORUM;

/// Longest name of a user in the protection database, in bytes.
const USER_NAME_MAX: usize = 63;

/// The enctypes of rxgk (rxgk notes 2.1).
const ENCTYPES: [i32; 4] = [17, 18, 19, 20];

/// A token that is to be made.
#[derive(Clone, Debug)]
pub struct TokenFor {
    /// Its user.
    pub user: String,
    /// The device that gets it.
    pub device: u32,
    /// The enctypes that the device knows, the preferred one first.
    pub enctypes: Vec<i32>,
    /// Now, in seconds since 1970.
    pub now: u32,
}

/// A token, with what its owner needs to show it.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The security index of its dialect.
    pub dialect: u32,
    /// The enctype of K0.
    pub enctype: i32,
    /// The level of connections with it.
    pub level: u32,
    /// Seconds for which a transport key is used.
    pub lifetime: u32,
    /// Bytes for which it is used, as a power of two.
    pub bytelife: u32,
    /// Its end, in steps of 100 ns since 1970.
    pub expiration: i64,
    /// K0.
    pub secret: JoinK0,
    /// The token.
    pub token: Vec<u8>,
}

/// The reason why no token was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// None of the enctypes is one that the cell has.
    Enctype,
    /// The cell cannot make any now: why.
    Cell(String),
}

/// Makes tokens with the cell's key.
pub type TokenMaker = Arc<dyn Fn(&TokenFor) -> Result<Granted, NoToken> + Send + Sync>;

/// Gives random bytes.
pub type Randomness = Arc<dyn Fn() -> io::Result<[u8; 32]> + Send + Sync>;

/// Tells the time since any beginning; it never goes back.
pub type Uptime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What the service is given by its server.
#[derive(Clone)]
pub struct Surroundings {
    /// The cell's name.
    pub cell: String,
    /// Tells who callers are.
    pub authority: Arc<dyn Authority>,
    /// The time.
    pub clock: Clock,
    /// The time since the start.
    pub uptime: Uptime,
    /// Random bytes.
    pub randomness: Randomness,
    /// What makes tokens.
    pub tokens: TokenMaker,
}

/// Answers the calls of JOIN.
pub struct JoinService {
    database: Arc<Database<Devices>>,
    of: Surroundings,
    door: Mutex<Door>,
}

impl fmt::Debug for JoinService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinService").field("database", &self.database).finish_non_exhaustive()
    }
}

/// What became of a device's request, before it is written down for the answer.
enum Outcome {
    Granted(Admitted, Granted),
    Waits(Admitted),
    Left(Admitted),
    Not(JoinOutcome),
}

impl JoinService {
    /// A service on a database.
    ///
    /// # Errors
    /// If there are no random bytes.
    pub fn new(database: Arc<Database<Devices>>, of: Surroundings, limits: Limits) -> io::Result<Self> {
        let door = Mutex::new(Door::new(limits, (of.randomness)()?));
        Ok(Self { database, of, door })
    }

    fn caller<R: Rpc>(&self, call: &ServerCall<'_, R>) -> Caller {
        self.of.authority.caller(call.peer(), call.security())
    }

    /// Random bytes, for one use.
    fn chance(&self) -> Result<[u8; 32], Abort> {
        (self.of.randomness)().map_err(|error| {
            tracing::error!(%error, "there are no random bytes");
            AJIO
        })
    }

    /// The name of a caller who may administer the cell, and does so on a connection that nobody on the way can read or change.
    fn superuser<R: Rpc>(&self, call: &ServerCall<'_, R>) -> Result<String, Abort> {
        let caller = self.caller(call);
        if !caller.is_superuser {
            return Err(AJPERM);
        }
        if !call.is_encrypted() && !self.of.authority.is_noauth() {
            return Err(AJENCREQ);
        }
        Ok(match caller.identity {
            Identity::Anonymous => "anonymous".to_owned(),
            Identity::Cell => "the cell".to_owned(),
            Identity::Local(name) | Identity::Foreign(name) => name,
        })
    }

    fn door(&self) -> std::sync::MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a device wants that has shown its key.
    async fn answer(&self, shown: &Shown, request: &JoinRequest, from: String) -> Outcome {
        let (now, key) = ((self.of.clock)(), shown.device);
        let name = String::from_utf8_lossy(&request.name).into_owned();
        let admitted = match request.want {
            JoinWant::JOIN => {
                let new = NewDevice { digest: digest(&request.secret), key, name, from: from.clone() };
                self.change(move |devices, rows| devices.join(&new, now, rows)).await
            }
            JoinWant::RENEW => match self.database.catch_up().await {
                // That it was seen can wait while the store takes no changes; that it may have been revoked cannot.
                Ok(()) => match self.change(move |devices, rows| devices.renew(&key, now, rows)).await {
                    Err(Stopped::Store) => {
                        let renew = |devices: &Devices| devices.renew(&key, now, &mut Rows::default());
                        self.database.read(renew).map_err(Stopped::Denied)
                    }
                    result => result,
                },
                Err(_) => Err(Stopped::Store),
            },
            JoinWant::LEAVE => {
                let leave = move |devices: &Devices, rows: &mut Rows| {
                    let admitted = devices.renew(&key, now, &mut Rows::default())?;
                    let revoked = devices.revoke(&Target::Device(admitted.number), now, rows);
                    revoked.map(|_| admitted).map_err(|_| Denied::UnknownDevice)
                };
                self.change(leave).await
            }
            _ => return Outcome::Not(JoinOutcome::TRY_LATER),
        };
        let want = request.want;
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(stopped) => {
                let (outcome, device) = outcome_of(stopped);
                // An invitation that another device has used may have been stolen: the administrator sees who has it, and who came late.
                tracing::warn!(target: "audit", ?want, ?outcome, device, %from, "a device was refused");
                return Outcome::Not(outcome);
            }
        };
        let Admitted { number, user, waits } = &admitted;
        tracing::info!(target: "audit", ?want, device = number, user, %from, waits, "a device was admitted");
        if want == JoinWant::LEAVE {
            return Outcome::Left(admitted);
        }
        if *waits {
            return Outcome::Waits(admitted);
        }
        let enctypes = request.enctypes.to_vec();
        let wanted = TokenFor { user: user.clone(), device: *number, enctypes, now };
        match (self.of.tokens)(&wanted) {
            Ok(granted) => Outcome::Granted(admitted, granted),
            Err(NoToken::Enctype) => Outcome::Not(JoinOutcome::NO_ENCTYPE),
            Err(NoToken::Cell(reason)) => {
                tracing::error!(reason, "no token could be made for a device");
                Outcome::Not(JoinOutcome::TRY_LATER)
            }
        }
    }

    async fn change(
        &self,
        plan: impl FnMut(&Devices, &mut Rows) -> Result<Admitted, Denied> + Send + 'static,
    ) -> Result<Admitted, Stopped> {
        let mut plan = plan;
        let plan = move |devices: &Devices, rows: &mut Rows| plan(devices, rows).map_err(Stopped::Denied);
        self.database.change((self.of.clock)(), plan).await
    }

    /// Makes a change for an administrator, and writes it to the log.
    async fn administer<R: Rpc, T: Send + 'static>(
        &self,
        call: ServerCall<'_, R>,
        what: &str,
        plan: impl FnMut(&Devices, &mut Rows) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, Abort> {
        let (caller, peer) = (self.superuser(&call)?, call.peer());
        let result = self.database.change((self.of.clock)(), plan).await;
        let code = result.as_ref().err().map_or(0, |error| Abort::from(*error).0);
        tracing::info!(target: "audit", rpc = R::NAME, what, caller, %peer, code, "devices changed");
        result.map_err(Abort::from)
    }

    /// What a device is told, for this channel.
    fn reply(&self, outcome: Outcome) -> JoinReply {
        let key = self.database.read(|devices| devices.newest_key().map(|(_, key)| key.pair.public().0));
        let empty = JoinReply {
            outcome: JoinOutcome::DONE,
            device: 0,
            user: JoinUser::default(),
            key: OpaqueFixed(key.unwrap_or([0; KEY_BYTES])),
            dialect: 0,
            enctype: 0,
            level: 0,
            lifetime: 0,
            bytelife: 0,
            expiration: 0,
            secret: JoinK0::default(),
            token: Opaque::default(),
        };
        match outcome {
            Outcome::Not(outcome) => JoinReply { outcome, ..empty },
            Outcome::Left(Admitted { number, user, .. }) => {
                JoinReply { device: number, user: short(&user), ..empty }
            }
            Outcome::Waits(Admitted { number, user, .. }) => {
                JoinReply { outcome: JoinOutcome::NOT_APPROVED, device: number, user: short(&user), ..empty }
            }
            Outcome::Granted(Admitted { number, user, .. }, granted) => {
                let Granted { dialect, enctype, level, lifetime, bytelife, expiration, secret, token } =
                    granted;
                let Ok(token) = Opaque::new(token) else {
                    tracing::error!("a token is too long for a device");
                    return JoinReply { outcome: JoinOutcome::TRY_LATER, ..empty };
                };
                let (device, user, key, outcome) = (number, short(&user), empty.key, empty.outcome);
                JoinReply {
                    outcome,
                    device,
                    user,
                    key,
                    dialect,
                    enctype,
                    level,
                    lifetime,
                    bytelife,
                    expiration,
                    secret,
                    token,
                }
            }
        }
    }
}

/// The reason why a device was not admitted.
#[derive(Debug)]
enum Stopped {
    Denied(Denied),
    Store,
}

impl From<ChangeError> for Stopped {
    fn from(error: ChangeError) -> Self {
        tracing::warn!(database = "devices", %error, "a device could not be looked after");
        Self::Store
    }
}

/// What a device is told, and the device that the log names.
fn outcome_of(stopped: Stopped) -> (JoinOutcome, u32) {
    match stopped {
        Stopped::Store => (JoinOutcome::TRY_LATER, 0),
        Stopped::Denied(Denied::UnknownInvitation) => (JoinOutcome::UNKNOWN_INVITATION, 0),
        Stopped::Denied(Denied::Used(by)) => (JoinOutcome::USED, by),
        Stopped::Denied(Denied::Expired) => (JoinOutcome::EXPIRED, 0),
        Stopped::Denied(Denied::UnknownDevice) => (JoinOutcome::UNKNOWN_DEVICE, 0),
        Stopped::Denied(Denied::Revoked(number)) => (JoinOutcome::REVOKED, number),
        Stopped::Denied(Denied::TooMany) => (JoinOutcome::TOO_MANY, 0),
    }
}

/// A text for the wire. What is in the database fits: it came from there.
fn short<const MAX: usize>(text: &str) -> XdrString<MAX> {
    XdrString::new(text.as_bytes()).unwrap_or_default()
}

fn invitation_info(digest: &[u8; 32], invitation: &Invitation) -> InvitationInfo {
    InvitationInfo {
        digest: OpaqueFixed(*digest),
        user: short(&invitation.user),
        flags: JoinFlags(invitation.flags),
        by: short(&invitation.by),
        made: AfsTime(invitation.made),
        expires: AfsTime(invitation.expires),
    }
}

fn device_info(number: u32, device: &Device) -> DeviceInfo {
    DeviceInfo {
        number,
        user: short(&device.user),
        name: short(&device.name),
        key: OpaqueFixed(device.key.0),
        registered: AfsTime(device.registered),
        from: short(&device.from),
        invited_by: short(&device.by),
        last_seen: AfsTime(device.seen),
        revoked: AfsTime(device.revoked),
        flags: if device.waits { DeviceFlags::WAITS } else { DeviceFlags::NONE },
    }
}

/// A name of a user of this cell, as the protection database may have it; `None` if it is none.
fn user_name(user: &JoinUser) -> Option<String> {
    let name = std::str::from_utf8(user).ok()?.to_lowercase();
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '@' | ':' | '/');
    let is_good = (1..=USER_NAME_MAX).contains(&name.len()) && !name.contains(is_bad) && name != "anonymous";
    is_good.then_some(name)
}

macro_rules! serves {
    ($($rpc:ident($self:ident, $call:ident, $args:ident) $body:block)*) => { $(
        impl Serve<$rpc> for JoinService {
            async fn serve(
                &$self,
                $call: ServerCall<'_, $rpc>,
                $args: $rpc,
            ) -> Result<reply::$rpc, Abort> $body
        }
    )* };
}

serves! {
    JoinHello(self, call, args) {
        // Which key a caller means is answered before anything is computed for it.
        self.database.read(|devices| devices.key_of(args.key).map(drop)).ok_or(AJNOKEY)?;
        Ok(reply::JoinHello { cookie: OpaqueFixed(self.door().hello((self.of.uptime)(), call.peer().ip())) })
    }
    JoinBegin(self, call, args) {
        yield_once().await;
        let key = self.database.read(|devices| devices.key_of(args.key).map(|key| key.pair.clone()));
        let key = key.ok_or(AJNOKEY)?;
        let (at, chance) = (((self.of.uptime)(), call.peer().ip()), Chance::new(self.chance()?));
        let begun = self.door().begin(at, &args.cookie.0, (&key, &self.of.cell), &args.message, chance);
        let (session, message) = begun?;
        let message = Opaque::new(message).map_err(|_| AJIO)?;
        Ok(reply::JoinBegin { session, message })
    }
    JoinFinish(self, call, args) {
        yield_once().await;
        let shown = self.door().finish((self.of.uptime)(), args.session, &args.message);
        let mut shown = shown?;
        // Only a device that has the cell's key has come so far: it is of another release, and is told so.
        let request: JoinRequest = from_bytes(&shown.request).map_err(|_| AJBADARG)?;
        let outcome = self.answer(&shown, &request, call.peer().ip().to_string()).await;
        let answer = Zeroizing::new(to_bytes(&self.reply(outcome)));
        let message = shown.channel.seal(&answer).map_err(|_| AJIO)?;
        Ok(reply::JoinFinish { message: Opaque::new(message).map_err(|_| AJIO)? })
    }

    JoinInvite(self, call, args) {
        let by = self.superuser(&call)?;
        let user = user_name(&args.user).ok_or(AJBADARG)?;
        if !JoinFlags::NO_HOME.union(JoinFlags::ADMIN).contains(args.flags) {
            return Err(AJBADARG);
        }
        // A machine that has joined, and gets no token, is no use to anybody.
        let wanted = TokenFor { user: user.clone(), device: 0, enctypes: ENCTYPES.to_vec(), now: (self.of.clock)() };
        if let Err(NoToken::Cell(reason)) = (self.of.tokens)(&wanted) {
            tracing::error!(reason, "nobody can be invited");
            return Err(AJNOTOKEN);
        }
        let (digest, expires, flags) = (args.digest.0, args.expires.0, args.flags.0);
        let new = NewInvitation { digest, user: user.clone(), flags, by, expires };
        let (spare, now) = (KeyPair::generate(Chance::new(self.chance()?)), (self.of.clock)());
        let plan = move |devices: &Devices, rows: &mut Rows| devices.invite(&new, &spare, now, rows);
        let key = self.administer(call, &user, plan).await?;
        Ok(reply::JoinInvite { key: OpaqueFixed(key.0) })
    }
    JoinListInvitations(self, call, args) {
        self.superuser(&call)?;
        self.database.catch_up().await.map_err(|_| NO_QUORUM)?;
        let (now, after) = ((self.of.clock)(), Some(args.after.0).filter(|after| *after != [0; 32]));
        let invitations = self.database.read(|devices| {
            let open = devices.invitations_after(after).filter(|(_, invitation)| invitation.is_open(now));
            open.take(JOIN_LIST_MAX).map(|(digest, invitation)| invitation_info(digest, invitation)).collect()
        });
        Ok(reply::JoinListInvitations { invitations: XdrArray::new(invitations).map_err(|_| AJIO)? })
    }
    JoinListDevices(self, call, args) {
        self.superuser(&call)?;
        self.database.catch_up().await.map_err(|_| NO_QUORUM)?;
        let devices = self.database.read(|devices| {
            let page = devices.devices_after(args.after).take(JOIN_LIST_MAX);
            page.map(|(number, device)| device_info(number, device)).collect()
        });
        Ok(reply::JoinListDevices { devices: XdrArray::new(devices).map_err(|_| AJIO)? })
    }
    JoinRename(self, call, args) {
        let name = String::from_utf8(args.name.to_vec()).map_err(|_| AJBADARG)?;
        if name.is_empty() || name.contains(char::is_control) {
            return Err(AJBADARG);
        }
        let (number, what) = (args.device, format!("{} to {name}", args.device));
        let plan = move |devices: &Devices, rows: &mut Rows| devices.rename(number, &name, rows);
        self.administer(call, &what, plan).await?;
        Ok(reply::JoinRename {})
    }
    JoinRevoke(self, call, args) {
        let target = match args.target {
            JoinTarget::DEVICE => Target::Device(args.device),
            JoinTarget::USER => Target::User(user_name(&args.user).ok_or(AJBADARG)?),
            JoinTarget::ALL => Target::All,
            JoinTarget::INVITATIONS => Target::Invitations,
            _ => return Err(AJBADARG),
        };
        let (what, now) = (format!("{target:?}"), (self.of.clock)());
        let plan = move |devices: &Devices, rows: &mut Rows| devices.revoke(&target, now, rows);
        let (devices, invitations) = self.administer(call, &what, plan).await?;
        Ok(reply::JoinRevoke { devices, invitations })
    }
    JoinRotateKey(self, call, _args) {
        let (pair, now) = (KeyPair::generate(Chance::new(self.chance()?)), (self.of.clock)());
        let plan = move |devices: &Devices, rows: &mut Rows| Ok(devices.add_key(&pair, now, rows));
        let key = self.administer(call, "new key", plan).await?;
        Ok(reply::JoinRotateKey { key: OpaqueFixed(key.0) })
    }
    JoinRemoveOldKeys(self, call, _args) {
        let plan = |devices: &Devices, rows: &mut Rows| Ok(devices.remove_old_keys(rows));
        let removed = self.administer(call, "old keys", plan).await?;
        Ok(reply::JoinRemoveOldKeys { removed })
    }
    JoinApprove(self, call, args) {
        // A superuser's own device may be the thief's: only a server's console has the cell's key.
        if self.caller(&call).identity != Identity::Cell {
            return Err(AJPERM);
        }
        let number = args.device;
        let plan = move |devices: &Devices, rows: &mut Rows| devices.approve(number, rows);
        let user = self.administer(call, &format!("approve {number}"), plan).await?;
        Ok(reply::JoinApprove { user: short(&user) })
    }
    JoinRevoked(self, call, args) {
        self.superuser(&call)?;
        self.database.catch_up().await.map_err(|_| NO_QUORUM)?;
        let (version, devices) = self.database.read(Devices::revoked);
        debug_assert!(devices.len() <= DEVICES_MAX, "join() has seen to that");
        let devices = if version == args.since { Vec::new() } else { devices };
        Ok(reply::JoinRevoked { version, devices: XdrArray::new(devices).map_err(|_| AJIO)? })
    }
}
