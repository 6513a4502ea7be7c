//! Scans over HTTP: of a table for clients, of one shard for other nodes.

use super::PREFIX;
use super::answer::{error, failed, malformed, refused};
use super::parse::consistency_of;
use crate::limits;
use crate::rows::ScanRange;
use crate::scans::{FilteredRange, Scans, TableScan, Token, for_client, for_node};
use crate::service::Refusal;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use partage_core::base::id::ShardId;
use partage_core::keyspace::key::Key;
use partage_service::table::filter::Filter;
use partage_service::table::replication::Consistency;
use partage_wire::json::ErrorBody;
use partage_wire::table::{KeyBytes, PlaceForm, RowsPage, ShardRows};
use partage_worker::KeyspaceName;
use percent_encoding::percent_decode_str;
use std::sync::Arc;

/// Rows of a page, if the request does not say.
const ROWS: usize = 100;

/// Where a table is scanned, as axum has it.
pub(super) const TABLE: &str = "/v1/tables/{table}/rows";

/// Where one shard is.
pub(super) const SHARD: &str = "/v1/tables/{table}/shards/{shard}/rows";

/// Whether a path is that of a scan, or of several keys, not of one.
pub(super) fn is_of_table(path: &str) -> bool {
    let Some(rest) = path.strip_prefix(PREFIX) else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    match parts[..] {
        [table, "rows" | "batch" | "get" | "put" | "indexes" | "check" | "feed"]
        | [table, "feed", "shards"] => !table.is_empty(),
        [table, "indexes", index] => !table.is_empty() && !index.is_empty(),
        [table, "shards", shard, "rows" | "indexes"] => !table.is_empty() && !shard.is_empty(),
        _ => false,
    }
}

/// What a query says.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) range: ScanRange,
    filter: Option<Arc<Filter>>,
    consistency: Consistency,
    token: Option<String>,
}

impl Asked {
    /// Whether nothing is said but which rows are wanted.
    pub(super) fn is_only_range(&self) -> bool {
        self.token.is_none() && self.filter.is_none() && self.consistency == Consistency::Linearizable
    }

    pub(super) fn parse(query: &str) -> Result<Asked, String> {
        let mut range = ScanRange { most: ROWS, ..ScanRange::default() };
        let (mut filter, mut token, mut consistency, mut bound_ms) = (None, None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            let key = || {
                let bytes: Vec<u8> = percent_decode_str(value).collect();
                Key::new(&bytes).map_err(|error| format!("{name}: {error}"))
            };
            match name {
                "from" => range.from = key()?,
                "to" => range.to = Some(key()?),
                "prefix" => range.prefix = key()?,
                "limit" => range.most = limit(value)?,
                "keys_only" => range.with_values = !flag(name, value)?,
                "filter" => filter = Some(Arc::new(filter_of(&spaced(value))?)),
                "token" => token = Some(text()),
                "consistency" => consistency = Some(text()),
                "bound_ms" => {
                    let number =
                        value.parse().map_err(|_| format!("bound_ms={value}: give a whole number"))?;
                    bound_ms = Some(number);
                }
                other => {
                    return Err(format!(
                        "a scan has no parameter {other:?}: it has from, to, prefix, limit, filter, token, \
                         keys_only, consistency and bound_ms"
                    ));
                }
            }
        }
        if range.to.as_ref().is_some_and(|to| *to < range.from) {
            return Err("to is below from: exchange them".to_owned());
        }
        let consistency = consistency_of(consistency.as_deref(), bound_ms)?;
        Ok(Asked { range, filter, consistency, token })
    }
}

/// A text as forms encode it too, with `+` for a space; no filter can have a plus sign that is not encoded, but in an exponent
/// or a text.
fn spaced(value: &str) -> String {
    percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned()
}

fn filter_of(text: &str) -> Result<Filter, String> {
    Filter::parse(text).map_err(|error| error.to_string())
}

pub(super) fn limit(value: &str) -> Result<usize, String> {
    let most = limits::SCAN_ROWS;
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("limit={value}: give a number from 1 to {most}"))
}

pub(super) fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(format!("{name}={other}: give true or false")),
    }
}

/// A page of the rows of a table.
#[utoipa::path(
    operation_id = "scan",
    get, path = "/v1/tables/{table}/rows", tag = "rows",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("from" = Option<String>, Query, description = "From this key on: bytes, percent-encoded"),
        ("to" = Option<String>, Query, description = "Before this key"),
        ("prefix" = Option<String>, Query, description = "Only keys that begin so"),
        ("limit" = Option<u64>, Query, description = "How many rows the page has at most; absent: 100"),
        ("filter" = Option<String>, Query, description = "Only rows whose JSON values match, such as `section = \"net\" and size > 100`"),
        ("token" = Option<String>, Query, description = "`next` of the page before"),
        ("keys_only" = Option<bool>, Query, description = "Leaves the values out"),
        ("consistency" = Option<String>, Query, description = "How fresh: linearizable (the default), bounded, any"),
        ("bound_ms" = Option<u64>, Query, description = "With bounded: how old what is read may be, in milliseconds"),
    ),
    responses((status = 200, body = RowsPage), (status = 404, body = ErrorBody, description = "there is no such table"))
)]
pub(super) async fn of_table(
    State(scans): State<Scans>,
    Path(table): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let asked = match table_scan(&table, query.as_deref().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(why) => return malformed(&why),
    };
    match scans.page(&asked).await {
        Ok(page) => {
            let rows = page.rows.into_iter().map(for_client).collect();
            Json(RowsPage { rows, next: page.next.map(|token| token.text()) }).into_response()
        }
        Err(why) => failed(&why.into()),
    }
}

fn table_scan(table: &str, query: &str) -> Result<TableScan, String> {
    let table = KeyspaceName::new(table).map_err(|error| error.to_string())?;
    let Asked { range, filter, consistency, token } = Asked::parse(query)?;
    let token = token.map(|text| Token::parse(&text)).transpose().map_err(|error| error.to_string())?;
    Ok(TableScan { table, range, filter, consistency, token })
}

/// `GET /v1/tables/<table>/shards/<shard>/rows`: for other nodes, which know by the map that the shard is here.
pub(super) async fn of_shard(
    State(scans): State<Scans>,
    Path((table, shard)): Path<(String, u64)>,
    RawQuery(query): RawQuery,
) -> Response {
    let (table, asked) = match (KeyspaceName::new(&table), Asked::parse(query.as_deref().unwrap_or_default()))
    {
        (Ok(table), Ok(asked)) => (table, asked),
        (Err(error), _) => return malformed(&error.to_string()),
        (_, Err(why)) => return malformed(&why),
    };
    let shard = ShardId(shard);
    if scans.tables().replica_of(&table, shard).is_none() {
        let what = format!("this node has no replica of shard {shard} of table {table}");
        return error(
            StatusCode::MISDIRECTED_REQUEST,
            Refusal::Soon.word(),
            &what,
            "ask its leader by the map",
        );
    }
    let range = FilteredRange { range: asked.range, filter: asked.filter };
    match scans.own(&table, shard, range, asked.consistency).await {
        Ok((page, after)) => {
            let rows = page.rows.into_iter().map(for_node).collect();
            Json(ShardRows { rows, next: page.next.map(KeyBytes), after: after.map(PlaceForm::from) })
                .into_response()
        }
        Err(why) => refused(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scans::consistency_query;

    #[test]
    fn few_paths_are_not_of_one_key() {
        for path in [
            "/v1/tables/stock/rows",
            "/v1/tables/stock/shards/7/rows",
            "/v1/tables/stock/get",
            "/v1/tables/a/batch",
            "/v1/tables/a/indexes",
            "/v1/tables/a/indexes/by-n",
            "/v1/tables/a/check",
            "/v1/tables/a/shards/7/indexes",
            "/v1/tables/a/feed",
            "/v1/tables/a/feed/shards",
        ] {
            assert!(is_of_table(path), "{path}");
        }
        for path in [
            "/v1/tables/rows",
            "/v1/tables//rows",
            "/v1/tables/stock/keys/rows",
            "/stock/rows",
            "/v1/tables/stock/rows/",
            "/v1/tables/stock/shards//rows",
            "/v1/tables/stock/keys/a/rows",
        ] {
            assert!(!is_of_table(path), "{path}");
        }
    }

    #[test]
    fn a_query_says_which_rows_are_wanted() {
        let plain = Asked::parse("").unwrap();
        assert_eq!((plain.range.most, plain.range.with_values, plain.token), (100, true, None));
        let asked =
            Asked::parse("from=a%00+&to=%FF&prefix=a&limit=7&keys_only=true&token=x-_&consistency=any")
                .unwrap();
        let key = |bytes: &[u8]| Key::new(bytes).unwrap();
        let range = ScanRange {
            from: key(b"a\0+"),
            to: Some(key(b"\xff")),
            prefix: key(b"a"),
            most: 7,
            with_values: false,
        };
        let token = Some("x-_".to_owned());
        assert_eq!(asked, Asked { range, filter: None, consistency: Consistency::Any, token });
        let filter = |query| Asked::parse(query).map(|asked| asked.filter.unwrap().to_string());
        for (query, text) in
            [("filter=a%20%3D%201", "a = 1"), ("filter=a+=+1", "a = 1"), ("filter=a%20=1", "a =1")]
        {
            assert_eq!(filter(query), Ok(text.to_owned()), "{query}");
        }
        assert!(filter("filter=a+=+x").unwrap_err().contains("character 5"));
        for consistency in [Consistency::Linearizable, Consistency::Any, Consistency::Bounded(7)] {
            assert_eq!(Asked::parse(&consistency_query(consistency)).unwrap().consistency, consistency);
        }
        for (bad, named) in [
            ("limit=0", "limit=0"),
            ("limit=1001", "1 to 1000"),
            ("limit=x", "limit=x"),
            ("keys_only=perhaps", "keys_only"),
            ("from=b&to=a", "to is below from"),
            ("what=1", "\"what\""),
            ("consistency=some", "consistency=some"),
            ("bound_ms=x", "bound_ms=x"),
        ] {
            let why = Asked::parse(bad).unwrap_err();
            assert!(why.contains(named), "{bad}: {why}");
        }
        assert!(table_scan("stock", "token=abc").unwrap_err().contains("damaged"));
    }
}
