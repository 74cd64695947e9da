//! The table of the experiments, and what they share. Each is a file of its own.

mod behind;
mod bulk;
mod cached;
mod calls;
mod cold;
mod create;
mod crowd;
mod encrypted;
mod far;
mod hot;
mod idle;
mod invited;
mod loopback;
mod loss;
mod meanwhile;
mod motion;
mod owners;
mod ramp;
mod served;
mod share;
mod site;
mod sizes;
mod smallcalls;
mod snapshots;
mod startup;
mod stock;
mod stockcold;
mod threads;
mod vanished;
mod vldb;
mod wan;

use std::time::Duration;

use crate::record::Experiment;

/// All experiments, in the order in which they run and are reported.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "far",
        title: "Far away: a long file through a mount, beside OpenAFS",
        is_main: true,
        run: far::run,
    },
    Experiment { name: "site", title: "The day of a small site, far away", is_main: true, run: site::run },
    Experiment {
        name: "invited",
        title: "The same by invitation, through NAT, encrypted and in the clear",
        is_main: true,
        run: invited::run,
    },
    Experiment {
        name: "encrypted",
        title: "One call encrypted, beside TLS",
        is_main: false,
        run: encrypted::run,
    },
    Experiment {
        name: "served",
        title: "Web servers with documents in a mount, beside the local disk",
        is_main: true,
        run: served::run,
    },
    Experiment {
        name: "meanwhile",
        title: "Small cached files while a large one is fetched",
        is_main: true,
        run: meanwhile::run,
    },
    Experiment {
        name: "sizes",
        title: "Small files and large ones, beside OpenAFS and the local disk",
        is_main: true,
        run: sizes::run,
    },
    Experiment {
        name: "behind",
        title: "Closes a second with write-behind, beside OpenAFS and the local disk",
        is_main: true,
        run: behind::run,
    },
    Experiment {
        name: "wan",
        title: "One call over 1 Gbit/s and 12.5 to 200 ms",
        is_main: false,
        run: wan::run,
    },
    Experiment { name: "ramp", title: "How soon a call has the whole link", is_main: false, run: ramp::run },
    Experiment {
        name: "loss",
        title: "One call over links that lose, reorder or queue little",
        is_main: false,
        run: loss::run,
    },
    Experiment {
        name: "share",
        title: "Beside TCP, beside our own, and the queue that we leave",
        is_main: false,
        run: share::run,
    },
    Experiment { name: "crowd", title: "A server under a crowd of clients", is_main: true, run: crowd::run },
    Experiment {
        name: "hot",
        title: "A file server under a crowd of clients, beside OpenAFS's",
        is_main: true,
        run: hot::run,
    },
    Experiment {
        name: "owners",
        title: "A user on many hosts beside a user on one",
        is_main: false,
        run: owners::run,
    },
    Experiment {
        name: "loopback",
        title: "One call on the loopback interface",
        is_main: false,
        run: loopback::run,
    },
    Experiment { name: "calls", title: "Empty calls per second", is_main: false, run: calls::run },
    Experiment { name: "idle", title: "Memory of idle connections", is_main: false, run: idle::run },
    Experiment { name: "vldb", title: "Look-ups of volumes by name", is_main: false, run: vldb::run },
    Experiment { name: "stock", title: "Against OpenAFS's Rx", is_main: false, run: stock::run },
    Experiment {
        name: "smallcalls",
        title: "Files made and looked at, beside OpenAFS's file server",
        is_main: false,
        run: smallcalls::run,
    },
    Experiment {
        name: "bulk",
        title: "A gigabyte to and from a file server, beside OpenAFS's",
        is_main: false,
        run: bulk::run,
    },
    Experiment {
        name: "motion",
        title: "Volumes dumped, restored, moved and released over a long link",
        is_main: false,
        run: motion::run,
    },
    Experiment {
        name: "snapshots",
        title: "Snapshots of a volume, one a second, and their removal",
        is_main: false,
        run: snapshots::run,
    },
    Experiment {
        name: "startup",
        title: "Start of a file server with many volumes, beside OpenAFS's",
        is_main: false,
        run: startup::run,
    },
    Experiment {
        name: "vanished",
        title: "A writer after clients that vanished, beside OpenAFS's",
        is_main: false,
        run: vanished::run,
    },
    Experiment {
        name: "cached",
        title: "Cached files in a mount, beside the local file system and an empty FUSE mount",
        is_main: true,
        run: cached::run,
    },
    Experiment {
        name: "threads",
        title: "Threads of a mount that answer the kernel, for programs that read at once",
        is_main: false,
        run: threads::run,
    },
    Experiment {
        name: "cold",
        title: "Reading and listing far from our servers, with an empty cache",
        is_main: false,
        run: cold::run,
    },
    Experiment {
        name: "create",
        title: "Small files made in a mount, beside an empty FUSE mount and empty calls",
        is_main: false,
        run: create::run,
    },
    Experiment {
        name: "stockcold",
        title: "Reading from OpenAFS's file server with an empty cache, beside afsd.fuse",
        is_main: false,
        run: stockcold::run,
    },
];

/// The round trips of the emulated links.
const RTTS: [Duration; 4] = [
    Duration::from_micros(12_500),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// The request of a client: to receive, or to send.
const DIRECTIONS: [&str; 2] = ["recv", "send"];

/// A round trip as it is written in labels.
fn rtt_text(rtt: Duration) -> String {
    format!("{} ms", rtt.as_secs_f64() * 1e3)
}
