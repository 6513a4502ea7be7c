//! A backend that need not be there yet: for processes that can do their work without it for a while.

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
use crate::target::Target;
use crate::transaction::{Entry, Transaction, Version};
use crate::watch::Watch;

/// Connects when something is first asked of it, and with each further question until that has succeeded once; the
/// question fails as connecting did, and nothing has happened.
#[derive(Debug)]
pub struct Late {
    target: Target,
    there: OnceCell<Arc<dyn Coordination>>,
}

impl Late {
    /// To what is behind `target`. Nobody is asked yet.
    #[must_use]
    pub fn new(target: Target) -> Late {
        Late { target, there: OnceCell::new() }
    }

    async fn there(&self) -> Result<&Arc<dyn Coordination>> {
        self.there.get_or_try_init(|| connect(&self.target)).await
    }
}

#[async_trait]
impl Coordination for Late {
    fn backend(&self) -> &'static str {
        self.target.backend.name()
    }

    /// Until it is there, those of the backend that takes the least.
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

    async fn commit(&self, transaction: Transaction) -> Result<Version> {
        self.there().await?.commit(transaction).await
    }

    async fn watch(&self, scope: Scope, from: Option<Version>) -> Result<Watch> {
        self.there().await?.watch(scope, from).await
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
