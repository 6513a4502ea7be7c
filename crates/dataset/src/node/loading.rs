//! Inspects versions, and loads partitions from the source into the local store.

use super::NodeOptions;
use super::driving::Input;
use crate::build::{self, Inspection, Load, Progress};
use crate::local::{self, Mark, Store};
use crate::settings::DatasetSettings;
use crate::source::{Files, Source, Throttle};
use partage_engine::readonly::Reader;
use partage_service::dataset::node::{Layout, other_layout};
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Names a version: its dataset, and its name there.
pub type VersionId = (DatasetName, VersionName);

/// What an inspection found.
#[derive(Debug)]
pub struct Inspected {
    files: Files,
    /// How its keys are divided, and by which files.
    pub inspection: Inspection,
}

/// What is to be loaded of a version.
#[derive(Debug)]
pub struct LoadRequest {
    /// How it is divided.
    pub layout: Layout,
    /// The numbers of the partitions to load, from 0.
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
    inspection_turn: Semaphore,
    /// Versions that are loaded at a time.
    turn: Arc<Semaphore>,
    /// Partitions that are ready and not told yet: as many as are being loaded, at most.
    ready: Mutex<Vec<(VersionId, u32, Arc<Reader>)>>,
    pub is_ready: Notify,
}

/// A load that goes on. Dropped, it stops; what is finished stays.
#[derive(Debug)]
pub struct Loading {
    /// Its number among all loads of this process: the end of an earlier one is not its end.
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
    /// On the disk as long as the load goes on: a node that finds it was killed.
    _mark: Mark,
}

/// Why a load ended without what was wanted.
#[derive(Debug)]
pub struct LoadFailure {
    /// The reason, as status pages and the log show it.
    pub reason: String,
    /// Whether it was for want of room on the disk.
    pub is_disk_full: bool,
    /// What the version is now, if it is another one than was to be loaded.
    pub changed: Option<Layout>,
}

impl From<build::Error> for LoadFailure {
    fn from(error: build::Error) -> LoadFailure {
        LoadFailure { is_disk_full: error.is_disk_full(), reason: error.to_string(), changed: None }
    }
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
        let inspection_turn = Semaphore::new(crate::limits::INSPECTIONS_AT_ONCE);
        Loader {
            source,
            store,
            options,
            inputs,
            turn,
            inspection_turn,
            ready: Mutex::default(),
            is_ready: Notify::new(),
        }
    }

    /// The partitions that have become ready since this was last asked.
    pub fn take_ready(&self) -> Vec<(VersionId, u32, Arc<Reader>)> {
        std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Inspects a version, and tells.
    pub fn inspect(self: Arc<Self>, id: VersionId, settings: DatasetSettings) {
        tokio::spawn(async move {
            // The semaphore is never closed.
            let _turn = self.inspection_turn.acquire().await;
            let _mark = self.store.mark(&id.0, &id.1);
            let found = self.look(&id, &settings).await.map(Arc::new).map_err(|error| error.to_string());
            // Without a receiver the node has ended.
            let _ = self.inputs.send(Input::Inspected(id, found)).await;
        });
    }

    async fn look(
        &self,
        (dataset, version): &VersionId,
        settings: &DatasetSettings,
    ) -> Result<Inspected, build::Error> {
        let files = self.source.files(dataset, version).await?;
        let options = self.build_options(settings);
        // A few keys of each file, unthrottled: a node that loads slowly must soon know what to ask peers for.
        let unheld = Throttle::new(0);
        let inspection = build::inspect(&self.source, (dataset, version), &files, &options, &unheld).await?;
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

    /// Begins to load partitions of a version that is divided so. `known` spares another inspection.
    pub fn load(
        self: &Arc<Self>,
        number: u64,
        id: VersionId,
        settings: DatasetSettings,
        request: LoadRequest,
        known: Option<Arc<Inspected>>,
        mark: Mark,
    ) -> Loading {
        let (progress, loader, layout) = (Arc::new(Progress::default()), self.clone(), request.layout);
        let seen = progress.clone();
        let task = tokio::spawn(async move {
            let ended = loader.run(&id, &settings, request, known, seen).await;
            // Without a receiver the node has ended.
            let _ = loader.inputs.send(Input::LoadEnded(id, number, ended)).await;
        });
        Loading { number, progress, told_bytes: 0, layout, further: BTreeSet::new(), task, _mark: mark }
    }

    async fn run(
        &self,
        id: &VersionId,
        settings: &DatasetSettings,
        LoadRequest { layout, partitions, replaced }: LoadRequest,
        known: Option<Arc<Inspected>>,
        progress: Arc<Progress>,
    ) -> Result<(), LoadFailure> {
        // It is never closed.
        let _turn = self.turn.acquire().await;
        let inspected = match known {
            Some(known) => known,
            None => Arc::new(self.look(id, settings).await?),
        };
        let found = inspected.inspection.layout;
        if found != layout {
            let reason = other_layout(found, layout);
            return Err(LoadFailure { reason, is_disk_full: false, changed: Some(found) });
        }
        let folder = self.store.begin(&inspected.inspection).map_err(|error| match error {
            local::Error::Disk(error) => LoadFailure::from(error),
            error @ local::Error::Locked(_) => {
                LoadFailure { reason: error.to_string(), is_disk_full: false, changed: None }
            }
        })?;
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
            ready.push((id.clone(), partition, reader));
            drop(ready);
            self.is_ready.notify_one();
        };
        Ok(load.run(&partitions, &ready).await?)
    }
}
