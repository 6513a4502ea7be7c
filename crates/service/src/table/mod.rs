//! Tables: a key-value store that keeps what it has acknowledged, on several nodes.
//!
//! | module | what it decides |
//! |---|---|
//! | [`replication`] | the machine of one stored replica: it keeps the log of its shard alike on all of them. It knows nothing of keys and rows; an entry is bytes to it |
//! | [`split`] | how the children of shards that are split or merged come to what their parents have |
//! | [`member`] | what a replica takes from the coordinator's orders, and what it reports |
//! | [`filter`] | which rows a scan wants, by what their JSON values have |
//! | [`index`] | what a secondary index has of a row, and in which order |
//! | [`check`] | where the replicas of a shard differ, or an index and the rows |
//! | [`rows`] | what an entry does to the rows of the shard |
//! | [`feed`] | which changes of rows are kept, and what a reader of them has |

pub mod check;
pub mod feed;
pub mod filter;
pub mod index;
pub mod member;
pub mod replication;
pub mod rows;
pub mod split;
