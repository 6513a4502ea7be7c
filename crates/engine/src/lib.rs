//! Local storage of shards: what a node keeps on its disk.
//!
//! | part | what it stores | how it changes |
//! |---|---|---|
//! | [`readonly`] | one partition of one version of a dataset, as one file | never: the next version has files of its own |
//! | [`replica`] | one replica of a shard of a table, as a folder of sorted runs | by groups of changes from the log of the node |
//!
//! Nothing here knows of networks, nodes or maps: the services that serve datasets and tables open these stores, feed them and
//! remove them. A call blocks until it is done.

pub mod limits;
pub mod readonly;
pub mod replica;
