//! Datasets under a coordinator: which partitions of a version go with which shard of the dataset's keyspace (K19, S18).
//!
//! The map of the keyspace knows nothing of versions: it says which node has which [slot](Slot) of S, and stays as it is when
//! a version comes. A version has as many partitions as it has files, N (S7); partition p goes with shard p mod S.
//!
//! - (ha) each partition of each version is in exactly one of all slots of S, so it has as many replicas as that shard;
//! - (hb) if S divides N and the hash of the keyspace is that of the version, the slot of a key holds the partition of
//!   the key: a client that follows the map asks a node that has the key ([`leads_straight`]). Else any node asked sends the
//!   question on, as it does without a map;
//! - (hc) when a slot is [refined](Slot::refined), its partitions are divided among the parts, none lost and none twice;
//! - (hd) the keyspace of a dataset is made by its first version, and its slots hold for the later ones: batch jobs seldom
//!   change their number of files, and then (hb) may not hold any more, and all else does ([`detour`] says the way out);
//! - (he) its replicas follow what the dataset's settings in the source say, which all nodes read alike, until a person sets
//!   them ([`Keyspace::following`]). What a node itself is told counts when the keyspace is created, and not after that:
//!   two nodes that are told different things do not contend;
//! - (hf) it goes when the settings say that the dataset is not served any more ([`upkeep`]).
//!
//! Not done: a slot of more than N taking partition s mod N, which would lead straight where N divides S, and have each
//! partition S/N times as often as was asked for. Nor does the number of slots follow the number of files by itself: jobs
//! that write 12 files on workdays and 10 on Sundays would have shards split and merged twice a week, for nothing but a
//! hop.

use super::name::DatasetName;
use super::node::Layout;
use partage_core::base::count::counted;
use partage_core::base::name::{KeyspaceName, NameError};
use partage_core::keyspace::sharding::slot::common_multiple;
use partage_core::keyspace::sharding::{Sharding, Slot};
use partage_core::keyspace::{Keyspace, KeyspaceKind, Ownership, Spread, Throttle};
use partage_core::limits;
use std::collections::BTreeSet;

/// How long the shards of a node may take to load: a node that moves in fetches terabytes, all at a time. What does not
/// get on fails long before, by the time-outs of the source, and says why.
pub const LOAD_MS: u64 = 6 * 3_600_000;

/// The partitions of a version of `partitions` that go with these slots.
pub fn partitions_of(slots: &BTreeSet<Slot>, partitions: u32) -> BTreeSet<u32> {
    slots.iter().flat_map(|slot| (slot.number()..partitions).step_by(slot.of().max(1) as usize)).collect()
}

/// Whether a node that has the shard of a key has the key, in every case (hb).
pub fn leads_straight(sharding: Sharding, layout: Layout) -> bool {
    match sharding {
        Sharding::Fixed { hash, shards } => {
            hash == layout.partitioner.hash_function()
                && layout.partitioner.is_of_whole_key()
                && shards > 0
                && layout.partitions.is_multiple_of(shards)
        }
        Sharding::KeyRange | Sharding::HashRange { .. } | Sharding::Named => false,
    }
}

/// The keyspace of a dataset whose first version is divided so, each shard at `replicas` nodes.
///
/// # Errors
/// When a keyspace cannot have the name of the dataset.
pub fn keyspace(dataset: &DatasetName, layout: Layout, replicas: u32) -> Result<Keyspace, NameError> {
    let shards = layout.partitions.clamp(1, limits::SHARDS as u32);
    let sharding = Sharding::Fixed { hash: layout.partitioner.hash_function(), shards };
    Ok(Keyspace {
        kind: KeyspaceKind::Dataset,
        ownership: Ownership::Eventual,
        spread: Spread::Zone,
        replicas,
        dataset_replication: Some(replicas),
        // A version is served when all of it is somewhere, so no shard may have to wait for others to be ready.
        throttle: Throttle { load_ms: LOAD_MS, loads_per_node: limits::SHARDS as u32, ..Throttle::default() },
        ..Keyspace::new(KeyspaceName::new(dataset.as_str())?, sharding)
    })
}

/// What a node wants of the keyspace of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// That there is one: this one, if there is none.
    There {
        /// The keyspace to create if there is none: see [`keyspace`].
        keyspace: Box<Keyspace>,
        /// What the settings of the dataset say of replication, if they say it and this is news.
        said: Option<u32>,
    },
    /// The dataset is not served: that there is none.
    Gone,
}

/// What is to be done about the keyspace of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub enum Upkeep {
    /// It is as it should be.
    Nothing,
    /// Create the keyspace, as there is none.
    Create(Box<Keyspace>),
    /// Tell it what the settings say of replication.
    Tell(u32),
    /// Delete the keyspace, as the dataset is not served.
    Delete,
    /// Another service has one of that name.
    Taken(KeyspaceKind),
}

/// What is to be done, where there is that keyspace, or none (he, hf).
pub fn upkeep(wanted: Wanted, there: Option<&Keyspace>) -> Upkeep {
    match (wanted, there) {
        (Wanted::There { keyspace, .. }, None) => Upkeep::Create(keyspace),
        (Wanted::There { .. }, Some(there)) if there.kind != KeyspaceKind::Dataset => {
            Upkeep::Taken(there.kind)
        }
        (Wanted::There { said: Some(said), .. }, Some(there)) if there.dataset_replication != Some(said) => {
            Upkeep::Tell(said)
        }
        (Wanted::Gone, Some(there)) if there.kind == KeyspaceKind::Dataset => Upkeep::Delete,
        (Wanted::There { .. } | Wanted::Gone, _) => Upkeep::Nothing,
    }
}

/// Why requests that follow the map take a hop more to a version that is divided so, and what can be done for good; none
/// if they do not.
pub fn detour(sharding: Sharding, layout: Layout) -> Option<String> {
    if leads_straight(sharding, layout) {
        return None;
    }
    let Sharding::Fixed { hash, shards } = sharding else { return None };
    let Layout { partitioner, partitions, .. } = layout;
    if !partitioner.is_of_whole_key() {
        // A map knows whole keys only.
        return None;
    }
    if hash != partitioner.hash_function() {
        return Some(format!(
            "its keyspace is divided by {hash}, the version by {partitioner}: delete the keyspace, and the nodes create it \
             anew"
        ));
    }
    let to = partitions.clamp(1, limits::SHARDS as u32);
    let is_one_step = to.is_multiple_of(shards) || shards.is_multiple_of(to);
    let step = common_multiple([shards, to]).filter(|step| !is_one_step && *step as usize <= limits::SHARDS);
    let has = format!(
        "its keyspace has {}, the version {}",
        counted(shards, "shard"),
        counted(partitions, "partition")
    );
    let way = match (is_one_step, step) {
        (true, _) => format!("--shards {to}"),
        (false, Some(step)) => format!("--shards {step}, and when that is done --shards {to}"),
        (false, None) => {
            return Some(format!("{has}: delete the keyspace, and the nodes create it anew"));
        }
    };
    Some(format!("{has}: if versions stay so, `partage keyspace update` with {way}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Partitioner;
    use partage_core::keyspace::sharding::{Bounds, PartitionKey};
    use proptest::prelude::*;

    #[test]
    fn hb_a_version_by_a_column_is_never_said_to_lead_straight() {
        let layout =
            Layout { partitioner: Partitioner::Column { column: 0, of: 2 }, partitions: 6, digest: 0 };
        let made = keyspace(&DatasetName::new("names").unwrap(), layout, 2).unwrap();
        assert!(!leads_straight(made.sharding, layout));
        assert_eq!(detour(made.sharding, layout), None, "no number of shards would help");
    }

    fn layout(partitions: u32) -> Layout {
        Layout { partitioner: Partitioner::HadoopBytes, partitions, digest: 0 }
    }

    fn slots(of: u32) -> Vec<Slot> {
        (0..of).map(|number| Slot::new(number, of).unwrap()).collect()
    }

    fn held(slot: Slot, partitions: u32) -> BTreeSet<u32> {
        partitions_of(&[slot].into(), partitions)
    }

    #[test]
    fn a_version_of_ten_in_four_rooms() {
        let all: Vec<Vec<u32>> =
            slots(4).into_iter().map(|slot| held(slot, 10).into_iter().collect()).collect();
        assert_eq!(all, [vec![0, 4, 8], vec![1, 5, 9], vec![2, 6], vec![3, 7]]);
        assert!(
            held(Slot::new(3, 4).unwrap(), 3).is_empty(),
            "a version of few partitions leaves rooms empty"
        );
    }

    #[test]
    fn the_first_version_makes_the_keyspace() {
        let made = keyspace(&DatasetName::new("names").unwrap(), layout(6), 2).unwrap();
        assert_eq!((made.kind, made.ownership), (KeyspaceKind::Dataset, Ownership::Eventual));
        assert_eq!(made.sharding.to_string(), "hadoop-bytes modulo 6");
        made.check().unwrap();
        made.sharding.check().unwrap();
        // A version of no files has one partition, with nothing in it.
        keyspace(&DatasetName::new("names").unwrap(), layout(0), 1).unwrap().sharding.check().unwrap();
        assert!(leads_straight(made.sharding, layout(18)) && !leads_straight(made.sharding, layout(9)));
        let other = Layout { partitioner: Partitioner::JavaString, partitions: 6, digest: 0 };
        assert!(!leads_straight(made.sharding, other));
    }

    #[test]
    fn he_hf_a_keyspace_is_created_told_and_deleted_as_the_settings_say() {
        let made = Box::new(keyspace(&DatasetName::new("names").unwrap(), layout(6), 2).unwrap());
        let wanted = |said| Wanted::There { keyspace: made.clone(), said };
        let there = |kind, said| Keyspace { kind, dataset_replication: said, ..(*made).clone() };
        let dataset = there(KeyspaceKind::Dataset, Some(2));
        assert_eq!(upkeep(wanted(Some(2)), None), Upkeep::Create(made.clone()));
        assert_eq!(upkeep(wanted(Some(2)), Some(&dataset)), Upkeep::Nothing);
        assert_eq!(upkeep(wanted(Some(3)), Some(&dataset)), Upkeep::Tell(3));
        assert_eq!(
            upkeep(wanted(Some(2)), Some(&there(KeyspaceKind::Dataset, None))),
            Upkeep::Tell(2),
            "it was made by hand"
        );
        assert_eq!(upkeep(wanted(None), Some(&dataset)), Upkeep::Nothing, "what is no news is not told");
        let app = there(KeyspaceKind::App, None);
        assert_eq!(upkeep(wanted(Some(3)), Some(&app)), Upkeep::Taken(KeyspaceKind::App));
        assert_eq!(upkeep(Wanted::Gone, Some(&dataset)), Upkeep::Delete);
        assert_eq!(upkeep(Wanted::Gone, Some(&app)), Upkeep::Nothing, "it is somebody else's");
        assert_eq!(upkeep(Wanted::Gone, None), Upkeep::Nothing);
    }

    #[test]
    fn a_detour_names_the_steps_to_the_straight_way() {
        let hash = Partitioner::HadoopBytes.hash_function();
        let told = |shards, partitions| detour(Sharding::Fixed { hash, shards }, layout(partitions));
        assert_eq!(told(6, 12), None);
        assert!(told(6, 3).unwrap().ends_with("update` with --shards 3"));
        assert!(told(6, 8).unwrap().ends_with("--shards 24, and when that is done --shards 8"));
        assert!(told(99_991, 99_989).unwrap().contains("delete the keyspace"));
        let other = Layout { partitioner: Partitioner::JavaString, partitions: 6, digest: 0 };
        let told = detour(Sharding::Fixed { hash, shards: 6 }, other).unwrap();
        assert!(told.contains("delete the keyspace"), "{told}");
    }

    proptest! {
        #[test]
        fn ha_each_partition_is_in_one_slot(partitions in 0u32..300, of in 1u32..60) {
            let all: Vec<u32> = slots(of).into_iter().flat_map(|slot| held(slot, partitions)).collect();
            let different: BTreeSet<u32> = all.iter().copied().collect();
            prop_assert_eq!(all.len(), different.len());
            prop_assert_eq!(different, (0..partitions).collect::<BTreeSet<_>>());
        }

        #[test]
        fn hb_the_slot_of_a_key_holds_its_partition(
            key in prop::collection::vec(any::<u8>(), 0..20), shards in 1u32..40, factor in 1u32..8,
        ) {
            let version = layout(shards * factor);
            let made = keyspace(&DatasetName::new("names").unwrap(), layout(shards), 1).unwrap();
            prop_assert!(leads_straight(made.sharding, version));
            let at = made.sharding.position(PartitionKey::default(), &key);
            let partition = version.partitioner.partition(&key, version.partitions);
            for slot in slots(shards) {
                let leads = Bounds::Slot(slot).contains(at);
                prop_assert_eq!(leads, held(slot, version.partitions).contains(&partition));
            }
        }

        #[test]
        fn hc_parts_of_a_slot_divide_what_it_holds(partitions in 0u32..300, of in 1u32..20, factor in 1u32..6) {
            for slot in slots(of) {
                let parts: Vec<u32> = slot.refined(of * factor).flat_map(|part| held(part, partitions)).collect();
                prop_assert_eq!(parts.len(), held(slot, partitions).len());
                prop_assert_eq!(parts.into_iter().collect::<BTreeSet<_>>(), held(slot, partitions));
            }
        }
    }
}
