//! Servers that are started again while a client has a connection: it goes on, as Rx connections have no handshake.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::lab::Lab;
use afar_interop::proxy::Proxy;
use afar_interop::road::{Kind, Road};
use afar_interop::service::{self, Pattern, Request};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use rx::EndpointConfig;
use rx_proto::security::Null;
use tokio::time::sleep;

use crate::sides::{
    PATIENCE, bind, bind_at, expect_outcome, expect_said, failed, soon, stock_client, stock_server,
    stock_server_at,
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

fn stock_between(lab: &Lab) -> Verdict {
    let road = Road::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &road, &[])?;
    road.at_ours(async || {
        let endpoint = bind(&road, EndpointConfig::default())?;
        let connection = endpoint.connect(road.stock(server.port()), service::SERVICE, Box::new(Null));
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
        let _server = stock_server_at(lab, &road, port, &[])?;
        for _ in 0..5 {
            call().await?;
        }
        Ok(())
    })
}

/// Many calls run in a row while the server is away for a second, of which the network does not tell.
fn stock_unnoticed(lab: &Lab) -> Verdict {
    let road = Road::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &road, &[])?;
    let proxy = Proxy::start(road.stock(server.port()), 0)?;
    road.at_ours(async || {
        let endpoint = bind(&road, EndpointConfig::default())?;
        let connection = endpoint.connect(proxy.address(), service::SERVICE, Box::new(Null));
        let pattern = Pattern::default();
        let calls = async {
            let mut count = 0;
            let started = endpoint.now();
            while endpoint.now().since(started) < Duration::from_secs(4) {
                let t = endpoint.now();
                let made = service::outcome(&connection, &pattern, REQUEST);
                expect_outcome(REQUEST, &soon("a call", made).await?, &REQUEST.outcome())?;
                count += 1;
                if endpoint.now().since(t) > Duration::from_millis(300) { eprintln!("stall {:?} at {:?} after {count}", endpoint.now().since(t), t.since(started)); }
                sleep(Duration::from_millis(2)).await;
            }
            Ok::<_, Trouble>(count)
        };
        let restart = async {
            sleep(Duration::from_millis(500)).await;
            let port = server.port();
            proxy.set_cut(true);
            server.kill();
            sleep(Duration::from_secs(1)).await;
            let server = stock_server_at(lab, &road, port, &[])?;
            proxy.set_cut(false);
            Ok::<_, Trouble>(server)
        };
        let (calls, server) = tokio::join!(calls, restart);
        let _server = server?;
        match calls? {
            count @ 0..100 => failed(format!("hardly any call was made: {count}")),
            _ => Ok(()),
        }
    })
}

/// The same with our server and a stock client.
fn ours_unnoticed(lab: &Lab) -> Verdict {
    let road = Road::new(lab, Kind::Loopback)?;
    road.at_ours(async || {
        let serve = |port| -> Result<_, Trouble> {
            let endpoint = bind_at(&road, port, EndpointConfig::default())?;
            service::offer(&endpoint);
            Ok(endpoint)
        };
        let first = serve(0)?;
        let address: SocketAddr = first.local_addr();
        let proxy = Proxy::start(address, 0)?;
        let client = stock_client(lab, &road, proxy.address(), &["--times", "20000"], REQUEST)?;
        sleep(Duration::from_millis(300)).await;
        proxy.set_cut(true);
        let calls_before = first.stats().calls;
        first.shut_down();
        drop(first);
        sleep(Duration::from_secs(1)).await;
        let second = serve(address.port())?;
        proxy.set_cut(false);
        let finished = client.finish(PATIENCE)?;
        expect_said(REQUEST, &finished, &REQUEST.outcome().times(20_000))?;
        let calls_behind = second.stats().calls;
        if calls_before == 0 || calls_behind == 0 {
            return failed(format!("{calls_before} calls before the restart, {calls_behind} behind it"));
        }
        Ok(())
    })
}
