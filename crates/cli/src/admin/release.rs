//! `partage shard release`: shards that were set aside are placed again, one, or all that a filter names.

use super::wait::{Begun, Wait};
use super::{answer_text, carry_out_and_wait, shard};
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_wire::json::{Answer, Command, SetAside, Summary};
use serde::Serialize;

/// The arguments of `partage shard release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// Keyspace of the shard; with --all, release only shards of this keyspace
    #[arg(required_unless_present = "all")]
    keyspace: Option<String>,
    /// The shard, as `s12` or `12`
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    shard: Option<String>,
    /// Release every shard that is set aside
    #[arg(long)]
    all: bool,
    /// With --all: release only shards whose reason contains this text
    #[arg(long, value_name = "TEXT", requires = "all", conflicts_with = "shard")]
    reason: Option<String>,
    #[command(flatten)]
    client: ApiClient,
    #[command(flatten)]
    dry: DryRun,
    #[command(flatten)]
    wait: Wait,
}

/// What came of releasing several.
#[derive(Debug, Serialize)]
struct Released {
    dry_run: bool,
    released: Vec<Answer>,
    /// What could not be released, and why.
    failed: Vec<NotReleased>,
}

/// A shard that stays as it was.
#[derive(Debug, Serialize)]
struct NotReleased {
    keyspace: String,
    shard: u64,
    why: String,
}

impl ReleaseArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        if let (false, Some(keyspace), Some(shard)) = (self.all, &self.keyspace, &self.shard) {
            let command = Command::ReleaseShard { keyspace: keyspace.clone(), shard: shard::number(shard)? };
            return carry_out_and_wait(&self.client, output, command, self.dry.dry_run, self.wait).await;
        }
        let status: Summary = self.client.get("/v1/status").await?;
        let (keyspace, reason) = (self.keyspace.as_deref(), self.reason.as_deref());
        let (mut released, mut failed) = (Vec::new(), Vec::new());
        for SetAside { keyspace, shard, .. } in chosen(&status.set_aside, keyspace, reason) {
            let command = Command::ReleaseShard { keyspace: keyspace.clone(), shard: *shard };
            let answer = match self.client.command(command, self.dry.dry_run).await {
                Ok(answer) => answer,
                // The others are released all the same.
                Err(failure) => {
                    let (keyspace, shard) = (keyspace.clone(), *shard);
                    say(&format!(
                        "shard s{shard} of keyspace {keyspace} is not released: {}",
                        failure.what()
                    ));
                    failed.push(NotReleased { keyspace, shard, why: failure.what().to_owned() });
                    continue;
                }
            };
            answer.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
            if !output.is_json() {
                output.text(&answer_text(&answer));
            }
            released.push(answer);
        }
        let shards: Vec<_> = failed.iter().map(|of| format!("s{} of {}", of.shard, of.keyspace)).collect();
        let (done, all) = (released.len(), released.len() + failed.len());
        if output.is_json() {
            output.json(&Released { dry_run: self.dry.dry_run, released, failed })?;
        } else if all == 0 {
            output.text("no such shard is set aside");
        }
        if shards.is_empty() {
            output.flush();
            return self.wait.until_done(&self.client, Begun::of_all()).await;
        }
        let what = format!("{done} of {all} shards are released; these are not: {}", shards.join(", "));
        Err(Failure::failed(what)
            .help("why is said above, for each; try again, it releases what is still set aside"))
    }
}

/// The shards of a keyspace, or of all, whose reason contains a text.
fn chosen<'a>(
    set_aside: &'a [SetAside],
    keyspace: Option<&str>,
    reason: Option<&str>,
) -> impl Iterator<Item = &'a SetAside> {
    let is_chosen = move |aside: &&SetAside| {
        keyspace.is_none_or(|name| aside.keyspace == name)
            && reason.is_none_or(|text| aside.why.contains(text))
    };
    set_aside.iter().filter(is_chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_keyspace_and_of_a_reason_are_chosen() {
        let aside = |keyspace: &str, shard, why: &str| SetAside {
            keyspace: keyspace.to_owned(),
            shard,
            why: why.to_owned(),
        };
        let all = [
            aside("a", 1, "3 nodes in a row died"),
            aside("a", 2, "it could not be loaded"),
            aside("b", 3, "3 nodes in a row died"),
        ];
        let ids =
            |keyspace, reason| chosen(&all, keyspace, reason).map(|aside| aside.shard).collect::<Vec<_>>();
        assert_eq!(ids(None, None), [1, 2, 3]);
        assert_eq!(ids(Some("a"), None), [1, 2]);
        assert_eq!(ids(None, Some("died")), [1, 3]);
        assert_eq!(ids(Some("b"), Some("loaded")), [0u64; 0]);
    }
}
