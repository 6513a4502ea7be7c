//! Makes the store files of some partitions of a version, in a folder of the local store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use partage_engine::limits::LEAST_MEMORY_BYTES;
use partage_engine::readonly::{self, Arenas, Builder, Reader};
use tokio::runtime::Handle;

use super::keys::{Builders, RecordOutcome, RecordSink};
use super::plan::{Job, Plan, Resources, plan};
use super::progress::{Alive, CountingReader, Progress, ThreadGroup};
use super::{Error, Inspection, Options, Rejects, file_name, prebuilt};
use crate::format;
use crate::limits::{LOAD_NICE, RECORDS_COUNTED};
use crate::source::{Files, Source, SourceFile, Throttle};

/// A version that is to be loaded, or a part of it.
#[derive(Debug, Clone)]
pub struct Load {
    /// The source that has the files of the version.
    pub source: Source,
    /// The files of the version, as the source lists them.
    pub files: Files,
    /// What [`super::inspect()`] has found out about the files.
    pub inspection: Inspection,
    /// How they are read and stored.
    pub options: Options,
    /// The limit on the bytes that are read from the source in a second.
    pub throttle: Throttle,
    /// The counters that a load updates, and that status pages read.
    pub progress: Arc<Progress>,
    /// The folder for the store files: of this version alone.
    pub folder: PathBuf,
    /// Partitions whose store file, if there is one, is damaged and made anew.
    pub replaced: BTreeSet<u32>,
}

/// What all jobs of a load have in common.
struct Work<'a> {
    /// Files that are one partition, and which.
    whole: &'a BTreeMap<u32, u32>,
    /// Memory of each builder.
    builder_bytes: usize,
    /// Files of one job that are read, and store files that are finished, at once.
    at_once: usize,
    /// What builders hand on to each other.
    arenas: Arenas,
    rejects: Arc<Rejects>,
    alive: &'a Alive,
}

/// Called with each partition that can be read from now on, and of one that had to be made anew once more.
pub type Ready<'a> = &'a (dyn Fn(u32, Arc<Reader>) + Send + Sync);

impl Load {
    /// Loads these partitions, and says of each when it is there. Those that are in the folder already are not loaded
    /// again. When it ends, no thread of it is left. Dropped, it stops soon, and what is finished stays.
    pub async fn run(&self, wanted: &BTreeSet<u32>, ready: Ready<'_>) -> Result<(), Error> {
        let partitions = self.inspection.layout.partitions;
        if let Some(partition) = wanted.iter().find(|partition| **partition >= partitions) {
            return Err(Error::NoPartition { partition: *partition, partitions });
        }
        let lacking = self.announce(wanted, ready).await?;
        if let Some(manifest) = &self.inspection.built {
            return prebuilt::fetch(self, manifest, &lacking, ready).await;
        }
        let whole = if self.options.is_sampled { &self.inspection.whole } else { &BTreeMap::new() };
        let rejects = Arc::new(Rejects::new(self.options.tolerance, &self.folder));
        let built = match self.build(whole, &lacking, &rejects, ready).await {
            // A node that makes only some partitions cannot help: others have made theirs without looking into this file.
            Err(Error::Stray { .. }) if wanted.len() as u32 == partitions => {
                // What was made so far may lack keys that lie in files which no job has read.
                for partition in wanted {
                    remove(&self.folder.join(file_name(*partition)))?;
                }
                self.build(&BTreeMap::new(), wanted, &rejects, ready).await
            }
            built => built,
        };
        if rejects.rows() > 0 {
            let (rows, list, version) = (rejects.rows(), rejects.path(), &self.files.version);
            tracing::warn!(rows, list = %list.display(), %version, "some rows are no records: they were left out");
        }
        built
    }

    /// Says what is there, and gives back what is not. A file that does not open is taken away.
    async fn announce(&self, wanted: &BTreeSet<u32>, ready: Ready<'_>) -> Result<BTreeSet<u32>, Error> {
        let path = |partition: &u32| (*partition, self.folder.join(file_name(*partition)));
        let paths: Vec<(u32, PathBuf)> = wanted.iter().map(path).collect();
        let replaced = self.replaced.clone();
        let opened = on_a_thread(self.folder.display().to_string(), move || {
            let is_kept = |partition, path: &Path| path.exists() && !replaced.contains(&partition);
            let open = |(partition, path): (u32, PathBuf)| match is_kept(partition, &path)
                .then(|| Reader::open(&path))
            {
                Some(Ok(reader)) => Ok((partition, Some(reader))),
                Some(Err(_)) => remove(&path).map(|()| (partition, None)),
                None => remove(&path).map(|()| (partition, None)),
            };
            paths.into_iter().map(open).collect::<Result<Vec<_>, Error>>()
        });
        let mut lacking = BTreeSet::new();
        for (partition, opened) in opened.await? {
            match opened {
                Some(reader) => ready(partition, Arc::new(reader)),
                None => {
                    lacking.insert(partition);
                }
            }
        }
        Ok(lacking)
    }

    async fn build(
        &self,
        whole: &BTreeMap<u32, u32>,
        wanted: &BTreeSet<u32>,
        rejects: &Arc<Rejects>,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let threads = ThreadGroup::new();
        let resources = Resources {
            at_once: self.options.at_once,
            memory_bytes: self.options.memory_bytes,
            least_bytes: LEAST_MEMORY_BYTES,
        };
        let Plan { jobs, jobs_at_once, builder_bytes } =
            plan(self.files.files.len() as u32, whole, wanted, resources);
        let to_read = || jobs.iter().flat_map(|job| &job.files);
        let bytes = to_read().map(|file| self.file(*file).bytes).sum();
        self.progress.begin(to_read().count() as u64, bytes);
        let at_once = if jobs_at_once > 1 { 1 } else { self.options.at_once.max(1) };
        let (arenas, rejects) = (Arenas::default(), Arc::clone(rejects));
        let work = Work { whole, builder_bytes, at_once, arenas, rejects, alive: threads.alive() };
        // Collected, here and below, since a task cannot hold a closure over references.
        let jobs: Vec<_> = jobs.iter().map(|job| self.job(job, &work, ready)).collect();
        let done = stream::iter(jobs).buffer_unordered(jobs_at_once).try_collect().await;
        threads.join().await;
        done
    }

    async fn job(&self, job: &Job, work: &Work<'_>, ready: Ready<'_>) -> Result<(), Error> {
        let builder = |partition: &u32| {
            let Options { layout, compression, .. } = self.options;
            let memory_bytes = work.builder_bytes;
            let options = readonly::Options { layout, compression, memory_bytes, temporary: None };
            let path = self.folder.join(file_name(*partition));
            let builder = Builder::with_arenas(&path, options, &work.arenas).map_err(Error::of_build)?;
            Ok((*partition, builder))
        };
        let builders: Vec<_> = job.partitions.iter().map(builder).collect::<Result<_, Error>>()?;
        let builders = self.fill(job, work, Builders::new(self.inspection.layout, builders)).await?;
        let finished = builders.into_builders().map(|(partition, builder)| async move {
            let path = self.folder.join(file_name(partition));
            let (what, alive) = (path.display().to_string(), work.alive.clone());
            let work = move || {
                let _alive = alive;
                builder.finish().map_err(Error::of_build)?;
                Ok(Reader::open(&path)?)
            };
            ready(partition, Arc::new(on_a_thread(what, work).await?));
            Ok(())
        });
        let finished: Vec<_> = finished.collect();
        stream::iter(finished).buffer_unordered(work.at_once).try_collect().await
    }

    /// Reads all files of a job into its builders.
    async fn fill(&self, job: &Job, work: &Work<'_>, mut builders: Builders) -> Result<Builders, Error> {
        if work.at_once == 1 {
            for file in &job.files {
                builders = self.read(*file, work, builders).await?;
            }
            return Ok(builders);
        }
        let builders = Arc::new(builders);
        let read = |file: &u32| self.read(*file, work, Arc::clone(&builders));
        let files: Vec<_> = job.files.iter().map(read).collect();
        stream::iter(files).buffer_unordered(work.at_once).map_ok(drop).try_collect::<()>().await?;
        Arc::into_inner(builders).ok_or_else(|| Error::Fault { what: self.folder.display().to_string() })
    }

    /// Reads a file to its end.
    async fn read<K: RecordSink>(&self, number: u32, work: &Work<'_>, sink: K) -> Result<K, Error> {
        let (file, of) = (self.file(number), work.whole.get(&number).copied());
        let download = self.source.download(file, &self.throttle).await?;
        let _stopper = download.stopper();
        let progress = Arc::clone(&self.progress);
        let bytes = CountingReader { bytes: download, progress: Arc::clone(&progress) };
        let mut options = self.options.format.clone().within(self.options.memory_bytes);
        options.temporary.get_or_insert_with(|| self.folder.clone());
        let (url, held, rejects) = (file.url.clone(), (sink, work.alive.clone()), Arc::clone(&work.rejects));
        let (sink, _alive) = on_a_thread(&file.url, move || {
            // The builders are let go before the thread is, whoever lets them go.
            let mut held = held;
            let mut records = format::records(&url, bytes, &options).map_err(Error::of_format)?;
            let (mut record, mut counted, mut bad) = (0, 0, 0);
            loop {
                let (key, value) = match records.next() {
                    Ok(Some(pair)) => pair,
                    Ok(None) => break,
                    Err(row) => {
                        bad += 1;
                        rejects.add(number, bad, row)?;
                        progress.set_rejected(rejects.rows());
                        continue;
                    }
                };
                let order = u64::from(number) << FILE_SHIFT | record;
                let outcome = held.0.accept(of, order, key, value);
                match outcome.map_err(|error| Error::of_record(error, &url, record))? {
                    RecordOutcome::Kept => {}
                    RecordOutcome::Stray => return Err(Error::Stray { file: url, record }),
                }
                record += 1;
                if record - counted == RECORDS_COUNTED {
                    counted = record;
                    progress.add_records(RECORDS_COUNTED);
                }
            }
            rejects.check(&url, bad, record + bad)?;
            progress.add_records(record - counted);
            progress.add_file();
            Ok(held)
        })
        .await?;
        Ok(sink)
    }

    fn file(&self, number: u32) -> &SourceFile {
        &self.files.files[number as usize]
    }
}

/// The number of a file stands above those of its records: a million million of them.
const FILE_SHIFT: u32 = 40;

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::of_disk(path, error)),
        _ => Ok(()),
    }
}

/// Runs what may wait for a disk or take long on a thread of its own, which gives way to those that answer requests. The
/// runtime does not end before it, and so neither does what it reads from.
pub(super) async fn on_a_thread<T: Send + 'static>(
    what: impl Into<String>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let what = what.into();
    let fault = Error::Fault { what: what.clone() };
    let runtime = Handle::current();
    let working = move || {
        // What is read may wait by the runtime's clock.
        let _inside = runtime.enter();
        // Of this thread alone. Where it may not be, all is as before, but requests wait more.
        let _ = rustix::process::setpriority_process(None, LOAD_NICE);
        work()
    };
    let done = tokio::task::spawn_blocking(move || {
        let thread = std::thread::Builder::new().name("dataset-load".to_owned()).spawn(working);
        let thread = thread.map_err(|source| Error::NoThread { what: what.clone(), source })?;
        thread.join().map_err(|_| Error::Fault { what })?
    });
    done.await.map_err(|_| fault)?
}
