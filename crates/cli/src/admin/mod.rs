//! Commands that ask and change a running cluster, over its admin API.

mod brake;
mod confirm;
mod constraint;
mod coordinator;
mod events;
mod explain;
mod hex;
mod keyspace;
mod keyspace_show;
mod node;
mod node_show;
mod plan;
mod release;
mod resharding;
mod shard;
mod shard_show;
mod sharding;
mod status;
mod wait;

pub use brake::BrakeCommand;
pub use confirm::Yes;
pub use constraint::{Ahead, ConstraintArgs};
pub use coordinator::CoordinatorCommand;
pub use events::{EventsArgs, span};
pub use explain::ExplainArgs;
pub use hex::Hex;
pub use keyspace::{KeyspaceCommand, sharding_text};
pub use node::NodeCommand;
pub use plan::PlanCommand;
pub use resharding::ReshardingArgs;
pub use shard::{ShardCommand, key_text, stage_text};
pub use sharding::{ShardingArgs, ShardingSpec};
pub use status::StatusArgs;
pub use wait::Wait;

use crate::client::ApiClient;
use crate::output::{Failure, Output, say};
use partage_core::base::count::counted;
use partage_wire::json::{
    Answer, Change, Command, DrainState, DrainStatus, NodeShare, Plan, PlanOrigin, Planned,
};
use wait::Begun;

/// Nodes whose number of replicas is shown before "and so on".
const SHARES: usize = 16;

/// Sends a command to the coordinator, and prints the answer.
async fn carry_out(
    client: &ApiClient,
    output: &mut Output,
    command: Command,
    dry_run: bool,
) -> Result<(), Failure> {
    let answer = client.command(command, dry_run).await?;
    print_answer(output, &answer)
}

/// As [`carry_out`]; then waits, with `--wait`, until the coordinator has done what the command began.
pub async fn carry_out_and_wait(
    client: &ApiClient,
    output: &mut Output,
    command: Command,
    dry_run: bool,
    wait: Wait,
) -> Result<(), Failure> {
    let answer = client.command(command.clone(), dry_run).await?;
    print_answer(output, &answer)?;
    output.flush();
    wait.until_done(client, Begun::of(&command, &answer)).await
}

fn print_answer(output: &mut Output, answer: &Answer) -> Result<(), Failure> {
    answer.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
    if output.is_json() {
        return output.json(answer);
    }
    output.text(&answer_text(answer));
    Ok(())
}

fn answer_text(answer: &Answer) -> String {
    let mut lines = vec![format!("{}{}", if answer.dry_run { "would: " } else { "" }, answer.summary)];
    // Plans that concern a node which the command drains come first; others follow as the planner looks at all keyspaces.
    let (own, others): (Vec<&Plan>, Vec<&Plan>) =
        answer.plan.iter().chain(&answer.follows).partition(|plan| concerns(plan, &answer.drains));
    let plans = || own.iter().chain(&others).copied();
    if answer.dry_run {
        lines.extend(plans().map(plan::foreseen));
        let is_blocked = answer.drains.iter().any(|drain| drain.progress.is(DrainState::Blocked));
        let none = if is_blocked {
            "no plan would follow while it is blocked, as below"
        } else {
            "no plan would follow"
        };
        lines.extend(plans().next().is_none().then(|| none.to_owned()));
        lines.extend(shares(&answer.shares));
    } else {
        lines.extend(plans().map(plan::preview));
    }
    // In a dry run the plans already show a drain that moves.
    let drains =
        answer.drains.iter().filter(|drain| !answer.dry_run || !drain.progress.is(DrainState::Moving));
    lines.extend(drains.map(node::drain_line));
    lines.join("\n")
}

/// Whether a plan drains one of these nodes, or changes replicas on it.
fn concerns(plan: &Plan, drains: &[DrainStatus]) -> bool {
    let is_drained = |node: &String| drains.iter().any(|drain| drain.node == *node);
    let touches = |planned: &Planned| match &planned.change {
        Change::Add { node, .. } => is_drained(node),
        Change::Move { from_node, to_node, .. } => from_node.iter().any(is_drained) || is_drained(to_node),
        Change::Remove { node, .. } | Change::Lead { node, .. } => node.iter().any(is_drained),
        Change::Split { children, .. } => children.iter().flat_map(|child| &child.nodes).any(is_drained),
        Change::Merge { child, .. } => child.nodes.iter().any(is_drained),
    };
    !drains.is_empty() && (plan.origin.is(PlanOrigin::Drain) || plan.changes.iter().any(touches))
}

/// How many replicas the nodes would hold.
fn shares(shares: &[NodeShare]) -> Option<String> {
    let of = |share: &NodeShare| format!("{} {} → {}", share.node, share.before, share.after);
    let told: Vec<_> = shares.iter().take(SHARES).map(of).collect();
    let rest = shares.len() - told.len();
    let more = if rest > 0 {
        format!(" and {} (--json shows all)", counted(rest, "more node"))
    } else {
        String::new()
    };
    (!told.is_empty()).then(|| format!("replicas   {}{more}", told.join(", ")))
}

/// A bar of blocks, `width` long at a share of 1.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{:<width$}", format!("{}{part}", "█".repeat(eighths / 8)))
}

#[cfg(test)]
mod tests;
