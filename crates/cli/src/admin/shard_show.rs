//! `partage shard show`: one shard, by its id or by a key in it, with every replica (A3).

use super::hex::Hex;
use super::shard::{bounds_text, key_text, move_line, number, replica_text, since, stage_text};
use crate::client::ApiClient;
use crate::http::segment;
use crate::output::{Failure, Output};
use clap::Args;
use partage_core::base::count::counted;
use partage_wire::json::{Explanation, Move, Moves, Node, NodeDetail, Shard, Shards};
use serde::Serialize;

/// The arguments of `partage shard show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the keyspace
    keyspace: String,
    /// The shard, as `s12` or `12`; or a key in it
    which: String,
    /// Read the argument as a key, even if it looks like a shard
    #[arg(long)]
    key: bool,
    #[command(flatten)]
    hex: Hex,
    #[command(flatten)]
    client: ApiClient,
}

/// A shard with what is on its way.
#[derive(Debug, Serialize)]
struct Shown {
    keyspace: String,
    #[serde(flatten)]
    shard: Shard,
    moves: Vec<Move>,
}

impl ShowArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let is_key = self.key || self.hex.hex || number(&self.which).is_err();
        let (shard, key) = if is_key { self.of_key().await? } else { (self.of_number().await?, None) };
        let moves: Moves =
            self.client.get(&format!("/v1/moves?keyspace={}&limit=10000", segment(&self.keyspace))).await?;
        let moves: Vec<_> = moves.moves.into_iter().filter(|row| row.shard == shard.shard).collect();
        if output.is_json() {
            return output.json(&Shown { keyspace: self.keyspace, shard, moves });
        }
        let mut lines: Vec<String> = key.map(|key| format!("key        {key}")).into_iter().collect();
        lines.extend(self.facts(&shard).await?);
        lines.extend(moves.iter().map(|row| format!("under way  {}", move_line(row))));
        output.text(&lines.join("\n"));
        Ok(())
    }

    async fn of_key(&self) -> Result<(Shard, Option<String>), Failure> {
        let by = if self.hex.hex { "key_hex" } else { "key" };
        let path = format!("/v1/explain/{}?{by}={}", segment(&self.keyspace), segment(&self.which));
        let told: Explanation = self.client.get(&path).await?;
        Ok((told.shard, Some(key_text(&told.key))))
    }

    async fn of_number(&self) -> Result<Shard, Failure> {
        let id = number(&self.which)?;
        let after = id.checked_sub(1).map(|before| format!("&after={before}")).unwrap_or_default();
        let path = format!("/v1/keyspaces/{}/shards?limit=1{after}", segment(&self.keyspace));
        let page: Shards = self.client.get(&path).await?;
        page.shards.into_iter().find(|shard| shard.shard == id).ok_or_else(|| {
            Failure::refused(format!("keyspace {} has no shard s{id}", self.keyspace)).kind("not_found").help(
                format!(
                    "`partage shard list {0} --long` names them; a key that looks like a shard: `partage shard show {0} {1} --key`",
                    self.keyspace, self.which
                ),
            )
        })
    }

    async fn facts(&self, shard: &Shard) -> Result<Vec<String>, Failure> {
        let mut lines = vec![
            format!("shard      s{} of {}", shard.shard, self.keyspace),
            format!("holds      {}", bounds_text(&shard.bounds)),
            format!("stage      {}", stage_text(shard)),
            format!("epoch      {}, for {}", shard.epoch, since(shard.since_ms, shard.since_at_least)),
            format!("wants      {}", counted(shard.want, "replica")),
        ];
        if let Some(why) = shard.rule.as_ref().and_then(|rule| rule.set_aside.as_ref()) {
            lines.push(format!("set aside  {why}"));
        }
        for replica in &shard.replicas {
            let node: Result<NodeDetail, _> =
                self.client.get(&format!("/v1/nodes/{}?limit=1", segment(&replica.node))).await;
            // A node may be forgotten while its replica is still in the map.
            let address = node.map(|NodeDetail { node: Node { address, .. }, .. }| format!(" at {address}"));
            let load = replica.load.as_ref().map_or(String::new(), |load| {
                format!(", {:.0} requests/s, {} bytes", load.requests_per_s, load.size_bytes)
            });
            lines.push(format!("replica    {}{}{load}", replica_text(replica), address.unwrap_or_default()));
        }
        Ok(lines)
    }
}
