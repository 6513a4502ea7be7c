//! Indexes and checks over HTTP: of a table for clients, of one shard for other nodes.

use super::answer::{self, error, malformed, refused};
use super::parse::consistency_of;
use super::rows::{flag, limit};
use crate::indexes::{
    CheckToken, IndexError, IndexOrder, IndexToken, Indexes, QueryText, TableIndexScan, query_of,
};
use crate::limits;
use crate::scans::{Scans, for_client};
use crate::service::Refusal;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use partage_core::base::id::ShardId;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_service::table::filter;
use partage_service::table::index::Overview;
use partage_wire::json::{ErrorBody, parse};
use partage_wire::table::{CheckAnswer, IndexAnswer, IndexCreate, IndexList, RowsPage, ShardIndexRequest};
use partage_worker::KeyspaceName;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

/// Where indexes are created and listed, as axum has it.
pub(super) const INDEXES: &str = "/v1/tables/{table}/indexes";

/// Where one is asked and dropped.
pub(super) const INDEX: &str = "/v1/tables/{table}/indexes/{index}";

/// Where a table is checked.
pub(super) const CHECK: &str = "/v1/tables/{table}/check";

/// Where nodes ask each other about a shard.
pub(super) const SHARD: &str = "/v1/tables/{table}/shards/{shard}/indexes";

/// Rows of a page, if the request does not say.
const ROWS: usize = 100;

/// A response instead of the one that was wanted.
type Otherwise = Box<Response>;

fn bad(why: impl ToString) -> Otherwise {
    Box::new(malformed(&why.to_string()))
}

fn table_of(name: &str) -> Result<KeyspaceName, Otherwise> {
    KeyspaceName::new(name).map_err(bad)
}

fn index_of(name: &str) -> Result<IndexName, Otherwise> {
    IndexName::new(name).map_err(bad)
}

async fn body_of<T: DeserializeOwned>(body: Body) -> Result<T, Otherwise> {
    let bytes = to_bytes(body, limits::INDEX_BODY_BYTES).await.map_err(|_| {
        let what = format!("the body is longer than {} bytes", limits::INDEX_BODY_BYTES);
        Box::new(error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &what, "send a name and a field"))
    })?;
    parse(&bytes).map_err(|why| Box::new((StatusCode::BAD_REQUEST, Json(why)).into_response()))
}

/// Why something about an index was not done.
fn not_done(why: IndexError) -> Response {
    let message = why.to_string();
    match why {
        IndexError::Table(why) => answer::failed(&why.into()),
        IndexError::Missing { .. } => error(StatusCode::NOT_FOUND, "not_found", &message, ""),
        IndexError::NotReady { .. } => error(StatusCode::CONFLICT, "index_not_ready", &message, ""),
        IndexError::Taken { .. } => error(StatusCode::CONFLICT, "index_exists", &message, ""),
        IndexError::TooMany(_) => error(StatusCode::CONFLICT, "too_many", &message, ""),
        IndexError::OtherIndex => error(StatusCode::BAD_REQUEST, "malformed", &message, ""),
    }
}

fn failed(why: IndexError) -> Otherwise {
    Box::new(not_done(why))
}

fn answer_of(overview: Overview) -> IndexAnswer {
    IndexAnswer {
        name: overview.name.to_string(),
        field: overview.path,
        state: overview.state.into(),
        ready: overview.ready as u64,
        shards: overview.shards as u64,
    }
}

/// Whether a query, which has nothing else, asks for a dry run.
fn is_dry(query: Option<&str>) -> Result<bool, String> {
    let mut is_dry = false;
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match &*name {
            "dry_run" => is_dry = flag(&name, &value)?,
            other => return Err(format!("there is no parameter {other:?}: it has dry_run")),
        }
    }
    Ok(is_dry)
}

/// The indexes of a table.
#[utoipa::path(
    operation_id = "list_indexes",
    get, path = "/v1/tables/{table}/indexes", tag = "indexes",
    params(("table" = String, Path, description = "The name of the table")),
    responses((status = 200, body = IndexList), (status = 404, body = ErrorBody, description = "there is no such table"))
)]
pub(super) async fn list(State(indexes): State<Indexes>, Path(table): Path<String>) -> Response {
    let listed = async {
        let found = indexes.list(&table_of(&table)?).await.map_err(failed)?;
        Ok(Json(IndexList { indexes: found.into_iter().map(answer_of).collect() }).into_response())
    };
    listed.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

/// Creates an index of a field of JSON values.
#[utoipa::path(
    operation_id = "create_index",
    post, path = "/v1/tables/{table}/indexes", tag = "indexes", request_body = IndexCreate,
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("dry_run" = Option<bool>, Query, description = "Only says whether it could be created"),
    ),
    responses(
        (status = 200, body = IndexAnswer, description = "Each shard has begun it; it can be asked when it is ready"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
        (status = 409, body = ErrorBody, description = "there is another index of that name, or there are too many"),
    )
)]
pub(super) async fn create(
    State(indexes): State<Indexes>,
    Path(table): Path<String>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Response {
    let created = async {
        let is_dry = is_dry(query.as_deref()).map_err(bad)?;
        let IndexCreate { name, field } = body_of(body).await?;
        let (table, name) = (table_of(&table)?, index_of(&name)?);
        let path = filter::Path::parse(&field).map_err(bad)?;
        let found = indexes.create(&table, &name, &path, is_dry).await.map_err(failed)?;
        Ok(Json(answer_of(found)).into_response())
    };
    created.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

/// Drops an index in all shards of the table.
#[utoipa::path(
    delete, path = "/v1/tables/{table}/indexes/{index}", tag = "indexes",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("index" = String, Path, description = "The name of the index"),
        ("dry_run" = Option<bool>, Query, description = "Only says whether there is such an index"),
    ),
    responses(
        (status = 200, body = IndexAnswer, description = "Each shard has begun to drop it"),
        (status = 404, body = ErrorBody, description = "there is no such table, or no such index"),
    )
)]
pub(super) async fn drop_index(
    State(indexes): State<Indexes>,
    Path((table, index)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let dropped = async {
        let is_dry = is_dry(query.as_deref()).map_err(bad)?;
        let (table, index) = (table_of(&table)?, index_of(&index)?);
        let found = indexes.drop_index(&table, &index, is_dry).await.map_err(failed)?;
        Ok(Json(answer_of(found)).into_response())
    };
    dropped.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

/// Rows of a table by what an index has of them, in the order of values, and of keys where these are the same; with `order=any`
/// shard by shard.
#[utoipa::path(
    operation_id = "query_index",
    get, path = "/v1/tables/{table}/indexes/{index}", tag = "indexes",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("index" = String, Path, description = "The name of the index"),
        ("equals" = Option<String>, Query, description = "Only rows with this value: JSON, or a text as it stands"),
        ("from" = Option<String>, Query, description = "Only rows with this value or a higher one of its kind"),
        ("to" = Option<String>, Query, description = "Only rows with a lower value, of its kind"),
        ("limit" = Option<u64>, Query, description = "How many rows the page has at most; absent: 100"),
        ("token" = Option<String>, Query, description = "`next` of the page before"),
        ("keys_only" = Option<bool>, Query, description = "Leaves the values out"),
        ("partition_key" = Option<String>, Query, description = "Only rows with the partition key of this key, whose shard alone is asked: bytes, percent-encoded"),
        ("order" = Option<String>, Query, description = "value (the default): all shards are asked for each page; any: shard after shard, until the page is full"),
        ("consistency" = Option<String>, Query, description = "How fresh: linearizable (the default), bounded, any"),
        ("bound_ms" = Option<u64>, Query, description = "With bounded: how old what is read may be, in milliseconds"),
    ),
    responses(
        (status = 200, body = RowsPage),
        (status = 404, body = ErrorBody, description = "there is no such table, or no such index"),
        (status = 409, body = ErrorBody, description = "the index is being built or dropped"),
    )
)]
pub(super) async fn query(
    State(indexes): State<Indexes>,
    Path((table, index)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let found = async {
        let (table, name) = (table_of(&table)?, index_of(&index)?);
        let asked = asked(table, name, query.as_deref().unwrap_or_default()).map_err(bad)?;
        let page = indexes.page(&asked).await.map_err(failed)?;
        let rows = page.rows.into_iter().map(for_client).collect();
        Ok(Json(RowsPage { rows, next: page.next.map(|token| token.text()) }).into_response())
    };
    found.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

fn asked(table: KeyspaceName, name: IndexName, query: &str) -> Result<TableIndexScan, String> {
    let (mut text, mut most, mut with_values) = (QueryText::default(), ROWS, true);
    let (mut token, mut consistency, mut bound_ms) = (None, None, None);
    let (mut partition_key, mut order) = (None, None);
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "equals" => text.equals = Some(value.into_owned()),
            "from" => text.from = Some(value.into_owned()),
            "to" => text.to = Some(value.into_owned()),
            "limit" => most = limit(&value)?,
            "keys_only" => with_values = !flag(&name, &value)?,
            "token" => token = Some(IndexToken::parse(&value).map_err(|error| error.to_string())?),
            "partition_key" => {
                let bytes =
                    bytes_of(query, &name).ok_or_else(|| format!("{name}: give partition_key=KEY"))?;
                let key = Key::new(&bytes);
                partition_key = Some(key.map_err(|error| format!("{name}: {error}"))?);
            }
            "order" => order = Some(order_of(&value)?),
            "consistency" => consistency = Some(value.into_owned()),
            "bound_ms" => {
                let number = value.parse();
                bound_ms = Some(number.map_err(|_| format!("bound_ms={value}: give a whole number"))?);
            }
            other => {
                return Err(format!(
                    "an index has no parameter {other:?}: it has equals, from, to, limit, token, keys_only, partition_key, order, \
                     consistency and bound_ms"
                ));
            }
        }
    }
    query_of(&text)?;
    let consistency = consistency_of(consistency.as_deref(), bound_ms)?;
    let (partition_key, order) = match &token {
        Some(token) => token.settle(partition_key, order)?,
        None => (partition_key, order.unwrap_or_default()),
    };
    Ok(TableIndexScan {
        table,
        name,
        query: text,
        most,
        with_values,
        consistency,
        partition_key,
        order,
        token,
    })
}

/// The bytes of a parameter of a form, which need not be text.
fn bytes_of(query: &str, name: &str) -> Option<Vec<u8>> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(percent_decode_str(&value.replace('+', " ")).collect())
}

fn order_of(text: &str) -> Result<IndexOrder, String> {
    match text {
        "value" => Ok(IndexOrder::Value),
        "any" => Ok(IndexOrder::Any),
        other => Err(format!("order={other}: give value or any")),
    }
}

/// Compares the replicas of some shards, and the rows of each with its indexes.
#[utoipa::path(
    post, path = "/v1/tables/{table}/check", tag = "indexes",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("token" = Option<String>, Query, description = "`next` of the answer before"),
    ),
    responses((status = 200, body = CheckAnswer), (status = 404, body = ErrorBody, description = "there is no such table"))
)]
pub(super) async fn check(
    State(indexes): State<Indexes>,
    Path(table): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let checked = async {
        let mut token = CheckToken::default();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "token" => token = CheckToken::parse(&value).map_err(bad)?,
                other => return Err(bad(format!("a check has no parameter {other:?}: it has token"))),
            }
        }
        let answer = indexes.check(&table_of(&table)?, token).await.map_err(failed)?;
        Ok(Json(answer).into_response())
    };
    checked.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

/// `POST /v1/tables/<table>/shards/<shard>/indexes`: for other nodes, which know by the map that the shard is here.
pub(super) async fn of_shard(
    State((indexes, scans)): State<(Indexes, Scans)>,
    Path((table, shard)): Path<(String, u64)>,
    body: Body,
) -> Response {
    let answered = async {
        let (table, shard) = (table_of(&table)?, ShardId(shard));
        let request: ShardIndexRequest = body_of(body).await?;
        if scans.tables().replica_of(&table, shard).is_none() {
            let what = format!("this node has no replica of shard {shard} of table {table}");
            let (status, help) = (StatusCode::MISDIRECTED_REQUEST, "ask its leader by the map");
            return Err(Box::new(error(status, Refusal::Soon.word(), &what, help)));
        }
        let answer = indexes.own(&table, shard, &request).await;
        Ok(Json(answer.map_err(|why| Box::new(refused(&why)))?).into_response())
    };
    answered.await.unwrap_or_else(|otherwise: Otherwise| *otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::table::replication::Consistency;

    #[test]
    fn a_query_says_what_is_wanted_of_an_index() {
        let asked = |query| {
            let table = KeyspaceName::new("stock").unwrap();
            asked(table, IndexName::new("by-n").unwrap(), query)
        };
        let plain = asked("").unwrap();
        assert_eq!(
            (plain.most, plain.with_values, plain.consistency),
            (100, true, Consistency::Linearizable)
        );
        let some = asked("from=1&to=%222%22x&limit=7").unwrap_err();
        assert!(some.contains("kinds"), "{some}");
        let some = asked("equals=a+b&limit=7&keys_only=true&consistency=bounded&bound_ms=9").unwrap();
        assert_eq!(some.query.equals.as_deref(), Some("a b"));
        assert_eq!((some.most, some.with_values, some.consistency), (7, false, Consistency::Bounded(9)));
        assert_eq!((plain.partition_key, plain.order), (None, IndexOrder::Value));
        let some = asked("partition_key=a%2F+%FF&order=any").unwrap();
        assert_eq!(some.partition_key.unwrap().as_bytes(), b"a/ \xff");
        assert_eq!(some.order, IndexOrder::Any);
        for (bad, named) in [
            ("limit=0", "limit=0"),
            ("equals=1&from=2", "contradict"),
            ("from=2&to=1", "exchange"),
            ("equals=null", "no index"),
            ("token=abc", "damaged"),
            ("what=1", "\"what\""),
            ("consistency=some", "consistency=some"),
            ("order=best", "order=best"),
        ] {
            let why = asked(bad).unwrap_err();
            assert!(why.contains(named), "{bad}: {why}");
        }
        assert!(
            is_dry(Some("dry_run=true")).unwrap() && !is_dry(None).unwrap() && is_dry(Some("x=1")).is_err()
        );
    }
}
