//! What a transaction requires of the state, as etcd comparisons, and as reads that tell which of them failed.
//!
//! etcd answers a transaction with yes or no. So each check has two forms: a comparison, for the decision, and
//! a read in the failure branch, at the same revision, for the reason. Checks come in three kinds, and the
//! error names the first that fails:
//!
//! | check     | compares                                       | because                                    |
//! |-----------|------------------------------------------------|--------------------------------------------|
//! | condition | the modification revision of its key           | the caller set it                          |
//! | session   | that the session's marker exists               | a lease that is not ours is no session     |
//! | shape     | leases of ancestors, emptiness of ranges below | nothing lies below an ephemeral key        |
//!
//! etcd takes 128 comparisons. For a transaction that needs more (many keys in many folders) the client reads
//! sessions and shape beforehand, and one comparison guards what it read: that no key of this
//! cluster was put since. That can fail because of another's write; then the client tries again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::key::Key;
use crate::session::SessionId;
use crate::transaction::{Expected, Operation, Transaction, Version};

use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::request_op::Request;
use super::proto::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp};
use super::space::{Range, Space};

/// One thing that must hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Check {
    Condition {
        key: Key,
        expected: Expected,
    },
    /// The session is one of ours and has not ended.
    Session(SessionId),
    /// `ancestor` is not ephemeral, as `key` is put below it.
    Lasting {
        ancestor: Key,
        key: Key,
    },
    /// Nothing is in `range`, which lies below `ephemeral`.
    Empty {
        range: Range,
        ephemeral: Key,
    },
}

/// The lease of a session.
pub(super) fn lease(session: SessionId) -> Option<i64> {
    i64::try_from(session.get()).ok().filter(|lease| *lease > 0)
}

/// The session of a lease; zero is none.
pub(super) fn session(lease: i64) -> Option<SessionId> {
    u128::try_from(lease).ok().filter(|lease| *lease > 0).map(SessionId::new)
}

/// An etcd revision as a version.
pub(super) fn version(revision: i64) -> Version {
    Version::new(u64::try_from(revision).unwrap_or_default())
}

impl Check {
    /// All checks of a transaction, conditions first. Fails if it contradicts itself.
    pub fn all(transaction: &Transaction, space: &Space) -> Result<Vec<Self>> {
        let conditions = transaction.conditions.iter();
        let mut checks: Vec<Self> = conditions
            .map(|condition| Self::Condition { key: condition.key.clone(), expected: condition.expected })
            .collect();
        let puts = || {
            transaction.operations.iter().filter_map(|operation| match operation {
                Operation::Put { key, session, .. } => Some((key, *session)),
                Operation::Delete { .. } => None,
            })
        };
        let sessions: BTreeSet<SessionId> = puts().filter_map(|(_, session)| session).collect();
        if let Some(session) = sessions.iter().copied().find(|session| lease(*session).is_none()) {
            return Err(Error::SessionEnded { session });
        }
        checks.extend(sessions.into_iter().map(Self::Session));
        let changed: BTreeMap<&Key, &Operation> =
            transaction.operations.iter().map(|operation| (operation.key(), operation)).collect();
        let mut lasting = BTreeMap::new();
        for (key, session) in puts() {
            let mut above = key.parent();
            while let Some(ancestor) = above {
                above = ancestor.parent();
                match changed.get(&ancestor) {
                    Some(Operation::Put { session: Some(_), .. }) => {
                        return Err(Error::below_ephemeral(key, &ancestor));
                    }
                    Some(_) => {}
                    None => {
                        lasting.entry(ancestor).or_insert(key);
                    }
                }
            }
            if session.is_some() {
                checks.extend(empty_below(key, &changed, space));
            }
        }
        checks
            .extend(lasting.into_iter().map(|(ancestor, key)| Self::Lasting { ancestor, key: key.clone() }));
        Ok(checks)
    }

    /// True for the caller's conditions, not for sessions and shape.
    pub fn is_condition(&self) -> bool {
        matches!(self, Self::Condition { .. })
    }

    /// The session that it is about.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Session(session) => Some(*session),
            _ => None,
        }
    }

    /// The comparison that decides.
    pub fn compare(&self, space: &Space) -> Compare {
        use CompareResult::{Equal, Greater};
        let revision = |result, raw, revision| {
            compare(result, CompareTarget::Mod, raw, Bytes::new(), TargetUnion::ModRevision(revision))
        };
        match self {
            Self::Condition { key, expected } => match expected {
                Expected::Absent => revision(Equal, space.raw(key), 0),
                Expected::Present => revision(Greater, space.raw(key), 0),
                Expected::At(version) => match i64::try_from(version.get()) {
                    Ok(number @ 1..) => revision(Equal, space.raw(key), number),
                    // No key ever has such a version: a comparison that fails.
                    _ => revision(Greater, space.raw(key), i64::MAX),
                },
            },
            Self::Session(session) => revision(Greater, space.marker(*session), 0),
            Self::Lasting { ancestor, .. } => {
                compare(Equal, CompareTarget::Lease, space.raw(ancestor), Bytes::new(), TargetUnion::Lease(0))
            }
            Self::Empty { range, .. } => {
                let (start, end) = (range.start.clone(), range.end.clone());
                compare(Equal, CompareTarget::Create, start, end, TargetUnion::CreateRevision(0))
            }
        }
    }

    /// The read that gives the reason.
    pub fn read(&self, space: &Space) -> RangeRequest {
        let (key, range_end) = match self {
            Self::Condition { key, .. } => (space.raw(key), Bytes::new()),
            Self::Session(session) => (space.marker(*session), Bytes::new()),
            Self::Lasting { ancestor, .. } => (space.raw(ancestor), Bytes::new()),
            Self::Empty { range, .. } => (range.start.clone(), range.end.clone()),
        };
        RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() }
    }

    /// Whether it holds by that read.
    pub fn verdict(&self, found: &RangeResponse, space: &Space) -> Result<()> {
        let first = found.kvs.first();
        match self {
            Self::Condition { key, expected } => {
                let found = first.map(|found| version(found.mod_revision));
                if expected.holds(found) {
                    return Ok(());
                }
                Err(Error::Refused { key: key.clone(), expected: *expected, found })
            }
            Self::Session(session) => match first {
                Some(_) => Ok(()),
                None => Err(Error::SessionEnded { session: *session }),
            },
            Self::Lasting { ancestor, key } => match first {
                Some(found) if found.lease != 0 => Err(Error::below_ephemeral(key, ancestor)),
                _ => Ok(()),
            },
            Self::Empty { ephemeral, .. } => match first {
                Some(found) => Err(Error::below_ephemeral(&space.key(&found.key)?, ephemeral)),
                None => Ok(()),
            },
        }
    }
}

/// That nothing is below `ephemeral` but what the transaction deletes: the range, split around those keys.
fn empty_below(ephemeral: &Key, changed: &BTreeMap<&Key, &Operation>, space: &Space) -> Vec<Check> {
    let below = space.below(ephemeral);
    let mut start = below.start;
    let mut checks = Vec::new();
    let mut add = |start: Bytes, end: Bytes| {
        let range = Range { start, end };
        checks.push(Check::Empty { range, ephemeral: ephemeral.clone() });
    };
    // Puts below it have been refused already, or will be: only deletes are left.
    for key in changed.keys().filter(|key| key.is_below(ephemeral)) {
        add(start, space.raw(key));
        start = space.after(key);
    }
    add(start, below.end);
    checks
}

fn compare(
    result: CompareResult,
    target: CompareTarget,
    key: Bytes,
    range_end: Bytes,
    value: TargetUnion,
) -> Compare {
    Compare { result: result.into(), target: target.into(), key, range_end, target_union: Some(value) }
}

/// That nothing in `range` was put after `revision`.
pub(super) fn unchanged_since(revision: i64, range: &Range) -> Compare {
    let (start, end) = (range.start.clone(), range.end.clone());
    let next = TargetUnion::ModRevision(revision.saturating_add(1));
    compare(CompareResult::Less, CompareTarget::Mod, start, end, next)
}

/// One change, as etcd does it.
pub(super) fn operation(operation: &Operation, space: &Space) -> RequestOp {
    let request = match operation {
        Operation::Put { key, value, session } => Request::RequestPut(PutRequest {
            key: space.raw(key),
            value: value.clone(),
            lease: session.and_then(lease).unwrap_or_default(),
        }),
        Operation::Delete { key } => Request::RequestDeleteRange(DeleteRangeRequest { key: space.raw(key) }),
    };
    RequestOp { request: Some(request) }
}

/// A read within a transaction.
pub(super) fn reading(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(range)) }
}

#[cfg(test)]
mod tests {
    use super::super::proto::KeyValue;
    use super::*;

    fn key(path: &str) -> Key {
        Key::new(path).unwrap()
    }

    fn checks(transaction: Transaction) -> Result<Vec<Check>> {
        Check::all(&transaction, &Space::new(&key("r")))
    }

    const SESSION: SessionId = SessionId::new(7);

    #[test]
    fn an_ancestor_is_checked_once_and_not_when_it_changes_too() {
        let put = Transaction::new().put(&key("a/b/c"), "").put(&key("a/b/d"), "").put(&key("a/x"), "");
        let found = checks(put).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(matches!(&found[0], Check::Lasting { ancestor, .. } if *ancestor == key("a")));
        let both = Transaction::new().put(&key("a"), "").put(&key("a/b"), "");
        assert_eq!(checks(both).unwrap(), []);
        let instead = Transaction::new().delete(&key("a")).put(&key("a/b"), "");
        assert_eq!(checks(instead).unwrap(), []);
    }

    #[test]
    fn the_range_below_is_split_around_what_is_deleted() {
        let transaction =
            Transaction::new().delete(&key("a/c")).delete(&key("a/b")).put_ephemeral(&key("a"), "", SESSION);
        let found = checks(transaction).unwrap();
        assert_eq!(found[0], Check::Session(SESSION));
        let ranges: Vec<_> = found[1..]
            .iter()
            .map(|check| match check {
                Check::Empty { range, .. } => (&range.start[..], &range.end[..]),
                other => panic!("{other:?}"),
            })
            .collect();
        let wanted: [(&[u8], &[u8]); 3] =
            [(b"/r/a/", b"/r/a/b"), (b"/r/a/b\0", b"/r/a/c"), (b"/r/a/c\0", b"/r/a0")];
        assert_eq!(ranges, wanted);
    }

    #[test]
    fn a_transaction_that_contradicts_itself_is_refused_before_sending() {
        let both = Transaction::new().put_ephemeral(&key("a"), "", SESSION).put(&key("a/b/c"), "");
        assert!(matches!(checks(both), Err(Error::Invalid { .. })));
        let no_lease = SessionId::new(u128::MAX);
        let put = Transaction::new().put_ephemeral(&key("a"), "", no_lease);
        assert_eq!(checks(put), Err(Error::SessionEnded { session: no_lease }));
    }

    #[test]
    fn verdicts_agree_with_what_is_expected() {
        let space = Space::new(&key("r"));
        let there = KeyValue { key: space.raw(&key("k")), mod_revision: 5, ..KeyValue::default() };
        for (expected, absent, present) in [
            (Expected::Absent, true, false),
            (Expected::Present, false, true),
            (Expected::At(Version::new(5)), false, true),
            (Expected::At(Version::new(4)), false, false),
            (Expected::At(Version::ZERO), false, false),
            (Expected::At(Version::new(u64::MAX)), false, false),
        ] {
            let check = Check::Condition { key: key("k"), expected };
            for (kvs, holds) in [(vec![], absent), (vec![there.clone()], present)] {
                let found = RangeResponse { kvs, ..RangeResponse::default() };
                assert_eq!(check.verdict(&found, &space).is_ok(), holds, "{expected}");
            }
        }
    }
}
