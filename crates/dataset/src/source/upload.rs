//! Files that are brought to a source.

use std::io::Read;
use std::path::Path as File;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};

use super::Source;
use super::error::{SourceError, SourceErrorKind};
use crate::limits::{UPLOAD_PART_BYTES, UPLOAD_PARTS_AT_ONCE};

impl Source {
    /// Brings a file, whole or not at all. `path` goes from the source's root, with `/` between its parts.
    pub(crate) async fn upload(&self, path: &str, file: &File) -> Result<(), SourceError> {
        let failed = |kind| SourceError::new(format!("{}/{path}", self.url), kind);
        let of_file = |error| SourceError::new(file.display().to_string(), SourceErrorKind::of_disk(error));
        let mut opened = std::fs::File::open(file).map_err(of_file)?;
        let first = part(&mut opened).await.map_err(of_file)?;
        if first.len() < UPLOAD_PART_BYTES {
            return self.put(path, first).await;
        }
        let place = self.place(path);
        let begun =
            self.store.put_multipart(&place).await.map_err(|error| failed(SourceErrorKind::of(error)))?;
        let mut upload = WriteMultipart::new_with_chunk_size(begun, UPLOAD_PART_BYTES);
        let mut next = first;
        let sent = loop {
            if next.is_empty() {
                break Ok(());
            }
            if let Err(error) = upload.wait_for_capacity(UPLOAD_PARTS_AT_ONCE).await {
                break Err(failed(SourceErrorKind::of(error)));
            }
            upload.put(next);
            match part(&mut opened).await {
                Ok(bytes) => next = bytes,
                Err(error) => break Err(of_file(error)),
            }
        };
        match sent {
            Ok(()) => upload.finish().await.map(drop).map_err(|error| failed(SourceErrorKind::of(error))),
            Err(error) => {
                // Parts without an end cost room and are no object; that they stay would be the lesser fault.
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    /// Puts a small object, whole or not at all.
    pub(crate) async fn put(&self, path: &str, bytes: Bytes) -> Result<(), SourceError> {
        let put = self.store.put(&self.place(path), bytes.into()).await;
        put.map(drop)
            .map_err(|error| SourceError::new(format!("{}/{path}", self.url), SourceErrorKind::of(error)))
    }

    /// Takes an object away, if the source lets us.
    pub(crate) async fn discard(&self, path: &str) {
        let _ = self.store.delete(&self.place(path)).await;
    }

    fn place(&self, path: &str) -> Path {
        path.split('/').fold(self.root.clone(), |place, part| place.join(part))
    }
}

/// The next part of a file; nothing at its end. Reads on a thread where waiting is allowed.
async fn part(file: &mut std::fs::File) -> std::io::Result<Bytes> {
    let file = file.try_clone()?;
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::with_capacity(UPLOAD_PART_BYTES);
        file.take(UPLOAD_PART_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(Bytes::from(bytes))
    });
    read.await.map_err(std::io::Error::other)?
}
