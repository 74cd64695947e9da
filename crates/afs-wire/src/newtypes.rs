//! Two ways of giving a number on the wire a type: an id, which has nothing but equality and order, and a set of bits
//! with names. `rxgen::wire_enum!` is for open enumerations.

/// Ids and quantities: a newtype over an integer that travels as the integer does.
macro_rules! wire_id {
    ($( $(#[$meta:meta])* $name:ident($int:ident); )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl ::rxgen::Xdr for $name {
            const SIZE: ::rxgen::xdr::WireSize = <$int as ::rxgen::Xdr>::SIZE;

            fn encode(&self, out: &mut Vec<u8>) {
                ::rxgen::Xdr::encode(&self.0, out);
            }

            fn decode(decoder: &mut ::rxgen::Decoder<'_>) -> Result<Self, ::rxgen::DecodeError> {
                <$int as ::rxgen::Xdr>::decode(decoder).map(Self)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )* };
}

/// Sets of bits: a newtype over an integer with a constant for each bit that has a name. Bits without one are kept
/// and sent on.
macro_rules! wire_bits {
    ($( $(#[$meta:meta])* $name:ident($int:ident) {
        $( $(#[$bit_meta:meta])* $bit:literal $constant:ident; )*
    } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// No bit.
            pub const NONE: Self = Self(0);
            $( $(#[$bit_meta])* pub const $constant: Self = Self($bit); )*

            /// True if all bits of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// True if one of the bits of `other` is set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// The bits of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that `other` does not have.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// True if no bit is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl ::std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl ::std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl ::std::ops::BitAnd for $name {
            type Output = Self;

            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl ::rxgen::Xdr for $name {
            const SIZE: ::rxgen::xdr::WireSize = <$int as ::rxgen::Xdr>::SIZE;

            fn encode(&self, out: &mut Vec<u8>) {
                ::rxgen::Xdr::encode(&self.0, out);
            }

            fn decode(decoder: &mut ::rxgen::Decoder<'_>) -> Result<Self, ::rxgen::DecodeError> {
                <$int as ::rxgen::Xdr>::decode(decoder).map(Self)
            }
        }

        impl ::std::fmt::Debug for $name {
            /// The names of the bits, and in hexadecimal what has none.
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut rest = *self;
                let mut separator = "";
                f.write_str(concat!(stringify!($name), "("))?;
                $( if !Self::$constant.is_empty() && rest.contains(Self::$constant) {
                    write!(f, "{separator}{}", stringify!($constant))?;
                    rest = rest.without(Self::$constant);
                    separator = " | ";
                } )*
                if !rest.is_empty() || separator.is_empty() {
                    write!(f, "{separator}{:#x}", rest.0)?;
                }
                f.write_str(")")
            }
        }
    )* };
}
