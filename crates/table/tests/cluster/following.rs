//! Followers that were away.

use crate::support::{Cluster, put};

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
