//! Indexes of whole tables, from any node: created, listed, asked and dropped at the leaders of all shards; and checks of tables.
//!
//! ```text
//!  client ──► any node: Indexes ──► maps: which shards are there, who leads them?
//!                  │  ▲
//!                  ▼  │  POST …/shards/<shard>/indexes, some at a time
//!              leaders of all shards (this node answers for its own)
//! ```
//!
//! Which indexes a table has, its shards know: each has that in its log, with its rows. So indexes need no coordinator, children
//! of splits and merges have those of their parents, and one place says whether an index is ready. A request to create or drop an
//! index goes to all shards of the map, and to those that come from these meanwhile. To send it again changes nothing; if it
//! broke off, the list says that the index is incomplete, and to send it again completes it. The shard of a partition that is
//! registered later has no parents, and no index: the next query creates those that all shards before it have.
//!
//! | question | file |
//! |---|---|
//! | asking shards, and again while they change hands | `shards.rs` |
//! | what one shard answers | `own.rs`, `forms.rs` |
//! | a page of rows | `page.rs`, `query.rs`, `token.rs` |
//! | a page of rows in any order, from one shard after the other | `walk.rs` |
//! | a check | `check.rs` |
//!
//! A query asks all shards, unless it is for the rows of one partition key, or takes them in any order. What was not done: an
//! index with a sharding of its own, which a table of thousands of shards wants for queries over all of it by value.

mod check;
mod forms;
mod own;
mod page;
mod query;
mod shards;
mod token;
mod walk;

pub use check::CheckToken;
pub use page::{IndexOrder, IndexPage, TableIndexScan};
pub(crate) use query::{QueryText, query_of};
pub use token::IndexToken;

use crate::limits;
use crate::scans::{self, ScanError, Scans, TokenError};
use crate::service::{Refusal, Refused};
use forms::definition;
use partage_core::base::id::ShardId;
use partage_core::base::name::{IndexName, KeyspaceName};
use partage_core::limits::INDEXES;
use partage_service::table::filter::Path;
use partage_service::table::index::{Definition, Overview, TableState, lacking, overview};
use partage_wire::table::{IndexCreate, ShardIndexAnswer, ShardIndexRequest};
use shards::Which;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Why something about an index was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The table cannot be asked.
    #[error("{0}")]
    Table(#[from] ScanError),
    /// There is no such index.
    #[error("table {table} has no index {name}: `partage table index list {table}` lists its indexes")]
    Missing {
        /// The table that was asked for the index.
        table: KeyspaceName,
        /// The name of the index.
        name: IndexName,
    },
    /// The index cannot be asked now.
    #[error("index {name} of table {table} is {state}: {way}", way = state.way_out())]
    NotReady {
        /// The table that has the index.
        table: KeyspaceName,
        /// The name of the index.
        name: IndexName,
        /// How far the index is, over all shards of the table.
        state: TableState,
    },
    /// There is another index of that name.
    #[error(
        "table {table} has an index {name} of field {field} already: choose another name, or drop it first"
    )]
    Taken {
        /// The table that has the other index.
        table: KeyspaceName,
        /// The name of the index.
        name: IndexName,
        /// The field of the index that there is.
        field: String,
    },
    /// There are as many indexes as there may be.
    #[error("table {0} has {INDEXES} indexes, and may have no more: drop one")]
    TooMany(KeyspaceName),
    /// The token is of another index, or of one that was dropped since.
    #[error("the token is of another index: give the `next` of a page of this one, or leave token out")]
    OtherIndex,
}

impl From<Refused> for IndexError {
    fn from(refused: Refused) -> IndexError {
        IndexError::Table(refused.into())
    }
}

impl From<TokenError> for IndexError {
    fn from(error: TokenError) -> IndexError {
        IndexError::Table(error.into())
    }
}

/// Indexes of tables from one node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Indexes {
    scans: Scans,
}

impl Indexes {
    /// Indexes at the node that `scans` runs on.
    pub fn new(scans: &Scans) -> Indexes {
        Indexes { scans: scans.clone() }
    }

    /// The indexes of a table, by name.
    ///
    /// # Errors
    /// There is no such table, or a shard does not answer.
    pub async fn list(&self, table: &KeyspaceName) -> Result<Vec<Overview>, IndexError> {
        Ok(overview(&self.definitions(table).await?))
    }

    /// Creates an index; returns when each shard has begun it. With `is_dry` it only says whether it could.
    ///
    /// # Errors
    /// There is another index of that name, or a shard does not answer: it may have begun in others.
    pub async fn create(
        &self,
        table: &KeyspaceName,
        name: &IndexName,
        path: &Path,
        is_dry: bool,
    ) -> Result<Overview, IndexError> {
        let new = Definition::new(name.clone(), path.clone());
        let shards = self.definitions(table).await?;
        may_create(table, &new, &shards)?;
        if is_dry {
            let (ready, shards) = (0, shards.len());
            let state = TableState::Building;
            return Ok(Overview { name: name.clone(), path: path.to_string(), state, ready, shards });
        }
        let create = IndexCreate { name: name.to_string(), field: path.to_string() };
        self.change(table, &ShardIndexRequest::Create(create)).await?;
        let shards = self.definitions(table).await?;
        may_create(table, &new, &shards)?;
        let found = overview(&shards).into_iter().find(|one| one.name == *name);
        found.ok_or_else(|| IndexError::Missing { table: table.clone(), name: name.clone() })
    }

    /// Drops an index; returns when each shard has begun to. With `is_dry` it only says whether there is one.
    ///
    /// # Errors
    /// There is no such index, or a shard does not answer: it may be dropped in others.
    pub async fn drop_index(
        &self,
        table: &KeyspaceName,
        name: &IndexName,
        is_dry: bool,
    ) -> Result<Overview, IndexError> {
        let found = self.list(table).await?.into_iter().find(|one| one.name == *name);
        let found = found.ok_or_else(|| IndexError::Missing { table: table.clone(), name: name.clone() })?;
        if !is_dry {
            self.change(table, &ShardIndexRequest::Drop(name.to_string())).await?;
        }
        Ok(Overview { state: TableState::Dropping, ready: 0, ..found })
    }

    /// Creates the indexes in the last shards that only these lack; says whether there were any.
    ///
    /// # Errors
    /// A shard does not answer.
    async fn complete(&self, table: &KeyspaceName) -> Result<bool, IndexError> {
        let lacking = lacking(&self.definitions(table).await?);
        for index in &lacking {
            tracing::info!(%table, index = %index.name, "created in partitions that were registered after it");
            let create = IndexCreate { name: index.name.to_string(), field: index.path.to_string() };
            self.change(table, &ShardIndexRequest::Create(create)).await?;
        }
        Ok(!lacking.is_empty())
    }

    /// Asks all shards for a change.
    async fn change(&self, table: &KeyspaceName, request: &ShardIndexRequest) -> Result<(), IndexError> {
        let until = Instant::now() + limits::PATIENCE;
        self.ask_shards((table, Which::All), until, request, |_, _| ()).await?;
        Ok(())
    }

    /// The indexes of each shard.
    async fn definitions(
        &self,
        table: &KeyspaceName,
    ) -> Result<BTreeMap<ShardId, Vec<Definition>>, IndexError> {
        let until = Instant::now() + limits::PATIENCE;
        let (maps, _) = self.scans.ways();
        scans::table(&maps.cache(), table, until).await?;
        let (mut found, mut is_understood) = (BTreeMap::new(), true);
        let shards = self
            .ask_shards((table, Which::All), until, &ShardIndexRequest::List, |shard, answer| {
                let ShardIndexAnswer::Indexes(indexes) = answer else {
                    is_understood = false;
                    return;
                };
                let indexes: Option<Vec<Definition>> = indexes.into_iter().map(definition).collect();
                is_understood &= indexes.is_some();
                found.insert(shard, indexes.unwrap_or_default());
            })
            .await?;
        if !is_understood {
            return Err(not_understood().into());
        }
        found.retain(|shard, _| shards.contains(shard));
        Ok(found)
    }
}

fn not_understood() -> Refused {
    Refused::new(
        Refusal::Stopped,
        "a node's answer about indexes is not understood: run one version on all nodes",
    )
}

/// Whether an index may be created, or completed.
fn may_create(
    table: &KeyspaceName,
    new: &Definition,
    shards: &BTreeMap<ShardId, Vec<Definition>>,
) -> Result<(), IndexError> {
    for indexes in shards.values() {
        if let Some(same) = indexes.iter().find(|index| index.name == new.name) {
            if same.id != new.id {
                let field = same.path.to_string();
                return Err(IndexError::Taken { table: table.clone(), name: new.name.clone(), field });
            }
            if !same.is_kept_up() {
                let state = TableState::Dropping;
                return Err(IndexError::NotReady { table: table.clone(), name: new.name.clone(), state });
            }
        } else if !new.may_join(indexes) {
            return Err(IndexError::TooMany(table.clone()));
        }
    }
    Ok(())
}
