//! From a transaction to the steps of one ZooKeeper `multi`. Pure: what was read goes in, steps come out.
//!
//! ZooKeeper has no keys below nothing, no key that is deleted while others lie below it, and no children of
//! ephemeral znodes. So a put makes the intermediate znodes above it, a delete leaves an intermediate znode if something
//! lies below, and removes those above that have no children now. Deletes come first, the deepest before all; then the
//! rest from the top.
//!
//! The sender makes sure that what was read still holds: every `multi` is conditioned on the clock, which each of
//! our transactions advances. Only keys that ended with their session do not advance it; therefore a
//! condition on an ephemeral key is also a step.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::node::{Kind, Node, ancestors, foreign};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::session::SessionId;
use crate::transaction::{Operation, Transaction, Version};

/// Znodes as they were read, with those that are not there.
pub(super) type Known = BTreeMap<Key, Option<Node>>;

/// One step of a `multi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is there and was set that often.
    Check { key: Key, data_version: i32 },
    /// Made anew; intermediate if there is no value.
    Create { key: Key, value: Option<Bytes>, ephemeral: bool },
    /// Set; intermediate from now on if there is no value.
    Set { key: Key, value: Option<Bytes>, data_version: i32 },
    /// Removed, if it was set that often.
    Delete { key: Key, data_version: i32 },
}

impl Step {
    pub fn key(&self) -> &Key {
        match self {
            Self::Check { key, .. }
            | Self::Create { key, .. }
            | Self::Set { key, .. }
            | Self::Delete { key, .. } => key,
        }
    }

    /// The key that it makes for a session.
    pub fn ephemeral(&self) -> Option<&Key> {
        if let Self::Create { key, ephemeral: true, .. } = self { Some(key) } else { None }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlanError {
    /// What was read rules it out.
    Refused(Error),
    /// An ephemeral key would have znodes below. They may all be intermediate: read them, and
    /// plan again.
    Below(Key),
}

/// Steps, and the znodes after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// Without versions that only the commit gives.
    after: BTreeMap<Key, After>,
}

impl Plan {
    /// Brings `known` to what is there after the commit at `at`.
    pub fn apply(self, known: &mut Known, at: Version) {
        for (key, after) in self.after {
            let before = known.get(&key).cloned().flatten();
            known.insert(key, after.node(before, at));
        }
    }
}

/// A znode after the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct After {
    what: NodeChange,
    children: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeChange {
    /// Its data is left alone; it may be absent.
    Same,
    Absent,
    /// Set where it is.
    Set(Kind),
    /// Made where there was none, or deleted first and then made.
    New(Kind),
}

impl After {
    fn node(&self, before: Option<Node>, at: Version) -> Option<Node> {
        let children = self.children;
        let new = |kind, data_version| Node {
            kind,
            value: Bytes::new(),
            data_version,
            changed: at,
            children_changed: at,
            children,
        };
        match (&self.what, before) {
            (NodeChange::Same, before) => before.map(|node| Node { children, ..node }),
            (NodeChange::Absent, _) => None,
            (NodeChange::Set(kind), Some(node)) => Some(new(*kind, node.data_version.wrapping_add(1))),
            (NodeChange::Set(kind) | NodeChange::New(kind), _) => Some(new(*kind, 0)),
        }
    }
}

/// The znodes that a plan for `transaction` looks at.
pub(super) fn looked_at(transaction: &Transaction) -> BTreeSet<Key> {
    let mut keys: BTreeSet<Key> =
        transaction.conditions.iter().map(|condition| condition.key.clone()).collect();
    for operation in &transaction.operations {
        keys.insert(operation.key().clone());
        keys.extend(ancestors(operation.key()));
    }
    keys
}

/// The session whose ephemeral keys are put. ZooKeeper makes them for the session that sends, so there is one at most.
pub(super) fn session_of(transaction: &Transaction) -> Result<Option<SessionId>> {
    let sessions: BTreeSet<SessionId> = transaction
        .operations
        .iter()
        .filter_map(|operation| if let Operation::Put { session, .. } = operation { *session } else { None })
        .collect();
    if sessions.len() > 1 {
        let what = "ephemeral keys of two sessions in one transaction";
        return Err(Error::Unsupported { backend: "zookeeper", what });
    }
    Ok(sessions.first().copied())
}

/// The steps for `transaction`. `swept` are znodes below its keys that are no keys: they go when nothing lies below.
pub(super) fn plan(
    transaction: &Transaction,
    known: &Known,
    swept: &BTreeSet<Key>,
) -> Result<Plan, PlanError> {
    let mut steps = conditions(transaction, known).map_err(PlanError::Refused)?;
    let mut drafts = Drafts::new(transaction, known, swept).map_err(PlanError::Refused)?;
    drafts.settle()?;
    drafts.write(&mut steps);
    let after = drafts.drafts.into_iter().map(|(key, draft)| {
        let after = After { what: draft.what(), children: draft.children };
        (key, after)
    });
    Ok(Plan { steps, after: after.collect() })
}

fn node<'a>(known: &'a Known, key: &Key) -> Option<&'a Node> {
    known.get(key).and_then(Option::as_ref)
}

fn conditions(transaction: &Transaction, known: &Known) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for condition in &transaction.conditions {
        let (key, expected) = (&condition.key, condition.expected);
        let node = node(known, key);
        let found = node.map_or(Ok(None), |node| node.found(key))?;
        if !expected.holds(found) {
            return Err(Error::Refused { key: key.clone(), expected, found });
        }
        if let Some(Node { kind: Kind::Ephemeral(_), data_version, .. }) = node {
            steps.push(Step::Check { key: key.clone(), data_version: *data_version });
        }
    }
    Ok(steps)
}

/// What is wanted of one znode.
#[derive(Clone, Debug)]
enum Wanted {
    /// Whatever the others make necessary.
    AsNeeded,
    /// No key any more: absent, or intermediate if something lies below.
    NoKey,
    Value(Bytes, Option<SessionId>),
    /// Settled: absent, intermediate, or unchanged.
    Absent,
    Intermediate,
    Same,
}

#[derive(Clone, Debug)]
struct Draft<'a> {
    before: Option<&'a Node>,
    wanted: Wanted,
    /// How many children it has in the end.
    children: usize,
}

impl Draft<'_> {
    fn what(&self) -> NodeChange {
        let kind = match &self.wanted {
            Wanted::Value(_, session) => session.map_or(Kind::Lasting, Kind::Ephemeral),
            Wanted::Intermediate => Kind::Intermediate,
            Wanted::Absent if self.before.is_some() => return NodeChange::Absent,
            _ => return NodeChange::Same,
        };
        match self.before.map(|node| node.kind) {
            None => NodeChange::New(kind),
            Some(before) if is_ephemeral(before) || is_ephemeral(kind) => {
                if before == kind {
                    NodeChange::Set(kind)
                } else {
                    NodeChange::New(kind)
                }
            }
            Some(_) => NodeChange::Set(kind),
        }
    }

    fn value(&self) -> Option<Bytes> {
        if let Wanted::Value(value, _) = &self.wanted { Some(value.clone()) } else { None }
    }
}

fn is_ephemeral(kind: Kind) -> bool {
    matches!(kind, Kind::Ephemeral(_))
}

struct Drafts<'a> {
    drafts: BTreeMap<Key, Draft<'a>>,
}

impl<'a> Drafts<'a> {
    fn new(transaction: &Transaction, known: &'a Known, swept: &BTreeSet<Key>) -> Result<Self> {
        let mut drafts = BTreeMap::new();
        let blank = |key: &Key| {
            let before = node(known, key);
            Draft { before, wanted: Wanted::AsNeeded, children: before.map_or(0, |node| node.children) }
        };
        for key in swept {
            drafts.insert(key.clone(), blank(key));
        }
        for operation in &transaction.operations {
            let key = operation.key();
            for key in ancestors(key).chain([key.clone()]) {
                drafts.entry(key).or_insert_with_key(blank);
            }
        }
        for operation in &transaction.operations {
            let key = operation.key();
            let Some(draft) = drafts.get_mut(key) else { continue };
            if draft.before.is_some_and(|node| node.kind == Kind::Foreign) {
                return Err(foreign(key));
            }
            draft.wanted = match operation {
                Operation::Put { value, session, .. } => Wanted::Value(value.clone(), *session),
                Operation::Delete { .. } => Wanted::NoKey,
            };
        }
        Ok(Self { drafts })
    }

    /// Decides for each znode, from the deepest, what it becomes.
    fn settle(&mut self) -> Result<(), PlanError> {
        let mut keys: Vec<Key> = self.drafts.keys().cloned().collect();
        keys.sort_by_key(|key| std::cmp::Reverse(key.as_str().matches('/').count()));
        for key in keys {
            let Some(draft) = self.drafts.get_mut(&key) else { continue };
            let settled = settled(&key, draft);
            let Some(wanted) = settled? else { return Err(PlanError::Refused(self.below_ephemeral(&key))) };
            let Some(draft) = self.drafts.get_mut(&key) else { continue };
            draft.wanted = wanted;
            let was = usize::from(draft.before.is_some());
            let is = match draft.wanted {
                Wanted::Value(..) | Wanted::Intermediate => 1,
                Wanted::Absent => 0,
                _ => was,
            };
            if let Some(above) = key.parent().and_then(|parent| self.drafts.get_mut(&parent)) {
                above.children = (above.children + is).saturating_sub(was);
            }
        }
        Ok(())
    }

    /// Something is put below `ephemeral`, which stays.
    fn below_ephemeral(&self, ephemeral: &Key) -> Error {
        let mut put = self.drafts.iter().filter(|(_, draft)| matches!(draft.wanted, Wanted::Value(..)));
        let below = put.find(|(key, _)| key.is_below(ephemeral));
        Error::below_ephemeral(below.map_or(ephemeral, |(key, _)| key), ephemeral)
    }

    fn write(&self, steps: &mut Vec<Step>) {
        // From the end, what is below comes before what it is below.
        for (key, draft) in self.drafts.iter().rev() {
            if let (NodeChange::Absent | NodeChange::New(_), Some(node)) = (draft.what(), draft.before) {
                steps.push(Step::Delete { key: key.clone(), data_version: node.data_version });
            }
        }
        for (key, draft) in &self.drafts {
            let (key, value) = (key.clone(), draft.value());
            match (draft.what(), draft.before) {
                (NodeChange::Set(_), Some(Node { data_version, .. })) => {
                    steps.push(Step::Set { key, value, data_version: *data_version });
                }
                (NodeChange::Set(kind) | NodeChange::New(kind), _) => {
                    steps.push(Step::Create { key, value, ephemeral: is_ephemeral(kind) });
                }
                (NodeChange::Same | NodeChange::Absent, _) => {}
            }
        }
    }
}

/// What a znode becomes, given its children; `None`: it is ephemeral, and would have some.
fn settled(key: &Key, draft: &Draft<'_>) -> Result<Option<Wanted>, PlanError> {
    let before = draft.before.map(|node| node.kind);
    let empty = draft.children == 0;
    Ok(Some(match (&draft.wanted, before) {
        (Wanted::Value(_, Some(_)), _) if !empty => return Err(PlanError::Below(key.clone())),
        (Wanted::Value(..), _) => draft.wanted.clone(),
        (_, None) if empty => Wanted::Absent,
        (_, None) => Wanted::Intermediate,
        (Wanted::NoKey, Some(Kind::Lasting | Kind::Ephemeral(_))) if !empty => Wanted::Intermediate,
        (Wanted::NoKey, Some(_)) | (_, Some(Kind::Intermediate)) if empty => Wanted::Absent,
        (_, Some(Kind::Ephemeral(_))) if !empty => return Ok(None),
        // One of our keys lies or would lie below it.
        (_, Some(Kind::Foreign)) => return Err(PlanError::Refused(foreign(key))),
        _ => Wanted::Same,
    }))
}

#[cfg(test)]
mod tests;
