//! Access lists as vnodes hold them: ids and rights. Their text is `afs_wire::rights`'s, what they grant to whom is
//! the file service's.

use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;

/// Most entries, positive and negative together (`ACL_MAXENTRIES`; Volume format 5).
pub const MAX_ENTRIES: usize = 20;

/// Who may do what in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessList {
    /// What is granted.
    pub positive: Vec<(ViceId, Rights)>,
    /// What is taken away from that.
    pub negative: Vec<(ViceId, Rights)>,
}

impl AccessList {
    /// All rights for `system:administrators`, which is what a new volume's root has (Volume service notes 4).
    #[must_use]
    pub fn administrators() -> Self {
        Self { positive: vec![(ViceId::SYSTEM_ADMINISTRATORS, Rights(0x7f))], negative: Vec::new() }
    }

    /// Entries of both kinds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positive.len() + self.negative.len()
    }

    /// Whether it grants nothing to anyone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.positive.is_empty() && self.negative.is_empty()
    }
}
