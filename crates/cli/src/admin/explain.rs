//! `partage explain KEYSPACE KEY`: which shard, why there, who serves it, since when, what would move it.

use super::hex::Hex;
use super::shard::{bounds_text, key_text, replica_text, since};
use crate::client::ApiClient;
use crate::http::segment;
use crate::output::{Failure, Output};
use clap::Args;
use partage_wire::json::Explanation;

/// The arguments of `partage explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the keyspace
    keyspace: String,
    /// Key to explain
    key: String,
    #[command(flatten)]
    hex: Hex,
    #[command(flatten)]
    client: ApiClient,
}

impl ExplainArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (keyspace, key) = (segment(&self.keyspace), segment(&self.key));
        let by = if self.hex.hex { "key_hex" } else { "key" };
        let told: Explanation = self.client.get(&format!("/v1/explain/{keyspace}?{by}={key}")).await?;
        if output.is_json() {
            return output.json(&told);
        }
        output.text(&text(&told));
        Ok(())
    }
}

pub(super) fn text(told: &Explanation) -> String {
    let shard = &told.shard;
    let key = match key_text(&told.key) {
        key if key.is_empty() => "\"\"".to_owned(),
        key => key,
    };
    let mut lines = vec![
        format!("{key} of {} is in shard s{}: {}", told.keyspace, shard.shard, bounds_text(&shard.bounds)),
        format!(
            "  epoch {} for {}, {}, placed by {}",
            shard.epoch,
            since(shard.since_ms, shard.since_at_least),
            shard.stage,
            told.policy
        ),
    ];
    let in_sync = shard.replicas.iter().filter(|replica| replica.in_sync == Some(true));
    let in_sync: Vec<&str> = in_sync.map(|replica| replica.node.as_str()).collect();
    if shard.replicas.iter().any(|replica| replica.in_sync.is_some()) {
        lines.push(format!(
            "  in sync: {}",
            if in_sync.is_empty() { "none".to_owned() } else { in_sync.join(", ") }
        ));
    }
    for (replica, reason) in shard.replicas.iter().zip(&told.reasons) {
        lines.push(format!("  {}", replica_text(replica)));
        if let Some(reason) = reason {
            lines.push(format!("      because {} (plan {})", reason.reason, reason.plan));
        }
    }
    for (title, sentences) in
        [("under way", &told.under_way), ("in the way", &told.blocked), ("would move it", &told.would_move)]
    {
        lines.extend((!sentences.is_empty()).then(|| format!("  {title}:")));
        lines.extend(sentences.iter().map(|sentence| format!("    - {sentence}")));
    }
    lines.join("\n")
}
