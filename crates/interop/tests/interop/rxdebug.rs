//! rxdebug both ways: Debian's shows our endpoint, where the facts have to be right, and ours shows stock servers, where it
//! has to print what Debian's prints.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use afar_interop::cell::{Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::process::{self, Running, Server};
use afar_interop::service::{self, Event, Pattern, Request};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::real::wait::{LOOK_EVERY, PATIENCE};
use rx::{Connection, Endpoint, EndpointConfig};
use rx_proto::config::{CallLimits, Config};
use rx_proto::security::Null;

use crate::sides::{TIMEOUT, bind, expect_outcome, failed, soon, stock_client, stock_server};

/// What is said to questions for the version.
const VERSION: &str = "afar interop test";

/// How often a comparison is repeated while the server under it changes.
const ATTEMPTS: usize = 5;

/// What to ask stock servers.
const QUESTIONS: &[&str] = &[
    "",
    "-version",
    "-rxstats -noconns",
    "-peers -noconns",
    "-peers -long -noconns",
    "-allconnections -long",
    "-allconnections -nodally",
    "-allconnections -onlyserver -rxstats -peers",
    "-allconnections -onlyclient",
    "-allconnections -onlyauth null",
    "-allconnections -onlyport 7003",
    "-allconnections -onlyhost 127.0.0.1",
];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 8] = [
        ("debians_shows_our_version", |lab| show(lab, check_version)),
        ("debians_shows_our_active_connection", |lab| show(lab, check_active)),
        ("debians_shows_all_our_connections", |lab| show(lab, check_connections)),
        ("debians_filters_our_connections", |lab| show(lab, check_filters)),
        ("debians_shows_our_peers", |lab| show(lab, check_peers)),
        ("debians_shows_our_statistics", |lab| show(lab, check_statistics)),
        ("ours_shows_a_stock_server", show_stock_server),
        ("ours_shows_a_stock_cell", show_stock_cell),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(format!("rxdebug/{name}"), Weight::Waiting, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

// ---- Debian's on our endpoint

/// Our endpoint, which serves a call and has made one.
struct Scene<'a> {
    lab: &'a Lab,
    endpoint: Endpoint,
    /// The stock client whose call runs.
    caller: SocketAddr,
    /// The stock server that was called.
    called: SocketAddr,
    _client: Running,
    _server: Server,
    _connection: Connection,
}

impl<'a> Scene<'a> {
    async fn new(lab: &'a Lab, network: &Network) -> Result<Self, Trouble> {
        let proto = Config { version: VERSION.to_owned(), ..Config::default() };
        let endpoint = bind(network, EndpointConfig { proto, ..EndpointConfig::default() })?;
        let (began, begun) = mpsc::channel();
        let began = std::sync::Mutex::new(began);
        endpoint.add_service(service::service(true, CallLimits::default(), move |event| {
            if let Event::Began { peer } = event {
                let _ = began.lock().map(|began| began.send(peer));
            }
        }));
        let request = Request::Sleep { ms: 60_000 };
        let client = stock_client(lab, network, endpoint.local_addr(), &[], request)?;
        let begun = tokio::task::spawn_blocking(move || begun.recv_timeout(TIMEOUT)).await;
        let Ok(Ok(caller)) = begun else { return failed("no call has come") };
        let server = stock_server(lab, network, &[])?;
        let called = network.stock(server.port());
        let connection = endpoint.connect(called, service::SERVICE, Box::new(Null));
        let (request, pattern) = (Request::Echo { n: 5000 }, Pattern::default());
        let got = soon("a call", service::outcome(&connection, &pattern, request)).await?;
        expect_outcome(request, &got, &request.outcome())?;
        Ok(Self { lab, endpoint, caller, called, _client: client, _server: server, _connection: connection })
    }

    /// What Debian's rxdebug prints.
    fn ask(&self, options: &str) -> Result<String, Trouble> {
        let mut command = self.lab.rxdebug()?;
        let address = self.endpoint.local_addr();
        command.args([address.ip().to_string(), address.port().to_string()]).args(options.split_whitespace());
        let finished = process::run(&mut command, TIMEOUT)?;
        if finished.status != Some(0) || !finished.stderr.is_empty() {
            return failed(format!("rxdebug {options}: {finished:?}"));
        }
        Ok(finished.stdout)
    }

    /// Whether it prints all of these, and so many lines that begin with "Connection". The last ACK of the call that was made may
    /// still be due, so it is asked until it does.
    fn expect(&self, options: &str, connections: usize, texts: &[String]) -> Verdict {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.ask(options)?;
            let count = said.lines().filter(|line| line.starts_with("Connection from")).count();
            let missing: Vec<&String> = texts.iter().filter(|text| !said.contains(&**text)).collect();
            if count == connections && missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return failed(format!(
                    "rxdebug {options} shows {count} connections, and not {missing:?}: {said}"
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn caller_line(&self) -> String {
        format!("Connection from host 127.0.0.1, port {}, cid ", self.caller.port())
    }

    fn called_line(&self) -> String {
        format!("Connection from host 127.0.0.1, port {}, cid ", self.called.port())
    }
}

fn show(lab: &Lab, check: fn(&Scene<'_>) -> Verdict) -> Verdict {
    lab.rxdebug()?;
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || check(&Scene::new(lab, &network).await?))
}

fn check_version(scene: &Scene<'_>) -> Verdict {
    scene.expect("-version", 0, &[format!("AFS version: {VERSION}\n")])
}

fn check_active(scene: &Scene<'_>) -> Verdict {
    let texts = [
        scene.caller_line(),
        "security index 0, server conn\n".to_owned(),
        "call 0: # 1, state active, mode: ".to_owned(),
        "call 3: # 0, state not initialized\n".to_owned(),
        "calls: 2, ".to_owned(),
        "Done.\n".to_owned(),
    ];
    scene.expect("", 1, &texts)
}

fn check_connections(scene: &Scene<'_>) -> Verdict {
    let texts = [
        scene.caller_line(),
        scene.called_line(),
        "security index 0, server conn\n".to_owned(),
        "security index 0, client conn\n".to_owned(),
        "call 0: # 1, state active, ".to_owned(),
        "call 0: # 1, state dally".to_owned(),
        "natMTU 1444".to_owned(),
    ];
    scene.expect("-allconnections -long", 2, &texts)
}

fn check_filters(scene: &Scene<'_>) -> Verdict {
    let called = scene.called.port();
    scene.expect("-allconnections -onlyserver", 1, &[scene.caller_line()])?;
    scene.expect("-allconnections -onlyclient", 1, &[scene.called_line()])?;
    scene.expect(&format!("-allconnections -onlyport {called}"), 1, &[scene.called_line()])?;
    scene.expect("-allconnections -onlyhost 127.0.0.1", 2, &[])?;
    scene.expect("-allconnections -nodally", 1, &[scene.caller_line(), "Skipped 1 dallying".to_owned()])
}

fn check_peers(scene: &Scene<'_>) -> Verdict {
    let peer = |address: SocketAddr| format!("Peer at host 127.0.0.1, port {}\n", address.port());
    let texts = [
        peer(scene.caller),
        peer(scene.called),
        "ifMTU 1444\tnatMTU 1444\t".to_owned(),
        "Done.\n".to_owned(),
    ];
    scene.expect("-peers -long -noconns", 0, &texts)?;
    // The one that was called got an echo of 5000 bytes: a first packet that any path carries, and four more. What a busy machine is late to
    // acknowledge is sent again.
    let until = Instant::now() + PATIENCE;
    loop {
        let said = scene.ask("-peers -long -noconns")?;
        let section = said
            .split("Peer at host ")
            .find(|part| part.contains(&format!("port {}\n", scene.called.port())));
        let number = |name: &str| -> Option<u64> {
            let digits = section?.split_once(name)?.1;
            digits.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
        };
        match (number("packets sent "), number("packet resends ")) {
            (Some(sent), Some(resent)) if sent == 5 + resent => return Ok(()),
            counted if Instant::now() >= until => {
                return failed(format!("sent and sent again: {counted:?}: {said}"));
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn check_statistics(scene: &Scene<'_>) -> Verdict {
    // Pings may come in between: then again.
    let until = Instant::now() + PATIENCE;
    loop {
        let stats = scene.endpoint.stats();
        let said = scene.ask("-rxstats -noconns")?;
        let (read, sent) = (stats.packets_read, stats.packets_sent);
        let texts = [
            format!("packets read: data {} ack {} busy 0 abort 0 ackall 0 ", read[1], read[2]),
            format!("packets sent: data {} ack {} busy 0 abort 0 ackall 0 ", sent[1], sent[2]),
            format!(
                "other read counters: data {}, ack {}, dup {} spurious {} ",
                read[1] - stats.duplicate_packets,
                read[2],
                stats.duplicate_packets,
                stats.spurious_packets
            ),
            "1 server connections, 1 client connections, ".to_owned(),
        ];
        let missing: Vec<&String> = texts.iter().filter(|text| !said.contains(&**text)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return failed(format!("rxdebug -rxstats shows not {missing:?}: {said}"));
        }
    }
}

// ---- ours on stock servers

fn show_stock_server(lab: &Lab) -> Verdict {
    lab.rxdebug()?;
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    let address = network.stock(server.port());
    for request in [Request::Echo { n: 100_000 }, Request::Abort { code: 5 }] {
        stock_client(lab, &network, address, &[], request)?.finish(TIMEOUT)?;
    }
    let _active = stock_client(lab, &network, address, &["--parallel", "3"], Request::Sleep { ms: 20_000 })?;
    std::thread::sleep(Duration::from_millis(500));
    let ask = |command: Command| command;
    compare_all(lab, address, &ask)
}

fn show_stock_cell(lab: &Lab) -> Verdict {
    lab.rxdebug()?;
    let cell = lab.cell(&Machine::new(Servers::Stock))?;
    for command in ["vos listvldb -localauth", "pts listentries -localauth"] {
        cell.expect(command)?;
    }
    let clients = cell.clients()?;
    let inside = |command: Command| {
        let mut inside = clients.command(command.get_program());
        inside.args(command.get_args());
        inside
    };
    for port in [7000, 7003, 7002, 7005, 7007] {
        compare_all(lab, SocketAddr::from(([10, 88, 0, 1], port)), &inside)?;
    }
    Ok(())
}

/// Asks a server all the questions, with ours and with Debian's.
fn compare_all(lab: &Lab, server: SocketAddr, place: &dyn Fn(Command) -> Command) -> Verdict {
    for options in QUESTIONS {
        let run = |mut command: Command| -> Result<String, Trouble> {
            command
                .args([server.ip().to_string(), server.port().to_string()])
                .args(options.split_whitespace());
            let finished = process::run(&mut place(command), TIMEOUT)?;
            match finished.status {
                Some(0) => Ok(finished.stdout),
                _ => failed(format!("of {server}: {finished:?}")),
            }
        };
        let mut problem = String::new();
        let is_same = (0..ATTEMPTS).any(|_| {
            let attempt = || {
                let before = run(lab.rxdebug()?)?;
                let mut ours = lab.afar()?;
                ours.arg("rxdebug");
                let ours = run(ours)?;
                compare(&before, &ours, &run(lab.rxdebug()?)?)
            };
            attempt().map_err(|trouble| problem = format!("{trouble:?}")).is_ok()
        });
        if !is_same {
            return failed(format!("rxdebug {options} of {server}: {problem}"));
        }
    }
    Ok(())
}

/// Whether what ours printed lies between two prints of Debian's: the same text, and numbers that are equal, or between
/// those that have changed meanwhile.
fn compare(before: &str, ours: &str, after: &str) -> Verdict {
    let lines = ours.lines().count();
    if before.lines().count() != lines || after.lines().count() != lines {
        return failed(format!("Debian's:\n{before}\nours:\n{ours}"));
    }
    for ((before, ours), after) in before.lines().zip(ours.lines()).zip(after.lines()) {
        let [b, o, a] = [words(before), words(ours), words(after)];
        let is_same = b.len() == o.len() && a.len() == o.len();
        let fits = |((before, ours), after): ((&&str, &&str), &&str)| {
            let number = |word: &str| word.parse::<f64>().ok();
            match (number(before), number(ours), number(after)) {
                (Some(b), Some(o), Some(a)) => b.min(a) <= o && o <= b.max(a),
                _ => before == ours,
            }
        };
        if !is_same || !b.iter().zip(&o).zip(&a).all(fits) {
            return failed(format!("Debian's \"{before}\", ours \"{ours}\", Debian's again \"{after}\""));
        }
    }
    Ok(())
}

/// A line as numbers and what is between them.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        words.push(word);
        rest = behind;
    }
    words
}
