//! Writes and reads on a cluster that is well, or whose network is not.

use crate::support::{Cluster, add, key, operation, put, replica, until};
use partage_service::table::replication::{Consistency, Failed};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Outcome, Write};
use partage_table::{ReadError, ReplicaError, ScanRange, WriteError};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_is_read_at_the_leader_and_comes_to_the_others() {
    let cluster = Cluster::started().await;
    for number in 0..20 {
        let of = format!("k{}", number % 3);
        let done = cluster.write(1, &put(&of, format!("v{number}"))).await;
        assert!(matches!(done, Outcome::Done { .. }));
        assert_eq!(cluster.read(1, &of).await, Some(format!("v{number}").into_bytes()));
    }
    for node in 1..=3 {
        cluster.comes_to(1, node, "k1", b"v19").await;
    }
    let follower = cluster.read_once(1, 2, "k1", Consistency::Linearizable).await.unwrap_err();
    assert_eq!(follower, ReadError::Refused(Failed::NotLeader(Some(replica(1, 1).placement))));
    let elsewhere = cluster.node(2).write(&replica(1, 2), &put("k1", "x")).await.unwrap_err();
    assert!(elsewhere.is_definite() && elsewhere.leader() == Some(replica(1, 1).placement));
    let fresh = until("a follower knows that it is fresh", async || {
        cluster.read_once(1, 3, "k1", Consistency::Bounded(30_000)).await.ok()
    });
    assert!(fresh.await.age_ms.is_some());
    let position = cluster.read_once(1, 1, "k1", Consistency::Any).await.unwrap().position;
    let later = position.index + 1_000;
    let behind = cluster.node(1).read(&replica(1, 1), &key("k1"), Consistency::Any, later).await;
    assert!(matches!(behind, Err(ReadError::Refused(Failed::Behind { .. }))));
}

/// No client writes to the shard meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_whose_time_has_come_is_gone_on_all_replicas_of_an_idle_shard() {
    let cluster = Cluster::started().await;
    let end = partage_clock::wall_ms() + 400;
    let action = Action::Put(b"v".as_slice().into(), Expiry::At(end));
    cluster.write(1, &Write { operations: vec![operation("short", action)], ..put("short", "") }).await;
    cluster.write(1, &put("long", "v")).await;
    let has = async |node, of: &str| {
        let found = cluster.read_once(1, node, of, Consistency::Any).await;
        found.is_ok_and(|answer| answer.row.is_some())
    };
    assert!(has(1, "short").await);
    for node in 1..=3 {
        until("the row is gone", async || (!has(node, "short").await).then_some(())).await;
        assert!(has(node, "long").await);
    }
    let last = cluster.read_once(1, 1, "long", Consistency::Any).await.unwrap().position;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let later = cluster.read_once(1, 1, "long", Consistency::Any).await.unwrap().position;
    assert_eq!(last, later, "the clock stands still when no row ends");
}

/// The clock of a shard is the latest time of its writes: a leader that followed the system at once would end the row for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_outlives_a_system_clock_that_is_set_an_hour_ahead() {
    let cluster = Cluster::started().await;
    let end = partage_clock::wall_ms() + 1_800_000;
    let action = Action::Put(b"v".as_slice().into(), Expiry::At(end));
    cluster.write(1, &Write { operations: vec![operation("short", action)], ..put("short", "") }).await;
    partage_clock::set::ahead_by_ms(3_600_000);
    // It would end with the next write.
    cluster.write(1, &put("long", "v")).await;
    partage_clock::set::ahead_by_ms(0);
    assert_eq!(cluster.read(1, "short").await, Some(b"v".to_vec()));
    let Outcome::Done { results, .. } = cluster
        .write(1, &Write { operations: vec![operation("short", Action::Read)], ..put("short", "") })
        .await
    else {
        panic!("not done")
    };
    assert!(results[0].existed, "the shard's clock has not passed its end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_batches_and_limits_are_those_of_rows() {
    let cluster = Cluster::started().await;
    let absent = |of: &str, value: &str| {
        let mut write = put(of, value);
        write.operations[0].condition = Condition::Absent;
        write
    };
    let Outcome::Done { version, .. } = cluster.write(1, &absent("a", "1")).await else { panic!("not done") };
    let again = cluster.write(1, &absent("a", "2")).await;
    assert_eq!(again, Outcome::NotMet { operation: 0, current: Some(version) });
    let read = Operation { wants_former: true, ..operation("a", Action::Read) };
    let batch = Write { operations: vec![read, operation("a", Action::Add(41))], ..put("a", "") };
    let Outcome::Done { results, .. } = cluster.write(1, &batch).await else { panic!("not done") };
    assert_eq!(&*results[0].former.as_ref().unwrap().value, b"1");
    assert_eq!(results[1].now.unwrap().number, Some(42));
    let empty = Write { operations: Vec::new(), ..put("a", "") };
    let refused = cluster.write_once(1, &empty).await.unwrap_err();
    assert!(matches!(refused, WriteError::Invalid(_)) && refused.is_definite());
    let large = put("a", vec![0; 500 << 10]);
    let refused = cluster.write_once(1, &large).await.unwrap_err();
    assert!(matches!(refused, WriteError::TooLarge { most, .. } if most == 400 << 10), "{refused}");
    let stranger = replica(9, 1);
    assert_eq!(cluster.node(1).write(&stranger, &put("a", "")).await, Err(WriteError::NotOpen));
    let read = cluster.node(1).read(&stranger, &key("a"), Consistency::Any, 0).await;
    assert_eq!(read, Err(ReadError::NotOpen));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_reads_page_by_page_at_the_leader_what_was_acknowledged() {
    let cluster = Cluster::started().await;
    for number in 0..25 {
        cluster.write(1, &put(&format!("k{number:02}"), format!("v{number}"))).await;
    }
    cluster.write(1, &put("other", "x")).await;
    let scan = async |node: u64, range: &ScanRange, consistency| {
        cluster.node(node).scan(&replica(1, node), range.clone(), consistency, 0).await
    };
    let mut range = ScanRange { prefix: key("k"), most: 10, ..ScanRange::default() };
    let mut found = Vec::new();
    loop {
        let page = scan(1, &range, Consistency::Linearizable).await.unwrap();
        found.extend(page.rows.into_iter().map(|row| (row.key, row.value.unwrap())));
        let Some(next) = page.next else { break };
        range.from = next;
        // The next page has rows behind the last one that are written meanwhile, and none before it.
        cluster.write(1, &put("k", "before")).await;
    }
    let expected: Vec<_> = (0..25)
        .map(|number| (key(&format!("k{number:02}")), format!("v{number}").into_bytes().into()))
        .collect();
    assert_eq!(found, expected);
    let refused = scan(2, &range, Consistency::Linearizable).await.unwrap_err();
    assert_eq!(refused, ReadError::Refused(Failed::NotLeader(Some(replica(1, 1).placement))));
    cluster.comes_to(1, 2, "k", b"before").await;
    let followed = scan(2, &ScanRange { with_values: false, ..ScanRange::default() }, Consistency::Any).await;
    let followed = followed.unwrap();
    assert_eq!((followed.rows.len(), followed.next), (27, None));
    assert!(followed.rows.iter().all(|row| row.value.is_none()));
    let closed = cluster.node(1).scan(&replica(9, 1), ScanRange::default(), Consistency::Any, 0).await;
    assert_eq!(closed, Err(ReadError::NotOpen));
}

/// Counters that many clients add to, each retrying under the same name until it knows.
async fn count(cluster: &Arc<Cluster>, clients: u64, each: u64) {
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let cluster = Arc::clone(cluster);
            tokio::spawn(async move {
                for number in 0..each {
                    let done = cluster.write(1, &add("sum", client * 10_000 + number)).await;
                    assert!(matches!(done, Outcome::Done { .. }), "{done:?}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_done_once_on_a_network_that_loses_doubles_and_delays_and_under_many_leaders() {
    let cluster = Arc::new(Cluster::started().await);
    cluster.world.faults.lock().unwrap().is_bad = true;
    let counting = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        async move { count(&cluster, 6, 40).await }
    });
    for turn in 0..3 {
        let begun = cluster.world.shard(1).epoch;
        let leader = 1 + turn % 3;
        until("a leader has begun and written", async || {
            let status = cluster.status(1, cluster.world.shard(1).leader).await;
            (status.has_begun && status.committed > 20 * turn).then_some(())
        })
        .await;
        let in_sync = cluster.world.shard(1).in_sync;
        if let Some(next) = in_sync.iter().find(|node| **node != leader) {
            cluster.lead(1, *next);
        }
        assert!(cluster.world.shard(1).epoch > begun || cluster.world.shard(1).in_sync.len() < 2);
    }
    counting.await.unwrap();
    cluster.world.faults.lock().unwrap().is_bad = false;
    assert_eq!(cluster.read(1, "sum").await, Some(b"240".to_vec()));
    cluster.in_sync(1, &[1, 2, 3]).await;
    for node in 1..=3 {
        cluster.comes_to(1, node, "sum", b"240").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_closed_opened_again_and_dropped() {
    let cluster = Cluster::started().await;
    cluster.write(1, &put("a", "1")).await;
    cluster.comes_to(1, 2, "a", b"1").await;
    let (node, key_of) = (cluster.node(2), replica(1, 2));
    let busy = node.open_replica(&key_of, cluster.replica, false).await;
    assert_eq!(busy, Err(ReplicaError::Busy(key_of.clone())));
    node.close_replica(&key_of).await.unwrap();
    assert_eq!(node.close_replica(&key_of).await, Err(ReplicaError::NotOpen(key_of.clone())));
    let closed = cluster.read_once(1, 2, "a", Consistency::Any).await;
    assert_eq!(closed, Err(ReadError::NotOpen));
    node.open_replica(&key_of, cluster.replica, false).await.unwrap();
    let kept = cluster.read_once(1, 2, "a", Consistency::Any).await.unwrap();
    assert_eq!(&*kept.row.unwrap().value, b"1", "before any order");
    cluster.world.announce(1);
    cluster.write(1, &put("a", "2")).await;
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.comes_to(1, 2, "a", b"2").await;
    node.drop_replica(&key_of).await.unwrap();
    node.drop_replica(&key_of).await.unwrap();
    let rows = cluster.folder(2).join("rows/orders");
    assert_eq!(std::fs::read_dir(rows).unwrap().count(), 0, "the folder is gone");
    node.open_replica(&key_of, cluster.replica, true).await.unwrap();
    let empty = cluster.read_once(1, 2, "a", Consistency::Any).await.unwrap();
    assert_eq!(empty.row, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_short_though_many_entries_are_written() {
    let mut cluster = Cluster::new();
    cluster.settings.log.segment_bytes = 256 << 10;
    cluster.settings.log.entry_bytes = 64 << 10;
    cluster.settings.writer.segments = 3;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.add_shard(2).await;
    cluster.write(2, &put("rare", "x")).await;
    for number in 0..120 {
        cluster.write(1, &put(&format!("k{}", number % 7), vec![number; 40 << 10])).await;
    }
    // Shard 2, in the oldest segment, flushes its single row for that.
    until("old segments are deleted", async || {
        cluster.write(1, &put("more", vec![0; 40 << 10])).await;
        let files = std::fs::read_dir(cluster.folder(1).join("log")).unwrap().count();
        (files <= 10).then_some(())
    })
    .await;
    assert_eq!(cluster.read(2, "rare").await, Some(b"x".to_vec()));
}

/// A caller that asks no more for the outcome of its write, and keeps the call, holds up no other caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_begun_and_not_waited_for_holds_up_no_other() {
    let cluster = Cluster::started().await;
    let leader = cluster.node(1);
    let (key, first, second) = (replica(1, 1), put("a", "1"), put("b", "2"));
    cluster.write(1, &first).await;
    for _ in 0..20 {
        let mut begun = Box::pin(leader.write(&key, &first));
        assert!(futures::poll!(&mut begun).is_pending());
        let other = tokio::time::timeout(Duration::from_secs(10), leader.write(&key, &second)).await;
        other.expect("nothing holds it up").unwrap();
        begun.await.unwrap();
    }
}
