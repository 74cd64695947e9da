//! Moves and releases that are given again after something was killed in their middle: what has arrived is not sent again. Counted are the
//! bytes that the sending server's volume service has sent to the receiving one's, as `rxdebug` tells them. AFAR_RESUMED_FILES says how many
//! files there are (default 44): the receiver is killed only where more arrives than it may lose.

use crate::mounted::{self, our_program};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::two_servers::{DATABASES, TwoServers, fill, has, words};
use afs_wire::afsvol::PACKET_BYTES;
use afs_wire::ids::AfsFid;

/// The bytes of a file.
const LENGTH: usize = 1 << 20;

fn files_there() -> usize {
    mounted::number("AFAR_RESUMED_FILES", 44) as usize
}

/// So much has arrived when something is killed.
fn arrived() -> u64 {
    (files_there() * LENGTH) as u64 * 6 / 11
}

/// For how long the sender runs at a time.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);

/// What a receiver that is killed may lose (decision 9), and what packets add.
const LOST: u64 = 64 << 20;
const SLACK: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Vos,
    Sender,
    Receiver,
    Databases,
}

/// Bytes that the volume service of the first server has sent to that of the second since it began.
fn sent(cell: &TwoServers) -> u64 {
    let mut command = our_program();
    command.arg0("/usr/bin/rxdebug").args([&cell.address(0).to_string(), "7005", "-peers", "-long"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let said = words(&output);
    let peer = format!("Peer at host {}, port 7005\n", cell.address(1));
    // None if it has begun again, and sent nothing yet.
    let Some((_, told)) = said.split_once(&peer) else { return 0 };
    let line = told.lines().find(|line| line.starts_with("\tbytes sent")).unwrap();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers[0] << 32 | numbers[1]
}

/// Waits until so much has arrived at the second server. The first stands still then, as it does whenever this asks: however slow the machine is,
/// not all has arrived.
fn wait_for_half(cell: &TwoServers, child: &mut Child, when: &str) {
    let sender = cell.servers[0].as_ref().unwrap();
    let begun = Instant::now();
    let (mut before, mut window) = (0, SHORTEST);
    loop {
        sender.signal("STOP");
        let said = cell.does("status TWO");
        let packets = said.lines().filter_map(|line| line.strip_prefix("packetRead: ")).next();
        let packets: u64 = packets.and_then(|rest| rest.split(' ').next()).map_or(0, |n| n.parse().unwrap());
        let now = packets * PACKET_BYTES;
        if now >= arrived() {
            return;
        }
        assert!(child.try_wait().unwrap().is_none(), "{when}: it was done before");
        assert!(begun.elapsed() < Duration::from_secs(600), "{when}: {said}");
        // Half of what is missing, if as much comes in a time as last time: also a machine that is late does not send all of it.
        let came = now.saturating_sub(before);
        let half = window.mul_f64((arrived() - now) as f64 / 2.0 / came.max(1) as f64);
        window = if came == 0 { SHORTEST } else { half.min(2 * window).clamp(SHORTEST, LONGEST) };
        before = now;
        let running = Instant::now();
        sender.signal("CONT");
        std::thread::sleep(window);
        sender.signal("STOP");
        window = running.elapsed();
    }
}

/// Gives the command again, as an administrator would who reads what it says. What was said.
fn give_again(cell: &TwoServers, line: &str, when: &str) -> String {
    let mut all = String::new();
    for _ in 0..5 {
        cell.end_transactions();
        let output = cell.vos(line).output().unwrap();
        all += &words(&output);
        if output.status.success() {
            return all;
        }
        cell.vos("unlock v").output().unwrap();
    }
    panic!("{when}: {all}");
}

fn kill(cell: &mut TwoServers, victim: Victim, mut child: Child) {
    match victim {
        Victim::Vos => child.kill().unwrap(),
        Victim::Sender => cell.restart(0),
        Victim::Receiver => cell.restart(1),
        Victim::Databases => {
            // A command that learns of it ends in order, and removes what has arrived.
            cell.servers[DATABASES].take().unwrap().kill();
            child.kill().unwrap();
            cell.restart(DATABASES);
        }
    }
    // Else the sender, which goes on, may send all before it learns that nobody waits for it.
    cell.end_transactions_of("TWO");
    cell.servers[0].as_ref().unwrap().signal("CONT");
    child.wait().unwrap();
}

/// Kills in the middle of a command, gives it again, and says how much was sent for that.
fn sent_again(cell: &mut TwoServers, line: &str, victim: Victim) -> u64 {
    let when = format!("{line}, {victim:?} was killed");
    let mut child = cell.vos(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_half(cell, &mut child, &when);
    kill(cell, victim, child);
    cell.end_transactions();
    let before = sent(cell);
    let said = give_again(cell, line, &when);
    let again = sent(cell) - before;
    println!("{when}: {again} bytes of {} were sent again", files_there() * LENGTH);
    let lost = if victim == Victim::Receiver { LOST } else { 0 };
    let most = (files_there() * LENGTH) as u64 - arrived() + lost + SLACK;
    assert!(again < most, "{when}: {again} bytes were sent, at most {most} are left: {said}");
    again
}

fn victims() -> impl Iterator<Item = Victim> {
    let all = [Victim::Vos, Victim::Sender, Victim::Receiver, Victim::Databases];
    all.into_iter().filter(|victim| *victim != Victim::Receiver || arrived() > LOST + SLACK)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_given_again_does_not_send_what_has_arrived() {
    let mut cell = TwoServers::beside_databases("motion-resumed-move");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &vec![LENGTH; files_there()]).await;
    for victim in victims() {
        // What has changed in the last two seconds before a move is sent again at its end.
        tokio::time::sleep(Duration::from_secs(3)).await;
        sent_again(&mut cell, "move v ONE a TWO a", victim);
        let when = format!("after {victim:?} was killed");
        cell.agree(&when);
        has(&cell.files(1), volume, &written, &when).await;
        cell.does("move v TWO a ONE a");
    }
    cell.check("at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_changes_that_is_given_again_does_not_send_what_has_arrived() {
    let mut cell = TwoServers::beside_databases("motion-resumed-release");
    let volume = cell.create("ONE", "v");
    let files = cell.files(0);
    let old = fill(&files, volume, &[30_000_000]).await;
    // One site beside the volume, which always gets the release: the other is behind then, and not to be used.
    cell.does("addsite ONE a v");
    cell.does("addsite TWO a v");
    cell.does("release v");
    // What is older than two seconds at a release is not sent again at the next.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ro_id = cell.json("listvldb -name v")[0]["ro_id"].as_u64().unwrap();
    let replica = afs_wire::ids::VolumeId(u32::try_from(ro_id).unwrap());
    let mut written: Vec<(AfsFid, Vec<u8>)> = Vec::new();
    for n in 0..files_there() {
        let fid = files.create_file(AfsFid::root_of(volume), &format!("new{n}")).await.unwrap().fid;
        written.push((fid, Vec::new()));
    }
    cell.does("release v");
    for (round, victim) in victims().enumerate() {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let files = cell.files(0);
        for (n, (fid, bytes)) in written.iter_mut().enumerate() {
            *bytes = vec![(n + round) as u8; LENGTH];
            files.store(*fid, 0, bytes.clone(), LENGTH as u64).await.unwrap();
        }
        sent_again(&mut cell, "release v", victim);
        let when = format!("after {victim:?} was killed");
        cell.agree(&when);
        for server in [0, 1] {
            has(&cell.files(server), replica, &written, &when).await;
            has(&cell.files(server), replica, &old, &when).await;
        }
    }
    cell.check("at the end");
}
