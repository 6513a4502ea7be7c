//! Opens a store file and answers from it.

use std::borrow::Cow;
use std::ops::{Bound, RangeBounds};
use std::path::Path;

use super::codec::Decoder;
use super::error::{Part, ReadError, Reason};
use super::form::{Footer, Layout, VERSION, check_header};
use super::hashed::{Directory, Pages};
use super::mapped::Mapped;
use super::ordered::{Blocks, Scan, SparseIndex};
use super::sort::rank;
use crate::limits::{KEY_BYTES, TOGETHER};

/// A value: in place where it lies uncompressed in the file, else a copy.
pub type Value<'a> = Cow<'a, [u8]>;

/// An open store file. Any number of threads may read at a time. Reading may wait for the disk: call it where
/// waiting is allowed.
#[derive(Debug)]
pub struct Reader {
    map: Mapped,
    footer: Footer,
    decoder: Decoder,
    /// The first keys of the blocks, of an ordered file.
    index: Option<SparseIndex>,
}

/// What a store file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Version of the format.
    pub format: u32,
    /// How the keys lie.
    pub layout: Layout,
    /// What values or blocks were compressed with: `none`, `lz4` or `zstd`.
    pub compression: &'static str,
    /// Keys in the file: each key counts once.
    pub keys: u64,
    /// Entries that a later one with the same key replaced while it was built.
    pub replaced: u64,
    /// The number of pages (hashed) or blocks (ordered).
    pub parts: u64,
    /// Length of all keys.
    pub key_bytes: u64,
    /// Length of all values, uncompressed.
    pub value_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// What should stay in memory for lookups to be quick: the page table, or the sparse index.
    pub index_bytes: u64,
    /// Length of the zstd dictionary; 0 without one.
    pub dictionary_bytes: u64,
}

impl Reader {
    /// Opens a file and checks how it is made up, in a time that does not grow with the number of its keys unless it
    /// is ordered. What a lookup reads is checked by the lookup; [`Reader::verify`] checks all.
    pub fn open(path: &Path) -> Result<Reader, ReadError> {
        let map = Mapped::open(path)?;
        let parts = Reader::read_parts(&map);
        let (footer, dictionary, index) = map.unless_lost(parts)?;
        Ok(Reader { decoder: Decoder::new(dictionary), map, footer, index })
    }

    fn read_parts(map: &Mapped) -> Result<(Footer, Vec<u8>, Option<SparseIndex>), ReadError> {
        let path = map.path();
        let refused = |(at, reason)| ReadError::refused(path, at, reason);
        check_header(map.bytes()).map_err(refused)?;
        let footer = Footer::decode(map.bytes()).map_err(refused)?;
        let dictionary = map.slice(footer.dictionary())?.to_vec();
        if crc32c::crc32c(&dictionary) != footer.dictionary_crc {
            return Err(map.refused(footer.dictionary().start, Reason::Checksum { what: Part::Dictionary }));
        }
        let index = match footer.layout {
            Layout::Hashed => None,
            Layout::Ordered => {
                check_index(map, &footer)?;
                let index = SparseIndex::read(&footer, map.slice(footer.index())?).map_err(|how| {
                    map.refused(footer.index().start, Reason::Contradiction { what: Part::Index, how })
                })?;
                Some(index)
            }
        };
        Ok((footer, dictionary, index))
    }

    /// The value of a key. An error means that the part of the file where it would be is damaged: whether the key is
    /// there is not known.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>, ReadError> {
        Search::new(self, key).end()
    }

    /// The values of many keys, in their order. Quicker than one by one: waits for memory overlap.
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value<'_>>>, ReadError> {
        let mut values = Vec::with_capacity(keys.len());
        let mut searches = Vec::with_capacity(TOGETHER.min(keys.len()));
        for keys in keys.chunks(TOGETHER) {
            searches.clear();
            searches.extend(keys.iter().map(|key| Search::new(self, key)));
            searches.iter().for_each(Search::prefetch_directory);
            searches.iter_mut().for_each(Search::prefetch_entry);
            for search in &searches {
                values.push(search.end()?);
            }
        }
        Ok(values)
    }

    /// The entries with keys in a range, in order, if the file was built ordered.
    pub fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<Scan<'_>, ReadError> {
        match self.parts() {
            Parts::Pages(_) => Err(ReadError::NotOrdered(self.map.path().to_owned())),
            Parts::Blocks(blocks) => {
                Ok(blocks.scan(range.start_bound().cloned(), range.end_bound().cloned()))
            }
        }
    }

    /// The entries whose keys begin so, in order, if the file was built ordered.
    pub fn prefix(&self, prefix: &[u8]) -> Result<Scan<'_>, ReadError> {
        // The next key after all of them: the last byte that can grow grows, and what is behind it goes.
        let mut end = prefix.to_vec();
        while end.pop_if(|byte| *byte == 0xff).is_some() {}
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let to = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end.as_slice()) };
        self.scan((Bound::Included(prefix), to))
    }

    /// The number of keys, as the footer says.
    pub fn len(&self) -> u64 {
        self.footer.keys
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.footer.keys == 0
    }

    /// What the file is.
    pub fn describe(&self) -> Description {
        let footer = &self.footer;
        Description {
            format: VERSION,
            layout: footer.layout,
            compression: ["none", "lz4", "zstd"][usize::from(footer.compression)],
            keys: footer.keys,
            replaced: footer.replaced,
            parts: footer.parts,
            key_bytes: footer.key_bytes,
            value_bytes: footer.value_bytes,
            file_bytes: self.map.bytes().len() as u64,
            index_bytes: self.index.as_ref().map_or(footer.index_bytes, SparseIndex::bytes),
            dictionary_bytes: footer.dictionary_bytes,
        }
    }

    /// Reads the whole file and checks every byte of it: checksums, order, counts, and that values decompress.
    pub fn verify(&self) -> Result<(), ReadError> {
        self.verify_while(&mut |_| true).map(drop)
    }

    /// As [`Reader::verify`], for as long as `go_on` wants: it is called now and then with how far the check is, in bytes of the
    /// file. False when it was broken off.
    ///
    /// # Errors
    /// As there.
    pub fn verify_while(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, ReadError> {
        let read = self.read_all(go_on);
        self.map.unless_lost(read)
    }

    fn read_all(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, ReadError> {
        let refused = |(at, reason)| self.map.refused(at, reason);
        check_header(self.map.bytes()).map_err(refused)?;
        Footer::decode(self.map.bytes()).map_err(refused)?;
        check_index(&self.map, &self.footer)?;
        let dictionary = self.footer.dictionary();
        if crc32c::crc32c(self.map.slice(dictionary.clone())?) != self.footer.dictionary_crc {
            return Err(self.map.refused(dictionary.start, Reason::Checksum { what: Part::Dictionary }));
        }
        match self.parts() {
            Parts::Pages(pages) => pages.verify(go_on),
            Parts::Blocks(blocks) => blocks.verify(go_on),
        }
    }

    #[inline]
    fn parts(&self) -> Parts<'_> {
        let Reader { map, footer, decoder, index } = self;
        match index {
            None => Parts::Pages(Pages { map, footer, decoder }),
            Some(index) => Parts::Blocks(Blocks { map, footer, decoder, index }),
        }
    }
}

/// A lookup that has begun. Where several have, take each step for all of them before the next: then the processor fetches
/// side by side the memory that they need, which it cannot when one must end before another begins. Up to [`TOGETHER`]
/// at a time. No step waits for a disk or refuses anything: [`Search::end`] does.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a, 'k> {
    reader: &'a Reader,
    key: &'k [u8],
    /// The hash of the key, where the file goes by it.
    rank: u64,
    /// Once it was looked at, if nothing is wrong with it.
    directory: Option<Directory<'a>>,
}

impl<'a, 'k> Search<'a, 'k> {
    /// Begins to look for a key: where in the file follows from its hash.
    #[inline]
    pub fn new(reader: &'a Reader, key: &'k [u8]) -> Search<'a, 'k> {
        let mut search = Search { reader, key, rank: 0, directory: None };
        if let Parts::Pages(pages) = reader.parts() {
            search.rank = rank(Layout::Hashed, key);
            pages.prefetch_table(search.rank);
        }
        search
    }

    /// Finds out on which page it must be, and prefetches the directory of that page.
    #[inline]
    pub fn prefetch_directory(&self) {
        if let Parts::Pages(pages) = self.reader.parts() {
            pages.prefetch_directory(self.rank);
        }
    }

    /// Finds out where on the page, and prefetches the entry.
    #[inline]
    pub fn prefetch_entry(&mut self) {
        if let Parts::Pages(pages) = self.reader.parts() {
            self.directory = pages.prefetch_entry(self.rank);
        }
    }

    /// The value of the key, as [`Reader::get`] gives it.
    #[inline]
    pub fn end(&self) -> Result<Option<Value<'a>>, ReadError> {
        let found = match (self.reader.parts(), &self.directory) {
            _ if self.key.len() > KEY_BYTES => return Ok(None),
            (Parts::Pages(pages), Some(directory)) => pages.get_from(directory, self.rank, self.key),
            (Parts::Pages(pages), None) => pages.get(self.rank, self.key),
            (Parts::Blocks(blocks), _) => blocks.get(self.key),
        };
        self.reader.map.unless_lost(found)
    }
}

enum Parts<'a> {
    Pages(Pages<'a>),
    Blocks(Blocks<'a>),
}

fn check_index(map: &Mapped, footer: &Footer) -> Result<(), ReadError> {
    if crc32c::crc32c(map.slice(footer.index())?) == footer.index_crc {
        return Ok(());
    }
    Err(map.refused(footer.index().start, Reason::Checksum { what: Part::Index }))
}
