//! What an endpoint counts beside the protocol's own [`Stats`](rx_proto::stats::Stats): ports, queues and services.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a port counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortMetrics {
    /// Packets that the kernel dropped, mostly for want of receive buffer.
    pub kernel_dropped: u64,
    /// The receive buffer's size as granted, in bytes by the kernel's counting.
    pub receive_buffer_bytes: u64,
    /// The send buffer's size as granted, likewise.
    pub send_buffer_bytes: u64,
    /// What waits to be received, in bytes by the kernel's counting.
    pub queued_bytes: u64,
}

macro_rules! counters {
    ($($name:ident $meaning:literal)*) => {
        /// A snapshot of an endpoint's counters since it was bound.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Metrics {
            /// What the port counts.
            pub port: PortMetrics,
            $(#[doc = $meaning] pub $name: u64,)*
        }

        /// The counters themselves.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, port: PortMetrics) -> Metrics {
                Metrics { port, $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    bundles_received "Deliveries of the kernel: datagrams, or several of one peer together."
    bundles_sent "System calls that sent something, by the protocol's cut; the kernel may have needed more."
    bytes_received "UDP payload received, in bytes."
    bytes_sent "UDP payload sent, in bytes."
    worked_inline "Deliveries that were worked through by the thread that received them."
    queue_dropped "Deliveries dropped since a shard's queue was full."
    send_full "Bundles not sent for want of room in the send buffer or the interface's queue: lost, for the protocol."
    send_too_large "Bundles not sent as they exceeded the interface's MTU."
    send_failed "Bundles not sent for other reasons, such as a missing route."
    icmp_errors "What the network said about packets that were sent."
    forwarded "Deliveries handed to another shard, since their connection had moved there."
    worker_wakes "Times a shard's worker was woken by something other than its clock."
    calls_served "Calls given to handlers."
    calls_refused "Calls that were refused with the busy code of their service."
    calls_waited "Calls that had to wait for a handler."
    handler_panics "Handlers that panicked."
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
