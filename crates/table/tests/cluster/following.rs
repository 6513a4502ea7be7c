//! Followers that were away.

use crate::support::{Cluster, operation, put, quick, replica, until};
use partage_service::table::replication;
use partage_service::table::rows::{Action, Write};
use partage_table::Packet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_cut_off_catches_up_by_the_log() {
    let cluster = Cluster::started().await;
    cluster.write(1, &put("a", "1")).await;
    cluster.cut(3, true);
    cluster.in_sync(1, &[1, 2]).await;
    for number in 0..50 {
        cluster.write(1, &put(&format!("k{number}"), "x")).await;
    }
    cluster.cut(3, false);
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.comes_to(1, 3, "k49", b"x").await;
    assert_eq!(cluster.world.faults.lock().unwrap().chunks, 0, "no snapshot was sent");
}

/// A leader that keeps no log for followers that are behind.
async fn forgetful() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.replica.replication.catch_up_log_bytes = 1;
    cluster.settings.flush_bytes = 64 << 10;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.write(1, &put("a", "1")).await;
    cluster
}

async fn write_much(cluster: &Cluster, fill: u8) {
    for number in 0..40 {
        cluster.write(1, &put(&format!("k{number}"), vec![fill; 30 << 10])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_too_far_behind_gets_a_snapshot_also_when_chunks_are_lost() {
    let cluster = forgetful().await;
    for (turn, loses_chunks) in [(1, false), (2, true)] {
        cluster.cut(3, true);
        cluster.in_sync(1, &[1, 2]).await;
        write_much(&cluster, turn).await;
        let before = cluster.world.faults.lock().unwrap().chunks;
        cluster.world.faults.lock().unwrap().loses_chunks = loses_chunks;
        cluster.cut(3, false);
        cluster.in_sync(1, &[1, 2, 3]).await;
        cluster.comes_to(1, 3, "k0", &vec![turn; 30 << 10]).await;
        cluster.comes_to(1, 3, "k39", &vec![turn; 30 << 10]).await;
        let chunks = cluster.world.faults.lock().unwrap().chunks - before;
        assert!(chunks > 3, "{chunks} chunks");
    }
    // It leads with what it has of the snapshot, also after a restart.
    cluster.write(1, &put("z", "9")).await;
    cluster.lead(1, 3);
    assert_eq!(cluster.read(1, "z").await, Some(b"9".to_vec()));
    assert_eq!(cluster.read(1, "k17").await, Some(vec![2; 30 << 10]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_filled_by_a_snapshot_is_whole_after_a_kill() {
    let mut cluster = forgetful().await;
    cluster.cut(3, true);
    cluster.in_sync(1, &[1, 2]).await;
    write_much(&cluster, 1).await;
    cluster.cut(3, false);
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.write(1, &put("z", "9")).await;
    cluster.kill(3);
    let stored = cluster.start(3);
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].damaged, None);
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.lead(1, 3);
    for (of, value) in [("z", b"9".to_vec()), ("k0", vec![1; 30 << 10]), ("k39", vec![1; 30 << 10])] {
        assert_eq!(cluster.read(1, of).await, Some(value));
    }
    let folders = std::fs::read_dir(cluster.folder(3).join("rows/orders")).unwrap().count();
    assert_eq!(folders, 1, "what the snapshot has replaced is gone");
}

/// Rows of 300 KiB, each a chunk of its own: 19 MiB, of which a store has a part on its disk after each 4 MiB.
const ROWS: u8 = 64;

fn row(number: u8) -> (String, Vec<u8>) {
    (format!("k{number:02}"), vec![number; 300 << 10])
}

/// Three nodes, of which the third begins to take a snapshot. Copies take seconds.
async fn filled_slowly() -> Cluster {
    filled_slowly_by(replication::Settings { catch_up_log_bytes: 1, ..quick() }).await
}

async fn filled_slowly_by(replication: replication::Settings) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.replica.replication = replication;
    cluster.settings.flush_bytes = 64 << 10;
    cluster.settings.copies.bytes_per_s = 4 << 20;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.write(1, &put("a", "1")).await;
    cluster.cut(3, true);
    cluster.in_sync(1, &[1, 2]).await;
    for (key, value) in (0..ROWS).map(row) {
        cluster.write(1, &put(&key, value)).await;
    }
    cluster.cut(3, false);
    cluster
}

/// The third has taken more than 8 MiB of it when it is killed.
async fn killed_in_the_midst_of_a_snapshot() -> Cluster {
    let mut cluster = filled_slowly().await;
    until("much of the snapshot is taken", async || {
        (cluster.node(3).copies().bytes_in >= 10 << 20).then_some(())
    })
    .await;
    cluster.kill(3);
    let stored = cluster.start(3);
    assert_eq!(stored[0].damaged, None);
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_follower_that_starts_again_goes_on_with_the_snapshot_of_which_it_has_a_part() {
    let cluster = killed_in_the_midst_of_a_snapshot().await;
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    let taken = cluster.node(3).copies();
    assert_eq!(taken.resumed, 1);
    assert!(taken.bytes_in < 13 << 20, "{taken:?}: all is 19 MiB, and 8 were on the disk");
    let given = cluster.node(1).copies();
    assert!(given.waits > 0 && given.waited_ms > 0, "{given:?}: a quarter of a second for each MiB");
    cluster.lead(1, 3);
    for (key, value) in (0..ROWS).map(row) {
        assert_eq!(cluster.read(1, &key).await, Some(value), "{key}");
    }
    assert_eq!(cluster.read(1, "a").await, Some(b"1".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_to_which_the_log_does_not_reach_back_any_more_is_not_sent_to_its_end() {
    // No log is kept for a copy either, and clients wait for none.
    let keeps_nothing =
        replication::Settings { catch_up_log_bytes: 1, copy_log_bytes: 1, copy_slows_ms: 0, ..quick() };
    let cluster = filled_slowly_by(keeps_nothing).await;
    until("a part is taken", async || (cluster.node(3).copies().bytes_in >= 1 << 20).then_some(())).await;
    let snapshot = || cluster.world.faults.lock().unwrap().snapshot;
    let first = snapshot();
    // The leader keeps no log for followers that are behind. The writes come at once, so that the copy that follows is to begin
    // behind all of them.
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| put(&row(number).0, vec![255; 300 << 10]));
    tokio::join!(cluster.write(1, &a), cluster.write(1, &b), cluster.write(1, &c), cluster.write(1, &d));
    until("another snapshot is sent", async || (snapshot() != first).then_some(())).await;
    let taken = cluster.node(3).copies();
    assert!(taken.bytes_in < 16 << 20, "{taken:?}: all of the first is 19 MiB");
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.comes_to(1, 3, "k00", &vec![255; 300 << 10]).await;
}

/// The log of the leader, which keeps nothing for other followers, is kept for a copy that is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_follower_goes_on_behind_a_snapshot_however_much_is_written_while_it_is_copied() {
    let cluster = filled_slowly().await;
    until("a part is taken", async || (cluster.node(3).copies().bytes_in >= 1 << 20).then_some(())).await;
    let snapshot = || cluster.world.faults.lock().unwrap().snapshot;
    let first = snapshot();
    for number in 0..8 {
        cluster.write(1, &put(&row(number).0, vec![255; 300 << 10])).await;
    }
    cluster.in_sync(1, &[1, 2, 3]).await;
    assert_eq!(snapshot(), first, "one snapshot is enough");
    cluster.comes_to(1, 3, "k00", &vec![255; 300 << 10]).await;
}

/// The chunks of the new sending do not end where those of the one end that went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_follower_that_has_gone_on_takes_all_anew_when_its_leader_sends_the_same_snapshot_anew() {
    let cluster = killed_in_the_midst_of_a_snapshot().await;
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    until("two more chunks are stored", async || {
        let taken = cluster.node(3).copies();
        (taken.resumed == 1 && taken.bytes_in >= 600 << 10).then_some(())
    })
    .await;
    // The leader has nothing any more of what it sends.
    let position = cluster.world.faults.lock().unwrap().snapshot.unwrap();
    cluster.node(1).receive(&replica(1, 1), replica(1, 3).placement, Packet::Useless { position });
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.lead(1, 3);
    assert_eq!(cluster.read(1, "a").await, Some(b"1".to_vec()));
    for (key, value) in (0..ROWS).map(row) {
        assert_eq!(cluster.read(1, &key).await, Some(value), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_follower_that_is_offered_a_later_snapshot_takes_all_of_it() {
    let cluster = killed_in_the_midst_of_a_snapshot().await;
    // Another one leads, which does not have that snapshot, and rows are deleted and changed that the follower had taken.
    cluster.lead(1, 2);
    let delete = Write { at_ms: 0, request: None, operations: vec![operation("k00", Action::Delete)] };
    cluster.write(1, &delete).await;
    cluster.write(1, &put("k01", "new")).await;
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    assert_eq!(cluster.node(3).copies().resumed, 0);
    cluster.lead(1, 3);
    assert_eq!(cluster.read(1, "k00").await, None);
    assert_eq!(cluster.read(1, "k01").await, Some(b"new".to_vec()));
    for (key, value) in (2..ROWS).map(row) {
        assert_eq!(cluster.read(1, &key).await, Some(value), "{key}");
    }
    until("what is of no use is removed", async || {
        let folders = std::fs::read_dir(cluster.folder(3).join("rows/orders")).unwrap().count();
        (folders == 1).then_some(())
    })
    .await;
}
