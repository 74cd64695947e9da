//! A set of vnode numbers: what a dump has named, and what of it has come. Which those are is its users' matter.

use afs_wire::ids::VnodeNumber;
use std::collections::BTreeMap;

/// Numbers of vnodes: a bit each.
#[derive(Debug, Clone, Default)]
pub(crate) struct VnodeSet(BTreeMap<u32, [u64; 4]>);

impl VnodeSet {
    pub(crate) fn insert(&mut self, vnode: VnodeNumber) {
        self.0.entry(vnode.0 / 256).or_default()[(vnode.0 % 256 / 64) as usize] |= 1 << (vnode.0 % 64);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, vnode: VnodeNumber) -> bool {
        let block = self.0.get(&(vnode.0 / 256));
        block.is_some_and(|block| block[(vnode.0 % 256 / 64) as usize] & 1 << (vnode.0 % 64) != 0)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = VnodeNumber> {
        self.iter_from(VnodeNumber(0))
    }

    /// The same from a number on.
    pub(crate) fn iter_from(&self, from: VnodeNumber) -> impl Iterator<Item = VnodeNumber> {
        let blocks = self.0.range(from.0 / 256..);
        let all = blocks.flat_map(|(block, bits)| {
            let is_in = |n: &u32| bits[(n / 64) as usize] & 1 << (n % 64) != 0;
            (0..256).filter(is_in).map(move |n| VnodeNumber(block * 256 + n))
        });
        all.skip_while(move |vnode| *vnode < from)
    }
}
