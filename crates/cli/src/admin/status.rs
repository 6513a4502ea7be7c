//! `partage status`: the cluster at a glance.

use super::events::time;
use super::node::drain_line;
use super::shard::move_line;
use crate::client::ApiClient;
use crate::output::{Failure, Output};
use crate::role::StopSignals;
use clap::Args;
use partage_clock::unix_ms;
use partage_core::base::count::{counted, counted_with};
use partage_wire::json::{DrainState, DrainStatus, Problem, Summary};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

/// Keyspaces in quarantine, and things that were mended, that are listed before the way to all of them.
const FAULTS: usize = 5;

/// Drains that are listed before the way to all of them.
const DRAINS: usize = 10;

/// Nodes that leave, by name.
const LEAVING: usize = 10;

/// Reasons that are listed of a drain.
const REASONS: usize = 2;

/// Moves that are listed before the way to all of them.
const MOVES: usize = 10;

/// Plans that wait for a person and are listed before the way to all of them.
const PLANS: usize = 5;

/// The arguments of `partage status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Refresh the summary every second until Ctrl-C: redraw it on a terminal, else print it when it changes
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    client: ApiClient,
}

/// Rest between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(1);

impl StatusArgs {
    /// Prints it: done when nothing is wrong, failed when something is.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if self.watch {
            return StopSignals::listen()?.unless_asked(self.go_on(output)).await.unwrap_or(Ok(()));
        }
        let summary: Summary = self.client.get("/v1/status").await?;
        if output.is_json() {
            output.json(&summary)?;
        } else {
            lines(&summary).iter().for_each(|line| output.text(line));
        }
        match summary.problems.len() + summary.quarantine.len() {
            0 => Ok(()),
            1 => Err(Failure::failed("something is wrong, see above")),
            count => Err(Failure::failed(format!("{count} things are wrong, see above"))),
        }
    }

    /// Shows it again and again, also over a change of the leader.
    async fn go_on(&self, output: &mut Output) -> Result<(), Failure> {
        let draws = std::io::stdout().is_terminal() && !output.is_json();
        let mut last = String::new();
        while !output.is_broken() {
            let text = match self.client.get::<Summary>("/v1/status").await {
                Ok(summary) if output.is_json() => {
                    serde_json::to_string(&summary).map_err(|error| Failure::failed(error.to_string()))?
                }
                Ok(summary) => lines(&summary).join("\n"),
                Err(failure) if failure.is_not_reachable() && !output.is_json() => failure.to_string(),
                Err(failure) if failure.is_not_reachable() => last.clone(),
                Err(failure) => return Err(failure),
            };
            let now = time(unix_ms());
            match (draws, text == last) {
                (true, _) => {
                    output.clear();
                    output.text(&format!("{now}  (Ctrl-C ends)\n{text}"));
                }
                (false, true) => {}
                (false, false) if output.is_json() => output.json_text(&text),
                (false, false) => output.text(&format!("{now}\n{text}\n")),
            }
            output.flush();
            last = text;
            tokio::time::sleep(WATCH).await;
        }
        Ok(())
    }
}

/// The first `most` of them, and how many more there are.
fn first(mut all: Vec<String>, most: usize, what: &str) -> Vec<String> {
    let rest = all.len().saturating_sub(most);
    all.truncate(most);
    all.extend((rest > 0).then(|| format!("           … and {rest} more {what}: `partage status --json`")));
    all
}

/// How a drain stands, with the first of its reasons.
fn short_drain(drain: &DrainStatus) -> String {
    let mut short = drain.clone();
    let rest = drain.stuck.len().saturating_sub(REASONS);
    short.stuck.truncate(REASONS);
    short.stuck.extend(
        (rest > 0).then(|| format!("… and {}: `partage status --json`", counted(rest, "more reason"))),
    );
    drain_line(&short)
}

/// Shards whose state is not known yet, as this coordinator has just begun.
fn unheard(summary: &Summary) -> String {
    let nodes = summary.nodes.get("unknown").copied().unwrap_or_default();
    let nodes = counted(nodes, "node");
    let are = if summary.shards.unheard == 1 { "is" } else { "are" };
    match summary.shards.unheard {
        0 => String::new(),
        count => format!(
            ", {count} {are} not known yet: this coordinator has just begun, and has not heard {nodes}; ask again"
        ),
    }
}

/// The keyspaces in which nothing is moved for balance yet, and until when.
fn unmeasured(awaited: &BTreeMap<String, u64>) -> Option<String> {
    let longest_ms = awaited.values().max()?;
    let keyspaces = match awaited.first_key_value() {
        Some((only, _)) if awaited.len() == 1 => only.clone(),
        _ => counted(awaited.len(), "keyspace"),
    };
    let seconds = longest_ms.div_ceil(1000);
    Some(format!(
        "balance    {keyspaces}: nothing is moved before all nodes have reported loads, or in {seconds} s without them"
    ))
}

fn counts(of: &BTreeMap<String, usize>) -> String {
    let some: Vec<_> = of.iter().filter(|(_, n)| **n > 0).map(|(word, n)| format!("{n} {word}")).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(", ") }
}

/// What it says, line by line: first what is wrong and what to do, then the counts.
pub(super) fn lines(summary: &Summary) -> Vec<String> {
    let shards = &summary.shards;
    let quarantine = summary.quarantine.iter().map(|one| format!("QUARANTINE {}", one.why));
    let mut lines = first(quarantine.collect(), FAULTS, "keyspaces in quarantine");
    for Problem { what, way_out } in &summary.problems {
        lines.push(format!("WRONG      {what}"));
        lines.push(format!("           → {way_out}"));
    }
    lines.extend([
        format!("keyspaces  {}", summary.keyspaces),
        format!("nodes      {}", counts(&summary.nodes)),
        format!(
            "shards     {} of {} are served{}",
            shards.led,
            shards.led + shards.unheard + shards.unserved,
            unheard(summary)
        ),
        format!("replicas   {}", counts(&summary.replicas)),
        format!("under way  {}, {}", counted(summary.moves, "move"), counted(summary.loads, "load")),
    ]);
    lines.extend(summary.under_way.iter().take(MOVES).map(|m| format!("           {}", move_line(m))));
    if summary.under_way.len().min(MOVES) < summary.moves + summary.loads {
        lines.push("           … all of them: `partage shard list KEYSPACE --moves`".to_owned());
    }
    let in_change = shards.forming + shards.closing + shards.removing;
    if in_change > 0 {
        let (forming, closing, removing) = (shards.forming, shards.closing, shards.removing);
        lines.push(format!("           {forming} forming, {closing} closing, {removing} being removed"));
    }
    let mended = summary.stored_faults.iter().map(|fault| format!("mended     {fault}"));
    lines.extend(first(mended.collect(), FAULTS, "things that were mended"));
    if summary.short > 0 {
        let many = counted_with(summary.short, "shard", ("has", "have"));
        lines.push(format!("short      {many} fewer replicas than wanted"));
    }
    // A drain that cannot go on is printed above.
    let drains =
        summary.drains.iter().filter(|drain| !drain.progress.is(DrainState::Blocked)).map(short_drain);
    lines.extend(first(drains.collect(), DRAINS, "drains"));
    if !summary.leaving.is_empty() {
        let (named, rest) = summary.leaving.split_at(summary.leaving.len().min(LEAVING));
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        lines.push(format!("leaving    {}{more}", named.join(", ")));
    }
    let begun = summary.begun_empty.iter().map(|(name, begun)| {
        let (shards, last) = (counted(begun.shards, "shard"), time(begun.last_ms));
        format!("empty      {shards} of {name} began without data, as no node had a copy, last {last}: `partage events --keyspace {name}`")
    });
    lines.extend(first(begun.collect(), FAULTS, "keyspaces with shards that began without data"));
    lines.extend(unmeasured(&summary.loads_awaited));
    lines.extend(summary.suggested.iter().take(PLANS).map(|plan| {
        format!("waiting    plan {plan}: `partage plan show {plan}`, then `partage plan approve {plan}`")
    }));
    if summary.suggested.len() > PLANS {
        lines.push(format!("           … {} plans wait: `partage plan list`", summary.suggested.len()));
    }
    lines
}
