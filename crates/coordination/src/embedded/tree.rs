//! The state in memory: an ordered tree of keys, and the last transactions for watches.
//!
//! Two steps, kept apart: [`Pending::decide`] gives a transaction's changes, on top of the tree and of the earlier
//! transactions of the same batch; [`Tree::apply`] makes them, once the batch is on disk. So no reader ever
//! sees a change that a crash could take back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::contract::Listing;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{EMBEDDED_HISTORY_BYTES, EMBEDDED_HISTORY_TRANSACTIONS, EMBEDDED_MAX_LIVE_BYTES};
use crate::session::SessionId;
use crate::transaction::{Entry, Operation, Transaction, Version};
use crate::watch::{Change, Update};

use super::record::Committed;

/// Keys, entries, and recent transactions.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<Key, Entry>,
    by_session: BTreeMap<SessionId, BTreeSet<Key>>,
    version: Version,
    live_bytes: usize,
    history: VecDeque<Arc<Committed>>,
    history_bytes: usize,
    /// Everything after this version is in `history`.
    history_from: Version,
}

fn entry_bytes(key: &Key, entry: &Entry) -> usize {
    key.as_str().len() + entry.value.len()
}

impl Tree {
    /// A tree as a snapshot describes it.
    pub fn from_snapshot(entries: Vec<Change>, version: Version) -> Self {
        let mut tree = Self { version, history_from: version, ..Self::default() };
        entries.into_iter().for_each(|change| tree.change(change));
        tree
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Bytes of all keys and values.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub fn entries(&self) -> &BTreeMap<Key, Entry> {
        &self.entries
    }

    pub fn read(&self, key: &Key) -> Option<Entry> {
        self.entries.get(key).cloned()
    }

    /// The keys of all sessions. An open removes them, as their owners ended with the last process.
    pub fn ephemeral_keys(&self) -> Vec<Key> {
        self.by_session.values().flatten().cloned().collect()
    }

    pub fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Listing {
        let mut entries: Vec<(Key, Entry)> = self
            .scan(scope, after)
            .take(limit + 1)
            .map(|(key, entry)| (key.clone(), entry.clone()))
            .collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = if more { entries.last().map(|(key, _)| key.clone()) } else { None };
        Listing { at: self.version, entries, next }
    }

    fn scan<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Entry)> {
        let prefix = scope.prefix();
        let first = Key::lower_bound(&prefix);
        let from = match after {
            Some(after) if *after >= first => Bound::Excluded(after.clone()),
            _ => Bound::Included(first),
        };
        self.entries
            .range((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.as_str().starts_with(&prefix))
            .filter(|(key, _)| scope.contains(key))
    }

    /// What comes after `cursor` in `scope`; `None` if nothing does yet. Moves the cursor.
    pub fn after(&self, cursor: &mut Option<Version>, scope: &Scope) -> Option<Update> {
        let known = cursor.filter(|cursor| (self.history_from..=self.version).contains(cursor));
        let Some(from) = known else {
            *cursor = Some(self.version);
            let entries = self.scan(scope, None).map(|(key, entry)| (key.clone(), entry.clone())).collect();
            return Some(Update::Resync { at: self.version, entries });
        };
        let first = self.history.partition_point(|committed| committed.at <= from);
        for committed in self.history.range(first..) {
            *cursor = Some(committed.at);
            let changes: Vec<Change> =
                committed.changes.iter().filter(|change| scope.contains(&change.key)).cloned().collect();
            if !changes.is_empty() {
                return Some(Update::Changes { at: committed.at, changes });
            }
        }
        None
    }

    /// Applies a decided transaction, which the caller has made durable.
    pub fn apply(&mut self, committed: Committed) {
        self.version = committed.at;
        committed.changes.iter().cloned().for_each(|change| self.change(change));
        self.history_bytes += committed.size_bytes();
        self.history.push_back(Arc::new(committed));
        while self.history.len() > EMBEDDED_HISTORY_TRANSACTIONS
            || self.history_bytes > EMBEDDED_HISTORY_BYTES
        {
            let Some(oldest) = self.history.pop_front() else { break };
            self.history_bytes -= oldest.size_bytes();
            self.history_from = oldest.at;
        }
    }

    fn change(&mut self, Change { key, entry }: Change) {
        let before = match entry {
            Some(entry) => {
                self.live_bytes += entry_bytes(&key, &entry);
                if let Some(session) = entry.session {
                    self.by_session.entry(session).or_default().insert(key.clone());
                }
                let session = entry.session;
                self.entries.insert(key.clone(), entry).map(|before| (before, session))
            }
            None => self.entries.remove(&key).map(|before| (before, None)),
        };
        let Some((before, session_now)) = before else { return };
        self.live_bytes -= entry_bytes(&key, &before);
        if let Some(session) = before.session
            && before.session != session_now
            && let Some(keys) = self.by_session.get_mut(&session)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }
}

/// A batch that is being decided on top of a tree.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    tree: &'a Tree,
    changed: BTreeMap<Key, Option<Entry>>,
    version: Version,
    live_bytes: usize,
    decided: Vec<Committed>,
}

impl<'a> Pending<'a> {
    pub fn on(tree: &'a Tree) -> Self {
        let (version, live_bytes) = (tree.version, tree.live_bytes);
        Self { tree, changed: BTreeMap::new(), version, live_bytes, decided: Vec::new() }
    }

    /// What was decided, in order.
    pub fn into_decided(self) -> Vec<Committed> {
        self.decided
    }

    /// Decides one transaction; its version, if it may happen.
    pub fn decide(
        &mut self,
        transaction: Transaction,
        is_live: impl Fn(SessionId) -> bool,
    ) -> Result<Version> {
        for condition in transaction.conditions {
            let found = self.get(&condition.key).map(|entry| entry.version);
            if !condition.expected.holds(found) {
                return Err(Error::Refused { key: condition.key, expected: condition.expected, found });
            }
        }
        if transaction.operations.is_empty() {
            return Ok(self.version);
        }
        let at = Version::new(self.version.get() + 1);
        let mut live_bytes = self.live_bytes;
        let mut changes = Vec::with_capacity(transaction.operations.len());
        for operation in transaction.operations {
            live_bytes -= self.get(operation.key()).map_or(0, |before| entry_bytes(operation.key(), before));
            let change = match operation {
                Operation::Delete { key } => Change { key, entry: None },
                Operation::Put { key, value, session } => {
                    if let Some(session) = session.filter(|session| !is_live(*session)) {
                        return Err(Error::SessionEnded { session });
                    }
                    let entry = Entry { value, version: at, session };
                    live_bytes += entry_bytes(&key, &entry);
                    Change { key, entry: Some(entry) }
                }
            };
            changes.push(change);
        }
        if live_bytes > EMBEDDED_MAX_LIVE_BYTES && live_bytes > self.live_bytes {
            let what = "the store with this transaction, in bytes,".to_owned();
            return Err(Error::TooLarge { what, size: live_bytes, limit: EMBEDDED_MAX_LIVE_BYTES });
        }
        changes.sort_by(|one, other| one.key.cmp(&other.key));
        self.check_shape(&changes)?;
        self.accept(at, live_bytes, changes);
        Ok(at)
    }

    /// Decides to remove the keys of a session.
    pub fn end_session(&mut self, session: SessionId) {
        let held = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.session == Some(session));
        let mut keys = self.tree.by_session.get(&session).cloned().unwrap_or_default();
        keys.retain(|key| !self.changed.contains_key(key));
        keys.extend(self.changed.iter().filter(|(_, entry)| held(entry)).map(|(key, _)| key.clone()));
        self.remove(keys);
    }

    /// Decides to remove `keys`, if there are any.
    pub fn remove(&mut self, keys: impl IntoIterator<Item = Key>) {
        let changes: Vec<Change> = keys.into_iter().map(|key| Change { key, entry: None }).collect();
        let gone =
            |change: &Change| self.get(&change.key).map_or(0, |before| entry_bytes(&change.key, before));
        let live_bytes = self.live_bytes - changes.iter().map(gone).sum::<usize>();
        if !changes.is_empty() {
            self.accept(Version::new(self.version.get() + 1), live_bytes, changes);
        }
    }

    /// Takes a version without changing a key: it marks a new start of the store.
    pub fn mark(&mut self) -> Version {
        self.accept(Version::new(self.version.get() + 1), self.live_bytes, Vec::new());
        self.version
    }

    fn accept(&mut self, at: Version, live_bytes: usize, changes: Vec<Change>) {
        self.version = at;
        self.live_bytes = live_bytes;
        self.changed.extend(changes.iter().map(|change| (change.key.clone(), change.entry.clone())));
        self.decided.push(Committed { at, changes });
    }

    fn get(&self, key: &Key) -> Option<&Entry> {
        match self.changed.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.tree.entries.get(key),
        }
    }

    /// Refuses a key below an ephemeral key, which ZooKeeper could not hold. `changes` is in key order.
    fn check_shape(&self, changes: &[Change]) -> Result<()> {
        let after = |key: &Key| match changes.binary_search_by(|change| change.key.cmp(key)) {
            Ok(index) => changes[index].entry.as_ref(),
            Err(_) => self.get(key),
        };
        for Change { key, entry } in changes {
            let Some(entry) = entry else { continue };
            let mut ancestor = key.parent();
            while let Some(above) = ancestor {
                if after(&above).is_some_and(|entry| entry.session.is_some()) {
                    return Err(Error::below_ephemeral(key, &above));
                }
                ancestor = above.parent();
            }
            if entry.session.is_some()
                && let Some(below) = self.below(key, |below| after(below).is_some())
            {
                return Err(Error::below_ephemeral(&below, key));
            }
        }
        Ok(())
    }

    /// Some key below `key` that is there after the transaction and was there before it.
    fn below(&self, key: &Key, stays: impl Fn(&Key) -> bool) -> Option<Key> {
        let scope = Scope::Below(key.clone());
        let old = self.tree.scan(&scope, None).map(|(below, _)| below).find(|below| stays(below)).cloned();
        let first = Key::lower_bound(&scope.prefix());
        old.or_else(|| {
            let new = self.changed.range(first..).take_while(|(below, _)| below.is_below(key));
            new.map(|(below, _)| below).find(|below| stays(below)).cloned()
        })
    }
}
