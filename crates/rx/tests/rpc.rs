//! Declared procedures over calls.

use std::sync::Arc;

use crate::support::recorder::Kept;
use crate::support::*;
use rx::{Endpoint, Procedures, RpcError, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::ids::ServiceId;
use rxgen::serve::{MAX_ARGUMENT_BYTES, serve_call};
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Interface, Serve};

mod numbers {
    use rxgen::xdr::XdrArray;

    rxgen::interface! {
        /// Numbers.
        Numbers on service 77 port 7777 {
            /// Their sum.
            1 Sum (terms: XdrArray<u32, 100000>) -> (sum: u64);
            /// So many bytes, then how many they were.
            2 Count (bytes: u64) split from_server -> (sent: u64);
            /// How many bytes come.
            3 Take (unit: u32) split from_client -> (taken: u64);
            /// All numbers below one.
            4 Below (end: u32) -> (numbers: XdrArray<u32, 8000000>);
            /// The same, of which a client expects no more than a hundred.
            5 Few (end: u32) -> (numbers: XdrArray<u32, 100>);
        }
    }
}
use numbers::{Below, Count, Few, Numbers, Sum, Take, reply};

struct Server;

impl Serve<Sum> for Server {
    async fn serve(&self, _: rxgen::ServerCall<'_, Sum>, args: Sum) -> Result<reply::Sum, Abort> {
        if args.terms.is_empty() {
            return Err(Abort(22));
        }
        Ok(reply::Sum { sum: args.terms.iter().map(|n| u64::from(*n)).sum() })
    }
}

impl Serve<Count> for Server {
    async fn serve(
        &self,
        mut call: rxgen::ServerCall<'_, Count>,
        args: Count,
    ) -> Result<reply::Count, Abort> {
        call.send_data(&piece(5, 0, args.bytes as usize)).await?;
        Ok(reply::Count { sent: args.bytes })
    }
}

impl Serve<Take> for Server {
    async fn serve(&self, mut call: rxgen::ServerCall<'_, Take>, args: Take) -> Result<reply::Take, Abort> {
        let mut taken = 0;
        let mut buffer = vec![0; 10_000];
        loop {
            match call.receive_data(&mut buffer).await? {
                0 => return Ok(reply::Take { taken: taken / u64::from(args.unit) }),
                length => taken += length as u64,
            }
        }
    }
}

impl Serve<Below> for Server {
    async fn serve(&self, _: rxgen::ServerCall<'_, Below>, args: Below) -> Result<reply::Below, Abort> {
        Ok(reply::Below { numbers: XdrArray::new((0..args.end).collect()).unwrap() })
    }
}

impl Serve<Few> for Server {
    async fn serve(&self, _: rxgen::ServerCall<'_, Few>, _: Few) -> Result<reply::Few, Abort> {
        Ok(reply::Few { numbers: XdrArray::default() })
    }
}

fn server() -> Endpoint {
    let server = bind_with(small_packets());
    let id = ServiceId(Numbers::SERVICE_ID);
    server.add_service(ServiceConfig::new(service(id), |mut call: ServerCall| async move {
        serve_call::<Numbers, _>(&Server, &mut call, MAX_ARGUMENT_BYTES).await
    }));
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn procedures_are_called() {
    let (server, client) = (server(), bind());
    let connection = connect(&client, &server, ServiceId(Numbers::SERVICE_ID));
    soon(async {
        let terms: Vec<u32> = (0..50_000).collect();
        let sum = Sum { terms: rxgen::xdr::XdrArray::new(terms).unwrap() };
        assert_eq!(connection.rpc(&sum).await.unwrap().sum, 1_249_975_000);

        let none = Sum { terms: rxgen::xdr::XdrArray::new(Vec::new()).unwrap() };
        let error = connection.rpc(&none).await.unwrap_err();
        assert_eq!(error.code(), AbortCode(22), "{error}");

        let mut call = connection.call().await.unwrap();
        call.send_request(&Count { bytes: 1_000_001 }).await.unwrap();
        call.finish().unwrap();
        let mut data = vec![0; 1_000_001];
        call.read_exact(&mut data).await.unwrap();
        assert_eq!(data, piece(5, 0, 1_000_001));
        assert_eq!(call.reply::<Count>().await.unwrap().sent, 1_000_001);

        let mut call = connection.call().await.unwrap();
        call.send_request(&Take { unit: 2 }).await.unwrap();
        send_stream(&mut call, 1, 500_000).await.unwrap();
        assert_eq!(call.reply::<Take>().await.unwrap().taken, 250_000);
    })
    .await;
}

#[tokio::test]
async fn calls_are_counted_and_timed_by_their_procedures() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let server = bind_with(small_packets());
    let procedures = Arc::new(Procedures::of::<Numbers>());
    server.add_service(ServiceConfig::new(
        service(ServiceId(Numbers::SERVICE_ID)),
        move |mut call: ServerCall| {
            let procedures = Arc::clone(&procedures);
            async move { procedures.serve::<Numbers, _>(&Server, &mut call, MAX_ARGUMENT_BYTES).await }
        },
    ));
    let client = bind();
    let connection = connect(&client, &server, ServiceId(Numbers::SERVICE_ID));
    for terms in [vec![1], vec![2, 3], vec![]] {
        let sum = Sum { terms: XdrArray::new(terms).unwrap() };
        let _ = soon(connection.rpc(&sum)).await;
    }
    let mut call = connection.call().await.unwrap();
    call.write_all(&[0, 0, 0, 99]).await.unwrap();
    soon(call.reply::<Sum>()).await.unwrap_err();
    let ended = |rpc: &str, result: &str| {
        kept.number(&format!("rpcs_ended interface=Numbers result={result} rpc={rpc}"))
    };
    assert_eq!((ended("Sum", "ok"), ended("Sum", "failed"), ended("unknown", "failed")), (2.0, 1.0, 1.0));
    let seconds = kept.samples("rpc_seconds interface=Numbers result=ok rpc=Sum");
    assert!(seconds.len() == 2 && seconds.iter().all(|s| (0.0..30.0).contains(s)), "{seconds:?}");
}

/// `vos listvol` of a partition with 76,000 volumes failed, since all replies ended at 16 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_as_long_as_the_interface_lets_it_be() {
    let (server, client) = (server(), bind());
    let connection = connect(&client, &server, ServiceId(Numbers::SERVICE_ID));
    let numbers = soon(connection.rpc(&Below { end: 8_000_000 })).await.unwrap().numbers;
    assert_eq!((numbers.len(), numbers.last()), (8_000_000, Some(&7_999_999)), "32 MB");
}

/// A server that sends for ever must not fill the client's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_longer_than_it_can_be_is_not_waited_for() {
    let server = bind_with(small_packets());
    server.add_service(ServiceConfig::new(
        service(ServiceId(Numbers::SERVICE_ID)),
        |mut call: ServerCall| async move {
            while call.send(piece(1, 0, 1000)).await.is_ok() {}
            Ok(())
        },
    ));
    let client = bind();
    let connection = connect(&client, &server, ServiceId(Numbers::SERVICE_ID));
    let error = soon(connection.rpc(&Few { end: 1 })).await.unwrap_err();
    assert!(matches!(error, RpcError::Reply { rpc: "Few", .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_does_not_know_or_cannot_read_is_aborted() {
    let (server, client) = (server(), bind());
    let connection = connect(&client, &server, ServiceId(Numbers::SERVICE_ID));
    for (request, code) in [(&[0, 0, 0, 9][..], -455), (&[0, 0, 0, 1, 0xff, 0, 0, 0], -453), (&[0, 0], -454)]
    {
        let mut call = connection.call().await.unwrap();
        call.write_all(request).await.unwrap();
        let error = soon(call.reply::<Sum>()).await.unwrap_err();
        assert_eq!(error.code(), AbortCode(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_of_another_shape_is_an_error_that_names_the_procedure() {
    let (server, client) = (echo_server(small_packets()), bind());
    let connection = connect(&client, &server, ECHO);
    let error = soon(connection.rpc(&Count { bytes: 1 })).await.unwrap_err();
    assert!(matches!(error, RpcError::Reply { rpc: "Count", .. }), "{error:?}");
}
