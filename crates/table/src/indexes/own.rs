//! What this node answers for a shard of which it has a replica.

use super::forms::{change_of, digest_form, name_of, shard_index};
use super::{Indexes, query};
use crate::check::CheckState;
use crate::limits::CHECK_RANGE_ROWS;
use crate::rows::{IndexRange, IndexRead, IndexedRow, Partition};
use crate::scans::{Place, for_node, soon};
use crate::service::{Refusal, Refused, Tables};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::sharding::Bounds;
use partage_core::limits::CHECK_RANGES;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::index::IndexChange;
use partage_service::table::replication::Consistency;
use partage_wire::table::{PlaceForm, PlacedRow, ShardIndexAnswer, ShardIndexRequest, ShardPage};

fn invalid(why: impl ToString) -> Refused {
    Refused::new(Refusal::Invalid, why.to_string())
}

impl Indexes {
    /// Answers for a shard.
    ///
    /// # Errors
    /// No replica of it is open here, or it does not answer.
    pub(crate) async fn own(
        &self,
        table: &KeyspaceName,
        shard: ShardId,
        request: &ShardIndexRequest,
    ) -> Result<ShardIndexAnswer, Refused> {
        let tables = self.scans.tables();
        let node = self.scans.node();
        let missing = || soon(format!("node {node} has no replica of shard {shard} of table {table}"));
        let (replica, bounds) = tables.replica_of(table, shard).ok_or_else(missing)?;
        match request {
            ShardIndexRequest::List => {
                let indexes = tables.indexes(&replica).await?;
                Ok(ShardIndexAnswer::Indexes(indexes.iter().map(shard_index).collect()))
            }
            ShardIndexRequest::Create(_) | ShardIndexRequest::Drop(_) => {
                let change = change_of(request).map_err(invalid)?;
                tables.change_index(&replica, &change).await.map(|()| ShardIndexAnswer::Changed)
            }
            ShardIndexRequest::Page(page) => own_page(tables, &replica, &bounds, page).await,
            ShardIndexRequest::Check { number } => {
                let change =
                    IndexChange::Check { number: *number, range_rows: range_rows(tables, &replica).await };
                tables.change_index(&replica, &change).await.map(|()| ShardIndexAnswer::Changed)
            }
            ShardIndexRequest::Result { number } => Ok(match tables.check_state(&replica, *number) {
                None | Some(CheckState::Working) => ShardIndexAnswer::Working,
                Some(CheckState::Done(position, digest)) => {
                    ShardIndexAnswer::Digest(digest_form(position, &digest))
                }
                Some(CheckState::Failed(why)) => ShardIndexAnswer::Failed(why),
            }),
        }
    }
}

/// How many rows a range of a check has, so that the ranges of the shard are not too many.
async fn range_rows(tables: &Tables, replica: &ReplicaKey) -> u64 {
    let rows = tables.node().size(replica).await.map_or(0, |size| size.disk_rows);
    // Half as many as there may be: how long ranges are is by chance.
    (2 * rows / CHECK_RANGES as u64).next_power_of_two().max(CHECK_RANGE_ROWS)
}

async fn own_page(
    tables: &Tables,
    replica: &ReplicaKey,
    bounds: &Bounds,
    page: &ShardPage,
) -> Result<ShardIndexAnswer, Refused> {
    let consistency = match (page.consistency.as_str(), page.bound_ms) {
        ("any", None) => Consistency::Any,
        ("bounded", Some(bound_ms)) => Consistency::Bounded(bound_ms),
        _ => Consistency::Linearizable,
    };
    let partition = match &page.partition_key {
        None => None,
        Some(key) => {
            let by = tables.node().partition_key(replica);
            let by =
                by.ok_or_else(|| soon(format!("a replica of table {} is not open yet", replica.keyspace)))?;
            Some(Partition { by, key: key.0.clone() })
        }
    };
    let text = query::QueryText { equals: page.equals.clone(), from: page.from.clone(), to: page.to.clone() };
    let range = IndexRange {
        name: name_of(&page.name).map_err(invalid)?,
        query: query::query_of(&text).map_err(invalid)?,
        from: STANDARD.decode(&page.place).map_err(|_| invalid("the place is no base64"))?,
        most: usize::try_from(page.limit).unwrap_or(usize::MAX),
        with_values: !page.keys_only,
        partition,
    };
    Ok(match tables.index_page(replica, &range, consistency).await? {
        IndexRead::Missing => ShardIndexAnswer::Missing,
        IndexRead::Unfinished(definition) => ShardIndexAnswer::Unfinished(shard_index(&definition).state),
        IndexRead::Page { index, rows, next } => {
            let placed =
                |IndexedRow { place, row }| PlacedRow { place: STANDARD.encode(place), row: for_node(row) };
            let (rows, next) =
                (rows.into_iter().map(placed).collect(), next.map(|next| STANDARD.encode(next)));
            let after = Place::behind(bounds).map(PlaceForm::from);
            ShardIndexAnswer::Page { index: index.0, rows, next, after }
        }
    })
}
