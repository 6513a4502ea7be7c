//! What may stand behind the `?` of a URL.

use super::text::KeyText;
use crate::Malformed;
use serde::Deserialize;
use utoipa::IntoParams;

/// Which page of a keyspace's shards.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ShardPage {
    /// Only shards with higher ids.
    pub after: Option<u64>,
    /// How many at most: 1 to 10000; 1000 when absent.
    pub limit: Option<usize>,
}

/// Which page of the plans.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PlanPage {
    /// Only plans of this keyspace.
    pub keyspace: Option<String>,
    /// Only plans with lower numbers.
    pub before: Option<u64>,
    /// How many at most: 1 to 10000; 1000 when absent.
    pub limit: Option<usize>,
}

/// How much of a node.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodePage {
    /// How many of its shards at most: 1 to 10000; 1000 when absent.
    pub limit: Option<usize>,
}

/// The query parameters that choose the events to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventPage {
    /// Only those after this place, `next` of an answer, the oldest first; absent = the latest.
    pub after: Option<String>,
    /// Only those at this time or later, in milliseconds of Unix time.
    pub since_ms: Option<u64>,
    /// Only those about this keyspace.
    pub keyspace: Option<String>,
    /// Only those about this node.
    pub node: Option<String>,
    /// How many at most: 1 to 10000; 1000 when absent.
    pub limit: Option<usize>,
}

/// Which of the moves in progress.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichMoves {
    /// Only those of this keyspace.
    pub keyspace: Option<String>,
    /// How many at most: 1 to 10000; 1000 when absent.
    pub limit: Option<usize>,
}

/// Which key: one of both.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhichKey {
    /// As text.
    pub key: Option<String>,
    /// As hex digits, two a byte.
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

/// How long a heartbeat may wait for news.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Patience {
    /// At most 30000, and never longer than a third of the lease, which would run out meanwhile; 0 when
    /// absent.
    pub wait_ms: Option<u64>,
}
