//! Ways from a server to the members of an etcd that can be cut and made slow, as a network can: what is cut is not told, bytes just do not
//! come through until the way is whole again. Each has threads of its own, which end with the process.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How often a way that is cut is looked at.
const STEP: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct State {
    is_cut: AtomicBool,
    /// Milliseconds that each piece takes longer.
    delay: AtomicU64,
}

impl State {
    fn wait(&self) {
        while self.is_cut.load(Ordering::Relaxed) {
            thread::sleep(STEP);
        }
        match self.delay.load(Ordering::Relaxed) {
            0 => {}
            delay => thread::sleep(Duration::from_millis(delay)),
        }
    }
}

/// A way to a member.
#[derive(Debug)]
pub(crate) struct Way {
    port: u16,
    state: Arc<State>,
}

impl Way {
    /// A way to this port.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                thread::spawn(move || {
                    state.wait();
                    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
                    let (Ok(near_2), Ok(far_2)) = (near.try_clone(), far.try_clone()) else { return };
                    let back = Arc::clone(&state);
                    thread::spawn(move || copy(&far_2, &near_2, &back));
                    copy(&near, &far, &state);
                });
            }
        });
        Self { port: own, state }
    }

    /// Its address, in place of the member's.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Cuts it, or makes it whole again.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Makes each piece take so many milliseconds longer.
    pub(crate) fn slow_down(&self, delay: u64) {
        self.state.delay.store(delay, Ordering::Relaxed);
    }
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                state.wait();
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // The other direction ends with this one.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
