//! `partage node`: list, show, drain, undrain and remove nodes.

use super::confirm::Yes;
use super::wait::Wait;
use super::{bar, carry_out_and_wait, node_show};
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output, table};
use clap::{ArgGroup, Args, Subcommand};
use partage_core::base::count::counted;
use partage_core::node::Health;
use partage_wire::json::{Command, DrainState, DrainStatus, Node, Nodes};

/// The commands of `partage node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List all nodes with health, zone, address, replicas and load
    List {
        #[command(flatten)]
        client: ApiClient,
    },
    /// Show one node: its health, when the coordinator last heard it, and every shard with a replica on it
    Show {
        /// The node to show
        node: String,
        #[command(flatten)]
        client: ApiClient,
    },
    /// Move all shards off a node (or a zone) without losing a request; `partage status` shows when it is safe to stop
    Drain(DrainArgs),
    /// Allow a drained node (or zone) to take shards again
    #[command(group(ArgGroup::new("undrained").required(true).args(["node", "zone"])))]
    Undrain {
        /// The node that may take shards again
        node: Option<String>,
        /// Undrain all drained nodes of this zone instead of one node
        #[arg(long)]
        zone: Option<String>,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        wait: Wait,
    },
    /// Remove a node that is dead, has left or is empty; the coordinator no longer waits for data that only this node
    /// has stored
    Remove {
        /// The node to remove
        node: String,
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

/// The arguments of `partage node drain`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["node", "zone"])))]
pub struct DrainArgs {
    /// The node to drain
    node: Option<String>,
    /// Drain all nodes of this zone instead of one node
    #[arg(long)]
    zone: Option<String>,
    /// Reason for the drain, which `partage status` shows
    #[arg(long, default_value = "maintenance")]
    reason: String,
    /// Maximum number of nodes that are drained or down at once; the other nodes wait in a queue [default: all at once]
    #[arg(long, value_name = "COUNT")]
    max_down: Option<u32>,
    #[command(flatten)]
    client: ApiClient,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    wait: Wait,
}

impl NodeCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            NodeCommand::List { client } => list(&client, output).await,
            NodeCommand::Show { node, client } => node_show::show(&client, &node, output).await,
            NodeCommand::Drain(args) => {
                let DrainArgs { node, zone, reason, max_down, client, dry, wait } = args;
                let command = match (node, zone) {
                    (_, Some(zone)) => Command::DrainZone { zone, reason, max_down },
                    (node, None) => Command::DrainNode { node: node.unwrap_or_default(), reason, max_down },
                };
                carry_out_and_wait(&client, output, command, dry.dry_run, wait).await
            }
            NodeCommand::Undrain { node, zone, client, dry, wait } => {
                let command = match (node, zone) {
                    (_, Some(zone)) => Command::UndrainZone { zone },
                    (node, None) => Command::UndrainNode { node: node.unwrap_or_default() },
                };
                carry_out_and_wait(&client, output, command, dry.dry_run, wait).await
            }
            NodeCommand::Remove { node, client, dry, yes, wait } => {
                let command = Command::RemoveNode { node };
                yes.ask(&client, &command, dry.dry_run).await?;
                carry_out_and_wait(&client, output, command, dry.dry_run, wait).await
            }
        }
    }
}

async fn list(client: &ApiClient, output: &mut Output) -> Result<(), Failure> {
    let nodes: Nodes = client.get("/v1/nodes").await?;
    if output.is_json() {
        return output.json(&nodes);
    }
    let held = |node: &Node| node.replicas.values().sum::<usize>();
    let most = nodes.nodes.iter().map(held).max().unwrap_or(0).max(1) as f64;
    let mut rows =
        table(["node", "health", "zone", "address", "replicas", "leaders", "requests/s", "bytes", ""]);
    for node in &nodes.nodes {
        let state = match (&node.draining, node.leaving) {
            (Some(_), _) => format!("{},draining", node.health),
            (None, true) if !node.health.is(Health::Left) => format!("{},leaving", node.health),
            (None, _) => node.health.to_string(),
        };
        let state = if node.disk_full { format!("{state},disk-full") } else { state };
        let is_nearly_full = node.disk_nearly_full && !node.disk_full;
        let state = if is_nearly_full { format!("{state},disk-nearly-full") } else { state };
        let state = if node.disk_stalled { format!("{state},disk-stalled") } else { state };
        rows.add_row([
            node.id.clone(),
            state,
            node.zone.clone().unwrap_or_else(|| "-".to_owned()),
            node.address.clone(),
            held(node).to_string(),
            node.leaders.to_string(),
            format!("{:.0}", node.requests_per_s),
            format!("{:.0}", node.size_bytes),
            bar(held(node) as f64 / most, 12),
        ]);
    }
    output.text(&rows.trim_fmt());
    Ok(())
}

/// What a queued drain waits for.
fn queued(drain: &DrainStatus) -> String {
    let behind = drain.behind.join(", ");
    match drain.max_down {
        Some(max_down) => format!("queued until fewer than {max_down} of {behind} are down or drained"),
        None => format!("queued behind {behind}"),
    }
}

/// The status of a drain, on one line.
pub fn drain_line(drain: &DrainStatus) -> String {
    let stand = match drain.progress.known() {
        Some(DrainState::Queued) => queued(drain),
        Some(DrainState::SafeToStop) => "empty: safe to stop".to_owned(),
        Some(DrainState::Moving | DrainState::Blocked) | None => format!(
            "{}: {} left{}",
            drain.progress,
            counted(drain.left.unwrap_or(0), "replica"),
            drain.of.map_or(String::new(), |of| format!(" of {of}"))
        ),
    };
    let mut stuck: String = drain.stuck.iter().map(|why| format!("\n           {why}")).collect();
    if drain.progress.is(DrainState::Blocked) {
        stuck.push_str("\n           the coordinator goes on trying; `partage node undrain` ends it");
    }
    format!("drain      {} ({}): {stand}{stuck}", drain.node, drain.reason)
}
