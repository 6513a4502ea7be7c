//! `partage table check`: whether the replicas of a table have the same, and its indexes what the rows ask for.

use super::index::ask;
use super::nodes::{Effect, TableNodes};
use super::scan::text_of;
use crate::http::segment;
use crate::output::{Failure, Output, say};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use partage_wire::table::{CheckAnswer, CheckDifference, CheckUnchecked};

/// Differences and gaps that the command lists; it counts the others.
const SHOWN: usize = 1_000;

/// The arguments of `partage table check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Name of the table
    table: String,
    #[command(flatten)]
    nodes: TableNodes,
}

/// How many there are of each.
#[derive(Debug, Default)]
struct Found {
    differences: usize,
    unchecked: usize,
}

fn line(difference: &CheckDifference) -> String {
    let CheckDifference { shard, node, part, first_key, message, .. } = difference;
    let key = text_of(first_key);
    let range = if key.is_empty() {
        "the first range of keys".to_owned()
    } else {
        format!("the range from key {key} on")
    };
    format!("shard {shard}, node {node}, {part}, {range}: {message}")
}

fn gap(unchecked: &CheckUnchecked) -> String {
    let CheckUnchecked { shard, node, index, reason } = unchecked;
    let node = node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
    let index = index.as_ref().map(|index| format!(", index {index}")).unwrap_or_default();
    format!("shard {shard}{node}{index} was not compared: {reason}")
}

impl CheckArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (mut whole, mut found) = (CheckAnswer::default(), Found::default());
        loop {
            let token = whole.next.iter().map(|token| format!("?token={}", segment(token)));
            let path = format!("/v1/tables/{}/check{}", segment(&self.table), token.collect::<String>());
            let part: CheckAnswer =
                ask(&self.nodes, &self.table, (Effect::Reads, Method::POST), &path, Bytes::new()).await?;
            found.differences += part.differences.len();
            found.unchecked += part.unchecked.len();
            if !output.is_json() {
                part.differences.iter().for_each(|one| output.text(&line(one)));
                part.unchecked.iter().for_each(|one| say(&gap(one)));
            }
            whole.shards += part.shards;
            whole.replicas += part.replicas;
            whole.differences.extend(part.differences);
            whole.differences.truncate(SHOWN);
            whole.unchecked.extend(part.unchecked);
            whole.unchecked.truncate(SHOWN);
            whole.next = part.next;
            if whole.next.is_none() {
                break;
            }
        }
        if output.is_json() {
            output.json(&whole)?;
        } else {
            say(&format!("compared {} replicas of {} shards", whole.replicas, whole.shards));
        }
        let table = &self.table;
        match found {
            Found { differences: 0, unchecked: 0 } => Ok(()),
            Found { differences: 0, unchecked } => {
                let what = format!(
                    "nothing differs in what was compared of table {table}; {unchecked} parts could not be compared"
                );
                Err(Failure::not_reachable(what)
                    .kind("unchecked")
                    .help("check it again when shards are not being moved"))
            }
            Found { differences, .. } => {
                let what = format!("table {table} has {differences} differences");
                let help = "take a replica that differs from its node with `partage shard remove`: another one is filled from the leader";
                Err(Failure::failed(what).kind("differs").help(help))
            }
        }
    }
}
