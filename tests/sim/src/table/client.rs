//! What clients ask of the row that lies beside each register of a table, what they are answered, and the form in which a log
//! carries it.

use super::rows::Page;
use crate::model::Op;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_service::table::feed::{Gone, Progress};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Payload};
use partage_service::table::rows::{
    self, Action, Condition, Expiry, Operation, Request, RequestId, Row, Value, Write,
};

/// What an operation wants of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowDeed {
    /// To read the row.
    Read,
    /// To read the changes of its shard that a reader lacks which is so far.
    Changes(Progress),
    /// To write or delete the row.
    Write(RowWrite),
}

/// A write of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowWrite {
    /// What must hold of the row.
    pub condition: Condition,
    /// Its value; none: the row is to be gone.
    pub value: Option<Value>,
    /// When the row ends that is written.
    pub expiry: Expiry,
}

/// What an operation saw of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSeen {
    /// The row that was read; none: there was none.
    Read(Option<Row>),
    /// The changes that a reader lacks, or that they are not kept any more.
    Changes(Result<Page, Gone>),
    /// It was written, or refused.
    Wrote(rows::Outcome),
}

/// Tells a write of rows from one of a register, which begins with the position of a keyspace.
const ROWS: u8 = 0xff;

/// The request id of an operation.
pub fn request_id(op: Op) -> RequestId {
    RequestId(u128::from(op).to_le_bytes())
}

/// The operation of a request id.
pub fn op_of(id: RequestId) -> Op {
    u128::from_le_bytes(id.0) as Op
}

/// A write of one row at a leader whose clock shows `at_ms`, as an entry carries it.
pub fn encode(at_ms: u64, op: Op, key: &Key, write: &RowWrite) -> Payload {
    let mut bytes = head(at_ms);
    bytes.extend(op.to_le_bytes());
    let (tag, version) = match write.condition {
        Condition::Always => (0, LogPosition::default()),
        Condition::Absent => (1, LogPosition::default()),
        Condition::Present => (2, LogPosition::default()),
        Condition::Version(version) => (3, version),
    };
    bytes.push(tag);
    bytes.extend(version.epoch.0.to_le_bytes());
    bytes.extend(version.index.to_le_bytes());
    let end_ms = match write.expiry.resolved(at_ms) {
        Expiry::At(end_ms) => end_ms,
        Expiry::AsBefore | Expiry::Never | Expiry::After(_) => u64::MAX,
    };
    bytes.extend(end_ms.to_le_bytes());
    bytes.push(key.as_bytes().len() as u8);
    bytes.extend(key.as_bytes());
    bytes.push(u8::from(write.value.is_some()));
    bytes.extend(write.value.iter().flat_map(|value| value.iter()));
    bytes.into()
}

/// A write that only moves the clock of its shard on.
pub fn encode_clock(at_ms: u64) -> Payload {
    head(at_ms).into()
}

fn head(at_ms: u64) -> Vec<u8> {
    let mut bytes = vec![ROWS];
    bytes.extend(at_ms.to_le_bytes());
    bytes
}

/// The same, as a replica applies it; none: it is no write of rows.
pub fn decode(payload: &[u8]) -> Option<Write> {
    let mut rest = Rest(payload);
    let [form]: [u8; 1] = rest.take()?;
    if form != ROWS {
        return None;
    }
    let at_ms = rest.number()?;
    if rest.0.is_empty() {
        return Some(Write { at_ms, request: None, operations: Vec::new() });
    }
    let op = rest.number()?;
    let [tag]: [u8; 1] = rest.take()?;
    let version = LogPosition { epoch: Epoch(rest.number()?), index: rest.number()? };
    let condition = match tag {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        _ => Condition::Version(version),
    };
    let end_ms = rest.number()?;
    let [length]: [u8; 1] = rest.take()?;
    let (key, value) = rest.0.split_at_checked(length.into())?;
    let expiry = if end_ms == u64::MAX { Expiry::Never } else { Expiry::At(end_ms) };
    let action = match value.split_first()? {
        (1, value) => Action::Put(value.into(), expiry),
        _ => Action::Delete,
    };
    let operation = Operation { key: Key::new(key).ok()?, condition, action, wants_former: false };
    let request = Some(Request { id: request_id(op), fingerprint: op });
    Some(Write { at_ms, request, operations: vec![operation] })
}

/// The time that an entry carries; 0 if it carries none.
pub fn time_of(entry: &Entry) -> u64 {
    match &entry.kind {
        EntryKind::Write(payload) => decode(payload).map_or(0, |write| write.at_ms),
        EntryKind::Begin | EntryKind::Close => 0,
    }
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_a_row_is_read_as_it_was_written() {
        let key = Key::new(b"k07").unwrap();
        let version = LogPosition { epoch: Epoch(3), index: 9 };
        let put = RowWrite {
            condition: Condition::Version(version),
            value: Some(b"value".as_slice().into()),
            expiry: Expiry::After(5),
        };
        let read = decode(&encode(1_000, 42, &key, &put)).unwrap();
        assert_eq!((read.at_ms, read.request.map(|request| op_of(request.id))), (1_000, Some(42)));
        let action = Action::Put(b"value".as_slice().into(), Expiry::At(1_005));
        let condition = Condition::Version(version);
        assert_eq!(read.operations, [Operation { key: key.clone(), condition, action, wants_former: false }]);

        let delete = RowWrite { condition: Condition::Absent, value: None, expiry: Expiry::Never };
        let read = decode(&encode(7, 43, &key, &delete)).unwrap();
        assert_eq!(read.operations[0].action, Action::Delete);
        assert_eq!(read.operations[0].condition, Condition::Absent);
        assert_eq!(decode(&encode_clock(8)), Some(Write { at_ms: 8, request: None, operations: vec![] }));
        assert_eq!(decode(&[0, 1, 1]), None, "that is one of a register");
    }
}
