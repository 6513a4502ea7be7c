//! `partage shuffle start`, `seal` and `delete`.

use super::list::stage_name;
use super::nodes::{ShuffleNodes, failure, shuffle};
use crate::admin::Yes;
use crate::client::DryRun;
use crate::output::{Failure, Output};
use clap::Args;
use partage_core::limits::SHUFFLE_WEIGHT;
use partage_shuffle_client::{Combine, Durability, Sealed, ShuffleId, Stage, StartOptions, Status};
use serde_json::json;
use std::time::Duration;

/// Input partitions that are named to people.
const NAMED: usize = 20;

/// `partage shuffle start`
#[derive(Debug, Args)]
pub struct StartArgs {
    /// About how many partitions the shuffle will be read in; any other number can be read too
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    partitions: u64,
    /// About how many bytes of keys and values the shuffle will have [default: not known]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "BYTES")]
    bytes: u64,
    /// About how many nodes the pool has [default: as many as --node names]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "COUNT")]
    pool: u32,
    /// Seconds after which the shuffle ends when it is not sealed and no client has asked for it, 10 to 2592000 [default: 600]
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// The same of the sealed shuffle [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    sealed_ttl: Option<u64>,
    /// Whose the shuffle is, for lists and quotas: letters, digits, dots, hyphens and underscores [default: nobody's]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    owner: String,
    /// Its part of the memory of nodes, relative to that of other shuffles; beyond it its clients wait, while others write
    #[arg(long, default_value_t = 1, value_name = "1..1000",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(SHUFFLE_WEIGHT)))]
    weight: u16,
    /// Combine records of equal keys: count, or sum-, min- or max- of i64 or f64, as values of 8 bytes, the lowest byte first
    #[arg(long, value_name = "HOW")]
    combine: Option<Combine>,
    /// Where records are when they are acknowledged: on the disks of several nodes (disk), or in the memory of several machines
    /// (memory), and lost if these lose power at once
    #[arg(long, default_value_t = Durability::Disk, value_name = "disk|memory")]
    durability: Durability,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl StartArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let options = StartOptions {
            partitions: self.partitions,
            bytes: self.bytes,
            nodes: self.pool,
            weight: self.weight,
            combine: self.combine,
            durability: self.durability,
            ttl: self.ttl.map(Duration::from_secs),
            sealed_ttl: self.sealed_ttl.map(Duration::from_secs),
            owner: self.owner,
            ..StartOptions::default()
        };
        options.check().map_err(Failure::usage)?;
        let client = self.nodes.connect().await?;
        if self.dry.dry_run {
            if output.is_json() {
                return output.json(&json!({ "dry_run": true, "partitions": self.partitions }));
            }
            output.text("would start a shuffle");
            return Ok(());
        }
        let started = client.start(&options).await.map_err(failure)?;
        if output.is_json() {
            return output.json(&json!({
                "dry_run": false, "shuffle": started.id.to_string(), "handle": started.to_string(),
                "stashes": started.terms.stashes, "ranges": started.terms.ranges, "weight": started.terms.weight,
                "combine": started.terms.combine.map(Combine::as_str),
                "durability": started.terms.durability.as_str(),
            }));
        }
        output.text(&started.to_string());
        Ok(())
    }
}

/// `partage shuffle seal`
#[derive(Debug, Args)]
pub struct SealArgs {
    /// Handle of the shuffle, or its number
    #[arg(value_parser = shuffle)]
    shuffle: ShuffleId,
    /// Number of input partitions: those from 0 to before it must be whole
    #[arg(long, value_name = "COUNT")]
    inputs: u32,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl SealArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let client = self.nodes.connect().await?;
        let id = self.shuffle;
        if self.dry.dry_run {
            let Status { stage, winners, .. } = client.status(id).await.map_err(failure)?;
            if output.is_json() {
                return output.json(&json!({
                    "dry_run": true, "shuffle": id.to_string(), "stage": stage_name(stage),
                    "whole": winners, "inputs": self.inputs,
                }));
            }
            let text = match stage {
                Stage::Sealed => format!("shuffle {id} is sealed already"),
                _ => format!(
                    "would seal shuffle {id}: {winners} of {} input partitions are whole",
                    self.inputs
                ),
            };
            output.text(&text);
            return Ok(());
        }
        match client.seal(id, 0..self.inputs).await.map_err(failure)? {
            Sealed::Whole { records, bytes } if output.is_json() => output.json(&json!({
                "dry_run": false, "shuffle": id.to_string(), "sealed": true, "records": records, "bytes": bytes,
            })),
            Sealed::Whole { records, bytes } => {
                output.text(&format!("shuffle {id} is sealed: {records} records with {bytes} bytes"));
                Ok(())
            }
            Sealed::Lacks(partitions) => {
                if output.is_json() {
                    output.json(&json!({
                        "dry_run": false, "shuffle": id.to_string(), "sealed": false, "lacks": partitions,
                    }))?;
                }
                Err(lacks(&partitions))
            }
        }
    }
}

/// A shuffle that is not sealed.
pub fn lacks(partitions: &[u32]) -> Failure {
    let named: Vec<String> = partitions.iter().take(NAMED).map(u32::to_string).collect();
    let more = match partitions.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    Failure::not_done(format!(
        "the shuffle is not sealed: input partitions {named}{more} lack a whole attempt"
    ))
    .help("run an attempt of each of them, and seal again")
    .kind("partitions_lack")
}

/// `partage shuffle delete`
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Handle of the shuffle, or its number
    #[arg(value_parser = shuffle)]
    shuffle: ShuffleId,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl DeleteArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let client = self.nodes.connect().await?;
        let (id, is_dry) = (self.shuffle, self.dry.dry_run);
        let what = format!("delete shuffle {id}");
        if is_dry || !self.yes.is_given() {
            let Status { records, bytes, .. } = client.status(id).await.map_err(failure)?;
            let what = format!("{what}: {records} records with {bytes} bytes");
            if is_dry && !output.is_json() {
                output.text(&format!("would {what}"));
                return Ok(());
            }
            if !is_dry {
                self.yes.ask_for(&what, &[])?;
            }
        }
        if !is_dry {
            client.delete(id).await.map_err(failure)?;
        }
        if output.is_json() {
            return output.json(&json!({ "dry_run": is_dry, "shuffle": id.to_string(), "deleted": !is_dry }));
        }
        output.text(&format!("shuffle {id} is deleted"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_that_lack_are_named_up_to_a_number() {
        let few = lacks(&[3, 7]).to_string();
        assert!(few.contains("input partitions 3, 7 lack"), "{few}");
        let many = lacks(&(0..100).collect::<Vec<_>>()).to_string();
        assert!(many.contains("18, 19 and 80 more lack"), "{many}");
    }
}
