//! Decides a transaction on the rows that were read: pure, so the rest only reads and writes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::key::Key;
use crate::session::SessionId;
use crate::transaction::{Expected, Operation, Transaction, Version};

/// What to read before a transaction can be decided.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needed {
    /// The keys whose versions and sessions are read.
    pub keys: BTreeSet<Key>,
    /// The sessions that keys are put for; all must be open.
    pub sessions: BTreeSet<SessionId>,
    /// The keys that may have none below them, but such as the transaction deletes.
    pub leaves: BTreeSet<Key>,
}

/// What the rows of the server say about [`Needed`].
#[derive(Debug, Default)]
pub(super) struct Found {
    pub keys: BTreeMap<Key, (Version, Option<SessionId>)>,
    pub sessions: BTreeSet<SessionId>,
    /// Some keys below those leaves: one more than the transaction deletes, if there are so many.
    pub below: BTreeSet<Key>,
}

/// A key to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Put {
    pub key: Key,
    pub value: Bytes,
    pub session: Option<SessionId>,
}

/// What the transaction writes and deletes, once all conditions hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    pub puts: Vec<Put>,
    pub deletes: Vec<Key>,
}

fn ancestors(key: &Key) -> impl Iterator<Item = Key> {
    std::iter::successors(key.parent(), Key::parent)
}

/// What `transaction` depends on.
pub(super) fn needed(transaction: &Transaction) -> Needed {
    let mut needed = Needed::default();
    needed.keys.extend(transaction.conditions.iter().map(|condition| condition.key.clone()));
    for operation in &transaction.operations {
        needed.keys.insert(operation.key().clone());
        if let Operation::Put { key, session, .. } = operation {
            needed.keys.extend(ancestors(key));
            needed.sessions.extend(*session);
            needed.leaves.extend(session.map(|_| key.clone()));
        }
    }
    needed
}

/// Whether it may happen, and what is written then.
pub(super) fn decide(transaction: Transaction, found: &Found) -> Result<Decided> {
    for condition in transaction.conditions {
        let version = found.keys.get(&condition.key).map(|(version, _)| *version);
        if !Expected::holds(condition.expected, version) {
            let (key, expected) = (condition.key, condition.expected);
            return Err(Error::Refused { key, expected, found: version });
        }
    }
    let mut decided = Decided::default();
    for operation in transaction.operations {
        match operation {
            Operation::Delete { key } => decided.deletes.push(key),
            Operation::Put { session: Some(session), .. } if !found.sessions.contains(&session) => {
                return Err(Error::SessionEnded { session });
            }
            Operation::Put { key, value, session } => decided.puts.push(Put { key, value, session }),
        }
    }
    decided.puts.sort_by(|one, other| one.key.cmp(&other.key));
    check_shape(&decided, found)?;
    // Deleting what is not there changes nothing.
    decided.deletes.retain(|key| found.keys.contains_key(key));
    Ok(decided)
}

/// Nothing lies below an ephemeral key afterwards.
fn check_shape(decided: &Decided, found: &Found) -> Result<()> {
    let put: BTreeMap<&Key, bool> =
        decided.puts.iter().map(|put| (&put.key, put.session.is_some())).collect();
    let deleted: BTreeSet<&Key> = decided.deletes.iter().collect();
    let is_ephemeral = |key: &Key| match put.get(key) {
        Some(ephemeral) => *ephemeral,
        None => !deleted.contains(key) && found.keys.get(key).is_some_and(|(_, session)| session.is_some()),
    };
    for Put { key, session, .. } in &decided.puts {
        if let Some(above) = ancestors(key).find(is_ephemeral) {
            return Err(Error::below_ephemeral(key, &above));
        }
        if session.is_some()
            && let Some(below) =
                found.below.iter().find(|below| below.is_below(key) && !deleted.contains(below))
        {
            return Err(Error::below_ephemeral(below, key));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId::new(7);

    fn key(path: &str) -> Key {
        Key::new(path).unwrap()
    }

    fn found(keys: &[(&str, u64, Option<SessionId>)], below: &[&str]) -> Found {
        let keys =
            keys.iter().map(|(path, version, session)| (key(path), (Version::new(*version), *session)));
        let below = below.iter().map(|path| key(path)).collect();
        Found { keys: keys.collect(), sessions: [SESSION].into(), below }
    }

    #[test]
    fn it_is_told_what_to_ask() {
        let put =
            Transaction::new().when(&key("c"), Expected::Present).put(&key("a/b/c"), "").delete(&key("x/y"));
        let asked = needed(&put.put_ephemeral(&key("e/f"), "", SESSION));
        let keys = ["a", "a/b", "a/b/c", "c", "e", "e/f", "x/y"].map(key).into();
        assert_eq!(asked, Needed { keys, sessions: [SESSION].into(), leaves: [key("e/f")].into() });
    }

    #[test]
    fn the_first_condition_that_fails_is_named() {
        let both = || Transaction::new().when(&key("a"), Expected::Present).when(&key("b"), Expected::Absent);
        let refused = |key, expected, found| Error::Refused { key, expected, found };
        let at = Some(Version::new(4));
        assert_eq!(decide(both(), &found(&[], &[])), Err(refused(key("a"), Expected::Present, None)));
        let there = found(&[("a", 3, None), ("b", 4, None)], &[]);
        assert_eq!(decide(both(), &there), Err(refused(key("b"), Expected::Absent, at)));
    }

    #[test]
    fn ephemeral_keys_are_leaves_after_the_transaction() {
        let leaf = || Transaction::new().put_ephemeral(&key("p"), "", SESSION);
        assert_eq!(
            decide(leaf(), &found(&[], &["p/q"])),
            Err(Error::below_ephemeral(&key("p/q"), &key("p")))
        );
        let gone = decide(leaf().delete(&key("p/q")), &found(&[("p/q", 1, None)], &["p/q"])).unwrap();
        assert_eq!((gone.puts.len(), gone.deletes), (1, vec![key("p/q")]));
        let below = || Transaction::new().put(&key("p/q/r"), "");
        let ephemeral = found(&[("p", 1, Some(SESSION))], &[]);
        assert_eq!(decide(below(), &ephemeral), Err(Error::below_ephemeral(&key("p/q/r"), &key("p"))));
        assert!(decide(below().delete(&key("p")), &ephemeral).is_ok());
        assert!(
            decide(below().put(&key("p"), ""), &ephemeral).is_ok(),
            "made lasting by the same transaction"
        );
        assert!(
            decide(leaf().put(&key("p/q"), ""), &found(&[], &[])).is_err(),
            "both by the same transaction"
        );
    }

    #[test]
    fn an_ended_session_puts_nothing_and_deleting_nothing_writes_nothing() {
        let session = SessionId::new(8);
        let late = Transaction::new().put_ephemeral(&key("p"), "", session);
        assert_eq!(decide(late, &found(&[], &[])), Err(Error::SessionEnded { session }));
        let nothing = decide(Transaction::new().delete(&key("p")), &found(&[], &[]));
        assert_eq!(nothing, Ok(Decided::default()));
    }
}
