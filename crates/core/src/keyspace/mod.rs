//! A keyspace: a named set of keys, sharded one way, and how its owner wants it run.

pub mod hash;
pub mod key;
pub mod lifecycle;
pub mod lookup;
pub mod map;
pub mod sharding;

use crate::base::name::{KeyspaceName, Label, NodeId};
use crate::keyspace::sharding::{PartitionKey, Sharding};
use crate::limits;
use std::collections::BTreeSet;
use std::fmt;

/// What a keyspace is placed by unless it names another policy: it heeds capacities and loads, and a node that joins
/// gets its share.
pub const DEFAULT_POLICY: &str = "balanced";

macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$vdoc])* $variant),+ }

        impl $type {
            /// Every word, in the order of the declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The word that people write.
            pub fn word(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $type {
            type Err = UnknownWord;
            fn from_str(given: &str) -> Result<Self, UnknownWord> {
                $type::ALL.iter().copied().find(|v| v.word() == given).ok_or_else(|| UnknownWord {
                    what: $what,
                    given: given.to_owned(),
                    known: &[$($word),+],
                })
            }
        }
    };
}

/// A word that is none of the known ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no {what}: choose one of {}", known.join(", "))]
pub struct UnknownWord {
    /// What the word was for.
    pub what: &'static str,
    /// The word that was given.
    pub given: String,
    /// The words that would do.
    pub known: &'static [&'static str],
}

words!(
    /// Which service a keyspace belongs to.
    KeyspaceKind, "kind of keyspace" {
        /// A user's own service.
        App = "app",
        /// Immutable batch data, which nodes fetch from its source.
        Dataset = "dataset",
        /// Mutable rows, which the nodes replicate among themselves.
        Table = "table",
        /// A pool of nodes that sort records for shuffles.
        Shuffle = "shuffle",
    }
);

words!(
    /// What a worker may believe without hearing from the coordinator.
    Ownership, "ownership" {
        /// A lookup may be stale for a moment; a worker never stops serving.
        Eventual = "eventual",
        /// One owner at any instant: leased, and granted anew only after release or expiry.
        Exclusive = "exclusive",
        /// The replicas of a shard settle among themselves who may write and read, by the in-sync set of the map: leases
        /// play no part, and a worker goes on while every coordinator is away.
        Replicated = "replicated",
    }
);

words!(
    /// Whether the coordinator or a person decides about rebalancing (K15). The coordinator repairs in every mode but `manual`.
    Mode, "rebalancing mode" {
        /// The coordinator approves its plans itself.
        Automatic = "automatic",
        /// Each plan waits for a person.
        Suggested = "suggested",
        /// Only a person makes plans.
        Manual = "manual",
    }
);

words!(
    /// Over what the replicas of a shard must be spread.
    Spread, "spread" {
        /// Distinct nodes, wherever these are.
        Node = "node",
        /// Distinct zones where there are enough, else distinct nodes; the plan says so.
        Zone = "zone",
        /// Distinct zones, or the replica stays unplaced.
        ZoneStrict = "zone-strict",
        /// Distinct racks where there are enough.
        Rack = "rack",
        /// Distinct racks, or the replica stays unplaced.
        RackStrict = "rack-strict",
    }
);

words!(
    /// What values the rows of a table may have.
    RowValues, "form of values" {
        /// Any bytes, which a table does not look at.
        Bytes = "bytes",
        /// JSON texts only: a write of another value is refused.
        Json = "json",
    }
);

impl Default for RowValues {
    /// What a table takes that does not say.
    fn default() -> RowValues {
        RowValues::Bytes
    }
}

impl Spread {
    /// Whether a replica rather stays unplaced than shares a domain.
    pub fn is_strict(self) -> bool {
        matches!(self, Spread::ZoneStrict | Spread::RackStrict)
    }
}

/// Where shards of a keyspace may go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Constraint {
    /// Only on these nodes; empty = any.
    pub pinned: BTreeSet<NodeId>,
    /// Never on these nodes.
    pub excluded: BTreeSet<NodeId>,
    /// Only on nodes with all of these labels.
    pub labels: BTreeSet<Label>,
}

/// How fast shards may move (K17), and how long one may take. A plan that asks for more waits its turn; see
/// [`crate::plan::throttle`].
#[derive(Debug, Clone, PartialEq)]
pub struct Throttle {
    /// Moves under way at once, in the whole keyspace.
    pub moves: u32,
    /// Moves under way at once, into or out of one node; fewer while foreground work keeps it busy.
    pub moves_per_node: u32,
    /// First loads and repairs under way at once into one node.
    pub loads_per_node: u32,
    /// Bytes a second that moves may start to copy, repairs apart; 0 = no limit.
    pub bytes_per_s: u64,
    /// How long a node may load one replica before it is given up there and tried elsewhere, whatever the node
    /// says meanwhile (A12).
    pub load_ms: u64,
    /// How long a durable replica of a dead node is waited for before another node copies the shard.
    pub replace_after_ms: u64,
}

impl Default for Throttle {
    /// Small enough that foreground requests keep their nodes, large enough that 10,000 small shards move
    /// within seconds.
    fn default() -> Throttle {
        Throttle {
            moves: 256,
            moves_per_node: 16,
            loads_per_node: 512,
            bytes_per_s: 0,
            load_ms: 600_000,
            replace_after_ms: 300_000,
        }
    }
}

/// When shards split, merge, are isolated or get more replicas (K5, K12). Hysteresis: a shard splits above
/// a threshold and neighbours merge only when together they are below half of it, and either must hold
/// for the whole window.
#[derive(Debug, Clone, PartialEq)]
pub struct Resharding {
    /// Split above this size; 0 = never by size.
    pub split_bytes: u64,
    /// Split above this many requests a second; 0 = never by load.
    pub split_requests_per_s: f64,
    /// How long a load must stay above (or below) before anything happens.
    pub window_ms: u64,
    /// A key with more than this share of its shard's requests is isolated instead of split around.
    pub hot_key_share: f64,
    /// Most replicas a read-hot shard is given; the keyspace's own count or less = none extra. Of a table: beyond its own
    /// count they are read replicas.
    pub max_replicas: u32,
    /// Never fewer shards than this by merging.
    pub min_shards: u32,
    /// Never more shards than this by splitting.
    pub max_shards: u32,
}

impl Default for Resharding {
    /// 512 MiB (K5), no split by load, a minute's window.
    fn default() -> Resharding {
        Resharding {
            split_bytes: 512 << 20,
            split_requests_per_s: 0.0,
            window_ms: 60_000,
            hot_key_share: 0.5,
            max_replicas: 0,
            min_shards: 1,
            max_shards: limits::SHARDS as u32,
        }
    }
}

/// Everything its owner says about a keyspace. Immutable but for what [`crate::cluster`] offers commands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Keyspace {
    /// Unique in the cluster.
    pub name: KeyspaceName,
    /// The service whose nodes hold it.
    pub kind: KeyspaceKind,
    /// How keys map to shards.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: PartitionKey,
    /// What a worker may believe when it hears no coordinator.
    pub ownership: Ownership,
    /// Replicas of each shard.
    pub replicas: u32,
    /// Of a replicated keyspace: how many replicas must have stored a write before it is acknowledged; 0 in others.
    pub min_in_sync: u32,
    /// Name of the placement policy.
    pub policy: String,
    /// Whether the coordinator approves its plans itself, or a person does.
    pub mode: Mode,
    /// The failure domains over which replicas are spread.
    pub spread: Spread,
    /// Where all its shards may go.
    pub constraint: Constraint,
    /// How fast its shards may move.
    pub throttle: Throttle,
    /// When its shards split and merge.
    pub resharding: Resharding,
    /// Of a dataset: the replication that its settings said last ([`Keyspace::following`]).
    pub dataset_replication: Option<u32>,
    /// Whether the data of its replicas lies on disk and outlives their processes: then a replica whose node is dead
    /// stays in the map, and the last one of a shard is never removed (D10).
    pub durable: bool,
    /// Of a table: what values its rows may have; any bytes in other keyspaces.
    pub values: RowValues,
    /// Of a table: for how long its change feed keeps changes, in milliseconds; 0: it has no feed.
    pub feed_ms: u64,
}

/// Settings that no keyspace can have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeyspaceError {
    /// The number of replicas is 0, or above [`limits::REPLICAS`].
    #[error("keyspace {keyspace}: {replicas} replicas: {}", self.way_out())]
    Replicas {
        /// The keyspace with the wrong number of replicas.
        keyspace: KeyspaceName,
        /// The number of replicas of each shard that was given.
        replicas: u32,
    },
    /// A number that is not finite or out of its range.
    #[error("keyspace {keyspace}: {what} is {value}: {}", self.way_out())]
    Number {
        /// The keyspace with the wrong setting.
        keyspace: KeyspaceName,
        /// The setting that is wrong, in the words of the error message: "hot_key_share", "a throttle".
        what: &'static str,
        /// The value that was given for the setting.
        value: f64,
        /// What the person may give instead.
        mend: &'static str,
    },
    /// A replicated keyspace whose data does not outlive its processes.
    #[error("keyspace {0} is replicated and not durable: {way}", way = self.way_out())]
    NotDurable(KeyspaceName),
    /// Replicas that must have stored a write, in a keyspace that is not replicated, or none or too many.
    #[error("keyspace {keyspace}: min_in_sync is {min_in_sync}: {}", self.way_out())]
    MinInSync {
        /// The keyspace with the wrong setting.
        keyspace: KeyspaceName,
        /// The number of replicas that was given.
        min_in_sync: u32,
        /// The replicas of each shard; none where the keyspace is not replicated.
        replicas: Option<u32>,
    },
    /// Values of a form, in a keyspace that is no table.
    #[error("keyspace {0} is no table, and has no rows whose values could be {word}: {way}", word = RowValues::Json, way = self.way_out())]
    Values(KeyspaceName),
    /// A feed of a keyspace that is no table, or one that keeps changes for too short or too long a time.
    #[error("keyspace {keyspace}: its feed keeps changes for {feed_ms} ms: {}", self.way_out())]
    Feed {
        /// The keyspace with the wrong setting.
        keyspace: KeyspaceName,
        /// The time that was given, in milliseconds.
        feed_ms: u64,
        /// Whether the keyspace is a table: only tables have feeds.
        is_table: bool,
    },
    /// The same node both pinned and excluded.
    #[error("keyspace {keyspace}: node {node} is both pinned and excluded: {}", self.way_out())]
    PinnedAndExcluded {
        /// The keyspace with the contradiction in its constraint.
        keyspace: KeyspaceName,
        /// The node that is both pinned and excluded.
        node: NodeId,
    },
}

impl KeyspaceError {
    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> String {
        match self {
            KeyspaceError::Replicas { .. } => format!("give 1 to {}", limits::REPLICAS),
            KeyspaceError::Number { mend, .. } => (*mend).to_owned(),
            KeyspaceError::Values(_) => "leave values out".to_owned(),
            KeyspaceError::NotDurable(_) => "make it durable, too".to_owned(),
            KeyspaceError::MinInSync { replicas: None, .. } => {
                "leave it out: only a replicated keyspace has an in-sync set".to_owned()
            }
            KeyspaceError::MinInSync { replicas: Some(replicas), .. } => {
                format!("give 1 to {replicas}, its number of replicas")
            }
            KeyspaceError::Feed { is_table: false, .. } => "leave it out: only tables have feeds".to_owned(),
            KeyspaceError::Feed { is_table: true, .. } => {
                format!("give {} to {}, or 0 for no feed", limits::FEED_KEPT_LEAST_MS, limits::FEED_KEPT_MS)
            }
            KeyspaceError::PinnedAndExcluded { .. } => "keep one of the two".to_owned(),
        }
    }
}

impl Keyspace {
    /// An `app` keyspace with every default.
    pub fn new(name: KeyspaceName, sharding: Sharding) -> Keyspace {
        Keyspace {
            name,
            kind: KeyspaceKind::App,
            sharding,
            partition_key: PartitionKey::default(),
            ownership: Ownership::Exclusive,
            replicas: 1,
            min_in_sync: 0,
            policy: DEFAULT_POLICY.to_owned(),
            mode: Mode::Automatic,
            spread: Spread::Zone,
            constraint: Constraint::default(),
            throttle: Throttle::default(),
            resharding: Resharding::default(),
            dataset_replication: None,
            durable: false,
            values: RowValues::Bytes,
            feed_ms: 0,
        }
    }

    /// The settings of its dataset say that each partition is to be at so many nodes. Its replicas follow, unless somebody
    /// has changed them since the settings were last heard: then they are theirs, until both are the same again. So an
    /// order that was given by hand holds, whichever node tells of the settings, however often and how late.
    #[must_use]
    pub fn following(&self, said: u32) -> Keyspace {
        let follows = self.dataset_replication == Some(self.replicas);
        let replicas = if follows { said } else { self.replicas };
        Keyspace { replicas, dataset_replication: Some(said), ..self.clone() }
    }

    /// Refuses settings that no cluster could carry out.
    pub fn check(&self) -> Result<(), KeyspaceError> {
        let keyspace = || self.name.clone();
        if self.replicas == 0 || self.replicas as usize > limits::REPLICAS {
            return Err(KeyspaceError::Replicas { keyspace: keyspace(), replicas: self.replicas });
        }
        self.check_in_sync()?;
        if self.values != RowValues::Bytes && self.kind != KeyspaceKind::Table {
            return Err(KeyspaceError::Values(keyspace()));
        }
        let is_table = self.kind == KeyspaceKind::Table;
        let lasts = (limits::FEED_KEPT_LEAST_MS..=limits::FEED_KEPT_MS).contains(&self.feed_ms);
        if self.feed_ms > 0 && !(is_table && lasts) {
            return Err(KeyspaceError::Feed { keyspace: keyspace(), feed_ms: self.feed_ms, is_table });
        }
        let (share, load) = (self.resharding.hot_key_share, self.resharding.split_requests_per_s);
        if !(share > 0.0 && share <= 1.0) {
            let (what, mend) = ("hot_key_share", "give a share above 0, at most 1");
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value: share, mend });
        }
        if !(load.is_finite() && load >= 0.0) {
            let (what, mend) = ("split_requests_per_s", "give a finite number, 0 for never");
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value: load, mend });
        }
        let Resharding { min_shards, max_shards, .. } = self.resharding;
        if max_shards == 0 {
            let (what, mend) = ("max_shards", "give 1 or more");
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value: 0.0, mend });
        }
        if min_shards > max_shards {
            let (what, mend) = ("min_shards, above max_shards,", "give at most max_shards");
            let value = f64::from(min_shards);
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value, mend });
        }
        if self.throttle.load_ms == 0 {
            let (what, mend) = ("load_ms", "give 1 or more milliseconds");
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value: 0.0, mend });
        }
        if self.throttle.moves == 0 || self.throttle.moves_per_node == 0 || self.throttle.loads_per_node == 0
        {
            let (what, mend) = ("a throttle", "give 1 or more, or mode manual to stop moves");
            return Err(KeyspaceError::Number { keyspace: keyspace(), what, value: 0.0, mend });
        }
        match self.constraint.pinned.intersection(&self.constraint.excluded).next() {
            Some(node) => Err(KeyspaceError::PinnedAndExcluded { keyspace: keyspace(), node: node.clone() }),
            None => Ok(()),
        }
    }

    fn check_in_sync(&self) -> Result<(), KeyspaceError> {
        let is_replicated = self.ownership == Ownership::Replicated;
        if is_replicated && !self.durable {
            return Err(KeyspaceError::NotDurable(self.name.clone()));
        }
        let (most, replicas) =
            if is_replicated { (1..=self.replicas, Some(self.replicas)) } else { (0..=0, None) };
        match most.contains(&self.min_in_sync) {
            true => Ok(()),
            false => Err(KeyspaceError::MinInSync {
                keyspace: self.name.clone(),
                min_in_sync: self.min_in_sync,
                replicas,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The book promises five minutes: a machine that is started anew is back by then, and nothing was copied in vain.
    #[test]
    fn a_durable_replica_of_a_dead_node_is_waited_for_by_default_for_five_minutes() {
        assert_eq!(Throttle::default().replace_after_ms, 5 * 60 * 1_000);
        let keyspace = Keyspace::new(KeyspaceName::new("users").unwrap(), Sharding::KeyRange);
        assert_eq!(keyspace.throttle, Throttle::default(), "a keyspace of which nothing is said");
    }

    #[test]
    fn t17_a_replicated_keyspace_is_durable_and_names_how_many_must_have_a_write() {
        let plain = Keyspace::new(KeyspaceName::new("users").unwrap(), Sharding::KeyRange);
        let replicated =
            Keyspace { ownership: Ownership::Replicated, durable: true, replicas: 3, ..plain.clone() };
        let with = |min_in_sync: u32| Keyspace { min_in_sync, ..replicated.clone() };
        for allowed in 1..=3 {
            assert_eq!(with(allowed).check(), Ok(()));
        }
        for (refused, why) in [
            (with(0), "min_in_sync is 0: give 1 to 3, its number of replicas"),
            (with(4), "min_in_sync is 4: give 1 to 3, its number of replicas"),
            (Keyspace { durable: false, ..with(2) }, "is replicated and not durable: make it durable, too"),
            (
                Keyspace { min_in_sync: 1, ..plain },
                "leave it out: only a replicated keyspace has an in-sync set",
            ),
        ] {
            let said = refused.check().unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }
}
