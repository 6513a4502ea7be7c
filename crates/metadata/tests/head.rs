//! Heads of maps, read while others write them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it saw")]

use async_trait::async_trait;
use partage_coordination::embedded::Embedded;
use partage_coordination::{
    Coordination, Entry, Key, Limits, Listing, Result, Scope, SessionId, Transaction, Version, Watch,
};
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_metadata::{HeadError, Heads, LocalServer, Peers};
use partage_service::metadata::Head;
use partage_service::metadata::server::Refused;
use partage_wire::map::metadata::MapQuestion;
use partage_wire::stored::map_file;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A store in which somebody commits just before a key is read, and that panics as often as it is told to.
#[derive(Debug)]
struct Busy {
    store: Arc<Embedded>,
    before: Mutex<Option<(Key, Transaction)>>,
    panics: AtomicUsize,
}

#[async_trait]
impl Coordination for Busy {
    fn backend(&self) -> &'static str {
        "busy"
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
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "a bug in a backend");
        let due = self.before.lock().unwrap().take_if(|(of, _)| of == key);
        if let Some((_, transaction)) = due {
            self.store.commit(transaction).await?;
        }
        self.store.read(key).await
    }
    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.store.list(scope, after, limit).await
    }
    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        self.store.commit(transaction).await
    }
    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        self.store.watch(scope, from).await
    }
}

fn keyspace() -> KeyspaceName {
    KeyspaceName::new("users").unwrap()
}

fn record() -> Key {
    Key::new(map_file::record_key(&keyspace())).unwrap()
}

/// The head, and the record.
fn creation() -> Transaction {
    let head = Head { at: Generation::default(), servers: vec![NodeId::new("m1").unwrap()] };
    let with_head = Heads::swap_in(&keyspace(), None, &head, Transaction::new()).unwrap();
    with_head.put(&record(), "a record")
}

async fn heads(first: Option<Transaction>, before_record: Option<Transaction>) -> Heads {
    let store = Embedded::in_memory();
    if let Some(first) = first {
        store.commit(first).await.unwrap();
    }
    let before = Mutex::new(before_record.map(|then| (record(), then)));
    Heads::new(Arc::new(Busy { store, before, panics: AtomicUsize::new(0) }))
}

/// Seen before: a warning at each creation of a keyspace on ZooKeeper, that its head was deleted.
#[tokio::test]
async fn a_keyspace_that_is_created_while_its_head_is_read_is_not_taken_for_damaged() {
    let head = heads(None, Some(creation())).await.read(&keyspace()).await.unwrap();
    assert!(head.is_some());
}

#[tokio::test]
async fn a_record_without_a_head_says_that_somebody_deleted_it() {
    let only_record = || Transaction::new().put(&record(), "a record");
    let missing = heads(Some(only_record()), None).await.read(&keyspace()).await;
    assert!(matches!(missing, Err(HeadError::Missing { .. })), "{missing:?}");
    assert!(heads(None, None).await.read(&keyspace()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_server_whose_read_of_the_head_panicked_reads_it_again() {
    let busy = Busy { store: Embedded::in_memory(), before: Mutex::default(), panics: AtomicUsize::new(1) };
    let data = tempfile::tempdir().unwrap();
    let peers = Peers::new(Arc::new(BTreeMap::new()));
    let me = NodeId::new("m1").unwrap();
    let server = LocalServer::start(me, data.path(), Heads::new(Arc::new(busy)), peers).unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(server.map(MapQuestion { keyspace: keyspace(), sequence: 0 }).await.unwrap_err());
    }
    assert_eq!(told.last(), Some(&Refused::NoMap), "{told:?}");
}
