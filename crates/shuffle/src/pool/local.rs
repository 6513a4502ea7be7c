//! A pool, for other protocols that one of its nodes speaks: they are told of it before the node runs, and wait for it.

use super::http::{Doors, ending, form};
use super::running;
use crate::network::LocalNode;
use partage_core::base::name::NodeId;
use partage_service::shuffle::{ShuffleId, ShuffleOptions};
use partage_shuffle_wire::client::Refusal;
use partage_wire::shuffle::{ShuffleForm, ShuffleList};
use std::collections::BTreeMap;
use std::fmt;

/// A pool, as one node of it knows it. A copy is the same pool.
#[derive(Clone)]
pub struct LocalPool {
    doors: Doors,
    protocol_bytes: u64,
}

impl fmt::Debug for LocalPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalPool").field("node", &self.doors.me).finish_non_exhaustive()
    }
}

impl LocalPool {
    pub(crate) fn new(doors: Doors, protocol_bytes: u64) -> LocalPool {
        LocalPool { doors, protocol_bytes }
    }

    /// What the other protocol may take in memory, of the memory of the node.
    pub fn protocol_bytes(&self) -> u64 {
        self.protocol_bytes
    }

    /// The node of this process, as soon as it runs.
    ///
    /// # Errors
    /// It ends.
    pub async fn node(&self) -> Result<LocalNode, Refusal> {
        let running = running(&self.doors.starting).await.ok_or_else(ending)?;
        Ok(LocalNode::new(self.doors.me.clone(), &running.node))
    }

    /// Where the nodes of the pool are, as `host:port`, by their names.
    pub fn addresses(&self) -> BTreeMap<NodeId, String> {
        self.doors.seen.borrow().as_ref().map(|seen| seen.addresses.clone()).unwrap_or_default()
    }

    /// The shuffles of the pool that an owner has, or all: all nodes are asked.
    ///
    /// # Errors
    /// That is no owner, or the node ends.
    pub async fn list(&self, owner: &str) -> Result<ShuffleList, Refusal> {
        ShuffleOptions { owner: owner.to_owned(), ..ShuffleOptions::default() }.check()?;
        self.doors.list(owner, false).await.ok_or_else(ending)
    }

    /// How a shuffle is, as `GET /v1/shuffles/<number>` says it, but for where its records are: no other node is asked.
    ///
    /// # Errors
    /// There is no such shuffle, or no leader answers.
    pub async fn status(&self, shuffle: ShuffleId) -> Result<ShuffleForm, Refusal> {
        Ok(form(&self.node().await?.overview(shuffle).await?))
    }
}
