//! What people see over HTTP.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/shuffles` | the shuffles of the pool, from all nodes that answer in time, as [`ShuffleList`] |
//! | `GET /v1/shuffles?of=node` | those that this node leads |
//! | `GET /v1/shuffles?owner=name` | those of that owner; with `of=node` too |
//! | `GET /v1/shuffles/<number>` | one shuffle, as [`ShuffleForm`], whichever node leads it, and where its records are, from all nodes that answer in time; the number is 32 hexadecimal digits |
//! | `GET /v1/shuffles/<number>?of=node` | what this node has of it, as [`ShuffleHeld`](partage_wire::shuffle::ShuffleHeld) |
//! | `DELETE /v1/shuffles/<number>` | deletes it, with all its records: [`ShuffleDeleted`]; the same if it was deleted before |
//!
//! The door takes a `DELETE` only with the mark against pages of other sites, as all changes of this listener: clients of tables
//! and datasets write what they like, and here a request deletes what others have written.
//!
//! An error has a body as all have, an [`ErrorBody`]; its `kind` is the word that clients get of the shuffle's protocol.

use super::{Running, Seen, Starting, running, stored};
use crate::limits::{LIST_ANSWER, LIST_BYTES};
use crate::network::{Asks, LocalNode, waits_for};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use partage_core::base::name::NodeId;
use partage_dialer::Dialer;
use partage_service::shuffle::leader::{ShuffleOverview, ShuffleStage};
use partage_service::shuffle::{RecordKind, ShuffleId, ShuffleOptions, SortColumn};
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use partage_wire::json::ErrorBody;
use partage_wire::shuffle::{
    ShuffleDeleted, ShuffleForm, ShuffleHeld, ShuffleList, ShuffleStored, SortColumnForm,
};
use std::collections::BTreeMap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

const SHUFFLES: &str = "/v1/shuffles";
const SHUFFLE: &str = "/v1/shuffles/{shuffle}";

/// What the routes need.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(super) me: NodeId,
    pub(super) starting: Starting,
    pub(super) seen: watch::Receiver<Option<Seen>>,
    others: Client<HttpConnector, Empty<Bytes>>,
}

/// The routes of a node of a pool.
pub(crate) fn routes(doors: Doors) -> Router {
    Router::new().route(SHUFFLES, get(list)).route(SHUFFLE, get(show).delete(delete)).with_state(doors)
}

pub(super) fn form(overview: &ShuffleOverview) -> ShuffleForm {
    use partage_wire::shuffle::{ShuffleRecords, ShuffleStage as Stage};
    let stage = match overview.stage {
        ShuffleStage::Open => Stage::Open,
        ShuffleStage::Sealing => Stage::Sealing,
        ShuffleStage::Sealed => Stage::Sealed,
        ShuffleStage::Failed(_) => Stage::Failed,
    };
    let options = &overview.options;
    let (kind, order) = match &options.kind {
        RecordKind::Raw => (ShuffleRecords::Raw, Vec::new()),
        RecordKind::Arrow(arrow) => (ShuffleRecords::Arrow, arrow.order.iter().map(column).collect()),
    };
    ShuffleForm {
        shuffle: overview.shuffle.to_string(),
        stage: stage.into(),
        kind: kind.into(),
        order,
        combine: overview.combine.map(|how| how.to_string()),
        durability: overview.durability.into(),
        owner: Some(options.owner.clone()).filter(|owner| !owner.is_empty()),
        unsealed_ttl_ms: options.unsealed_ttl_ms,
        sealed_ttl_ms: options.sealed_ttl_ms,
        ends_in_ms: overview.ends_in_ms,
        waits_for: Some(waits_for(overview)).filter(|what| !what.is_empty()),
        winners: overview.partitions,
        attempts: overview.attempts,
        records: overview.records,
        bytes: overview.bytes,
        bounds_version: overview.version,
        ranges: overview.ranges,
        dividing: overview.dividing,
        short_slots: overview.short_slots,
        lacking: overview.lacking.clone(),
        stored: None,
    }
}

fn column(of: &SortColumn) -> SortColumnForm {
    let SortColumn { column, descends, nulls_first } = *of;
    SortColumnForm { column, descends, nulls_first }
}

async fn list(State(doors): State<Doors>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    let owner = query.get("owner").map_or("", String::as_str);
    let named = ShuffleOptions { owner: owner.to_owned(), ..ShuffleOptions::default() };
    if let Err(why) = named.check() {
        return error(StatusCode::BAD_REQUEST, &ErrorBody::new("malformed", why, "mend it"));
    }
    match doors.list(owner, is_of_node(&query)).await {
        Some(list) => axum::Json(list).into_response(),
        None => ended(),
    }
}

/// Whether this node alone is asked.
fn is_of_node(query: &BTreeMap<String, String>) -> bool {
    query.get("of").is_some_and(|of| of == "node")
}

impl Doors {
    pub(crate) fn new(me: NodeId, starting: Starting, seen: watch::Receiver<Option<Seen>>) -> Doors {
        let others =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(Dialer::PEER.http());
        Doors { me, starting, seen, others }
    }

    /// The shuffles of an owner, or all, of the pool, or only those that this node leads; none: the node ends.
    pub(super) async fn list(&self, owner: &str, is_of_node: bool) -> Option<ShuffleList> {
        let mut own = running(&self.starting).await?.node.overviews().await?;
        own.retain(|overview| owner.is_empty() || overview.options.owner == owner);
        let mut list = ShuffleList { shuffles: own.iter().map(form).collect(), silent: Vec::new() };
        if !is_of_node {
            for (node, body) in self.ask_others(&format!("{SHUFFLES}?of=node&owner={owner}")).await {
                match body.and_then(|body| serde_json::from_slice::<ShuffleList>(&body).ok()) {
                    Some(of_node) => list.shuffles.extend(of_node.shuffles),
                    None => list.silent.push(node.to_string()),
                }
            }
        }
        // While the lead of a slot changes, two nodes may say that they lead it.
        list.shuffles.sort_by(|one, other| one.shuffle.cmp(&other.shuffle));
        list.shuffles.dedup_by(|one, other| one.shuffle == other.shuffle);
        list.silent.sort();
        Some(list)
    }

    /// What all other nodes of the pool answer, each within a bound; none: it has not.
    async fn ask_others(&self, path: &str) -> Vec<(NodeId, Option<Bytes>)> {
        let others = self.seen.borrow().as_ref().map(|seen| seen.addresses.clone()).unwrap_or_default();
        let mut asked = JoinSet::new();
        for (node, address) in others.into_iter().filter(|(node, _)| *node != self.me) {
            let (client, uri) = (self.others.clone(), format!("http://{address}{path}"));
            let asking = async move { timeout(LIST_ANSWER, body_of(&client, uri)).await.ok().flatten() };
            asked.spawn(async move { (node, asking.await) });
        }
        let mut answers = Vec::new();
        while let Some(joined) = asked.join_next().await {
            // If one is not joined, the runtime ends.
            answers.extend(joined.ok());
        }
        answers
    }

    /// Where the records of a shuffle are.
    async fn stored(&self, running: &Running, shuffle: ShuffleId) -> ShuffleStored {
        let (mut held, mut silent) = (vec![stored::held(&self.me, &running.node, shuffle)], Vec::new());
        for (node, body) in self.ask_others(&format!("{SHUFFLES}/{shuffle}?of=node")).await {
            match body.and_then(|body| serde_json::from_slice::<ShuffleHeld>(&body).ok()) {
                Some(of_node) if of_node.node == node.as_str() => held.push(of_node),
                _ => silent.push(node.to_string()),
            }
        }
        let away = stored::in_object_store(&held);
        let plan = match away.is_empty() {
            true => None,
            // Without it the answer says no bytes of what is there.
            false => {
                let plan = timeout(LIST_ANSWER, asks(self, running).plan(shuffle)).await;
                plan.ok().and_then(Result::ok)
            }
        };
        stored::sum(held, plan.map(|plan| stored::bytes_of(&plan, &away)), silent)
    }
}

/// What another node answers; none: it does not, or refuses.
async fn body_of(client: &Client<HttpConnector, Empty<Bytes>>, uri: String) -> Option<Bytes> {
    let answer = client.request(Request::get(uri).body(Empty::new()).ok()?).await.ok()?;
    if answer.status() != StatusCode::OK {
        return None;
    }
    Some(Limited::new(answer.into_body(), LIST_BYTES).collect().await.ok()?.to_bytes())
}

async fn show(
    State(doors): State<Doors>,
    Path(shuffle): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(id) = number(&shuffle) else { return no_number() };
    let Some(running) = running(&doors.starting).await else { return ended() };
    if is_of_node(&query) {
        return axum::Json(stored::held(&doors.me, &running.node, id)).into_response();
    }
    match asks(&doors, &running).overview(id).await {
        Ok(overview) => {
            let stored = Some(doors.stored(&running, id).await);
            axum::Json(ShuffleForm { stored, ..form(&overview) }).into_response()
        }
        Err(refusal) => refused(&refusal),
    }
}

async fn delete(State(doors): State<Doors>, Path(shuffle): Path<String>) -> Response {
    let Some(id) = number(&shuffle) else { return no_number() };
    let Some(running) = running(&doors.starting).await else { return ended() };
    match LocalNode::new(doors.me.clone(), &running.node).delete(id).await {
        Ok(()) => deleted(id),
        // The answer to an earlier request may have been lost.
        Err(refusal) if refusal.word == RefusalWord::ShuffleDeleted => deleted(id),
        Err(refusal) => refused(&refusal),
    }
}

fn deleted(shuffle: ShuffleId) -> Response {
    axum::Json(ShuffleDeleted { shuffle: shuffle.to_string(), deleted: true }).into_response()
}

/// The shuffle of that number, if it is one.
fn number(text: &str) -> Option<ShuffleId> {
    let is_number = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_number).map(ShuffleId)
}

fn no_number() -> Response {
    let body = ErrorBody::new("malformed", "the number of a shuffle is 32 hexadecimal digits", "mend it");
    error(StatusCode::BAD_REQUEST, &body)
}

fn asks(doors: &Doors, running: &Running) -> Asks {
    Asks::new(running.node.shared(), doors.me.clone())
}

/// What is said where the node ends.
pub(super) fn ending() -> Refusal {
    Refusal::new(RefusalWord::Ending, Again::Request, "the node ends: ask another one")
}

fn ended() -> Response {
    refused(&ending())
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal.word {
        RefusalWord::ShuffleUnknown => StatusCode::NOT_FOUND,
        RefusalWord::ShuffleDeleted | RefusalWord::ShuffleExpired => StatusCode::GONE,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let help = if refusal.again == Again::No { "" } else { "try again" };
    error(status, &ErrorBody::new(refusal.word.as_str(), &refusal.why, help))
}

fn error(status: StatusCode, body: &ErrorBody) -> Response {
    let form = [(http::header::CONTENT_TYPE, "application/json")];
    (status, form, Body::from(serde_json::to_vec(body).unwrap_or_default())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::{ArrowKind, Combine, Durability};
    use partage_wire::shuffle::{ShuffleRecords, ShuffleStage as Stage};

    #[test]
    fn a_number_is_32_hexadecimal_digits() {
        let text = format!("{:0>32}", "aF");
        assert_eq!(number(&text), Some(ShuffleId(0xaf)));
        for bad in ["", "af", &text[1..], &format!("{text}0"), &format!("+{}", &text[1..])] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_shuffle_that_is_gone_has_another_status_than_one_that_never_was() {
        let status = |word| refused(&Refusal::new(word, Again::No, "why")).status().as_u16();
        assert_eq!(deleted(ShuffleId(7)).status(), StatusCode::OK);
        assert_eq!(status(RefusalWord::ShuffleUnknown), 404);
        assert_eq!((status(RefusalWord::ShuffleDeleted), status(RefusalWord::ShuffleExpired)), (410, 410));
        assert_eq!(status(RefusalWord::NotLeading), 503);
    }

    #[test]
    fn the_form_of_a_shuffle_says_what_it_waits_for() {
        let order = vec![SortColumn { column: 3, descends: true, nulls_first: false }];
        let kind = RecordKind::Arrow(ArrowKind {
            encoding: 1,
            schema: b"s".as_slice().into(),
            order,
            combine: Vec::new(),
        });
        let options = ShuffleOptions { kind, owner: "etl".to_owned(), ..ShuffleOptions::default() };
        let overview = ShuffleOverview {
            shuffle: ShuffleId(255),
            options: options.into(),
            combine: Some(Combine::Count),
            durability: Durability::Memory,
            stage: ShuffleStage::Sealing,
            partitions: 2,
            attempts: 3,
            records: 10,
            bytes: 100,
            version: 1,
            ranges: 30,
            ends_in_ms: 90_000,
            dividing: 0,
            short_slots: 4,
            lacking: vec![7, 9],
        };
        let told = form(&overview);
        assert_eq!(told.shuffle, format!("{:0>32}", "ff"));
        assert_eq!((told.short_slots, told.lacking.len()), (4, 2));
        assert!(told.stage.is(Stage::Sealing) && told.kind.is(ShuffleRecords::Arrow));
        assert_eq!((told.owner.as_deref(), told.ends_in_ms), (Some("etl"), 90_000));
        assert!(told.combine.as_deref() == Some("count") && told.durability.is(Durability::Memory));
        assert_eq!(told.order, [SortColumnForm { column: 3, descends: true, nulls_first: false }]);
        assert_eq!(told.waits_for.as_deref(), Some("a whole attempt of each of the partitions 7, 9"));
        let open = form(&ShuffleOverview { stage: ShuffleStage::Open, lacking: Vec::new(), ..overview });
        assert_eq!(open.waits_for, None);
    }
}
