//! The poller of a handle: reads the root a few times a second, for all watches of the handle together.
//!
//! It tells watches that there may be something new, and ends sessions that are over. That is a hint only: a
//! watch asks the server itself, from its own cursor, so nothing is kept for it and nothing can be missed.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::key::Scope;
use crate::limits::MYSQL_POLL;
use crate::transaction::Version;
use crate::watch::{Subscription, Update};

use super::Shared;

/// What a handle knows of its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// A version that the root had a moment ago; polls and commits of this handle note it.
    pub version: Version,
    /// Why it cannot be polled, while it cannot.
    pub trouble: Option<Error>,
}

/// The task that polls, until handle and watches are gone.
#[derive(Debug)]
pub(super) struct RootPoller(JoinHandle<()>);

impl RootPoller {
    pub fn start(shared: Arc<Shared>) -> Self {
        Self(tokio::spawn(poll(shared)))
    }
}

impl Drop for RootPoller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn poll(shared: Arc<Shared>) {
    let mut before = i64::MAX;
    loop {
        if let Err(error) = poll_once(&shared, &mut before).await {
            if shared.known.borrow().trouble.is_none() {
                tracing::warn!(%error, "cannot look for changes and ended sessions, trying again");
            }
            shared.known.send_modify(|known| known.trouble = Some(error));
        }
        sleep(MYSQL_POLL).await;
    }
}

async fn poll_once(shared: &Shared, before: &mut i64) -> Result<()> {
    let root = shared.read_root().await?;
    // Also the first time: it may have gone back before.
    if root.now < std::mem::replace(before, root.now) {
        shared.shorten_sessions().await?;
    }
    if root.over {
        shared.sweep().await?;
    }
    let known = Known { version: root.version, trouble: None };
    shared.known.send_if_modified(|old| std::mem::replace(old, known.clone()) != known);
    Ok(())
}

/// A watch: a cursor, and nothing that could grow.
#[derive(Debug)]
pub(super) struct Follower {
    shared: Arc<Shared>,
    _poller: Arc<RootPoller>,
    known: watch::Receiver<Known>,
    scope: Scope,
    cursor: Option<Version>,
    /// Whether the server was asked since the last hint.
    asked: bool,
}

impl Follower {
    pub fn new(shared: Arc<Shared>, poller: Arc<RootPoller>, scope: Scope, cursor: Option<Version>) -> Self {
        let known = shared.known.subscribe();
        Self { shared, _poller: poller, known, scope, cursor, asked: false }
    }
}

#[async_trait]
impl Subscription for Follower {
    async fn next(&mut self) -> Result<Update> {
        loop {
            if self.asked {
                // The sender lives in what is shared.
                let _ = self.known.changed().await;
                self.asked = false;
            }
            let trouble = self.known.borrow_and_update().trouble.clone();
            if let Some(error) = trouble {
                self.asked = true;
                return Err(error);
            }
            let mut cursor = self.cursor;
            let update = self.shared.after(&mut cursor, &self.scope).await?;
            self.cursor = cursor;
            match update {
                Some(update) => return Ok(update),
                None => self.asked = true,
            }
        }
    }
}
