//! A store in memory that misbehaves when a test says so: commits take long, reads of one key never return.

#![allow(dead_code, reason = "each test file uses its part")]

use async_trait::async_trait;
use partage_coordination::embedded::Embedded;
use partage_coordination::{
    Coordination, Entry, Key, Limits, Listing, Result, Scope, SessionId, Transaction, Version, Watch,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

#[derive(Debug)]
pub struct Altered {
    store: Arc<Embedded>,
    commit_takes: Mutex<Duration>,
    delayed_commits: AtomicUsize,
    /// Reads of this key wait until it is another one.
    unreadable: watch::Sender<Option<Key>>,
}

impl Altered {
    /// At first as good as `store` itself.
    pub fn of(store: Arc<Embedded>) -> Arc<Altered> {
        let (commit_takes, delayed_commits) = (Mutex::default(), AtomicUsize::default());
        Arc::new(Altered { store, commit_takes, delayed_commits, unreadable: watch::Sender::new(None) })
    }

    pub fn delay_commits(&self, by: Duration) {
        *self.commit_takes.lock().unwrap() = by;
    }

    pub fn delayed_commits(&self) -> usize {
        self.delayed_commits.load(Ordering::Relaxed)
    }

    /// Reads of the key hang until this is called with another one, or none.
    pub fn hold_reads_of(&self, key: Option<Key>) {
        self.unreadable.send_replace(key);
    }
}

#[async_trait]
impl Coordination for Altered {
    fn backend(&self) -> &'static str {
        "altered"
    }
    fn limits(&self) -> Limits {
        self.store.limits()
    }
    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        self.store.open_session(ttl).await
    }
    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.store.renew_session(session).await
    }
    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.store.end_session(session).await
    }
    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        let readable = |held: &Option<Key>| held.as_ref() != Some(key);
        self.unreadable.subscribe().wait_for(readable).await.unwrap();
        self.store.read(key).await
    }
    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        let readable = |held: &Option<Key>| !held.as_ref().is_some_and(|key| scope.contains(key));
        self.unreadable.subscribe().wait_for(readable).await.unwrap();
        self.store.list(scope, after, limit).await
    }
    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        let takes = *self.commit_takes.lock().unwrap();
        if !takes.is_zero() {
            self.delayed_commits.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(takes).await;
        }
        self.store.commit(transaction).await
    }
    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        self.store.watch(scope, from).await
    }
}
