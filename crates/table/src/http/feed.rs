//! Change feeds over HTTP: of a table for clients, of the shards of one node for other nodes.

use super::answer::{self, malformed};
use crate::feed::{EndsLeft, FeedRequest, FeedStart, FeedToken, Feeds, for_client};
use crate::limits;
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use partage_core::base::id::ShardId;
use partage_wire::json::ErrorBody;
use partage_wire::table::{FeedPage, NodeFeedRequest};
use partage_worker::KeyspaceName;
use std::time::Duration;

/// Changes of a page, if the request does not say.
const CHANGES: usize = 100;

/// The feed of a table, as axum has it.
pub(super) const FEED: &str = "/v1/tables/{table}/feed";

/// Changes of shards, for other nodes.
pub(super) const SHARDS: &str = "/v1/tables/{table}/feed/shards";

/// A page of the changes of a table that keeps them.
#[utoipa::path(
    operation_id = "feed",
    get, path = "/v1/tables/{table}/feed", tag = "feed",
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("after" = Option<String>, Query, description = "`next` of the page before; now: what comes from now on; absent: from the oldest change on"),
        ("left" = Option<String>, Query, description = "Of a reader that does not follow: all with the first page, then `left` of the page before; a page without `left` has come to where each shard had its end when the first page was asked for"),
        ("limit" = Option<u64>, Query, description = "How many changes the page has at most; absent: 100"),
        ("wait_ms" = Option<u64>, Query, description = "How long to wait where there are none, in milliseconds; absent: 0"),
        ("shard" = Option<u64>, Query, description = "Only the changes of this shard"),
    ),
    responses(
        (status = 200, body = FeedPage),
        (status = 404, body = ErrorBody, description = "there is no such table, or no such shard"),
        (status = 409, body = ErrorBody, description = "the table keeps no changes"),
        (status = 410, body = ErrorBody, description = "changes behind `after` are no longer kept"),
    )
)]
pub(super) async fn of_table(
    State(feeds): State<Feeds>,
    Path(table): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let (asked, left) = match parse(&table, query.as_deref().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(why) => return malformed(&why),
    };
    match feeds.page(&asked).await {
        Ok(page) => {
            let left = left.and_then(|left| left.after(&page)).map(|left| left.text());
            let changes = page.changes.into_iter().map(for_client).collect();
            Json(FeedPage { changes, next: page.next.text(), left }).into_response()
        }
        Err(why) => answer::failed(&why.into()),
    }
}

/// What is asked for, and of a reader that does not follow what it has left.
fn parse(table: &str, query: &str) -> Result<(FeedRequest, Option<EndsLeft>), String> {
    let table = KeyspaceName::new(table).map_err(|error| error.to_string())?;
    let mut asked = FeedRequest {
        table,
        shard: None,
        start: FeedStart::Oldest,
        most: CHANGES,
        wait: Duration::ZERO,
        ends: false,
    };
    let mut left = None;
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let wrong = |way: &str| format!("{name}={value}: {way}");
        match &*name {
            "after" if value == "now" => asked.start = FeedStart::Now,
            "after" => {
                let token = FeedToken::parse(&value).map_err(|error| error.to_string())?;
                asked.start = FeedStart::After(token);
            }
            "shard" => {
                let number = value.parse().map_err(|_| wrong("give the number of a shard"))?;
                asked.shard = Some(ShardId(number));
            }
            "limit" => {
                let most = limits::SCAN_ROWS;
                let number = value.parse().ok().filter(|number| (1..=most).contains(number));
                asked.most = number.ok_or_else(|| wrong(&format!("give a number from 1 to {most}")))?;
            }
            "wait_ms" => {
                let most = limits::FEED_WAIT;
                let wait = value.parse().ok().map(Duration::from_millis).filter(|wait| *wait <= most);
                let way = || wrong(&format!("give a number from 0 to {}", most.as_millis()));
                asked.wait = wait.ok_or_else(way)?;
            }
            "left" if value == "all" => left = Some(EndsLeft::All),
            "left" => {
                let token = FeedToken::parse(&value).map_err(|error| error.to_string())?;
                left = Some(EndsLeft::Of(token));
            }
            other => {
                return Err(format!(
                    "a feed has no parameter {other:?}: it has after, left, shard, limit and wait_ms"
                ));
            }
        }
    }
    asked.ends = left.is_some();
    Ok((asked, left))
}

/// `POST /v1/tables/<table>/feed/shards`: changes of shards that this node has replicas of, for another node.
pub(super) async fn of_shards(State(feeds): State<Feeds>, Path(table): Path<String>, body: Body) -> Response {
    let table = match KeyspaceName::new(&table) {
        Ok(table) => table,
        Err(why) => return malformed(&why.to_string()),
    };
    let Ok(body) = to_bytes(body, limits::FEED_REQUEST_BYTES).await else {
        return malformed("the request is too long");
    };
    let asked: NodeFeedRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(why) => return malformed(&why.to_string()),
    };
    match feeds.own(&table, &asked).await {
        Ok(answer) => Json(answer).into_response(),
        Err(why) => malformed(&why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_from_where_on_changes_are_wanted() {
        let (plain, left) = parse("stock", "").unwrap();
        assert_eq!((plain.ends, left), (false, None));
        assert_eq!(
            (plain.start, plain.most, plain.wait, plain.shard),
            (FeedStart::Oldest, 100, Duration::ZERO, None)
        );
        let (asked, left) = parse("stock", "after=now&limit=1000&wait_ms=25000&shard=7&left=all").unwrap();
        assert_eq!((asked.ends, left), (true, Some(EndsLeft::All)));
        assert_eq!((asked.start, asked.most, asked.shard), (FeedStart::Now, 1_000, Some(ShardId(7))));
        assert_eq!(asked.wait, Duration::from_secs(25));
        for (bad, named) in [
            ("limit=0", "limit=0"),
            ("limit=1001", "1 to 1000"),
            ("wait_ms=25001", "0 to 25000"),
            ("wait_ms=x", "wait_ms=x"),
            ("shard=a", "shard=a"),
            ("after=abc", "damaged"),
            ("left=abc", "damaged"),
            ("token=abc", "\"token\""),
        ] {
            let why = parse("stock", bad).unwrap_err();
            assert!(why.contains(named), "{bad}: {why}");
        }
    }
}
