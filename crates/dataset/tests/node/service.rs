//! A coordination service that goes away when it is told to.

use async_trait::async_trait;
use partage_coordination::embedded::Embedded;
use partage_coordination::{
    Coordination, Entry, Error, Key, Limits, Listing, Result, Scope, SessionId, Subscription, Transaction,
    Update, Version, Watch,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The true one behind a door that may be shut.
#[derive(Debug)]
pub struct Service {
    true_one: Arc<Embedded>,
    is_away: Arc<AtomicBool>,
}

impl Service {
    pub fn new() -> Arc<Service> {
        Arc::new(Service { true_one: Embedded::in_memory(), is_away: Arc::default() })
    }

    pub fn is_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    fn door(&self) -> Result<&Embedded> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Unavailable { what: "it is away".to_owned() }),
            false => Ok(&self.true_one),
        }
    }
}

struct Following {
    watch: Watch,
    is_away: Arc<AtomicBool>,
}

#[async_trait]
impl Subscription for Following {
    async fn next(&mut self) -> Result<Update> {
        let update = self.watch.next().await;
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Unavailable { what: "it is away".to_owned() }),
            false => update,
        }
    }
}

#[async_trait]
impl Coordination for Service {
    fn backend(&self) -> &'static str {
        self.true_one.backend()
    }

    fn limits(&self) -> Limits {
        self.true_one.limits()
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        self.door()?.open_session(ttl).await
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.door()?.renew_session(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.door()?.end_session(session).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        self.door()?.read(key).await
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.door()?.list(scope, after, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        self.door()?.commit(transaction).await
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        let watch = self.door()?.watch(scope, from).await?;
        Ok(Box::new(Following { watch, is_away: self.is_away.clone() }))
    }
}
