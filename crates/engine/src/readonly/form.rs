//! Header, footer and small numbers: the parts that both layouts share.
//!
//! The header says what the file is and in which format; the footer lists its sections with their checksums.
//! All numbers are little-endian. The first 16 bytes have this form in every version, so that a reader of today can
//! name the version of a file of tomorrow.

use std::ops::Range;

use super::error::{Part, Reason};

/// The first bytes of every store file.
pub const MAGIC: [u8; 8] = *b"PARTAGE\x1a";
/// Its last bytes, by which a file that was cut off is noticed.
pub const END: [u8; 8] = *b"\x1aEGATRAP";
/// The format that is written, and the latest that is read.
pub const VERSION: u32 = 1;
/// Bytes of magic, version and checksum.
pub const HEADER_BYTES: usize = 16;
/// See [`Footer::encode`].
pub const FOOTER_BYTES: usize = 96;

/// How the keys lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// By their hash: the quickest lookup, no scans.
    Hashed,
    /// By themselves: scans of ranges and prefixes.
    Ordered,
}

/// How values (hashed) or blocks (ordered) are compressed. What does not get smaller is kept as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: values are read in place.
    None,
    /// LZ4 blocks: quick to read.
    Lz4,
    /// Zstandard with a dictionary trained on the values: smallest.
    Zstd {
        /// From 1, quick, to 19, small. Readers need not know it.
        level: i32,
    },
}

impl Compression {
    pub(super) fn number(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => 1,
            Compression::Zstd { .. } => 2,
        }
    }
}

/// What the end of the file says about the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    pub layout: Layout,
    /// 0 none, 1 lz4, 2 zstd: a description; each value or block says it for itself.
    pub compression: u8,
    pub keys: u64,
    /// Entries that a later one with the same key replaced.
    pub replaced: u64,
    /// The number of pages or blocks.
    pub parts: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub data_bytes: u64,
    pub index_bytes: u64,
    pub dictionary_bytes: u64,
    pub index_crc: u32,
    pub dictionary_crc: u32,
}

/// The header of this version.
pub fn header() -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks the first bytes of a file.
pub fn check_header(bytes: &[u8]) -> Result<(), (u64, Reason)> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err((0, Reason::Short { bytes: bytes.len() as u64 }));
    };
    if header[..8] != MAGIC {
        return Err((0, Reason::Foreign));
    }
    if crc32c::crc32c(&header[..12]) != u32_at(header, 12) {
        return Err((8, Reason::Checksum { what: Part::Header }));
    }
    match u32_at(header, 8) {
        VERSION => Ok(()),
        0 => Err((8, Reason::Contradiction { what: Part::Header, how: "there is no format 0" })),
        version => Err((8, Reason::Later { version, known: VERSION })),
    }
}

impl Footer {
    /// Layout and compression (a byte each, two of zero), the two section checksums, eight numbers of 64 bits, four
    /// bytes of zero, the checksum of all that, the end mark.
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = Vec::with_capacity(FOOTER_BYTES);
        let layout = match self.layout {
            Layout::Hashed => 0,
            Layout::Ordered => 1,
        };
        bytes.extend([layout, self.compression, 0, 0]);
        bytes.extend(self.index_crc.to_le_bytes());
        bytes.extend(self.dictionary_crc.to_le_bytes());
        bytes.extend([0; 8]);
        for number in self.numbers() {
            bytes.extend(number.to_le_bytes());
        }
        let mut footer = [0; FOOTER_BYTES];
        footer[..84].copy_from_slice(&bytes);
        let crc = crc32c::crc32c(&footer[..84]);
        footer[84..88].copy_from_slice(&crc.to_le_bytes());
        footer[88..].copy_from_slice(&END);
        footer
    }

    fn numbers(&self) -> [u64; 8] {
        let f = self;
        [
            f.keys,
            f.replaced,
            f.parts,
            f.key_bytes,
            f.value_bytes,
            f.data_bytes,
            f.index_bytes,
            f.dictionary_bytes,
        ]
    }

    /// Reads the end of a file, and checks that the sections it names fill the file exactly.
    pub fn decode(file: &[u8]) -> Result<Footer, (u64, Reason)> {
        let length = file.len() as u64;
        let Some(bytes) =
            file.last_chunk::<FOOTER_BYTES>().filter(|_| file.len() >= HEADER_BYTES + FOOTER_BYTES)
        else {
            return Err((0, Reason::Short { bytes: length }));
        };
        let at = length - FOOTER_BYTES as u64;
        if bytes[88..] != END {
            return Err((at + 88, Reason::NoEnd));
        }
        if crc32c::crc32c(&bytes[..84]) != u32_at(bytes, 84) {
            return Err((at, Reason::Checksum { what: Part::Footer }));
        }
        let contradiction = |how| (at, Reason::Contradiction { what: Part::Footer, how });
        let layout = match bytes[0] {
            0 => Layout::Hashed,
            1 => Layout::Ordered,
            _ => return Err(contradiction("an unknown layout")),
        };
        if bytes[1] > 2 || bytes[2..4] != [0; 2] || bytes[12..20] != [0; 8] {
            return Err(contradiction("an unknown compression or setting"));
        }
        let number = |i: usize| u64_at(bytes, 20 + 8 * i);
        let footer = Footer {
            layout,
            compression: bytes[1],
            keys: number(0),
            replaced: number(1),
            parts: number(2),
            key_bytes: number(3),
            value_bytes: number(4),
            data_bytes: number(5),
            index_bytes: number(6),
            dictionary_bytes: number(7),
            index_crc: u32_at(bytes, 4),
            dictionary_crc: u32_at(bytes, 8),
        };
        let sections = [footer.data_bytes, footer.index_bytes, footer.dictionary_bytes];
        let end = sections.iter().try_fold(HEADER_BYTES as u64, |sum, bytes| sum.checked_add(*bytes));
        if end != Some(at) {
            return Err(contradiction("its sections do not fill the file"));
        }
        if footer.layout == Layout::Hashed
            && (footer.parts == 0 || footer.parts.checked_mul(8) != Some(footer.index_bytes))
        {
            return Err(contradiction("the page table is not one entry a page"));
        }
        Ok(footer)
    }

    /// Where pages or blocks lie.
    pub fn data(&self) -> Range<u64> {
        HEADER_BYTES as u64..HEADER_BYTES as u64 + self.data_bytes
    }

    /// Where the page table or the sparse index lies.
    pub fn index(&self) -> Range<u64> {
        self.data().end..self.data().end + self.index_bytes
    }

    /// Where the dictionary lies.
    pub fn dictionary(&self) -> Range<u64> {
        self.index().end..self.index().end + self.dictionary_bytes
    }
}

/// The 4 bytes from `at`. The caller has checked that they are there.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The 8 bytes from `at`. The caller has checked that they are there.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Adds a number in groups of 7 bits, lowest first, the high bit set on all but the last (LEB128).
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes such a number, of at most 5 groups, off the front. `None`: cut off, too long, or not the shortest form.
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for group in 0..5 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * group);
        if byte & 0x80 == 0 {
            return (group == 0 || *byte != 0).then_some(number);
        }
    }
    None
}

/// Takes so many bytes off the front.
pub fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}
