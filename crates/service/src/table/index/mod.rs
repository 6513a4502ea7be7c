//! Local secondary indexes: a shard has, beside its rows, an entry for each row whose JSON value has a given field.
//!
//! ```text
//!  rows of the shard                        entries of index "by-size", field size
//!  a  {"size": 7, …}                        number 3 · c
//!  b  no JSON                      ──►      number 7 · a
//!  c  {"size": 3.0, …}                      text "x" · d
//!  d  {"size": "x"}
//! ```
//!
//! | question | answer |
//! |---|---|
//! | what is in it | booleans, numbers and texts ([`IndexedValue`]); a row without the field, with `null`, an object or a list there, or whose value is not JSON is not in the index |
//! | in which order | by kind, then by value, then by key of the row ([`IndexedValue::encode`]) |
//! | when it changes | in the entry of the log that changes the row: replicas, snapshots, splits and merges have index and rows from one state |
//! | how it begins | by entries of the log, each of which adds the rows of a stretch of keys; writes keep it up from the first of them on |
//! | how it ends | by entries of the log, each of which removes some of its entries; the next one begins where the last one ended |
//!
//! An index has the same number in all shards, which follows from its name and its path ([`IndexId::of`]): the entries of shards
//! that are merged need not be renamed, and two requests to create the same index are one.

mod definition;
mod merge;
mod overview;
mod query;
#[cfg(test)]
mod tests;
mod value;

pub use definition::{Definition, IndexChange, IndexId, IndexState, joined};
pub use merge::Merge;
pub use overview::{Overview, TableState, lacking, overview};
pub use query::{IndexQuery, QueryError};
pub use value::{IndexedValue, encoded_value, is_cut, kind_end};
