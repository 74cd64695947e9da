//! Code that the services share: how they are given to `rx`, and how they make room for others in long work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rx::{Procedures, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::ServerSecurity;
use rxgen::Dispatch;
use rxgen::serve::MAX_ARGUMENT_BYTES;

/// Tells the time in seconds since 1970.
pub type Clock = Arc<dyn Fn() -> u32 + Send + Sync>;

/// A service as `rx` takes it, for clients of these security classes. Its look-ups are answered on the thread that brings
/// the call; what takes longer gives way first.
pub fn rx_service<I, S>(server: Arc<S>, security: Vec<Arc<dyn ServerSecurity>>) -> ServiceConfig
where
    I: Dispatch<S> + Send + 'static,
    S: Send + Sync + 'static,
{
    let service = Service {
        id: ServiceId(I::SERVICE_ID),
        security,
        check_reach: true,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    let procedures = Arc::new(Procedures::of::<I>());
    let mut config = ServiceConfig::new(service, move |mut call: ServerCall| {
        let (server, procedures) = (Arc::clone(&server), Arc::clone(&procedures));
        async move { procedures.serve::<I, S>(&server, &mut call, MAX_ARGUMENT_BYTES).await }
    });
    config.answers_at_once = true;
    config
}

/// Lets others run.
pub(crate) fn yield_once() -> impl Future<Output = ()> + Send {
    YieldOnce(false)
}

struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
