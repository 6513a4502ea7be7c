//! The file under construction: data that is only added to, the index beside it, and the name it gets at last.
//!
//! The index of a large file is larger than the builder's memory, so it is spilled to a file without a name while the
//! data is written, and copied behind it.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::error::BuildError;
use super::form::{FOOTER_BYTES, Footer, HEADER_BYTES, header};
use crate::limits::{OUTPUT_BYTES, RUN_BUFFER_BYTES};

/// Beginning of the name of a file that is not finished. Nothing that begins with a dot is a store.
pub const UNFINISHED: &str = ".partage-unfinished-";

/// A store file that is being written.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: NamedTempFile,
    /// What is not written yet.
    buffer: Vec<u8>,
    index: BufWriter<File>,
    /// Offset of the next byte of data.
    pub at: u64,
    index_bytes: u64,
    index_crc: u32,
}

/// What the sections came to.
#[derive(Debug, Clone, Copy)]
pub struct Sections {
    pub data_bytes: u64,
    pub index_bytes: u64,
    pub index_crc: u32,
}

impl Output {
    /// Begins a file for `path`; what is spilled goes to `spill`.
    pub fn new(path: &Path, spill: &Path) -> Result<Output, BuildError> {
        let failed = |source| BuildError::Io { path: path.to_owned(), doing: "making the file", source };
        let mut builder = tempfile::Builder::new();
        // As any file: what the user's mask leaves of it.
        builder.prefix(UNFINISHED).permissions(Permissions::from_mode(0o666));
        let file = builder.tempfile_in(folder_of(path)).map_err(failed)?;
        let index = tempfile::tempfile_in(spill).map_err(|source| BuildError::Io {
            path: spill.to_owned(),
            doing: "making a temporary file",
            source,
        })?;
        Ok(Output {
            path: path.to_owned(),
            file,
            buffer: header().to_vec(),
            index: BufWriter::with_capacity(RUN_BUFFER_BYTES, index),
            at: HEADER_BYTES as u64,
            index_bytes: 0,
            index_crc: 0,
        })
    }

    /// Adds to the section of data.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BuildError> {
        self.compose(|buffer| buffer.extend_from_slice(bytes))
    }

    /// The same for data that is put together where it will be written from.
    pub fn compose(&mut self, add: impl FnOnce(&mut Vec<u8>)) -> Result<(), BuildError> {
        let before = self.buffer.len();
        add(&mut self.buffer);
        self.at += (self.buffer.len() - before) as u64;
        self.write_wholes().map_err(|e| self.failed(e))
    }

    /// Writes the whole pieces of what is not written yet, each of which begins at a multiple of its length in the file.
    fn write_wholes(&mut self) -> io::Result<()> {
        let wholes = self.buffer.len() - self.buffer.len() % OUTPUT_BYTES;
        if wholes == 0 {
            return Ok(());
        }
        for whole in self.buffer[..wholes].chunks(OUTPUT_BYTES) {
            self.file.write_all(whole)?;
        }
        self.buffer.drain(..wholes);
        // After a long value the room it needed is given back.
        self.buffer.shrink_to(2 * OUTPUT_BYTES);
        Ok(())
    }

    /// Adds to the index.
    pub fn write_index(&mut self, bytes: &[u8]) -> Result<(), BuildError> {
        self.index.write_all(bytes).map_err(|e| self.failed(e))?;
        self.index_bytes += bytes.len() as u64;
        self.index_crc = crc32c::crc32c_append(self.index_crc, bytes);
        Ok(())
    }

    /// What has been written.
    pub fn sections(&self) -> Sections {
        Sections {
            data_bytes: self.at - HEADER_BYTES as u64,
            index_bytes: self.index_bytes,
            index_crc: self.index_crc,
        }
    }

    /// Writes the rest, makes it durable, and gives the file its name. Returns its length.
    pub fn finish(mut self, dictionary: &[u8], footer: &Footer) -> Result<u64, BuildError> {
        let path = self.path.clone();
        let failed = |source| BuildError::Io { path: path.clone(), doing: "writing the file", source };
        self.copy_index().map_err(failed)?;
        self.buffer.extend_from_slice(dictionary);
        self.buffer.extend_from_slice(&footer.encode());
        self.write_wholes().map_err(failed)?;
        self.file.write_all(&self.buffer).map_err(failed)?;
        self.file.as_file().sync_all().map_err(failed)?;
        self.file.persist_noclobber(&self.path).map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => BuildError::Exists(path.clone()),
            _ => failed(e.error),
        })?;
        // The name is durable only when its folder is.
        File::open(folder_of(&self.path)).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok(self.at + self.index_bytes + (dictionary.len() + FOOTER_BYTES) as u64)
    }

    fn copy_index(&mut self) -> io::Result<()> {
        self.index.flush()?;
        self.index.get_mut().rewind()?;
        let (mut buffer, mut crc) = (vec![0; RUN_BUFFER_BYTES], 0);
        loop {
            let count = self.index.get_mut().read(&mut buffer)?;
            if count == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..count]);
            self.buffer.extend_from_slice(&buffer[..count]);
            self.write_wholes()?;
        }
        if crc == self.index_crc {
            return Ok(());
        }
        Err(io::Error::other("the index came back changed from the temporary folder; check the disk"))
    }

    /// The error that says that writing failed.
    pub fn failed(&self, source: io::Error) -> BuildError {
        BuildError::Io { path: self.path.clone(), doing: "writing the file", source }
    }
}

/// The folder that a path lies in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
