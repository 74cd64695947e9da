//! Measures what emulated links are worth on this machine, with ping, iperf3 and datagrams of our own, and
//! prints the tables of the README anew: one row for each run over a fresh link.

use std::process::{Child, Output, Stdio};
use std::time::Duration;

use clap::Subcommand;
use linkem::{Counters, Link, Namespace};
use serde_json::Value;

use crate::Failure;
use crate::args::BuilderArgs;
use crate::datagrams;

/// The time that an iperf3 server is given to listen.
const SERVER_START: Duration = Duration::from_millis(400);
const LINK_COLUMNS: &str =
    "emulator CPU % | late > 0.2 ms % | late mean us | drop_queue | drop_loss | drop_emulator | valid |";

#[derive(Subcommand)]
pub(crate) enum What {
    /// Round trips of ping over an unlimited link
    Ping {
        /// Round trips to set, in ms
        #[arg(long, value_delimiter = ',', default_value = "12.5,50,100,200")]
        rtts: Vec<f64>,
        /// Packets for each, 20 per second
        #[arg(long, default_value_t = 200)]
        count: u32,
    },
    /// One TCP stream of iperf3 from A to B, queue 50 ms, loss in both directions
    Tcp {
        /// Link rates in Mbit/s
        #[arg(long, value_delimiter = ',', default_value = "1000")]
        rates: Vec<f64>,
        /// Round trips in ms
        #[arg(long, value_delimiter = ',', default_value = "12.5,50,100,200")]
        rtts: Vec<f64>,
        /// Losses, 0 to 1
        #[arg(long, value_delimiter = ',', default_value = "0,0.001,0.01")]
        losses: Vec<f64>,
        /// Congestion controls
        #[arg(long, value_delimiter = ',', default_value = "cubic,bbr")]
        cc: Vec<String>,
        /// Seconds measured
        #[arg(long, default_value_t = 8)]
        seconds: u32,
        /// Seconds of warm-up before
        #[arg(long, default_value_t = 4)]
        omit: u32,
    },
    /// Datagrams of iperf3 from A to B over an unlimited link, RTT 12.5 ms
    Udp {
        /// Offered loads in Mbit/s
        #[arg(long, value_delimiter = ',', default_value = "200,500,1000,1500")]
        rates: Vec<f64>,
        /// Payload in bytes
        #[arg(long, default_value_t = 1448)]
        size: u32,
        /// Seconds measured
        #[arg(long, default_value_t = 4)]
        seconds: u32,
    },
    /// Numbered datagrams from A to B over a link of any kind: loss, order, delay
    Datagrams {
        #[command(flatten)]
        link: Box<BuilderArgs>,
        /// How many
        #[arg(long, default_value_t = 60_000)]
        count: u64,
        /// So many a second
        #[arg(long, default_value_t = 15_000.0, value_name = "N")]
        per_second: f64,
        /// Bytes of each, with IP and UDP headers
        #[arg(long, default_value_t = 92, value_name = "BYTES")]
        size: usize,
    },
}

pub(crate) fn validate(what: &What) -> Result<(), Failure> {
    match what {
        What::Ping { rtts, count } => {
            println!("| RTT set, ms | min | mean | max | mdev | valid |\n|{}", "---|".repeat(6));
            rtts.iter().try_for_each(|rtt| ping(*rtt, *count))
        }
        What::Tcp { rates, rtts, losses, cc, seconds, omit } => {
            println!("| Mbit/s | RTT ms | loss | cc | goodput Mbit/s | retransmits | {LINK_COLUMNS}");
            println!("|{}", "---|".repeat(13));
            for (rate, rtt) in rates.iter().flat_map(|rate| rtts.iter().map(move |rtt| (*rate, *rtt))) {
                for (loss, cc) in losses.iter().flat_map(|loss| cc.iter().map(move |cc| (*loss, cc))) {
                    tcp(rate, rtt, loss, cc, *seconds, *omit)?;
                }
            }
            Ok(())
        }
        What::Udp { rates, size, seconds } => {
            println!("| offered Mbit/s | payload | packets/s sent | lost at receiver | {LINK_COLUMNS}");
            println!("|{}", "---|".repeat(11));
            rates.iter().try_for_each(|rate| udp(*rate, *size, *seconds))
        }
        What::Datagrams { link, count, per_second, size } => {
            let link = link.builder()?.start()?;
            let seen = datagrams::measure(&link, *count, *per_second, *size)?;
            let counters = link.stop();
            println!(
                "sent {}, lost {} ({:.2} %, mean run {:.2}, longest {}), duplicates {}, out of order {}",
                seen.sent,
                seen.lost,
                100.0 * seen.lost as f64 / seen.sent.max(1) as f64,
                seen.run_mean,
                seen.run_longest,
                seen.duplicates,
                seen.out_of_order
            );
            let [min, p50, p90, p99, max] = [0.0, 0.5, 0.9, 0.99, 1.0].map(|share| seen.delay_ms(share));
            println!(
                "one-way delay ms: min {min:.2}, median {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, max {max:.2}"
            );
            // What neither the link nor the emulator dropped was lost in the ends: mostly in the receiving
            // socket's buffer, when this process did not get to run.
            let of_link = counters.a_to_b.drop_loss + counters.a_to_b.drop_queue;
            let held = counters.a_to_b.held_now;
            println!(
                "the link dropped {of_link} (loss {}, queue {}), {held} still on the way; lost at the ends: {}",
                counters.a_to_b.drop_loss,
                counters.a_to_b.drop_queue,
                (seen.lost as i64) - (of_link + held + counters.a_to_b.drop_emulator) as i64
            );
            println!("queue peak {} bytes; {}", counters.a_to_b.queue_max_bytes, validity(&counters));
            Ok(())
        }
    }
}

fn ping(rtt_ms: f64, count: u32) -> Result<(), Failure> {
    let link = Link::builder().rtt(Duration::from_secs_f64(rtt_ms / 1e3)).start()?;
    let output = link
        .a()
        .command("ping")
        .args(["-q", "-i", "0.05", "-c", &count.to_string(), "10.99.0.2"])
        .output()
        .map_err(|e| format!("starting ping (Debian: iputils-ping): {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // rtt min/avg/max/mdev = 12.498/12.620/15.900/0.185 ms
    let values = text.split(" = ").nth(1).and_then(|t| t.split(' ').next());
    let values = values.ok_or_else(|| format!("ping's answer has no times: {text}"))?;
    println!("| {rtt_ms} | {} | {} |", values.replace('/', " | "), validity(&link.stop()));
    Ok(())
}

fn tcp(rate: f64, rtt_ms: f64, loss: f64, cc: &str, seconds: u32, omit: u32) -> Result<(), Failure> {
    let rtt = Duration::from_secs_f64(rtt_ms / 1e3);
    let link = Link::builder().rtt(rtt).rate_mbit(rate).queue_ms(50).loss(loss).start()?;
    let (seconds, omit) = (seconds.to_string(), omit.to_string());
    let (result, counters) = iperf3(&link, &["-C", cc, "-t", &seconds, "-O", &omit])?;
    let goodput = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(f64::NAN) / 1e6;
    let again = &result["end"]["sum_sent"]["retransmits"];
    println!("| {rate} | {rtt_ms} | {loss} | {cc} | {goodput:.1} | {again} | {}", link_columns(&counters));
    Ok(())
}

fn udp(rate: f64, size: u32, seconds: u32) -> Result<(), Failure> {
    let link = Link::builder().rtt(Duration::from_micros(12_500)).start()?;
    let (rate_arg, size_arg, seconds) = (format!("{rate}M"), size.to_string(), seconds.to_string());
    let (result, counters) =
        iperf3(&link, &["-u", "-b", &rate_arg, "-l", &size_arg, "-t", &seconds, "-w", "4M"])?;
    let sum = &result["end"]["sum"];
    let number = |name: &str| sum[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "| {rate} | {size} | {:.0} | {} ({:.3} %) | {}",
        number("packets") / number("seconds"),
        sum["lost_packets"],
        number("lost_percent"),
        link_columns(&counters)
    );
    Ok(())
}

/// One run of iperf3 from A to B: its result, and what the link did meanwhile.
fn iperf3(link: &Link, options: &[&str]) -> Result<(Value, Counters), Failure> {
    let _server = Server::start(link.b())?;
    std::thread::sleep(SERVER_START);
    let before = link.counters();
    let Output { stdout, .. } =
        link.a().command("iperf3").args(["-c", "10.99.0.2", "-J"]).args(options).output()?;
    let counters = link.counters().since(&before);
    let result: Value = serde_json::from_slice(&stdout).map_err(|e| format!("iperf3's answer: {e}"))?;
    match result["error"].as_str() {
        Some(error) => Err(format!("iperf3: {error}").into()),
        None => Ok((result, counters)),
    }
}

/// An iperf3 server that does not outlive its run.
struct Server(Child);

impl Server {
    fn start(end: &Namespace) -> Result<Server, Failure> {
        let child = end.command("iperf3").args(["-s", "-1"]).stdout(Stdio::null()).spawn();
        Ok(Server(child.map_err(|e| format!("starting iperf3: {e}"))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself after its one run.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn link_columns(counters: &Counters) -> String {
    let (ab, ba) = (&counters.a_to_b, &counters.b_to_a);
    format!(
        "{:.0} | {:.2} | {:.0} | {} | {} | {} | {} |",
        100.0 * counters.cpu_s / counters.uptime_s,
        100.0 * counters.late_share(),
        ab.late_mean_us,
        ab.drop_queue,
        ab.drop_loss,
        ab.drop_emulator + ba.drop_emulator,
        validity(counters)
    )
}

fn validity(counters: &Counters) -> String {
    counters.check().map_or_else(|invalid| invalid.to_string(), |()| "valid".to_string())
}
