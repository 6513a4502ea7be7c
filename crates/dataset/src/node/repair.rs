//! Damaged store files of this node: a request finds them, or one reading of all of them after a start; the node loads
//! them once more, and requests go on reading what is sound.

use super::effects::EffectExecutor;
use super::loading::VersionId;
use crate::catalogue::Catalogue;
use crate::limits::LOAD_NICE;
use crate::source::Throttle;
use partage_engine::readonly::Reader;
use partage_service::dataset::DatasetName;
use partage_service::dataset::node::{DatasetState, Node as Machine};
use partage_wire::dataset::status::StoreCheck;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};

/// A running check of the whole local store. Dropped, it stops.
#[derive(Debug)]
pub struct StoreCheckHandle {
    _sender: SyncSender<()>,
}

/// See [`EffectExecutor::start_store_check`].
struct StoreChecker {
    catalogue: Arc<Catalogue>,
    throttle: Throttle,
    is_over: Receiver<()>,
    progress: StoreCheck,
}

impl StoreChecker {
    fn read_through(mut self, files: Vec<(VersionId, u32, Arc<Reader>)>) {
        // The priority of this thread alone. If the system refuses, requests wait more.
        let _ = rustix::process::setpriority_process(None, LOAD_NICE);
        let (count, bytes, began) = (files.len(), self.progress.bytes_in_all, self.catalogue.clock().now());
        tracing::info!(files = count, bytes, "the local store is read through for damage");
        let mut damaged = 0;
        for (id, partition, reader) in files {
            let before = self.progress.bytes;
            let read = reader.verify_while(&mut |at| self.may_go_on(before + at));
            if let Ok(false) = read {
                return self.catalogue.set_store_check(None);
            }
            let dataset = self.catalogue.dataset(id.0.as_str());
            if let Err(damage) = read {
                damaged += 1;
                if let Some(version) = dataset.and_then(|dataset| dataset.version(id.1.as_str())) {
                    version.report_damage(partition, &damage.to_string());
                }
            }
            if !self.may_go_on(before + reader.describe().file_bytes) {
                return self.catalogue.set_store_check(None);
            }
        }
        let after_ms = self.catalogue.clock().now().since(began);
        tracing::info!(files = count, damaged, after_ms, "the local store was read through");
        self.catalogue.set_store_check(None);
    }

    /// Waits until more than `bytes` may be read. False when the node ends.
    fn may_go_on(&mut self, bytes: u64) -> bool {
        let read = bytes.saturating_sub(self.progress.bytes);
        self.progress.bytes = bytes.max(self.progress.bytes);
        self.catalogue.set_store_check(Some(self.progress));
        while let Some(wait) = self.throttle.try_take(read as usize) {
            if !matches!(self.is_over.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                return false;
            }
        }
        matches!(self.is_over.try_recv(), Err(TryRecvError::Empty))
    }
}

impl EffectExecutor {
    /// Loads once more what has turned out to be damaged. What is sound in it is read meanwhile.
    pub fn repair(&mut self, machine: &Machine) {
        for dataset in self.catalogue.datasets() {
            for version in dataset.versions() {
                let id = (dataset.name().clone(), version.name().clone());
                for (partition, reason) in version.damaged().iter() {
                    if self.damaged.entry(id.clone()).or_default().insert(*partition) {
                        let (dataset, version) = (&id.0, &id.1);
                        tracing::error!(%dataset, %version, partition, reason, "damaged; it is loaded once more");
                        self.catalogue.driver_metrics().damaged(dataset);
                        self.repair_partition(machine, &id, *partition);
                    }
                }
            }
        }
    }

    /// Begins to read the whole local store, one file after the other and no faster than loads may, on a thread of the
    /// same low priority. Meanwhile requests check by themselves what they read.
    pub fn start_store_check(&self) -> StoreCheckHandle {
        let of = |(id, all): (&VersionId, &BTreeMap<u32, Arc<Reader>>)| {
            let all = all.iter().map(|(partition, reader)| (id.clone(), *partition, reader.clone()));
            all.collect::<Vec<_>>()
        };
        let files: Vec<_> = self.readers.iter().flat_map(of).collect();
        let (check, is_over) = sync_channel(1);
        if files.is_empty() {
            return StoreCheckHandle { _sender: check };
        }
        let bytes_in_all = files.iter().map(|(_, _, reader)| reader.describe().file_bytes).sum();
        let progress = StoreCheck { bytes: 0, bytes_in_all };
        let (catalogue, throttle) = (self.catalogue.clone(), self.options.throttle.clone());
        let checker = StoreChecker { catalogue, throttle, is_over, progress };
        let reading = std::thread::Builder::new().name("dataset-check".to_owned());
        if let Err(error) = reading.spawn(move || checker.read_through(files)) {
            tracing::warn!(%error, "the local store is not read through: damage is found by who reads it");
        }
        StoreCheckHandle { _sender: check }
    }

    /// Loads again what is still damaged.
    pub fn retry_repairs(&mut self, machine: &Machine, dataset: &DatasetName) {
        let damaged = self.damaged.iter().filter(|(id, _)| id.0 == *dataset);
        let damaged: Vec<(VersionId, u32)> =
            damaged.flat_map(|(id, all)| all.iter().map(|p| (id.clone(), *p))).collect();
        for (id, partition) in damaged {
            self.repair_partition(machine, &id, partition);
        }
    }

    fn repair_partition(&mut self, machine: &Machine, id: &VersionId, partition: u32) {
        let mut versions = machine.dataset(&id.0).into_iter().flat_map(DatasetState::versions);
        let layout = versions.find(|(name, _)| **name == id.1).and_then(|(_, version)| version.layout());
        let Some(layout) = layout else { return };
        self.load(id.clone(), layout, BTreeSet::from([partition]));
    }

    /// Another store file has replaced a damaged one.
    pub fn repaired(&mut self, id: &VersionId, partition: u32) {
        if self.damaged.get_mut(id).is_some_and(|all| all.remove(&partition))
            && let Some(dataset) = self.catalogue.dataset(id.0.as_str())
            && let Some(version) = dataset.version(id.1.as_str())
        {
            version.repaired(partition);
        }
    }
}
