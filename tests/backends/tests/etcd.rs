//! etcd behind the contract: the conformance suite, and what only this backend can get wrong.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use async_trait::async_trait;
use backends::etcd::Etcd;
use partage_coordination::conformance::{self, Subject};
use partage_coordination::etcd::EXPIRY_BOUND;
use partage_coordination::{Coordination, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;

struct Root {
    server: Arc<Mutex<Etcd>>,
    name: String,
}

#[async_trait]
impl Subject for Root {
    async fn connect(&self) -> Arc<dyn Coordination> {
        let target = self.server.lock().await.target(&self.name);
        connect(&target).await.unwrap()
    }
    async fn restart(&self) -> bool {
        self.server.lock().await.restart().await;
        true
    }
    fn expiry_bound(&self) -> Duration {
        EXPIRY_BOUND
    }
}

async fn conforms(server: Etcd) {
    let server = Arc::new(Mutex::new(server));
    let roots = AtomicUsize::new(0);
    conformance::run(|| {
        let name = format!("check/{}", roots.fetch_add(1, Ordering::Relaxed));
        let server = Arc::clone(&server);
        async move { Root { server, name } }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_clear_conforms() {
    conforms(Etcd::start(&[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_with_a_password_conforms() {
    conforms(Etcd::start_secured(&[]).await).await;
}
