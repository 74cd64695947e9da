//! Debian's kernels in qemu, or in user mode, whose kAFS, or OpenAFS's module in them, works in a cell of our servers: it reads and writes, it goes on after a server's
//! death and after a loss of power, and it follows a volume that moves. One boot a kernel has all checks in it, since booting takes longest.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{ADDRESS, CELL_NAME, Machine};
use afar_interop::guest::Guest;
use afar_interop::lab::Lab;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::AccessList;

use crate::fuse;
use crate::kernels_rxgk::{self, LONG, Told};
use crate::scene::Scene;

/// A client in a machine's kernel.
#[derive(Debug, Clone, Copy)]
struct Client {
    name: &'static str,
    /// The machine, as scripts/kernels.sh calls it.
    machine: &'static str,
    /// The command that mounts the volume `work` at /mnt.
    mount: &'static str,
    /// True if its user has a token of rxgk, without which nobody may do anything.
    has_rxgk: bool,
    /// The longest time of a command. Each needs a second or so on a machine that does nothing else.
    limit: Duration,
}

const KAFS: &str = "echo add CELL ADDRESS > /proc/fs/afs/cells; mount -t afs %CELL:work. /mnt && ls /mnt";

const OPENAFS: &str = "insmod /lib/openafs.ko && mkdir -p /afs /etc/openafs && cd /etc/openafs && echo CELL > ThisCell && \
    printf '>CELL\\nADDRESS #srv\\n' > CellServDB && echo /afs:/tmp/cache:20000 > cacheinfo && afsd -memcache -blocks 20000 -dynroot -confdir . && \
    rmdir /mnt && ln -s /afs/CELL/work /mnt && ls /mnt/";

const MINUTE: Duration = Duration::from_secs(60);

const CLIENTS: [Client; 4] = [
    Client { name: "kafs_of_linux_6.1", machine: "6.1", mount: KAFS, has_rxgk: false, limit: MINUTE },
    Client { name: "kafs_of_linux_6.12", machine: "6.12", mount: KAFS, has_rxgk: false, limit: MINUTE },
    // It looks after a server that was away each three minutes.
    Client {
        name: WITH_MODULE,
        machine: "6.1-openafs",
        mount: OPENAFS,
        has_rxgk: false,
        limit: Duration::from_secs(600),
    },
    Client { name: WITH_RXGK, machine: "rxgk", mount: KAFS, has_rxgk: true, limit: MINUTE },
];

/// OpenAFS's module takes minutes to be built: the case is there where AFAR_OPENAFS_MODULE is set.
const WITH_MODULE: &str = "openafs_in_linux_6.1";

/// So does a kernel with rxgk: the case is there where AFAR_RXGK_KERNEL is set.
const WITH_RXGK: &str = "kafs_with_rxgk_of_linux_7.2";

/// Moves of the volume under a program.
const MOVES: usize = 3;

/// What a client alone can check.
const WORK: &str = "set -e; cd /mnt; dd if=/dev/urandom of=/tmp/f bs=1k count=500 2> /dev/null; cp /tmp/f f; echo 3 > /proc/sys/vm/drop_caches; \
    cmp f /tmp/f; echo one > a; echo two >> a; mv a b; ln b c; ln -s b d; [ $(cat d | wc -l) = 2 ]; truncate -s 4 b; [ $(cat c) = one ]; \
    mkdir e; touch e/g; rm -r e; [ $(ls | wc -l) = 4 ]";

/// A program that writes files anew and reads them, and goes on if it meets an error: what it may not do is stand still.
const PROGRAM: &str = "cd /mnt; (until [ -e /tmp/stop ]; do for n in 1 2 3; do dd if=/dev/zero of=w$n bs=1k count=100 conv=fsync; cat w$n > /dev/null; \
    echo line >> log; rm -f w$n; done; echo >> /tmp/rounds; done > /tmp/program 2>&1) & echo $! > /tmp/pid";

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let case = |client: Client| {
        let lab = Arc::clone(lab);
        // It is to boot while others run.
        Case::new(format!("kernels/{}", client.name), Weight::Waiting, move || check(&lab, client))
    };
    let is_wanted = |client: &Client| match client.name {
        WITH_MODULE => std::env::var_os("AFAR_OPENAFS_MODULE").is_some(),
        WITH_RXGK => std::env::var_os("AFAR_RXGK_KERNEL").is_some(),
        _ => true,
    };
    CLIENTS.into_iter().filter(is_wanted).map(case).collect()
}

fn check(lab: &Lab, client: Client) -> Verdict {
    let Client { machine, mount, limit, .. } = client;
    Guest::available(lab, machine)?;
    let servers = lab.our_servers()?;
    let flags = format!("--config {}", lab.root().join("interop/kernels/server.toml").display());
    let scene = Scene::without_users(lab.cell(&Machine { flags, ..Machine::new(servers.clone()) })?)?;
    let mut guest = Guest::boot(lab, &scene.cell, machine)?;
    scene.make_users()?;
    let user = if client.has_rxgk { kernels_rxgk::USER } else { "system:anyuser" };
    let root = fuse::make_volumes(&scene, ADDRESS)?;
    scene.volume(ADDRESS, "work", &AccessList::granting([(user, AccessList::WRITE)]))?;
    fuse::mount_point(&scene, ADDRESS, root, "work", "work")?;
    let keys = if client.has_rxgk { Some(kernels_rxgk::add_key(&scene)?) } else { None };
    if let Some(keys) = &keys {
        kernels_rxgk::log_in(&mut guest, keys, LONG, Told::Nothing, limit)?;
    }
    guest.expect(limit, &mount.replace("CELL", CELL_NAME).replace("ADDRESS", &ADDRESS.to_string()))?;
    guest.expect(limit, WORK)?;
    for is_power_loss in [false, true] {
        let folder = format!("/mnt/{is_power_loss}");
        guest.expect(
            limit,
            &format!("mkdir {folder}; echo aaa > {folder}/old; echo n > {folder}/log; cat {folder}/*"),
        )?;
        end(lab, &scene, is_power_loss, limit)?;
        guest.expect(2 * limit, &format!("ls {folder}"))?;
        for (doing, command) in [
            ("a store of what was there", "echo bbb > old; [ $(cat old) = bbb ]"),
            ("more of what was there", "echo app >> log; [ $(wc -l < log) = 2 ]"),
            ("a new file", "echo new > new; [ $(cat new) = new ]"),
            (
                "what is on the server",
                "echo 3 > /proc/sys/vm/drop_caches; [ \"$(cat old log new | tr '\\n' ' ')\" = 'bbb n app new ' ]",
            ),
        ] {
            guest.expect(limit, &format!("cd {folder} && {command}")).map_err(|trouble| {
                Trouble::Failed(format!(
                    "after a {}: {doing}: {trouble:?}",
                    if is_power_loss { "power loss" } else { "kill" }
                ))
            })?;
        }
    }
    let other = scene.cell.join(3, &Machine::new(servers))?;
    guest.expect(limit, PROGRAM)?;
    let (mut from, mut to) = (ADDRESS, other);
    for _ in 0..MOVES {
        guest.expect(
            limit,
            "n=$(wc -l < /tmp/rounds); until [ $(wc -l < /tmp/rounds) -gt $((n + 1)) ]; do sleep 0.1; done",
        )?;
        scene.cell.expect(&format!("vos move work {from} a {to} a -localauth"))?;
        (from, to) = (to, from);
    }
    guest.expect(2 * limit, "touch /tmp/stop; while [ -e /proc/$(cat /tmp/pid) ]; do sleep 0.1; done")?;
    guest.expect(
        limit,
        "cd /mnt && echo moved > moved && echo 3 > /proc/sys/vm/drop_caches && [ $(cat moved) = moved ]",
    )?;
    keys.map_or(Ok(()), |keys| kernels_rxgk::check(lab, &scene, &mut guest, &keys, limit))
}

/// Kills the server and starts it again, as in another boot of the machine if the power was lost: then it believes nobody any more.
fn end(lab: &Lab, scene: &Scene, is_power_loss: bool, limit: Duration) -> Verdict {
    let script = |word: &str| {
        let mut command = Command::new(lab.root().join("interop/cell/cell-server.sh"));
        let finished = process::run(command.args([scene.cell.name(), word]), limit)?;
        if finished.status == Some(0) { Ok(()) } else { Err(finished.stderr) }
    };
    script("kill")?;
    if is_power_loss {
        let boot = scene.cell.folder("srv").join("boot");
        let text = "00000000-0000-4000-8000-000000000001\n";
        fs::write(&boot, text).map_err(|error| format!("{}: {error}", boot.display()))?;
        scene.cell.expect(&format!("mount --bind {} /proc/sys/kernel/random/boot_id", boot.display()))?;
    }
    script("start")?;
    let waits = "until vos examine work -localauth > /dev/null 2>&1; do sleep 0.2; done";
    match scene.cell.run(&["sh", "-c", waits])?.status {
        Some(0) => Ok(()),
        _ => Err("the server does not come back".to_owned().into()),
    }
}
