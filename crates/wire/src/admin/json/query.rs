//! What may stand behind the `?` of a URL.

use crate::Malformed;
use crate::json::KeyText;
use serde::Deserialize;
use utoipa::IntoParams;

/// The page of a keyspace's shards to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ShardPage {
    /// The shard id after which the page begins; absent = the page begins with the first shard.
    pub after: Option<u64>,
    /// The highest number of shards in the answer, 1 to 10000; absent = 1000.
    pub limit: Option<usize>,
}

/// The page of plans to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PlanPage {
    /// The keyspace whose plans are listed; absent = all keyspaces.
    pub keyspace: Option<String>,
    /// The plan number below which the page begins; absent = the page begins with the newest plan.
    pub before: Option<u64>,
    /// The highest number of plans in the answer, 1 to 10000; absent = 1000.
    pub limit: Option<usize>,
}

/// The number of a node's shards to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodePage {
    /// The highest number of shards of the node in the answer, 1 to 10000; absent = 1000.
    pub limit: Option<usize>,
}

/// The query parameters that choose the events to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventPage {
    /// The place after which the page begins, the `next` of an earlier answer; absent = the latest events.
    pub after: Option<String>,
    /// The time before which no event is listed, in milliseconds of Unix time; absent = no such limit.
    pub since_ms: Option<u64>,
    /// The keyspace whose events are listed; absent = all events.
    pub keyspace: Option<String>,
    /// The node whose events are listed; absent = all events.
    pub node: Option<String>,
    /// The highest number of events in the answer, 1 to 10000; absent = 1000.
    pub limit: Option<usize>,
}

/// The moves in progress to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichMoves {
    /// The keyspace whose moves are listed; absent = all keyspaces.
    pub keyspace: Option<String>,
    /// The highest number of moves in the answer, 1 to 10000; absent = 1000.
    pub limit: Option<usize>,
}

/// The key to explain, as text or as hex digits: exactly one of the two.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichKey {
    /// The key as text.
    pub key: Option<String>,
    /// The key as hex digits, two for each byte.
    pub key_hex: Option<String>,
}

impl TryFrom<WhichKey> for KeyText {
    type Error = Malformed;
    fn try_from(which: WhichKey) -> Result<KeyText, Malformed> {
        match (which.key, which.key_hex) {
            (Some(text), None) => Ok(KeyText::Text(text)),
            (None, Some(hex)) => Ok(KeyText::Hex { hex }),
            (None, None) | (Some(_), Some(_)) => {
                Err(Malformed::new("query", "give either key=TEXT or key_hex=HEX DIGITS"))
            }
        }
    }
}

/// The time for which a heartbeat may wait for news.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Patience {
    /// The longest time for which the coordinator holds back its answer until it has news, 0 to 30000 milliseconds;
    /// absent = 0. It never waits longer than a third of the lease, which runs on meanwhile.
    pub wait_ms: Option<u64>,
}
