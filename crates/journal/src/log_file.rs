//! One file of records: written whole under an unfinished name, then only added to.

use crate::disk::{Disk, DiskFile};
use crate::frame::{self, Damage, FileHeader, Found};
use std::io;
use std::path::{Path, PathBuf};

/// The end of the name of a file that is not whole yet. One that is found at a start is litter.
pub const UNFINISHED: &str = ".tmp";

/// How a record failed to become durable.
#[derive(Debug)]
pub enum AppendError {
    /// There is no room; nothing was written, the file is as it was.
    Full(io::Error),
    /// It may be there or not; the file must not be used any more.
    Unknown(String),
}

/// Whether that error says that there is no room: the disk is full, or a quota is used up, or the process may not make
/// a file any larger (`ulimit -f`, `LimitFSIZE=`).
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// An open file of records.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    header: FileHeader,
    file: Box<dyn DiskFile>,
    /// Where the next record goes, and its number.
    end: u64,
    next_record: u64,
    /// The file's length, zeros included.
    len: u64,
    written_bytes: u64,
}

impl LogFile {
    /// Writes and syncs a whole file at `path` with [`UNFINISHED`] behind it. It counts from
    /// [`LogFile::publish`] on.
    ///
    /// # Errors
    /// What the disk said. The unfinished file may be there.
    pub fn write(
        disk: &dyn Disk,
        path: &Path,
        header: FileHeader,
        records: impl Iterator<Item = Vec<u8>>,
    ) -> io::Result<LogFile> {
        let mut file = disk.create(&unfinished(path))?;
        file.write_at(0, &header.encode())?;
        let (mut end, mut number) = (frame::FILE_HEADER as u64, 1);
        for payload in records {
            let bytes = frame::encode(header.file_number, number, payload);
            file.write_at(end, &bytes)?;
            end += bytes.len() as u64;
            number += 1;
        }
        let len = padded_len(end, header.step);
        let zeros = usize::try_from(len - end).expect("less than a step and 32 bytes");
        file.write_at(end, &vec![0; zeros])?;
        file.sync()?;
        let path = path.to_owned();
        Ok(LogFile { path, header, file, end, next_record: number, len, written_bytes: len })
    }

    /// Gives a file that was written its name, in place of any of that name. After an error it is not known
    /// under which name it is.
    pub fn publish(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.rename(&unfinished(&self.path), &self.path)?;
        self.path.parent().map_or(Ok(()), |dir| disk.sync_dir(dir))
    }

    /// Opens the file at `path` to add to it, after it was [`read`].
    pub fn reopen(disk: &dyn Disk, path: &Path, bytes: usize, contents: &Contents) -> io::Result<LogFile> {
        let mut file = disk.open(path)?;
        // Zeros again after the last record: over an unfinished write, and so that the room is really
        // there if a crash came before it was filled.
        let zeros = vec![0; bytes - contents.end];
        file.write_at(contents.end as u64, &zeros).and_then(|()| file.sync())?;
        Ok(LogFile {
            path: path.to_owned(),
            header: contents.header,
            file,
            end: contents.end as u64,
            next_record: contents.next_record,
            len: bytes as u64,
            written_bytes: 0,
        })
    }

    /// Makes a record durable, with one sync.
    pub fn append(&mut self, payload: Vec<u8>) -> Result<(), AppendError> {
        let end = self.end + frame::extent(payload.len()) as u64;
        self.make_room(end)?;
        let record = frame::encode(self.header.file_number, self.next_record, payload);
        let written = self.file.write_at(self.end, &record).and_then(|()| self.file.sync());
        written
            .map_err(|error| AppendError::Unknown(format!("writing `{}`: {error}", self.path.display())))?;
        self.written_bytes += record.len() as u64;
        self.end = end;
        self.next_record += 1;
        Ok(())
    }

    /// Takes room for a record of so many bytes, without writing it.
    ///
    /// # Errors
    /// As of [`LogFile::append`].
    pub fn reserve(&mut self, payload_bytes: usize) -> Result<(), AppendError> {
        self.make_room(self.end + frame::extent(payload_bytes) as u64)
    }

    /// Takes room so that zeros are left after `end`.
    fn make_room(&mut self, end: u64) -> Result<(), AppendError> {
        let wanted = padded_len(end, self.header.step);
        if wanted <= self.len {
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(wanted - self.len).expect("a record and a step fit in memory")];
        let taken = self
            .file
            .set_len(wanted)
            .and_then(|()| self.file.write_at(self.len, &zeros))
            .and_then(|()| self.file.sync());
        match taken {
            Ok(()) => {
                self.written_bytes += wanted - self.len;
                self.len = wanted;
            }
            Err(error) => {
                let back = self.file.set_len(self.len).and_then(|()| self.file.sync());
                return Err(match back {
                    Ok(()) if is_full(&error) => AppendError::Full(error),
                    _ => AppendError::Unknown(format!("extending `{}`: {error}", self.path.display())),
                });
            }
        }
        Ok(())
    }

    /// The name that it has when it counts.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header that the file began with.
    pub fn header(&self) -> FileHeader {
        self.header
    }

    /// Bytes of header and records.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes handed to the disk since it was written or opened, zeros included.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }
}

/// The name that a file has until it counts.
pub fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// The file length at which zeros follow `end`.
fn padded_len(end: u64, step: u32) -> u64 {
    (end + frame::ALIGN as u64).next_multiple_of(u64::from(step))
}

/// A file that was read to its end.
#[derive(Debug)]
pub struct Contents {
    /// The header that the file begins with.
    pub header: FileHeader,
    /// Where the next record goes.
    pub end: usize,
    /// The number that the next record gets.
    pub next_record: u64,
    /// True if an unfinished write lies at `end`.
    pub torn: bool,
}

/// Reads `file`, which must be the one with this number, and hands each record to `take` with its offset. Pure:
/// the same bytes, the same answer.
///
/// # Errors
/// The first thing that is not as it was written, or that `take` refuses, with its offset.
pub fn read(
    file: &[u8],
    file_number: u64,
    mut take: impl FnMut(usize, Vec<u8>) -> Result<(), String>,
) -> Result<Contents, Damage> {
    let header = FileHeader::decode(file)?;
    if header.file_number != file_number {
        let what = format!("this is the content of file {}, under another name", header.file_number);
        return Err(Damage::new(0, what));
    }
    if !file.len().is_multiple_of(header.step as usize) {
        let what =
            format!("the file was cut: it ends here, at no multiple of its step of {} bytes", header.step);
        return Err(Damage::new(file.len(), what));
    }
    let (mut at, mut number) = (frame::FILE_HEADER, 1);
    let torn = loop {
        match frame::find(file, file_number, at, number)? {
            Found::Record { payload, next, .. } => {
                take(at, payload)
                    .map_err(|what| Damage::new(at, format!("record {number} makes no sense: {what}")))?;
                (at, number) = (next, number + 1);
            }
            Found::End => break false,
            Found::Torn => break true,
        }
    };
    Ok(Contents { header, end: at, next_record: number, torn })
}
