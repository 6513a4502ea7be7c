//! Protobuf to and from core, one file for each family of messages.
//!
//! Outwards is `From<&core>` and cannot fail. Inwards is `TryFrom<proto>` and names the field that is wrong.

mod admin;
mod command;
pub(crate) mod exchange;
mod keyspace;
mod map;
pub(crate) mod node;
mod plan;
mod sharding;
mod stored;
#[cfg(test)]
mod tests;

use crate::Malformed;
use crate::limits;

/// A sentence from outside, cut to [`limits::SENTENCE_BYTES`] at a character's end.
pub(crate) fn sentence(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(limits::SENTENCE_BYTES));
    text
}

/// Refuses a text that is longer than `limit` bytes.
pub(crate) fn at_most(text: String, field: &str, limit: usize) -> Result<String, Malformed> {
    match text.len() {
        bytes if bytes > limit => {
            Err(Malformed::new(field, format!("has {bytes} bytes: the limit is {limit}")))
        }
        _ => Ok(text),
    }
}
