//! A backend that connects at its first use, where its address may be unknown until then: for processes that can work
//! without it for a while.

use std::fmt;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::connect::connect;
use crate::contract::{Coordination, Limits, Listing, Remark};
use crate::error::Result;
use crate::key::{Key, Scope};
use crate::limits::{GOSSIP_MAX_VALUE_BYTES, MAX_KEY_BYTES};
use crate::session::SessionId;
use crate::target::{Backend, Target};
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::Watch;

/// Connects at the first call, and at each further call until that has succeeded once. A call whose connecting fails
/// fails with that error, and changes nothing.
pub struct Late {
    backend: Backend,
    find: Box<Find>,
    there: OnceCell<Arc<dyn Coordination>>,
}

/// Finds the target of a backend.
type Find = dyn Fn() -> Finding + Send + Sync;
type Finding = Pin<Box<dyn Future<Output = Result<Target>> + Send>>;

impl Late {
    /// To `target`. It does not connect yet.
    #[must_use]
    pub fn new(target: Target) -> Late {
        let backend = target.backend;
        Late::found(backend, move || Box::pin(ready(Ok(target.clone()))))
    }

    /// To the target that `find` gives, before each try to connect.
    pub fn found(backend: Backend, find: impl Fn() -> Finding + Send + Sync + 'static) -> Late {
        Late { backend, find: Box::new(find), there: OnceCell::new() }
    }

    async fn there(&self) -> Result<&Arc<dyn Coordination>> {
        self.there.get_or_try_init(|| async { connect(&(self.find)().await?).await }).await
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late")
            .field("backend", &self.backend)
            .field("there", &self.there)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Coordination for Late {
    fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// Until it is connected, those of the smallest backend.
    fn limits(&self) -> Limits {
        let least = Limits {
            max_value_bytes: GOSSIP_MAX_VALUE_BYTES,
            max_transaction_bytes: GOSSIP_MAX_VALUE_BYTES + MAX_KEY_BYTES,
        };
        self.there.get().map_or(least, |there| there.limits())
    }

    fn renews_apart(&self) -> bool {
        self.there.get().is_some_and(|there| there.renews_apart())
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        self.there.get().map_or_else(Vec::new, |there| there.refused())
    }

    async fn open_session(&self, ttl: Duration) -> Result<SessionId> {
        self.there().await?.open_session(ttl).await
    }

    async fn renew_session(&self, session: SessionId) -> Result<()> {
        self.there().await?.renew_session(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.there().await?.end_session(session).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Entry>> {
        self.there().await?.read(key).await
    }

    async fn list(&self, scope: &Scope, after: Option<&Key>, limit: usize) -> Result<Listing> {
        self.there().await?.list(scope, after, limit).await
    }

    async fn has_room(&self, bytes: u64) -> Result<bool> {
        self.there().await?.has_room(bytes).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        self.there().await?.commit(transaction).await
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        self.there().await?.watch(scope, from).await
    }

    /// Does nothing before it is connected.
    async fn add_peers(&self, peers: &[SocketAddr]) -> Result<()> {
        match self.there.get() {
            Some(there) => there.add_peers(peers).await,
            None => Ok(()),
        }
    }

    async fn remarks(&self) -> Result<Vec<Remark>> {
        self.there().await?.remarks().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[tokio::test]
    async fn what_is_asked_before_it_is_there_fails_as_connecting_does() {
        // Nobody listens there, or the backend is not built in.
        let late = Late::new(Target::parse("etcd://127.0.0.1:1/root").unwrap());
        assert_eq!(late.limits().max_value_bytes, GOSSIP_MAX_VALUE_BYTES);
        for _ in 0..2 {
            let failed = late.read(&Key::new("a").unwrap()).await.unwrap_err();
            assert!(failed.is_definite(), "{failed}");
            assert!(!matches!(failed, Error::Refused { .. }), "{failed}");
        }
    }
}
