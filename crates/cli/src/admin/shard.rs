//! `partage shard`: the shards of a keyspace, drawn or listed, and moving single ones.

use super::carry_out_and_wait;
use super::confirm::Yes;
use super::constraint::{Ahead, ConstraintArgs};
use super::hex::Hex;
use super::release::ReleaseArgs;
use super::shard_show::ShowArgs;
use super::wait::Wait;
use crate::client::{ApiClient, DryRun};
use crate::clock::ago;
use crate::draw;
use crate::http::segment;
use crate::output::{Failure, Output, table};
use clap::{Args, Subcommand};
use partage_core::cluster::serving::Serving;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::node::Health;
use partage_wire::json::{
    Bounds, Command, Constraint, KeyText, Keyspace, Move, Moves, Node, Nodes, Point, Replica, ReplicaPhase,
    Shard, Shards, SplitAt,
};

/// Shards asked for at once.
const PAGE: usize = 1_000;

/// The commands of `partage shard`.
#[derive(Debug, Subcommand)]
pub enum ShardCommand {
    /// List the shards of a keyspace, as a drawing of shards × nodes or one line for each shard
    List(ListArgs),
    /// Show one shard with every replica, by its id or by a key in it
    Show(ShowArgs),
    /// Move one replica to another node; the new node loads the replica before the old node stops serving it
    Move {
        #[command(flatten)]
        of: Of,
        /// Node that gives up the replica
        #[arg(long)]
        from: String,
        /// Node that takes over the replica
        #[arg(long)]
        to: String,
    },
    /// Make another live replica the leader (also: shard transfer)
    #[command(alias = "transfer")]
    Lead {
        #[command(flatten)]
        of: Of,
        /// Node whose replica becomes the leader
        #[arg(long)]
        to: String,
    },
    /// Add one replica to a shard
    Add {
        #[command(flatten)]
        of: Of,
        /// Node that gets the replica
        #[arg(long)]
        node: String,
    },
    /// Remove one replica from a shard
    Remove {
        #[command(flatten)]
        of: Of,
        /// Node that loses the replica
        #[arg(long)]
        node: String,
    },
    /// Split a shard in two at the middle, or at given keys
    Split {
        #[command(flatten)]
        of: Of,
        /// Keys to split at, separated by commas; each key begins a new shard
        #[arg(long, value_name = "KEYS", value_delimiter = ',')]
        at: Vec<String>,
        /// Hash points to split at, as 16 hex digits each, separated by commas; each point begins a new shard
        #[arg(long, value_name = "POINTS", value_delimiter = ',', conflicts_with_all = ["at", "hex"])]
        at_point: Vec<String>,
        #[command(flatten)]
        hex: Hex,
    },
    /// Merge two neighbouring shards into one
    ///
    /// The split and merge thresholds of the keyspace stay in force: the planner may split the new shard again, or merge it
    /// with the next one.
    Merge {
        #[command(flatten)]
        of: Of,
        /// Id of the shard whose keys come next, as `s13` or `13`
        right: String,
    },
    /// Give a hot key a shard of its own
    Isolate {
        /// Name of the keyspace
        keyspace: String,
        /// Key to isolate
        key: String,
        #[command(flatten)]
        hex: Hex,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        wait: Wait,
    },
    /// Set the number of replicas of one shard; without a number, use the keyspace's number again
    Replicas {
        #[command(flatten)]
        of: Of,
        /// Number of replicas of this shard, 1 to 64 [default: the keyspace's number]
        replicas: Option<u32>,
        #[command(flatten)]
        ahead: Ahead,
    },
    /// Limit the nodes of one shard, on top of the limits of its keyspace; without flags, remove the limits of the
    /// shard
    Pin {
        #[command(flatten)]
        of: Of,
        #[command(flatten)]
        constraint: ConstraintArgs,
        #[command(flatten)]
        ahead: Ahead,
    },
    /// Release one or all shards that the coordinator set aside, so that it places them again
    Release(ReleaseArgs),
    /// Continue a durable shard from the copy of one node, when no node that has all of its data comes back
    ///
    /// The command prints which data may be missing; --dry-run prints it and changes nothing.
    ForceJoin {
        #[command(flatten)]
        of: Of,
        /// Node whose copy the shard continues from
        #[arg(long)]
        node: String,
        /// Present generation of the keyspace's map; the coordinator refuses another one and names the present one
        #[arg(long)]
        generation: u64,
    },
    /// Replace a durable shard by a new, empty shard, when no copy of it comes back; all data of the shard is given up
    ///
    /// The command prints which data is given up; --dry-run prints it and changes nothing.
    Recreate {
        #[command(flatten)]
        of: Of,
        /// Present generation of the keyspace's map; the coordinator refuses another one and names the present one
        #[arg(long)]
        generation: u64,
    },
    /// Add partitions to a keyspace with named partitions
    Register {
        #[command(flatten)]
        partitions: Partitions,
        /// Number of replicas of each new partition [default: the keyspace's number]
        #[arg(long)]
        replicas: Option<u32>,
        #[command(flatten)]
        ahead: Ahead,
    },
    /// Remove partitions, with all data that workers hold of them
    Unregister {
        #[command(flatten)]
        partitions: Partitions,
        #[command(flatten)]
        yes: Yes,
    },
}

/// The arguments that commands on one shard share.
#[derive(Debug, Args)]
pub struct Of {
    /// Name of the keyspace
    keyspace: String,
    /// The shard, as `s12` or `12`
    shard: String,
    #[command(flatten)]
    client: ApiClient,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    wait: Wait,
}

/// The arguments that commands on named partitions share.
#[derive(Debug, Args)]
pub struct Partitions {
    /// Name of the keyspace
    keyspace: String,
    /// Names of the partitions
    #[arg(required = true)]
    partitions: Vec<String>,
    #[command(flatten)]
    client: ApiClient,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    wait: Wait,
}

/// The arguments of `partage shard list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Name of the keyspace
    keyspace: String,
    /// Print one line for each shard instead of the drawing
    #[arg(long, short)]
    long: bool,
    /// Show only moves in progress: source node, target node, stage, time in that stage, and what the move waits for
    #[arg(long, conflicts_with = "long")]
    moves: bool,
    /// Show only shards that are not served or have too few replicas, one line each, with the reason
    #[arg(long, conflicts_with_all = ["long", "moves"])]
    unserved: bool,
    #[command(flatten)]
    client: ApiClient,
}

/// The id of a shard, from `s12` or `12`.
pub fn number(shard: &str) -> Result<u64, Failure> {
    let digits = shard.strip_prefix('s').unwrap_or(shard);
    digits.parse().map_err(|_| Failure::usage(format!("{shard:?} is no shard: give its id, such as s12")))
}

impl ShardCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (of, command) = match self {
            ShardCommand::List(args) => return list(args, output).await,
            ShardCommand::Show(args) => return args.run(output).await,
            ShardCommand::Release(args) => return args.run(output).await,
            ShardCommand::Isolate { keyspace, key, hex, client, dry, wait } => {
                let command = Command::IsolateKey { keyspace, key: hex.key(&key) };
                return carry_out_and_wait(&client, output, command, dry.dry_run, wait).await;
            }
            ShardCommand::Register { partitions: of, replicas, ahead: Ahead { ahead } } => {
                let Partitions { keyspace, partitions, client, dry, wait } = of;
                let command = Command::RegisterPartitions { keyspace, partitions, replicas, ahead };
                return carry_out_and_wait(&client, output, command, dry.dry_run, wait).await;
            }
            ShardCommand::Unregister { partitions: of, yes } => {
                let Partitions { keyspace, partitions, client, dry, wait } = of;
                let command = Command::UnregisterPartitions { keyspace, partitions };
                yes.ask(&client, &command, dry.dry_run).await?;
                return carry_out_and_wait(&client, output, command, dry.dry_run, wait).await;
            }
            ShardCommand::Move { of, from, to } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::MoveShard { keyspace, shard, from, to })
            }
            ShardCommand::Lead { of, to } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::TransferLeader { keyspace, shard, to })
            }
            ShardCommand::Add { of, node } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::AddReplica { keyspace, shard, node })
            }
            ShardCommand::Remove { of, node } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::RemoveReplica { keyspace, shard, node })
            }
            ShardCommand::Split { of, at, at_point, hex } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::SplitShard { keyspace, shard, at: split_at(&at, at_point, hex) })
            }
            ShardCommand::Merge { of, right } => {
                let ((keyspace, left), right) = (of.which()?, number(&right)?);
                (of, Command::MergeShards { keyspace, left, right })
            }
            ShardCommand::ForceJoin { of, node, generation } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::ForceJoinShard { keyspace, shard, node, generation })
            }
            ShardCommand::Recreate { of, generation } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::RecreateShard { keyspace, shard, generation })
            }
            ShardCommand::Replicas { of, replicas, ahead: Ahead { ahead } } => {
                let (keyspace, shard) = of.which()?;
                (of, Command::SetShardReplicas { keyspace, shard, replicas, ahead })
            }
            ShardCommand::Pin { of, constraint, ahead: Ahead { ahead } } => {
                let ((keyspace, shard), constraint) = (of.which()?, constraint.over(Constraint::default()));
                (of, Command::PinShard { keyspace, shard, constraint, ahead })
            }
        };
        carry_out_and_wait(&of.client, output, command, of.dry.dry_run, of.wait).await
    }
}

impl Of {
    fn which(&self) -> Result<(String, u64), Failure> {
        Ok((self.keyspace.clone(), number(&self.shard)?))
    }
}

fn split_at(keys: &[String], points: Vec<String>, hex: Hex) -> SplitAt {
    match (keys, points.as_slice()) {
        ([], []) => SplitAt::Middle,
        ([], _) => SplitAt::Points { points: points.into_iter().map(Point).collect() },
        (keys, _) => SplitAt::Keys { keys: keys.iter().map(|key| hex.key(key)).collect() },
    }
}

async fn list_moves(args: &ListArgs, output: &mut Output) -> Result<(), Failure> {
    let path = format!("/v1/moves?keyspace={}&limit={PAGE}", segment(&args.keyspace));
    let moves: Moves = args.client.get(&path).await?;
    if output.is_json() {
        return output.json(&moves);
    }
    let mut rows = table(["shard", "from", "to", "stage", "for", "waits for"]);
    for row in &moves.moves {
        rows.add_row([
            format!("s{}", row.shard),
            row.from.clone().unwrap_or_else(|| "nowhere".to_owned()),
            row.to.clone().unwrap_or_else(|| "nowhere".to_owned()),
            row.stage.to_string().replace('_', " "),
            age(row),
            row.waits_for.clone(),
        ]);
    }
    match (moves.moves.is_empty(), moves.more) {
        (true, _) => output.text("nothing is on its way"),
        (false, false) => output.text(&rows.trim_fmt()),
        (false, true) => {
            output.text(&format!("{}\nand more than these {}", rows.trim_fmt(), moves.moves.len()))
        }
    }
    Ok(())
}

/// For how long a move is in its stage.
fn age(row: &Move) -> String {
    since(row.since_ms, row.since_at_least)
}

/// For how long something has been as it is.
pub fn since(since_ms: u64, at_least: bool) -> String {
    let seconds = ago(since_ms).as_secs();
    let long = match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    if at_least { format!("{long} or more") } else { long }
}

/// One move, on one line.
pub fn move_line(row: &Move) -> String {
    let node = |node: &Option<String>| node.clone().unwrap_or_else(|| "nowhere".to_owned());
    format!(
        "s{} of {}: {} → {}, {} for {}, waits for {}",
        row.shard,
        row.keyspace,
        node(&row.from),
        node(&row.to),
        row.stage.to_string().replace('_', " "),
        age(row),
        row.waits_for
    )
}

async fn list(args: ListArgs, output: &mut Output) -> Result<(), Failure> {
    if args.moves {
        return list_moves(&args, output).await;
    }
    let mut shards = all(&args.client, &args.keyspace).await?;
    shards.sort_by_cached_key(|shard| beginning(&shard.bounds));
    if args.unserved {
        shards.retain(|shard| shard.serving.is_some() && !is_led(shard) || is_short(shard));
    }
    if output.is_json() {
        return output.json(&Shards { shards, next: None });
    }
    if args.unserved && shards.is_empty() {
        output.text("every shard is served, with the replicas that it wants");
        return Ok(());
    }
    if args.long || args.unserved {
        output.text(&lines(&shards));
        return Ok(());
    }
    let Nodes { mut nodes } = args.client.get("/v1/nodes").await?;
    let keyspace: Keyspace = args.client.get(&format!("/v1/keyspaces/{}", segment(&args.keyspace))).await?;
    // What serves other kinds has none of them.
    nodes.retain(|node| keyspace.kind.as_ref().is_none_or(|kind| node.kinds.contains(kind)));
    let holds = |node: &Node| shards.iter().flat_map(|shard| &shard.replicas).any(|r| r.node == node.id);
    nodes.retain(|node| !node.health.is(Health::Left) || holds(node));
    output.drawing(&draw::grid(&shards, &nodes));
    Ok(())
}

pub(super) async fn all(client: &ApiClient, keyspace: &str) -> Result<Vec<Shard>, Failure> {
    let (mut shards, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/keyspaces/{}/shards?limit={PAGE}{after}", segment(keyspace));
        let page: Shards = client.get(&path).await?;
        shards.extend(page.shards);
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(shards),
        }
    }
}

/// Whether its leader serves it.
pub(super) fn is_led(shard: &Shard) -> bool {
    shard.serving.as_ref().is_some_and(|serving| serving.is(Serving::Led))
}

/// Whether it has fewer live replicas than it wants.
pub(super) fn is_short(shard: &Shard) -> bool {
    let live = shard
        .replicas
        .iter()
        .filter(|replica| replica.state.is(ReplicaState::Live) && !replica.health.is(Health::Down))
        .count();
    shard.serving.is_some() && (live as u32) < shard.want
}

/// Whether a shard is served, for people.
pub fn stage_text(shard: &Shard) -> String {
    let Some(serving) = &shard.serving else { return shard.stage.to_string() };
    let why = match serving.known() {
        Some(Serving::Led) => return "served".to_owned(),
        Some(Serving::Unheard) => {
            return "not known yet: this coordinator has not heard its leader's node".to_owned();
        }
        Some(Serving::Waiting) => "waits for a node that has its data",
        Some(Serving::Silent) => "its leader's node does not answer",
        Some(Serving::Braked) => "held by the brake",
        Some(Serving::SetAside) => "set aside",
        Some(Serving::Loading) => "being loaded or handed over",
        Some(Serving::Unplaced) => "on no node",
        None => return format!("NOT served: {serving}"),
    };
    format!("NOT served: {why}")
}

fn lines(shards: &[Shard]) -> String {
    let mut rows = table(["shard", "holds", "stage", "epoch", "replicas"]);
    for shard in shards {
        let replicas: Vec<_> = shard.replicas.iter().map(replica_text).collect();
        rows.add_row([
            format!("s{}", shard.shard),
            bounds_text(&shard.bounds),
            stage_text(shard),
            shard.epoch.to_string(),
            replicas.join("\n"),
        ]);
    }
    rows.trim_fmt()
}

/// One replica, on one line.
pub fn replica_text(replica: &Replica) -> String {
    let zone = replica.zone.as_ref().map_or(String::new(), |zone| format!(" in {zone}"));
    let phase = match (&replica.failure, &replica.phase) {
        (Some(why), _) => format!(", failing: {why}"),
        (None, Some(phase)) if !phase.is(ReplicaPhase::Serving) => format!(", {phase}"),
        (None, _) => String::new(),
    };
    let node = if replica.health.is(Health::Up) { String::new() } else { format!(" ({})", replica.health) };
    let in_sync = match replica.in_sync {
        Some(false) => ", not in sync",
        Some(true) | None => "",
    };
    format!("{} on {}{node}{zone}: {}{phase}{in_sync}", replica.role, replica.node, replica.state)
}

/// What a shard holds, for people.
pub fn bounds_text(bounds: &Bounds) -> String {
    match bounds {
        Bounds::Keys { begin, end } => {
            let end = key_text(end);
            format!(
                "keys from {:?} to {}",
                key_text(begin),
                if end.is_empty() { "the end".to_owned() } else { format!("{end:?}") }
            )
        }
        Bounds::Hashes { first, last } => format!("hashes from {} to {}", first.0, last.0),
        Bounds::Slot { slot, of } => format!("slot {slot} of {of}"),
        Bounds::Name { name } => format!("partition {name}"),
    }
}

/// Where a shard begins, for the order of the keyspace: its first key, hash, slot or name. Shards that form are among
/// those that they will replace.
fn beginning(bounds: &Bounds) -> (u32, Vec<u8>) {
    match bounds {
        Bounds::Keys { begin, .. } => {
            let key = Key::try_from(begin.clone()).map(|key| key.as_bytes().to_vec());
            (0, key.unwrap_or_default())
        }
        Bounds::Hashes { first, .. } => (0, first.0.clone().into_bytes()),
        Bounds::Slot { slot, .. } => (*slot, vec![]),
        Bounds::Name { name } => (0, name.clone().into_bytes()),
    }
}

/// A key, for people.
pub fn key_text(key: &KeyText) -> String {
    match key {
        KeyText::Text(text) => text.clone(),
        KeyText::Hex { hex } => format!("0x{hex}"),
    }
}
