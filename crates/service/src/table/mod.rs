//! Tables: a key-value store that keeps what it has acknowledged, on several nodes.
//!
//! | module | what it decides |
//! |---|---|
//! | [`replication`] | how the replicas of a shard keep one log: the state machine of one replica. Entries are bytes to it |
//! | [`split`] | how the children of a split or merge get the data of their parents |
//! | [`copy`] | how fast rows are copied between replicas, and whether a copy that was interrupted goes on |
//! | [`member`] | what a replica takes from the coordinator's orders, and what it reports |
//! | [`filter`] | which rows a scan wants, by what their JSON values have |
//! | [`index`] | what a secondary index has of a row, and in which order |
//! | [`check`] | where the replicas of a shard differ, or an index and the rows |
//! | [`rows`] | what an entry does to the rows of the shard |
//! | [`feed`] | which changes of rows are kept, and up to where a reader has read them |

pub mod check;
pub mod copy;
pub mod feed;
pub mod filter;
pub mod index;
pub mod member;
pub mod replication;
pub mod rows;
pub mod split;
