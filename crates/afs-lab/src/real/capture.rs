//! What goes over a network, for tests that look for words in it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket, sockopt};

/// Bytes of the longest packet of the loopback interface.
const PACKET_MAX: usize = 128 << 10;

/// Bytes of packets that have not been read yet.
const BUFFER: usize = 64 << 20;

/// All packets of the network namespace in which it is begun.
#[derive(Debug)]
pub struct Capture {
    ends: Arc<AtomicBool>,
    packets: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    /// Begins to keep packets.
    ///
    /// # Errors
    ///
    /// When the system does not allow it: root may.
    pub fn begin() -> io::Result<Self> {
        // In network byte order: every protocol.
        let all = Protocol::from_raw(u32::from(3_u16.to_be()).try_into().expect("three"));
        let socket: OwnedFd = socket(AddressFamily::PACKET, SocketType::RAW, Some(all))?;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_millis(200)))?;
        let (ends, packets) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (asked, all) = (Arc::clone(&ends), Arc::clone(&packets));
        let reader = std::thread::spawn(move || {
            let mut packet = vec![0; PACKET_MAX];
            loop {
                match recv(&socket, &mut packet[..], RecvFlags::empty()) {
                    Ok((length, _)) => {
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        all.extend_from_slice(&packet[..length]);
                    }
                    // Nothing more comes.
                    Err(_) if asked.load(Ordering::Relaxed) => return,
                    Err(_) => {}
                }
            }
        });
        Ok(Self { ends, packets, reader: Some(reader) })
    }

    /// Which of these are in what went over the network. Each packet comes twice on the loopback interface, out and in.
    ///
    /// # Panics
    ///
    /// If hardly anything went over it.
    pub fn end(mut self, wanted: &[&str]) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it only reads");
        }
        let packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(packets.len() > 10_000, "nothing was captured");
        let has = |bytes: &[u8]| packets.windows(bytes.len()).any(|window| window == bytes);
        // Questions to the databases and their entries have names with a word for each character.
        let wide =
            |text: &str| text.bytes().flat_map(|byte| u32::from(byte).to_be_bytes()).collect::<Vec<_>>();
        let found = |text: &&&str| has(text.as_bytes()) || has(&wide(text));
        wanted.iter().filter(found).map(|text| (*text).to_owned()).collect()
    }
}
