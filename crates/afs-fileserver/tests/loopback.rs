//! The same server over real sockets, with the disk's work on threads of its own: data arrive whole, and many calls at once do not
//! get into each other's way.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::client::{Client, Kind};
use crate::support::{ROOT, VOLUME, make_volume, people};
use afs_fileserver::{Config, FileServer, Volumes};
use afs_lab::real::folder::Folder;
use afs_volume::Partition;
use afs_wire::Uuid;
use afs_wire::ids::AfsFid;
use rx::{Endpoint, EndpointConfig};
use rx_proto::security::Null;

fn bind() -> Endpoint {
    Endpoint::bind("127.0.0.1:0".parse().unwrap(), EndpointConfig::default()).unwrap()
}

fn serve(folder: &Folder) -> (Endpoint, FileServer) {
    let partition = Partition::open(folder, afs_volume::Config::default()).unwrap();
    make_volume(&partition, "scratch", VOLUME);
    let endpoint = bind();
    let volumes: Arc<dyn Volumes> = Arc::new(vec![partition]);
    let config = Config::new(Uuid { time_low: 7000, ..Uuid::default() });
    let server = FileServer::new(config, &endpoint, volumes, Arc::new(people())).unwrap();
    endpoint.add_service(server.service(vec![Arc::new(Null)]));
    (endpoint, server)
}

fn client(server: &Endpoint, uuid: u32) -> Client {
    Client::at(bind(), server.local_addr(), uuid, &Kind::default())
}

/// Bytes of which none repeats at the distance of a packet, a piece or a chunk.
fn data(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 251 * 31 + i * 7 + seed) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_come_back_whole_while_others_are_stored() {
    let folder = Folder::new("loopback");
    let (endpoint, _server) = serve(&folder);
    let tasks: Vec<_> = (1..5)
        .map(|number| {
            let client = client(&endpoint, number);
            tokio::spawn(async move {
                let fid = client.create(ROOT, &format!("file{number}")).await.unwrap().fid;
                let data = data(5_000_000 + number as usize, number as usize);
                let status = client.store(fid, 0, &data, data.len() as u64).await.unwrap();
                assert_eq!(status.length, data.len() as u64);
                let (back, _) = client.fetch(fid, 0, i64::MAX).await.unwrap();
                assert!(back == data, "file {number}");
                let (part, _) = client.fetch(fid, 1_234_567, 2_345_678).await.unwrap();
                assert!(part == data[1_234_567..][..2_345_678]);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    endpoint.shut_down();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_files_made_at_once_in_a_directory_are_all_there() {
    let folder = Folder::new("loopback");
    let (endpoint, _server) = serve(&folder);
    let client = Arc::new(client(&endpoint, 1));
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let mut fids = Vec::new();
                for number in 0..5 {
                    let name = format!("file-{task}-{number}");
                    let fid = client.create(ROOT, &name).await.unwrap().fid;
                    client.store(fid, 0, name.as_bytes(), name.len() as u64).await.unwrap();
                    fids.push((name, fid));
                }
                fids
            })
        })
        .collect();
    let mut all: Vec<(String, AfsFid)> = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    let distinct: BTreeSet<AfsFid> = all.iter().map(|(_, fid)| *fid).collect();
    assert_eq!(distinct.len(), 64 * 5);
    for (name, fid) in &all {
        let (data, reply) = client.fetch(*fid, 0, 100).await.unwrap();
        assert_eq!((&data[..], reply.status.data_version.0), (name.as_bytes(), 1));
    }
    let status = client.status(ROOT).await.unwrap().status;
    assert_eq!(status.data_version.0, 1 + 64 * 5, "it begins with one, and one for each file");
    endpoint.shut_down();
}
