//! A commit that is too large for one transaction, and is all or nothing all the same.
//!
//! A redo log: first all operations are written as pieces, then the head of the log is written, which is the commit; then
//! the operations are carried out, one transaction after another, and last the head is deleted. A leader that finds a head
//! carries the operations out again, from the first on; one that finds none leaves everything as it is.
//!
//! | step                                             | after a crash here                       |
//! |--------------------------------------------------|------------------------------------------|
//! | the operations are written as `redo/pieces/<n>`  | litter: nothing has happened             |
//! | `redo/head`, in one transaction: the commit      | everything has happened: done (again)    |
//! | the operations themselves, a few at a time       | the same: to do one twice changes nothing |
//! | `redo/head` is deleted                           | litter                                   |
//!
//! There is one at a time: the next commit begins when this one has ended, and a new leader finishes what it finds
//! before it does anything else.

use super::encoder::{Batch, StoreOp};
use super::envelope::{self, HEADER_BYTES};
use super::path::Path;
use super::read::StoredError;
use crate::limits::VALUE_BYTES;
use crate::proto;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// What one transaction of a backend takes, beside the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionLimits {
    /// How many operations it takes at most.
    pub steps: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

impl TransactionLimits {
    fn fit(self, ops: &[StoreOp]) -> bool {
        ops.len() <= self.steps && ops.iter().map(StoreOp::bytes).sum::<usize>() <= self.bytes
    }

    /// The operations in order, as many together as the limits allow. The parts of one record stay together
    /// where they can: a record of which some parts are there is damage to every reader.
    fn split(self, ops: Vec<StoreOp>) -> Vec<Vec<StoreOp>> {
        let mut pieces: Vec<Vec<StoreOp>> = Vec::new();
        let mut ops = ops.into_iter().peekable();
        while let Some(first) = ops.next() {
            let record = Path::parse(first.key()).map(|(path, _)| path);
            let mut group = vec![first];
            while let Some(next) =
                ops.next_if(|op| record.is_some() && Path::parse(op.key()).map(|(path, _)| path) == record)
            {
                group.push(next);
            }
            let groups =
                if self.fit(&group) { vec![group] } else { group.into_iter().map(|op| vec![op]).collect() };
            for group in groups {
                match pieces.last_mut() {
                    Some(piece) if self.fit_both(piece, &group) => piece.extend(group),
                    _ => pieces.push(group),
                }
            }
        }
        pieces
    }

    fn fit_both(self, piece: &[StoreOp], group: &[StoreOp]) -> bool {
        let bytes = piece.iter().chain(group).map(StoreOp::bytes).sum::<usize>();
        piece.len() + group.len() <= self.steps && bytes <= self.bytes
    }
}

/// The transactions of a commit, in order. Whatever is cut off leaves what was before or all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transactions {
    /// Mean nothing before the next one.
    pub before: Vec<Vec<StoreOp>>,
    /// With this one everything has happened. May be empty.
    pub commit: Vec<StoreOp>,
    /// What is left to be done of it.
    pub after: Vec<Vec<StoreOp>>,
}

impl Transactions {
    /// All of them, in order.
    pub fn all(self) -> Vec<Vec<StoreOp>> {
        let mut all = self.before;
        all.extend(Some(self.commit).filter(|commit| !commit.is_empty()));
        all.extend(self.after);
        all
    }
}

impl Batch {
    /// What to carry out. `limits` is what is left in a transaction beside what the caller adds to it.
    pub fn transactions(self, limits: TransactionLimits) -> Transactions {
        let Batch { prepare, commit, mut tidy } = self;
        let mut transactions = Transactions { before: limits.split(prepare), ..Transactions::default() };
        if limits.fit(&commit) {
            transactions.commit = commit;
        } else {
            let written = pieces(&commit);
            let count = written.len() as u32;
            transactions.before.extend(limits.split(written));
            transactions.commit = vec![head(count)];
            transactions.after = limits.split(commit);
            transactions.after.push(vec![StoreOp::Delete(Path::RedoHead.to_string())]);
            tidy.extend((0..count).map(|piece| StoreOp::Delete(Path::RedoPiece(piece).to_string())));
        }
        transactions.after.extend(limits.split(tidy));
        transactions
    }
}

fn head(pieces: u32) -> StoreOp {
    let key = Path::RedoHead.to_string();
    let value = envelope::seal(&key, 0, 1, &proto::StoredRedoHead { pieces }.encode_to_vec());
    StoreOp::Put(key, value)
}

/// The operations as bytes, cut where a value is full.
fn pieces(ops: &[StoreOp]) -> Vec<StoreOp> {
    let form = |op: &StoreOp| match op {
        StoreOp::Put(key, value) => proto::StoredOperation { key: key.clone(), value: Some(value.to_vec()) },
        StoreOp::Delete(key) => proto::StoredOperation { key: key.clone(), value: None },
    };
    let all = proto::StoredRedo { operations: ops.iter().map(form).collect() }.encode_to_vec();
    let sealed = |(number, piece): (u32, &[u8])| {
        let key = Path::RedoPiece(number).to_string();
        let value = envelope::seal(&key, 0, 1, piece);
        StoreOp::Put(key, value)
    };
    (0..).zip(all.chunks(VALUE_BYTES - HEADER_BYTES)).map(sealed).collect()
}

/// What `redo/` holds: the operations of a commit that has to be finished, and every key of the list.
#[derive(Default)]
pub(super) struct Found {
    pub(super) operations: Option<Vec<StoreOp>>,
    pub(super) keys: Vec<String>,
}

/// Reads the list from its entries.
pub(super) fn find<'a>(entries: impl Iterator<Item = (&'a str, &'a [u8])>) -> Result<Found, StoredError> {
    let (mut head, mut found) = (None, Found::default());
    let mut pieces: BTreeMap<u32, Bytes> = BTreeMap::new();
    let mut damaged = None;
    for (key, value) in entries {
        let error = |what: &dyn std::fmt::Display| StoredError::new(key, what);
        let opened = envelope::open(key, value).map_err(|why| error(&why));
        match (Path::parse(key), opened) {
            (Some((Path::RedoHead, 0)), opened) => {
                let payload = opened?.2;
                head = Some(proto::StoredRedoHead::decode(payload).map_err(|why| error(&why))?.pieces);
                continue;
            }
            (Some((Path::RedoPiece(number), 0)), Ok((0, _, payload))) => drop(pieces.insert(number, payload)),
            (Some((Path::RedoPiece(_), 0)), Err(why)) => damaged = damaged.or(Some(why)),
            _ => damaged = damaged.or(Some(error(&"is at a key that is none of ours"))),
        }
        found.keys.push(key.to_owned());
    }
    // Pieces without a head are of a commit that never happened, whatever is in them.
    let Some(count) = head else { return Ok(found) };
    if let Some(why) = damaged {
        return Err(why);
    }
    let mut all = Vec::new();
    for number in 0..count {
        let lost = || StoredError::new(Path::RedoPiece(number), "is missing");
        all.extend_from_slice(pieces.get(&number).ok_or_else(lost)?);
    }
    let broken =
        |why: prost::DecodeError| StoredError::new(Path::RedoHead, format!("leads to no list: {why}"));
    let redo = proto::StoredRedo::decode(all.as_slice()).map_err(broken)?;
    let operation = |form: proto::StoredOperation| match form.value {
        Some(value) => StoreOp::Put(form.key, value.into()),
        None => StoreOp::Delete(form.key),
    };
    found.operations = Some(redo.operations.into_iter().map(operation).collect());
    Ok(found)
}

/// What a new leader carries out before anything else: the rest of a commit, then the litter.
pub(super) fn finish(
    operations: Option<Vec<StoreOp>>,
    litter: Vec<String>,
    limits: TransactionLimits,
) -> Vec<Vec<StoreOp>> {
    let mut transactions = Vec::new();
    if let Some(operations) = operations {
        transactions.extend(limits.split(operations));
        transactions.push(vec![StoreOp::Delete(Path::RedoHead.to_string())]);
    }
    transactions.extend(limits.split(litter.into_iter().map(StoreOp::Delete).collect()));
    transactions
}
