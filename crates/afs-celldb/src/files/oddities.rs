//! The oddities of a file: counted by kind, with a few examples of each.

use std::collections::BTreeMap;

/// Examples that are kept of a kind.
const MAX_EXAMPLES: usize = 20;

macro_rules! oddities {
    ($($name:ident $sentence:literal $done:literal;)*) => {
        /// A kind of oddity.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Oddity {
            $( #[doc = $sentence] $name, )*
        }

        impl Oddity {
            /// The oddity, as a noun in the plural.
            pub const fn sentence(self) -> &'static str {
                match self { $( Self::$name => $sentence, )* }
            }

            /// The treatment of it.
            pub const fn done(self) -> &'static str {
                match self { $( Self::$name => $done, )* }
            }
        }
    };
}

oddities! {
    CutShort "pieces missing at the end of the file" "what is there was read";
    OldLayout "layouts of servers from before 1998" "read by its own rules";
    UnknownSlot "places in the file that hold no known kind of entry" "left out";
    BrokenChain "hash chains that lead in a circle, out of the file, or to something else than an entry" "not followed further";
    WrongChain "entries in a hash chain that is not theirs" "kept";
    MissingFromChain "entries that one of their hash chains does not have" "kept";
    Unreachable "entries that no hash chain has, so that no look-up found them" "left out";
    BrokenFreeList "places that the list of free places leads to and that are not free" "the list was not used";
    Nameless "entries without a name or an id" "left out";
    Deleted "entries that are marked as deleted" "left out";
    DuplicateId "ids that several entries have" "the one that look-ups find has it";
    DuplicateName "names that several entries have" "one that look-ups do not find was renamed if it is a user or group";
    OddName "names with characters that no server would accept" "kept";
    DeadServer "server numbers that lead to no server" "taken for free";
    DuplicateServer "servers that have several numbers" "kept";
    DeadSite "sites at a server number without a server" "left out";
    NoSite "volumes without a site" "kept";
    Orphan "groups without an owner" "kept";
    DeadOwner "groups whose owner does not exist" "they have no owner now";
    WrongOwnerChain "groups that are not in the list of what their owner owns" "their owner has them now";
    DeadMember "members and memberships whose user or group does not exist" "left out";
    OneSided "memberships that only the user or only the group has" "both have it now";
    BrokenList "lists that lead in a circle, out of the file, or to a place of another entry" "read up to there";
    WrongCount "entries that count more or fewer members than they have" "counted anew";
    NoSystemEntry "groups and users of the system that are missing" "OpenAFS's servers do not start with such a file";
}

/// The oddities of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities(BTreeMap<Oddity, (u64, Vec<String>)>);

impl Oddities {
    /// Another one; `example` says which thing it is, in a few words.
    pub(super) fn add(&mut self, oddity: Oddity, example: impl FnOnce() -> String) {
        let (count, examples) = self.0.entry(oddity).or_default();
        *count += 1;
        if examples.len() < MAX_EXAMPLES {
            examples.push(example());
        }
    }

    /// All kinds that there are, how many there are of each, and some of them.
    pub fn iter(&self) -> impl Iterator<Item = (Oddity, u64, &[String])> {
        self.0.iter().map(|(oddity, (count, examples))| (*oddity, *count, &examples[..]))
    }

    /// The number of a kind.
    pub fn count(&self, oddity: Oddity) -> u64 {
        self.0.get(&oddity).map_or(0, |(count, _)| *count)
    }

    /// True if there is nothing odd.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A name as it is told: what is no text is shown by its bytes.
pub(super) fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}
