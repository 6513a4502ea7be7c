//! What was read, compared with what manifests say was committed last; and what follows from each difference.

use super::manifest::Faults;
use super::path::Path;
use super::read::{Reader, StoredError};
use bytes::Bytes;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::ShardMap;
use std::collections::{BTreeMap, BTreeSet};

/// What is said of a record that is whole and is not the one that was committed last.
const ANOTHER: &str = "is not the one that was committed last: somebody set it back or replaced it";

impl Reader {
    /// Compares a keyspace that has a record with its manifest. `has_log` is whether anything of its map is in the
    /// store.
    pub(super) fn compare(&mut self, name: &KeyspaceName, map: &ShardMap, has_log: bool) {
        let head = self.recovered.heads.get(name).map(|head| head.at);
        let at = head.unwrap_or_else(|| map.generation());
        if let Some(head) = head {
            self.recovered.encoder.sums.at.insert(name.clone(), head);
        }
        let manifest = self.manifests.remove(name);
        let head_path = if has_log { Path::Head(name.clone()) } else { Path::Metadata(name.clone()) };
        let has_none_yet = manifest.as_ref().is_some_and(|manifest| manifest.at.sequence == 0);
        if at.sequence == 0 && !has_none_yet {
            if !self.bad.contains(&head_path) {
                let last = manifest.map_or(String::new(), |m| format!(" (the last was at {})", m.at));
                self.damage.push(StoredError::new(
                    head_path,
                    format!("is missing, and its keyspace has had a map{last}"),
                ));
            }
            return;
        }
        let path = Path::KeyspaceManifest(name.clone());
        let Some(manifest) = manifest else {
            if !self.bad.contains(&path) {
                self.faults.manifests.insert(name.clone(), StoredError::new(path, "is missing"));
            }
            return;
        };
        let last = manifest.at;
        if at.sequence < last.sequence || (at.sequence == last.sequence && at != last) {
            let what = format!("leads to the map at {at}, and {last} was committed last: it was set back");
            self.damage.push(StoredError::new(head_path, what));
        } else if at != last {
            let what = format!("is of the map at {last}, which is now at {at}: it was set back");
            self.faults.manifests.insert(name.clone(), StoredError::new(&path, what));
        }
        if self.recovered.encoder.sums.record(name) != Some(manifest.record) {
            let error = StoredError::new(Path::Keyspace(name.clone()), ANOTHER);
            self.faults.settings.insert(name.clone(), error);
        }
    }

    /// Maps, heads and manifests whose keyspace has no record. A log without a head is what a deletion leaves.
    pub(super) fn without_records(&mut self, maps: BTreeMap<KeyspaceName, BTreeMap<Path, Bytes>>) {
        let records = &self.recovered.records.keyspaces;
        let known: BTreeSet<_> = records.iter().map(|(record, _)| record.keyspace.name.clone()).collect();
        let heads = std::mem::take(&mut self.recovered.heads).into_iter();
        let (heads, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            heads.partition(|(name, _)| known.contains(name));
        self.recovered.heads = heads;
        let mut orphans: BTreeSet<_> = lost.into_keys().collect();
        orphans.extend(std::mem::take(&mut self.manifests).into_keys());
        for (name, stored) in maps {
            if stored.contains_key(&Path::Head(name.clone())) {
                orphans.insert(name.clone());
            }
            stored.into_keys().for_each(|path| self.recovered.throw_away(&path));
        }
        for name in orphans {
            let record = Path::Keyspace(name);
            if !self.bad.contains(&record) {
                self.damage
                    .push(StoredError::new(&record, "is missing, but its map or its manifest is there"));
            }
        }
    }

    /// Compares what belongs to no keyspace with its manifest.
    pub(super) fn compare_others(&mut self) {
        let sums = &self.recovered.encoder.sums;
        let found = sums.manifest();
        let Some(manifest) = self.manifest.take() else {
            if !self.bad.contains(&Path::Manifest) && !sums.is_empty() {
                let what = "is missing: what was committed last is not known";
                self.faults.manifest.push(StoredError::new(Path::Manifest, what));
            }
            return;
        };
        let is_damaged = |kind: fn(&Path) -> bool| self.bad.iter().any(kind);
        if found.cluster != manifest.cluster && !is_damaged(|path| *path == Path::Cluster) {
            let what = if found.cluster == 0 { "is missing" } else { ANOTHER };
            self.faults.cluster.push(StoredError::new(Path::Cluster, what));
        }
        if found.nodes != manifest.nodes && !is_damaged(|path| matches!(path, Path::Node(_))) {
            self.faults.nodes.push(StoredError::new("nodes", "of one node or more is missing, or set back"));
        }
        if found.plans != manifest.plans && !is_damaged(|path| matches!(path, Path::Plan(_))) {
            self.faults.plans.push(StoredError::new("plans", "of one plan or more is missing, or set back"));
            self.faults.plans_may_be_old = true;
        }
    }

    /// Says of each damage what it costs. All of it stays among the damage.
    pub(super) fn classify(&mut self) {
        let mut faults = std::mem::take(&mut self.faults);
        let records = &self.recovered.records.keyspaces;
        let known: BTreeSet<_> = records.iter().map(|(record, _)| record.keyspace.name.clone()).collect();
        for error in &self.damage {
            self.place(error, &known, &mut faults);
        }
        // Which are in quarantine anyway need nothing else.
        let Faults { settings, manifests, quarantine, .. } = &mut faults;
        settings.retain(|name, _| !quarantine.contains_key(name));
        manifests.retain(|name, _| !quarantine.contains_key(name));
        let told = faults.cluster.iter().chain(&faults.nodes).chain(&faults.plans).chain(&faults.manifest);
        let told = told.chain(faults.settings.values()).chain(faults.manifests.values());
        let more: Vec<_> = told.filter(|error| !self.damage.contains(error)).cloned().collect();
        self.damage.extend(more);
        self.recovered.faults = faults.sentences();
    }

    fn place(&self, error: &StoredError, known: &BTreeSet<KeyspaceName>, faults: &mut Faults) {
        let error = error.clone();
        let Some((path, _)) = Path::parse(&error.key) else { return faults.aside.push(error) };
        let maps = &self.recovered.encoder.maps;
        match path {
            Path::Cluster => faults.cluster.push(error),
            Path::Manifest => faults.manifest.push(error),
            Path::Node(_) => faults.nodes.push(error),
            Path::Plan(_) => faults.plans.push(error),
            Path::KeyspaceManifest(name) => drop(faults.manifests.entry(name).or_insert(error)),
            // Of a log that does not count any more, or of a keyspace that was deleted.
            Path::Base(name, log, _) | Path::Diff(name, log, _)
                if maps.get(&name).is_none_or(|counts| counts.log != log) && self.is_past(&name, known) =>
            {
                faults.aside.push(error);
            }
            Path::Keyspace(name)
            | Path::Head(name)
            | Path::Metadata(name)
            | Path::Base(name, ..)
            | Path::Diff(name, ..) => drop(faults.quarantine.entry(name).or_insert(error)),
            // Reading refuses these.
            Path::RedoHead | Path::RedoPiece(_) => {}
        }
    }

    /// Whether another log, or a METADATA file, has the map of a keyspace, or it was deleted.
    fn is_past(&self, name: &KeyspaceName, known: &BTreeSet<KeyspaceName>) -> bool {
        let has_map =
            self.recovered.encoder.maps.contains_key(name) || self.recovered.heads.contains_key(name);
        let is_gone = !known.contains(name) && !self.bad.contains(&Path::Keyspace(name.clone()));
        has_map || is_gone
    }
}
