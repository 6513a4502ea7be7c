//! From the bytes of a journal file to the state it describes. Pure: the same bytes, the same answer.
//!
//! Strict: the first damage ends it, with the offset. [`salvage`](super::salvage) saves what it can
//! from such a file, and only when a person asks.

use partage_journal::{self as journal, Contents, Damage};

use crate::transaction::Version;
use crate::watch::Change;

use super::record::Record;
use super::tree::Tree;

/// A file that was read to its end.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub tree: Box<Tree>,
    pub contents: Contents,
}

/// Reads `file`, which must be the one with this number.
pub(crate) fn replay(file: &[u8], file_number: u64) -> Result<Replayed, Damage> {
    let mut reading = Reading::Snapshot(Vec::new());
    let contents = journal::read(file, file_number, |_, payload| {
        let begun = std::mem::replace(&mut reading, Reading::Snapshot(Vec::new()));
        reading = begun.take(Record::decode(payload)?)?;
        Ok(())
    })?;
    match reading {
        Reading::Transactions(tree) => Ok(Replayed { tree, contents }),
        Reading::Snapshot(_) => Err(Damage::new(contents.end, "the file ends inside its snapshot")),
    }
}

/// A file is a snapshot, then transactions.
enum Reading {
    Snapshot(Vec<Change>),
    Transactions(Box<Tree>),
}

impl Reading {
    fn take(self, record: Record) -> Result<Self, String> {
        match (self, record) {
            (Self::Snapshot(mut entries), Record::Snapshot(more)) => {
                entries.extend(more);
                Ok(Self::Snapshot(entries))
            }
            (Self::Snapshot(entries), Record::SnapshotEnd(at)) => {
                Ok(Self::Transactions(Box::new(Tree::from_snapshot(entries, at))))
            }
            (Self::Transactions(mut tree), Record::Batch(transactions)) => {
                for committed in transactions {
                    if committed.at <= tree.version() {
                        return Err(went_back(committed.at, tree.version()));
                    }
                    tree.apply(committed);
                }
                Ok(Self::Transactions(tree))
            }
            (Self::Snapshot(_), Record::Batch(_)) => Err("a transaction lies inside the snapshot".into()),
            (Self::Transactions(_), Record::Snapshot(_) | Record::SnapshotEnd(_)) => {
                Err("a part of a snapshot lies among the transactions".into())
            }
        }
    }
}

fn went_back(at: Version, last: Version) -> String {
    format!("transaction {at} follows {last}: versions only grow")
}
