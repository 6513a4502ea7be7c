//! Watches: what changed, in order, once, whole, resumable, with every gap marked (W1 to W6).
//!
//! An update is what one transaction, or several in a row, did to the watched keys; or it is a resync:
//! the complete content at one version, because what led there is not known any more (the first update
//! of a new watch, a cursor that is too old, a subscriber that was too slow). Either way, folding it
//! gives the true content at [`Update::at`], so a subscriber never sees half a transaction.
//!
//! No backend keeps a queue for a subscriber, which asks for what comes after its cursor. One that is far
//! behind gets the latest content and delays no other.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::error::Result;
use crate::key::Key;
use crate::transaction::{Entry, Version};

/// One key that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key that was created, replaced or deleted.
    pub key: Key,
    /// What it is now; `None` if it was deleted.
    pub entry: Option<Entry>,
}

/// One step of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// What happened since the previous update, with nothing left out.
    Changes {
        /// The version that the content has after folding.
        at: Version,
        /// The changed keys, each once, in key order.
        changes: Vec<Change>,
    },
    /// Everything there is; what is not named here does not exist.
    Resync {
        /// The version of the content.
        at: Version,
        /// The whole content, in key order.
        entries: Vec<(Key, Entry)>,
    },
}

impl Update {
    /// The cursor to resume from.
    #[must_use]
    pub fn at(&self) -> Version {
        match self {
            Self::Changes { at, .. } | Self::Resync { at, .. } => *at,
        }
    }
}

/// The receiving end of a watch.
#[async_trait]
pub trait Subscription: Send {
    /// Waits for the next update. Dropping the future loses nothing. After an error, watch again from
    /// the last [`Update::at`].
    async fn next(&mut self) -> Result<Update>;
}

/// A [`Subscription`] of any backend, as [`watch`](crate::Coordination::watch) gives it.
pub type Watch = Box<dyn Subscription>;

/// The watched content, folded from updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    at: Version,
    entries: BTreeMap<Key, Entry>,
}

impl View {
    /// An empty view at version zero, for the first update to fill.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Folds one update in.
    pub fn fold(&mut self, update: Update) {
        self.at = update.at();
        match update {
            Update::Changes { changes, .. } => {
                for Change { key, entry } in changes {
                    match entry {
                        Some(entry) => self.entries.insert(key, entry),
                        None => self.entries.remove(&key),
                    };
                }
            }
            Update::Resync { entries, .. } => self.entries = entries.into_iter().collect(),
        }
    }

    /// The version of the content: the cursor to resume from.
    #[must_use]
    pub fn at(&self) -> Version {
        self.at
    }

    /// Every watched key that exists, with its entry at [`View::at`].
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<Key, Entry> {
        &self.entries
    }
}
