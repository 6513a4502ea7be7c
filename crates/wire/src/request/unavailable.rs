//! What a node's 503 says as the `kind` of its error ([`ErrorBody`]): whether the request was begun.
//!
//! | `kind`                | the request                                 | may be sent again          |
//! |-----------------------|---------------------------------------------|----------------------------|
//! | `soon`                | not begun: the shard is handed over         | always                     |
//! | `lapsed`              | not begun: the node has no lease            | always                     |
//! | `unreachable`         | not sent: the owner's address does not open | always                     |
//! | `too_few_in_sync`     | not begun: a table's shard has too few replicas in sync | always         |
//! | `busy`                | not begun: too many requests wait           | always                     |
//! | `moved`               | begun, and ended for a hand-over            | if it can be done twice    |
//! | `lapsed_while_served` | done, perhaps after the lease ran out       | if it can be done twice    |

use crate::json::ErrorBody;

/// Not begun: the shard is being handed over.
pub const SOON: &str = "soon";

/// Not begun: the node does not hear its coordinator, and its lease is over.
pub const LAPSED: &str = "lapsed";

/// Not sent: no connection to the owner opened.
pub const UNREACHABLE: &str = "unreachable";

/// Not begun: a write needs more in-sync replicas of the table's shard than there are.
pub const TOO_FEW_IN_SYNC: &str = "too_few_in_sync";

/// Not begun: as many requests as may wait do so.
pub const BUSY: &str = "busy";

/// Begun, and ended because the shard had to be handed over.
pub const MOVED: &str = "moved";

/// Carried out, but the lease ran out meanwhile: another owner may have begun.
pub const LAPSED_WHILE_SERVED: &str = "lapsed_while_served";

/// A 504, not a 503, where a service tells its writes apart by the status: the request may or may not have been carried out.
pub const UNKNOWN_OUTCOME: &str = "unknown_outcome";

/// The kind of the error that a body is; none: it is no error of Partage.
pub fn kind_of(body: &[u8]) -> Option<String> {
    serde_json::from_slice(body).ok().map(|ErrorBody { error }| error.kind)
}

/// Whether that body of a 503 says that nothing was done for certain.
pub fn is_not_begun(body: &[u8]) -> bool {
    let kind = kind_of(body);
    matches!(kind.as_deref(), Some(SOON | LAPSED | UNREACHABLE | TOO_FEW_IN_SYNC | BUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_says_so_was_not_begun() {
        let not_begun = [SOON, LAPSED, UNREACHABLE, TOO_FEW_IN_SYNC, BUSY].map(|kind| (kind, true));
        let begun = [MOVED, LAPSED_WHILE_SERVED, UNKNOWN_OUTCOME].map(|kind| (kind, false));
        for (kind, is_not) in not_begun.into_iter().chain(begun) {
            assert_eq!(is_not_begun(&ErrorBody::new(kind, "why", "try again").bytes()), is_not, "{kind}");
        }
        for other in ["", "soon", r#"{"error":"soon","message":"why"}"#, r#"{"kind":"soon"}"#] {
            assert!(!is_not_begun(other.as_bytes()), "{other}");
        }
    }
}
