//! Metrics for Prometheus: keeps what is published through the `metrics` facade, and answers HTTP requests for `/metrics` in
//! Prometheus's text format. It also serves pages of other parts of the server, each at its path. No request can change anything.
//!
//! Pages tell of users, so a request must use a host name that no outsider can point at this machine. Otherwise a web site could point a
//! name of its own at this machine, and the browser of a visitor would fetch the pages for the site (DNS rebinding).

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Most series that are kept; what comes beyond is not counted. A server with all roles has some hundred.
const MAX_SERIES: usize = 20_000;
/// Upper bounds of the buckets of histograms. All histograms are of durations in seconds: by factors of about 3 from what a packet takes
/// on a fast network to what a user takes for an outage.
const BOUNDS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Requests of one address that are on their way or answered at once, and of all. One more ends the oldest of its address, or of the
/// address that has most: so slow requests keep nobody out.
const MAX_OF_ADDRESS: usize = 8;
const MAX_REQUESTS: usize = 64;
/// The longest time that a request may take to come, and its answer to go.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request line and headers.
const MAX_REQUEST_BYTES: usize = 8192;

/// All metrics of a process. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub struct Exporter(Arc<Mutex<Registry>>);

/// The labels of a series: their names and values.
pub type Labels = Vec<(String, String)>;

/// Something to be shown beside the metrics.
#[derive(Clone)]
pub struct Page {
    /// The path, such as "/top.json".
    pub path: &'static str,
    /// Names of this machine under which it may be asked for, besides addresses, localhost and the host name.
    pub shown_as: Arc<[String]>,
    /// Its media type.
    pub content_type: &'static str,
    /// Its permissions in a browser, as a content security policy.
    pub policy: &'static str,
    /// Makes it.
    pub body: Arc<dyn Fn(&Exporter) -> String + Send + Sync>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The policy of what is no page: a browser does nothing with it.
pub const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// The headers of every answer: its type is what it says, and nobody keeps any of it.
const HEADERS: &str = "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\
     Connection: close";

#[derive(Debug, Default)]
struct Registry {
    counters: HashMap<Key, Arc<AtomicU64>>,
    gauges: HashMap<Key, Arc<AtomicU64>>,
    histograms: HashMap<Key, Arc<Buckets>>,
    meanings: BTreeMap<String, String>,
}

/// A histogram: what fell below each bound and not below the one before, and the sum.
#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_bits: AtomicU64,
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bucket = BOUNDS.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // Always Ok, as `add` always says Some.
        let _ = self.sum_bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl Exporter {
    /// Takes what the process publishes from now on. Only the first in a process does.
    pub fn install(&self) -> bool {
        metrics::set_global_recorder(self.clone()).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, in Prometheus's text format, in the order of their names.
    pub fn render(&self) -> String {
        let registry = self.lock();
        let mut families: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        let numbers = [("counter", &registry.counters), ("gauge", &registry.gauges)];
        for (kind, series) in numbers {
            for (key, value) in series {
                let bits = value.load(Ordering::Relaxed);
                let value = if kind == "gauge" { f64::from_bits(bits).to_string() } else { bits.to_string() };
                let line = format!("{}{}{} {value}\n", key.name(), suffix(kind), labels(key, None));
                families.entry((key.name(), kind)).or_default().push(line);
            }
        }
        for (key, buckets) in &registry.histograms {
            families.entry((key.name(), "histogram")).or_default().push(histogram(key, buckets));
        }
        let mut out = String::new();
        for ((name, kind), mut series) in families {
            series.sort_unstable();
            let suffix = suffix(kind);
            if let Some(meaning) = registry.meanings.get(name) {
                let meaning = meaning.replace('\\', "\\\\").replace('\n', " ");
                // Writing to a String cannot fail.
                let _ = writeln!(out, "# HELP {name}{suffix} {meaning}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
            series.iter().for_each(|line| out.push_str(line));
        }
        out
    }

    fn describe(&self, name: &KeyName, meaning: &SharedString) {
        self.lock().meanings.insert(name.as_str().to_owned(), meaning.to_string());
    }

    /// The histograms of a name: their labels, how many values each has, and their sum.
    pub fn histograms(&self, name: &str) -> Vec<(Labels, u64, f64)> {
        let registry = self.lock();
        let of_name = registry.histograms.iter().filter(|(key, _)| key.name() == name);
        let told = of_name.map(|(key, buckets)| {
            let labels =
                key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
            let count = buckets.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            (labels, count, f64::from_bits(buckets.sum_bits.load(Ordering::Relaxed)))
        });
        told.collect()
    }

    /// Answers requests on a TCP port until the task is dropped. `before` is done before metrics are shown.
    ///
    /// # Errors
    ///
    /// When the port cannot be had.
    pub async fn listen(
        self,
        address: SocketAddr,
        before: Arc<dyn Fn() + Send + Sync>,
        pages: Vec<Page>,
    ) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send)> {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        let pages: Arc<[Page]> = pages.into();
        let serve = async move {
            let mut requests = Requests::default();
            loop {
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a request for metrics could not be taken");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                };
                let (this, before, pages) = (self.clone(), Arc::clone(&before), Arc::clone(&pages));
                requests.begin(peer.ip(), async move {
                    // Who is too slow is left alone.
                    drop(this.answer(stream, &*before, &pages).await);
                });
            }
        };
        Ok((local, serve))
    }

    async fn answer(
        &self,
        mut stream: TcpStream,
        before: &(dyn Fn() + Send + Sync),
        pages: &[Page],
    ) -> io::Result<()> {
        let Some(request) = tokio::time::timeout(REQUEST_TIMEOUT, receive(&mut stream)).await?? else {
            return Ok(());
        };
        let mut words = request.split(|b| *b == b' ');
        let text = "text/plain; version=0.0.4";
        let (status, content_type, policy, body) = match (words.next(), words.next()) {
            (Some(b"GET"), Some(b"/metrics")) => {
                before();
                ("200 OK", text, NOTHING, self.render())
            }
            (Some(b"GET"), Some(path)) => match pages.iter().find(|page| page.path.as_bytes() == path) {
                Some(page) if !is_asked_here(&request, &page.shown_as) => (
                    "421 Misdirected Request",
                    text,
                    NOTHING,
                    "This page is shown under this machine's address, its host name, localhost, or what metrics.names has.\n"
                        .to_owned(),
                ),
                Some(page) => ("200 OK", page.content_type, page.policy, (page.body)(self)),
                None => ("404 Not Found", text, NOTHING, "Metrics are at /metrics.\n".to_owned()),
            },
            _ => ("405 Method Not Allowed", text, NOTHING, "Only GET is answered.\n".to_owned()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Security-Policy: {policy}\r\nContent-Length: {}\r\n{HEADERS}\r\n\r\n",
            body.len()
        );
        let send = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            stream.shutdown().await
        };
        tokio::time::timeout(ANSWER_TIMEOUT, send).await?
    }
}

/// A request with its headers; `None` if it ends early or is too long.
async fn receive(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        let len = stream.read(&mut piece).await?;
        if len == 0 || request.len() + len > MAX_REQUEST_BYTES {
            return Ok(None);
        }
        request.extend_from_slice(&piece[..len]);
    }
    Ok(Some(request))
}

/// The requests that are on their way, the oldest first.
#[derive(Default)]
struct Requests {
    tasks: JoinSet<()>,
    running: Vec<(IpAddr, AbortHandle)>,
}

impl Requests {
    /// One more, for which another may have to end.
    fn begin(&mut self, address: IpAddr, answer: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|(_, task)| !task.is_finished());
        let of = |address: IpAddr| self.running.iter().filter(|(other, _)| *other == address).count();
        let crowded = match of(address) >= MAX_OF_ADDRESS {
            true => Some(address),
            false if self.running.len() >= MAX_REQUESTS => {
                self.running.iter().map(|(other, _)| *other).max_by_key(|other| of(*other))
            }
            false => None,
        };
        if let Some(place) = self.running.iter().position(|(other, _)| Some(*other) == crowded) {
            self.running.remove(place).1.abort();
        }
        self.running.push((address, self.tasks.spawn(answer)));
    }
}

/// True if a request names this machine as only callers do who mean it: by an address, as localhost, by its host name, or not at all.
/// The machine may have more names.
fn is_asked_here(request: &[u8], more: &[String]) -> bool {
    let head = String::from_utf8_lossy(request);
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let names: Vec<&str> =
        ["localhost", machine.trim()].into_iter().chain(more.iter().map(String::as_str)).collect();
    let mut hosts = head.split("\r\n").skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("host").then_some(value.trim())
    });
    hosts.all(|host| is_this_machine(host, &names))
}

/// True if the value of a Host header is an address or one of these names, with a port or without.
fn is_this_machine(host: &str, names: &[&str]) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = without_port.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_name = |name: &&str| !name.is_empty() && without_port.eq_ignore_ascii_case(name);
    bare.unwrap_or(without_port).parse::<IpAddr>().is_ok() || names.iter().any(is_name)
}

/// The ending of a metric's name that Prometheus wants for its kind.
fn suffix(kind: &str) -> &'static str {
    if kind == "counter" { "_total" } else { "" }
}

fn labels(key: &Key, bound: Option<&str>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let mut labels: Vec<String> =
        key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value()))).collect();
    labels.extend(bound.map(|bound| format!("le=\"{bound}\"")));
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

fn histogram(key: &Key, buckets: &Buckets) -> String {
    let mut out = String::new();
    let mut total = 0;
    let names = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (count, bound) in buckets.counts.iter().zip(names) {
        total += count.load(Ordering::Relaxed);
        let _ = writeln!(out, "{}_bucket{} {total}", key.name(), labels(key, Some(&bound)));
    }
    let sum = f64::from_bits(buckets.sum_bits.load(Ordering::Relaxed));
    let _ = writeln!(out, "{}_sum{} {sum}", key.name(), labels(key, None));
    let _ = writeln!(out, "{}_count{} {total}", key.name(), labels(key, None));
    out
}

impl Recorder for Exporter {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, meaning: SharedString) {
        self.describe(&name, &meaning);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, meaning: SharedString) {
        self.describe(&name, &meaning);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, meaning: SharedString) {
        self.describe(&name, &meaning);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        kept(&mut self.lock().counters, key).map_or_else(Counter::noop, Counter::from_arc)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        kept(&mut self.lock().gauges, key).map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        kept(&mut self.lock().histograms, key).map_or_else(Histogram::noop, Histogram::from_arc)
    }
}

/// The series of a key; `None` for a new one when there are too many.
fn kept<T: Default>(series: &mut HashMap<Key, Arc<T>>, key: &Key) -> Option<Arc<T>> {
    if let Some(found) = series.get(key) {
        return Some(Arc::clone(found));
    }
    (series.len() < MAX_SERIES).then(|| Arc::clone(series.entry(key.clone()).or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::Label;

    const METADATA: Metadata<'static> = Metadata::new("test", metrics::Level::INFO, None);

    fn key(name: &'static str, label: &'static str) -> Key {
        Key::from_parts(name, vec![Label::new("of", label)])
    }

    #[test]
    fn metrics_are_shown_by_family_with_their_labels() {
        let exporter = Exporter::default();
        exporter.describe_counter("calls".into(), None, "Calls\nthat were made.".into());
        exporter.register_counter(&key("calls", "b\"\\"), &METADATA).increment(2);
        exporter.register_counter(&key("calls", "a"), &METADATA).increment(1);
        exporter.register_counter(&key("calls", "a"), &METADATA).increment(1);
        exporter.register_gauge(&Key::from_name("load"), &METADATA).set(0.5);
        let seconds = exporter.register_histogram(&key("seconds", "x"), &METADATA);
        [0.0001, 0.5, 100.0].into_iter().for_each(|value| seconds.record(value));
        let text = exporter.render();
        let begin = "# HELP calls_total Calls that were made.\n# TYPE calls_total counter\ncalls_total{of=\"a\"} 2\n\
                     calls_total{of=\"b\\\"\\\\\"} 2\n# TYPE load gauge\nload 0.5\n# TYPE seconds histogram\n\
                     seconds_bucket{of=\"x\",le=\"0.0001\"} 1\n";
        assert!(text.starts_with(begin), "{text}");
        for line in
            ["le=\"0.3\"} 1\n", "le=\"1\"} 2\n", "le=\"+Inf\"} 3\n", "seconds_sum{of=\"x\"} 100.5001\n"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.ends_with("seconds_count{of=\"x\"} 3\n"), "{text}");
    }

    #[test]
    fn names_that_another_site_could_have_are_not_this_machines() {
        for fine in [
            "127.0.0.1",
            "192.0.2.1:9160",
            "[::1]",
            "[2001:db8::1]:9160",
            "localhost:9160",
            "LocalHost",
            "fs1",
            "FS1:9160",
        ] {
            assert!(is_this_machine(fine, &["localhost", "fs1"]), "{fine}");
        }
        for strange in
            ["", ":9160", "evil.test", "evil.test:9160", "fs1.evil.test", "localhost.evil.test:1", "fs1:x"]
        {
            assert!(!is_this_machine(strange, &["localhost", "fs1"]), "{strange}");
        }
        assert!(!is_this_machine(":9160", &[""]));
        assert!(!is_asked_here(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n\r\n", &[]));
        let request = b"GET / HTTP/1.1\r\nHost: FS1.example.org:9160\r\n\r\n";
        assert!(!is_asked_here(request, &[]) && is_asked_here(request, &["fs1.example.org".to_owned()]));
    }

    /// Eight connections that sent a byte a second kept Prometheus away for ten seconds.
    #[tokio::test(flavor = "multi_thread")]
    async fn slow_requests_keep_nobody_from_the_metrics() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (address, serve) = Exporter::default().listen(any, Arc::new(|| {}), Vec::new()).await.unwrap();
        tokio::spawn(serve);
        let mut slow = Vec::new();
        for _ in 0..2 * MAX_OF_ADDRESS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // It may be ended already.
            drop(stream.write_all(b"G").await);
            slow.push(stream);
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let answered =
            tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut answer)).await;
        assert!(answered.is_ok() && answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let mut requests = Requests::default();
        for _ in 0..2 * MAX_OF_ADDRESS {
            requests.begin(address.ip(), std::future::pending());
        }
        assert_eq!(requests.running.len(), MAX_OF_ADDRESS, "the oldest have ended, and none was waited for");
        let others = (1..=MAX_REQUESTS as u8).map(|last| IpAddr::from([192, 0, 2, last]));
        for address in others.flat_map(|address| [address; 2]) {
            requests.begin(address, std::future::pending());
        }
        assert_eq!(requests.running.len(), MAX_REQUESTS);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn they_can_be_fetched_and_other_requests_are_told_so() {
        let exporter = Exporter::default();
        let counter = exporter.register_counter(&Key::from_name("looks"), &METADATA);
        let before = Arc::new(move || counter.increment(1));
        let body = |exporter: &Exporter| format!("{} counters", exporter.lock().counters.len());
        let page = Page {
            path: "/page",
            shown_as: Arc::default(),
            content_type: "text/x",
            policy: NOTHING,
            body: Arc::new(body),
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let (address, serve) = exporter.listen(any, before, vec![page]).await.unwrap();
        tokio::spawn(serve);
        for (request, begin, end) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n", "looks_total 1\n"),
            (
                "GET /page HTTP/1.1\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\n",
                "\r\n\r\n1 counters",
            ),
            ("GET /page HTTP/1.1\r\nhOst : evil.test:9160\r\n\r\n", "HTTP/1.1 421 ", "metrics.names has.\n"),
            ("GET /page? HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "/metrics.\n"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "/metrics.\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n", "answered.\n"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(begin) && answer.ends_with(end), "{answer}");
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&[b'x'; MAX_REQUEST_BYTES + 1]).await.unwrap();
        let mut answer = Vec::new();
        // The rest of the request may be answered by a reset.
        drop(stream.read_to_end(&mut answer).await);
        assert_eq!(answer, b"");
    }
}
