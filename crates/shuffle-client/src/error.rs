//! What can go wrong, and whether to try again.

use crate::{BadShuffleOptions, NoNumber, TotalTooLarge};
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES};
use partage_shuffle_wire::Malformed;
use partage_shuffle_wire::client::{Again, Refusal, RefusalWord};
use partage_shuffle_wire::transport::{Address, Closed};
use std::sync::Arc;
use std::time::Duration;

/// Why something was not done. [`Error::again`] says what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The client was given no address.
    #[error("no node of shuffles is named: name at least one")]
    NoAddress,
    /// No node has accepted a connection.
    #[error("no node of shuffles is reachable: {0}")]
    NoNode(String),
    /// A node has refused a request; its refusal says whether to ask again.
    #[error("node {node} refuses: {refusal}")]
    Refused {
        /// The address of the node that has refused.
        node: Address,
        /// Why, and what to do.
        refusal: Refusal,
    },
    /// The connection to a node has ended.
    #[error("the connection to node {node} has ended: {why}")]
    Lost {
        /// The address of the node at the other end.
        node: Address,
        /// Why this end gave it up, or what the other end said.
        why: Closed,
    },
    /// A node has not answered in time.
    #[error("node {node} has not answered within {within:?}")]
    Late {
        /// The address of the node that was asked.
        node: Address,
        /// How long the client has waited for the answer.
        within: Duration,
    },
    /// A node answers what the client has not asked for.
    #[error("node {node} has answered something else than {asked}: use the same version on both sides")]
    Unexpected {
        /// The address of the node that has answered; its version may be another one.
        node: Address,
        /// What the client has asked for.
        asked: &'static str,
    },
    /// What was read is not as much as the node says.
    #[error(
        "node {node} has sent {found} records of {found_bytes} bytes, and says that there are {expected} of {expected_bytes}"
    )]
    Differs {
        /// The address of the node that was read from.
        node: Address,
        /// Records that came before the end of the read.
        found: u64,
        /// Their keys and values, in bytes.
        found_bytes: u64,
        /// Records, as the node says.
        expected: u64,
        /// Their bytes, as the node says.
        expected_bytes: u64,
    },
    /// A record is larger than records may be.
    #[error(
        "a record has a key of {key} bytes and a value of {value} bytes: a key may have {}, and a record {}",
        SHUFFLE_KEY_BYTES,
        SHUFFLE_RECORD_BYTES
    )]
    TooLarge {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
    },
    /// A shuffle is not started with such options.
    #[error("{0}")]
    BadOptions(#[from] BadShuffleOptions),
    /// Bytes that were given as records are none.
    #[error("these are no records: {0}")]
    NoRecords(Malformed),
    /// A shuffle that does not combine records is read as if it did.
    #[error(
        "the shuffle does not combine records, as its handle says: read it as it is, or give the handle that its start has printed"
    )]
    CombinesNothing,
    /// A record has a value that is no number.
    #[error("the record of key {key:?} cannot be combined with others: {why}")]
    NoNumber {
        /// The first 100 bytes of the key; those that are no printable ASCII are escaped.
        key: String,
        /// How many bytes the value has, and how the shuffle combines.
        why: NoNumber,
    },
    /// What the records of one key give together is too large.
    #[error("the records of key {key:?} cannot be combined: {why}")]
    TotalTooLarge {
        /// The first 100 bytes of the key; those that are no printable ASCII are escaped.
        key: String,
        /// The way to combine whose total does not fit.
        why: TotalTooLarge,
    },
    /// What produces or takes the records has failed.
    #[error("{0}")]
    Own(Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// An error of the code that produces or takes the records. It is not tried again.
    pub fn own(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Own(Arc::new(error))
    }

    /// What to do: nothing, as it would fail again; ask again; or run the attempt again, under another id.
    /// [`crate::Client`] has done so already, within its retry budget, in all of its calls but [`crate::Client::open`].
    pub fn again(&self) -> Again {
        match self {
            Error::Refused { refusal, .. } => refusal.again,
            Error::Lost { why, .. } => again_after(why),
            Error::NoNode(_) | Error::Late { .. } | Error::Differs { .. } => Again::Request,
            Error::NoAddress
            | Error::Unexpected { .. }
            | Error::TooLarge { .. }
            | Error::BadOptions(_)
            | Error::NoRecords(_)
            | Error::CombinesNothing
            | Error::NoNumber { .. }
            | Error::TotalTooLarge { .. }
            | Error::Own(_) => Again::No,
        }
    }

    /// Whether an attempt that has failed so may succeed when it is run again.
    pub fn runs_again(&self) -> bool {
        self.again() != Again::No
    }

    /// What the node that refuses calls it; none: no node has refused.
    pub fn word(&self) -> Option<RefusalWord> {
        match self {
            Error::Refused { refusal, .. } | Error::Lost { why: Closed::Refused(refusal), .. } => {
                Some(refusal.word)
            }
            _ => None,
        }
    }
}

/// A connection that ends takes its attempt along; only what would end each connection is not tried again.
fn again_after(why: &Closed) -> Again {
    match why {
        Closed::Refused(refusal) => refusal.again,
        Closed::Frame(error) => Refusal::from(error).again,
        Closed::Ended
        | Closed::Late(_)
        | Closed::Silent(_)
        | Closed::Stalled(_)
        | Closed::Broken
        | Closed::Failed(..) => Again::Attempt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_whether_to_run_the_attempt_again() {
        let node: Address = "127.0.0.1:1".parse().unwrap();
        let refused = |again| Error::Refused {
            node: node.clone(),
            refusal: Refusal::new(RefusalWord::TooFewNodes, again, "two of three nodes are away"),
        };
        assert_eq!(refused(Again::No).again(), Again::No);
        assert_eq!(refused(Again::Attempt).again(), Again::Attempt);
        assert_eq!(refused(Again::No).word(), Some(RefusalWord::TooFewNodes));
        assert!(refused(Again::No).to_string().contains("127.0.0.1:1 refuses: too-few-nodes: two of"));
        assert!(Error::Lost { node: node.clone(), why: Closed::Ended }.runs_again());
        assert!(!Error::TooLarge { key: 70_000, value: 0 }.runs_again());
        assert!(!Error::own(std::io::Error::other("the file is gone")).runs_again());
        assert_eq!(Error::Late { node, within: Duration::from_secs(1) }.again(), Again::Request);
    }
}
