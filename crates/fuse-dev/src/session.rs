//! The threads that read requests and hand each to the file system, until the mount is gone.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::answer::{KernelLock, Reply};
use crate::device::Device;
use crate::negotiate::{Offer, Settings, buffer_len, negotiate};
use crate::notice::{Notifier, PRUNE_SINCE};
use crate::operation::{Operation, Request};

/// A file system.
pub trait Handler: Send + Sync + 'static {
    /// Handles a request, or starts to, and answers, here or later from elsewhere. While this runs, its thread takes no other
    /// request.
    fn handle(&self, request: Request<'_>, reply: Reply);
}

/// The threads of a mount.
#[derive(Debug)]
pub struct Session {
    threads: Vec<JoinHandle<io::Result<()>>>,
    offer: Offer,
    notifier: Notifier,
}

impl Session {
    /// Agrees with the kernel on how to talk; `make` makes the file system by what came of it, and is given the means to send
    /// notices. Then starts so many threads.
    ///
    /// # Errors
    ///
    /// When the kernel is too old, the mount is gone, or no threads can be had.
    pub fn start<H: Handler>(
        device: Arc<Device>,
        settings: &Settings,
        threads: usize,
        make: impl FnOnce(Offer, Notifier) -> Arc<H>,
    ) -> io::Result<Self> {
        let offer = negotiate(&device, settings)?;
        let can_expire = offer.offered.has(crate::Features::EXPIRE_ONLY);
        let notifier = Notifier::new(Arc::clone(&device), can_expire, offer.minor >= PRUNE_SINCE);
        let handler = make(offer, notifier.clone());
        let mut devices = vec![device];
        while devices.len() < threads.max(1) {
            // Where the device may not be opened again (it came from the helper), the threads share it.
            let device = devices[0].clone_device().map_or_else(|_| Arc::clone(&devices[0]), Arc::new);
            devices.push(device);
        }
        let room = buffer_len(settings.write_max_bytes);
        let start = |(number, device): (usize, Arc<Device>)| {
            let handler = Arc::clone(&handler);
            let serve = move || serve(&device, handler.as_ref(), room);
            Builder::new().name(format!("fuse-{number}")).spawn(serve)
        };
        let threads = devices.into_iter().enumerate().map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads, offer, notifier })
    }

    /// The agreement with the kernel.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// The means to send notices.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// True if all threads have ended: the mount is gone.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until the mount is gone.
    ///
    /// # Errors
    ///
    /// When reading requests failed.
    pub fn wait(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            result =
                result.and(thread.join().unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked"))));
        }
        result
    }
}

fn serve<H: Handler>(device: &Arc<Device>, handler: &H, room: usize) -> io::Result<()> {
    // Not touched until a long write needs it, and so not there until then.
    let mut buffer = vec![0; room];
    while let Some(length) = device.receive(&mut buffer)? {
        match Request::parse(&buffer[..length]) {
            Ok(request) => {
                let is_answered = !matches!(
                    request.operation,
                    Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. }
                );
                let make = if is_answered { Reply::new } else { Reply::none };
                let reply = make(Arc::clone(device), request.unique).holding(locked(&request));
                // A mistake in one operation must not leave everybody waiting: its reply says EIO.
                let number = request.unique.0;
                if catch_unwind(AssertUnwindSafe(|| handler.handle(request, reply))).is_err() {
                    tracing::error!(request = number, "answering a FUSE request panicked");
                }
            }
            Err((unique, error)) => {
                tracing::error!(%error, "a FUSE request cannot be read");
                if let Some(unique) = unique {
                    Reply::new(Arc::clone(device), unique).error(libc::EIO);
                }
            }
        }
    }
    Ok(())
}

/// See [`Reply::locked`].
fn locked(request: &Request<'_>) -> Option<KernelLock> {
    match request.operation {
        Operation::Read { .. } | Operation::Write { .. } => Some(KernelLock::Pages(request.node)),
        Operation::Lookup { .. } | Operation::ReadDirectory { .. } | Operation::ReadDirectoryPlus { .. } => {
            Some(KernelLock::Names(request.node))
        }
        _ => None,
    }
}
