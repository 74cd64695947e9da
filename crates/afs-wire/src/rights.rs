//! The rights on a directory and what is in it (File service notes 8). Access lists, which give them, are in
//! [`acl`](crate::acl).

wire_bits! {
    /// The rights that somebody has in a directory.
    Rights(u32) {
        /// `r`: read files.
        0x1 READ;
        /// `w`: write files.
        0x2 WRITE;
        /// `i`: make entries.
        0x4 INSERT;
        /// `l`: list the directory, see the status of what is in it.
        0x8 LOOKUP;
        /// `d`: remove entries.
        0x10 DELETE;
        /// `k`: lock files.
        0x20 LOCK;
        /// `a`: change the access list.
        0x40 ADMINISTER;
        /// `A` to `H`: for applications.
        0x0100_0000 USER_A;
        /// `B`.
        0x0200_0000 USER_B;
        /// `C`.
        0x0400_0000 USER_C;
        /// `D`.
        0x0800_0000 USER_D;
        /// `E`.
        0x1000_0000 USER_E;
        /// `F`.
        0x2000_0000 USER_F;
        /// `G`.
        0x4000_0000 USER_G;
        /// `H`.
        0x8000_0000 USER_H;
    }
}

impl Rights {
    /// All that have a letter.
    pub const ALL: Self = Self(0x7f);

    /// These rights as letters, `rlidwka` and then `A` to `H`, in the order in which OpenAFS's tools print them.
    #[must_use]
    pub fn letters(self) -> String {
        LETTERS.iter().filter(|(right, _)| self.contains(*right)).map(|(_, letter)| letter).collect()
    }

    /// The rights of such letters; `None` if one has no meaning.
    #[must_use]
    pub fn from_letters(text: &str) -> Option<Self> {
        text.chars().try_fold(Self::NONE, |rights, char| {
            LETTERS.iter().find(|(_, letter)| *letter == char).map(|(right, _)| rights | *right)
        })
    }
}

const LETTERS: &[(Rights, char)] = &[
    (Rights::READ, 'r'),
    (Rights::LOOKUP, 'l'),
    (Rights::INSERT, 'i'),
    (Rights::DELETE, 'd'),
    (Rights::WRITE, 'w'),
    (Rights::LOCK, 'k'),
    (Rights::ADMINISTER, 'a'),
    (Rights::USER_A, 'A'),
    (Rights::USER_B, 'B'),
    (Rights::USER_C, 'C'),
    (Rights::USER_D, 'D'),
    (Rights::USER_E, 'E'),
    (Rights::USER_F, 'F'),
    (Rights::USER_G, 'G'),
    (Rights::USER_H, 'H'),
];
