//! `partage status`: the cluster at a glance.

use super::node::drain_line;
use super::shard::move_line;
use crate::client::Door;
use crate::output::{Failure, Output};
use clap::Args;
use partage_wire::json::Summary;
use std::collections::BTreeMap;

/// `partage status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    door: Door,
}

impl StatusArgs {
    /// Prints it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let summary: Summary = self.door.get("/v1/status").await?;
        if output.is_json() {
            return output.json(&summary);
        }
        lines(&summary).iter().for_each(|line| output.text(line));
        Ok(())
    }
}

fn counts(of: &BTreeMap<String, usize>) -> String {
    let some: Vec<_> = of.iter().filter(|(_, n)| **n > 0).map(|(word, n)| format!("{n} {word}")).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(", ") }
}

/// What it says, line by line.
pub(super) fn lines(summary: &Summary) -> Vec<String> {
    let shards = &summary.shards;
    let quarantine = summary.quarantine.iter().map(|one| format!("QUARANTINE {}", one.why));
    let mut lines: Vec<_> = quarantine.collect();
    lines.extend([
        format!("keyspaces  {}", summary.keyspaces),
        format!("nodes      {}", counts(&summary.nodes)),
        format!("shards     {} led, {} without a leader", shards.led, shards.leaderless),
        format!("replicas   {}", counts(&summary.replicas)),
        format!("under way  {} moves, {} loads", summary.moves, summary.loads),
    ]);
    lines.extend(summary.under_way.iter().map(|m| format!("           {}", move_line(m))));
    let listed = summary.under_way.len();
    if listed < summary.moves + summary.loads {
        lines.push("           … all of them: `partage shard list KEYSPACE --moves`".to_owned());
    }
    let in_change = shards.forming + shards.closing + shards.removing;
    if in_change > 0 {
        let (forming, closing, removing) = (shards.forming, shards.closing, shards.removing);
        lines.push(format!("           {forming} forming, {closing} closing, {removing} being removed"));
    }
    if let Some(why) = &summary.brake {
        lines.push(format!("BRAKE      {why}"));
        lines.push("           look at the nodes, then `partage brake release`".to_owned());
    }
    lines.extend(summary.stored_faults.iter().map(|fault| format!("mended     {fault}")));
    if summary.short > 0 {
        lines.push(format!("short      {} shards have fewer replicas than they want", summary.short));
    }
    // Where the planner says which replica has no node and why, that is said once.
    let untold = summary.unplaced.iter().filter(|u| !summary.complaints.contains_key(&u.keyspace));
    lines.extend(untold.map(|u| {
        format!("unplaced   s{} of {}: has {} of {}: {}", u.shard, u.keyspace, u.have, u.want, u.why)
    }));
    lines.extend(summary.set_aside.iter().map(|s| {
        format!(
            "set aside  s{} of {}: {}; `partage shard release {} {}`",
            s.shard, s.keyspace, s.why, s.keyspace, s.shard
        )
    }));
    for (keyspace, complaints) in &summary.complaints {
        lines.extend(complaints.iter().map(|complaint| format!("unplaced   {keyspace}: {complaint}")));
    }
    lines.extend(summary.drains.iter().map(drain_line));
    lines.extend(summary.suggested.iter().map(|plan| {
        format!("waiting    plan {plan}: `partage plan show {plan}`, then `partage plan approve {plan}`")
    }));
    lines
}
