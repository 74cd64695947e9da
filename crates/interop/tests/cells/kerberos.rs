//! Users with the tickets of an MIT KDC, in cells of OpenAFS's servers and of ours: what `aklog` gives our mount is taken by both, and users
//! of another realm enter themselves in both protection databases.

use afs_lab::real::folder::Folder;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{ADDRESS, CELL_NAME, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::process::{self, Finished};
use afar_interop::suite::{Case, Trouble, Verdict, until};
use afs_lab::caller::AccessList;
use afs_lab::peers::kdc::{self, Kdc, Realm};

use crate::fuse;
use crate::scene::{Scene, for_both, told};

/// The realm of the cell, and one whose users are strangers in it.
const REALM: &str = "INTEROP.TEST";
const OTHER: &str = "OTHER.TEST";

/// Where their KDCs are, in the network of the cell's clients.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// The longest ticket in bytes, and the longest that OpenAFS's servers receive: a packet with more does not fit into their buffers where
/// the network carries 1500 bytes (Security notes 2.3).
const TICKET_MAX: usize = afs_wire::control::TICKET_MAX;
const OPENAFS_TICKET_MAX: usize = 8436;

/// How long a command may take, and how long servers may take to read a new key.
const TIMEOUT: Duration = Duration::from_secs(60);

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    for_both(lab, "kerberos/users_of_two_realms_have_what_is_theirs", check).collect()
}

/// A cell with two realms and our mount.
struct World {
    scene: Scene,
    folder: Folder,
    own: Kdc,
    _other: Kdc,
    mount: OurMount,
    afar: PathBuf,
}

impl World {
    fn new(lab: &Lab, servers: &Servers) -> Result<Self, Trouble> {
        kdc::available().map_err(Trouble::Skipped)?;
        let scene = fuse::scene(lab, servers)?;
        let list =
            AccessList::granting([("system:administrators", AccessList::ALL), ("alice", AccessList::ALL)]);
        scene.volume(ADDRESS, "private", &list)?;
        let folder = Folder::new("local");
        let network = format!("{}-cli", scene.cell.name());
        let wrapper = ["ip", "netns", "exec", &network];
        let realm = |name: &str, address: Ipv4Addr, other: &str, there: Ipv4Addr| {
            let at = folder.join(name);
            fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
            let more = format!("[realms]\n {other} = {{\n  kdc = {there}:8888\n }}\n[libdefaults]\n");
            Kdc::start_in(&at, &Realm { name, address, more: &more }, &wrapper)
        };
        let own = realm(REALM, ADDRESSES[0], OTHER, ADDRESSES[1])?;
        let other = realm(OTHER, ADDRESSES[1], REALM, ADDRESSES[0])?;
        own.add_user("admin")?;
        own.add_user("alice")?;
        other.add_user("frank")?;
        // Users of the other realm come over here: both KDCs have this key.
        for kdc in [&own, &other] {
            kdc.admin(&format!("addprinc -pw between -e aes256-cts:normal krbtgt/{REALM}@{OTHER}"))?;
        }
        let keytab = folder.join("keytab");
        own.add_service(&format!("afs/{CELL_NAME}"), "aes256-cts", &keytab)?;
        let afar = PathBuf::from(lab.afar()?.get_program());
        let mount = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
        // The first key of a principal that is made anew and then put into a keytab is its second.
        let keytab = keytab.display();
        scene.cell.expect(&format!("asetkey add rxkad_krb5 2 18 {keytab} afs/{CELL_NAME}@{REALM}"))?;
        Ok(Self { scene, folder, own, _other: other, mount, afar })
    }

    fn place(&self) -> PathBuf {
        self.mount.path().join(CELL_NAME).join("scratch")
    }

    /// One of our commands, where the cell's clients are.
    fn afar(&self, words: &[&str]) -> Result<Finished, Trouble> {
        let mut command = self.scene.cell.clients()?.command(&self.afar);
        self.own.prepare(&mut command);
        command.env("AFAR_SOCKET", self.mount.socket()?).current_dir(self.place());
        Ok(process::run(command.args(words), TIMEOUT)?)
    }

    /// The same, which has to succeed.
    fn expect(&self, words: &[&str]) -> Result<String, Trouble> {
        let done = self.afar(words)?;
        match done.status {
            Some(0) => Ok(done.stdout),
            status => Err(format!("{words:?}: {status:?}: {}{}", done.stdout, done.stderr).into()),
        }
    }

    /// A failure with the last that OpenAFS's servers wrote into their logs; ours have none there.
    fn with_logs(&self, trouble: Trouble) -> Trouble {
        let Trouble::Failed(mut why) = trouble else { return trouble };
        for name in ["FileLog", "PtLog"] {
            let log = fs::read_to_string(self.scene.cell.folder("srv").join("log").join(name));
            let lines: Vec<&str> = log.as_deref().unwrap_or_default().lines().collect();
            for line in &lines[lines.len().saturating_sub(5)..] {
                why = format!("{why}\n{name}: {line}");
            }
        }
        Trouble::Failed(why)
    }

    fn can_write(&self, path: &str) -> bool {
        let file = self.place().join(path);
        let mut command = Command::new("bash");
        command.args(["-c", "echo text > \"$1\"", "bash"]).arg(file);
        process::run(&mut command, TIMEOUT).is_ok_and(|done| done.status == Some(0))
    }
}

fn check(lab: &Lab, servers: &Servers) -> Verdict {
    let world = World::new(lab, servers)?;
    users(&world, servers).map_err(|trouble| world.with_logs(trouble))?;
    drop(world.folder);
    world.mount.stop()?;
    Ok(())
}

fn users(world: &World, servers: &Servers) -> Verdict {
    world.own.kinit("admin", &[])?;
    until("an administrator may make a mount point", || {
        // A server that had not read the key yet has refused the token.
        world.expect(&["aklog", "-force"])?;
        Ok(world.afar(&["fs", "mkmount", "private", "private"])?.status == Some(0))
    })?;
    administers(world, "admin", true)?;
    world.expect(&["unlog"])?;
    if world.can_write("private/file") {
        return Err("root without a token is somebody".to_owned().into());
    }
    world.own.kinit("alice", &[])?;
    world.expect(&["aklog"])?;
    if !world.can_write("private/file") {
        return Err("alice may not write where she may".to_owned().into());
    }
    administers(world, "alice", false)?;
    let tokens = world.expect(&["tokens"])?;
    if !tokens.contains(&format!("\nUser's (AFS ID 1001) rxkad tokens for {CELL_NAME} [Expires ")) {
        return Err(format!("tokens says {tokens}").into());
    }
    // OpenAFS's file server takes alice for nobody as long as its protection server does not answer.
    until("fs listacl shows alice what she may", || {
        let done = world.afar(&["fs", "listacl", "private"])?;
        match done.status {
            Some(0) if done.stdout.contains("alice rlidwka") => Ok(true),
            Some(1) if matches!(servers, Servers::Stock) => Ok(false),
            _ => Err(format!("fs listacl says {done:?}").into()),
        }
    })?;
    world.expect(&["unlog"])?;
    until("nobody may write there", || Ok(!world.can_write("private/file")))?;
    longest_ticket(world, servers).map_err(told_of("the longest ticket"))?;
    strangers(world).map_err(told_of("a user of another realm"))
}

/// Our commands call servers with the token that the client has; whether its owner may do what administrators do.
fn administers(world: &World, name: &str, may: bool) -> Verdict {
    let config = world.scene.cell.folder("srv").join("etc").display().to_string();
    let (user, volume, server) = (format!("made-by-{name}"), format!("of.{name}"), ADDRESS.to_string());
    for words in [&["pts", "createuser", &user][..], &["vos", "create", &server, "a", &volume]] {
        // Each server reads a new key by itself, and some of them later than the file server.
        until(&format!("{words:?} by {name} comes to what is expected"), || {
            let done = world.afar(&[words, &["-config", &config]].concat())?;
            let is_refused = ["Permission denied", "no permission access", "not authorized"]
                .iter()
                .any(|why| done.stderr.contains(why));
            Ok((done.status == Some(0)) == may
                && is_refused != may
                && !done.stderr.contains("running unauthenticated"))
        })?;
    }
    Ok(())
}

fn told_of(what: &str) -> impl Fn(Trouble) -> Trouble {
    move |trouble| match trouble {
        Trouble::Failed(why) => Trouble::Failed(format!("{what}: {why}")),
        skipped => skipped,
    }
}

/// A ticket as long as AFS takes, as those of realms that put many groups into it.
fn longest_ticket(world: &World, servers: &Servers) -> Verdict {
    let longest = match servers {
        Servers::Stock => OPENAFS_TICKET_MAX,
        Servers::Afar(_) => TICKET_MAX,
    };
    let program = world.folder.join("ticket");
    kdc::ticket_program(&program)?;
    let get = |more: usize| -> Result<usize, Trouble> {
        world.own.kinit("alice", &[])?;
        let mut command = world.scene.cell.clients()?.command(&program);
        world.own.prepare(&mut command);
        let service = format!("afs/{CELL_NAME}@{REALM}");
        let done = process::run(command.args([&service, &more.to_string()]), TIMEOUT)?;
        done.stdout.trim().parse().map_err(|_| format!("{more} bytes more: {done:?}").into())
    };
    // A ticket has 19 bytes more if it begins in a later second than its owner logged in.
    let mut overhead = get(1000)? - 1000;
    let mut length = get(longest - overhead)?;
    for _ in 0..10 {
        if length != longest {
            overhead = overhead + length - longest;
            length = get(longest - overhead)?;
        }
    }
    if length != longest {
        return Err(format!("a ticket of {length} bytes").into());
    }
    world.expect(&["aklog", "-force"])?;
    if !world.can_write("private/by-a-long-ticket") {
        return Err("alice may not write where she may".to_owned().into());
    }
    administers(world, "alice", false)?;
    world.expect(&["unlog"])?;
    until("nobody may write there", || Ok(!world.can_write("private/by-a-long-ticket")))
}

/// A user of another realm has a ticket for the cell by way of its realm, and a number in the cell from the first time on.
fn strangers(world: &World) -> Verdict {
    world.own.kinit(&format!("frank@{OTHER}"), &[])?;
    let said = world.afar(&["aklog"])?;
    if said.status != Some(0) || !said.stderr.contains("unable to create remote PTS user frank@other.test") {
        return Err(format!("without a group for the realm: {said:?}").into());
    }
    until("the protection database takes the new key", || {
        Ok(world.scene.cell.expect("pts creategroup system:authuser@other.test -localauth").is_ok())
    })?;
    let said = world.expect(&["aklog", "-force"])?;
    if !said.starts_with("created cross-cell entry for frank@other.test (Id ") {
        return Err(format!("aklog says {said:?}").into());
    }
    let id = said.split("(Id ").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
    let shown = world.scene.cell.expect("pts examine frank@other.test -localauth")?;
    if !shown.contains(&format!("id: {id},")) {
        return Err(format!("pts says {shown:?} of {id}").into());
    }
    let tokens = world.expect(&["tokens"])?;
    if !tokens.contains(&format!("(AFS ID {id})")) {
        return Err(format!("tokens says {tokens}").into());
    }
    let file = world.place().join("of-frank");
    fs::write(&file, "text").map_err(told("a file of frank's"))?;
    let again = world.expect(&["aklog", "-force"])?;
    if !again.is_empty() || !Path::new(&file).exists() {
        return Err(format!("the second time: {again:?}").into());
    }
    Ok(())
}
