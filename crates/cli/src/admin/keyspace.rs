//! `partage keyspace`: creating, showing, changing and deleting keyspaces.

use super::constraint::{Ahead, ConstraintArgs};
use super::{carry_out, table};
use crate::client::{Door, DryRun, segment};
use crate::output::{Failure, Output};
use clap::{Args, Subcommand};
use partage_wire::json::{
    Command, Constraint, KeyText, Keyspace, KeyspaceChanges, Presplit, Sharding, Throttle,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `partage keyspace …`
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// Create a keyspace, empty or pre-split
    Create(Box<CreateArgs>),
    /// All keyspaces
    List {
        #[command(flatten)]
        door: Door,
    },
    /// One keyspace with every setting
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        door: Door,
    },
    /// Change replicas, policy, mode, spread, where its shards may be, throttle or the number of slots
    Update(Box<UpdateArgs>),
    /// Delete a keyspace; its workers drop what they hold of it
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        door: Door,
        #[command(flatten)]
        dry: DryRun,
    },
}

/// `partage keyspace create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Its name
    name: String,
    /// key-range, hash-range, fixed or named
    #[arg(long, default_value = "hash-range")]
    sharding: String,
    /// Hash function of hash-range and fixed
    #[arg(long, default_value = "xxh3-64")]
    hash: String,
    /// How many shards to begin with (fixed: until `keyspace update --shards`)
    #[arg(long, default_value_t = 16)]
    shards: u32,
    /// key-range: cut at these keys
    #[arg(long, value_delimiter = ',', conflicts_with = "sample")]
    split: Vec<String>,
    /// key-range: cut at the quantiles of the keys in this file, one a line
    #[arg(long)]
    sample: Option<PathBuf>,
    /// named: the partitions
    #[arg(long, value_delimiter = ',')]
    partitions: Vec<String>,
    /// exclusive (one owner, leased) or eventual
    #[arg(long, default_value = "exclusive")]
    ownership: String,
    /// Replicas of each shard
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Placement policy
    #[arg(long, default_value = "balanced")]
    policy: String,
    /// automatic, suggested or manual
    #[arg(long, default_value = "automatic")]
    mode: String,
    /// node, zone, zone-strict, rack or rack-strict
    #[arg(long, default_value = "zone")]
    spread: String,
    #[command(flatten)]
    constraint: ConstraintArgs,
    #[command(flatten)]
    ahead: Ahead,
    #[command(flatten)]
    door: Door,
    #[command(flatten)]
    dry: DryRun,
}

/// `partage keyspace update`
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// Its name
    name: String,
    /// Replicas of each shard
    #[arg(long)]
    replicas: Option<u32>,
    /// Placement policy
    #[arg(long)]
    policy: Option<String>,
    /// automatic, suggested or manual
    #[arg(long)]
    mode: Option<String>,
    /// node, zone, zone-strict, rack or rack-strict
    #[arg(long)]
    spread: Option<String>,
    /// fixed: how many slots there are from now on, a multiple or a divisor of the present number; while they
    /// serve
    #[arg(long)]
    shards: Option<u32>,
    #[command(flatten)]
    constraint: ConstraintArgs,
    /// On any node again: no pins, exclusions or labels
    #[arg(long, conflicts_with_all = ["pin", "exclude", "label"])]
    anywhere: bool,
    #[command(flatten)]
    throttle: ThrottleArgs,
    #[command(flatten)]
    ahead: Ahead,
    #[command(flatten)]
    door: Door,
    #[command(flatten)]
    dry: DryRun,
}

/// How fast shards move; what is not given stays as it is.
#[derive(Debug, Args)]
struct ThrottleArgs {
    /// Moves under way at once in the keyspace
    #[arg(long)]
    moves: Option<u32>,
    /// Moves under way at once into or out of one node
    #[arg(long)]
    moves_per_node: Option<u32>,
    /// First loads and repairs under way at once into one node
    #[arg(long)]
    loads_per_node: Option<u32>,
    /// Bytes a second that moves may begin to copy, repairs apart; 0 = no limit
    #[arg(long)]
    bytes_per_s: Option<u64>,
}

impl ThrottleArgs {
    /// The throttle to ask for, if anything of it is to change.
    async fn over(&self, door: &Door, name: &str) -> Result<Option<Throttle>, Failure> {
        let ThrottleArgs { moves, moves_per_node, loads_per_node, bytes_per_s } = *self;
        if (moves, moves_per_node, loads_per_node, bytes_per_s) == (None, None, None, None) {
            return Ok(None);
        }
        let now = settings(door, name).await?.throttle;
        Ok(Some(Throttle {
            moves: moves.unwrap_or(now.moves),
            moves_per_node: moves_per_node.unwrap_or(now.moves_per_node),
            loads_per_node: loads_per_node.unwrap_or(now.loads_per_node),
            bytes_per_s: bytes_per_s.unwrap_or(now.bytes_per_s),
        }))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Keyspaces {
    keyspaces: Vec<Keyspace>,
}

impl KeyspaceCommand {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            KeyspaceCommand::Create(args) => create(*args, output).await,
            KeyspaceCommand::List { door } => list(&door, output).await,
            KeyspaceCommand::Show { name, door } => {
                let keyspace = settings(&door, &name).await?;
                if output.is_json() {
                    return output.json(&keyspace);
                }
                let pretty = serde_json::to_string_pretty(&keyspace);
                output.text(&pretty.map_err(|error| Failure::failed(error.to_string()))?);
                Ok(())
            }
            KeyspaceCommand::Update(args) => update(*args, output).await,
            KeyspaceCommand::Delete { name, door, dry } => {
                carry_out(&door, output, Command::DeleteKeyspace { keyspace: name }, dry.dry_run).await
            }
        }
    }
}

async fn update(args: UpdateArgs, output: &mut Output) -> Result<(), Failure> {
    let constraint = match (args.anywhere, args.constraint.is_empty()) {
        (true, _) => Some(Constraint::default()),
        (false, true) => None,
        (false, false) => Some(args.constraint.over(settings(&args.door, &args.name).await?.constraint)),
    };
    let changes = KeyspaceChanges {
        replicas: args.replicas,
        policy: args.policy,
        mode: args.mode,
        spread: args.spread,
        constraint,
        throttle: args.throttle.over(&args.door, &args.name).await?,
        resharding: None,
        shards: args.shards,
    };
    let command = Command::UpdateKeyspace { keyspace: args.name, changes, ahead: args.ahead.ahead };
    carry_out(&args.door, output, command, args.dry.dry_run).await
}

async fn settings(door: &Door, name: &str) -> Result<Keyspace, Failure> {
    door.get(&format!("/v1/keyspaces/{}", segment(name))).await
}

async fn create(args: CreateArgs, output: &mut Output) -> Result<(), Failure> {
    let presplit = presplit(&args)?;
    let keyspace = Keyspace {
        name: args.name,
        kind: None,
        sharding: sharding(&args.sharding, args.hash, args.shards)?,
        partition_key: None,
        ownership: Some(args.ownership),
        replicas: Some(args.replicas),
        policy: Some(args.policy),
        mode: Some(args.mode),
        spread: Some(args.spread),
        constraint: args.constraint.over(Constraint::default()),
        throttle: Default::default(),
        resharding: Default::default(),
    };
    let command = Command::CreateKeyspace { keyspace, presplit, ahead: args.ahead.ahead };
    carry_out(&args.door, output, command, args.dry.dry_run).await
}

fn sharding(word: &str, hash: String, shards: u32) -> Result<Sharding, Failure> {
    match word {
        "key-range" => Ok(Sharding::KeyRange {}),
        "hash-range" => Ok(Sharding::HashRange { hash }),
        "fixed" => Ok(Sharding::Fixed { hash, shards }),
        "named" => Ok(Sharding::Named {}),
        _ => {
            let known = ["key-range", "hash-range", "fixed", "named"];
            let nearest = partage_core::suggest::nearest(word, known).unwrap_or_default();
            Err(Failure::usage(format!("there is no sharding {word:?}: did you mean {nearest:?}?"))
                .help(format!("choose one of {}", known.join(", "))))
        }
    }
}

fn presplit(args: &CreateArgs) -> Result<Presplit, Failure> {
    let text = |key: &String| KeyText::Text(key.clone());
    Ok(match args.sharding.as_str() {
        "key-range" if !args.split.is_empty() => {
            Presplit::Points { keys: args.split.iter().map(text).collect() }
        }
        "key-range" => match &args.sample {
            Some(file) => {
                let keys = std::fs::read_to_string(file).map_err(|error| {
                    Failure::failed(format!("cannot read the sample {}: {error}", file.display()))
                })?;
                let keys = keys.lines().map(|line| KeyText::Text(line.to_owned())).collect();
                Presplit::SampleKeys { keys, weights: vec![], shards: args.shards }
            }
            None => Presplit::None,
        },
        "hash-range" => Presplit::HashRanges { shards: args.shards },
        "named" => Presplit::Names { names: args.partitions.clone() },
        _ => Presplit::None,
    })
}

async fn list(door: &Door, output: &mut Output) -> Result<(), Failure> {
    let keyspaces: Keyspaces = door.get("/v1/keyspaces").await?;
    if output.is_json() {
        return output.json(&keyspaces);
    }
    let mut rows = table(["keyspace", "sharding", "ownership", "replicas", "policy", "mode", "spread"]);
    for keyspace in keyspaces.keyspaces {
        let sharding = match &keyspace.sharding {
            Sharding::KeyRange { .. } => "key ranges".to_owned(),
            Sharding::HashRange { hash } => format!("ranges of {hash}"),
            Sharding::Fixed { hash, shards } => format!("{hash} modulo {shards}"),
            Sharding::Named { .. } => "named".to_owned(),
        };
        let or_default = |word: Option<String>| word.unwrap_or_default();
        rows.add_row([
            keyspace.name,
            sharding,
            or_default(keyspace.ownership),
            keyspace.replicas.unwrap_or(1).to_string(),
            or_default(keyspace.policy),
            or_default(keyspace.mode),
            or_default(keyspace.spread),
        ]);
    }
    output.text(&rows.to_string());
    Ok(())
}
