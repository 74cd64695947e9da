//! Servers that are started again while a client has a connection: it goes on, as Rx connections have no handshake.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::proxy::Proxy;
use afar_interop::service::{self, Pattern, Request};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use rx::EndpointConfig;
use rx_proto::config::CallLimits;
use rx_proto::security::Null;
use tokio::time::sleep;

use crate::sides::{
    TIMEOUT, bind, bind_at, expect_outcome, expect_said, failed, soon, stock_client, stock_server_at,
};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let [a, b, c] = [Arc::clone(lab), Arc::clone(lab), Arc::clone(lab)];
    vec![
        Case::new("restart/of_a_stock_server_between_calls", Weight::Waiting, move || stock_between(&a)),
        Case::new("restart/of_a_stock_server_unnoticed", Weight::Waiting, move || stock_unnoticed(&b)),
        Case::new("restart/of_our_server_unnoticed", Weight::Waiting, move || ours_unnoticed(&c)),
    ]
}

const REQUEST: Request = Request::Echo { n: 500 };

/// The port of one of the three servers here. It is below those that the system gives out: nobody gets it while the server is away.
fn own_port(number: u16) -> u16 {
    20_000 + 3 * (std::process::id() % 3000) as u16 + number
}

fn stock_between(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server_at(lab, &network, own_port(0), &[])?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let connection = endpoint.connect(network.stock(server.port()), service::SERVICE, Box::new(Null));
        let pattern = Pattern::default();
        let call = async || {
            let got = soon("a call", service::outcome(&connection, &pattern, REQUEST)).await?;
            expect_outcome(REQUEST, &got, &REQUEST.outcome())
        };
        for _ in 0..5 {
            call().await?;
        }
        let port = server.port();
        server.kill();
        let _server = stock_server_at(lab, &network, port, &[])?;
        for _ in 0..5 {
            call().await?;
        }
        Ok(())
    })
}

/// Many calls run in a row while the server is away for a second, of which the network does not tell.
fn stock_unnoticed(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server_at(lab, &network, own_port(1), &[])?;
    let proxy = Proxy::start(network.stock(server.port()), 0)?;
    let is_back = AtomicBool::new(false);
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let connection = endpoint.connect(proxy.address(), service::SERVICE, Box::new(Null));
        // A server that starts on a busy machine may be away for longer than a call waits by default.
        connection.set_limits(CallLimits { dead: Duration::from_secs(60), ..CallLimits::default() });
        let pattern = Pattern::default();
        let calls = async {
            let (mut before, mut behind) = (0, 0);
            while behind < 50 {
                let made = service::outcome(&connection, &pattern, REQUEST);
                expect_outcome(REQUEST, &soon("a call", made).await?, &REQUEST.outcome())?;
                *(if is_back.load(Ordering::SeqCst) { &mut behind } else { &mut before }) += 1;
                sleep(Duration::from_millis(2)).await;
            }
            Ok::<_, Trouble>(before)
        };
        let restart = async {
            sleep(Duration::from_millis(500)).await;
            let port = server.port();
            proxy.set_cut(true);
            server.kill();
            sleep(Duration::from_secs(1)).await;
            let server = stock_server_at(lab, &network, port, &[])?;
            is_back.store(true, Ordering::SeqCst);
            proxy.set_cut(false);
            Ok::<_, Trouble>(server)
        };
        let (calls, server) = tokio::join!(calls, restart);
        let _server = server?;
        if calls? == 0 { failed("no call was made before the restart") } else { Ok(()) }
    })
}

/// The same with our server and a stock client.
fn ours_unnoticed(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let serve = |port| -> Result<_, Trouble> {
            let endpoint = bind_at(&network, port, EndpointConfig::default())?;
            service::offer(&endpoint);
            Ok(endpoint)
        };
        let first = serve(own_port(2))?;
        let address: SocketAddr = first.local_addr();
        let proxy = Proxy::start(address, 0)?;
        let client = stock_client(lab, &network, proxy.address(), &["--times", "20000"], REQUEST)?;
        let begun = async {
            while first.stats().calls < 100 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        soon("the first hundred calls", begun).await?;
        proxy.set_cut(true);
        first.shut_down();
        drop(first);
        sleep(Duration::from_secs(1)).await;
        // The first one's sockets are closed when its tasks have ended.
        let until = Instant::now() + TIMEOUT;
        let second = loop {
            match serve(address.port()) {
                Err(_) if Instant::now() < until => sleep(Duration::from_millis(50)).await,
                served => break served?,
            }
        };
        proxy.set_cut(false);
        let finished = client.finish(TIMEOUT)?;
        expect_said(REQUEST, &finished, &REQUEST.outcome().times(20_000))?;
        if second.stats().calls == 0 { failed("all calls were made before the restart") } else { Ok(()) }
    })
}
