//! `partage table index query`: rows by the value of a field, page by page.

use super::{ask, path};
use crate::http::segment;
use crate::output::{Failure, Output};
use crate::table::nodes::{Effect, TableNodes};
use crate::table::scan::{say_cut, show};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use partage_wire::table::RowsPage;

/// Rows on one page: as many as a node gives.
const PAGE: u64 = 1_000;

/// `partage table index query`
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// Name of the table
    table: String,
    /// Name of the index
    name: String,
    /// List rows with this value: a number, true, false, or a text; a text that looks like one of these in double quotes: '"7"'
    #[arg(long, value_name = "VALUE", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    equals: Option<String>,
    /// List rows from this value on, inclusive, of its kind
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    from: Option<String>,
    /// List rows up to this value, exclusive, of its kind
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    to: Option<String>,
    /// Maximum number of rows to list
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// List rows behind this token, which an earlier query with the same other options has printed
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    token: Option<String>,
    /// List only rows with the partition key of this key: only its shard is asked
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// Order of the rows: value, for which all shards are asked, or any, for which shards are asked one after the other until
    /// there are enough rows
    #[arg(long, value_parser = ["value", "any"], default_value = "value", conflicts_with = "key")]
    order: String,
    /// List keys without their values
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    nodes: TableNodes,
}

impl QueryArgs {
    fn page_path(&self, rows: u64, token: Option<&String>) -> String {
        let mut path = format!("{}?limit={}", path(&self.table, Some(&self.name)), rows.min(PAGE));
        let given = [("equals", &self.equals), ("from", &self.from), ("to", &self.to)];
        for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            path += &format!("&{name}={}", segment(value));
        }
        path.extend(self.key.iter().map(|key| format!("&partition_key={}", segment(key))));
        if self.order != "value" {
            path += &format!("&order={}", self.order);
        }
        path.extend(token.iter().map(|token| format!("&token={}", segment(token))));
        if self.keys_only {
            path += "&keys_only=true";
        }
        path
    }

    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let (mut left, mut token) = (self.limit, self.token.clone());
        while left > 0 {
            let path = self.page_path(left, token.as_ref());
            let asked = (Effect::Reads, Method::GET);
            let page: RowsPage = ask(&self.nodes, &self.table, asked, &path, Bytes::new()).await?;
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
