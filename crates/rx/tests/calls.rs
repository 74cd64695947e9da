//! Calls between two endpoints over the loopback interface.

mod support;

use support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_echoes() {
    let (server, client) = (echo_server(small_packets()), bind());
    let connection = connect(&client, &server, ECHO);
    soon(async {
        for length in [0, 1, 4, 1415, 1416, 1417, 5000, 300_000] {
            let mut call = connection.call().await.unwrap();
            call.send(piece(7, 0, length)).await.unwrap();
            call.finish().unwrap();
            assert_eq!(check_stream(&mut call, 7).await.unwrap(), length as u64);
        }
    })
    .await;
}
