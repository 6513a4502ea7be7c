//! `partage table scan`: rows of a whole table, page by page.

use super::rows::{TableNodes, refusal};
use crate::admin::key_text;
use crate::http::segment;
use crate::output::{Failure, Output};
use bytes::Bytes;
use clap::Args;
use hyper::{HeaderMap, Method, StatusCode};
use partage_wire::json::KeyText;
use partage_wire::table::{BytesText, RowsPage};

/// Rows on one page: as many as a node gives.
const PAGE: u64 = 1_000;

/// Bytes for people: text, or hex digits where they are none.
pub(super) fn text_of(bytes: &BytesText) -> String {
    key_text(&KeyText::from(bytes.clone().bytes().unwrap_or_default()))
}

/// `partage table scan`
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
    /// List keys without their values
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    nodes: TableNodes,
}

impl ScanArgs {
    fn path(&self, rows: u64, token: Option<&String>) -> String {
        let mut path = format!("/v1/tables/{}/rows?limit={}", segment(&self.table), rows.min(PAGE));
        let given =
            [("prefix", &self.prefix), ("from", &self.from), ("to", &self.to), ("filter", &self.filter)];
        for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            path += &format!("&{name}={}", segment(value));
        }
        path.extend(token.iter().map(|token| format!("&token={token}")));
        if self.keys_only {
            path += "&keys_only=true";
        }
        path
    }

    async fn page(&self, rows: u64, token: Option<&String>) -> Result<RowsPage, Failure> {
        let path = self.path(rows, token);
        let reply = self.nodes.ask(Method::GET, &path, HeaderMap::new(), Bytes::new()).await?;
        if reply.status != StatusCode::OK {
            return Err(refusal(&self.table, &reply));
        }
        serde_json::from_slice(&reply.body)
            .map_err(|error| Failure::failed(format!("the answer of the node is not understood: {error}")))
    }

    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (mut left, mut token) = (self.limit, None);
        while left > 0 {
            let page = self.page(left, token.as_ref()).await?;
            left = left.saturating_sub(page.rows.len() as u64);
            for row in &page.rows {
                match &row.value {
                    _ if output.is_json() => output.json(row)?,
                    Some(value) => output.text(&format!("{}\t{}", text_of(&row.key), text_of(value))),
                    None => output.text(&text_of(&row.key)),
                }
            }
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        Ok(())
    }
}
