//! The structures of krb5.h that callers of the library must know. Who fills them, and when, is left to the parent.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr;

/// Memory that only the library can look into.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

pub(super) type PrincipalPtr = *mut Opaque;

/// `krb5_data`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Data {
    pub(super) magic: i32,
    pub(super) length: c_uint,
    pub(super) data: *mut c_char,
}

/// `krb5_keyblock`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Keyblock {
    pub(super) magic: i32,
    pub(super) kind: i32,
    pub(super) length: c_uint,
    pub(super) contents: *mut u8,
}

/// `krb5_ticket_times`: seconds since 1970, in 32 bits that are read as unsigned.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) authenticated: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) renewable_until: u32,
}

/// `krb5_creds`, as krb5.h of MIT Kerberos has had it since 1.0, checked with 1.20's.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Creds {
    pub(super) magic: i32,
    pub(super) client: PrincipalPtr,
    pub(super) server: PrincipalPtr,
    pub(super) key: Keyblock,
    pub(super) times: Times,
    pub(super) is_session_key: c_uint,
    pub(super) flags: i32,
    pub(super) addresses: *mut c_void,
    pub(super) ticket: Data,
    pub(super) second_ticket: Data,
    pub(super) authorization: *mut c_void,
}

impl Creds {
    pub(super) const EMPTY: Self = {
        let data = Data { magic: 0, length: 0, data: ptr::null_mut() };
        Self {
            magic: 0,
            client: ptr::null_mut(),
            server: ptr::null_mut(),
            key: Keyblock { magic: 0, kind: 0, length: 0, contents: ptr::null_mut() },
            times: Times { authenticated: 0, start: 0, end: 0, renewable_until: 0 },
            is_session_key: 0,
            flags: 0,
            addresses: ptr::null_mut(),
            ticket: data,
            second_ticket: data,
            authorization: ptr::null_mut(),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_of_credentials_has_the_size_and_places_of_krb5_h() {
        use std::mem::offset_of;
        if size_of::<usize>() != 8 {
            return;
        }
        assert_eq!(size_of::<Creds>(), 120);
        let places = [
            offset_of!(Creds, client),
            offset_of!(Creds, key),
            offset_of!(Creds, times),
            offset_of!(Creds, flags),
            offset_of!(Creds, ticket),
            offset_of!(Creds, authorization),
        ];
        assert_eq!(places, [8, 24, 48, 68, 80, 112]);
    }
}
