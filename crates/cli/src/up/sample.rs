//! The keyspaces of `up`: the package index, which its nodes create, an empty one whose plans wait for a person, and a table.

use super::sample_dataset::DATASET;
use crate::client::ApiClient;
use crate::output::Failure;
use partage_wire::json::{Command, Keyspace, Presplit, Resharding, Sharding, Summary};
use std::time::Duration;

/// The name of the table.
pub const TABLE: &str = "inventory";

/// Creates the keyspace that is not there from last time. Whoever runs one node may add more later.
pub async fn create_notes(client: &ApiClient) -> Result<(), Failure> {
    let notes = Keyspace {
        name: "notes".to_owned(),
        kind: None,
        sharding: Sharding::HashRange { hash: "xxh3-64".to_owned() },
        partition_key: None,
        ownership: Some("exclusive".to_owned()),
        replicas: Some(1),
        policy: None,
        mode: Some("suggested".to_owned()),
        spread: None,
        constraint: Default::default(),
        throttle: Default::default(),
        resharding: Default::default(),
        dataset_replication: None,
        durable: false,
        min_in_sync: 0,
        values: None,
        feed_ms: 0,
    };
    let command = Command::CreateKeyspace {
        keyspace: notes,
        presplit: Presplit::HashRanges { shards: 12 },
        ahead: true,
    };
    if !is_there(client, "notes").await {
        client.command(command, false).await?;
    }
    Ok(())
}

/// Creates the table that is not there from last time.
pub async fn create_inventory(client: &ApiClient, replicas: u32) -> Result<(), Failure> {
    let inventory = Keyspace {
        name: TABLE.to_owned(),
        kind: Some("table".to_owned()),
        sharding: Sharding::HashRange { hash: "xxh3-64".to_owned() },
        partition_key: None,
        ownership: Some("replicated".to_owned()),
        replicas: Some(replicas),
        policy: None,
        mode: None,
        spread: None,
        constraint: Default::default(),
        throttle: Default::default(),
        resharding: Resharding::default(),
        dataset_replication: None,
        durable: true,
        min_in_sync: replicas.min(2),
        values: None,
        feed_ms: 0,
    };
    let command = Command::CreateKeyspace {
        keyspace: inventory,
        presplit: Presplit::HashRanges { shards: 6 },
        ahead: true,
    };
    if !is_there(client, TABLE).await {
        client.command(command, false).await?;
    }
    Ok(())
}

async fn is_there(client: &ApiClient, keyspace: &str) -> bool {
    client.get::<Keyspace>(&format!("/v1/keyspaces/{keyspace}")).await.is_ok()
}

/// Until every shard has a leader and nothing loads any more.
pub async fn wait_until_served(client: &ApiClient, most: Duration) -> Result<(), Failure> {
    let served = async {
        loop {
            let summary: Summary = client.get("/v1/status").await?;
            let led = summary.shards.led > 0 && summary.shards.unserved + summary.shards.unheard == 0;
            if led && summary.loads == 0 && summary.moves == 0 && is_there(client, DATASET).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let late = || Failure::failed(format!("the shards are not all served after {} s", most.as_secs()));
    tokio::time::timeout(most, served).await.map_err(|_| late().help("see `partage status`"))?
}
