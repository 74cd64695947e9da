//! The notation for what goes over the wire: structures, open enumerations, and interfaces.
//!
//! # How to read an interface
//!
//! ```
//! use rxgen::xdr::XdrString;
//! use rxgen::{Interface, Rpc, interface, wire_enum, wire_struct};
//!
//! # fn main() {
//! # library::check();
//! # }
//! # mod library {
//! # use super::*;
//! /// Longest title, in bytes.
//! pub const TITLE_MAX: usize = 256;
//!
//! wire_enum! {
//!     /// What may be done with a book.
//!     enum Lending: u32 {
//!         /// Read here.
//!         0 REFERENCE;
//!         /// Taken home.
//!         1 LOAN;
//!     }
//! }
//!
//! wire_struct! {
//!     /// What the catalogue knows of a book.
//!     #[derive(Hash)]
//!     struct Entry {
//!         /// Where it stands.
//!         shelf: u32,
//!         /// Whether it may be taken home.
//!         lending: Lending,
//!     }
//! }
//!
//! interface! {
//!     /// What readers ask of a library.
//!     Library on service 77 port 7077 {
//!         /// Finds a book by its title.
//!           10 Find   (title: XdrString<TITLE_MAX>) -> (number: u32, entry: Entry);
//!         /// Part of a book's text.
//!           11 Read   (number: u32, pos: u64, length: u64) split from_server -> (left: u64);
//!         /// Adds a book, whose text follows.
//!         1002 Donate (title: XdrString<TITLE_MAX>, length: u64) split from_client -> (number: u32);
//!         /// Says that the reader is gone.
//!         1003 Leave  ();
//!     }
//! }
//!
//! # pub fn check() {
//! assert_eq!(Donate::OPCODE, 1002);
//! assert_eq!(rxgen::encode_request(&Leave {}), [0, 0, 3, 0xeb]);
//! let found = rxgen::decode_reply::<Find>(&[0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 1]).unwrap();
//! assert_eq!(found.entry, Entry { shelf: 7, lending: Lending::LOAN });
//! assert_eq!(Library::RPCS[1].name, "Read");
//! # }
//! # }
//! ```
//!
//! The opcode stands first and is the procedure's identity: nothing follows from the order of the lines, and two
//! procedures with one opcode do not compile. Then the name, the arguments, `split from_client` or
//! `split from_server` where raw data travel between the two, and the results.
//!
//! From an entry come: the type of the arguments (`Find`), the type of the results (`reply::Find`), the
//! [`Rpc`](crate::rpc::Rpc) that binds them, and a row of the interface's
//! [`RPCS`](crate::rpc::Interface::RPCS). The name of the interface becomes a type that stands for it and
//! implements [`Dispatch`](crate::serve::Dispatch) for every server that has a handler for each procedure. An interface has a module
//! (commonly a file) of its own, because of the names it gives.
//!
//! For what the notation does not have (unions, say), implement [`Xdr`](crate::xdr::Xdr) by hand.

/// Structures: their fields one after the other. Each becomes a `pub struct` with public fields that is `Debug`,
/// `Clone`, `PartialEq` and `Eq`, and whose decoding errors name the field.
///
/// See [the module](mod@crate::interface) for an example.
#[macro_export]
macro_rules! wire_struct {
    ($( $(#[$meta:meta])* struct $name:ident { $( $(#[$field_meta:meta])* $field:ident : $type:ty ),* $(,)? } )*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type ),* }

        impl $crate::xdr::Xdr for $name {
            const SIZE: $crate::xdr::WireSize =
                $crate::xdr::WireSize::exactly(0) $( .then(<$type as $crate::xdr::Xdr>::SIZE) )*;

            fn encode(&self, _out: &mut ::std::vec::Vec<u8>) {
                $( $crate::xdr::Xdr::encode(&self.$field, _out); )*
            }

            fn decode(
                _decoder: &mut $crate::xdr::Decoder<'_>,
            ) -> ::std::result::Result<Self, $crate::xdr::DecodeError> {
                ::std::result::Result::Ok(Self { $(
                    $field: <$type as $crate::xdr::Xdr>::decode(_decoder).map_err(|error| {
                        error.in_field(::std::concat!(::std::stringify!($name), ".", ::std::stringify!($field)))
                    })?
                ),* })
            }
        }
    )* };
}

/// Enumerations that may grow: a newtype over an integer, with a constant for each value that has a name. Others
/// decode, print as numbers and are sent on unchanged. Two names for one number do not compile.
///
/// See [the module](mod@crate::interface) for an example.
#[macro_export]
macro_rules! wire_enum {
    ($( $(#[$meta:meta])* enum $name:ident : $int:ident {
        $( $(#[$value_meta:meta])* $value:literal $constant:ident ; )*
    } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $( $(#[$value_meta])* pub const $constant: Self = Self($value); )*

            /// The values that have a name, in the order of declaration.
            pub const NAMED: &'static [Self] = &[$( Self::$constant ),*];

            /// The name of this value, if it has one.
            pub fn name(self) -> ::std::option::Option<&'static str> {
                match self.0 {
                    $( $value => ::std::option::Option::Some(::std::stringify!($constant)), )*
                    _ => ::std::option::Option::None,
                }
            }
        }

        const _: () = {
            let mut i = 0;
            while i < $name::NAMED.len() {
                let mut j = i + 1;
                while j < $name::NAMED.len() {
                    assert!($name::NAMED[i].0 != $name::NAMED[j].0, "two names share a number");
                    j += 1;
                }
                i += 1;
            }
        };

        impl $crate::xdr::Xdr for $name {
            const SIZE: $crate::xdr::WireSize = <$int as $crate::xdr::Xdr>::SIZE;

            fn encode(&self, out: &mut ::std::vec::Vec<u8>) {
                $crate::xdr::Xdr::encode(&self.0, out);
            }

            fn decode(
                decoder: &mut $crate::xdr::Decoder<'_>,
            ) -> ::std::result::Result<Self, $crate::xdr::DecodeError> {
                <$int as $crate::xdr::Xdr>::decode(decoder).map(Self)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    ::std::option::Option::Some(name) => ::std::write!(f, "{}::{}", ::std::stringify!($name), name),
                    ::std::option::Option::None => ::std::write!(f, "{}({})", ::std::stringify!($name), self.0),
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    ::std::option::Option::Some(name) => f.pad(name),
                    ::std::option::Option::None => ::std::fmt::Display::fmt(&self.0, f),
                }
            }
        }
    )* };
}

/// An interface: its service number, its port, and its procedures. See [the module](mod@crate::interface) for how to
/// read it and for what comes from it.
///
/// Two procedures with one opcode do not compile:
///
/// ```
/// # mod clock {
/// rxgen::interface! {
///     /// Clocks.
///     Clock on service 1 port 7000 {
///         /// The time.
///         1 GetTime () -> (seconds: u32);
///         /// Sets the time.
///         2 SetTime (seconds: u32);
///     }
/// }
/// # }
/// ```
///
/// ```compile_fail
/// # mod clock {
/// rxgen::interface! {
///     /// Clocks.
///     Clock on service 1 port 7000 {
///         /// The time.
///         1 GetTime () -> (seconds: u32);
///         /// Sets the time.
///         1 SetTime (seconds: u32); // two RPCs share an opcode
///     }
/// }
/// # }
/// ```
///
/// A server without a handler for each of the procedures does not compile either:
///
/// ```
/// # mod clock { rxgen::interface! { /// Clocks.
/// # Clock on service 1 port 7000 { /// The time.
/// # 1 GetTime () -> (seconds: u32); } } }
/// # use clock::*;
/// # use rxgen::{Abort, Serve, ServerCall};
/// struct Server;
/// impl Serve<GetTime> for Server {
///     async fn serve(&self, _: ServerCall<'_, GetTime>, _: GetTime) -> Result<reply::GetTime, Abort> {
///         Ok(reply::GetTime { seconds: 0 })
///     }
/// }
/// fn serves<I: rxgen::Dispatch<S>, S>(_: S) {}
/// serves::<Clock, _>(Server);
/// ```
///
/// ```compile_fail
/// # mod clock { rxgen::interface! { /// Clocks.
/// # Clock on service 1 port 7000 { /// The time.
/// # 1 GetTime () -> (seconds: u32); } } }
/// # use clock::*;
/// # use rxgen::{Abort, Serve, ServerCall};
/// struct Server;
/// fn serves<I: rxgen::Dispatch<S>, S>(_: S) {}
/// serves::<Clock, _>(Server); // `Server` has no handler for `GetTime`
/// ```
#[macro_export]
macro_rules! interface {
    (
        $(#[$meta:meta])*
        $interface:ident on service $service:literal port $port:literal { $(
            $(#[$rpc_meta:meta])*
            $opcode:literal $name:ident ( $( $(#[$arg_meta:meta])* $arg:ident : $arg_type:ty ),* $(,)? )
            $( split $direction:ident )?
            $( -> ( $( $(#[$result_meta:meta])* $result:ident : $result_type:ty ),* $(,)? ) )? ;
        )* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub struct $interface;

        impl $crate::rpc::Interface for $interface {
            const NAME: &'static str = ::std::stringify!($interface);
            const SERVICE_ID: u16 = $service;
            const PORT: u16 = $port;
            const RPCS: &'static [$crate::rpc::RpcInfo] = &[ $( $crate::rpc::RpcInfo {
                opcode: $opcode,
                name: ::std::stringify!($name),
                args: &[ $( (::std::stringify!($arg), ::std::stringify!($arg_type)) ),* ],
                results: &[ $( $( (::std::stringify!($result), ::std::stringify!($result_type)) ),* )? ],
                split: $crate::interface!(@split $($direction)?),
                args_size: <$name as $crate::xdr::Xdr>::SIZE,
                results_size: <reply::$name as $crate::xdr::Xdr>::SIZE,
                decode_args: $crate::rpc::recode::<$name>,
                decode_results: $crate::rpc::recode::<reply::$name>,
            } ),* ];
        }

        const _: () = $crate::rpc::assert_distinct_opcodes(<$interface as $crate::rpc::Interface>::RPCS);

        $(
            $crate::wire_struct! {
                $(#[$rpc_meta])*
                struct $name { $(
                    $(#[$arg_meta])*
                    #[doc = ::std::concat!("Argument `", ::std::stringify!($arg), "`.")]
                    $arg: $arg_type
                ),* }
            }

            impl $crate::rpc::Rpc for $name {
                const OPCODE: u32 = $opcode;
                const NAME: &'static str = ::std::stringify!($name);
                const SPLIT: ::std::option::Option<$crate::rpc::Split> = $crate::interface!(@split $($direction)?);
                type Reply = reply::$name;
            }

            $( $crate::interface!(@streams $direction $name); )?
        )*

        #[doc = ::std::concat!("What the procedures of [`", ::std::stringify!($interface), "`](super::",
            ::std::stringify!($interface), ") return.")]
        pub mod reply {
            use super::*;

            // Uses the import, which an interface without results of types of its own would not.
            const _: $interface = $interface;

            $( $crate::wire_struct! {
                #[doc = ::std::concat!("Results of [`", ::std::stringify!($name), "`](super::",
                    ::std::stringify!($name), ").")]
                struct $name { $( $(
                    $(#[$result_meta])*
                    #[doc = ::std::concat!("Result `", ::std::stringify!($result), "`.")]
                    $result: $result_type
                ),* )? }
            } )*
        }

        impl<S> $crate::serve::Dispatch<S> for $interface
        where
            S: ::std::marker::Sync $( + $crate::serve::Serve<$name> )*,
        {
            async fn dispatch(
                _server: &S,
                opcode: u32,
                _stream: &mut dyn $crate::serve::CallStream,
                _max_argument_bytes: usize,
            ) -> ::std::result::Result<(), $crate::rpc::Abort> {
                match opcode {
                    // Each in a box of its own: a future that has room for any of them is some kilobytes, which are moved
                    // with every call, however small.
                    $( $opcode => {
                        let answer = $crate::serve::answer::<$name, S>(_server, _stream, _max_argument_bytes);
                        ::std::boxed::Box::pin(answer).await
                    } )*
                    _ => ::std::result::Result::Err($crate::rpc::Abort::OPCODE),
                }
            }
        }
    };

    (@split) => { ::std::option::Option::None };
    (@split from_client) => { ::std::option::Option::Some($crate::rpc::Split::FromClient) };
    (@split from_server) => { ::std::option::Option::Some($crate::rpc::Split::FromServer) };

    (@streams from_client $name:ident) => { impl $crate::rpc::StreamsIn for $name {} };
    (@streams from_server $name:ident) => { impl $crate::rpc::StreamsOut for $name {} };
}
