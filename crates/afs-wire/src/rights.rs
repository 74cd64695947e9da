//! The rights on a directory and what is in it, and access lists as text (File service notes 8 and 10).

wire_bits! {
    /// What somebody may do in a directory.
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
