//! By which labels the nodes of a pool know each other, and the coordinator knows which of them store.
//!
//! | label of a node of the pool `default` | says |
//! |---|---|
//! | `shuffle-buffer:default` | it takes attempts of clients |
//! | `shuffle-storage:default` | it stores records: the constraint of the pool's keyspace lets slots only be there |
//!
//! A node registers with them, and the maps tell them to all other nodes. So a pool knows a node before it has a slot, and
//! nodes of two pools that share a coordinator do not take each other for stand-ins.
//!
//! What was not done: frames do not name the pool of their sender. A node that starts again in another pool, under its old
//! name and address, is still sent batches of its old slots, until the coordinator has replaced its replicas.

use crate::node::Roles;
use partage_core::base::name::{KeyspaceName, Label, NameError};

/// The labels of the nodes of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolLabels {
    pub(crate) buffer: Label,
    pub(crate) storage: Label,
}

impl PoolLabels {
    pub(crate) fn of(pool: &KeyspaceName) -> Result<PoolLabels, NameError> {
        Ok(PoolLabels {
            buffer: Label::new(&format!("shuffle-buffer:{pool}"))?,
            storage: Label::new(&format!("shuffle-storage:{pool}"))?,
        })
    }

    /// Those of a node with such roles.
    pub(crate) fn of_roles(&self, roles: Roles) -> Vec<String> {
        let buffer = roles.buffers().then(|| self.buffer.to_string());
        let storage = roles.stores().then(|| self.storage.to_string());
        buffer.into_iter().chain(storage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_label_of_the_pool() {
        let labels = PoolLabels::of(&"etl".parse().unwrap()).unwrap();
        assert_eq!(labels.of_roles(Roles::Both), ["shuffle-buffer:etl", "shuffle-storage:etl"]);
        assert_eq!(labels.of_roles(Roles::Buffer), ["shuffle-buffer:etl"]);
        assert_eq!(labels.of_roles(Roles::Storage), ["shuffle-storage:etl"]);
    }
}
