//! `partage plan`: what was, is and would be moved, and saying yes or no to it.

use super::{carry_out, table};
use crate::client::{Door, DryRun};
use crate::output::{Failure, Output};
use clap::Subcommand;
use partage_wire::json::{Change, Command, Plan, Planned};
use serde::{Deserialize, Serialize};

/// Changes of a plan that are shown before "and so on".
const SHOWN: usize = 40;

/// `partage plan …`
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// All plans that are kept, newest first
    List {
        #[command(flatten)]
        door: Door,
    },
    /// One plan, with each change, its reason and how far it got
    Show {
        /// Its number
        plan: u64,
        #[command(flatten)]
        door: Door,
    },
    /// Say yes to a suggested plan
    Approve {
        /// Its number
        plan: u64,
        #[command(flatten)]
        door: Door,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Say no
    Reject {
        /// Its number
        plan: u64,
        #[command(flatten)]
        door: Door,
        #[command(flatten)]
        dry: DryRun,
    },
    /// Leave some changes out; makes a new plan that waits for approval
    Edit {
        /// Its number
        plan: u64,
        /// Numbers of the changes to leave out, as `plan show` counts them
        #[arg(long, required = true, value_delimiter = ',')]
        drop: Vec<usize>,
        #[command(flatten)]
        door: Door,
        #[command(flatten)]
        dry: DryRun,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Plans {
    plans: Vec<Plan>,
}

impl PlanCommand {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            PlanCommand::List { door } => list(&door, output).await,
            PlanCommand::Show { plan, door } => {
                let plan: Plan = door.get(&format!("/v1/plans/{plan}")).await?;
                if output.is_json() {
                    return output.json(&plan);
                }
                output.text(&preview(&plan));
                Ok(())
            }
            PlanCommand::Approve { plan, door, dry } => {
                carry_out(&door, output, Command::ApprovePlan { plan }, dry.dry_run).await
            }
            PlanCommand::Reject { plan, door, dry } => {
                carry_out(&door, output, Command::RejectPlan { plan }, dry.dry_run).await
            }
            PlanCommand::Edit { plan, drop, door, dry } => {
                carry_out(&door, output, Command::EditPlan { plan, drop }, dry.dry_run).await
            }
        }
    }
}

fn origin(plan: &Plan) -> &str {
    plan.person.as_deref().unwrap_or(&plan.origin)
}

async fn list(door: &Door, output: &mut Output) -> Result<(), Failure> {
    let plans: Plans = door.get("/v1/plans").await?;
    if output.is_json() {
        return output.json(&plans);
    }
    let mut rows = table(["plan", "keyspace", "made by", "status", "changes", "done", "under way"]);
    for plan in &plans.plans {
        let at = |word: &str| plan.changes.iter().filter(|c| c.progress == word).count().to_string();
        let (id, changes) = (plan.id.to_string(), plan.changes.len().to_string());
        let row = [id, plan.keyspace.clone(), origin(plan).to_owned(), plan.status.clone(), changes];
        rows.add_row(row.into_iter().chain([at("done"), at("started")]));
    }
    output.text(&rows.to_string());
    Ok(())
}

/// A plan for people: one line a change, and why.
pub fn preview(plan: &Plan) -> String {
    let why = plan.refused_because.as_ref().map_or(String::new(), |why| format!(": {why}"));
    let mut text = format!("plan {} of {} by {}, {}{why}", plan.id, plan.keyspace, origin(plan), plan.status);
    for (number, planned) in plan.changes.iter().enumerate().take(SHOWN) {
        text.push_str(&format!("\n  {number:>3}  {:<44} {}", change_line(&planned.change), fate(planned)));
    }
    if plan.changes.len() > SHOWN {
        text.push_str(&format!("\n  … and {} more (--json shows all)", plan.changes.len() - SHOWN));
    }
    text
}

fn fate(planned: &Planned) -> String {
    match (planned.progress.as_str(), &planned.dropped_because) {
        ("waiting", _) => planned.reason.clone(),
        (_, Some(why)) => format!("dropped: {why}"),
        (progress, None) => format!("{progress}: {}", planned.reason),
    }
}

fn change_line(change: &Change) -> String {
    match change {
        Change::Add { shard, node } => format!("+ s{shard} on {node}"),
        Change::Move { shard, from_placement, to_node } => {
            format!("→ s{shard} (p{from_placement}) to {to_node}")
        }
        Change::Remove { shard, placement } => format!("- s{shard} (p{placement})"),
        Change::Lead { shard, placement } => format!("♔ s{shard} led by p{placement}"),
        Change::Split { shard, children } => format!("⑂ s{shard} into {}", children.len()),
        Change::Merge { shards, .. } => format!("⑃ {} into one", shards.len()),
    }
}
