//! Which table a backup is restored to: the settings that it had, with as many shards and replicas as are wanted.
//!
//! A table that is sharded by ranges of keys is cut where the backup's shards were; if another number of shards is wanted,
//! between chunks, so that shards have about the same bytes.

use partage_core::keyspace::sharding::PartitionKey;
use partage_wire::json::{Constraint, KeyText, Keyspace, Presplit, Sharding};
use partage_wire::table::backup::manifest::Manifest;
use partage_wire::table::{KeyBytes, PlaceForm};
use std::collections::BTreeSet;

/// The table to create.
pub struct Wanted {
    /// The settings that the backup has, with the new name, no constraint, and what the command line says.
    pub settings: Keyspace,
    /// The shards that the table is created with.
    pub presplit: Presplit,
    /// Nodes that the table was bound to may be those of another cluster: it is bound to none.
    pub drops_constraint: bool,
}

/// The table for a backup.
pub fn table(
    manifest: &Manifest,
    name: &str,
    shards: Option<u32>,
    replicas: Option<u32>,
    min_in_sync: Option<u32>,
) -> Wanted {
    let mut settings = manifest.settings.clone();
    name.clone_into(&mut settings.name);
    let drops_constraint = settings.constraint != Constraint::default();
    settings.constraint = Constraint::default();
    let replicas = replicas.or(settings.replicas).unwrap_or(1);
    settings.replicas = Some(replicas);
    settings.min_in_sync = min_in_sync.unwrap_or(settings.min_in_sync.min(replicas)).max(1);
    let count = shards.unwrap_or(u32::try_from(manifest.shards.len()).unwrap_or(u32::MAX));
    let presplit = match &mut settings.sharding {
        Sharding::KeyRange {} => {
            let keys = match shards {
                None => begins(manifest),
                Some(count) => quantiles(manifest, count as usize),
            };
            if keys.is_empty() { Presplit::None } else { Presplit::Points { keys } }
        }
        Sharding::HashRange { .. } => Presplit::HashRanges { shards: count },
        Sharding::Fixed { shards: slots, .. } => {
            *slots = shards.unwrap_or(*slots);
            Presplit::None
        }
        Sharding::Named {} => Presplit::None,
    };
    Wanted { settings, presplit, drops_constraint }
}

/// Where the shards of the backup began, but for the first.
fn begins(manifest: &Manifest) -> Vec<KeyText> {
    let key = |place: &PlaceForm| match place {
        PlaceForm::Key(KeyBytes(key)) => Some(KeyText::from(key)),
        PlaceForm::Point(_) | PlaceForm::Slot(_) | PlaceForm::Name(_) => None,
    };
    manifest.shards.iter().skip(1).filter_map(|shard| key(&shard.begin)).collect()
}

/// Keys with about the same bytes between them; fewer if there are not so many chunks.
fn quantiles(manifest: &Manifest, shards: usize) -> Vec<KeyText> {
    let by = manifest.settings.partition_key.clone().map_or(PartitionKey::Whole, PartitionKey::from);
    let all = u128::from(manifest.content_bytes());
    let (mut cuts, mut bytes) = (BTreeSet::new(), 0_u128);
    for chunk in manifest.chunks() {
        // Each key that is above another share of the bytes begins a shard.
        let due = bytes * shards as u128 / all.max(1);
        let key = by.of(chunk.first.0.as_bytes());
        if due > cuts.len() as u128 && !key.is_empty() && cuts.len() + 1 < shards {
            cuts.insert(key.to_vec());
        }
        bytes += u128::from(chunk.content_bytes);
    }
    cuts.into_iter().map(KeyText::from).collect()
}
