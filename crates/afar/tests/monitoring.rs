//! What Prometheus and Grafana are given, `packaging/prometheus` and `packaging/grafana`: promtool tries the alerts, and each metric that alerts
//! and dashboard name is one that a cell has.

use crate::mounted::{self, Folder, Process, can_mount, own_address, up};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

/// Runs promtool, Debian's package `prometheus`; `None`, told as skipped, where it is not.
fn promtool(words: &[&str], input: &str) -> Option<()> {
    let mut command = Command::new("promtool");
    command.args(words).current_dir(packaging("prometheus"));
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut process) = spawned else {
        return mounted::skip("promtool is not installed");
    };
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = format!("{}{}", output.stdout.escape_ascii(), output.stderr.escape_ascii());
    assert!(output.status.success(), "{}", said.replace("\\n", "\n"));
    Some(())
}

/// What a cell with a mount publishes.
fn published() -> Option<String> {
    if !can_mount() {
        return None;
    }
    let (folder, address) = (Folder::new("monitoring"), own_address());
    let (metrics, mount) = (SocketAddr::from((address, 9160)), folder.join("mnt"));
    let mut command = up(&folder, address, &["--metrics", &metrics.to_string(), "--mount"]);
    command.arg(&mount);
    let _process = Process::start(command, Some(mount.clone()));
    fs::write(mount.join("afar.local/scratch/file"), "some").unwrap();
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    Some(text.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// The names of ours in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    words.filter(|word| ["afs_", "rx_", "rpc_", "rpcs_"].iter().any(|begin| word.starts_with(begin)))
}

#[test]
fn each_alert_is_raised_by_what_it_is_for() {
    let Some(()) = promtool(&["check", "rules", "afar.rules.yml"], "") else { return };
    promtool(&["test", "rules", "afar.rules.test.yml"], "");
    let rules = fs::read_to_string(packaging("prometheus/afar.rules.yml")).unwrap();
    let tests = fs::read_to_string(packaging("prometheus/afar.rules.test.yml")).unwrap();
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} is tried");
    }
}

#[test]
fn prometheus_takes_the_metrics_of_a_cell_as_they_are() {
    let Some(text) = published() else { return };
    promtool(&["check", "metrics"], &text);
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_a_cell_has() {
    let Some(text) = published() else { return };
    let has: BTreeSet<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let rules = fs::read_to_string(packaging("prometheus/afar.rules.yml")).unwrap();
    let mut wanted: Vec<String> =
        rules.lines().filter_map(|line| Some(line.trim().strip_prefix("expr: ")?.to_owned())).collect();
    let dashboard = fs::read_to_string(packaging("grafana/afar.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().filter_map(|panel| panel["targets"].as_array());
    wanted.extend(targets.flatten().map(|target| target["expr"].as_str().unwrap().to_owned()));
    assert!(wanted.len() > 20, "{wanted:?}");
    for expression in &wanted {
        // Those of databases in etcd are looked for in afar/tests/etcd.rs.
        for name in names(expression).filter(|name| !name.starts_with("afs_server_database_")) {
            assert!(has.contains(name), "no {name}, for {expression}, in {has:?}");
        }
    }
}
