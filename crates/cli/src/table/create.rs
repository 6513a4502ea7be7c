//! Verbs about tables as keyspaces: they ask a coordinator.

use super::backup::cluster::nodes;
use super::index::indexes;
use super::nodes::TableNodes;
use super::restore::{is_progress, progress_table};
use crate::admin::{
    Ahead, ConstraintArgs, KeyspaceCommand, ReshardingArgs, ShardingArgs, ShardingSpec, Wait, Yes,
    carry_out_and_wait, sharding_text, span,
};
use crate::client::{ApiClient, DryRun};
use crate::http::segment;
use crate::output::{Failure, Output, say, table};
use clap::Args;
use partage_core::keyspace::{KeyspaceKind, Ownership, RowValues, Spread};
use partage_wire::json::{Command, Constraint, FixedWord, Keyspace, Keyspaces, Resharding};
use partage_wire::table::IndexAnswer;
use serde::Serialize;
use std::time::Duration;

const REPLICATION: &str = "Replication and placement";
const REQUEST: &str = "Request";

/// How long the nodes of a table may take to say which indexes it has.
const INDEXES: Duration = Duration::from_secs(5);

/// The arguments of `partage table create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the table
    name: String,
    /// Values that the rows may have: bytes, or json, by which a write of any other value is refused
    #[arg(long, default_value = "bytes", value_name = "FORM")]
    values: FixedWord<RowValues>,
    /// How long the table keeps changes of its rows for `partage table feed`, such as 10m or 1d [default: it keeps none]
    #[arg(long, value_name = "WHILE", value_parser = span)]
    feed: Option<Duration>,
    #[command(flatten)]
    sharding: ShardingArgs,
    /// Number of replicas of each shard
    #[arg(long, default_value_t = 3, help_heading = REPLICATION)]
    replicas: u32,
    /// Number of replicas that must have a write on their disks before it is acknowledged [default: 2, or 1 of one replica]
    #[arg(long, value_name = "COUNT", help_heading = REPLICATION)]
    min_in_sync: Option<u32>,
    /// Spread of the replicas of a shard: node, zone, zone-strict, rack or rack-strict
    #[arg(long, default_value = "zone", help_heading = REPLICATION)]
    spread: FixedWord<Spread>,
    #[command(flatten, next_help_heading = REPLICATION)]
    constraint: ConstraintArgs,
    #[command(flatten)]
    resharding: ReshardingArgs,
    #[command(flatten, next_help_heading = REPLICATION)]
    ahead: Ahead,
    #[command(flatten, next_help_heading = REQUEST)]
    client: ApiClient,
    #[command(flatten, next_help_heading = REQUEST)]
    dry: DryRun,
    #[command(flatten, next_help_heading = REQUEST)]
    wait: Wait,
}

impl CreateArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let ShardingSpec { sharding, partition_key, presplit } = self.sharding.spec()?;
        let keyspace = Keyspace {
            kind: Some(KeyspaceKind::Table.into()),
            partition_key,
            ownership: Some(Ownership::Replicated.into()),
            replicas: Some(self.replicas),
            spread: Some(self.spread),
            constraint: self.constraint.over(Constraint::default()),
            resharding: self.resharding.over(Resharding::default()),
            durable: true,
            min_in_sync: self.min_in_sync.unwrap_or(self.replicas.min(2)),
            values: Some(self.values),
            feed_ms: self.feed.map_or(0, |feed| feed.as_millis() as u64),
            ..Keyspace::new(&self.name, sharding)
        };
        let command = Command::CreateKeyspace { keyspace, presplit, ahead: self.ahead.ahead };
        carry_out_and_wait(&self.client, output, command, self.dry.dry_run, self.wait).await
    }
}

/// The arguments of `partage table list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    client: ApiClient,
}

fn is_table(keyspace: &Keyspace) -> bool {
    keyspace.is_of(KeyspaceKind::Table)
}

/// Tables whose restore has not ended.
fn unfinished(all: &[Keyspace]) -> impl Iterator<Item = &str> {
    let has_progress = |name: &str| all.iter().any(|keyspace| is_progress(keyspace, name));
    all.iter().map(|keyspace| keyspace.name.as_str()).filter(move |name| has_progress(name))
}

impl ListArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut all: Keyspaces = self.client.get("/v1/keyspaces").await?;
        all.keyspaces.retain(is_table);
        for table in unfinished(&all.keyspaces) {
            say(&format!(
                "warning: table {table} is not whole: a restore of it has not ended; run the same `partage table restore` again, or \
                 drop the table"
            ));
        }
        if output.is_json() {
            return output.json(&all);
        }
        let mut rows = table(["table", "sharding", "values", "replicas", "min in sync", "spread"]);
        for keyspace in all.keyspaces {
            rows.add_row([
                keyspace.name,
                sharding_text(&keyspace.sharding),
                keyspace.values.unwrap_or_else(|| RowValues::Bytes.into()).to_string(),
                keyspace.replicas.unwrap_or(1).to_string(),
                keyspace.min_in_sync.to_string(),
                keyspace.spread.unwrap_or_default().to_string(),
            ]);
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}

/// The arguments of `partage table show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    client: ApiClient,
}

impl ShowArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let ShowArgs { name, client } = self;
        let all: Keyspaces = client.get("/v1/keyspaces").await?;
        if unfinished(&all.keyspaces).any(|table| table == name) {
            say(&format!("warning: table {name} is not whole: a restore of it has not ended"));
        }
        let is_one = all.keyspaces.iter().any(|keyspace| keyspace.name == name && is_table(keyspace));
        let indexes = if is_one { indexes_of(&client, &name).await } else { Some(Vec::new()) };
        if indexes.is_none() {
            say(&format!(
                "warning: the indexes are not known: no node answers for all shards of table {name}"
            ));
        }
        if output.is_json() {
            let keyspace = client.get(&format!("/v1/keyspaces/{}", segment(&name))).await?;
            return output.json(&Shown { keyspace, indexes });
        }
        KeyspaceCommand::Show { name, client }.run(output).await?;
        let lines = match indexes {
            None => vec!["not known".to_owned()],
            Some(indexes) if indexes.is_empty() => vec!["none".to_owned()],
            Some(indexes) => indexes.into_iter().map(index_text).collect(),
        };
        lines.iter().for_each(|line| output.text(&format!("{:<15}{line}", "index")));
        Ok(())
    }
}

/// A table with its indexes, as `show --json` prints it.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    keyspace: Keyspace,
    /// Null where they are not known.
    indexes: Option<Vec<IndexAnswer>>,
}

fn index_text(index: IndexAnswer) -> String {
    let IndexAnswer { name, field, state, ready, shards } = index;
    format!("{name} of field {field}: {state}, {ready} of {shards} shards are ready")
}

/// The indexes of a table; none if its nodes do not say them in time.
async fn indexes_of(client: &ApiClient, name: &str) -> Option<Vec<IndexAnswer>> {
    let nodes = TableNodes::at(nodes(client).await.ok()?.into_values().collect());
    tokio::time::timeout(INDEXES, indexes(&nodes, name)).await.ok()?.ok()
}

/// The arguments of `partage table drop`.
#[derive(Debug, Args)]
pub struct DropArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    client: ApiClient,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    wait: Wait,
}

impl DropArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let DropArgs { name, client, dry, yes, wait } = self;
        let all: Keyspaces = client.get("/v1/keyspaces").await?;
        if all.keyspaces.iter().any(|keyspace| keyspace.name == name && !is_table(keyspace)) {
            return Err(Failure::refused(format!("keyspace {name} is no table"))
                .help(format!("`partage keyspace delete {name}` deletes keyspaces of other kinds")));
        }
        let is_there = |name: &str| all.keyspaces.iter().any(|keyspace| keyspace.name == name);
        let progress = all.keyspaces.iter().any(|keyspace| is_progress(keyspace, &name));
        if progress && !is_there(&name) {
            // A restore that was interrupted before it created the table.
            let name = progress_table(&name);
            return KeyspaceCommand::Delete { name, client, dry, yes, wait }.run(output).await;
        }
        let command = Command::DeleteKeyspace { keyspace: progress_table(&name) };
        let (is_dry, other) = (dry.dry_run, client.clone());
        KeyspaceCommand::Delete { name, client, dry, yes, wait }.run(output).await?;
        if progress && !is_dry {
            // What a restore that did not end knew of its progress.
            other.command(command, false).await?;
        }
        Ok(())
    }
}
