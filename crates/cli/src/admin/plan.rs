//! `partage plan`: what was, is and would be moved, and saying yes or no to it.

use super::shard::{bounds_text, key_text};
use super::wait::Wait;
use super::{carry_out, carry_out_and_wait};
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output, table};
use clap::Subcommand;
use partage_wire::json::{Bounds, Change, ChangeProgress, Child, Command, Plan, PlanStatus, Planned, Plans};

/// Changes of a plan that are shown before "and so on".
const SHOWN: usize = 40;

/// The commands of `partage plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// List all plans that the coordinator keeps, newest first
    List {
        #[command(flatten)]
        client: ApiClient,
    },
    /// Show one plan with each change, its reason and its progress
    Show {
        /// Number of the plan, such as 5 or plan-5
        #[arg(value_parser = number)]
        plan: u64,
        #[command(flatten)]
        client: ApiClient,
    },
    /// Approve a suggested plan, so that the coordinator executes it
    Approve {
        /// Number of the plan, such as 5 or plan-5
        #[arg(value_parser = number)]
        plan: u64,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
        #[command(flatten)]
        wait: Wait,
    },
    /// Reject a suggested plan
    Reject {
        /// Number of the plan, such as 5 or plan-5
        #[arg(value_parser = number)]
        plan: u64,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Leave some changes out of a plan; the coordinator makes a new plan that waits for approval
    Edit {
        /// Number of the plan, such as 5 or plan-5
        #[arg(value_parser = number)]
        plan: u64,
        /// Numbers of the changes to leave out, as `partage plan show` prints them, separated by commas
        #[arg(long, required = true, value_delimiter = ',')]
        drop: Vec<usize>,
        #[command(flatten)]
        client: ApiClient,
        #[command(flatten)]
        dry: DryRun,
    },
}

impl PlanCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            PlanCommand::List { client } => list(&client, output).await,
            PlanCommand::Show { plan, client } => {
                let plan: Plan = client.get(&format!("/v1/plans/{plan}")).await?;
                if output.is_json() {
                    return output.json(&plan);
                }
                output.text(&preview(&plan));
                Ok(())
            }
            PlanCommand::Approve { plan, client, dry, wait } => {
                carry_out_and_wait(&client, output, Command::ApprovePlan { plan }, dry.dry_run, wait).await
            }
            PlanCommand::Reject { plan, client, dry } => {
                carry_out(&client, output, Command::RejectPlan { plan }, dry.dry_run).await
            }
            PlanCommand::Edit { plan, drop, client, dry } => {
                carry_out(&client, output, Command::EditPlan { plan, drop }, dry.dry_run).await
            }
        }
    }
}

/// The number of a plan, from `plan-5` or `5`.
fn number(plan: &str) -> Result<u64, String> {
    let digits = plan.strip_prefix("plan-").unwrap_or(plan);
    digits
        .parse()
        .map_err(|_| "give the number of a plan, as `partage plan list` shows it: 5 or plan-5".to_owned())
}

fn origin(plan: &Plan) -> String {
    plan.person.clone().unwrap_or_else(|| plan.origin.to_string())
}

async fn list(client: &ApiClient, output: &mut Output) -> Result<(), Failure> {
    let plans: Plans = client.get("/v1/plans").await?;
    if output.is_json() {
        return output.json(&plans);
    }
    let mut rows = table(["plan", "keyspace", "made by", "status", "changes", "done", "under way"]);
    for plan in &plans.plans {
        let at = |progress| plan.changes.iter().filter(|c| c.progress.is(progress)).count().to_string();
        let (id, changes) = (plan.id.to_string(), plan.changes.len().to_string());
        let row = [id, plan.keyspace.clone(), origin(plan), plan.status.to_string(), changes];
        rows.add_row(row.into_iter().chain([at(ChangeProgress::Done), at(ChangeProgress::Started)]));
    }
    output.text(&rows.trim_fmt());
    Ok(())
}

/// A plan for people: one line a change, and why.
pub fn preview(plan: &Plan) -> String {
    let status = match plan.refused_because.as_ref() {
        Some(why) => format!("{}: {why}", plan.status),
        None => plan.status.to_string(),
    };
    let (counts, of, by) = (counts(plan), &plan.keyspace, origin(plan));
    format!("plan {} of {of} by {by}, {status}: {counts}{}", plan.id, lines(plan))
}

/// A plan that does not exist, and so has no number.
pub fn foreseen(plan: &Plan) -> String {
    let status = match (plan.status.known(), &plan.refused_because) {
        (Some(PlanStatus::Approved), _) => "would begin at once".to_owned(),
        (Some(PlanStatus::Suggested), _) => "would wait for approval".to_owned(),
        (_, None) => format!("would be {}", plan.status),
        (_, Some(why)) => format!("would be {}: {why}", plan.status),
    };
    let (counts, of, by) = (counts(plan), &plan.keyspace, origin(plan));
    format!("a plan for {of} by {by}, which {status}: {counts}{}", lines(plan))
}

/// Such as "3 moves, 1 split".
fn counts(plan: &Plan) -> String {
    type Is = fn(&Change) -> bool;
    let kinds: [(&str, Is); 6] = [
        ("add", |c| matches!(c, Change::Add { .. })),
        ("move", |c| matches!(c, Change::Move { .. })),
        ("remove", |c| matches!(c, Change::Remove { .. })),
        ("change of leader", |c| matches!(c, Change::Lead { .. })),
        ("split", |c| matches!(c, Change::Split { .. })),
        ("merge", |c| matches!(c, Change::Merge { .. })),
    ];
    let told = kinds.into_iter().filter_map(|(what, is)| {
        let count = plan.changes.iter().filter(|planned| is(&planned.change)).count();
        let plural =
            if what == "change of leader" { "changes of leader".to_owned() } else { format!("{what}s") };
        match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {plural}")),
        }
    });
    let told: Vec<_> = told.collect();
    if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
}

fn lines(plan: &Plan) -> String {
    let mut text = String::new();
    for (number, planned) in plan.changes.iter().enumerate().take(SHOWN) {
        let line = format!("\n  {number:>3}  {:<32}  {}", change_line(&planned.change), fate(planned));
        text.push_str(line.trim_end());
    }
    if plan.changes.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more (--json shows all)", plan.changes.len() - SHOWN));
    }
    text
}

fn fate(planned: &Planned) -> String {
    let reason = because(planned);
    match &planned.dropped_because {
        _ if planned.progress.is(ChangeProgress::Waiting) => reason.to_owned(),
        Some(why) => format!("dropped: {why}"),
        None => format!("{}: {reason}", planned.progress),
    }
}

/// The reason without what the line says already.
fn because(planned: &Planned) -> &str {
    let said = match &planned.change {
        Change::Add { shard, node } => format!("add a replica of s{shard} on {node}: "),
        Change::Move { shard, from_node: Some(from), to_node, .. } => {
            format!("move a replica of s{shard} from {from} to {to_node}: ")
        }
        Change::Remove { shard, node: Some(node), .. } => {
            format!("remove the replica of s{shard} from {node}: ")
        }
        _ => return &planned.reason,
    };
    planned.reason.strip_prefix(&said).unwrap_or(&planned.reason)
}

fn change_line(change: &Change) -> String {
    // Once it has gone, the map knows a replica by its number only.
    let at = |node: &Option<String>, placement: &u64| node.clone().unwrap_or_else(|| format!("p{placement}"));
    match change {
        Change::Add { shard, node } => format!("+ s{shard} on {node}"),
        Change::Move { shard, from_placement, from_node, to_node } => {
            format!("→ s{shard} from {} to {to_node}", at(from_node, from_placement))
        }
        Change::Remove { shard, placement, node } => format!("- s{shard} from {}", at(node, placement)),
        Change::Lead { shard, placement, node } => format!("♔ s{shard} led by {}", at(node, placement)),
        Change::Split { shard, children } => format!("⑂ s{shard} {}", cut(children)),
        Change::Merge { shards, child } => {
            let parents: Vec<_> = shards.iter().map(|shard| format!("s{shard}")).collect();
            format!("⑃ {} into {}", parents.join(" + "), bounds_text(&child.bounds))
        }
    }
}

/// The keys or hashes at which a shard is cut, in words.
fn cut(children: &[Child]) -> String {
    let begin = |child: &Child| match &child.bounds {
        Bounds::Keys { begin, .. } => format!("{:?}", key_text(begin)),
        Bounds::Hashes { first, .. } => first.0.clone(),
        other => bounds_text(other),
    };
    let is_slot =
        children.iter().any(|child| matches!(child.bounds, Bounds::Slot { .. } | Bounds::Name { .. }));
    let (word, first) = if is_slot { ("into", 0) } else { ("at", 1) };
    let points: Vec<_> = children.iter().skip(first).map(begin).collect();
    format!("{word} {}", points.join(", "))
}
