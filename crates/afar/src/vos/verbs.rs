//! The table of the verbs of `vos`: their options, in OpenAFS's order, and what `help` says of them. What they do is in files of
//! their own.

use crate::classic::{Command, Opt};
use crate::suite::{Suite, Verb};

/// The options of a verb, and behind them those that all verbs have.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::single("cell", "cell name").or("c"),
        Opt::flag("noauth", "don't authenticate"),
        Opt::flag("localauth", "use server tickets"),
        Opt::flag("verbose", "verbose"),
        Opt::flag("encrypt", "encrypt commands"),
        Opt::flag("clear", "do not encrypt").ours(),
        Opt::flag("noresolve", "don't resolve addresses"),
        Opt::single("config", "config location"),
        Opt::flag("json", "write JSON").ours(),
    ] };
}

const SERVER: Opt = Opt::single("server", "machine name");
const PARTITION: Opt = Opt::single("partition", "partition name");
const ID: Opt = Opt::single("id", "volume name or ID");
const FROM_SERVER: Opt = Opt::single("fromserver", "machine name on source");
const FROM_PARTITION: Opt = Opt::single("frompartition", "partition name on source");
const TO_SERVER: Opt = Opt::single("toserver", "machine name on destination");
const TO_PARTITION: Opt = Opt::single("topartition", "partition name on destination");
const FORCE: Opt = Opt::flag("force", "let the volume lose its security level if the destination knows none");
const DRY_RUN: Opt = Opt::flag("dryrun", "list what would be done, don't do it");

/// A row of the table.
macro_rules! verb {
    ($module:ident $(or $alias:literal)*, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("vos ", stringify!($module)), options: $options },
            about: $about,
            aliases: &[$( $alias ),*],
            run: |given| super::run(given, super::$module::run),
        }
    };
    // A verb whose name a module cannot have.
    ($name:literal in $module:ident, $about:literal, $options:expr) => {
        Verb {
            command: Command { name: concat!("vos ", $name), options: $options },
            about: $about,
            aliases: &[],
            run: |given| super::run(given, super::$module::run),
        }
    };
}

/// The suite.
pub(super) static SUITE: Suite = Suite {
    name: "vos",
    misuse_status: |_| super::Stop::RETURNED.0,
    verbs: &[
        verb!(
            addsite,
            "add a replication site",
            options![
                Opt::single("server", "machine name for new site").required(),
                Opt::single("partition", "partition name for new site").required(),
                ID.required(),
                Opt::single("roid", "volume name or ID for RO"),
                Opt::flag("valid", "publish as an up-to-date site in VLDB"),
            ]
        ),
        verb!(backup, "make backup of a volume", options![ID.required()]),
        verb!(
            backupsys,
            "en masse backups",
            options![
                Opt::list("prefix", "common prefix on volume(s)"),
                SERVER,
                PARTITION,
                Opt::flag("exclude", "exclude common prefix volumes"),
                Opt::list("xprefix", "negative prefix on volume(s)"),
                DRY_RUN,
            ]
        ),
        verb!(
            changeaddr,
            "change the IP address of a file server",
            options![
                Opt::single("oldaddr", "original IP address").required(),
                Opt::single("newaddr", "new IP address"),
                Opt::flag("remove", "remove the IP address from the VLDB"),
                Opt::flag("force", "allow multi-homed server entry change (not recommended)"),
            ]
        ),
        verb!(
            changeloc,
            "change an RW volume's location in the VLDB",
            options![
                Opt::single("server", "machine name for new location").required(),
                Opt::single("partition", "partition name for new location").required(),
                ID.required(),
            ]
        ),
        verb!(
            clone,
            "make clone of a volume",
            options![
                ID.required(),
                Opt::single("server", "server"),
                Opt::single("partition", "partition"),
                Opt::single("toname", "volume name on destination"),
                Opt::single("toid", "volume ID on destination"),
                Opt::flag("offline", "leave clone volume offline"),
                Opt::flag("readonly", "make clone volume read-only, not readwrite"),
                Opt::flag("readwrite", "make clone volume readwrite, not read-only"),
            ]
        ),
        verb!(
            "convertROtoRW" in convert_ro_to_rw,
            "convert a RO volume into a RW volume (after loss of old RW volume)",
            options![
                SERVER.required(),
                PARTITION.required(),
                ID.required(),
                Opt::flag("force", "don't ask"),
                Opt::flag("keep-ro", "also leave an RO volume at the site").ours(),
            ]
        ),
        verb!(
            copy,
            "copy a volume",
            options![
                Opt::single("id", "volume name or ID on source").required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                Opt::single("toname", "volume name on destination").required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::flag("offline", "leave new volume offline"),
                Opt::flag("readonly", "make new volume read-only"),
                Opt::flag("live", "copy live volume without cloning"),
                FORCE.ours(),
            ]
        ),
        verb!(
            create,
            "create a new volume",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("name", "volume name").required(),
                Opt::single("maxquota", "initial quota (KB)"),
                Opt::single("id", "volume ID"),
                Opt::single("roid", "readonly volume ID"),
            ]
        ),
        verb!(
            delentry,
            "delete VLDB entry for a volume",
            options![
                Opt::list("id", "volume name or ID"),
                Opt::single("prefix", "prefix of the volume whose VLDB entry is to be deleted"),
                SERVER,
                PARTITION,
                Opt::flag("noexecute", "").hidden(),
                DRY_RUN,
            ]
        ),
        verb!(
            dump,
            "dump a volume",
            options![
                ID.required(),
                Opt::single("time", "dump from time"),
                Opt::single("file", "dump file"),
                Opt::single("server", "server"),
                Opt::single("partition", "partition"),
                Opt::flag("clone", "dump a clone of the volume"),
                Opt::flag("omitdirs", "omit unchanged directories from an incremental dump"),
            ]
        ),
        verb!(
            endtrans,
            "end a volserver transaction",
            options![SERVER.required(), Opt::single("transaction", "transaction ID").required(),]
        ),
        verb!(examine or "e" or "volinfo", "everything about the volume", options![
            ID.required(),
            Opt::flag("extended", "list extended volume fields"),
            Opt::flag("format", "machine readable format"),
        ]),
        verb!(
            listaddrs,
            "list the IP address of all file servers registered in the VLDB",
            options![
                Opt::single("uuid", "uuid of server"),
                Opt::single("host", "address of host"),
                Opt::flag("printuuid", "print uuid of hosts"),
            ]
        ),
        verb!(listpart, "list partitions", options![SERVER.required()]),
        verb!(
            listvldb,
            "list volumes in the VLDB",
            options![
                Opt::single("name", "volume name or ID"),
                SERVER,
                PARTITION,
                Opt::flag("locked", "locked volumes only"),
                Opt::flag("quiet", "generate minimal information"),
                Opt::flag("nosort", "do not alphabetically sort the volume names"),
            ]
        ),
        verb!(
            listvol,
            "list volumes on server (bypass VLDB)",
            options![
                SERVER.required(),
                PARTITION,
                Opt::flag("fast", "minimal listing"),
                Opt::flag("long", "list all normal volume fields"),
                Opt::flag("quiet", "generate minimal information"),
                Opt::flag("extended", "list extended volume fields"),
                Opt::flag("format", "machine readable format"),
                Opt::flag("half", "list only volumes whose transfer was interrupted").ours(),
                Opt::flag("snapshots", "list only snapshots, which are not listed otherwise").ours(),
            ]
        ),
        verb!(lock, "lock VLDB entry for a volume", options![ID.required()]),
        verb!(
            "move" in relocate,
            "move a volume",
            options![
                ID.required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::flag("live", "copy live volume without cloning"),
                FORCE.ours(),
            ]
        ),
        verb!(
            offline,
            "force the volume status to offline",
            options![
                Opt::single("server", "server name").required(),
                PARTITION.required(),
                ID.required(),
                Opt::single("sleep", "seconds to sleep"),
                Opt::flag("busy", "busy volume"),
            ]
        ),
        verb!(
            online,
            "force the volume status to online",
            options![Opt::single("server", "server name").required(), PARTITION.required(), ID.required(),]
        ),
        verb!(
            partinfo,
            "list partition information",
            options![SERVER.required(), PARTITION, Opt::flag("summary", "print storage summary"),]
        ),
        verb!(
            release,
            "release a volume",
            options![
                ID.required(),
                Opt::flag("force", "force a complete release and full dumps").or("f"),
                Opt::flag("force-reclone", "force a reclone and complete release with incremental dumps"),
            ]
        ),
        verb!(
            remaddrs,
            "remove the list of IP addresses for a given UUID in the VLDB",
            options![Opt::single("uuid", "uuid of server").required()]
        ),
        verb!(
            remove,
            "delete a volume",
            options![
                SERVER,
                PARTITION,
                ID.required(),
                Opt::flag("snapshots", "also delete the volume's snapshots on the partition").ours(),
            ]
        ),
        verb!(
            remsite,
            "remove a replication site",
            options![SERVER.required(), PARTITION.required(), ID.required(),]
        ),
        verb!(
            rename,
            "rename a volume",
            options![
                Opt::single("oldname", "old volume name ").required(),
                Opt::single("newname", "new volume name ").required(),
            ]
        ),
        verb!(
            restore,
            "restore a volume",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("name", "name of volume to be restored").required(),
                Opt::single("file", "dump file"),
                Opt::single("id", "volume ID"),
                Opt::single("overwrite", "abort | full | incremental"),
                Opt::flag("offline", "leave restored volume offline"),
                Opt::flag("readonly", "make restored volume read-only"),
                Opt::single("creation", "dump | keep | new"),
                Opt::single("lastupdate", "dump | keep | new"),
                Opt::flag("nodelete", "do not delete old site when restoring to a new site"),
                FORCE.ours(),
            ]
        ),
        verb!(
            setaddrs,
            "set the list of IP addresses for a given UUID in the VLDB",
            options![
                Opt::single("uuid", "uuid of server").required(),
                Opt::list("host", "address of host").required(),
            ]
        ),
        verb!(
            setfields,
            "change volume info fields",
            options![
                ID.required(),
                Opt::single("maxquota", "quota (KB)"),
                Opt::flag("clearuse", "clear dayUse"),
                Opt::flag("clearVolUpCounter", "clear volUpdateCounter"),
                Opt::single("level", "least security level to serve it at: clear | auth | crypt").ours(),
            ]
        ),
        verb!(
            shadow,
            "make or update a shadow volume",
            options![
                Opt::single("id", "volume name or ID on source").required(),
                FROM_SERVER.required(),
                FROM_PARTITION.required(),
                TO_SERVER.required(),
                TO_PARTITION.required(),
                Opt::single("toname", "volume name on destination"),
                Opt::single("toid", "volume ID on destination"),
                Opt::flag("offline", "leave shadow volume offline"),
                Opt::flag("readonly", "make shadow volume read-only"),
                Opt::flag("live", "copy live volume without cloning"),
                Opt::flag("incremental", "do incremental update if target exists"),
                FORCE.ours(),
            ]
        ),
        verb!(
            size,
            "obtain various sizes of the volume.",
            options![
                ID.required(),
                PARTITION,
                SERVER,
                Opt::flag("dump", "Obtain the size of the dump"),
                Opt::single("time", "dump from time"),
            ]
        ),
        verb!(
            snapshot,
            "make, list, remove or publish snapshots of a volume, or set when they are made",
            options![
                Opt::single("action", "create | list | remove | schedule | publish | unpublish").required(),
                ID.required(),
                Opt::list("time", "UTC time of a snapshot, such as 2026-11-28T030000Z"),
                Opt::single("server", "machine name, of snapshots that their volume has left").ours(),
                Opt::single("hourly", "schedule: number of hourly ones that are kept").ours(),
                Opt::single("daily", "schedule: number of daily ones").ours(),
                Opt::single("weekly", "schedule: number of weekly ones").ours(),
                Opt::single("monthly", "schedule: number of monthly ones").ours(),
                Opt::flag("default", "schedule: go by the server's again").ours(),
                Opt::single(
                    "limit",
                    "schedule: most KB that snapshots may hold, such as 10G, 0 for any, or quota"
                )
                .ours(),
                Opt::single("name", "publish: name of the volume that clients can mount").ours(),
                Opt::flag("force", "publish: don't ask").ours(),
            ]
        ),
        verb!(status, "report on volser status", options![SERVER.required()]),
        verb!(syncserv, "synchronize server with VLDB", options![SERVER.required(), PARTITION, DRY_RUN]),
        verb!(
            syncvldb,
            "synchronize VLDB with server",
            options![SERVER, PARTITION, Opt::single("volume", "volume name or ID"), DRY_RUN,]
        ),
        verb!(
            undelete,
            "bring a removed volume back",
            options![
                ID.required(),
                Opt::single("toname", "another name for the volume").ours(),
                Opt::single("time", "UTC time at which it was removed, such as 2026-11-28T030000Z").ours(),
                Opt::single("server", "machine name, to ask no other one").ours(),
            ]
        ),
        verb!(unlock, "release lock on VLDB entry for a volume", options![ID.required()]),
        verb!(unlockvldb, "unlock all the locked entries in the VLDB", options![SERVER, PARTITION]),
        verb!(
            zap,
            "delete the volume, don't bother with VLDB",
            options![
                SERVER.required(),
                PARTITION.required(),
                Opt::single("id", "volume ID").required(),
                Opt::flag("force", "force deletion of bad volumes"),
                Opt::flag("backup", "also delete backup volume if one is found"),
            ]
        ),
    ],
};
