//! The library's reader of files, within an amount of memory.
//!
//! The library reserves what a page's header states, and two of its codecs write on beyond that. So each page is looked at
//! before the library gets it; and each that the library has got counts until it lets the page's bytes go, since a batch
//! of values holds the pages that they lie in. Beyond the memory that there is, the next page is an error.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader, Length, RowGroupReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::{footer, page_header};
use crate::limits::{PARQUET_BATCH, PARQUET_FIELD_BYTES, PARQUET_FOOTER_SHARE};

/// A part of the file needs more memory than there is for it.
#[derive(Debug, thiserror::Error)]
#[error("{what} of {bytes} bytes, more than the limit of {limit}")]
pub struct TooLarge {
    pub what: &'static str,
    pub bytes: u64,
    pub limit: usize,
}

fn too_large(what: &'static str, bytes: u64, limit: usize) -> ParquetError {
    ParquetError::External(Box::new(TooLarge { what, bytes, limit }))
}

/// The memory of one file's pages.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    held: AtomicUsize,
    /// Bytes that the values of lists take, of the row that is being read.
    row: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes for pages, and of as many for one row.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { limit, held: AtomicUsize::new(0), row: AtomicUsize::new(0) })
    }

    /// Gives back what the values of the row before took.
    pub fn next_row(&self) {
        self.row.store(0, Ordering::Relaxed);
    }

    fn check(&self, what: &'static str, bytes: u64) -> Result<()> {
        let held = self.held.load(Ordering::Relaxed) as u64;
        match held.saturating_add(bytes) {
            all if all > self.limit as u64 => Err(too_large(what, all, self.limit)),
            _ => Ok(()),
        }
    }

    /// Counts bytes until they are let go.
    fn hold(self: &Arc<MemoryBudget>, bytes: Bytes, more: usize) -> Bytes {
        let count = bytes.len() + more;
        self.held.fetch_add(count, Ordering::Relaxed);
        Bytes::from_owner(HeldBytes { bytes, count, memory: Arc::clone(self) })
    }
}

struct HeldBytes {
    bytes: Bytes,
    count: usize,
    memory: Arc<MemoryBudget>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// A file whose footer was read.
pub struct BoundedFile {
    file: Arc<File>,
    metadata: ParquetMetaData,
    memory: Arc<MemoryBudget>,
}

impl BoundedFile {
    /// Reads the footer, which may take a part of the memory: [`PARQUET_FOOTER_SHARE`].
    pub fn open(file: File, memory: Arc<MemoryBudget>) -> Result<BoundedFile> {
        let footer = Footer { most: memory.limit / PARQUET_FOOTER_SHARE, file };
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&footer)?;
        Ok(BoundedFile { file: Arc::new(footer.file), metadata, memory })
    }

    /// How many values of a column are read at a time, so that those of usual length fit into the memory. Where they
    /// are longer than the footer says, the file is refused.
    pub fn batch(&self) -> usize {
        let chunks = || self.metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let mean = |bytes: i64, values: i64| bytes.max(0) as u64 / values.max(1) as u64;
        let longest = chunks().map(|chunk| mean(chunk.uncompressed_size(), chunk.num_values())).max();
        // A value of this encoding may be as long as its page, whatever its share in that.
        if chunks().any(|chunk| chunk.encodings().any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY)) {
            return 1;
        }
        let fits = self.memory.limit as u64 / 16 / longest.unwrap_or(0).max(1);
        fits.clamp(1, PARQUET_BATCH as u64) as usize
    }
}

/// The end of a file, and no more of it than a footer may have.
struct Footer {
    file: File,
    most: usize,
}

impl Length for Footer {
    fn len(&self) -> u64 {
        Length::len(&self.file)
    }
}

impl ChunkReader for Footer {
    type T = io::BufReader<File>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match length {
            length if length > self.most => Err(too_large("a footer", length as u64, self.most)),
            length => {
                let bytes = self.file.get_bytes(start, length)?;
                footer::check(&bytes)?;
                Ok(bytes)
            }
        }
    }
}

impl FileReader for BoundedFile {
    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    fn num_row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn get_row_group(&self, number: usize) -> Result<Box<dyn RowGroupReader + '_>> {
        Ok(Box::new(RowGroup { of: self, metadata: self.metadata.row_group(number) }))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

struct RowGroup<'a> {
    of: &'a BoundedFile,
    metadata: &'a RowGroupMetaData,
}

impl RowGroupReader for RowGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, number: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata.column(number);
        let (file, memory) = (Arc::clone(&self.of.file), Arc::clone(&self.of.memory));
        let chunk = Arc::new(Chunk { file, codec: column.compression(), memory: Arc::clone(&memory) });
        let rows = usize::try_from(self.metadata.num_rows())?;
        let pages = SerializedPageReader::new(chunk, column, rows, None)?;
        let is_repeated = column.column_descr().max_rep_level() > 0;
        let is_one_by_one = self.of.batch() == 1;
        Ok(Box::new(Pages { pages, memory, is_repeated, is_one_by_one }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of one column, each looked at before it is read.
struct Chunk {
    file: Arc<File>,
    codec: Compression,
    memory: Arc<MemoryBudget>,
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        Length::len(&*self.file)
    }
}

impl ChunkReader for Chunk {
    type T = io::BufReader<File>;

    /// The library reads the header of a page so.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let stated = page_header::read(self.file.get_read(start)?)?;
        self.memory.check("a page", stated.bytes)?;
        self.memory.check("a compressed page", stated.compressed_bytes)?;
        self.file.get_read(start)
    }

    /// And its bytes so.
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.memory.check("a compressed page", length as u64)?;
        let bytes = self.file.get_bytes(start, length)?;
        let most = self.memory.limit as u64;
        match self.codec {
            // These are uncompressed to their end by the library, whatever the header says of their length.
            Compression::GZIP(_) if bytes.len() as u64 * GZIP_MOST > most => {
                self.count(flate2::bufread::MultiGzDecoder::new(&*bytes))?;
            }
            Compression::LZ4 if bytes.len() as u64 * LZ4_MOST > most => {
                self.count(lz4_flex::frame::FrameDecoder::new(&*bytes))?;
            }
            _ => {}
        }
        Ok(bytes)
    }
}

/// A byte stands for no more than so many.
const GZIP_MOST: u64 = 1_032;
const LZ4_MOST: u64 = 255;

impl Chunk {
    /// Uncompresses without keeping anything: is it too much? What is damaged, the library says.
    fn count(&self, stream: impl Read) -> Result<()> {
        let most = self.memory.limit as u64 + 1;
        match io::copy(&mut stream.take(most), &mut io::sink()) {
            Ok(count) if count == most => Err(too_large("a page", count, self.memory.limit)),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The pages of one column, counted as long as they are held.
struct Pages {
    pages: SerializedPageReader<Chunk>,
    memory: Arc<MemoryBudget>,
    is_repeated: bool,
    /// Whether one value is read at a time.
    is_one_by_one: bool,
}

impl Pages {
    fn counted(&self, mut page: Page) -> Result<Page> {
        let fields = (page.num_values() as usize).saturating_mul(PARQUET_FIELD_BYTES);
        let encoding = page.encoding();
        let (buf, is_dictionary) = match &mut page {
            Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } => (buf, false),
            Page::DictionaryPage { buf, .. } => (buf, true),
        };
        if !is_dictionary && encoding == Encoding::DELTA_BYTE_ARRAY && !self.is_one_by_one {
            return Err(ParquetError::General(
                "a page of an encoding that the footer does not name".to_owned(),
            ));
        }
        if !is_dictionary && self.is_repeated {
            // The values of a list may be in many pages, and are a row's all together.
            let row = self.memory.row.fetch_add(fields, Ordering::Relaxed).saturating_add(fields);
            if row > self.memory.limit {
                return Err(too_large("the lists of a row", row as u64, self.memory.limit));
            }
        }
        let more = if is_dictionary { fields } else { 0 };
        self.memory.check("pages", buf.len() as u64 + more as u64)?;
        *buf = self.memory.hold(std::mem::take(buf), more);
        Ok(page)
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.map(|page| self.counted(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}
