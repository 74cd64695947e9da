//! The finding of each experiment, in a sentence: a text with gaps, which are filled from the record's rows when the report is
//! written, so that it also holds for rows that were measured later. Which rows there are is the experiments'.

use crate::record::{Record, Row, short};

/// The filling of a gap. Labels are those that a row must have, in any order.
enum Gap {
    /// The median of a figure.
    Median(&'static str, &'static [&'static str]),
    /// The factor by which the first row's median is larger than the second's.
    Times(&'static str, [&'static [&'static str]; 2]),
    /// The least and the largest median of all rows with these labels.
    Range(&'static str, &'static [&'static str]),
}

use Gap::{Median, Range, Times};

/// The experiment, the sentence, what fills its gaps (`{}`) in their order.
type Sentence = (&'static str, &'static str, &'static [Gap]);

/// All sentences, in the order of the experiments.
const SENTENCES: &[Sentence] = &[
    (
        "far",
        "At 12.5 ms without loss a file is read at {} Mbit/s and written at {}; OpenAFS reads at {} and writes at {}, tuned at {} and {}. \
         With 1 % of loss we read at {}, OpenAFS at {}. Over a link without a limit it is {} and {} times OpenAFS's rate. Our client reads \
         from OpenAFS's server at {}, OpenAFS's client from ours at {}.",
        &[
            Median("Mbit/s", &["12.5 ms", "0 %", "afar", "read"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "afar", "write"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "OpenAFS", "read"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "OpenAFS", "write"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "OpenAFS, tuned", "read"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "OpenAFS, tuned", "write"]),
            Median("Mbit/s", &["12.5 ms", "1 %", "afar", "read"]),
            Median("Mbit/s", &["12.5 ms", "1 %", "OpenAFS", "read"]),
            Times(
                "Mbit/s",
                [&["12.5 ms, no limit", "afar", "read"], &["12.5 ms, no limit", "OpenAFS", "read"]],
            ),
            Times(
                "Mbit/s",
                [&["12.5 ms, no limit", "afar", "write"], &["12.5 ms, no limit", "OpenAFS", "write"]],
            ),
            Median("Mbit/s", &["12.5 ms", "0 %", "afar's client, OpenAFS's server", "read"]),
            Median("Mbit/s", &["12.5 ms", "0 %", "OpenAFS's client, afar's server", "read"]),
        ],
    ),
    (
        "site",
        "The film stood still for {} s in all ({} with OpenAFS), while the image came at {} MB/s ({}) and the third client got {} MB ({}).",
        &[
            Median("film stood still, s", &["afar"]),
            Median("film stood still, s", &["OpenAFS"]),
            Median("image, MB/s", &["afar"]),
            Median("image, MB/s", &["OpenAFS"]),
            Median("third client got, MB", &["afar"]),
            Median("third client got, MB", &["OpenAFS"]),
        ],
    ),
    (
        "invited",
        "Encrypted, the film stood still for {} s in all ({} in the clear), while the image came at {} MB/s ({}) and the third client got {} MB ({}).",
        &[
            Median("film stood still, s", &["crypt"]),
            Median("film stood still, s", &["clear"]),
            Median("image, MB/s", &["crypt"]),
            Median("image, MB/s", &["clear"]),
            Median("third client got, MB", &["crypt"]),
            Median("third client got, MB", &["clear"]),
        ],
    ),
    (
        "encrypted",
        "One call on loopback carries {} to {} Mbit/s by rxgk crypt, the cipher by the cell's key; by rxkad crypt {}, in the clear {}, by TLS 1.3 {}. \
         At 1 Gbit/s and 12.5 ms it is {}, {}, {} and {}.",
        &[
            Median("Mbit/s", &["loopback", "rxgk crypt, aes256-sha384", "recv"]),
            Median("Mbit/s", &["loopback", "rxgk crypt, aes128-sha1", "recv"]),
            Median("Mbit/s", &["loopback", "rxkad crypt", "recv"]),
            Median("Mbit/s", &["loopback", "clear", "recv"]),
            Median("Mbit/s", &["loopback", "TLS 1.3"]),
            Median("Mbit/s", &["1 Gbit/s, 12.5 ms", "rxgk crypt, aes256-sha1", "recv"]),
            Median("Mbit/s", &["1 Gbit/s, 12.5 ms", "rxkad crypt", "recv"]),
            Median("Mbit/s", &["1 Gbit/s, 12.5 ms", "clear", "recv"]),
            Median("Mbit/s", &["1 Gbit/s, 12.5 ms", "TLS 1.3"]),
        ],
    ),
    (
        "served",
        "Of the rate from the local disk (of an empty FUSE mount's) a mount gives Apache {} ({}) with documents of 8 KiB, {} ({}) with 1 MB, \
         {} ({}) with 50 MB; nginx {} ({}), {} ({}), {} ({}).",
        &[
            Times("requests/s", [&["apache", "8 KiB", "afar"], &["apache", "8 KiB", "local"]]),
            Times("requests/s", [&["apache", "8 KiB", "afar"], &["apache", "8 KiB", "empty mount"]]),
            Times("requests/s", [&["apache", "1 MB", "afar"], &["apache", "1 MB", "local"]]),
            Times("requests/s", [&["apache", "1 MB", "afar"], &["apache", "1 MB", "empty mount"]]),
            Times("requests/s", [&["apache", "50 MB", "afar"], &["apache", "50 MB", "local"]]),
            Times("requests/s", [&["apache", "50 MB", "afar"], &["apache", "50 MB", "empty mount"]]),
            Times("requests/s", [&["nginx", "8 KiB", "afar"], &["nginx", "8 KiB", "local"]]),
            Times("requests/s", [&["nginx", "8 KiB", "afar"], &["nginx", "8 KiB", "empty mount"]]),
            Times("requests/s", [&["nginx", "1 MB", "afar"], &["nginx", "1 MB", "local"]]),
            Times("requests/s", [&["nginx", "1 MB", "afar"], &["nginx", "1 MB", "empty mount"]]),
            Times("requests/s", [&["nginx", "50 MB", "afar"], &["nginx", "50 MB", "local"]]),
            Times("requests/s", [&["nginx", "50 MB", "afar"], &["nginx", "50 MB", "empty mount"]]),
        ],
    ),
    (
        "meanwhile",
        "While a large file is fetched, of a hundred reads of small cached files one takes more than {} ms ({} when nothing else happens); of \
         files on the local disk beside the same fetch {}; at 250 Mbit/s {} and {}; with OpenAFS's client {} ({}).",
        &[
            Median("p99 ms", &["a large file is fetched", "afar"]),
            Median("p99 ms", &["nothing else", "afar"]),
            Median("p99 ms", &["a large file is fetched", "local disk beside afar"]),
            Median("p99 ms", &["a large file is fetched at 250 Mbit/s", "afar"]),
            Median("p99 ms", &["a large file is fetched at 250 Mbit/s", "local disk beside afar"]),
            Median("p99 ms", &["a large file is fetched", "OpenAFS"]),
            Median("p99 ms", &["nothing else", "OpenAFS"]),
        ],
    ),
    (
        "sizes",
        "A thousand small files are made and stored in {} s beside the servers and {} s at 12.5 ms; OpenAFS takes {} and {}, the local disk \
         {}. Read cold at 12.5 ms they take {} s (OpenAFS {}). There the first line of the large file has come after {} s (OpenAFS {}), and one \
         byte of it is changed after {} s (OpenAFS {}).",
        &[
            Median("s", &["1000 files of 8 KiB", "none", "afar"]),
            Median("s", &["1000 files of 8 KiB", "12.5 ms", "afar"]),
            Median("s", &["1000 files of 8 KiB", "none", "OpenAFS"]),
            Median("s", &["1000 files of 8 KiB", "12.5 ms", "OpenAFS"]),
            Median("s", &["1000 files of 8 KiB", "none", "local disk"]),
            Median("cold read, s", &["1000 files of 8 KiB", "12.5 ms", "afar"]),
            Median("cold read, s", &["1000 files of 8 KiB", "12.5 ms", "OpenAFS"]),
            Median("s", &["first line of the large file", "12.5 ms", "afar"]),
            Median("s", &["first line of the large file", "12.5 ms", "OpenAFS"]),
            Median("s", &["one byte of it changed", "12.5 ms", "afar"]),
            Median("s", &["one byte of it changed", "12.5 ms", "OpenAFS"]),
        ],
    ),
    (
        "behind",
        "With write-behind {} small files are closed in a second at 12.5 ms and {} at 200 ms ('always'), or {} and {} ('second'); without it \
         {} and {}, with OpenAFS {} and {}. On the local disk a program appends {} records a second, each on the disk before the next. At 12.5 ms \
         the server gets {} files a second ('second'), without write-behind {}, with OpenAFS {}. \
         Meanwhile a write of 64 KiB of another user takes {} ms at our server and {} at dafileserver -p 23 (99th percentile; alone {} and {}).",
        &[
            Median("closes/s", &["files of 8 KiB", "12.5 ms", "afar, write-behind always"]),
            Median("closes/s", &["files of 8 KiB", "200 ms", "afar, write-behind always"]),
            Median("closes/s", &["files of 8 KiB", "12.5 ms", "afar, write-behind second"]),
            Median("closes/s", &["files of 8 KiB", "200 ms", "afar, write-behind second"]),
            Median("closes/s", &["files of 8 KiB", "12.5 ms", "afar"]),
            Median("closes/s", &["files of 8 KiB", "200 ms", "afar"]),
            Median("closes/s", &["files of 8 KiB", "12.5 ms", "OpenAFS"]),
            Median("closes/s", &["files of 8 KiB", "200 ms", "OpenAFS"]),
            Median("closes/s", &["files of 8 KiB", "12.5 ms", "local disk, a record and fdatasync each"]),
            Median("files/s at the server", &["files of 8 KiB", "12.5 ms", "afar, write-behind second"]),
            Median("files/s at the server", &["files of 8 KiB", "12.5 ms", "afar"]),
            Median("files/s at the server", &["files of 8 KiB", "12.5 ms", "OpenAFS"]),
            Median("p99 meanwhile, ms", &["64 KiB of another user meanwhile", "afar's server"]),
            Median("p99 meanwhile, ms", &["64 KiB of another user meanwhile", "dafileserver -p 23"]),
            Median("p99 alone, ms", &["64 KiB of another user meanwhile", "afar's server"]),
            Median("p99 alone, ms", &["64 KiB of another user meanwhile", "dafileserver -p 23"]),
        ],
    ),
    (
        "wan",
        "At 12.5 to 200 ms one call carries {} Mbit/s, TCP BBR {}, cubic {}.",
        &[Range("Mbit/s", &["afar"]), Range("Mbit/s", &["TCP bbr"]), Range("Mbit/s", &["TCP cubic"])],
    ),
    (
        "ramp",
        "A first call has the whole link after {} round trips at 12.5 ms and after {} at 200 ms, a next one after {} and {}.",
        &[
            Range("first call, RTTs", &["12.5 ms"]),
            Range("first call, RTTs", &["200 ms"]),
            Range("second call, RTTs", &["12.5 ms"]),
            Range("second call, RTTs", &["200 ms"]),
        ],
    ),
    (
        "loss",
        "With 1 % of loss at 12.5 to 200 ms one call carries {} Mbit/s, TCP BBR {}, cubic (at 12.5 ms) {}; with 0.1 % {}, {} and {}.",
        &[
            Range("Mbit/s", &["1 % loss", "afar"]),
            Range("Mbit/s", &["1 % loss", "TCP bbr"]),
            Range("Mbit/s", &["1 % loss", "TCP cubic"]),
            Range("Mbit/s", &["0.1 % loss", "afar"]),
            Range("Mbit/s", &["0.1 % loss", "TCP bbr"]),
            Range("Mbit/s", &["0.1 % loss", "TCP cubic"]),
        ],
    ),
    (
        "share",
        "Beside TCP BBR a call has {} % of the link, beside cubic {}; of two paths of ours the smaller has {} of the larger. The ping rises by \
         {} ms when nobody else is there.",
        &[
            Range("share, percent", &["TCP bbr"]),
            Range("share, percent", &["TCP cubic"]),
            Range("smaller / larger", &["afar"]),
            Range("ping's rise, ms", &["ping"]),
        ],
    ),
    (
        "crowd",
        "Beside 250 hosts that send, receive or do both, 64 KiB of another user take {}, {} and {} ms (99th percentile; alone {}); with \
         OpenAFS's Rx {}, {} and {}. The hosts have {}, {} and {} Mbit/s in all; OpenAFS's {}, {} and {}.",
        &[
            Median("probe p99, ms", &["afar", "250", "send"]),
            Median("probe p99, ms", &["afar", "250", "recv"]),
            Median("probe p99, ms", &["afar", "250", "both"]),
            Range("probe, idle median ms", &["afar", "250"]),
            Median("probe p99, ms", &["OpenAFS", "250", "send"]),
            Median("probe p99, ms", &["OpenAFS", "250", "recv"]),
            Median("probe p99, ms", &["OpenAFS", "250", "both"]),
            Median("Mbit/s", &["afar", "250", "send"]),
            Median("Mbit/s", &["afar", "250", "recv"]),
            Median("Mbit/s", &["afar", "250", "both"]),
            Median("Mbit/s", &["OpenAFS", "250", "send"]),
            Median("Mbit/s", &["OpenAFS", "250", "recv"]),
            Median("Mbit/s", &["OpenAFS", "250", "both"]),
        ],
    ),
    (
        "hot",
        "Beside 250 clients that write or read at {} and {} Mbit/s in all, a write of 64 KiB takes {} and {} ms (99th percentile). At dafileserver \
         as Debian sets it up they have {} and {} Mbit/s, and it takes {} and {} ms; with 128 threads and 16 MB of buffer {} and {} Mbit/s, and \
         {} and {} ms (30,000 is where it is given up).",
        &[
            Median("Mbit/s", &["afar", "250", "writing"]),
            Median("Mbit/s", &["afar", "250", "reading"]),
            Median("probe p99, ms", &["afar", "250", "writing"]),
            Median("probe p99, ms", &["afar", "250", "reading"]),
            Median("Mbit/s", &["OpenAFS, as Debian sets it up", "250", "writing"]),
            Median("Mbit/s", &["OpenAFS, as Debian sets it up", "250", "reading"]),
            Median("probe p99, ms", &["OpenAFS, as Debian sets it up", "250", "writing"]),
            Median("probe p99, ms", &["OpenAFS, as Debian sets it up", "250", "reading"]),
            Median("Mbit/s", &["OpenAFS, 128 threads and 16 MB of buffer", "250", "writing"]),
            Median("Mbit/s", &["OpenAFS, 128 threads and 16 MB of buffer", "250", "reading"]),
            Median("probe p99, ms", &["OpenAFS, 128 threads and 16 MB of buffer", "250", "writing"]),
            Median("probe p99, ms", &["OpenAFS, 128 threads and 16 MB of buffer", "250", "reading"]),
        ],
    ),
    (
        "owners",
        "Of a user on 250 hosts and one on one host, who has less has {} of the other's where all share the cores, and {} where only the \
         server is short of them.",
        &[Range("smaller / larger", &["not held"]), Range("smaller / larger", &["held to 0.3 of a core"])],
    ),
    (
        "loopback",
        "One call carries {} Mbit/s on the loopback interface, OpenAFS's {}, TCP {}.",
        &[Range("Mbit/s", &["afar"]), Range("Mbit/s", &["OpenAFS"]), Range("Mbit/s", &["TCP"])],
    ),
    (
        "calls",
        "{} empty calls a second one at a time and {} with 64 at once; OpenAFS {} and {}.",
        &[
            Median("calls/s", &["afar", "1"]),
            Median("calls/s", &["afar", "64"]),
            Median("calls/s", &["OpenAFS", "1"]),
            Median("calls/s", &["OpenAFS", "64"]),
        ],
    ),
    (
        "idle",
        "Each of 100,000 idle connections takes {} bytes at the server and {} at the client.",
        &[Median("server, bytes/connection", &["100000"]), Median("client, bytes/connection", &["100000"])],
    ),
    (
        "vldb",
        "{} volumes a second are looked up by 64 callers through Rx, {} by one, {} in memory.",
        &[
            Median("look-ups/s", &["Rx, 64 callers"]),
            Median("look-ups/s", &["Rx, 1 callers"]),
            Median("look-ups/s", &["memory"]),
        ],
    ),
    (
        "stock",
        "Without delay a call between us and OpenAFS carries {} Mbit/s (ours calls) and {} (OpenAFS's), between two of OpenAFS's {}, with its \
         jumbograms {}. At 12.5 ms its window is the limit, {} for whoever calls.",
        &[
            Range("Mbit/s", &["0 ms", "afar to OpenAFS"]),
            Range("Mbit/s", &["0 ms", "OpenAFS to afar"]),
            Range("Mbit/s", &["0 ms", "OpenAFS to OpenAFS"]),
            Range("Mbit/s", &["0 ms", "OpenAFS to OpenAFS, jumbograms"]),
            Range("Mbit/s", &["12.5 ms", "afar to OpenAFS"]),
        ],
    ),
    (
        "smallcalls",
        "For each CPU second of the server {} files are made and {} looked at with 64 calls at once, OpenAFS's {} and {}.",
        &[
            Median("operations/server CPU s", &["CreateFile and StoreData", "64", "afar"]),
            Median("operations/server CPU s", &["FetchStatus", "64", "afar"]),
            Median("operations/server CPU s", &["CreateFile and StoreData", "64", "OpenAFS"]),
            Median("operations/server CPU s", &["FetchStatus", "64", "OpenAFS"]),
        ],
    ),
    (
        "bulk",
        "A gigabyte is stored at {} MB/s and fetched at {} in one call, with OpenAFS's file server at {} and {}.",
        &[
            Median("MB/s", &["StoreData", "one call", "afar"]),
            Median("MB/s", &["FetchData", "one call", "afar"]),
            Median("MB/s", &["StoreData", "one call", "OpenAFS"]),
            Median("MB/s", &["FetchData", "one call", "OpenAFS"]),
        ],
    ),
    (
        "motion",
        "At 50 ms and 1 Gbit/s, a volume of 1 GB is dumped at {} Mbit/s, restored at {}, moved at {} and released at {}; one call of rxperf has {}. \
         OpenAFS dumps at {} and restores at {}. The release of one changed file of 200,000 takes {} s.",
        &[
            Median("Mbit/s", &["dump", "afar"]),
            Median("Mbit/s", &["restore", "afar"]),
            Median("Mbit/s", &["move", "afar"]),
            Median("Mbit/s", &["release", "afar"]),
            Median("Mbit/s", &["rxperf", "afar"]),
            Median("Mbit/s", &["dump", "OpenAFS"]),
            Median("Mbit/s", &["restore", "OpenAFS"]),
            Median("s", &["release, one file changed", "afar"]),
        ],
    ),
    (
        "snapshots",
        "A snapshot takes at most {} ms of a volume of 100 files, {} of one of 100,000, and {} as one of hundreds; beside 64 writers at most {}, and their \
         stores take {} ms (99th percentile; {} without). Hundreds hold {} MB, {} MB of memory among them, and {} s after they are removed their space is back.",
        &[
            Median("most of a snapshot, ms", &["100", "0", "one a second"]),
            Median("most of a snapshot, ms", &["100,000", "0", "one a second"]),
            Median("most of a snapshot, ms", &["hundreds"]),
            Median("most of a snapshot, ms", &["100,000", "64", "one a second"]),
            Median("store, p99, ms", &["100,000", "64", "one a second"]),
            Median("store, p99, ms", &["100,000", "64", "none"]),
            Median("snapshots hold, MB", &["hundreds"]),
            Median("server, more memory, MB", &["hundreds"]),
            Median("space is back, s", &["hundreds"]),
        ],
    ),
    (
        "startup",
        "The first answer comes {} s after the start and that of the last volume after {}, from OpenAFS's file server after {} and {}.",
        &[
            Median("to the first answer, s", &["afar"]),
            Median("to the answers of all volumes, s", &["afar"]),
            Median("to the first answer, s", &["OpenAFS"]),
            Median("to the answers of all volumes, s", &["OpenAFS"]),
        ],
    ),
    (
        "vanished",
        "A writer waits {} s for clients that were killed and {} s for those that are silent, at OpenAFS's file server {} and {}.",
        &[
            Median("first CreateFile, s", &["killed", "afar"]),
            Median("first CreateFile, s", &["silent", "afar"]),
            Median("first CreateFile, s", &["killed", "OpenAFS"]),
            Median("first CreateFile, s", &["silent", "OpenAFS"]),
        ],
    ),
    (
        "cached",
        "What is cached is read at {} MB/s in sequence, {} at random and {} mapped; on the local file system at {}, {} and {}. A small file is \
         opened, read and closed in {} µs, in an empty FUSE mount in {}.",
        &[
            Median("MB/s", &["sequential, 1 MiB", "afar"]),
            Median("MB/s", &["random, 4 KiB", "afar"]),
            Median("MB/s", &["mmap", "afar"]),
            Median("MB/s", &["sequential, 1 MiB", "local"]),
            Median("MB/s", &["random, 4 KiB", "local"]),
            Median("MB/s", &["mmap", "local"]),
            Median("µs/file", &["open, read, close", "afar"]),
            Median("µs/file", &["open, read, close", "empty mount"]),
        ],
    ),
    (
        "threads",
        "Four programs at once read {} small cached files a second where two threads answer the kernel, {} with one and {} with four.",
        &[
            Median("files/s", &["2 threads", "4 programs"]),
            Median("files/s", &["1 threads", "4 programs"]),
            Median("files/s", &["4 threads", "4 programs"]),
        ],
    ),
    (
        "cold",
        "A long file is read cold at {} Mbit/s at 12.5 ms and {} at 100 ms (one call of rxperf: {} and {}); the first line of 10 GB has come \
         after {} round trips.",
        &[
            Median("Mbit/s", &["12.5 ms", "bulk", "afar mount"]),
            Median("Mbit/s", &["100 ms", "bulk", "afar mount"]),
            Median("Mbit/s", &["12.5 ms", "bulk", "afar rxperf"]),
            Median("Mbit/s", &["100 ms", "bulk", "afar rxperf"]),
            Median("round trips", &["first line of 10 GB", "afar mount"]),
        ],
    ),
    (
        "create",
        "A small file is made in {} µs, in an empty FUSE mount in {}; an empty call takes {}.",
        &[
            Median("µs/file", &["afar"]),
            Median("µs/file", &["empty mount"]),
            Median("µs/call", &["empty calls"]),
        ],
    ),
    (
        "stockcold",
        "From dafileserver with 9 threads our client reads at {} MB/s and afsd.fuse at {}, with 128 threads at {} and {}.",
        &[
            Median("MB/s", &["-p 9", "afar mount"]),
            Median("MB/s", &["-p 9", "afsd.fuse"]),
            Median("MB/s", &["-L -p 128", "afar mount"]),
            Median("MB/s", &["-L -p 128", "afsd.fuse"]),
        ],
    ),
];

/// The sentence of a record; a dash stands for what was not measured. None if nothing of it was.
pub(crate) fn of(record: &Record) -> Option<String> {
    let (_, sentence, gaps) = SENTENCES.iter().find(|(experiment, ..)| *experiment == record.experiment)?;
    let found: Vec<_> = gaps.iter().map(|gap| gap.fill(record)).collect();
    if found.iter().all(Option::is_none) {
        return None;
    }
    let mut pieces = sentence.split("{}");
    let mut text = pieces.next().unwrap_or_default().to_string();
    for (value, piece) in found.into_iter().zip(pieces) {
        text += value.as_deref().unwrap_or("-");
        text += piece;
    }
    Some(text)
}

impl Gap {
    fn fill(&self, record: &Record) -> Option<String> {
        match self {
            Median(figure, labels) => record.median(figure, labels).map(short),
            Times(figure, [one, other]) => {
                Some(short(record.median(figure, one)? / record.median(figure, other)?))
            }
            Range(figure, labels) => {
                let has_all =
                    |row: &&Row| labels.iter().all(|label| row.labels.iter().any(|(_, v)| v == label));
                let rows = record.rows.iter().filter(has_all);
                let medians: Vec<f64> =
                    rows.filter_map(|row| Some(row.figures.get(*figure)?.median)).collect();
                let least = short(medians.iter().copied().reduce(f64::min)?);
                let most = short(medians.iter().copied().reduce(f64::max)?);
                Some(if least == most { least } else { format!("{least} to {most}") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::EXPERIMENTS;
    use std::path::Path;

    #[test]
    fn each_experiment_has_a_sentence_with_as_many_gaps_as_are_filled() {
        for experiment in EXPERIMENTS {
            assert!(SENTENCES.iter().any(|(name, ..)| *name == experiment.name), "{}", experiment.name);
        }
        for (name, sentence, gaps) in SENTENCES {
            assert_eq!(sentence.matches("{}").count(), gaps.len(), "{name}");
        }
    }

    #[test]
    fn the_records_that_are_kept_fill_all_gaps() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        for (name, _, gaps) in SENTENCES {
            let record = Record::read(&folder, name).unwrap().unwrap_or_else(|| panic!("{name} is not kept"));
            for (number, gap) in gaps.iter().enumerate() {
                assert!(gap.fill(&record).is_some(), "{name}: gap {number} of {:?}", of(&record));
            }
        }
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let mut record = Record { experiment: "create".into(), ..Record::default() };
        assert_eq!(of(&record), None);
        let mut row = Row::new(&[("what", "afar".to_string())], 1);
        let figures = [("µs/file".to_string(), 2.0)].into();
        row.push(crate::record::Run { is_valid: true, figures, ..Default::default() });
        record.rows.push(row);
        let text = of(&record).unwrap();
        assert!(text.starts_with("A small file is made in 2 µs, in an empty FUSE mount in -;"), "{text}");
    }
}
