//! From the bytes of a journal file to the state it describes. Pure: the same bytes, the same answer.
//!
//! Strict: the first thing that is not as it was written ends it, with the offset. What can be saved
//! from such a file is a question for [`salvage`](super::salvage), and only when a person asks.

use crate::transaction::Version;
use crate::watch::Change;

use super::frame::{self, Damage, FileHeader, Found};
use super::record::Record;
use super::tree::Tree;

/// A file that was read to its end.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub header: FileHeader,
    pub tree: Box<Tree>,
    /// Where the next record goes.
    pub end: usize,
    /// Its number.
    pub next_record: u64,
    /// True if an unfinished write lies at `end`.
    pub torn: bool,
}

/// Reads `file`, which must be the one with this number.
pub(crate) fn replay(file: &[u8], file_number: u64) -> Result<Replayed, Damage> {
    let header = FileHeader::decode(file)?;
    if header.file_number != file_number {
        let what = format!("this is the content of file {}, under another name", header.file_number);
        return Err(Damage::new(0, what));
    }
    if !file.len().is_multiple_of(header.step as usize) {
        let what =
            format!("the file was cut: it ends here, at no multiple of its step of {} bytes", header.step);
        return Err(Damage::new(file.len(), what));
    }
    let (mut at, mut number) = (frame::FILE_HEADER, 1);
    let mut reading = Reading::Snapshot(Vec::new());
    let torn = loop {
        match frame::find(file, file_number, at, number)? {
            Found::Record { payload, next, .. } => {
                let record = Record::decode(payload)
                    .map_err(|what| Damage::new(at, format!("record {number} makes no sense: {what}")))?;
                reading = reading.take(record).map_err(|what| Damage::new(at, what))?;
                (at, number) = (next, number + 1);
            }
            Found::End => break false,
            Found::Torn => break true,
        }
    };
    match reading {
        Reading::Transactions(tree) => Ok(Replayed { header, tree, end: at, next_record: number, torn }),
        Reading::Snapshot(_) => Err(Damage::new(at, "the file ends inside its snapshot")),
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
