//! A look at one server: the JSON that it has beside its metrics, fetched by HTTP and read. It may come from anybody: it is
//! bounded, and nothing in it can move the cursor.

use serde::Deserialize;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The port at which servers are asked if none is given.
const PORT: u16 = 9160;
/// The longest time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer; one with all rows has some 200 KB.
const MAX_BYTES: usize = 4 << 20;

/// A server's answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    pub(crate) cell: String,
    pub(crate) host: String,
    pub(crate) clients_known: u64,
    pub(crate) promises: u64,
    pub(crate) total: Row,
    pub(crate) procedures: Vec<Row>,
    pub(crate) volumes: Vec<Row>,
    pub(crate) users: Vec<Row>,
    pub(crate) clients: Vec<Row>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) waiting_count: u64,
    pub(crate) refused: Vec<Refused>,
}

/// Figures of something, since the server counts it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    /// The id of a volume.
    pub(crate) id: u32,
    /// The name of a volume, user or procedure.
    pub(crate) name: String,
    /// The interface of a procedure.
    pub(crate) interface: String,
    /// The address of a client.
    pub(crate) address: String,
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) seconds: f64,
}

/// A call that waits.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waiting {
    #[serde(rename = "for")]
    pub(crate) reason: String,
    pub(crate) volume: Option<u32>,
    pub(crate) vnode: Option<u32>,
    pub(crate) user: String,
    pub(crate) client: String,
    pub(crate) seconds: f64,
    pub(crate) awaited: Vec<String>,
    pub(crate) awaited_count: usize,
}

/// Somebody who was told to come again.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refused {
    pub(crate) why: String,
    pub(crate) volume: Option<u32>,
    pub(crate) client: String,
    pub(crate) count: u64,
    pub(crate) seconds_ago: f64,
}

/// Asks a server, HOST or HOST:PORT.
///
/// # Errors
///
/// What went wrong, with the server's name and what to do.
pub(crate) fn fetch(server: &str) -> Result<Sample, String> {
    let body = get(server).map_err(|error| {
        format!("{server}: {error}; set metrics.bind in the server's server.toml, and give that address and port to afar top")
    })?;
    read(&body).map_err(|error| format!("{server}: cannot understand the answer: {error}"))
}

/// Reads an answer.
pub(crate) fn read(body: &[u8]) -> Result<Sample, String> {
    let mut value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    clean(&mut value);
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Replaces what a terminal would obey. The names come from users, who can make any.
fn clean(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if text.chars().any(char::is_control) => {
            *text = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        }
        serde_json::Value::Array(all) => all.iter_mut().for_each(clean),
        serde_json::Value::Object(all) => all.values_mut().for_each(clean),
        _ => {}
    }
}

fn get(server: &str) -> Result<Vec<u8>, String> {
    let text = |error: io::Error| error.to_string();
    let deadline = Instant::now() + TIMEOUT;
    let mut last = "the name has no address".to_owned();
    for address in addresses_until(server, deadline).map_err(text)? {
        let connected = left(deadline).and_then(|left| TcpStream::connect_timeout(&address, left));
        match connected {
            Ok(stream) => return ask(stream, address, deadline).map_err(text)?,
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
}

/// Returns a server's addresses that are known by the deadline. A look-up of names waits for name servers that are silent.
fn addresses_until(server: &str, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    let (tell, told) = mpsc::channel();
    let name = server.to_owned();
    std::thread::spawn(move || drop(tell.send(addresses(&name))));
    let silent = || io::Error::new(io::ErrorKind::TimedOut, "the name was not found in time");
    told.recv_timeout(left(deadline)?).map_err(|_| silent())?
}

/// Returns the addresses of a server that is given as a name or an address, with a port or without.
fn addresses(server: &str) -> io::Result<Vec<SocketAddr>> {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, PORT)]);
    }
    let with_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let all = if with_port { server.to_socket_addrs() } else { (server, PORT).to_socket_addrs() };
    all.map(Iterator::collect)
}

/// The time until then.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"))
    } else {
        Ok(left)
    }
}

/// Asks for the JSON and takes the answer until the deadline, however slowly it comes. The server is called by its address, as
/// it shows nothing under names that it does not know.
fn ask(mut stream: TcpStream, address: SocketAddr, deadline: Instant) -> io::Result<Result<Vec<u8>, String>> {
    let path = afs_server::top::PATH;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let (mut answer, mut piece) = (Vec::new(), [0; 16 << 10]);
    while answer.len() < MAX_BYTES {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // So a timeout is told by the system.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(left(deadline)?),
            Err(error) => return Err(error),
        }
    }
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    Ok(match (status, end) {
        (b"200", Some(end)) => Ok(answer.split_off(end + 4)),
        (b"404", _) => Err(format!(
            "it has no page {path}: metrics.activity is false there, or it is not a server of afar"
        )),
        _ => Err("it does not answer as afar's servers do".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv6Addr, TcpListener};

    #[test]
    fn a_server_is_found_by_address_with_a_port_or_without() {
        let local = IpAddr::from(Ipv6Addr::LOCALHOST);
        for (server, address, port) in [
            ("::1", local, PORT),
            ("[::1]", local, PORT),
            ("[::1]:7", local, 7),
            ("192.0.2.1", IpAddr::from([192, 0, 2, 1]), PORT),
            ("192.0.2.1:7", IpAddr::from([192, 0, 2, 1]), 7),
        ] {
            assert_eq!(addresses(server).unwrap(), [SocketAddr::new(address, port)], "{server}");
        }
    }

    #[test]
    fn a_server_that_sends_a_byte_now_and_then_is_left_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let stream = TcpStream::connect(address).unwrap();
        let error = ask(stream, address, Instant::now() + Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        server.join().unwrap();
    }

    #[test]
    fn names_cannot_move_the_cursor_and_strange_answers_are_refused() {
        let sample =
            read(br#"{"cell":"a\u001b[2Jb","volumes":[{"name":"x\ny","calls":3}],"new":[1]}"#).unwrap();
        assert_eq!(sample.cell, "a\u{fffd}[2Jb");
        assert_eq!((sample.volumes[0].name.as_str(), sample.volumes[0].calls), ("x\u{fffd}y", 3));
        for strange in [&b""[..], b"[", b"{\"volumes\":7}", b"{\"total\":{\"calls\":-1}}", b"\xff"] {
            assert!(read(strange).is_err(), "{}", strange.escape_ascii());
        }
        let deep = "[".repeat(100_000);
        assert!(read(deep.as_bytes()).is_err());
    }
}
