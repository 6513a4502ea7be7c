//! `partage table scan`: rows of a whole table, page by page.

use super::nodes::{TableNodes, refusal};
use crate::admin::{Hex, key_text};
use crate::http::{segment, segment_of};
use crate::output::{Failure, Output, say};
use clap::Args;
use hyper::StatusCode;
use partage_core::keyspace::key::Key;
use partage_wire::json::KeyText;
use partage_wire::table::{BytesText, RowsPage};
use serde_json::json;

/// Rows on one page: as many as a node gives.
const PAGE: u64 = 1_000;

/// Bytes for people: text, or hex digits where they are none.
pub(super) fn text_of(bytes: &BytesText) -> String {
    key_text(&KeyText::from(bytes.clone().bytes().unwrap_or_default()))
}

/// Prints the rows of a page.
pub(super) fn show(page: &RowsPage, output: &mut Output) -> Result<(), Failure> {
    for row in &page.rows {
        match &row.value {
            _ if output.is_json() => output.json(row)?,
            Some(value) => output.text(&format!("{}\t{}", text_of(&row.key), text_of(value))),
            None => output.text(&text_of(&row.key)),
        }
    }
    Ok(())
}

/// Says on stderr that there may be rows behind those that were listed, and how to go on: stdout has rows only.
pub(super) fn say_cut(limit: u64, next: Option<&String>, output: &Output) {
    match next {
        Some(token) if output.is_json() => say(&json!({ "next": token }).to_string()),
        Some(token) => say(&format!(
            "listed {limit} rows, and there may be more: to go on, add --token {token}; to list more at once, raise --limit"
        )),
        None => {}
    }
}

/// The arguments of `partage table scan`.
#[derive(Debug, Args)]
pub struct ScanArgs {
    /// Name of the table
    table: String,
    /// List only keys with this prefix
    #[arg(long)]
    prefix: Option<String>,
    /// List from this key on, inclusive
    #[arg(long)]
    from: Option<String>,
    /// List up to this key, exclusive
    #[arg(long)]
    to: Option<String>,
    /// List only rows whose JSON values it matches, such as 'section = "net" and size > 100'; the book has the language
    #[arg(long)]
    filter: Option<String>,
    /// Maximum number of rows to list
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// List rows behind this token, which an earlier scan with the same other options has printed
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    token: Option<String>,
    /// List keys without their values
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    hex: Hex,
    #[command(flatten)]
    nodes: TableNodes,
}

impl ScanArgs {
    fn path(&self, rows: u64, token: Option<&String>) -> Result<String, Failure> {
        let mut path = format!("/v1/tables/{}/rows?limit={}", segment(&self.table), rows.min(PAGE));
        for (name, key) in [("prefix", &self.prefix), ("from", &self.from), ("to", &self.to)] {
            let Some(key) = key else { continue };
            let key =
                Key::try_from(self.hex.key(key)).map_err(|why| Failure::usage(format!("--{name}: {why}")))?;
            path += &format!("&{name}={}", segment_of(key.as_bytes()));
        }
        path.extend(self.filter.iter().map(|filter| format!("&filter={}", segment(filter))));
        path.extend(token.iter().map(|token| format!("&token={}", segment(token))));
        if self.keys_only {
            path += "&keys_only=true";
        }
        Ok(path)
    }

    async fn page(&self, rows: u64, token: Option<&String>) -> Result<RowsPage, Failure> {
        let reply = self.nodes.get(&self.path(rows, token)?).await?;
        if reply.status != StatusCode::OK {
            return Err(refusal(&self.table, &reply));
        }
        serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))
    }

    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (mut left, mut token) = (self.limit, self.token.clone());
        while left > 0 {
            let page = self.page(left, token.as_ref()).await?;
            left = left.saturating_sub(page.rows.len() as u64);
            show(&page, output)?;
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        say_cut(self.limit, token.as_ref(), output);
        Ok(())
    }
}
