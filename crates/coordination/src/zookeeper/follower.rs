//! A watch: what the subscriber knows already, by key and version, and what it has to read.
//!
//! It keeps no values and no queue. When keys were touched it reads them, all at one moment, and reports what
//! differs from its last report. It reports a key that came and went in between as deleted, although it was not there
//! before either: a subscriber may wait for just that, an election for one. When the connection broke, or too much
//! was touched, the changes are not known any more: then it reads all, and reports a resync.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use super::feed::{Dirty, FeedSubscription, Source};
use super::node::{Node, ancestors};
use super::snapshot::{Snapshot, read_nodes, read_scope};
use crate::error::{Error, Result};
use crate::key::{Key, Scope};
use crate::limits::{ZOOKEEPER_ANSWER, ZOOKEEPER_NARROW_READINGS, ZOOKEEPER_RETRY_PAUSE};
use crate::transaction::Version;
use crate::watch::{Change, Subscription, Update};

#[derive(Debug)]
pub(super) struct Follower {
    subscription: FeedSubscription,
    scope: Scope,
    /// Where the subscriber left off, before the first report.
    from: Option<Version>,
    /// What was reported; `None` before that.
    told: Option<BTreeMap<Key, Version>>,
    /// Up to this version the subscriber has every change.
    at: Version,
    /// What was not reported yet. Also kept when the future of `next` is dropped.
    dirty: Dirty,
}

/// What one read found, and which keys made it necessary.
struct Seen {
    snapshot: Snapshot,
    /// Which keys were looked at, if it was not the whole scope.
    read: Option<BTreeSet<Key>>,
    /// Which of them had events.
    touched: BTreeSet<Key>,
}

impl Follower {
    pub fn new(subscription: FeedSubscription, scope: Scope, from: Option<Version>) -> Self {
        Self { subscription, scope, from, told: None, at: Version::ZERO, dirty: Dirty::ALL }
    }

    /// What comes of requests to the source. One that does not answer is replaced.
    async fn answered<T>(&self, source: &Source, requests: impl Future<Output = Result<T>>) -> Result<T> {
        let feed = &self.subscription.feed;
        match timeout(ZOOKEEPER_ANSWER, requests).await {
            Ok(outcome) => outcome,
            Err(_) => {
                feed.begin_anew(source).await;
                Err(feed.connection().no_answer())
            }
        }
    }

    /// Reads what is dirty. `None` if events came in between, and it must read again.
    async fn look(&mut self, source: &Source) -> Result<Option<Seen>> {
        let connection = self.subscription.feed.connection();
        let (snapshot, read) = if self.dirty.all {
            let known = self.told.iter().flat_map(BTreeMap::keys).cloned();
            let first = self.told.is_none();
            let reading = read_scope(connection, &source.client, &self.scope, known, first);
            (self.answered(source, reading).await?, None)
        } else {
            let keys = self.dirty.keys.iter().flat_map(|key| ancestors(key).chain([key.clone()]));
            let keys: BTreeSet<Key> = keys.collect();
            let reading = read_nodes(connection, &source.client, &keys, false);
            (self.answered(source, reading).await?, Some(keys))
        };
        if !self.subscription.feed.settled(source).await {
            self.dirty = Dirty::ALL;
            return Ok(None);
        }
        // No await from here on: what is taken is reported, or put back.
        let late = self.subscription.take();
        // A whole scope shows its own changes; for single keys, only the events do.
        if read.as_ref().is_none_or(|keys| !late.all && late.keys.is_subset(keys)) {
            let touched = std::mem::replace(&mut self.dirty, late).keys;
            return Ok(Some(Seen { snapshot, read, touched }));
        }
        self.dirty.add(late);
        Ok(None)
    }

    /// The unreported part; none, if all was reported.
    fn news(&mut self, Seen { snapshot, read, touched }: &Seen) -> Result<Option<Update>> {
        let at = snapshot.at();
        let entries = snapshot.entries(&self.scope)?;
        let now: BTreeMap<Key, Version> =
            entries.iter().map(|(key, entry)| (key.clone(), entry.version)).collect();
        let (Some(told), Some(read)) = (&mut self.told, read) else {
            let until = if self.told.is_some() { Some(self.at) } else { self.from };
            self.told = Some(now);
            if let Some(until) = until.filter(|until| snapshot.newest() <= *until && *until <= at) {
                self.at = until;
                return Ok(None);
            }
            self.at = at;
            return Ok(Some(Update::Resync { at, entries }));
        };
        if at <= self.at {
            return Ok(None);
        }
        let new = entries.into_iter().filter(|(key, entry)| told.get(key) != Some(&entry.version));
        let mut changes: Vec<Change> = new.map(|(key, entry)| Change { key, entry: Some(entry) }).collect();
        for key in read.iter().filter(|key| self.scope.contains(key) && !now.contains_key(*key)) {
            // A znode that was made as an intermediate one, and is one, was no key at any time.
            let never_a_key = |node: &Node| node.data_version == 0 || node.changed <= self.at;
            let came_and_went = touched.contains(key) && !snapshot.nodes.get(key).is_some_and(never_a_key);
            if told.remove(key).is_some() || came_and_went {
                changes.push(Change { key: key.clone(), entry: None });
            }
        }
        told.extend(now);
        changes.sort_by(|one, other| one.key.cmp(&other.key));
        if changes.is_empty() {
            return Ok(None);
        }
        self.at = at;
        Ok(Some(Update::Changes { at, changes }))
    }
}

#[async_trait]
impl Subscription for Follower {
    async fn next(&mut self) -> Result<Update> {
        let mut again = 0;
        loop {
            if self.dirty.is_empty() {
                self.subscription.changed().await;
                again = 0;
            }
            let taken = self.subscription.take();
            self.dirty.add(taken);
            let source = self.subscription.feed.source().await;
            let outcome = match self.look(&source).await {
                Ok(Some(seen)) => self.news(&seen),
                Ok(None) => {
                    again += 1;
                    if again >= ZOOKEEPER_NARROW_READINGS {
                        self.dirty = Dirty::ALL;
                    }
                    continue;
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(Some(update)) => return Ok(update),
                Ok(None) => {}
                Err(Error::Unavailable { what }) => {
                    tracing::debug!(scope = %self.scope, what, "watch: reading again");
                    self.dirty = Dirty::ALL;
                    sleep(ZOOKEEPER_RETRY_PAUSE).await;
                }
                Err(error) => {
                    self.dirty = Dirty::ALL;
                    return Err(error);
                }
            }
        }
    }
}
