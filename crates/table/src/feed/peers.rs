//! Asking another node for changes of the shards that it leads.

use super::json::{for_node, from_node};
use super::{Fault, FeedToken, Limits, ShardChanges};
use crate::limits;
use crate::rows::ChangesPage;
use crate::scans::{Peers, TABLES};
use crate::service::{Refusal, Refused};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use partage_core::base::id::ShardId;
use partage_core::base::name::NodeId;
use partage_wire::json::{ErrorBody, ErrorDetail};
use partage_wire::table::{NodeFeedAnswer, NodeFeedRequest, ShardFeed};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

/// The kind of the error of a reader that is too late.
pub(crate) const GONE: &str = "gone";

/// A node that leads some shards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leader {
    pub(super) node: NodeId,
    pub(super) address: String,
}

/// What the other node reads of these shards, or why it does not.
pub(super) async fn ask(
    peers: &Peers,
    leader: &Leader,
    after: &FeedToken,
    shards: &[ShardId],
    limits: Limits,
) -> Vec<ShardChanges> {
    match exchange(peers, leader, after, shards, limits).await {
        Ok(answer) => answer.shards.into_iter().filter_map(|shard| understood(leader, shard)).collect(),
        Err(why) => {
            let why = Refused::new(Refusal::Soon, format!("node {} does not answer: {why}", leader.node));
            let refused =
                |shard: &ShardId| ShardChanges { shard: *shard, read: Err(Fault::Refused(why.clone())) };
            shards.iter().map(refused).collect()
        }
    }
}

async fn exchange(
    peers: &Peers,
    leader: &Leader,
    after: &FeedToken,
    shards: &[ShardId],
    limits: Limits,
) -> Result<NodeFeedAnswer, String> {
    let table = percent_encode(after.table.as_str().as_bytes(), NON_ALPHANUMERIC);
    let uri = format!("http://{}{TABLES}{table}/feed/shards", leader.address);
    let asked = NodeFeedRequest {
        after: after.text(),
        shards: shards.iter().map(|shard| shard.0).collect(),
        limit: limits.most,
        wait_ms: u64::try_from(limits.wait.as_millis()).unwrap_or(u64::MAX),
        ends: limits.ends,
    };
    let body = serde_json::to_vec(&asked).map_err(|error| error.to_string())?;
    let request = Request::post(uri).body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
    let (status, body) =
        peers.exchange(request, limits::SHARD_ANSWER_BYTES).await.map_err(|error| error.why)?;
    let told = || serde_json::from_slice(&body).map(|ErrorBody { error }| error.message);
    match status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map_err(|_| "its answer is not understood".to_owned())
        }
        other => Err(told().unwrap_or_else(|_| other.to_string())),
    }
}

fn understood(leader: &Leader, answer: ShardFeed) -> Option<ShardChanges> {
    let ShardFeed { shard, changes, next, more, error } = answer;
    let shard = ShardId(shard);
    if let Some(ErrorDetail { kind, message, .. }) = error {
        let fault = match Refusal::of_word(&kind) {
            _ if kind == GONE => Fault::Late(message),
            refusal => {
                let message = format!("node {}: {message}", leader.node);
                Fault::Refused(Refused::new(refusal.unwrap_or(Refusal::Soon), message))
            }
        };
        return Some(ShardChanges { shard, read: Err(fault) });
    }
    let progress = FeedToken::parse(&next?).ok()?.progress;
    let changes = changes.into_iter().map(from_node).collect::<Option<_>>()?;
    Some(ShardChanges { shard, read: Ok(ChangesPage { changes, progress, is_end: !more }) })
}

/// What another node is answered.
pub(super) fn answer(after: &FeedToken, found: Vec<ShardChanges>) -> NodeFeedAnswer {
    let shard = |ShardChanges { shard, read }: ShardChanges| {
        let mut answer =
            ShardFeed { shard: shard.0, changes: Vec::new(), next: None, more: false, error: None };
        match read {
            Ok(page) => {
                answer.more = !page.is_end;
                answer.next = Some(FeedToken { progress: page.progress, ..after.clone() }.text());
                answer.changes = page.changes.into_iter().map(for_node).collect();
            }
            Err(Fault::Refused(why)) => {
                answer.error = Some(ErrorBody::told(why.refusal.word(), &why.message, "").error);
            }
            Err(Fault::Late(why)) => answer.error = Some(ErrorBody::told(GONE, why, "").error),
        }
        answer
    };
    NodeFeedAnswer { shards: found.into_iter().map(shard).collect() }
}
