//! Datasets: what a batch job wrote to a folder or a bucket, served by key.
//!
//! A batch job writes a version as files; each node loads its share of the partitions, builds store files of them, and
//! serves the old version until every partition of the new one is on some node. Then it serves the new one only.
//!
//! ```text
//!  source          format              store file             catalogue           serve
//!  where files     what records        one for each           what this node      HTTP, to clients
//!  are       ──►   are in them   ──►   partition        ──►   has, and who  ──►   and to peers
//!                                      (engine)               has the rest
//! ```
//!
//! What is decided (which partition a key is in, which partitions are a node's, when a version is upgraded to or
//! removed, which peer is asked next) is in `partage_service::dataset`.

pub mod build;
pub mod catalogue;
pub mod format;
pub mod limits;
pub mod local;
pub mod node;
pub mod serve;
pub mod settings;
pub mod source;
