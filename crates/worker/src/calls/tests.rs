use super::*;
use crate::handler::Failure;
use async_trait::async_trait;
use partage_core::base::id::{Epoch, Generation, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::Ownership;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use partage_core::node::exchange::{DropReason, KeyspaceBrief, Peer};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Its loads block a thread until they are let go, or until they see that they are cancelled.
#[derive(Default)]
struct Blocking {
    let_go: AtomicBool,
    heeds_cancellation: bool,
    loading: AtomicUsize,
    most_loading: AtomicUsize,
    overlapped: AtomicBool,
    serving: AtomicUsize,
    most_serving: AtomicUsize,
}

#[async_trait]
impl Handler for Arc<Blocking> {
    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        let (blocking, scope) = (self.clone(), shard.scope().clone());
        let work = shard.scope().spawn_blocking(move || {
            let loading = blocking.loading.fetch_add(1, Ordering::SeqCst) + 1;
            blocking.most_loading.fetch_max(loading, Ordering::SeqCst);
            let ends = || {
                let cancelled = blocking.heeds_cancellation && scope.is_cancelled();
                cancelled || blocking.let_go.load(Ordering::SeqCst)
            };
            while !ends() {
                std::thread::yield_now();
            }
            blocking.loading.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(work.await?)
    }

    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        let serving = self.serving.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_serving.fetch_max(serving, Ordering::SeqCst);
        until(|| self.let_go.load(Ordering::SeqCst)).await;
        self.serving.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.overlapped.fetch_or(self.loading.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
        Ok(())
    }

    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        Ok(())
    }
}

fn shard(number: u64) -> Assignment {
    let name = KeyspaceName::new("users").unwrap();
    let replica =
        ReplicaKey { keyspace: name.clone(), shard: ShardId(number), placement: PlacementId(number) };
    Assignment {
        replica,
        bounds: Bounds::Slot(Slot::new(0, 1).unwrap()),
        role: Role::Follower,
        state: ReplicaState::Load,
        epoch: Epoch(1),
        peers: vec![],
        brief: brief(name),
        had_data: false,
        has_data: false,
        cluster: None,
        scope: Scope::idle(),
    }
}

async fn returned(inbox: &mut mpsc::Receiver<Event>) -> (ReplicaKey, u64, Callback) {
    match timeout(Duration::from_secs(20), inbox.recv()).await.unwrap().unwrap() {
        Event::Returned { replica, number, callback, .. } => (replica, number, callback),
        _ => panic!("callbacks only return"),
    }
}

async fn until(what: impl Fn() -> bool) {
    timeout(Duration::from_secs(20), async {
        while !what() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
}

/// A handler that blocks, its calls, and where they return.
fn world(
    heeds_cancellation: bool,
    at_once: usize,
) -> (Arc<Blocking>, Calls, mpsc::Receiver<Event>, mpsc::Sender<Event>) {
    let handler = Arc::new(Blocking { heeds_cancellation, ..Blocking::default() });
    let (events, inbox) = mpsc::channel(64);
    let calls = Calls::new(Arc::new(handler.clone()), events.downgrade(), at_once, at_once);
    (handler, calls, inbox, events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_load_that_blocks_a_thread_never_runs_beside_unload() {
    let (handler, mut calls, mut inbox, _events) = world(false, 8);
    calls.begin(shard(1), Callback::Load);
    until(|| handler.loading.load(Ordering::SeqCst) == 1).await;
    calls.abandon(&shard(1).replica);
    calls.begin(shard(1), Callback::Unload);
    // Another replica does not wait for it.
    calls.begin(shard(2), Callback::Unload);
    assert_eq!(returned(&mut inbox).await.0, shard(2).replica);
    handler.overlapped.store(false, Ordering::SeqCst);
    // Given up while it waits: the one after it waits all the same.
    calls.abandon(&shard(1).replica);
    calls.begin(shard(1), Callback::Unload);
    sleep(Duration::from_millis(50)).await;
    assert!(inbox.try_recv().is_err(), "the load still runs");
    handler.let_go.store(true, Ordering::SeqCst);
    let (replica, number, callback) = returned(&mut inbox).await;
    assert_eq!((replica.clone(), callback), (shard(1).replica, Callback::Unload));
    assert!(calls.ended(&replica, number));
    assert!(!handler.overlapped.load(Ordering::SeqCst));
    calls.begin(shard(1), Callback::Unload);
    returned(&mut inbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_heeds_its_cancellation_ends_at_once() {
    let (handler, mut calls, mut inbox, _events) = world(true, 8);
    calls.begin(shard(1), Callback::Load);
    until(|| handler.loading.load(Ordering::SeqCst) == 1).await;
    calls.abandon(&shard(1).replica);
    calls.begin(shard(1), Callback::Unload);
    assert_eq!(returned(&mut inbox).await.2, Callback::Unload);
    assert_eq!(handler.loading.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_beyond_the_limit_wait_and_other_callbacks_do_not() {
    let (handler, mut calls, mut inbox, _events) = world(false, 2);
    (1..=4).for_each(|number| calls.begin(shard(number), Callback::Load));
    until(|| handler.loading.load(Ordering::SeqCst) == 2).await;
    calls.begin(shard(5), Callback::Unload);
    assert_eq!(returned(&mut inbox).await.2, Callback::Unload);
    handler.let_go.store(true, Ordering::SeqCst);
    for _ in 1..=4 {
        assert_eq!(returned(&mut inbox).await.2, Callback::Load);
    }
    assert_eq!(handler.most_loading.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_serves_beyond_the_limit_wait_and_neither_loads_nor_unloads_wait_for_them() {
    let (handler, mut calls, mut inbox, _events) = world(true, 3);
    let serve = Callback::Serve(Role::Leader, Epoch(1));
    (1..=3).for_each(|number| calls.begin(shard(number), serve));
    until(|| handler.serving.load(Ordering::SeqCst) == 3).await;
    // One more than the limit.
    calls.begin(shard(4), serve);
    calls.begin(shard(5), Callback::Load);
    until(|| handler.loading.load(Ordering::SeqCst) == 1).await;
    calls.begin(shard(6), Callback::Unload);
    assert_eq!(returned(&mut inbox).await.2, Callback::Unload);
    assert_eq!(handler.serving.load(Ordering::SeqCst), 3);
    // One that is given up makes room.
    calls.abandon(&shard(1).replica);
    until(|| handler.serving.load(Ordering::SeqCst) == 4).await;
    handler.let_go.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        returned(&mut inbox).await;
    }
}

fn brief(name: KeyspaceName) -> KeyspaceBrief {
    KeyspaceBrief {
        name,
        sharding: Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1 },
        partition_key: PartitionKey::default(),
        ownership: Ownership::Eventual,
        generation: Generation::default(),
        first_shard: ShardId(1),
        durable: false,
        min_in_sync: 0,
        kind: partage_core::keyspace::KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    }
}
