//! Where a batch is when its holder says that it has stored it.
//!
//! | durability | `Stored` says that the batch is | lost by |
//! |---|---|---|
//! | disk | on the disk of the holder, synced | the loss of R disks |
//! | memory | in the memory of the machine of the holder: its driver has written it and has not synced it | R machines that end at once, or one after the other within seconds |
//!
//! The machines do nothing else for one than for the other, but that the leader does not wait without end for what is lost. The
//! leader tells buffers what the durability is: what a client says may be wrong.
//! A batch says by itself what it is, so that a replica which gets it from another one stores it in the same way. Decisions of
//! leaders are synced always: what is lost is noticed as a gap in a stream, by the plan or by a mark that lacks, and never read.

use std::fmt;
use std::str::FromStr;

/// Where records are when their attempt is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// On the disks of R nodes.
    #[default]
    Disk,
    /// In the memory of R machines, and soon on their disks.
    Memory,
}

/// A text that says no durability.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no durability: give disk or memory")]
pub struct BadDurability(pub String);

impl Durability {
    /// Every durability that a text can name.
    pub const ALL: [Durability; 2] = [Durability::Disk, Durability::Memory];

    /// Its name, as handles and commands have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Durability {
    type Err = BadDurability;

    fn from_str(text: &str) -> Result<Durability, BadDurability> {
        let named = Durability::ALL.into_iter().find(|one| one.as_str() == text);
        named.ok_or_else(|| BadDurability(text.chars().take(100).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durability_is_read_as_it_is_printed_and_nothing_else_is_one() {
        for one in Durability::ALL {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        for bad in ["", "Disk", "memory ", "ram"] {
            assert_eq!(bad.parse::<Durability>(), Err(BadDurability(bad.to_owned())));
        }
    }
}
