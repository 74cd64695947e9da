//! What the targets of invitations and of devices' handshakes start from.

use afar_fuzz::targets::join_handshake::{Handshake, request};
use afs_join::{Invitation, PublicKey};
use afs_wire::ids::CellName;
use afs_wire::join::{JoinK0, JoinOutcome, JoinReply, JoinSecret, JoinUser};
use rxgen::xdr::{Opaque, OpaqueFixed, to_bytes};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Good lines, the same cut short, of other forms, and with a server that cannot be.
pub(super) fn invitations() -> Vec<Vec<u8>> {
    let mut inputs = vec![b"\0hello".to_vec(), b"\0afar2/a/b/c/d".to_vec(), b"\0afar1/a/b/c/d".to_vec()];
    inputs.extend([&b"\x01afar1/a/b/c"[..], b"\x01afar1/a b/192.0.2.1/c", b"\x01a"].map(<[u8]>::to_vec));
    for (cell, servers) in [("a.b", 1), ("home.example", 3), ("home.example", 17)] {
        let server = |last| SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 7000 + u16::from(last));
        let invitation = Invitation {
            cell: CellName::new(cell).expect("a good name"),
            servers: (1..=servers).map(server).collect(),
            key: PublicKey([5; 32]),
            secret: JoinSecret([7; 20]),
        };
        let line = invitation.to_line();
        let (covered, _) = line.rsplit_once('/').expect("a line has parts");
        inputs.extend((1..line.len()).step_by(9).map(|length| format!("\0{}", &line[..length]).into_bytes()));
        inputs.push(format!("\0{}", *line).into_bytes());
        let others = [covered.to_owned(), covered.replace(':', "x"), covered.replace("home", "h me")];
        let others =
            others.into_iter().chain([covered.replace("0x", "1"), covered.replace(",192.0.2.2:7002", "")]);
        inputs.extend(others.map(|covered| format!("\x01{covered}").into_bytes()));
    }
    inputs
}

/// Each message of a good handshake, the same cut short, and what is in the last two.
pub(super) fn handshakes() -> Vec<Vec<u8>> {
    let mut handshake = Handshake::default();
    let first = handshake.first().1.message.to_vec();
    let second = handshake.second(&first).expect("a good message").message.to_vec();
    let third = Handshake::default().third().2;
    let reply = to_bytes(&JoinReply {
        outcome: JoinOutcome::DONE,
        device: 1,
        user: JoinUser::new("alice").expect("it is short"),
        key: OpaqueFixed([5; 32]),
        dialect: 4,
        enctype: 18,
        level: 2,
        lifetime: 36_000,
        bytelife: 30,
        expiration: 1 << 50,
        secret: JoinK0(vec![3; 32]),
        token: Opaque::new(vec![4; 20]).expect("it is short"),
    });
    let request = to_bytes(&request());
    let messages = [first, second, third, reply.clone(), request, reply];
    let whole = messages.iter().zip(0u8..).map(|(message, mode)| [&[mode], &message[..]].concat());
    let whole: Vec<Vec<u8>> = whole.collect();
    let cut =
        whole.iter().flat_map(|input| (1..input.len()).step_by(7).map(|length| input[..length].to_vec()));
    let cut: Vec<Vec<u8>> = cut.collect();
    whole.into_iter().chain(cut).collect()
}
