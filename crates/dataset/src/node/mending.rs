//! Store files of this node that turn out to be damaged: found by who reads them, and by one reading of all of them after a
//! start; loaded once more, beside what is read on of them meanwhile.

use super::effects::Hands;
use super::loading::Which;
use partage_core::dataset::DatasetName;
use partage_core::dataset::node::Layout;
use partage_engine::readonly::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Hands {
    /// Loads once more what has turned out to be damaged. What is sound in it is read meanwhile.
    pub fn mend(&mut self) {
        for dataset in self.catalogue.datasets() {
            for version in dataset.versions() {
                let which = (dataset.name().clone(), version.name().clone());
                for (partition, reason) in version.damaged().iter() {
                    if self.damaged.entry(which.clone()).or_default().insert(*partition) {
                        let (dataset, version) = (&which.0, &which.1);
                        tracing::error!(%dataset, %version, partition, reason, "damaged; it is loaded once more");
                        self.catalogue.doings().damaged(dataset);
                        self.mend_now(&which, *partition);
                    }
                }
            }
        }
    }

    /// Reads all that was in the local store, byte for byte, one file after the other and no faster than loads may.
    /// Requests are answered meanwhile: what they read is checked by themselves.
    pub fn check_stored(&self) -> impl Future<Output = ()> + Send + 'static {
        let of = |(which, all): (&Which, &BTreeMap<u32, Arc<Reader>>)| {
            let all = all.iter().map(|(partition, reader)| (which.clone(), *partition, reader.clone()));
            all.collect::<Vec<_>>()
        };
        let files: Vec<_> = self.readers.iter().flat_map(of).collect();
        let (catalogue, throttle) = (self.catalogue.clone(), self.options.throttle.clone());
        async move {
            for (which, partition, reader) in files {
                throttle.take(reader.describe().file_bytes as usize).await;
                let checked = tokio::task::spawn_blocking(move || reader.verify()).await;
                let dataset = catalogue.dataset(which.0.as_str());
                if let Ok(Err(damage)) = checked
                    && let Some(version) = dataset.and_then(|dataset| dataset.version(which.1.as_str()))
                {
                    version.report_damage(partition, &damage.to_string());
                }
            }
        }
    }

    /// Tries again what could not be loaded in the place of damaged files.
    pub fn mend_again(&mut self, dataset: &DatasetName) {
        let damaged = self.damaged.iter().filter(|(which, _)| which.0 == *dataset);
        let damaged: Vec<(Which, u32)> =
            damaged.flat_map(|(which, all)| all.iter().map(|p| (which.clone(), *p))).collect();
        for (which, partition) in damaged {
            self.mend_now(&which, partition);
        }
    }

    fn mend_now(&mut self, which: &Which, partition: u32) {
        let dataset = self.catalogue.dataset(which.0.as_str());
        let Some(version) = dataset.and_then(|dataset| dataset.version(which.1.as_str())) else { return };
        let layout = Layout { partitioner: version.partitioner(), partitions: version.partitions() };
        self.load(which.clone(), layout, BTreeSet::from([partition]));
    }

    /// Another store file has been shown in the place of a damaged one.
    pub fn mended(&mut self, which: &Which, partition: u32) {
        if self.damaged.get_mut(which).is_some_and(|all| all.remove(&partition))
            && let Some(dataset) = self.catalogue.dataset(which.0.as_str())
            && let Some(version) = dataset.version(which.1.as_str())
        {
            version.mended(partition);
        }
    }
}
