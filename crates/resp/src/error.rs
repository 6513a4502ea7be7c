//! Errors of the table, as Redis clients know them.
//!
//! Clients tell errors apart by the first word. A word on which they retry stands only before an error that certainly did
//! nothing; an unknown outcome has a word of its own that no client knows, so that none retries.
//!
//! | error | word | what clients do |
//! |---|---|---|
//! | too few in sync | `NOREPLICAS` | give it to the caller |
//! | a queue is full | `TRYAGAIN` | go-redis and cluster clients try again |
//! | the disk of the leader is full | `MISCONF` | give it to the caller |
//! | no leader | `CLUSTERDOWN` | go-redis and cluster clients try again |
//! | led elsewhere | `MOVED` | cluster clients follow |
//! | beyond a limit | `ERR` | give it to the caller |
//! | outcome unknown | `UNKNOWN` | give it to the caller |

use crate::reply::Reply;
use crate::table::RequestError;
use partage_service::table::rows::{Outcome, Refusal};

/// What a client gets for an error of the table.
pub fn reply(error: &RequestError) -> Reply {
    Reply::Error(match error {
        RequestError::TooFewInSync(why) => {
            format!("NOREPLICAS Not enough good replicas to write: {why}; nothing was done")
        }
        RequestError::Busy(why) => format!("TRYAGAIN {why}; nothing was done"),
        RequestError::DiskIsFull(why) => format!("MISCONF {why}; nothing was done"),
        RequestError::NotServed(why) => format!("CLUSTERDOWN Hash slot not served: {why}; nothing was done"),
        RequestError::Invalid(why) => format!("ERR {why}"),
        RequestError::Moved { slot, address } => format!("MOVED {slot} {address}"),
        RequestError::Unknown(why) => {
            format!("UNKNOWN the write may or may not be done: {why}; read before you send it again")
        }
    })
}

/// What a client gets when a row is not fit for the operation.
pub fn refusal(refusal: Refusal) -> Reply {
    Reply::error(match refusal {
        Refusal::NotANumber => "value is not an integer or out of range",
        Refusal::Overflow => "increment or decrement would overflow",
        Refusal::TooLong => {
            return Reply::error(format_args!(
                "string exceeds maximum allowed size ({} bytes)",
                partage_core::limits::VALUE_BYTES
            ));
        }
    })
}

/// What the listener never asks for.
pub fn unexpected(outcome: &Outcome) -> Reply {
    Reply::Error(format!("UNKNOWN the write may or may not be done: the answer was {outcome:?}"))
}

/// `keys` do not belong together.
pub fn cross_slot() -> Reply {
    Reply::Error("CROSSSLOT Keys in request don't hash to the same slot".to_owned())
}

/// The command cannot be understood.
pub fn syntax() -> Reply {
    Reply::error("syntax error")
}

/// A number was expected.
pub fn not_a_number() -> Reply {
    Reply::error("value is not an integer or out of range")
}
