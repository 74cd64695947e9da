//! scratch
use afar_interop::{lab::Lab, process::{self, Server}, proxy::{Proxy, Way}, service::{self, Pattern, Request}};
use rx::{Endpoint, EndpointConfig};
use rx_proto::{security::Null, packet::*};
use std::process::Command;
use std::time::Duration;
fn dump(p: &Proxy) {
    for d in p.record() {
        let h = Header::parse(&d.bytes).unwrap();
        let w = if d.way == Way::ToServer { "->" } else { "<-" };
        let mut extra = String::new();
        let b = &d.bytes[28..];
        if h.kind == PacketType::ACK && b.len() > 20 {
            let word = |at: usize| b.get(at..at+4).map(|x| u32::from_be_bytes(x.try_into().unwrap()));
            let n = b[17] as usize;
            extra = format!("F={} prev={} ser={} reason={} n={} table={:?} win={:?} status={}", word(4).unwrap(), word(8).unwrap(), word(12).unwrap(), b[16], n, &b[18..18+n], word(18+n+3+8), h.user_status);
        } else if h.kind == PacketType::ABORT { extra = format!("code {} {:?}", i32::from_be_bytes(b[..4].try_into().unwrap()), h); }
        println!("{:9.3}ms {w} {:?} ch{} {:?} {:?} {:?} fl {:?} len {} {}{extra}", d.at.as_secs_f64()*1e3, h.kind, h.channel.index(), h.call, h.seq, h.serial, h.flags, d.bytes.len(), if d.delivered {""} else {"DROPPED "});
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let stock: Vec<&str> = a[2].split_whitespace().collect();
    let nums: Vec<u32> = a[4].split(',').map(|x| x.parse::<i64>().unwrap() as u32).collect();
    let r = match a[3].as_str() {
        "SOURCE" => Request::Source { n: nums[0] }, "SINK" => Request::Sink { n: nums[0] }, "ECHO" => Request::Echo { n: nums[0] },
        "SLEEP" => Request::Sleep { ms: nums[0] }, "ABORT" => Request::Abort{code: nums[0] as i32}, "STATUS" => Request::Status{n: nums[0]},
        "SLOW_WRITE" => Request::SlowWrite{n: nums[0], chunk: nums[1], ms: nums[2]},
        "ABORT_EARLY" => Request::AbortEarly{n: nums[0], code: nums[1] as i32},
        _ => panic!() };
    let lab = Lab::new();
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    rt.block_on(async {
        let ep = Endpoint::bind("127.0.0.1:0".parse().unwrap(), EndpointConfig::default()).unwrap();
        if a[1] == "client" {
            let mut c = Command::new(lab.oafs_peer().unwrap());
            c.args(["test-server", "-p", "0", "--until-eof"]).args(&stock);
            let s = Server::start(&mut c).unwrap();
            let p = Proxy::start(([127,0,0,1], s.port()).into(), 0).unwrap();
            let id = std::env::var("SERVICE").ok().map_or(service::SERVICE, |x| rx_proto::ids::ServiceId(x.parse().unwrap()));
            let conn = ep.connect(p.address(), id, Box::new(Null));
            let pat = Pattern::default();
            let o = tokio::time::timeout(Duration::from_secs(20), service::make(&conn, &pat, r)).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            dump(&p);
            println!("{o:?}");
        } else {
            service::offer(&ep);
            let p = Proxy::start(ep.local_addr(), 0).unwrap();
            let mut c = Command::new(lab.oafs_peer().unwrap());
            c.args(["test-client", "-s", "127.0.0.1", "-p", &p.address().port().to_string()]).args(&stock).args(r.arguments());
            let f = process::run(&mut c, Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(300)).await;
            dump(&p);
            println!("{f:?} {:?}", ep.stats());
        }
    });
}
