//! A handle's copy of all keys: an ordered map that counts its changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::contract::Listing;
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::session::SessionId;
use crate::transaction::{Entry, Version};
use crate::watch::{Change, Subscription, Update};

/// A published key's text form: the session and the value in hexadecimal, a colon between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Published {
    pub session: SessionId,
    pub value: Bytes,
}

impl Published {
    pub fn to_text(&self) -> String {
        let value: String = self.value.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:{value}", self.session)
    }

    /// `None` for what this program did not write.
    pub fn from_text(text: &str) -> Option<Self> {
        let (session, value) = text.split_once(':')?;
        let session = SessionId::new(u128::from_str_radix(session, 16).ok()?);
        if !value.len().is_multiple_of(2) || !value.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let digits = value.as_bytes().chunks(2).map(|digits| std::str::from_utf8(digits).ok());
        let value = digits.map(|digits| u8::from_str_radix(digits?, 16).ok()).collect::<Option<Vec<u8>>>()?;
        Some(Self { session, value: value.into() })
    }
}

/// Merges the keys of all nodes. The larger session wins, on every node alike; invalid keys are skipped.
pub(super) fn merge<'a>(said: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<Key, Published> {
    let mut merged: BTreeMap<Key, Published> = BTreeMap::new();
    for (key, text) in said {
        let (Ok(key), Some(published)) = (Key::new(key), Published::from_text(text)) else { continue };
        match merged.get(&key) {
            Some(other) if other.session >= published.session => {}
            _ => {
                merged.insert(key, published);
            }
        }
    }
    merged
}

/// The content at one version of this handle.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    version: Version,
    entries: BTreeMap<Key, Entry>,
}

impl Mirror {
    pub fn version(&self) -> Version {
        self.version
    }

    /// The mirror after this one; `None` if nothing has changed.
    pub fn next(&self, found: BTreeMap<Key, Published>) -> Option<Self> {
        let version = Version::new(self.version.get() + 1);
        let entries: BTreeMap<Key, Entry> = found
            .into_iter()
            .map(|(key, Published { session, value })| {
                let old =
                    self.entries.get(&key).filter(|old| old.value == value && old.session == Some(session));
                let entry = old.cloned().unwrap_or(Entry { value, version, session: Some(session) });
                (key, entry)
            })
            .collect();
        (entries != self.entries).then_some(Self { version, entries })
    }

    pub fn read(&self, key: &Key) -> Option<Entry> {
        self.entries.get(key).cloned()
    }

    fn in_scope(&self, scope: &Scope) -> impl Iterator<Item = (&Key, &Entry)> {
        self.entries.iter().filter(|(key, _)| scope.contains(key))
    }

    pub fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Listing {
        let behind = self.in_scope(scope).filter(|(key, _)| after.is_none_or(|after| *key > after));
        let mut entries: Vec<_> =
            behind.take(limit + 1).map(|(key, entry)| (key.clone(), entry.clone())).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = if more { entries.last().map(|(key, _)| key.clone()) } else { None };
        Listing { at: self.version, entries, next }
    }

    /// Refuses a key above or below another, as far as is known here.
    pub fn check_shape(&self, key: &Key) -> Result<()> {
        let above =
            std::iter::successors(key.parent(), Key::parent).find(|above| self.entries.contains_key(above));
        if let Some(above) = above {
            return Err(Error::below_ephemeral(key, &above));
        }
        match self.in_scope(&Scope::Below(key.clone())).next() {
            Some((below, _)) => Err(Error::below_ephemeral(below, key)),
            None => Ok(()),
        }
    }

    /// The changes in `scope` from `old` to this one.
    fn changes_since(&self, old: &Self, scope: &Scope) -> Vec<Change> {
        let mut changes: BTreeMap<&Key, Option<&Entry>> = BTreeMap::new();
        changes.extend(
            old.in_scope(scope)
                .filter(|(key, _)| !self.entries.contains_key(key))
                .map(|(key, _)| (key, None)),
        );
        let new = self.in_scope(scope).filter(|(key, entry)| old.entries.get(key) != Some(entry));
        changes.extend(new.map(|(key, entry)| (key, Some(entry))));
        let owned = |(key, entry): (&Key, Option<&Entry>)| Change { key: key.clone(), entry: entry.cloned() };
        changes.into_iter().map(owned).collect()
    }
}

/// A watch: the mirror that its subscriber saw last.
#[derive(Debug)]
pub(super) struct Follower {
    mirror: watch::Receiver<Arc<Mirror>>,
    scope: Scope,
    seen: Option<Arc<Mirror>>,
}

impl Follower {
    pub fn new(mirror: watch::Receiver<Arc<Mirror>>, scope: Scope) -> Self {
        Self { mirror, scope, seen: None }
    }
}

#[async_trait]
impl Subscription for Follower {
    async fn next(&mut self) -> Result<Update> {
        loop {
            let now = Arc::clone(&self.mirror.borrow_and_update());
            let Some(seen) = self.seen.replace(Arc::clone(&now)) else {
                let entries =
                    now.in_scope(&self.scope).map(|(key, entry)| (key.clone(), entry.clone())).collect();
                return Ok(Update::Resync { at: now.version, entries });
            };
            let changes = now.changes_since(&seen, &self.scope);
            if !changes.is_empty() {
                return Ok(Update::Changes { at: now.version, changes });
            }
            if self.mirror.changed().await.is_err() {
                let what = "the handle of this watch was dropped: join again".to_owned();
                return Err(Error::Unavailable { what });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(session: u128, value: &[u8]) -> Published {
        Published { session: SessionId::new(session), value: Bytes::copy_from_slice(value) }
    }

    fn key(path: &str) -> Key {
        Key::new(path).unwrap()
    }

    #[test]
    fn values_travel_as_text() {
        for value in [&b""[..], b"\x00\xff:7", &[7; 1000]] {
            let sent = published(0x1f, value);
            assert_eq!(Published::from_text(&sent.to_text()), Some(sent));
        }
        for text in ["", "7", "x:00", "7:0", "7:0g", ":00", "7:+1", "7:é"] {
            assert_eq!(Published::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn all_agree_whose_entry_shows_whatever_they_heard_first() {
        let (one, other) = (published(1, b"one").to_text(), published(2, b"other").to_text());
        for said in [[("k", &*one), ("k", &*other)], [("k", &*other), ("k", &*one)]] {
            assert_eq!(merge(said.into_iter()), [(key("k"), published(2, b"other"))].into());
        }
        assert_eq!(merge([("a//b", &*one), ("k", "nonsense")].into_iter()), BTreeMap::new());
    }

    #[test]
    fn versions_grow_by_what_changed() {
        let first = Mirror::default()
            .next([(key("a"), published(1, b"")), (key("b"), published(1, b""))].into())
            .unwrap();
        assert!(first.next([(key("a"), published(1, b"")), (key("b"), published(1, b""))].into()).is_none());
        let second =
            first.next([(key("a"), published(1, b"")), (key("c"), published(1, b""))].into()).unwrap();
        let versions: Vec<_> = second.entries.values().map(|entry| entry.version.get()).collect();
        assert_eq!(versions, [1, 2]);
        let changes = second.changes_since(&first, &Scope::All);
        let changed: Vec<_> =
            changes.iter().map(|change| (change.key.as_str(), change.entry.is_some())).collect();
        assert_eq!(changed, [("b", false), ("c", true)]);
    }
}
