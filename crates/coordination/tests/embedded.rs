//! The embedded backend against the conformance suite, in memory, on disk, and on a journal so small
//! that it is compacted all the time.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use partage_coordination::Coordination;
use partage_coordination::conformance::{self, Subject};
use partage_coordination::embedded::{Embedded, Options};
use tempfile::TempDir;
use tokio::sync::Mutex;

struct InMemory(Arc<Embedded>);

#[async_trait]
impl Subject for InMemory {
    async fn connect(&self) -> Arc<dyn Coordination> {
        self.0.clone()
    }
    async fn restart(&self) -> bool {
        false
    }
    fn expiry_bound(&self) -> Duration {
        Duration::from_secs(2)
    }
}

struct OnDisk {
    dir: TempDir,
    options: Options,
    store: Mutex<Arc<Embedded>>,
}

impl OnDisk {
    async fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Mutex::new(Embedded::open(dir.path(), options.clone()).await.unwrap());
        Self { dir, options, store }
    }
}

#[async_trait]
impl Subject for OnDisk {
    async fn connect(&self) -> Arc<dyn Coordination> {
        self.store.lock().await.clone()
    }
    async fn restart(&self) -> bool {
        let mut store = self.store.lock().await;
        store.close().await;
        *store = Embedded::open(self.dir.path(), self.options.clone()).await.unwrap();
        true
    }
    fn expiry_bound(&self) -> Duration {
        Duration::from_secs(2)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_conforms() {
    conformance::run(|| async { InMemory(Embedded::in_memory()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_disk_conforms() {
    conformance::run(|| OnDisk::new(Options::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn always_compacting_conforms() {
    let options = Options { step_bytes: 512, compact_bytes: 1024, ..Options::default() };
    conformance::run(|| OnDisk::new(options.clone())).await;
}
