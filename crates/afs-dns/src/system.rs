//! The name servers of this machine, as /etc/resolv.conf names them: who is asked, for how long, by UDP and by TCP.
//!
//! Only what a stub resolver needs: the name servers do the work, and keep what they know. The file is read for each question, so that
//! another network's name servers count at once.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use resolv_conf::ScopedIp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{Received, decode, encode};
use crate::{Answer, Asking, NoAnswer, Question, Resolver};

/// The file that names the name servers (resolv.conf(5)).
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The port of name servers.
const PORT: u16 = 53;

/// Bytes of the file that are read.
const CONF_MAX_BYTES: u64 = 64 << 10;

/// Name servers that are asked, as the system's resolver does.
const SERVERS_MAX: usize = 3;

/// The time that they have together in the first round, and in the second. In the first, a name server that is away costs little; in the
/// second, one that has to ask others far away has time. In all it is less than clients wait for a cell: an unknown address of one of its
/// servers must not hide the others.
const ROUNDS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(2500)];

/// Bytes of an answer by UDP: more than servers send, who keep to 512.
const DATAGRAM_MAX_BYTES: usize = 4096;

/// The resolver of this machine.
#[derive(Debug)]
pub struct SystemResolver {
    conf: PathBuf,
    port: u16,
    /// See [`ROUNDS`].
    rounds: [Duration; 2],
    chance: Mutex<StdRng>,
    /// The name server that answered last, which is asked first: others may be away for long.
    answered: Mutex<Option<SocketAddr>>,
}

impl SystemResolver {
    /// The name servers of [`RESOLV_CONF`]. Numbers of questions come from the seed, which nobody must be able to guess.
    pub fn new(seed: [u8; 32]) -> Self {
        Self::of(RESOLV_CONF.into(), PORT, seed)
    }

    fn of(conf: PathBuf, port: u16, seed: [u8; 32]) -> Self {
        let chance = Mutex::new(StdRng::from_seed(seed));
        Self { conf, port, rounds: ROUNDS, chance, answered: Mutex::default() }
    }

    fn servers(&self) -> Result<Vec<SocketAddr>, NoAnswer> {
        let said = |error: &dyn std::fmt::Display| NoAnswer(format!("{}: {error}", self.conf.display()));
        let mut bytes = Vec::new();
        match File::open(&self.conf) {
            Ok(file) => {
                file.take(CONF_MAX_BYTES).read_to_end(&mut bytes).map_err(|error| said(&error))?;
            }
            // Without the file, a name server of this machine is asked (resolv.conf(5)).
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(said(&error)),
        }
        // A line that is wrong is passed over, as the system does.
        let (conf, _) = resolv_conf::Config::parse_with_errors(&bytes);
        let mut servers: Vec<_> = conf.nameservers.iter().map(|server| self.socket(server)).collect();
        servers.truncate(SERVERS_MAX);
        if servers.is_empty() {
            servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        }
        Ok(servers)
    }

    fn socket(&self, server: &ScopedIp) -> SocketAddr {
        match server {
            ScopedIp::V4(ip) => SocketAddr::from((*ip, self.port)),
            ScopedIp::V6(ip, scope) => {
                let scope = scope.as_deref().and_then(scope_of).unwrap_or(0);
                SocketAddr::V6(SocketAddrV6::new(*ip, self.port, 0, scope))
            }
        }
    }

    async fn ask_all(&self, question: &Question) -> Result<Answer, NoAnswer> {
        let mut servers = self.servers()?;
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        servers.sort_by_key(|server| Some(*server) != answered);
        let mut last = None;
        for patience in self.rounds {
            for &server in &servers {
                let id = self.chance.lock().unwrap_or_else(PoisonError::into_inner).random();
                let why =
                    match timeout(patience / servers.len().max(1) as u32, exchange(server, id, question))
                        .await
                    {
                        Ok(Ok(Received::Answer(answer))) => {
                            *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
                            return Ok(answer);
                        }
                        Ok(Ok(Received::Failed(why))) => why.to_string(),
                        Ok(Ok(Received::Truncated)) => "its answer is cut off".to_owned(),
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => "no answer".to_owned(),
                    };
                last = Some(format!("{question}: {}: {why}", server.ip()));
            }
        }
        Err(NoAnswer(last.unwrap_or_else(|| "there are no name servers".to_owned())))
    }
}

impl Resolver for SystemResolver {
    fn ask(&self, question: Question) -> Asking<'_> {
        Box::pin(async move { self.ask_all(&question).await })
    }
}

/// The number of a network interface that is named in an address (`fe80::1%eth0`, `fe80::1%2`).
fn scope_of(text: &str) -> Option<u32> {
    let read = || std::fs::read_to_string(format!("/sys/class/net/{text}/ifindex")).ok()?.trim().parse().ok();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    text.parse().ok().or_else(|| if is_plain { read() } else { None })
}

/// Asks one server, by UDP, and by TCP if that is too small.
async fn exchange(server: SocketAddr, id: u16, question: &Question) -> io::Result<Received> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let sent = encode(id, question).ok_or_else(|| invalid("this cannot be asked"))?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A port of the system's choice: to forge an answer takes guessing it too. Connected, so that only this server is heard.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&sent).await?;
    let mut bytes = vec![0; DATAGRAM_MAX_BYTES];
    let received = loop {
        let length = socket.recv(&mut bytes).await?;
        if let Some(received) = decode(id, question, &bytes[..length]) {
            break received;
        }
    };
    if received != Received::Truncated {
        return Ok(received);
    }
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(sent.len()).map_err(|_| invalid("this cannot be asked"))?;
    stream.write_all(&[&length.to_be_bytes()[..], &sent].concat()).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    decode(id, question, &bytes).ok_or_else(|| invalid("this is no answer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::{question, reply};
    use crate::{Kind, Record};
    use simple_dns::rdata::{A, RData};
    use simple_dns::{Packet, PacketFlag};
    use tokio::net::TcpListener;

    /// A resolver with a file that goes with it.
    struct Scene(SystemResolver);

    impl Scene {
        fn new(name: &str, conf: &str, port: u16) -> Self {
            let path = std::env::temp_dir().join(format!("afs-dns-{name}-{}", std::process::id()));
            std::fs::write(&path, conf).unwrap();
            // As long as it takes on a machine that stands still.
            Self(SystemResolver {
                rounds: [Duration::from_secs(600); 2],
                ..SystemResolver::of(path, port, [7; 32])
            })
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0.conf);
        }
    }

    fn a(last: u8) -> RData<'static> {
        RData::A(A { address: Ipv4Addr::new(192, 0, 2, last).to_bits() })
    }

    fn found(last: u8) -> Result<Answer, NoAnswer> {
        Ok(Answer { records: vec![Record::Address(Ipv4Addr::new(192, 0, 2, last))], ttl_seconds: 60 })
    }

    fn id_of(bytes: &[u8]) -> u16 {
        u16::from_be_bytes([bytes[0], bytes[1]])
    }

    #[tokio::test]
    async fn a_forged_answer_does_not_count_and_one_that_is_cut_off_is_asked_for_by_tcp() {
        let asked = question(Kind::Address, "db.one.test");
        // The system chooses a port that is free for TCP; it may be taken for UDP.
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let address = tcp.local_addr().unwrap();
        let server = tokio::spawn({
            let asked = asked.clone();
            async move {
                let by_udp = async {
                    loop {
                        let mut bytes = [0; 512];
                        let (length, from) = udp.recv_from(&mut bytes).await.unwrap();
                        let id = id_of(&bytes);
                        let forged = reply(id.wrapping_add(1), &asked, &[("db.one.test", 60, a(66))]);
                        udp.send_to(&forged, from).await.unwrap();
                        let mut packet = Packet::parse(&bytes[..length]).unwrap().into_reply();
                        packet.set_flags(PacketFlag::TRUNCATION);
                        udp.send_to(&packet.build_bytes_vec().unwrap(), from).await.unwrap();
                    }
                };
                let by_tcp = async {
                    loop {
                        let (stream, _) = tcp.accept().await.unwrap();
                        // One that has given up waiting asks again.
                        let _ = answer_by_tcp(stream, &asked).await;
                    }
                };
                tokio::select! { () = by_udp => {}, () = by_tcp => {} }
            }
        });
        let scene = Scene::new("forged", "search x\nnonsense\nnameserver 127.0.0.1\n", address.port());
        assert_eq!(scene.0.ask(asked).await, found(1));
        server.abort();
    }

    async fn answer_by_tcp(mut stream: TcpStream, asked: &Question) -> io::Result<()> {
        let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut bytes).await?;
        let whole = reply(id_of(&bytes), asked, &[("db.one.test", 60, a(1))]);
        stream.write_u16(u16::try_from(whole.len()).unwrap()).await?;
        stream.write_all(&whole).await
    }

    /// Answers as often as it is asked: on a busy machine the resolver asks again before it has heard.
    async fn answer(udp: UdpSocket, asked: Question) {
        loop {
            let mut bytes = [0; 512];
            let (_, from) = udp.recv_from(&mut bytes).await.unwrap();
            let whole = reply(id_of(&bytes), &asked, &[("db.one.test", 60, a(1))]);
            udp.send_to(&whole, from).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_server_that_is_away_is_passed_over() {
        let asked = question(Kind::Address, "db.one.test");
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = udp.local_addr().unwrap().port();
        let server = tokio::spawn(answer(udp, asked.clone()));
        let scene = Scene::new("away", "nameserver 127.0.0.2\nnameserver 127.0.0.1\n", port);
        assert_eq!(scene.0.ask(asked).await, found(1));
        server.abort();
    }

    #[tokio::test]
    async fn the_name_server_that_answered_last_is_asked_first() {
        let asked = question(Kind::Address, "db.one.test");
        let (udp, silent) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(silent) = UdpSocket::bind(("127.0.0.2", udp.local_addr().unwrap().port())).await {
                break (udp, silent);
            }
        };
        let address = udp.local_addr().unwrap();
        let server = tokio::spawn(answer(udp, asked.clone()));
        let scene = Scene::new("last", "nameserver 127.0.0.2\nnameserver 127.0.0.1\n", address.port());
        *scene.0.answered.lock().unwrap() = Some(address);
        assert_eq!(scene.0.ask(asked).await, found(1));
        server.abort();
        assert!(silent.try_recv_from(&mut [0; 512]).is_err(), "the other one was asked too");
    }

    #[test]
    fn without_a_file_this_machine_is_asked_and_no_more_than_three_are() {
        let resolver = SystemResolver::of("/nonexistent/resolv.conf".into(), 53, [7; 32]);
        assert_eq!(resolver.servers().unwrap(), ["127.0.0.1:53".parse().unwrap()]);
        let scene = Scene::new("many", &"nameserver ::1\nnameserver fe80::1%7\n".repeat(3), 53);
        let servers = scene.0.servers().unwrap();
        assert_eq!((servers.len(), servers[0]), (3, "[::1]:53".parse().unwrap()));
        assert!(matches!(servers[1], SocketAddr::V6(v6) if v6.scope_id() == 7), "{servers:?}");
    }
}
