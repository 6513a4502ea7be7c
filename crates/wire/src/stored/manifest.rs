//! Manifests: what was committed last, so that a key which was deleted or set back is found.
//!
//! A manifest lists the records of one keyspace, or all others, with their checksums. It changes in one transaction with the
//! records that it lists, so they differ only when somebody else has written or deleted one of the keys.
//!
//! | what differs                             | what follows                                                     |
//! |------------------------------------------|------------------------------------------------------------------|
//! | the map is missing, damaged or older     | the keyspace is in quarantine: neither served nor changed        |
//! | the record of a keyspace is missing or damaged | the same                                                   |
//! | the record of a keyspace is another one  | the keyspace goes on, with its brake on                          |
//! | the cluster's record                     | its counters go on far beyond all that is known; the brake is on |
//! | a node                                   | nodes that maps name are known again                             |
//! | a plan                                   | plans that were not over are refused; the planner plans anew     |
//! | the manifest itself is missing or older  | it is written anew                                               |
//!
//! Not done: to tell which of two keys was set back when their checksums differ. Where it matters, in maps, the
//! generation says it.

use super::path::Path;
use super::read::StoredError;
use crate::Malformed;
use crate::proto;
use partage_core::base::id::Generation;
use partage_core::base::name::KeyspaceName;
use partage_core::cluster::StoredFaults;
use std::collections::BTreeMap;

/// [`StoredFaults`], with the keys.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) cluster: Vec<StoredError>,
    pub(super) nodes: Vec<StoredError>,
    pub(super) plans: Vec<StoredError>,
    pub(super) plans_may_be_old: bool,
    pub(super) settings: BTreeMap<KeyspaceName, StoredError>,
    pub(super) manifest: Vec<StoredError>,
    pub(super) manifests: BTreeMap<KeyspaceName, StoredError>,
    pub(super) quarantine: BTreeMap<KeyspaceName, StoredError>,
    pub(super) aside: Vec<StoredError>,
}

impl Faults {
    /// The same faults, each as a sentence for people.
    pub(super) fn sentences(&self) -> StoredFaults {
        let list = |faults: &[StoredError]| faults.iter().map(ToString::to_string).collect();
        let table = |faults: &BTreeMap<KeyspaceName, StoredError>| {
            faults.iter().map(|(name, why)| (name.clone(), why.to_string())).collect()
        };
        StoredFaults {
            cluster: list(&self.cluster),
            // The stored state does not show by itself that it is an older one.
            was_set_back: false,
            nodes: list(&self.nodes),
            plans: list(&self.plans),
            plans_may_be_old: self.plans_may_be_old,
            settings: table(&self.settings),
            manifest: list(&self.manifest),
            manifests: table(&self.manifests),
            quarantine: table(&self.quarantine),
            aside: list(&self.aside),
        }
    }
}

/// The checksum of a record, told apart from those of other keys.
pub(super) fn sum(path: &Path, payload: &[u8]) -> u64 {
    let key = crc32c::crc32c(path.to_string().as_bytes());
    u64::from(key) << 32 | u64::from(crc32c::crc32c_append(key, payload))
}

/// The checksums of all records that manifests list, and the maps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sums {
    of: BTreeMap<Path, u64>,
    nodes: u64,
    plans: u64,
    /// The map of each keyspace that has one.
    pub(super) at: BTreeMap<KeyspaceName, Generation>,
}

impl Sums {
    /// Takes up that a record is this now, or gone.
    pub(super) fn note(&mut self, path: &Path, payload: Option<&[u8]>) {
        let now = payload.map(|payload| sum(path, payload));
        let before = match now {
            Some(now) => self.of.insert(path.clone(), now),
            None => self.of.remove(path),
        };
        let total = match path {
            Path::Node(_) => &mut self.nodes,
            Path::Plan(_) => &mut self.plans,
            _ => return,
        };
        *total = total.wrapping_sub(before.unwrap_or_default()).wrapping_add(now.unwrap_or_default());
    }

    pub(super) fn record(&self, keyspace: &KeyspaceName) -> Option<u64> {
        self.of.get(&Path::Keyspace(keyspace.clone())).copied()
    }

    /// Whether any record is there that the manifest of the cluster lists.
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn manifest(&self) -> proto::StoredManifest {
        let cluster = self.of.get(&Path::Cluster).copied().unwrap_or_default();
        proto::StoredManifest { cluster, nodes: self.nodes, plans: self.plans }
    }

    /// The manifest of a keyspace that has a record.
    pub(super) fn keyspace_manifest(&self, keyspace: &KeyspaceName) -> Option<proto::StoredKeyspaceManifest> {
        let record = self.record(keyspace)?;
        Some(proto::StoredKeyspaceManifest { at: self.at.get(keyspace).map(|at| (*at).into()), record })
    }
}

/// A stored manifest of a keyspace.
pub(super) struct KeyspaceManifest {
    /// The map; sequence 0: none yet.
    pub(super) at: Generation,
    pub(super) record: u64,
}

impl TryFrom<proto::StoredKeyspaceManifest> for KeyspaceManifest {
    type Error = Malformed;
    fn try_from(form: proto::StoredKeyspaceManifest) -> Result<Self, Malformed> {
        let at = form.at.map(Generation::try_from).transpose()?.unwrap_or_default();
        Ok(KeyspaceManifest { at, record: form.record })
    }
}
