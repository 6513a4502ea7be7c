//! What a version is, and its partitions out of the source into the local store.

use super::NodeOptions;
use super::driving::Input;
use crate::build::{self, Inspection, Load, Progress};
use crate::local::Store;
use crate::settings::DatasetSettings;
use crate::source::{Files, Source};
use partage_core::dataset::node::Layout;
use partage_core::dataset::{DatasetName, VersionName};
use partage_engine::readonly::Reader;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// A version of a dataset.
pub type Which = (DatasetName, VersionName);

/// What was found out of a version.
#[derive(Debug)]
pub struct Inspected {
    files: Files,
    /// How its keys are divided, and by which files.
    pub inspection: Inspection,
}

/// What is to be loaded of a version.
#[derive(Debug)]
pub struct Wanted {
    /// How it is divided.
    pub layout: Layout,
    /// Which partitions.
    pub partitions: BTreeSet<u32>,
    /// Those of them whose store files here are damaged.
    pub replaced: BTreeSet<u32>,
}

/// What all loads of a node share.
#[derive(Debug)]
pub struct Loader {
    source: Source,
    store: Arc<Store>,
    options: NodeOptions,
    inputs: mpsc::Sender<Input>,
    /// Versions that are loaded at a time.
    turn: Arc<Semaphore>,
    /// Partitions that are ready and not told yet: as many as are being loaded, at most.
    ready: Mutex<Vec<(Which, u32, Arc<Reader>)>>,
    pub is_ready: Notify,
}

/// A load that goes on. Dropped, it stops; what is finished stays.
#[derive(Debug)]
pub struct Loading {
    /// Of those of this version: an end of an earlier one is not its end.
    pub number: u64,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// Of its bytes, those that were counted already.
    pub told_bytes: u64,
    /// How the version is divided.
    pub layout: Layout,
    /// What is to be loaded after it.
    pub further: BTreeSet<u32>,
    task: JoinHandle<()>,
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Loader {
    pub fn new(
        source: Source,
        store: Arc<Store>,
        options: NodeOptions,
        inputs: mpsc::Sender<Input>,
    ) -> Loader {
        let turn = Arc::new(Semaphore::new(crate::limits::LOADS_AT_ONCE));
        Loader { source, store, options, inputs, turn, ready: Mutex::default(), is_ready: Notify::new() }
    }

    /// The partitions that have become ready since this was last asked.
    pub fn take_ready(&self) -> Vec<(Which, u32, Arc<Reader>)> {
        std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Finds out what a version is, and tells.
    pub fn inspect(self: Arc<Self>, which: Which, settings: DatasetSettings) {
        tokio::spawn(async move {
            let found = self.look(&which, &settings).await.map(Arc::new).map_err(|error| error.to_string());
            // Without a receiver the node has ended.
            let _ = self.inputs.send(Input::Inspected(which, found)).await;
        });
    }

    async fn look(
        &self,
        (dataset, version): &Which,
        settings: &DatasetSettings,
    ) -> Result<Inspected, build::Error> {
        let files = self.source.files(dataset, version).await?;
        let options = self.build_options(settings);
        let inspection =
            build::inspect(&self.source, (dataset, version), &files, &options, &self.options.throttle)
                .await?;
        Ok(Inspected { files, inspection })
    }

    fn build_options(&self, settings: &DatasetSettings) -> build::Options {
        build::Options {
            at_once: self.options.load_at_once,
            is_linked: self.options.load_by_link,
            memory_bytes: self.options.load_memory_bytes,
            ..build::Options::from(settings)
        }
    }

    /// Begins to load partitions of a version that is divided so. `known` spares another look.
    pub fn load(
        self: &Arc<Self>,
        number: u64,
        which: Which,
        settings: DatasetSettings,
        wanted: Wanted,
        known: Option<Arc<Inspected>>,
    ) -> Loading {
        let (progress, loader, layout) = (Arc::new(Progress::default()), self.clone(), wanted.layout);
        let seen = progress.clone();
        let task = tokio::spawn(async move {
            let ended = loader.run(&which, &settings, wanted, known, seen).await;
            // Without a receiver the node has ended.
            let _ = loader.inputs.send(Input::LoadEnded(which, number, ended)).await;
        });
        Loading { number, progress, told_bytes: 0, layout, further: BTreeSet::new(), task }
    }

    async fn run(
        &self,
        which: &Which,
        settings: &DatasetSettings,
        Wanted { layout, partitions, replaced }: Wanted,
        known: Option<Arc<Inspected>>,
        progress: Arc<Progress>,
    ) -> Result<(), String> {
        let told = |error: build::Error| error.to_string();
        // It is never closed.
        let _turn = self.turn.acquire().await;
        let inspected = match known {
            Some(known) => known,
            None => Arc::new(self.look(which, settings).await.map_err(told)?),
        };
        let found = inspected.inspection.layout;
        if found != layout {
            return Err(format!(
                "the source has version {} of dataset {} as {} partitions by {}, the cluster as {} by {}: a version must \
                 not change; give the new files a new version",
                which.1, which.0, found.partitions, found.partitioner, layout.partitions, layout.partitioner
            ));
        }
        let folder = self.store.begin(&inspected.inspection).map_err(|error| error.to_string())?;
        let load = Load {
            source: self.source.clone(),
            files: inspected.files.clone(),
            inspection: inspected.inspection.clone(),
            options: self.build_options(settings),
            throttle: self.options.throttle.clone(),
            progress,
            folder,
            replaced,
        };
        let ready = |partition: u32, reader: Arc<Reader>| {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            ready.push((which.clone(), partition, reader));
            drop(ready);
            self.is_ready.notify_one();
        };
        load.run(&partitions, &ready).await.map_err(told)
    }
}
