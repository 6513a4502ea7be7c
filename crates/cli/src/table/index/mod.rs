//! `partage table index …`: secondary indexes of tables. All verbs ask a node of tables, which asks the leaders of all shards.

mod query;

use super::nodes::{Effect, REST, TableNodes, refusal};
use crate::http::segment;
use crate::output::{Failure, Output, say, table as text_table};
use bytes::Bytes;
use clap::{Args, Subcommand};
use hyper::{HeaderMap, Method, StatusCode};
use partage_service::table::index::TableState;
use partage_wire::table::{IndexAnswer, IndexCreate, IndexList};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// `partage table index …`
#[derive(Debug, Subcommand)]
pub enum IndexCommand {
    /// Create an index of a field of the JSON values of a table; rows are found by it when it is ready
    Create(CreateArgs),
    /// List the indexes of a table, and how far they are
    List(ListArgs),
    /// List rows by the value of their field, in its order
    Query(query::QueryArgs),
    /// Drop an index; the rows stay
    Drop(DropArgs),
}

impl IndexCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            IndexCommand::Create(args) => args.run(output).await,
            IndexCommand::List(args) => args.run(output).await,
            IndexCommand::Query(args) => args.run(output).await,
            IndexCommand::Drop(args) => args.run(output).await,
        }
    }
}

/// How long `--wait` waits, unless told otherwise.
pub const WAIT: Duration = Duration::from_secs(600);

fn path(table: &str, index: Option<&str>) -> String {
    let table = segment(table);
    match index {
        Some(index) => format!("/v1/tables/{table}/indexes/{}", segment(index)),
        None => format!("/v1/tables/{table}/indexes"),
    }
}

/// What creates and drops indexes, unless it is a dry run.
fn effect(dry_run: bool) -> Effect<'static> {
    match dry_run {
        true => Effect::Reads,
        false => Effect::Changes("`partage table index list` shows whether it was done; if not, ask again"),
    }
}

/// An answer that is JSON.
pub(super) async fn ask<T: serde::de::DeserializeOwned>(
    nodes: &TableNodes,
    table: &str,
    (effect, method): (Effect<'_>, Method),
    path: &str,
    body: Bytes,
) -> Result<T, Failure> {
    let reply = nodes.ask(effect, method, path, HeaderMap::new(), body).await?;
    if reply.status != StatusCode::OK {
        return Err(refusal(table, &reply));
    }
    serde_json::from_slice(&reply.body)
        .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))
}

/// The indexes of a table.
pub(super) async fn indexes(nodes: &TableNodes, table: &str) -> Result<Vec<IndexAnswer>, Failure> {
    let asked = (Effect::Reads, Method::GET);
    let list: IndexList = ask(nodes, table, asked, &path(table, None), Bytes::new()).await?;
    Ok(list.indexes)
}

/// `partage table index create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the table
    table: String,
    /// Name of the index
    name: String,
    /// Field of the JSON values to index, such as section or author.names[0]
    #[arg(long, value_name = "PATH")]
    field: String,
    /// Wait until the index is ready
    #[arg(long)]
    wait: bool,
    /// With --wait: maximum number of seconds to wait
    #[arg(long, alias = "wait-s", default_value_t = WAIT.as_secs(), value_name = "SECONDS", requires = "wait")]
    timeout: u64,
    /// Change nothing; say whether the index could be created
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    nodes: TableNodes,
}

impl CreateArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut found = create(&self.nodes, &self.table, &self.name, &self.field, self.dry_run).await?;
        if self.wait {
            found = ready(&self.nodes, &self.table, &self.name, Duration::from_secs(self.timeout)).await?;
        }
        if output.is_json() {
            return output.json(&found);
        }
        let IndexAnswer { name, field, state, shards, .. } = &found;
        match self.dry_run {
            true => say(&format!("would create index {name} of field {field} in {shards} shards")),
            false => say(&format!("index {name} of field {field} is {state}")),
        }
        Ok(())
    }
}

/// Asks for an index; one that is there with the same field stays.
async fn create(
    nodes: &TableNodes,
    table: &str,
    name: &str,
    field: &str,
    dry_run: bool,
) -> Result<IndexAnswer, Failure> {
    let create = IndexCreate { name: name.to_owned(), field: field.to_owned() };
    let body = serde_json::to_vec(&create).map_err(Failure::failed)?.into();
    let path = path(table, None) + if dry_run { "?dry_run=true" } else { "" };
    ask(nodes, table, (effect(dry_run), Method::POST), &path, body).await
}

/// Waits until the index is ready, for `wait` at most.
async fn ready(nodes: &TableNodes, table: &str, name: &str, wait: Duration) -> Result<IndexAnswer, Failure> {
    let until = Instant::now() + wait;
    loop {
        let found = indexes(nodes, table).await?;
        let Some(index) = found.into_iter().find(|index| index.name == name) else {
            return Err(Failure::failed(format!("index {name} was dropped meanwhile")));
        };
        if index.state.is(TableState::Ready) {
            return Ok(index);
        }
        if Instant::now() >= until {
            let IndexAnswer { name, state, ready, shards, .. } = index;
            let what = format!(
                "index {name} is {state} after {} s: {ready} of {shards} shards are ready",
                wait.as_secs()
            );
            return Err(Failure::not_done(what).help("`partage table index list` shows how far it is"));
        }
        sleep(REST).await;
    }
}

/// Whether the table has an index of that name, in some shards at least.
pub async fn is_there(nodes: &TableNodes, table: &str, name: &str) -> Result<bool, Failure> {
    Ok(indexes(nodes, table).await?.iter().any(|index| index.name == name))
}

/// Creates an index, also where only some shards have it, and waits until it is ready, for `wait` at most.
pub async fn create_whole(
    nodes: &TableNodes,
    table: &str,
    name: &str,
    field: &str,
    wait: Duration,
) -> Result<IndexAnswer, Failure> {
    create(nodes, table, name, field, false).await?;
    ready(nodes, table, name, wait).await
}

/// `partage table index list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Name of the table
    table: String,
    #[command(flatten)]
    nodes: TableNodes,
}

impl ListArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let found = indexes(&self.nodes, &self.table).await?;
        if output.is_json() {
            return output.json(&IndexList { indexes: found });
        }
        let mut text = text_table(["index", "field", "state", "ready shards"]);
        for IndexAnswer { name, field, state, ready, shards } in found {
            text.add_row([name, field, state.to_string(), format!("{ready} of {shards}")]);
        }
        output.text(&text.to_string());
        Ok(())
    }
}

/// `partage table index drop`
#[derive(Debug, Args)]
pub struct DropArgs {
    /// Name of the table
    table: String,
    /// Name of the index
    name: String,
    /// Wait until every replica has dropped the index
    #[arg(long)]
    wait: bool,
    /// Change nothing; say whether the index exists
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    #[command(flatten)]
    nodes: TableNodes,
}

impl DropArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let query = if self.dry_run { "?dry_run=true" } else { "" };
        let path = path(&self.table, Some(&self.name)) + query;
        let asked = (effect(self.dry_run), Method::DELETE);
        let found: IndexAnswer = ask(&self.nodes, &self.table, asked, &path, Bytes::new()).await?;
        if self.wait {
            self.gone().await?;
        }
        if output.is_json() {
            return output.json(&found);
        }
        let IndexAnswer { name, field, .. } = &found;
        match (self.dry_run, self.wait) {
            (true, _) => say(&format!("would drop index {name} of field {field}")),
            (false, true) => say(&format!("index {name} is gone")),
            (false, false) => say(&format!("index {name} is being dropped")),
        }
        Ok(())
    }

    async fn gone(&self) -> Result<(), Failure> {
        let until = Instant::now() + WAIT;
        loop {
            let found = indexes(&self.nodes, &self.table).await?;
            let Some(index) = found.into_iter().find(|index| index.name == self.name) else { return Ok(()) };
            if Instant::now() >= until {
                let what = format!("index {} is still {} after {} s", self.name, index.state, WAIT.as_secs());
                return Err(Failure::not_done(what).help("`partage table index list` shows how far it is"));
            }
            sleep(REST).await;
        }
    }
}
