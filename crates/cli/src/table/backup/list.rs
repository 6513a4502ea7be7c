//! `partage table backup list`.

use super::location::Location;
use crate::clock::ago;
use crate::output::{Failure, Output, say, table};
use clap::Args;
use indicatif::{HumanBytes, HumanDuration};
use serde_json::json;

/// `partage table backup list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Folder, or a URL such as s3://bucket/prefix
    location: String,
    /// List only backups of this table
    #[arg(long)]
    table: Option<String>,
}

impl ListArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let location = Location::open(&self.location)?;
        let mut listed = location.backups().await?;
        listed.retain(|listed| self.table.as_ref().is_none_or(|table| listed.table == *table));
        let mut rows = table(["backup", "table", "age", "shards", "rows", "size", "written", "base"]);
        let mut backups = Vec::new();
        for listed in listed {
            let manifest = match location.manifest(&listed).await {
                Ok(manifest) => manifest,
                Err(error) if error.is_of_file() => {
                    backups.push(json!({
                        "backup": listed.id, "table": listed.table, "damaged": error.to_string(),
                    }));
                    say(&format!("warning: {error}"));
                    continue;
                }
                Err(error) => return Err(error.failure()),
            };
            backups.push(json!({
                "backup": manifest.id, "table": manifest.table, "began_ms": manifest.began_ms,
                "ended_ms": manifest.ended_ms, "by": manifest.by, "shards": manifest.shards.len(),
                "rows": manifest.rows(), "content_bytes": manifest.content_bytes(),
                "chunks": manifest.chunks().count(), "chunks_written": manifest.chunks_written,
                "bytes_written": manifest.bytes_written, "base": manifest.base, "indexes": manifest.indexes,
            }));
            rows.add_row([
                manifest.id.clone(),
                manifest.table.clone(),
                HumanDuration(ago(manifest.began_ms)).to_string(),
                manifest.shards.len().to_string(),
                manifest.rows().to_string(),
                HumanBytes(manifest.content_bytes()).to_string(),
                HumanBytes(manifest.bytes_written).to_string(),
                manifest.base.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        if output.is_json() {
            return output.json(&json!({ "backups": backups }));
        }
        if backups.is_empty() {
            say(&format!("{location} has no backup of a table"));
            return Ok(());
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}
