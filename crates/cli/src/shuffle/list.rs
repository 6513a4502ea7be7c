//! `partage shuffle list` and `show`: what the leaders of shuffles say of them.

use super::nodes::{ShuffleNodes, failure, shuffle};
use crate::output::{Failure, Output, say, table};
use clap::Args;
use partage_shuffle_client::{ShuffleId, Stage, Status};
use serde_json::{Value, json};

/// `partage shuffle list`
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl ListArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let told = self.nodes.get("/v1/shuffles").await?;
        let silent: Vec<String> = told["silent"].as_array().into_iter().flatten().map(text).collect();
        if !silent.is_empty() {
            let silent = silent.join(", ");
            say(&format!(
                "warning: shuffles that are led by {silent} are not listed: no answer came from there"
            ));
        }
        if output.is_json() {
            return output.json(&told);
        }
        let mut rows = table(["shuffle", "stage", "whole inputs", "records", "bytes", "waits for"]);
        for shuffle in told["shuffles"].as_array().into_iter().flatten() {
            let names = ["shuffle", "stage", "winners", "records", "bytes", "waits_for"];
            rows.add_row(names.map(|name| text(&shuffle[name])));
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}

/// `partage shuffle show`
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Handle of the shuffle, or its number
    #[arg(value_parser = shuffle)]
    shuffle: ShuffleId,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

/// What programs call a stage.
pub fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Open => "open",
        Stage::Sealed => "sealed",
        Stage::Failed => "failed",
    }
}

impl ShowArgs {
    /// What the leader says: over HTTP, or less of it over a Unix socket.
    async fn told(&self) -> Result<Value, Failure> {
        let id = self.shuffle;
        if !self.nodes.with_ports().is_empty() {
            return self.nodes.get(&format!("/v1/shuffles/{id}")).await;
        }
        let status = self.nodes.connect().await?.status(id).await.map_err(failure)?;
        let Status { stage, winners, records, bytes, version, ranges, waits_for } = status;
        Ok(json!({
            "shuffle": id.to_string(), "stage": stage_name(stage), "winners": winners, "records": records,
            "bytes": bytes, "bounds_version": version, "ranges": ranges,
            "waits_for": (!waits_for.is_empty()).then_some(waits_for),
        }))
    }

    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let told = self.told().await?;
        if output.is_json() {
            return output.json(&told);
        }
        lines(&told).iter().for_each(|(name, value)| output.text(&format!("{name:<15}{value}")));
        Ok(())
    }
}

/// What people are shown of a shuffle.
fn lines(told: &Value) -> Vec<(&'static str, String)> {
    let of = |name: &str| text(&told[name]);
    let mut lines = vec![
        ("shuffle", of("shuffle")),
        ("stage", of("stage")),
        ("whole input", format!("{} partitions", of("winners"))),
        ("records", of("records")),
        ("bytes", of("bytes")),
        ("bounds", format!("version {}, {} ranges", of("bounds_version"), of("ranges"))),
    ];
    if let (Some(attempts), Some(winners)) = (told["attempts"].as_u64(), told["winners"].as_u64()) {
        let losers = attempts.saturating_sub(winners);
        lines.push(("attempts", format!("{attempts} whole, of which {losers} are never read")));
    }
    if let Some(dividing) = told["dividing"].as_u64() {
        lines.push(("dividing", format!("{dividing} slots")));
    }
    if let Some(short) = told["short_slots"].as_u64() {
        lines.push(("lack replicas", format!("{short} slots")));
    }
    let waits_for = if told["waits_for"].is_null() { "nothing".to_owned() } else { of("waits_for") };
    lines.push(("waits for", waits_for));
    lines
}

/// A value for people.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_of_a_shuffle_is_shown_and_what_it_does_not_say_is_not() {
        let shown = |told: &Value| -> String {
            lines(told).iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
        };
        let whole = shown(&json!({
            "shuffle": "ab", "stage": "open", "winners": 2, "attempts": 3, "records": 7, "bytes": 70,
            "bounds_version": 1, "ranges": 30, "dividing": 0, "short_slots": 4, "waits_for": "a whole attempt of 3",
        }));
        for line in [
            "whole input: 2 partitions\n",
            "bounds: version 1, 30 ranges\n",
            "attempts: 3 whole, of which 1 are never read\n",
            "lack replicas: 4 slots\n",
            "waits for: a whole attempt of 3\n",
        ] {
            assert!(whole.contains(line), "{line} is not in {whole}");
        }
        let less = shown(&json!({ "stage": "sealed", "winners": 2 }));
        assert!(!less.contains("attempts") && less.contains("waits for: nothing"), "{less}");
    }
}
