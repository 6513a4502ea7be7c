//! A replica of a child, which takes what its parent has, while clients write to that.

use crate::support::{Cluster, node_id, operation, put, replica, until};
use partage_core::base::id::{Configuration, Epoch, Incarnation, ShardId};
use partage_core::keyspace::key::KeyRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{Order, Peer};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Action, Write};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of 300 KiB: 7 MiB.
const ROWS: u64 = 24;

fn role(node: u64) -> Role {
    if node == 1 { Role::Leader } else { Role::Follower }
}

/// The parent's replica on a node that was started once.
fn parent(node: u64, state: ReplicaState) -> Peer {
    Peer {
        shard: ShardId(1),
        placement: replica(1, node).placement,
        bounds: Bounds::Keys(KeyRange::all()),
        node: node_id(node),
        incarnation: Incarnation(node),
        address: None,
        role: role(node),
        state,
        in_sync: true,
    }
}

/// What the child's replica on node 3 is ordered: to form, or to serve when the parent has closed.
fn child(serves: bool) -> Order {
    let (state, parents) = match serves {
        false => (ReplicaState::Load, ReplicaState::Live),
        true => (ReplicaState::Live, ReplicaState::Unload),
    };
    Order {
        replica: replica(2, 3),
        bounds: Bounds::Keys(KeyRange::all()),
        role: Role::Leader,
        state,
        epoch: Epoch(9),
        configuration: Configuration(u64::from(serves)),
        in_sync: serves,
        granted: serves,
        peers: (1..=3).map(|node| parent(node, parents)).collect(),
        had_data: true,
        drop: None,
        hand_over_to: None,
    }
}

/// The parent's log is to end.
fn close(cluster: &Cluster) {
    let shard = cluster.world.shard(1);
    for me in 1..=3 {
        let others = (1..=3).filter(|node| *node != me);
        let order = Order {
            replica: replica(1, me),
            bounds: Bounds::Keys(KeyRange::all()),
            role: role(me),
            state: ReplicaState::Unload,
            epoch: Epoch(shard.epoch + 1),
            configuration: Configuration(shard.configuration + 1),
            in_sync: true,
            granted: true,
            peers: others.map(|node| parent(node, ReplicaState::Unload)).collect(),
            had_data: true,
            drop: None,
            hand_over_to: None,
        };
        cluster.node(me).order(&order);
    }
}

/// What each key has in the end.
type Expected = BTreeMap<String, Option<Vec<u8>>>;

/// Writes and deletes rows until the child is ready.
async fn write_until(cluster: &Cluster, is_ready: &AtomicBool, expected: &mut Expected) -> u64 {
    let mut written = 0;
    while !is_ready.load(Ordering::Relaxed) || written < ROWS {
        let key = format!("k{:02}", written % ROWS);
        let value = (!written.is_multiple_of(7)).then(|| vec![(written % 251) as u8; 300 << 10]);
        let write = match &value {
            Some(value) => put(&key, value),
            None => Write { at_ms: 0, request: None, operations: vec![operation(&key, Action::Delete)] },
        };
        cluster.write(1, &write).await;
        expected.insert(key, value);
        written += 1;
    }
    written
}

/// A follower that gives to a child was away, and is filled by its leader: what it gave from is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_child_takes_all_anew_of_a_parent_that_was_filled_meanwhile() {
    let mut cluster = Cluster::new();
    cluster.replica.replication.catch_up_log_bytes = 1;
    cluster.settings.flush_bytes = 64 << 10;
    cluster.settings.copies.bytes_per_s = 1 << 20;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    for number in 0..ROWS {
        cluster.write(1, &put(&format!("k{number:02}"), vec![255_u8; 300 << 10])).await;
    }
    let node = cluster.node(3);
    cluster.comes_to(1, 3, &format!("k{:02}", ROWS - 1), &vec![255; 300 << 10]).await;
    cluster.cut(3, true);
    cluster.in_sync(1, &[1, 2]).await;
    // What the leader fills it with is much less than what the child copies.
    for number in 1..ROWS {
        let key = format!("k{number:02}");
        let delete = Write { at_ms: 0, request: None, operations: vec![operation(&key, Action::Delete)] };
        cluster.write(1, &delete).await;
    }
    node.form_replica(&child(false), cluster.replica).unwrap();
    until("a part is copied", async || (node.copies().bytes_out >= 300 << 10).then_some(())).await;
    cluster.cut(3, false);
    cluster.in_sync(1, &[1, 2, 3]).await;
    node.when_ready(&replica(2, 3)).await.unwrap();
    close(&cluster);
    node.order(&child(true));
    node.when_open(&replica(2, 3)).await.unwrap();
    cluster.comes_to(2, 3, "k00", &vec![255; 300 << 10]).await;
    let deleted = cluster.read_once(2, 3, "k09", Consistency::Any).await.unwrap();
    assert!(deleted.row.is_none());
    drop(node);
}

/// Clients of another shard write, and copies give way to them, but not when the parent has closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_child_that_requests_wait_for_does_not_give_way_to_other_clients() {
    let mut cluster = Cluster::new();
    cluster.settings.copies.bytes_per_s = 1 << 40;
    cluster.settings.copies.busy_percent = 1;
    cluster.settings.copies.floor_bytes_per_s = 1;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.add_shard(4).await;
    for number in 0..ROWS {
        cluster.write(1, &put(&format!("k{number:02}"), vec![255_u8; 300 << 10])).await;
    }
    let (node, is_open) = (cluster.node(3), AtomicBool::new(false));
    cluster.comes_to(1, 3, &format!("k{:02}", ROWS - 1), &vec![255; 300 << 10]).await;
    let others = async {
        while !is_open.load(Ordering::Relaxed) {
            cluster.write(4, &put("other", "x")).await;
        }
    };
    let child = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        node.form_replica(&child(false), cluster.replica).unwrap();
        until("a part is copied", async || (node.copies().bytes_out >= 300 << 10).then_some(())).await;
        close(&cluster);
        node.order(&child(true));
        let before = node.copies();
        node.when_open(&replica(2, 3)).await.unwrap();
        is_open.store(true, Ordering::Relaxed);
        (before, node.copies())
    };
    let ((), (before, after)) = tokio::join!(others, child);
    assert!(after.waits <= before.waits + 6, "{before:?} {after:?}: two steps of each of 24 chunks");
    cluster.comes_to(2, 3, "k23", &vec![255; 300 << 10]).await;
}

/// While a child copies its parent slowly, clients write several times as much as the parent keeps for the child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_d10_a_child_copies_once_however_much_is_written_meanwhile_and_has_all_of_it() {
    let mut cluster = Cluster::new();
    // The copy takes seven seconds.
    cluster.settings.copies.bytes_per_s = 1 << 20;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    let mut expected = Expected::new();
    for number in 0..ROWS {
        let (key, value) = (format!("k{number:02}"), vec![255_u8; 300 << 10]);
        cluster.write(1, &put(&key, &value)).await;
        expected.insert(key, Some(value));
    }
    let (node, is_ready) = (cluster.node(3), AtomicBool::new(false));
    cluster.comes_to(1, 3, &format!("k{:02}", ROWS - 1), &vec![255; 300 << 10]).await;
    node.form_replica(&child(false), cluster.replica).unwrap();
    let ready = async {
        node.when_ready(&replica(2, 3)).await.unwrap();
        is_ready.store(true, Ordering::Relaxed);
    };
    let (written, ()) = tokio::join!(write_until(&cluster, &is_ready, &mut expected), ready);
    let copied = node.copies();
    assert!(copied.bytes_out < 10 << 20, "{copied:?}, {written} rows of 300 KiB were written meanwhile");
    close(&cluster);
    node.order(&child(true));
    node.when_open(&replica(2, 3)).await.unwrap();
    for (key, value) in &expected {
        until("the child has what its parent had", async || {
            let found = cluster.read_once(2, 3, key, Consistency::Any).await.ok()?;
            (found.row.map(|row| row.value.to_vec()) == *value).then_some(())
        })
        .await;
    }
    // What waited is removed, and only the rows of both shards are there.
    until("what is of no use is removed", async || {
        let folders = std::fs::read_dir(cluster.folder(3).join("rows/orders")).unwrap().count();
        (folders == 2).then_some(())
    })
    .await;
    drop(node);
}
