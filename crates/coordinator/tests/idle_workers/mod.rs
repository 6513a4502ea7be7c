//! Real workers in this process, of a service that has nothing to do and counts what it is asked for.

#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::door::{Door, PATIENCE};
use async_trait::async_trait;
use partage_worker::{Assignment, DropReason, Epoch, Failure, Handler, Peer, Role, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

/// How often the service was asked to load a replica, and to delete one.
#[derive(Debug, Default)]
pub struct Counts {
    pub loads: AtomicUsize,
    pub drops: AtomicUsize,
}

struct Idle(Arc<Counts>);

#[async_trait]
impl Handler for Idle {
    async fn load(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        Ok(())
    }
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }
    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A worker that has registered. Its address listens for as long as the listener is kept, and answers nothing.
pub async fn worker(door: &Door, node: &str, counts: &Arc<Counts>) -> (Worker, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let coordinator = door.coordinator.address().to_string();
    let starting = Worker::builder(node, [coordinator], address).register_within(PATIENCE);
    (starting.start(Idle(counts.clone())).await.unwrap(), listener)
}
