//! `partage keyspace`: creating, showing, changing and deleting keyspaces.

use super::confirm::Yes;
use super::constraint::{Ahead, ConstraintArgs};
use super::resharding::ReshardingArgs;
use super::sharding::{ShardingArgs, ShardingSpec};
use super::wait::{Begun, Wait};
use super::{carry_out, carry_out_and_wait, keyspace_show};
use crate::client::{ApiClient, DryRun};
use crate::http::segment;
use crate::output::{Failure, Output, table};
use clap::{Args, Subcommand};
use partage_core::keyspace::{DEFAULT_POLICY, KeyspaceKind, Mode, Ownership, Spread};
use partage_core::placement::POLICIES;
use partage_wire::json::{
    Command, Constraint, FixedWord, Keyspace, KeyspaceChanges, Keyspaces, Nodes, Resharding, Sharding,
    Throttle,
};

/// Headings of the flags in the help of `create` and `update`.
const PLACEMENT: &str = "Replication and placement";
const DATA: &str = "Data";
const BALANCING: &str = "Load balancing and limits";
const REQUEST: &str = "Request";

/// The commands of `partage keyspace`.
#[derive(Debug, Subcommand)]
pub enum KeyspaceCommand {
    /// Create a keyspace, empty or pre-split
    Create(Box<CreateArgs>),
    /// List all keyspaces
    List {
        #[command(flatten)]
        client: ApiClient,
    },
    /// Show one keyspace with every setting
    Show {
        /// Name of the keyspace
        name: String,
        #[command(flatten)]
        client: ApiClient,
    },
    /// Change the settings of a keyspace: replicas, policy, mode, spread, placement constraints, throttle,
    /// split and merge thresholds, or number of slots
    Update(Box<UpdateArgs>),
    /// Delete a keyspace; its workers drop their replicas of it
    Delete {
        /// Name of the keyspace
        name: String,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        yes: Yes,
        #[command(flatten)]
        wait: Wait,
    },
}

/// The arguments of `partage keyspace create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the keyspace
    name: String,
    #[command(flatten)]
    sharding: ShardingArgs,
    /// Number of replicas of each shard
    #[arg(long, default_value_t = 1, help_heading = PLACEMENT)]
    replicas: u32,
    #[arg(long, default_value = DEFAULT_POLICY, help = policies(), help_heading = PLACEMENT)]
    policy: String,
    /// Spread of the replicas of a shard: node, zone, zone-strict, rack or rack-strict
    #[arg(long, default_value = "zone", help_heading = PLACEMENT)]
    spread: FixedWord<Spread>,
    #[command(flatten, next_help_heading = PLACEMENT)]
    constraint: ConstraintArgs,
    #[command(flatten, next_help_heading = PLACEMENT)]
    ahead: Ahead,
    /// Kind of keyspace: app, dataset or table
    #[arg(long, default_value = "app", help_heading = DATA)]
    kind: FixedWord<KeyspaceKind>,
    /// Ownership of a shard: exclusive (one owner, with a lease) or eventual
    #[arg(long, default_value = "exclusive", help_heading = DATA)]
    ownership: FixedWord<Ownership>,
    /// Workers keep the data of the keyspace on their disks: a worker gets its stored replicas back after a restart,
    /// and the coordinator never gives up the last replica of a shard
    #[arg(long, help_heading = DATA)]
    durable: bool,
    /// Rebalancing mode: automatic, suggested (a person approves plans) or manual (a person makes them, repairs too)
    #[arg(long, default_value = "automatic", help_heading = BALANCING)]
    mode: FixedWord<Mode>,
    #[command(flatten, next_help_heading = BALANCING)]
    throttle: ThrottleArgs,
    #[command(flatten)]
    resharding: ReshardingArgs,
    #[command(flatten, next_help_heading = REQUEST)]
    client: ApiClient,
    #[command(flatten, next_help_heading = REQUEST)]
    dry: DryRun,
    #[command(flatten, next_help_heading = REQUEST)]
    wait: Wait,
}

/// The arguments of `partage keyspace update`.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// Name of the keyspace
    name: String,
    /// Number of replicas of each shard
    #[arg(long, help_heading = PLACEMENT)]
    replicas: Option<u32>,
    #[arg(long, help = policies(), help_heading = PLACEMENT)]
    policy: Option<String>,
    /// Rebalancing mode: automatic, suggested (a person approves plans) or manual (a person makes them, repairs too)
    #[arg(long, help_heading = BALANCING)]
    mode: Option<FixedWord<Mode>>,
    /// Spread of the replicas of a shard: node, zone, zone-strict, rack or rack-strict
    #[arg(long, help_heading = PLACEMENT)]
    spread: Option<FixedWord<Spread>>,
    /// fixed: new number of slots, a multiple or a divisor of the present number; the slots serve during the change
    #[arg(long, help_heading = "Sharding")]
    shards: Option<u32>,
    #[command(flatten, next_help_heading = PLACEMENT)]
    constraint: ConstraintArgs,
    /// Remove all pins, exclusions and labels, so that shards may be on any node
    #[arg(long, conflicts_with_all = ["pin", "exclude", "label"], help_heading = PLACEMENT)]
    anywhere: bool,
    #[command(flatten, next_help_heading = BALANCING)]
    throttle: ThrottleArgs,
    #[command(flatten)]
    resharding: ReshardingArgs,
    #[command(flatten, next_help_heading = PLACEMENT)]
    ahead: Ahead,
    #[command(flatten, next_help_heading = REQUEST)]
    client: ApiClient,
    #[command(flatten, next_help_heading = REQUEST)]
    dry: DryRun,
    #[command(flatten, next_help_heading = REQUEST)]
    wait: Wait,
}

/// How fast shards move, and how long a load may take; what is not given stays as it is.
#[derive(Debug, PartialEq, Default, Args)]
struct ThrottleArgs {
    /// Maximum number of moves at once in the keyspace [new keyspace: 256]
    #[arg(long)]
    moves: Option<u32>,
    /// Maximum number of moves at once into or out of one node [new keyspace: 16]
    #[arg(long)]
    moves_per_node: Option<u32>,
    /// Maximum number of first loads and repairs at once into one node [new keyspace: 512]
    #[arg(long)]
    loads_per_node: Option<u32>,
    /// Bytes per second that moves may begin to copy, not counting repairs; 0 = no limit [new keyspace: 0]
    #[arg(long)]
    bytes_per_s: Option<u64>,
    /// Milliseconds that a node may take to load one replica before the coordinator tries another node
    /// [new keyspace: 600000]
    #[arg(long)]
    load_ms: Option<u64>,
    /// durable: milliseconds that the coordinator waits for a dead node before it replaces the node's replicas
    /// [new keyspace: 300000]
    #[arg(long)]
    replace_after_ms: Option<u64>,
}

impl ThrottleArgs {
    fn is_empty(&self) -> bool {
        *self == ThrottleArgs::default()
    }

    /// The throttle to ask for, where this is the one now.
    fn over(&self, now: Throttle) -> Throttle {
        Throttle {
            moves: self.moves.unwrap_or(now.moves),
            moves_per_node: self.moves_per_node.unwrap_or(now.moves_per_node),
            loads_per_node: self.loads_per_node.unwrap_or(now.loads_per_node),
            bytes_per_s: self.bytes_per_s.unwrap_or(now.bytes_per_s),
            load_ms: self.load_ms.unwrap_or(now.load_ms),
            replace_after_ms: self.replace_after_ms.unwrap_or(now.replace_after_ms),
        }
    }
}

fn policies() -> String {
    format!("Placement policy, one of {}", POLICIES.join(", "))
}

impl KeyspaceCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            KeyspaceCommand::Create(args) => create(*args, output).await,
            KeyspaceCommand::List { client } => list(&client, output).await,
            KeyspaceCommand::Show { name, client } => {
                let keyspace = settings(&client, &name).await?;
                if output.is_json() {
                    return output.json(&keyspace);
                }
                output.text(&keyspace_show::text(&keyspace));
                Ok(())
            }
            KeyspaceCommand::Update(args) => update(*args, output).await,
            KeyspaceCommand::Delete { name, client, dry, yes, wait } => {
                let command = Command::DeleteKeyspace { keyspace: name.clone() };
                yes.ask(&client, &command, dry.dry_run).await?;
                let Nodes { mut nodes } = if wait.is_asked() {
                    client.get("/v1/nodes").await?
                } else {
                    Nodes { nodes: Vec::new() }
                };
                nodes.retain(|node| node.replicas.contains_key(&name));
                carry_out(&client, output, command, dry.dry_run).await?;
                output.flush();
                let holders = nodes.into_iter().map(|node| node.id).collect();
                wait.until_done(&client, Begun::of_deletion(name, holders)).await
            }
        }
    }
}

async fn update(args: UpdateArgs, output: &mut Output) -> Result<(), Failure> {
    let UpdateArgs { constraint, throttle, resharding, client, name, .. } = args;
    let keeps_all = constraint.is_empty() && throttle.is_empty() && resharding.is_empty();
    // Flags change parts of what is sent whole.
    let now = if keeps_all { None } else { Some(settings(&client, &name).await?) };
    let now = now.as_ref();
    let constrained = now.filter(|_| !constraint.is_empty());
    let constraint = match args.anywhere {
        true => Some(Constraint::default()),
        false => constrained.map(|now| constraint.over(now.constraint.clone())),
    };
    let changes = KeyspaceChanges {
        replicas: args.replicas,
        policy: args.policy,
        mode: args.mode,
        spread: args.spread,
        constraint,
        throttle: now.filter(|_| !throttle.is_empty()).map(|now| throttle.over(now.throttle.clone())),
        resharding: now.filter(|_| !resharding.is_empty()).map(|now| resharding.over(now.resharding.clone())),
        shards: args.shards,
        dataset_replication: None,
    };
    if changes == KeyspaceChanges::default() {
        return Err(Failure::usage(format!("nothing to change about keyspace {name} was given"))
            .help("say what to change, as with --replicas 2; `partage keyspace update --help` lists all that can be"));
    }
    let command = Command::UpdateKeyspace { keyspace: name, changes, ahead: args.ahead.ahead };
    carry_out_and_wait(&client, output, command, args.dry.dry_run, args.wait).await
}

async fn settings(client: &ApiClient, name: &str) -> Result<Keyspace, Failure> {
    client.get(&format!("/v1/keyspaces/{}", segment(name))).await
}

async fn create(args: CreateArgs, output: &mut Output) -> Result<(), Failure> {
    let ShardingSpec { sharding, partition_key, presplit } = args.sharding.spec()?;
    let keyspace = Keyspace {
        kind: Some(args.kind),
        partition_key,
        ownership: Some(args.ownership),
        replicas: Some(args.replicas),
        policy: Some(args.policy),
        mode: Some(args.mode),
        spread: Some(args.spread),
        constraint: args.constraint.over(Constraint::default()),
        throttle: args.throttle.over(Throttle::default()),
        resharding: args.resharding.over(Resharding::default()),
        durable: args.durable,
        ..Keyspace::new(&args.name, sharding)
    };
    let command = Command::CreateKeyspace { keyspace, presplit, ahead: args.ahead.ahead };
    carry_out_and_wait(&args.client, output, command, args.dry.dry_run, args.wait).await
}

async fn list(client: &ApiClient, output: &mut Output) -> Result<(), Failure> {
    let keyspaces: Keyspaces = client.get("/v1/keyspaces").await?;
    if output.is_json() {
        return output.json(&keyspaces);
    }
    let mut rows = table(["keyspace", "sharding", "ownership", "replicas", "policy", "mode", "spread"]);
    for keyspace in keyspaces.keyspaces {
        let sharding = sharding_text(&keyspace.sharding);
        rows.add_row([
            keyspace.name,
            sharding,
            keyspace.ownership.unwrap_or_default().to_string(),
            keyspace.replicas.unwrap_or(1).to_string(),
            keyspace.policy.unwrap_or_default(),
            keyspace.mode.unwrap_or_default().to_string(),
            keyspace.spread.unwrap_or_default().to_string(),
        ]);
    }
    output.text(&rows.trim_fmt());
    Ok(())
}

/// How keys map to shards, for people.
pub fn sharding_text(sharding: &Sharding) -> String {
    match sharding {
        Sharding::KeyRange { .. } => "key ranges".to_owned(),
        Sharding::HashRange { hash } => format!("ranges of {hash}"),
        Sharding::Fixed { hash, shards } => format!("{hash} modulo {shards}"),
        Sharding::Named { .. } => "named".to_owned(),
    }
}
