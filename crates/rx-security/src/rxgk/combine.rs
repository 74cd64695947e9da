//! K0 of the token that is made of a user's token for one server (rxgk notes 5.5). Who holds the user's computes the same as the server that
//! makes the new one.

use super::{ENCTYPES, Secret};
use crate::kerberos::{Counter, prf_plus};
use crate::keys::EncType;
use rxgen::Xdr;
use rxgen::xdr::Uuid;
use zeroize::Zeroizing;

/// The secret of the token for a server that is made of a user's token. `None` for an enctype that rxgk does not have here.
pub fn combine_for_server(user: &Secret, server: Uuid, kind: EncType) -> Option<Secret> {
    let mut pepper = b"rxgkAFS\0".to_vec();
    server.encode(&mut pepper);
    kind.0.encode(&mut pepper);
    stretched(user, &pepper, kind).and_then(|bytes| Secret::new(kind, &bytes))
}

fn stretched(secret: &Secret, pepper: &[u8], kind: EncType) -> Option<Zeroizing<Vec<u8>>> {
    let len = kind.key_len().filter(|_| ENCTYPES.contains(&kind))?;
    prf_plus(secret.kind(), secret.bytes(), Counter::Byte, pepper, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kerberos::bytes;

    fn counted(kind: EncType) -> Secret {
        Secret::new(kind, &(0..kind.key_len().unwrap() as u8).collect::<Vec<u8>>()).unwrap()
    }

    /// OpenAFS's published vectors.
    #[test]
    fn a_secret_for_a_server_is_that_of_openafs() {
        let server: Uuid = "8484c962-5d1d-4558-b6-52-56a51e442570".parse().unwrap();
        for (user, kind, want) in [
            ("b1c2d1f3a598fab5775f869b048888ca", EncType::AES128, "8701caa51836f91c2de0b20d41fe6c4c"),
            (
                "b2c2d1f3a598fab5775f869b048888ca",
                EncType::AES256,
                "139c077ddf68fe98e7c7f827c1bed72deb1dbae0bbfed3251b30d70d4bace8dc",
            ),
        ] {
            let user = Secret::new(EncType::AES128, &bytes(user)).unwrap();
            assert_eq!(combine_for_server(&user, server, kind).unwrap().bytes(), bytes(want));
        }
    }

    /// Published vectors, of secrets of 00 01 02 and on, in the order of the enctypes from 17 to 20.
    #[test]
    fn secrets_of_all_enctypes_are_those_that_were_published() {
        let server: Uuid = "00010203-0405-0607-08-09-0a0b0cfdfeff".parse().unwrap();
        let want = [
            [
                "6b3eb3ff5f01714d9419ce71b4d47e1c",
                "7e988d25fb01b4256d28d3393ac84c4a56ea14f790b80a22a3f318cf745637b1",
                "2f21414b24b166cb93fb91dfe570215c",
                "04494694ced382959bfa1d9407e99000fa3fa0ef48d46254a2701b1f2e76b33c",
            ],
            [
                "ac121ea062b381ac55130f61cb4833ef",
                "0f0aeae51e7ce7a2e932faea223a1f5c5ebb8b781210f98f468b58b69f19c29b",
                "91f23d1a1c6206656205f58593b207ce",
                "6d3d0cf0a05fd0162da74db078790265256076fe976dbb007ef717b7a057889f",
            ],
            [
                "1b75f7ba5e507bc3c78720f6af1762ce",
                "67be7ce42f19fda4d03e1aa5b9937b864c99f949fb6cc9c61f24e45650b68e35",
                "4b5e0fa89017cdbc51d3b88791d4da57",
                "acfa137dab2d3fe2d4c7c4f125be8a8e0c62b807064d590cf2addfb0087d49de",
            ],
            [
                "5244c7dcba59ff0c9fbac705159b6a54",
                "ceca5ba5444fd6e21bd158bc79ebfb98d3b23881f4b10f8f9025b365a3d2085f",
                "9b750ccd3d417dcf91f20e96ed173c2b",
                "4a3c2dfe11ffcf2412b8b770fcc7e826c15d42ef708a0da9d74cf20b6563b198",
            ],
        ];
        for (from, row) in (17..).zip(want) {
            for (to, want) in (17..).zip(row) {
                let got = combine_for_server(&counted(EncType(from)), server, EncType(to)).unwrap();
                assert_eq!((got.kind(), got.bytes()), (EncType(to), &bytes(want)[..]), "{from} {to}");
            }
        }
        assert_eq!(combine_for_server(&counted(EncType::AES128), server, EncType::RC4), None);
    }
}
