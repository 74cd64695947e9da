//! The notation for records of DEBUG replies: its fields, in order, once; from that follow the structure, its size,
//! its bytes and the list of its names. Which records there are is in `debug`.

use crate::abort::AbortCode;
use crate::ids::{CallNumber, ConnectionId, Epoch, SecurityIndex, Serial};
use std::net::Ipv4Addr;

/// A field for those who print every one, such as JSON writers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Any number or id.
    Number(i64),
    /// An IPv4 address.
    Address(Ipv4Addr),
    /// An array.
    List(Vec<Value>),
    /// A record within the record.
    Record(Vec<(&'static str, Value)>),
}

/// Something with a fixed size on the wire.
pub(super) trait Field: Sized {
    /// Bytes on the wire.
    const LEN: usize;

    /// Takes its bytes off the front. Bytes that are not there read as zero: a shorter record is an older version's.
    fn take(from: &mut &[u8]) -> Self;

    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// The field's value, for printing.
    fn value(&self) -> Value;
}

/// Takes `N` bytes off the front, zeros for those that are not there.
fn take_bytes<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let there = from.len().min(N);
    bytes[..there].copy_from_slice(&from[..there]);
    *from = &from[there..];
    bytes
}

macro_rules! number_fields {
    ($($int:ty)*) => {$(
        impl Field for $int {
            const LEN: usize = size_of::<$int>();

            fn take(from: &mut &[u8]) -> Self {
                Self::from_be_bytes(take_bytes(from))
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn value(&self) -> Value {
                Value::Number(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }
    )*};
}

number_fields! { u8 u16 i32 u32 u64 }

/// Newtypes over a number are that number on the wire.
macro_rules! newtype_fields {
    ($($name:ident($int:ty))*) => {$(
        impl $crate::debug::record::Field for $name {
            const LEN: usize = <$int as $crate::debug::record::Field>::LEN;

            fn take(from: &mut &[u8]) -> Self {
                Self(<$int as $crate::debug::record::Field>::take(from))
            }

            fn put(&self, out: &mut Vec<u8>) {
                $crate::debug::record::Field::put(&self.0, out);
            }

            fn value(&self) -> $crate::debug::record::Value {
                $crate::debug::record::Field::value(&self.0)
            }
        }
    )*};
}
pub(super) use newtype_fields;

newtype_fields! {
    Epoch(u32)
    ConnectionId(u32)
    CallNumber(u32)
    Serial(u32)
    SecurityIndex(u8)
    AbortCode(i32)
}

impl Field for Ipv4Addr {
    const LEN: usize = 4;

    fn take(from: &mut &[u8]) -> Self {
        Self::from(take_bytes::<4>(from))
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    fn value(&self) -> Value {
        Value::Address(*self)
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    const LEN: usize = T::LEN * N;

    fn take(from: &mut &[u8]) -> Self {
        std::array::from_fn(|_| T::take(from))
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|one| one.put(out));
    }

    fn value(&self) -> Value {
        Value::List(self.iter().map(T::value).collect())
    }
}

/// A record: `/// doc`, `Name {`, then `/// doc`, `field: Type` in the order of the wire.
macro_rules! record {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl $name {
            /// Bytes on the wire, in the layout of today.
            pub const LEN: usize = 0 $(+ <$kind as $crate::debug::record::Field>::LEN)*;

            /// Every field by name, in the order of the wire; without the spare ones.
            pub fn fields(&self) -> Vec<(&'static str, $crate::debug::record::Value)> {
                let all = [$((stringify!($field), $crate::debug::record::Field::value(&self.$field)),)*];
                all.into_iter().filter(|(name, _)| !name.starts_with("spare")).collect()
            }
        }

        impl $crate::debug::record::Field for $name {
            const LEN: usize = Self::LEN;

            fn take(from: &mut &[u8]) -> Self {
                // A structure expression evaluates its fields in the order in which they are written.
                Self { $($field: $crate::debug::record::Field::take(from),)* }
            }

            fn put(&self, out: &mut Vec<u8>) {
                $($crate::debug::record::Field::put(&self.$field, out);)*
            }

            fn value(&self) -> $crate::debug::record::Value {
                $crate::debug::record::Value::Record(self.fields())
            }
        }

        impl Default for $name {
            /// A record of zeros.
            fn default() -> Self {
                $crate::debug::record::Field::take(&mut &[][..])
            }
        }
    };
}
pub(super) use record;
