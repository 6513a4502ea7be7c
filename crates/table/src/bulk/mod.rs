//! Requests for several rows at once, from any node: each row is asked of the node that has it.
//!
//! ```text
//!  client ──► any node: Bulk ──► which node has each key?
//!                  │  ▲            (this worker's own gates and hints, else the maps)
//!                  ▼  │ one outcome for each key
//!         this node, and each other node once, side by side: POST …?here=true, which is not sent on
//! ```
//!
//! A key whose shard changes hands meanwhile is asked for again, with what else is still open, for [`limits::PATIENCE`]. What
//! has no outcome then is answered as such: every key has its own outcome, and none stands for others. A write that may have
//! arrived at another node and was not answered is sent again only if it has an idempotency key: none after
//! [`limits::REPEATS`], and each request to a node that has such a write in it takes from the budget (`retry_budget.rs`).
//!
//! | question | file |
//! |---|---|
//! | multi-get, and how many bytes its answer may have | `get.rs` |
//! | multi-put, each row a write of its own | `put.rs` |
//! | a batch, which is one write | `batch.rs` |
//! | how many rows one request may have | `bounds.rs` |

mod batch;
mod bounds;
mod get;
mod put;

pub(crate) use batch::{Batch, BatchError, condition, value};
pub(crate) use bounds::{check_count, check_rows};
pub(crate) use get::{Get, Got};
pub(crate) use put::{Put, PutItem};

use crate::access::TableClient;
use crate::limits;
use crate::scans::{self, Peers, ScanError, Scans, TABLES};
use crate::service::{Refusal, Refused};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::Full;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_core::node::exchange::KeyspaceBrief;
use partage_maps::{Cache, MapsOnDemand};
use partage_wire::json::ErrorBody;
use partage_wire::request::headers::IDEMPOTENCY_KEY;
use partage_worker::Admission;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// What a request for several rows asks of each node.
#[async_trait]
pub(crate) trait Question: Send + Sync {
    /// What is asked of one row.
    type Item: Clone + Send + Sync;
    /// What becomes of it.
    type Answer: Send;

    /// The last part of the path.
    fn path(&self) -> String;

    /// Which row an item is about.
    fn key<'a>(&self, item: &'a Self::Item) -> &'a Key;

    /// Which replicas may answer.
    fn access(&self) -> Access;

    /// Whether it changes nothing.
    fn is_read(&self) -> bool {
        false
    }

    /// By what name a repetition is known as one; none: what may have been done must not be asked again. Reads may always.
    fn is_repeatable(&self) -> bool;

    /// The client's name for the write.
    fn idempotency_key(&self) -> Option<&[u8]>;

    /// Asks this node, and no other one.
    async fn own(&self, client: &TableClient, items: Vec<Self::Item>) -> Vec<Result<Self::Answer, Refused>>;

    /// What another node is sent.
    fn body(&self, items: &[Self::Item]) -> Vec<u8>;

    /// What it has answered, one for each item; none if that is not understood.
    fn understand(&self, body: &[u8]) -> Option<Vec<Result<Self::Answer, Refused>>>;
}

/// The node that has a row, if it is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Own,
    Other { node: NodeId, address: String },
    NotKnown,
}

/// Asks for several rows from one node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bulk {
    client: TableClient,
    maps: Arc<MapsOnDemand>,
    peers: Peers,
}

/// What is open, and why.
struct Open<A>(Vec<Option<Result<A, Refused>>>);

impl Bulk {
    /// From the node that `client` is of, by the maps of its scans.
    pub fn new(client: TableClient, scans: &Scans) -> Bulk {
        let (maps, peers) = scans.ways();
        Bulk { client, maps, peers }
    }

    /// The node alone, without others.
    pub(crate) fn client(&self) -> &TableClient {
        &self.client
    }

    /// The settings of a table: as this node's replicas have them, or the maps.
    pub(crate) async fn table(&self, name: &KeyspaceName) -> Result<KeyspaceBrief, ScanError> {
        let held = self.client.worker().replicas();
        let own = held.iter().map(|replica| &replica.assignment).find(|held| held.keyspace() == name);
        match own {
            Some(held) if held.brief.kind == KeyspaceKind::Table => Ok(held.brief.clone()),
            Some(_) => Err(ScanError::NoTable(name.clone())),
            None => scans::table(&self.maps.cache(), name, Instant::now() + limits::PATIENCE).await,
        }
    }

    /// Asks until each item has its outcome, which come in the order of the items.
    pub(crate) async fn settle<Q: Question>(
        &self,
        table: &KeyspaceName,
        question: &Q,
        items: &[Q::Item],
    ) -> Vec<Result<Q::Answer, Refused>> {
        let is_named = question.is_repeatable() && !question.is_read();
        let patience = if is_named { limits::REPEATS } else { limits::PATIENCE };
        let until = Instant::now() + patience;
        let budget = self.client.budget();
        let cache = self.maps.cache();
        let mut changes = cache.changes();
        let mut outcomes = Open(items.iter().map(|_| None).collect());
        let mut open: Vec<usize> = (0..items.len()).collect();
        for attempt in 0.. {
            changes.mark_unchanged();
            let mut groups: BTreeMap<Owner, Vec<usize>> = BTreeMap::new();
            for at in open {
                let owner = self.owner(&cache, table, question, question.key(&items[at]), attempt);
                groups.entry(owner).or_default().push(at);
            }
            if attempt == 0 {
                budget.earn(groups.len() as u64);
            }
            outcomes.put_off(&mut groups, || budget.spend());
            let asked = groups.into_iter().map(|(owner, group)| async move {
                let wanted = group.iter().map(|at| items[*at].clone()).collect();
                let answers = self.ask(table, question, &owner, wanted).await;
                group.into_iter().zip(answers)
            });
            let mut answered = stream::iter(asked).buffer_unordered(limits::BULK_NODES);
            while let Some(group) = answered.next().await {
                group.for_each(|(at, outcome)| outcomes.take(at, outcome));
            }
            open = outcomes.open(question.is_repeatable());
            if open.is_empty() || Instant::now() >= until {
                break;
            }
            // Another map, or a moment, is a reason to look again.
            let _ = timeout_at(until.min(Instant::now() + limits::LOOK_AGAIN), changes.changed()).await;
        }
        let nothing = || Err(Refused::new(Refusal::Soon, "no node was asked"));
        outcomes.0.into_iter().map(|outcome| outcome.unwrap_or_else(nothing)).collect()
    }

    /// The node that has a row: by what this node knows of its own shards, every other time by the maps.
    fn owner<Q: Question>(
        &self,
        cache: &Cache,
        table: &KeyspaceName,
        question: &Q,
        key: &Key,
        attempt: usize,
    ) -> Owner {
        let hint = match self.client.worker().enter(table, key.as_bytes(), question.access()) {
            Admission::Serve(_) | Admission::Soon => return Owner::Own,
            Admission::Elsewhere { node, address, .. } => Owner::Other { node, address },
            Admission::Lapsed | Admission::Unknown { .. } => Owner::NotKnown,
        };
        let routes = cache.routes();
        let mapped = routes.route(table.as_str(), key.as_bytes()).ok().and_then(|route| {
            let anywhere = question.access() == Access::Read;
            let count = if anywhere { route.replicas().count().max(1) } else { 1 };
            let replica = if anywhere { route.replicas().nth(attempt % count) } else { route.leader() }?;
            Some(Owner::Other { node: replica.node.id.clone(), address: replica.node.address.clone() })
        });
        let own = self.client.worker().node();
        let mapped = mapped.filter(|owner| !matches!(owner, Owner::Other { node, .. } if node == own));
        match (hint, mapped) {
            (Owner::NotKnown, mapped) => mapped.unwrap_or(Owner::NotKnown),
            (hint, Some(mapped)) if attempt % 2 == 1 => {
                drop(hint);
                mapped
            }
            (hint, _) => hint,
        }
    }

    async fn ask<Q: Question>(
        &self,
        table: &KeyspaceName,
        question: &Q,
        owner: &Owner,
        items: Vec<Q::Item>,
    ) -> Vec<Result<Q::Answer, Refused>> {
        let count = items.len();
        let same = |why: Refused| (0..count).map(|_| Err(why.clone())).collect();
        match owner {
            Owner::Own => question.own(&self.client, items).await,
            Owner::Other { node, address } => {
                let answers = self.ask_other(table, question, node, address, &items).await;
                answers.unwrap_or_else(same)
            }
            Owner::NotKnown => {
                let what = format!("no node is known to serve the key in table {table} at this moment");
                same(Refused::new(Refusal::Soon, what))
            }
        }
    }

    async fn ask_other<Q: Question>(
        &self,
        table: &KeyspaceName,
        question: &Q,
        node: &NodeId,
        address: &str,
        items: &[Q::Item],
    ) -> Result<Vec<Result<Q::Answer, Refused>>, Refused> {
        let soon = |why: String| Refused::new(Refusal::Soon, format!("node {node}: {why}"));
        // A read has no outcome that could be unknown.
        let broken = |why: String| match question.is_read() {
            true => soon(why),
            false => Refused::new(Refusal::Unknown, format!("node {node}: {why}")),
        };
        let uri = format!("http://{address}{TABLES}{table}/{}", question.path());
        let mut request =
            Request::post(uri).header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(name) = question.idempotency_key() {
            request = request.header(IDEMPOTENCY_KEY, name);
        }
        let request = request.body(Full::new(Bytes::from(question.body(items))));
        let request = request.map_err(|error| soon(error.to_string()))?;
        let answered = self.peers.exchange(request, limits::BULK_ANSWER_BYTES).await;
        let (status, body) =
            answered.map_err(|none| if none.is_sent { broken(none.why) } else { soon(none.why) })?;
        if status.is_success() {
            let answers = question.understand(&body).filter(|answers| answers.len() == items.len());
            return answers.ok_or_else(|| broken("its answer is not understood".to_owned()));
        }
        let told = serde_json::from_slice(&body).map(|ErrorBody { error }| error);
        let (word, why) =
            told.map_or_else(|_| (String::new(), status.to_string()), |told| (told.kind, told.message));
        Err(match (Refusal::of_word(&word), status) {
            (Some(refusal), _) => Refused::new(refusal, format!("node {node}: {why}")),
            (None, StatusCode::SERVICE_UNAVAILABLE)
                if partage_wire::request::unavailable::is_not_begun(&body) =>
            {
                soon(why)
            }
            (None, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) => {
                Refused::new(Refusal::Invalid, format!("node {node}: {why}"))
            }
            // Of a door, which has let nothing in, or of a table that the node does not know yet.
            (
                None,
                StatusCode::NOT_FOUND | StatusCode::MISDIRECTED_REQUEST | StatusCode::TOO_MANY_REQUESTS,
            ) => soon(why),
            (None, _) => broken(why),
        })
    }
}

impl<A> Open<A> {
    /// Takes in what has become of an item. That an earlier attempt may have done it is not forgotten.
    fn take(&mut self, at: usize, outcome: Result<A, Refused>) {
        if self.is_begun(at) && outcome.is_err() {
            return;
        }
        self.0[at] = Some(outcome);
    }

    fn is_begun(&self, at: usize) -> bool {
        matches!(&self.0[at], Some(Err(why)) if why.refusal == Refusal::Unknown)
    }

    /// Takes out of the groups, each a request to one node, what an earlier attempt may have done and has no token. It stays
    /// open.
    fn put_off(&self, groups: &mut BTreeMap<Owner, Vec<usize>>, spend: impl Fn() -> bool) {
        groups.retain(|owner, group| {
            let is_asked = *owner != Owner::NotKnown;
            if is_asked && group.iter().any(|at| self.is_begun(*at)) && !spend() {
                group.retain(|at| !self.is_begun(*at));
            }
            !group.is_empty()
        });
    }

    /// Which items are asked again.
    fn open(&self, is_repeatable: bool) -> Vec<usize> {
        let is_open = |outcome: &Option<Result<A, Refused>>| match outcome {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(why)) => match why.refusal {
                Refusal::Soon | Refusal::Busy => true,
                Refusal::Unknown => is_repeatable,
                _ => false,
            },
        };
        (0..self.0.len()).filter(|at| is_open(&self.0[*at])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_stays_so_until_an_answer_says_more() {
        let refused = |refusal| Err::<u8, Refused>(Refused::new(refusal, "why"));
        let mut outcomes = Open(vec![None, None, None]);
        outcomes.take(0, refused(Refusal::Soon));
        outcomes.take(1, refused(Refusal::Unknown));
        outcomes.take(2, Ok(7));
        assert_eq!((outcomes.open(true), outcomes.open(false)), (vec![0, 1], vec![0]));
        outcomes.take(1, refused(Refusal::Soon));
        assert_eq!(outcomes.0[1], Some(refused(Refusal::Unknown)), "the first attempt may have done it");
        outcomes.take(0, refused(Refusal::Invalid));
        outcomes.take(1, Ok(8));
        assert_eq!(outcomes.open(true), Vec::<usize>::new());
    }

    #[test]
    fn r3_what_may_have_been_done_waits_for_a_token_and_nothing_else_does() {
        let node = |name: &str| Owner::Other {
            node: NodeId::new(name).expect("a name"),
            address: "127.0.0.1:1".to_owned(),
        };
        let refused = |refusal| Some(Err::<u8, Refused>(Refused::new(refusal, "why")));
        let outcomes =
            Open(vec![refused(Refusal::Unknown), refused(Refusal::Soon), refused(Refusal::Unknown), None]);
        let groups = || {
            BTreeMap::from([
                (Owner::Own, vec![0, 1]),
                (Owner::NotKnown, vec![2]),
                (node("n1"), vec![2]),
                (node("n2"), vec![3]),
            ])
        };
        let mut without = groups();
        outcomes.put_off(&mut without, || false);
        let left = [(Owner::Own, vec![1]), (Owner::NotKnown, vec![2]), (node("n2"), vec![3])];
        assert_eq!(without, BTreeMap::from(left));
        let (mut with, spent) = (groups(), std::cell::Cell::new(0));
        outcomes.put_off(&mut with, || {
            spent.set(spent.get() + 1);
            true
        });
        assert_eq!((with, spent.get()), (groups(), 2), "a token for each request to a node");
    }
}
