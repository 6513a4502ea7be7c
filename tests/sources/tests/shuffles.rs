//! A pool of shuffles whose disks fill, and S3 as its object store: what is sealed goes there, a node dies, and all is read back.
//!
//! Here, as the server is; the pool is that of `chaos`, and the generator and the checker of records are those of the program's
//! own tests.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../../crates/cli/tests/shuffle_pool/records.rs"]
mod records;

use chaos::cluster::Cluster;
use chaos::http::Http;
use chaos::until;
use partage_shuffle_client::ShuffleId;
use partage_wire::shuffle::{ShuffleForm, ShuffleStored};
use records::{Records, client};
use sources::s3::Moto;

const NODES: [&str; 3] = ["s1", "s2", "s3"];

/// Some 13 MB of keys and values.
const RECORDS: Records = Records { of_input: 30_000, value: &[7; 100] };

/// A pool in which each node has slots: else the first one would have all.
async fn pool() -> Cluster {
    let mut cluster = Cluster::balanced().await;
    for node in NODES {
        cluster.add_shuffle_node(node).await;
    }
    until("each node has slots of the pool", || async {
        let shards = cluster.admin.shards("default").await;
        let has = |node: &str| {
            shards.iter().flat_map(|shard| &shard.replicas).any(|replica| replica.node.as_str() == node)
        };
        let without: Vec<&str> = NODES.into_iter().filter(|node| !has(node)).collect();
        if without.is_empty() { Ok(()) } else { Err(format!("{without:?} have none")) }
    })
    .await;
    cluster.admin.settled().await;
    cluster
}

/// Where a node says that the records of a shuffle are.
async fn stored(cluster: &Cluster, node: &str, shuffle: ShuffleId) -> Result<ShuffleStored, String> {
    let reply = Http::default().get(&cluster.node(node).address, &format!("/v1/shuffles/{shuffle}")).await?;
    let form = serde_json::from_slice::<ShuffleForm>(&reply.body);
    let form = form.map_err(|error| format!("{error}: {}", reply.text()))?;
    form.stored.ok_or_else(|| "it does not say where".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_x13_a_shuffle_goes_to_s3_when_disks_fill_is_read_from_there_without_a_node_and_leaves_nothing() {
    let (moto, mut cluster) = (Moto::start().await, pool().await);
    let addresses = NODES.map(|node| cluster.node(node).address.clone());
    let shuffle = RECORDS.sealed(&client(&addresses).await).await;
    let before = stored(&cluster, "s1", shuffle.id).await.unwrap();
    assert!(before.disk_bytes > 2 * RECORDS.all() * 108 && before.object_slots == 0, "{before:?}");
    // Any disk is fuller than this.
    let url = moto.url("some/pool");
    let fills = ["--object-store", &url, "--disk-nearly-full", "0.00001", "--disk-full", "1"];
    for node in NODES {
        cluster.node_mut(node).process.kill();
        cluster.set_shuffle_node(node, &fills, &Moto::settings());
    }
    cluster.restart_nodes(&NODES).await;
    until("the shuffle is in S3, and the disks have room", || async {
        let now = stored(&cluster, "s2", shuffle.id).await?;
        let is_away =
            now.silent.is_empty() && now.object_slots > 0 && now.disk_bytes < before.disk_bytes / 10;
        if is_away { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert!(moto.has_any("some/pool").await);

    cluster.node_mut("s1").process.kill();
    let client = client(&addresses).await;
    RECORDS.read(&client, &shuffle).await;
    let now = stored(&cluster, "s2", shuffle.id).await.unwrap();
    let answered: Vec<&str> = now.nodes.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(answered, ["s2", "s3"]);
    cluster.restart_node("s1").await;
    RECORDS.read(&client, &shuffle).await;
    client.delete(shuffle.id).await.unwrap();
    until("no object is left", || async {
        if moto.has_any("some/pool").await { Err("there are some".to_owned()) } else { Ok(()) }
    })
    .await;
}
