//! The clients' map, by push, as routers get it: which node leads each slot.

use crate::cluster::number;
use crate::requests::BenchCluster;
use partage_core::keyspace::sharding::Bounds;
use partage_wire::map::{Joiner, MapNews, Watch};
use partage_wire::proto::maps_client::MapsClient;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Follows the maps until the coordinator is gone.
pub async fn run(bench_cluster: Arc<BenchCluster>, coordinator: SocketAddr) -> Result<(), String> {
    let client = MapsClient::connect(format!("http://{coordinator}")).await;
    let mut client = client.map_err(|error| error.to_string())?.max_decoding_message_size(64 << 20);
    let watch: partage_wire::proto::WatchRequest = (&Watch::default()).into();
    let mut events = client.watch(watch).await.map_err(|error| error.to_string())?.into_inner();
    let mut joiner = Joiner::default();
    while let Ok(Some(form)) = events.message().await {
        let Some(event) = joiner.take(form).map_err(|error| error.to_string())? else { continue };
        let MapNews::Changed { diff, .. } = event.news else { continue };
        for shard in &diff.changed {
            let (Bounds::Slot(slot), Some(leader)) = (&shard.bounds, shard.leader()) else { continue };
            if let Some(node) = number(leader.node.as_str()) {
                bench_cluster.known[slot.number() as usize].store(node, Ordering::Relaxed);
            }
        }
        bench_cluster.maps.send_modify(|maps| *maps += 1);
    }
    Ok(())
}
