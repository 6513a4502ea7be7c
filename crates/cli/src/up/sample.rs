//! The keyspaces of `up`: the package index, which its nodes create, an empty one whose plans wait for a person, and a table.

use super::sample_dataset::{DATASET, PACKAGES};
use crate::client::ApiClient;
use crate::output::Failure;
use crate::table::{INDEX_WAIT, TableNodes, create_index, has_index, load_absent};
use flate2::read::GzDecoder;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::{KeyspaceKind, Mode, Ownership, RowValues};
use partage_wire::json::{Command, Explanation, KeyText, Keyspace, Presplit, Resharding, Sharding, Summary};
use std::time::Duration;

/// The name of the table.
pub const TABLE: &str = "inventory";

/// The name of its index, and the field that the index is of.
pub const INDEX: &str = "section";

/// Where its first shards are cut: the sixths of the names of the packages.
const CUTS: [&str; 5] = [
    "golang-github-gopacket-gopacket-dev",
    "libgeronimo-validation-1.0-spec-java",
    "liborc-0.4-dev-bin",
    "mercurial-crecord",
    "python3-sbml5",
];

/// The coordinator does not merge what a person has split, since all shards are small.
const MIN_SHARDS: u32 = 64;

/// Creates the keyspace, unless it is there from last time. A person who runs one node may add more later.
pub async fn create_notes(client: &ApiClient) -> Result<(), Failure> {
    let sharding = Sharding::HashRange { hash: "xxh3-64".to_owned() };
    let notes = Keyspace {
        ownership: Some(Ownership::Exclusive.into()),
        replicas: Some(1),
        mode: Some(Mode::Suggested.into()),
        ..Keyspace::new("notes", sharding)
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
        kind: Some(KeyspaceKind::Table.into()),
        ownership: Some(Ownership::Replicated.into()),
        replicas: Some(replicas),
        resharding: Resharding { min_shards: MIN_SHARDS, ..Resharding::default() },
        durable: true,
        min_in_sync: replicas.min(2),
        values: Some(RowValues::Json.into()),
        ..Keyspace::new(TABLE, Sharding::KeyRange {})
    };
    let command = Command::CreateKeyspace {
        keyspace: inventory,
        presplit: Presplit::Points { keys: CUTS.map(|key| KeyText::from(key.as_bytes().to_vec())).to_vec() },
        ahead: true,
    };
    if !is_there(client, TABLE).await {
        client.command(command, false).await?;
    }
    Ok(())
}

/// Loads the package index into the table, and then creates its index: a table that has the index has all rows. One that was
/// broken off is loaded again, and rows that are there stay as they are. Returns what has become of it, for people.
pub async fn fill_inventory(nodes: Vec<String>) -> Result<String, Failure> {
    let nodes = TableNodes::at(nodes);
    let rows = if has_index(&nodes, TABLE, INDEX).await? {
        "its rows were loaded by an earlier `up`".to_owned()
    } else {
        let loaded = load_absent(TABLE, nodes.clone(), "package", GzDecoder::new(PACKAGES)).await?;
        format!("{loaded} rows are loaded")
    };
    let index = create_index(&nodes, TABLE, INDEX, INDEX, INDEX_WAIT).await?;
    Ok(format!("{TABLE}: {rows}; index {} is {} in {} shards", index.name, index.state, index.shards))
}

/// The shard of the table in which a key is, and the node that leads it; none while no node does.
pub async fn shard_of(client: &ApiClient, key: &str) -> Result<Option<(u64, String)>, Failure> {
    let told: Explanation = client.get(&format!("/v1/explain/{TABLE}?key={key}")).await?;
    let leader = told.shard.replicas.iter().find(|replica| replica.role.is(Role::Leader));
    Ok(leader.map(|leader| (told.shard.shard, leader.node.clone())))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn the_first_shards_of_the_table_have_as_many_rows_each() {
        let mut counts = [0; CUTS.len() + 1];
        for line in BufReader::new(GzDecoder::new(PACKAGES)).lines() {
            let row: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            counts[CUTS.partition_point(|cut| *cut <= row["package"].as_str().unwrap())] += 1;
        }
        assert!(counts.iter().all(|count| (10_000..11_000).contains(count)), "{counts:?}");
    }
}
