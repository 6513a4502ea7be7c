//! What a coordinator says of a table: its settings, its shards, and where they are led.

use crate::client::ApiClient;
use crate::http::segment;
use crate::output::Failure;
use crate::table::index;
use crate::table::nodes::TableNodes;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::Health;
use partage_service::table::index::TableState;
use partage_wire::json::{Keyspace, Keyspaces, Nodes, ShardStage, Shards};
use partage_wire::table::PlaceForm;
use partage_wire::table::backup::manifest::IndexEntry;
use std::collections::BTreeMap;

/// A shard that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardView {
    pub shard: u64,
    /// The place of its first key.
    pub begin: PlaceForm,
    /// The place where the next shard begins; none: this is the last one, or a named partition.
    pub end: Option<PlaceForm>,
    /// The address of the node that leads it; none: at this moment no node does.
    pub leader: Option<String>,
    /// Its size, as its leader has reported it.
    pub size_bytes: u64,
}

/// All keyspaces.
///
/// # Errors
/// No coordinator answers.
pub async fn keyspaces(client: &ApiClient) -> Result<Vec<Keyspace>, Failure> {
    client.get("/v1/keyspaces").await.map(|all: Keyspaces| all.keyspaces)
}

/// The settings of a table.
///
/// # Errors
/// There is none of that name.
pub async fn settings(client: &ApiClient, name: &str) -> Result<Keyspace, Failure> {
    let found = keyspaces(client).await?.into_iter().find(|keyspace| keyspace.name == name);
    let list = "`partage table list` lists the tables";
    match found {
        Some(found) if !found.is_of(KeyspaceKind::Table) => {
            Err(Failure::refused(format!("keyspace {name} is no table")).help(list))
        }
        Some(found) => Ok(found),
        None => Err(Failure::refused(format!("there is no table {name}")).help(list)),
    }
}

/// The addresses of nodes that serve tables and are not known to be down, by name.
///
/// # Errors
/// No coordinator answers.
pub async fn nodes(client: &ApiClient) -> Result<BTreeMap<String, String>, Failure> {
    let Nodes { nodes } = client.get("/v1/nodes").await?;
    let is_there = nodes.into_iter().filter(|node| {
        node.serves(KeyspaceKind::Table) && !node.health.is_any(&[Health::Down, Health::Left])
    });
    Ok(is_there.map(|node| (node.id, node.address)).collect())
}

/// The indexes of a table, by name, but for those that are being dropped.
///
/// # Errors
/// No node answers, or an index is of different fields in different shards.
pub async fn indexes(client: &ApiClient, table: &str) -> Result<Vec<IndexEntry>, Failure> {
    let nodes = TableNodes::at(nodes(client).await?.into_values().collect());
    let mut entries = Vec::new();
    for found in index::indexes(&nodes, table).await? {
        match found.state.known() {
            Some(TableState::Dropping) => {}
            Some(TableState::Conflicting) => {
                let what =
                    format!("index {} of table {table} is of different fields in its shards", found.name);
                return Err(Failure::refused(what)
                    .help("drop it, and create it anew: a restored table has it as it is in the backup"));
            }
            _ => entries.push(IndexEntry { name: found.name, field: found.field }),
        }
    }
    entries.sort();
    Ok(entries)
}

/// The shards of a table that serve, by their numbers.
///
/// # Errors
/// No coordinator answers.
pub async fn shards(client: &ApiClient, table: &str) -> Result<Vec<ShardView>, Failure> {
    let nodes = nodes(client).await?;
    let (mut views, mut after) = (Vec::new(), None);
    loop {
        let page = after.map(|after| format!("?after={after}")).unwrap_or_default();
        let page: Shards = client.get(&format!("/v1/keyspaces/{}/shards{page}", segment(table))).await?;
        for shard in page.shards.into_iter().filter(|shard| shard.stage.is(ShardStage::Serving)) {
            let bounds = Bounds::try_from(shard.bounds).map_err(Failure::failed)?;
            let (begin, end) = PlaceForm::of(&bounds);
            let leads = shard.replicas.iter().find(|replica| replica.role.is(Role::Leader));
            let leader = leads.and_then(|replica| nodes.get(&replica.node).cloned());
            let size_bytes =
                leads.and_then(|replica| replica.load.as_ref()).map_or(0, |load| load.size_bytes);
            views.push(ShardView { shard: shard.shard, begin, end, leader, size_bytes });
        }
        after = page.next;
        if after.is_none() {
            return Ok(views);
        }
    }
}
