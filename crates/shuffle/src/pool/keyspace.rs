//! The keyspace of a pool: the first node that does not find it creates it, and all ask how many replicas it is to have.

use partage_core::base::name::{KeyspaceName, Label};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::sharding::Sharding;
use partage_core::keyspace::{Constraint, Keyspace, KeyspaceKind, Ownership, Throttle};
use partage_wire::proto::{self, CreateKeyspace, command_request::Command};
use partage_worker::KeyspaceAdmin;

/// A replica whose node is dead is waited for so long before another node copies its slot. Shorter than for tables: what shuffles
/// have lives for minutes, and stand-ins take what comes meanwhile.
const REPLACE_AFTER_MS: u64 = 60_000;

/// The pool as its nodes want it, where it is not there yet.
#[derive(Debug, Clone)]
pub(crate) struct PoolSpec {
    /// Its keyspace.
    pub(crate) name: KeyspaceName,
    /// Slots of it.
    pub(crate) slots: u32,
    /// Replicas of each slot.
    pub(crate) replicas: u32,
    /// The label of nodes that store: its slots are nowhere else.
    pub(crate) storage: Label,
}

/// What nodes go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// R: everything is stored on so many nodes.
    pub(crate) replicas: u32,
    /// Slots are only on nodes with the label of those that store.
    pub(crate) is_parted: bool,
}

/// Why there is no pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A keyspace of that name is something else.
    #[error(
        "there is a keyspace {0} that is no pool: {1}; name another pool with --pool, or delete that keyspace"
    )]
    Taken(KeyspaceName, String),
    /// The node is to store nothing, and the keyspace lets the coordinator place slots on it.
    #[error(
        "the slots of pool {0} may be on any node, and this one is to store nothing: let them only be on nodes that store, \
         `partage keyspace update {0} --label {1}`, or start the node with both roles"
    )]
    Unparted(KeyspaceName, Label),
    /// No coordinator has answered, or it refuses.
    #[error("no coordinator sees to the pool: {0}")]
    NoCoordinator(String),
}

impl PoolSpec {
    fn keyspace(&self) -> Keyspace {
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: self.slots };
        Keyspace {
            kind: KeyspaceKind::Shuffle,
            ownership: Ownership::Eventual,
            durable: true,
            replicas: self.replicas,
            constraint: Constraint { labels: [self.storage.clone()].into(), ..Constraint::default() },
            throttle: Throttle { replace_after_ms: REPLACE_AFTER_MS, ..Throttle::default() },
            ..Keyspace::new(self.name.clone(), sharding)
        }
    }
}

/// Whether a keyspace can be a pool.
fn check(found: &Keyspace, storage: &Label) -> Result<Settings, PoolError> {
    let taken = |what: String| PoolError::Taken(found.name.clone(), what);
    let is_fixed = matches!(found.sharding, Sharding::Fixed { hash: HashFunction::Xxh3_64, .. });
    match found {
        _ if found.kind != KeyspaceKind::Shuffle => Err(taken(format!("it is of kind {}", found.kind))),
        _ if !is_fixed => Err(taken("it has no fixed slots by xxh3-64".to_owned())),
        _ if found.ownership != Ownership::Eventual => {
            Err(taken(format!("its ownership is {}", found.ownership)))
        }
        _ if !found.durable => Err(taken("it is not durable".to_owned())),
        _ => {
            let is_parted = found.constraint.labels.contains(storage);
            Ok(Settings { replicas: found.replicas, is_parted })
        }
    }
}

/// Creates the pool if it is not there, at the first coordinator that answers. How many replicas it has.
pub(crate) async fn ensure(coordinators: &[String], spec: &PoolSpec) -> Result<Settings, PoolError> {
    let found = ask(coordinators, &spec.name, Some(spec)).await?;
    let gone = || PoolError::NoCoordinator(format!("keyspace {} was deleted again", spec.name));
    check(&found.ok_or_else(gone)?, &spec.storage)
}

/// How many replicas the pool has. None: it is not there.
pub(crate) async fn look(coordinators: &[String], spec: &PoolSpec) -> Result<Option<Settings>, PoolError> {
    let found = ask(coordinators, &spec.name, None).await?;
    found.map(|found| check(&found, &spec.storage)).transpose()
}

/// The keyspace of a pool, from the first coordinator that answers; `creates` says what it creates if it is not there.
async fn ask(
    coordinators: &[String],
    pool: &KeyspaceName,
    creates: Option<&PoolSpec>,
) -> Result<Option<Keyspace>, PoolError> {
    let found = |admin| found_at(admin, pool, creates);
    KeyspaceAdmin::first_answer(coordinators, found).await.map_err(PoolError::NoCoordinator)
}

async fn found_at(
    mut admin: KeyspaceAdmin,
    pool: &KeyspaceName,
    creates: Option<&PoolSpec>,
) -> Result<Option<Keyspace>, String> {
    let found = admin.get(pool.as_str()).await?;
    let Some(spec) = creates.filter(|_| found.is_none()) else { return Ok(found) };
    let keyspace = Some(proto::Keyspace::from(&spec.keyspace()));
    // Nodes that are still to join will have the replicas for which there are too few nodes now.
    let create = CreateKeyspace { keyspace, presplit: None, ahead: true };
    admin.carry_out(Command::CreateKeyspace(create)).await?;
    admin.get(pool.as_str()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_nodes_create_is_one_that_they_take() {
        let storage = Label::new("shuffle-storage:default").unwrap();
        let spec =
            PoolSpec { name: "default".parse().unwrap(), slots: 256, replicas: 2, storage: storage.clone() };
        let keyspace = spec.keyspace();
        assert_eq!(keyspace.check(), Ok(()));
        assert_eq!(check(&keyspace, &storage), Ok(Settings { replicas: 2, is_parted: true }));
        let anywhere = Keyspace { constraint: Constraint::default(), ..keyspace.clone() };
        assert_eq!(check(&anywhere, &storage), Ok(Settings { replicas: 2, is_parted: false }));
        let others = [
            Keyspace { kind: KeyspaceKind::App, ..keyspace.clone() },
            Keyspace { sharding: Sharding::KeyRange, ..keyspace.clone() },
            Keyspace { ownership: Ownership::Exclusive, ..keyspace.clone() },
            Keyspace { durable: false, ..keyspace.clone() },
        ];
        for other in others {
            assert!(matches!(check(&other, &storage), Err(PoolError::Taken(..))), "{other:?}");
        }
    }
}
