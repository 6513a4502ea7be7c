//! Replicas whose network fails in the ways that a network of sockets does.

use super::{ANYWHERE, Listening, Networked};
use crate::support::{Cluster, add, node_id, put, until};
use partage_core::base::id::PlacementId;
use partage_core::node::exchange::ReplicaKey;
use partage_table::{Packet, PacketService, PacketSink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_committed_over_the_network() {
    let networked = Networked::started(Cluster::new()).await;
    let cluster = &networked.cluster;
    for number in 0..20 {
        cluster.write(1, &put(&format!("k{number}"), format!("{number}"))).await;
    }
    assert_eq!(cluster.read(1, "k19").await, Some(b"19".to_vec()));
    for node in [2, 3] {
        cluster.comes_to(1, node, "k19", b"19").await;
    }
    // The largest row that the log of these tests takes.
    cluster.write(1, &put("large", vec![7; 390 << 10])).await;
    cluster.comes_to(1, 3, "large", &vec![7; 390 << 10]).await;
    // Each follower leads over the network, too.
    for node in [2, 3] {
        cluster.lead(1, node);
        cluster.write(1, &put("who", format!("{node}"))).await;
        assert_eq!(cluster.read(1, "who").await, Some(format!("{node}").into_bytes()));
    }
    for (node, transport) in &networked.transports {
        let counts = transport.counts();
        assert_eq!((counts.dropped_full, counts.dropped_too_large), (0, 0), "{node} {counts:?}");
        assert!(counts.sent >= counts.batches && counts.batches > 0, "{node} {counts:?}");
        assert_eq!(networked.services[node].counts().malformed, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_listener_moves_to_another_port_comes_back() {
    let mut networked = Networked::started(Cluster::new()).await;
    networked.cluster.write(1, &put("a", "1")).await;
    let before = networked.deafen(3).await;
    networked.cluster.in_sync(1, &[1, 2]).await;
    for number in 0..50 {
        networked.cluster.write(1, &put(&format!("k{number}"), "x")).await;
    }
    // Another one takes the port, so that the node is elsewhere for certain.
    let _taken = tokio::net::TcpListener::bind(&before).await.unwrap();
    networked.listen(3, ANYWHERE).await;
    networked.announce();
    networked.cluster.in_sync(1, &[1, 2, 3]).await;
    networked.cluster.comes_to(1, 3, "k49", b"x").await;
}

/// Each write counts once, though streams to both followers break again and again while they are replicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_killed_in_the_middle_lose_no_write() {
    let mut networked = Networked::started(Cluster::new()).await;
    networked.cluster.write(1, &put("a", "1")).await;
    let mut id = 0;
    for turn in 0..6u64 {
        let node = 2 + turn % 2;
        let streams = networked.services[&node].counts().streams_accepted;
        let sent = {
            let (cluster, first) = (&networked.cluster, id);
            let writes =
                (0..40).map(|number| async move { cluster.write(1, &add("n", first + number)).await });
            id += 40;
            futures::future::join_all(writes)
        };
        let killed = async {
            let listening = networked.listening.remove(&node).unwrap();
            let address = listening.address.clone();
            listening.end().await;
            (node, Listening::start(&networked.services[&node], &address).await)
        };
        let (_, (node, listening)) = tokio::join!(sent, killed);
        networked.listening.insert(node, listening);
        until("another stream is accepted", async || {
            (networked.services[&node].counts().streams_accepted > streams).then_some(())
        })
        .await;
    }
    let counter = networked.cluster.read(1, "n").await.unwrap();
    assert_eq!(counter, id.to_string().as_bytes());
    networked.cluster.in_sync(1, &[1, 2, 3]).await;
    for node in [2, 3] {
        networked.cluster.comes_to(1, node, "n", id.to_string().as_bytes()).await;
    }
    assert!(networked.transports[&1].counts().streams_failed >= 6);
}

/// A sink that no packet should reach: it counts those that come.
struct Nowhere(AtomicU64);

impl PacketSink for Nowhere {
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        self.0.fetch_add(packets.len() as u64, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_took_over_an_address_gets_no_packet_of_another() {
    let mut networked = Networked::started(Cluster::new()).await;
    networked.cluster.write(1, &put("a", "1")).await;
    let address = networked.deafen(3).await;
    let nowhere = Arc::new(Nowhere(AtomicU64::new(0)));
    let other = PacketService::new(node_id(9), nowhere.clone());
    let listening = Listening::start(&other, &address).await;
    until("streams are refused", async || (other.counts().streams_refused >= 3).then_some(())).await;
    networked.cluster.in_sync(1, &[1, 2]).await;
    networked.cluster.write(1, &put("a", "2")).await;
    assert_eq!(other.counts().streams_accepted, 0);
    assert_eq!(nowhere.0.load(Ordering::Relaxed), 0);
    assert!(networked.transports[&1].counts().dropped_away > 0);
    listening.end().await;
    networked.listen(3, &address).await;
    networked.cluster.in_sync(1, &[1, 2, 3]).await;
    networked.cluster.comes_to(1, 3, "a", b"2").await;
}

/// The process of a follower ends and starts while its listener stays, as in a process with other services.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_may_be_opened_anew_under_its_listener() {
    let mut networked = Networked::started(Cluster::new()).await;
    networked.cluster.write(1, &put("a", "1")).await;
    networked.cluster.kill(2);
    networked.cluster.in_sync(1, &[1, 3]).await;
    networked.cluster.write(1, &put("a", "2")).await;
    networked.cluster.start_over(2, networked.transports[&2].clone());
    networked.cluster.open(1, 2).await;
    networked.cluster.world.announce(1);
    networked.cluster.in_sync(1, &[1, 2, 3]).await;
    networked.cluster.comes_to(1, 2, "a", b"2").await;
}

/// A leader that keeps no log for followers sends a snapshot of some MiB, and goes on to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_goes_on_beside_writes_and_writes_beside_it() {
    let mut cluster = Cluster::new();
    cluster.replica.replication.catch_up_log_bytes = 1;
    cluster.settings.flush_bytes = 256 << 10;
    let mut networked = Networked::started(cluster).await;
    let address = networked.deafen(3).await;
    networked.cluster.in_sync(1, &[1, 2]).await;
    for number in 0..32 {
        networked.cluster.write(1, &put(&format!("k{number}"), vec![number; 200 << 10])).await;
    }
    networked.listen(3, &address).await;
    let is_filled = AtomicBool::new(false);
    let cluster = &networked.cluster;
    let writes = async {
        let mut written = 0u64;
        while !is_filled.load(Ordering::Relaxed) || written == 0 {
            cluster.write(1, &put("now", written.to_string())).await;
            written += 1;
        }
        written
    };
    let filled = async {
        cluster.in_sync(1, &[1, 2, 3]).await;
        is_filled.store(true, Ordering::Relaxed);
    };
    let (written, ()) = tokio::join!(writes, filled);
    cluster.comes_to(1, 3, "now", (written - 1).to_string().as_bytes()).await;
    for number in [0, 31] {
        cluster.comes_to(1, 3, &format!("k{number}"), &vec![number; 200 << 10]).await;
    }
    let chunks = networked.sinks[&3].chunks.load(Ordering::Relaxed);
    assert!(chunks >= 16, "{chunks} chunks");
}
