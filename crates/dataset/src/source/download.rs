//! The bytes of one file, as a stream that can be read on a thread that may wait.
//!
//! A task fetches ahead, a few pieces and no more. When the source breaks off, it asks again from the byte where it
//! was, and only for the same file: one that has been replaced meanwhile is an error, not a mixture.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt};
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore};
use rustix::fs::{AtFlags, CWD, linkat};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::error::{SourceError, SourceErrorKind};
use super::layout::SourceFile;
use super::{Source, Throttle};
use crate::limits::{PIECES_AHEAD, READ_BYTES, RESUMES, STOP_TIME};

/// A file that is being read. Dropped, it fetches no more.
///
/// Read it on a thread that may wait, not in a task.
#[derive(Debug)]
pub struct Download {
    bytes: ByteSource,
    file: SourceFile,
    /// How many have been read.
    read: u64,
    stopped: Arc<AtomicBool>,
}

/// Dropped, it ends the download soon: the thread that reads it gets [`Stopped`], wherever it waits.
#[derive(Debug)]
pub struct Stopper {
    stopped: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The download was stopped, as no caller needs the bytes any more.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

#[derive(Debug)]
enum ByteSource {
    Disk { file: File, throttle: Throttle, runtime: Handle },
    Task { pieces: mpsc::Receiver<Result<Bytes, SourceErrorKind>>, piece: Bytes, task: AbortHandle },
}

impl Source {
    /// Begins to read a file. Errors come where it is read.
    pub async fn download(&self, file: &SourceFile, throttle: &Throttle) -> Result<Download, SourceError> {
        let got = FetchTask { store: Arc::clone(&self.store), file: file.clone() }.ask(0).await;
        let bytes = match got.map_err(|kind| SourceError::new(&file.url, kind))? {
            GetResultPayload::File(local, _) => {
                ByteSource::Disk { file: local, throttle: throttle.clone(), runtime: Handle::current() }
            }
            GetResultPayload::Stream(stream) => {
                let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
                let fetch = FetchTask { store: Arc::clone(&self.store), file: file.clone() };
                let task = tokio::spawn(fetch.run(stream, throttle.clone(), sender)).abort_handle();
                ByteSource::Task { pieces, piece: Bytes::new(), task }
            }
        };
        Ok(Download { bytes, file: file.clone(), read: 0, stopped: Arc::default() })
    }
}

impl Download {
    /// A handle that ends the download when it is dropped, from another task.
    pub fn stopper(&self) -> Stopper {
        let task = match &self.bytes {
            ByteSource::Disk { .. } => None,
            ByteSource::Task { task, .. } => Some(task.clone()),
        };
        Stopper { stopped: Arc::clone(&self.stopped), task }
    }

    /// Gives the very file that is read another name. Not if it does not lie on this machine, nor where the system does not
    /// do that: on another file system, without the right to, with too many names already.
    pub fn link(&self, name: &Path) -> io::Result<()> {
        let ByteSource::Disk { file, .. } = &self.bytes else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // By its number, so that it is this file whatever has its old name by now, and never a symbolic link.
        let number = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(linkat(CWD, number, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Makes what was read durable, if it lies on this machine.
    pub fn sync(&self) -> io::Result<()> {
        match &self.bytes {
            ByteSource::Disk { file, .. } => file.sync_all(),
            ByteSource::Task { .. } => Ok(()),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn failed(&self, kind: SourceErrorKind) -> io::Error {
        io::Error::other(SourceError::new(&self.file.url, kind))
    }

    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, SourceErrorKind> {
        match &mut self.bytes {
            ByteSource::Disk { file, throttle, runtime } => {
                let most = into.len().min(READ_BYTES);
                let count = file.read(&mut into[..most]).map_err(SourceErrorKind::of_disk)?;
                while !self.stopped.load(Ordering::Relaxed)
                    && let Some(wait) = throttle.try_take(count)
                {
                    // In short pieces, to hear that no task waits any more.
                    runtime.block_on(tokio::time::sleep(wait.min(STOP_TIME)));
                }
                Ok(count)
            }
            ByteSource::Task { pieces, piece, .. } => {
                while piece.is_empty() {
                    match pieces.blocking_recv() {
                        None => return Ok(0),
                        Some(next) => *piece = next?,
                    }
                }
                let count = into.len().min(piece.len());
                piece.copy_to_slice(&mut into[..count]);
                Ok(count)
            }
        }
    }
}

impl Read for Download {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let read = self.read_some(into);
        if self.is_stopped() {
            return Err(io::Error::other(Stopped));
        }
        let count = read.map_err(|kind| self.failed(kind))?;
        self.read += count as u64;
        // A file that is cut off between two records would look whole.
        if (count == 0 && self.read < self.file.bytes) || self.read > self.file.bytes {
            return Err(self.failed(SourceErrorKind::Length { bytes: self.read, expected: self.file.bytes }));
        }
        Ok(count)
    }
}

/// What the task knows.
struct FetchTask {
    store: Arc<dyn ObjectStore>,
    file: SourceFile,
}

type Pieces = Pin<Box<dyn Stream<Item = object_store::Result<Bytes>> + Send>>;

impl FetchTask {
    async fn ask(&self, from: u64) -> Result<GetResultPayload, SourceErrorKind> {
        let range = (from > 0).then_some(GetRange::Offset(from));
        let options = GetOptions { range, if_match: self.file.e_tag.clone(), ..GetOptions::default() };
        match self.store.get_opts(&self.file.location, options).await {
            Ok(got) => Ok(got.payload),
            Err(object_store::Error::Precondition { .. }) => Err(SourceErrorKind::Replaced),
            Err(error) => Err(SourceErrorKind::of(error)),
        }
    }

    async fn run(
        self,
        mut stream: Pieces,
        throttle: Throttle,
        sender: mpsc::Sender<Result<Bytes, SourceErrorKind>>,
    ) {
        let (mut at, mut resumes) = (0, 0);
        loop {
            match stream.next().await {
                None => return,
                Some(Ok(piece)) => {
                    throttle.take(piece.len()).await;
                    at += piece.len() as u64;
                    resumes = 0;
                    if sender.send(Ok(piece)).await.is_err() {
                        return;
                    }
                }
                Some(Err(error)) => match self.resume(SourceErrorKind::of(error), at, &mut resumes).await {
                    Ok(again) => stream = again,
                    Err(kind) => {
                        // A reader that has gone away needs no reason.
                        let _ = sender.send(Err(kind)).await;
                        return;
                    }
                },
            }
        }
    }

    /// Asks for the rest, unless nothing has come the last few times.
    async fn resume(
        &self,
        kind: SourceErrorKind,
        at: u64,
        resumes: &mut usize,
    ) -> Result<Pieces, SourceErrorKind> {
        *resumes += 1;
        if !kind.may_pass() || *resumes > RESUMES {
            return Err(kind);
        }
        match self.ask(at).await? {
            GetResultPayload::Stream(stream) => Ok(stream),
            GetResultPayload::File(..) => Err(kind),
        }
    }
}
