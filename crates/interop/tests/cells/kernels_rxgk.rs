//! A kernel whose kAFS has rxgk: its user has a token of that alone, which encrypts. It is known at all servers, ends and is renewed, and what
//! the kernel says cannot be read on the way.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use afar_interop::cell::{ADDRESS, CELL_NAME, CLIENT_ADDRESS};
use afar_interop::guest::{Ended, Guest};
use afar_interop::lab::Lab;
use afar_interop::suite::{Trouble, Verdict};
use afs_lab::caller::AccessList;
use afs_lab::peers::kdc::{self, Kdc, Realm};
use afs_lab::real::capture::Capture;
use afs_lab::real::folder::Folder;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_security::keys::{EncType, Key};
use rx_security::linux_key::{self, Tokens};
use rx_security::rxgk::{Dialect, Form, RxgkTime, Token};
use rx_security::{Identity, KeySet, Level, UnixTime};

use crate::scene::{Scene, told};

/// The user of the kernel's keys.
pub(crate) const USER: &str = "alice";

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(10 * 3600);

/// So long that something can be done with a token before it ends.
const SHORT: Duration = Duration::from_secs(20);

/// A volume, a folder and a file in it, and data.
const PLANTED: [&str; 4] =
    ["plantedvolume", "planted-folder", "planted-file", "planted data: nobody's business"];

/// Gives a cell a key for rxgk, which its servers read when they first see a token. Returns all keys.
pub(crate) fn add_key(scene: &Scene) -> Result<KeySet, Trouble> {
    let folder = scene.cell.folder("srv").join("etc/server");
    let mut keys = KeySet::load(&folder).map_err(told("reading the cell's keys"))?;
    let secret: [u8; 32] = StdRng::from_os_rng().random();
    keys.insert(Key::rxgk(1, EncType::AES256, &secret)).map_err(told("adding a key"))?;
    keys.save(&folder).map_err(told("writing the cell's keys"))?;
    Ok(keys)
}

/// What a kernel is told of a token besides the truth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// That it never ends: then the servers find out.
    Endless,
    /// That a transport key is good for a MiB.
    Rekeys,
}

/// Puts a token that lives so long into the kernel's keyring, in place of the one before.
pub(crate) fn log_in(
    guest: &mut Guest,
    keys: &KeySet,
    life: Duration,
    told_more: Told,
    limit: Duration,
) -> Verdict {
    let now = SystemTime::now();
    let (start, end) = (UnixTime::of(now), UnixTime::of(now + life));
    let who = Identity::parse(USER).ok_or("the user's name is none".to_owned())?;
    let form = Form { dialect: Dialect::Yfs, kind: EncType::AES256, level: Level::Crypt };
    let token = Token::of_user(keys, form, &who, CELL_NAME, (start, end), &mut StdRng::from_os_rng());
    let mut token = token.map_err(told("a token"))?;
    match told_more {
        Told::Nothing => {}
        Told::Endless => token.end = RxgkTime::NONE,
        Told::Rekeys => token.bytelife = 20,
    }
    let payload = linux_key::payload(CELL_NAME, Tokens { rxgk: Some(&token), rxkad: None }, start);
    let payload = payload.map_err(told("a kernel's key"))?;
    let octal: String = payload.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let key = linux_key::description(CELL_NAME);
    guest.expect(limit, &format!("printf '{octal}' | keyctl padd rxrpc {key} $(keyctl id @s)"))?;
    Ok(())
}

/// What is special about rxgk. The volume `work` is mounted at /mnt.
pub(crate) fn check(lab: &Lab, scene: &Scene, guest: &mut Guest, keys: &KeySet, limit: Duration) -> Verdict {
    for more in [Told::Nothing, Told::Endless] {
        log_in(guest, keys, SHORT, more, limit)?;
        guest.expect(limit, "cd /mnt && echo one > ends && echo 3 > /proc/sys/vm/drop_caches && cat ends")?;
        let ends = "cd /mnt && while echo two > ends; do sleep 0.2; done 2> /tmp/why; cat /tmp/why";
        let why = guest.expect(limit, ends)?;
        if !["Key has expired", "Permission denied"].iter().any(|reason| why.contains(reason)) {
            return Err(format!("a token that ends: {why}").into());
        }
        log_in(guest, keys, LONG, Told::Nothing, limit)?;
        guest.expect(limit, "cd /mnt && echo three > ends && [ $(cat ends) = three ]")?;
    }
    log_in(guest, keys, LONG, Told::Rekeys, limit)?;
    let large = "dd if=/dev/urandom of=/tmp/large bs=1M count=8 2> /dev/null; cp /tmp/large /mnt/ && echo 3 > /proc/sys/vm/drop_caches && \
                 cmp /tmp/large /mnt/large && rm /tmp/large /mnt/large";
    guest.expect(limit, large)?;
    let refused = guest.run(limit, "keyctl clear $(keyctl id @s); cat /mnt/ends; echo nobody > /mnt/ends")?;
    if matches!(refused, Ended::With(0, _)) {
        return Err("without a key the kernel is somebody".to_owned().into());
    }
    secrecy(scene, guest, keys, limit)?;
    by_kerberos(lab, scene, guest, limit)
}

/// `aklog` runs in the kernel, from this machine's disk, with a ticket of a KDC. The servers do not know the realm's key for rxkad.
fn by_kerberos(lab: &Lab, scene: &Scene, guest: &mut Guest, limit: Duration) -> Verdict {
    kdc::available().map_err(Trouble::Skipped)?;
    let (folder, etc) = (Folder::new("realm"), scene.cell.folder("srv").join("etc"));
    let network = format!("{}-cli", scene.cell.name());
    let realm = Realm { name: &CELL_NAME.to_uppercase(), address: CLIENT_ADDRESS, more: "" };
    let kdc = Kdc::start_in(&folder, &realm, &["ip", "netns", "exec", &network])?;
    kdc.add_user(USER)?;
    kdc.add_service(&format!("afs/{CELL_NAME}"), "aes256-cts", &folder.join("keytab"))?;
    let negotiation = etc.join("server/rxgk.keytab");
    kdc.add_service(&format!("afs-rxgk/_afs.{CELL_NAME}"), "aes256-cts", &negotiation)?;
    kdc.kinit(USER, &[])?;
    let afar = PathBuf::from(lab.afar()?.get_program());
    let afar = afar.canonicalize().map_err(told("the program"))?;
    let aklog = format!(
        "chroot /host env KRB5_CONFIG={realm}/krb5.conf KRB5CCNAME=FILE:{realm}/ccache {} aklog -kafs -config {}",
        afar.display(),
        etc.display(),
        realm = folder.display()
    );
    // The servers read the keytab within a second.
    let command = format!(
        "mkdir -p /host && mount -t hostfs none /host && mount -o bind /proc /host/proc && \
         until {aklog}; do sleep 0.2; done && echo kerberos > /mnt/kerberos && echo 3 > /proc/sys/vm/drop_caches && cat /mnt/kerberos"
    );
    guest.expect(limit, &command)?;
    Ok(())
}

/// Nothing of what a program does can be read on the way, but without a token all of it.
fn secrecy(scene: &Scene, guest: &mut Guest, keys: &KeySet, limit: Duration) -> Verdict {
    let [volume, folder, file, data] = PLANTED;
    let everybody = AccessList::granting([("system:anyuser", AccessList::WRITE)]);
    scene.volume(ADDRESS, volume, &everybody)?;
    let network = scene.cell.clients()?;
    for is_secret in [true, false] {
        if is_secret {
            log_in(guest, keys, LONG, Told::Nothing, limit)?;
        } else {
            guest.expect(limit, "keyctl clear $(keyctl id @s)")?;
        }
        let capture =
            network.run_in(Capture::begin).map_err(told("a capture"))?.map_err(told("a capture"))?;
        guest.expect(
            limit,
            &format!(
                "mkdir -p /tmp/m && mount -t afs %{CELL_NAME}:{volume}. /tmp/m && cd /tmp/m && mkdir {folder} && \
                 yes \"{data}\" | dd of={folder}/{file} bs=1k count=200 iflag=fullblock conv=fsync && \
                 echo 3 > /proc/sys/vm/drop_caches && [ $(grep -c nobody {folder}/{file}) -gt 1000 ] && \
                 rm -r {folder} && cd / && umount /tmp/m"
            ),
        )?;
        let found = capture.end(&PLANTED);
        // The search can find all of it.
        let want: &[&str] = if is_secret { &[] } else { &PLANTED };
        if found != want {
            return Err(format!("with a token {is_secret}: {found:?} can be read on the way").into());
        }
    }
    Ok(())
}
