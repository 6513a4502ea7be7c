//! What a node's 503 says in its body, `{"error": "…", "message": "…"}`: whether the request was begun.
//!
//! | `error`               | the request                                 | may be sent again          |
//! |-----------------------|---------------------------------------------|----------------------------|
//! | `soon`                | not begun: the shard is handed over         | always                     |
//! | `lapsed`              | not begun: the node has no lease            | always                     |
//! | `unreachable`         | not sent: the owner's address does not open | always                     |
//! | `moved`               | begun, and ended for a hand-over            | if it can be done twice    |
//! | `lapsed_while_served` | done, perhaps after the lease ran out       | if it can be done twice    |

/// Not begun: the shard is being handed over.
pub const SOON: &str = "soon";

/// Not begun: the node does not hear its coordinator, and its lease is over.
pub const LAPSED: &str = "lapsed";

/// Not sent: no connection to the owner opened.
pub const UNREACHABLE: &str = "unreachable";

/// Begun, and ended because the shard had to be handed over.
pub const MOVED: &str = "moved";

/// Carried out, but the lease ran out meanwhile: another owner may have begun.
pub const LAPSED_WHILE_SERVED: &str = "lapsed_while_served";

/// Whether after that `error` nothing was done for certain.
pub fn is_not_begun(error: &str) -> bool {
    matches!(error, SOON | LAPSED | UNREACHABLE)
}
