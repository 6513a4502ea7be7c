//! Frames: how records lie in a journal file, and how damage is told from an unfinished write.
//!
//! The space for records is preallocated: zeros, synced before use. A record is written over them and synced before the
//! caller goes on. So the last record may be half there after a crash, and every byte before it must be as it was written.
//!
//! ```text
//! file    header 64 | record | record | … | zeros up to a multiple of the step, at least 32 of them
//! header  magic 8 | format 4 | step 4 | owner 16 | file number 8 | zeros 20 | crc 4
//! record  magic 4 | payload bytes 4 | record number 8 | file number 8 | payload crc 4 | header crc 4
//!         payload, whitened | zeros to fit | end mark 8                      (a multiple of 32 in all)
//! ```
//!
//! Records start at multiples of 32, so a record's header never straddles a page. The payload is
//! whitened (mixed with a fixed stream of its record number): a 512-byte sector of zeros inside a record
//! can then only be a sector that was never written. What is found at the place of the next record:
//!
//! | found there                                             | after it              | verdict |
//! |---------------------------------------------------------|-----------------------|---------|
//! | zeros, at least 32                                      | zeros                 | end     |
//! | header good, payload good, end mark good                | anything              | record  |
//! | header good; end mark cut short, or a sector unwritten  | zeros                 | torn    |
//! | header not good, nothing beyond it                      | zeros                 | torn    |
//! | the header's sector never written                       | no header in the file | torn    |
//! | anything else, or the file ends first                   |                       | damage  |
//!
//! A torn record was never acknowledged, and is dropped. Because zeros must follow the last record, a
//! file that was cut is always found: either a record is incomplete, or the zeros are missing.
//! What no file can tell by itself: whole sectors that went back to zeros at the very end look like a
//! write that never happened.

use bytes::{Buf, BufMut};

/// Records start at multiples of this.
pub const ALIGN: usize = 32;
/// Bytes of a file's header; the first record follows.
pub const FILE_HEADER: usize = 64;
/// Bytes of a record's header; its payload follows.
pub const RECORD_HEADER: usize = 32;
/// What a disk writes as a whole, or not at all.
const SECTOR: usize = 512;
/// So many bytes are mixed and checked at a time, so that they are still in the cache of the processor for the second of both. A
/// multiple of eight, and of what the checksum takes in one go.
const BLOCK: usize = 24 << 10;
const FILE_MAGIC: [u8; 8] = *b"PARTAGEJ";
const RECORD_MAGIC: u32 = 0x5ea1_ed01;
const END_MARK: [u8; 8] = [0xe5, 0x7a, 0x9c, 0x3b, 0xd6, 0x4f, 0xa1, 0x8e];
/// The form described above. Another number is refused, not guessed at.
pub const FORMAT: u32 = 1;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Byte offset in the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl Damage {
    /// Damage at that offset of the file.
    pub fn new(offset: usize, what: impl Into<String>) -> Self {
        Self { offset: offset as u64, what: what.into() }
    }
}

/// The first 64 bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The cluster or the store that the file belongs to; 0 where the records name it themselves.
    pub owner: u128,
    /// Which of several files in the same directory; each of its records has it too.
    pub file_number: u64,
    /// The file grows by so many bytes at a time: a multiple of 512.
    pub step: u32,
}

impl FileHeader {
    /// The header as it is written, with its checksum.
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FILE_HEADER);
        bytes.put_slice(&FILE_MAGIC);
        bytes.put_u32(FORMAT);
        bytes.put_u32(self.step);
        bytes.put_u128(self.owner);
        bytes.put_u64(self.file_number);
        bytes.put_bytes(0, 20);
        bytes.put_u32(crc32c::crc32c(&bytes));
        bytes
    }

    /// The header from the first bytes of `file`.
    pub fn decode(file: &[u8]) -> Result<Self, Damage> {
        let Some(header) = file.get(..FILE_HEADER) else {
            return Err(Damage::new(file.len(), "the file ends inside its header"));
        };
        let (mut content, mut check) = header.split_at(FILE_HEADER - 4);
        if content[..8] != FILE_MAGIC {
            return Err(Damage::new(0, "this is not a journal: its first bytes are wrong"));
        }
        if crc32c::crc32c(content) != check.get_u32() {
            return Err(Damage::new(0, "the checksum of the file's header is wrong"));
        }
        content.advance(8);
        let format = content.get_u32();
        if format != FORMAT {
            let what = format!("format {format} is unknown; this program reads format {FORMAT}");
            return Err(Damage::new(8, what));
        }
        let step = content.get_u32();
        if (step as usize) < SECTOR || !(step as usize).is_multiple_of(SECTOR) {
            return Err(Damage::new(12, format!("the step of {step} bytes is no multiple of {SECTOR}")));
        }
        Ok(Self { owner: content.get_u128(), file_number: content.get_u64(), step })
    }
}

/// Bytes that a payload takes up in the file.
pub fn extent(payload_bytes: usize) -> usize {
    (RECORD_HEADER + payload_bytes + END_MARK.len()).next_multiple_of(ALIGN)
}

/// A whole record, ready to be written.
pub fn encode(file_number: u64, record_number: u64, payload: Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extent(payload.len()));
    encode_into(&mut bytes, file_number, record_number, |bytes| bytes.extend(payload));
    bytes
}

/// Puts a whole record behind what `bytes` has, and says how many bytes that are. `put_payload` adds the payload to the same
/// bytes, and leaves what is there before: so it is copied nowhere.
pub fn encode_into(
    bytes: &mut Vec<u8>,
    file_number: u64,
    record_number: u64,
    put_payload: impl FnOnce(&mut Vec<u8>),
) -> usize {
    let start = bytes.len();
    bytes.put_bytes(0, RECORD_HEADER);
    put_payload(bytes);
    let payload = &mut bytes[start + RECORD_HEADER..];
    let (payload_bytes, mut mask, mut payload_crc) = (payload.len(), Mask::new(record_number), 0);
    for block in payload.chunks_mut(BLOCK) {
        mask.mix(block);
        payload_crc = crc32c::crc32c_append(payload_crc, block);
    }
    let header = RecordHeader { payload_bytes, number: record_number, file_number, payload_crc }.encode();
    bytes[start..start + RECORD_HEADER].copy_from_slice(&header);
    let extent = extent(payload_bytes);
    bytes.resize(start + extent - END_MARK.len(), 0);
    bytes.put_slice(&END_MARK);
    extent
}

/// What is found where a record could start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A good record; the next may start at `next`.
    Record {
        /// The payload in clear, as [`encode`] was given it.
        payload: Vec<u8>,
        /// Counted from 1 in each file.
        number: u64,
        /// The offset at which the next record may start.
        next: usize,
    },
    /// Nothing but zeros from here on.
    End,
    /// The last write, unfinished.
    Torn,
}

/// Judges what lies at `at`, by the table in the module's head.
pub fn find(file: &[u8], file_number: u64, at: usize, expected: u64) -> Result<Found, Damage> {
    let rest = &file[at.min(file.len())..];
    if rest.len() < ALIGN {
        return Err(Damage::new(at, "the file was cut: no free room follows the last record"));
    }
    if is_zero(rest) {
        return Ok(Found::End);
    }
    let Some(header) = RecordHeader::decode(rest) else {
        let sector_end = (at / SECTOR + 1) * SECTOR;
        let unwritten = is_zero(&file[at..sector_end.min(file.len())]);
        let beyond_is_empty = is_zero(&rest[RECORD_HEADER..]);
        if beyond_is_empty || (unwritten && !has_header(file, sector_end, file_number)) {
            return Ok(Found::Torn);
        }
        return Err(Damage::new(at, format!("the header of record {expected} is damaged")));
    };
    if header.file_number != file_number {
        let what = format!("a record of file {} lies in file {file_number}", header.file_number);
        return Err(Damage::new(at, what));
    }
    if header.number != expected {
        let what = format!("record {} lies where record {expected} belongs", header.number);
        return Err(Damage::new(at, what));
    }
    let extent = extent(header.payload_bytes);
    let Some(record) = rest.get(..extent) else {
        return Err(Damage::new(at, format!("the file was cut inside record {expected}")));
    };
    if let Some(payload) = header.payload(record) {
        return Ok(Found::Record { payload, number: expected, next: at + extent });
    }
    let unfinished = !is_marked(record) || has_unwritten_sector(file, at, extent);
    if unfinished && is_zero(&rest[extent..]) {
        return Ok(Found::Torn);
    }
    Err(Damage::new(at, format!("record {expected} is damaged: its checksum, padding or end mark is wrong")))
}

/// The next good record at or after `at`, whatever lies before it. For salvage only.
pub fn find_any(file: &[u8], file_number: u64, at: usize) -> Option<(usize, Found)> {
    (at.next_multiple_of(ALIGN)..file.len()).step_by(ALIGN).find_map(|start| {
        let header =
            RecordHeader::decode(&file[start..]).filter(|header| header.file_number == file_number)?;
        let extent = extent(header.payload_bytes);
        let payload = header.payload(file.get(start..start + extent)?)?;
        Some((start, Found::Record { payload, number: header.number, next: start + extent }))
    })
}

/// What the header of a record says, whether the rest of the record is as it was written or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of the record, from 1 in each file.
    pub number: u64,
    /// The number of the file that the record was written to.
    pub file_number: u64,
    /// Bytes of its payload.
    pub payload_bytes: usize,
}

/// The header of the record at the start of `bytes`, if the header is as it was written. That says nothing of the rest: it is for
/// salvage, and for payloads that have checksums of their parts ([`unmix`]).
pub fn head(bytes: &[u8]) -> Option<Head> {
    let RecordHeader { payload_bytes, number, file_number, .. } = RecordHeader::decode(bytes)?;
    Some(Head { number, file_number, payload_bytes })
}

/// The first `most` bytes of the payload of the record at the start of `bytes`, or what there is of them, in clear,
/// whether they are as they were written or not. For salvage only.
pub fn unchecked_payload(bytes: &[u8], number: u64, most: usize) -> Vec<u8> {
    let payload = bytes.get(RECORD_HEADER..).unwrap_or_default();
    let mut payload = payload[..most.min(payload.len())].to_vec();
    Mask::new(number).mix(&mut payload);
    payload
}

/// The payload of the record at the start of `bytes`, in clear at its place: nothing is copied. None, and nothing is changed: the
/// record is another one, or not as it was written; [`find`] says what there is.
pub fn payload_in_place(bytes: &mut [u8], file_number: u64, number: u64) -> Option<&mut [u8]> {
    let header = RecordHeader::decode(bytes)?;
    if (header.file_number, header.number) != (file_number, number) {
        return None;
    }
    let record = bytes.get_mut(..extent(header.payload_bytes))?;
    let payload = header.framed(record)?;
    if crc32c::crc32c(payload) != header.payload_crc {
        return None;
    }
    let payload = &mut record[RECORD_HEADER..RECORD_HEADER + header.payload_bytes];
    Mask::new(number).mix(payload);
    Some(payload)
}

/// Brings a part of a payload back into clear, which begins at that byte of it: so a part is read without the rest. The checksum
/// of the record says nothing of a part, so the payload must have one of its own for it.
pub fn unmix(record_number: u64, from: usize, part: &mut [u8]) {
    let (mut mask, before) = (Mask::at(record_number, from / WORD), from % WORD);
    if before > 0 {
        let (first, rest) = part.split_at_mut(part.len().min(WORD - before));
        let word = mask.word().to_le_bytes();
        first.iter_mut().zip(&word[before..]).for_each(|(byte, mask)| *byte ^= mask);
        mask.mix(rest);
    } else {
        mask.mix(part);
    }
}

struct RecordHeader {
    payload_bytes: usize,
    number: u64,
    file_number: u64,
    payload_crc: u32,
}

impl RecordHeader {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut header = bytes.get(..RECORD_HEADER)?;
        let crc = crc32c::crc32c(&header[..RECORD_HEADER - 4]);
        if header.get_u32() != RECORD_MAGIC {
            return None;
        }
        let payload_bytes = header.get_u32() as usize;
        let decoded = Self {
            payload_bytes,
            number: header.get_u64(),
            file_number: header.get_u64(),
            payload_crc: header.get_u32(),
        };
        (header.get_u32() == crc).then_some(decoded)
    }

    fn encode(&self) -> [u8; RECORD_HEADER] {
        let mut header = [0; RECORD_HEADER];
        let mut rest = &mut header[..];
        rest.put_u32(RECORD_MAGIC);
        // The limits on transactions and batches keep every payload far below 4 GiB.
        rest.put_u32(u32::try_from(self.payload_bytes).expect("payloads are bounded by the limits"));
        rest.put_u64(self.number);
        rest.put_u64(self.file_number);
        rest.put_u32(self.payload_crc);
        let crc = crc32c::crc32c(&header[..RECORD_HEADER - 4]);
        header[RECORD_HEADER - 4..].copy_from_slice(&crc.to_be_bytes());
        header
    }

    /// The payload as it lies in `record`, if what stands around it is as it was written.
    fn framed<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let (payload, tail) = record[RECORD_HEADER..].split_at(self.payload_bytes);
        let (padding, mark) = tail.split_at(tail.len() - END_MARK.len());
        (is_zero(padding) && mark == END_MARK).then_some(payload)
    }

    /// The payload in clear, if the whole of `record` is as it was written.
    fn payload(&self, record: &[u8]) -> Option<Vec<u8>> {
        let payload = self.framed(record)?;
        let (mut clear, mut mask, mut crc) = (Vec::with_capacity(payload.len()), Mask::new(self.number), 0);
        for block in payload.chunks(BLOCK) {
            crc = crc32c::crc32c_append(crc, block);
            let at = clear.len();
            clear.extend_from_slice(block);
            mask.mix(&mut clear[at..]);
        }
        (crc == self.payload_crc).then_some(clear)
    }
}

/// False if the writing stopped before the last byte of the end mark.
fn is_marked(record: &[u8]) -> bool {
    let mark = &record[record.len() - END_MARK.len()..];
    let written = END_MARK.iter().zip(mark).take_while(|(wanted, found)| wanted == found).count();
    written == END_MARK.len() || !is_zero(&mark[written..])
}

/// True if a sector, or the record's part of it, holds only zeros.
fn has_unwritten_sector(file: &[u8], at: usize, extent: usize) -> bool {
    let end = at + extent;
    (at / SECTOR..end.div_ceil(SECTOR))
        .any(|sector| is_zero(&file[(sector * SECTOR).max(at)..((sector + 1) * SECTOR).min(end)]))
}

fn has_header(file: &[u8], from: usize, file_number: u64) -> bool {
    (from..file.len())
        .step_by(ALIGN)
        .any(|at| RecordHeader::decode(&file[at..]).is_some_and(|header| header.file_number == file_number))
}

fn is_zero(bytes: &[u8]) -> bool {
    // Compared in blocks: a byte at a time is slow where the compiler does not optimise.
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|block| block == &ZEROS[..block.len()])
}

/// A stream that depends on the record number only (Steele, Lea, Flood: SplitMix), with which payloads are mixed. Doing it twice
/// restores the bytes. It hides nothing from anyone; it only makes long runs of zeros impossible.
struct Mask(u64);

const MASK_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes that are mixed at a time.
const WORD: usize = 8;

impl Mask {
    fn new(record_number: u64) -> Mask {
        Mask::at(record_number, 0)
    }

    /// From that word of the payload on.
    fn at(record_number: u64, word: usize) -> Mask {
        Mask(record_number.wrapping_add(word as u64).wrapping_mul(MASK_STEP))
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(MASK_STEP);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Mixes the next bytes. Only the last ones of a payload may be another number than a multiple of eight.
    fn mix(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<WORD>();
        for word in words {
            *word = (u64::from_le_bytes(*word) ^ self.word()).to_le_bytes();
        }
        if !rest.is_empty() {
            let mask = self.word().to_le_bytes();
            rest.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of more blocks than one.
    fn large() -> Vec<u8> {
        (0..100_003_usize).map(|at| ((at * 31 + at / 251) % 256) as u8).collect()
    }

    #[test]
    fn d1_a_record_has_these_bytes_and_no_others() {
        let expected = "5ea1ed010000001a000000000000000300000000000000077759ff0e5ee31cd0\
                        8da13c13d1d4e499ff54c7374abb0f3b88db0a117fb3eb3d8e45000000000000\
                        000000000000000000000000000000000000000000000000e57a9c3bd64fa18e";
        let bytes = encode(7, 3, b"a payload of 26 bytes, now".to_vec());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
        let bytes = encode(2, 9, large());
        assert_eq!((bytes.len(), crc32c::crc32c(&bytes)), (100_064, 0xe8be_25a5));
    }

    #[test]
    fn records_are_put_one_behind_the_other_and_read_with_a_copy_or_without() {
        let payloads = [Vec::new(), vec![0; 7], vec![9; 8], large(), vec![1; 3 * BLOCK]];
        let (mut bytes, mut expected) = (vec![5; 3], vec![5; 3]);
        for (number, payload) in (1..).zip(&payloads) {
            let put = encode_into(&mut bytes, 4, number, |bytes| bytes.extend_from_slice(payload));
            expected.extend(encode(4, number, payload.clone()));
            assert_eq!(put, extent(payload.len()));
        }
        assert!(bytes == expected, "both ways give the same bytes");
        let mut file = bytes.split_off(3);
        file.extend([0; ALIGN]);
        let mut at = 0;
        for (number, payload) in (1..).zip(&payloads) {
            let Ok(Found::Record { payload: found, next, .. }) = find(&file, 4, at, number) else {
                panic!("record {number}");
            };
            assert!(found == *payload, "{number}");
            assert!(payload_in_place(&mut file[at..], 4, number + 1).is_none(), "another one");
            assert!(
                payload_in_place(&mut file[at..next], 4, number).is_some_and(|found| *found == payload[..])
            );
            at = next;
        }
        assert_eq!(find(&file, 4, at, 6), Ok(Found::End));
    }

    #[test]
    fn each_part_of_a_payload_comes_back_without_the_rest() {
        for (number, payload) in [(1, large()[..100].to_vec()), (u64::MAX, large()[..37].to_vec())] {
            let record = encode(4, number, payload.clone());
            for from in 0..=payload.len() {
                for end in from..=payload.len() {
                    let mut part = record[RECORD_HEADER + from..RECORD_HEADER + end].to_vec();
                    unmix(number, from, &mut part);
                    assert_eq!(part, payload[from..end], "{from}..{end}");
                }
            }
        }
        let (payload, record) = (large(), encode(4, 9, large()));
        for (from, end) in [(BLOCK - 3, 3 * BLOCK + 5), (8, 100_003), (99_999, 100_003)] {
            let mut part = record[RECORD_HEADER + from..RECORD_HEADER + end].to_vec();
            unmix(9, from, &mut part);
            assert!(part == payload[from..end], "{from}..{end}");
        }
    }

    #[test]
    fn d6_no_bit_that_flips_is_read_in_place_and_nothing_is_changed_then() {
        let whole = encode(4, 1, b"payload".to_vec());
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let before = flipped.clone();
            assert_eq!(payload_in_place(&mut flipped, 4, 1), None, "{bit}");
            assert_eq!(flipped, before, "{bit}");
        }
        assert_eq!(payload_in_place(&mut whole[..whole.len() - 1].to_vec(), 4, 1), None);
        assert_eq!(payload_in_place(&mut [], 4, 1), None);
    }
}
