//! Entries of any number brought into the order of the file, with bounded memory.
//!
//! A clerk with a small desk: when the desk is full, its slips are put in order, bound, and laid on the floor; at the
//! end the bundles are merged, looking only at the top slip of each. If there are too many bundles to stand around,
//! some are merged into larger ones first.
//!
//! The floor is one temporary file without a name for each pass, so nothing is left of it when the process is killed.
//! While bundles are merged only keys are in memory, and one value at a time. Every slip has a checksum: what comes
//! back from the disk changed is an error, not an entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::arena::Arena;
use super::error::BuildError;
use super::form::{Layout, u32_at, u64_at};
use crate::limits::{COMPARED, KEY_BYTES, LOOKED_AHEAD, MERGED_RUNS, RUN_BUFFER_BYTES, VALUE_BYTES};

/// Checksum, rank, number of the entry, lengths of key and value.
const SLIP_BYTES: usize = 28;

/// One entry on its way into the file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// See [`rank`].
    pub rank: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// What takes the entries, in order.
type Take<'a> = &'a mut dyn FnMut(Entry<'_>) -> Result<(), BuildError>;

/// What is compared before the key: its hash, or its first eight bytes.
pub fn rank(layout: Layout, key: &[u8]) -> u64 {
    match layout {
        Layout::Hashed => xxhash_rust::xxh3::xxh3_64(key),
        Layout::Ordered => {
            let mut first = [0; 8];
            let count = key.len().min(8);
            first[..count].copy_from_slice(&key[..count]);
            u64::from_be_bytes(first)
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Slip {
    rank: u64,
    begin: usize,
    key_bytes: u32,
    value_bytes: u32,
    number: u64,
}

/// A bundle: where it lies in the temporary file.
#[derive(Debug, Clone, Copy)]
struct Run {
    begin: u64,
    end: u64,
}

/// The desk and the floor.
#[derive(Debug)]
pub struct Sorter {
    folder: PathBuf,
    arena: Option<Arena>,
    room: usize,
    slips: Vec<Slip>,
    slip_room: usize,
    memory: usize,
    floor: Option<Floor>,
    /// Entries that a later one replaced.
    pub replaced: u64,
    /// Bytes written to the temporary folder.
    pub spilled_bytes: u64,
}

impl Sorter {
    /// `memory`: bytes that entries may take. An entry larger than that is held all the same, alone.
    pub fn new(folder: &Path, memory: usize) -> Sorter {
        let slip_room = memory / 4 / size_of::<Slip>();
        Sorter {
            folder: folder.to_owned(),
            arena: None,
            room: memory - memory / 4,
            slips: Vec::new(),
            slip_room,
            memory,
            floor: None,
            replaced: 0,
            spilled_bytes: 0,
        }
    }

    /// `number`: of equal keys the highest counts.
    pub fn add(&mut self, rank: u64, number: u64, key: &[u8], value: &[u8]) -> Result<(), BuildError> {
        let need = key.len() + value.len();
        let is_full = |arena: &Arena| arena.left() < need;
        if !self.slips.is_empty()
            && (self.slips.len() == self.slip_room || self.arena.as_ref().is_some_and(is_full))
        {
            self.spill()?;
        }
        if self.slips.capacity() == 0 {
            // At once, so that growing never holds two copies. The kernel gives memory only as it is written.
            self.slips.reserve_exact(self.slip_room);
        }
        // An entry larger than the desk has one of its own.
        let arena = match self.arena.take().filter(|arena| !is_full(arena)) {
            Some(arena) => arena,
            None => {
                Arena::new(self.room.max(need)).map_err(failed(&self.folder, "taking memory for entries"))?
            }
        };
        let arena = self.arena.insert(arena);
        self.slips.push(Slip {
            rank,
            begin: arena.bytes().len(),
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
            number,
        });
        arena.add(key);
        arena.add(value);
        Ok(())
    }

    /// Gives out all entries in order, of equal keys the last.
    pub fn drain(mut self, take: Take<'_>) -> Result<(u64, u64), BuildError> {
        if self.floor.is_none() {
            let bytes = self.arena.as_ref().map_or(&[][..], Arena::bytes);
            self.replaced += sort(bytes, &mut self.slips);
            each(bytes, &self.slips, |entry, _| take(entry))?;
            return Ok((self.replaced, 0));
        }
        self.spill()?;
        self.arena = None;
        self.slips = Vec::new();
        let together = (self.memory / (RUN_BUFFER_BYTES + KEY_BYTES)).clamp(2, MERGED_RUNS);
        while let Some(floor) = self.floor.take() {
            let floor = floor.closed()?;
            if floor.runs.len() <= together {
                self.replaced += merge(&floor, &floor.runs, &mut |entry, _| take(entry))?;
                break;
            }
            let mut next = Floor::new(&self.folder)?;
            for runs in floor.runs.chunks(together) {
                next.begin();
                self.replaced += merge(&floor, runs, &mut |entry, number| next.write(entry, number))?;
                next.end();
            }
            self.spilled_bytes += next.length;
            self.floor = Some(next);
        }
        Ok((self.replaced, self.spilled_bytes))
    }

    fn spill(&mut self) -> Result<(), BuildError> {
        let Some(arena) = &mut self.arena else { return Ok(()) };
        self.replaced += sort(arena.bytes(), &mut self.slips);
        if self.floor.is_none() {
            self.floor = Some(Floor::new(&self.folder)?);
        }
        let Some(floor) = &mut self.floor else { return Ok(()) };
        let before = floor.length;
        floor.begin();
        each(arena.bytes(), &self.slips, |entry, number| floor.write(entry, number))?;
        floor.end();
        self.spilled_bytes += floor.length - before;
        self.slips.clear();
        arena.clear();
        if arena.left() > self.room {
            self.arena = None;
        }
        Ok(())
    }
}

fn parts<'a>(bytes: &'a [u8], slip: &Slip) -> (&'a [u8], &'a [u8]) {
    let key_end = slip.begin + slip.key_bytes as usize;
    (&bytes[slip.begin..key_end], &bytes[key_end..key_end + slip.value_bytes as usize])
}

/// Gives out entries in the order of their slips, with their numbers. They lie all about: where the next few are is
/// looked at before it is their turn, so that the processor fetches them side by side.
fn each(
    bytes: &[u8],
    slips: &[Slip],
    mut take: impl FnMut(Entry<'_>, u64) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    for (at, slip) in slips.iter().enumerate() {
        if at % LOOKED_AHEAD == 0 {
            let soon = slips[at..].iter().take(2 * LOOKED_AHEAD);
            let end = |slip: &Slip| slip.begin + slip.key_bytes as usize + slip.value_bytes as usize;
            let ends = |slip: &Slip| [slip.begin, end(slip).saturating_sub(1)];
            let seen = soon.flat_map(ends).fold(0, |seen, at| seen ^ bytes.get(at).copied().unwrap_or(0));
            // Else it would be left out, as nobody uses it.
            std::hint::black_box(seen);
        }
        let (key, value) = parts(bytes, slip);
        take(Entry { rank: slip.rank, key, value }, slip.number)?;
    }
    Ok(())
}

/// Sorts, keeps the last of equal keys, and says how many went.
fn sort(bytes: &[u8], slips: &mut Vec<Slip>) -> u64 {
    deal(bytes, slips, u64::BITS);
    let before = slips.len();
    slips.dedup_by(|later, kept| later.rank == kept.rank && parts(bytes, later).0 == parts(bytes, kept).0);
    (before - slips.len()) as u64
}

/// Sorts slips whose ranks differ in the lowest `bits` at most: dealt out by the highest byte of these, in place (the
/// American flag sort of McIlroy, Bostic and McIlroy, 1993), and each heap by the next; few are compared.
fn deal(bytes: &[u8], slips: &mut [Slip], bits: u32) {
    if slips.len() <= COMPARED || bits == 0 {
        return slips.sort_unstable_by(|a, b| {
            let keys = || parts(bytes, a).0.cmp(parts(bytes, b).0);
            a.rank.cmp(&b.rank).then_with(keys).then(b.number.cmp(&a.number))
        });
    }
    let bits = bits - 8;
    let heap = |slip: &Slip| (slip.rank >> bits) as usize & 0xff;
    let mut counts = [0; 256];
    slips.iter().for_each(|slip| counts[heap(slip)] += 1);
    let (mut next, mut ends, mut sum) = ([0; 256], [0; 256], 0);
    for (number, count) in counts.into_iter().enumerate() {
        next[number] = sum;
        sum += count;
        ends[number] = sum;
    }
    for (number, end) in ends.into_iter().enumerate() {
        while next[number] < end {
            let to = heap(&slips[next[number]]);
            slips.swap(next[number], next[to]);
            next[to] += 1;
        }
    }
    let mut begin = 0;
    for end in ends {
        deal(bytes, &mut slips[begin..end], bits);
        begin = end;
    }
}

#[derive(Debug)]
struct Floor {
    folder: PathBuf,
    file: BufWriter<File>,
    runs: Vec<Run>,
    length: u64,
    open: u64,
}

/// A floor that is only read.
struct Bundles {
    folder: PathBuf,
    file: File,
    runs: Vec<Run>,
}

fn failed(folder: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    let path = folder.to_owned();
    move |source| BuildError::Io { path, doing, source }
}

impl Floor {
    fn new(folder: &Path) -> Result<Floor, BuildError> {
        let file = tempfile::tempfile_in(folder).map_err(failed(folder, "making a temporary file"))?;
        let file = BufWriter::with_capacity(RUN_BUFFER_BYTES, file);
        Ok(Floor { folder: folder.to_owned(), file, runs: Vec::new(), length: 0, open: 0 })
    }

    fn begin(&mut self) {
        self.open = self.length;
    }

    fn end(&mut self) {
        self.runs.push(Run { begin: self.open, end: self.length });
    }

    fn write(&mut self, entry: Entry<'_>, number: u64) -> Result<(), BuildError> {
        let mut head = [0; SLIP_BYTES];
        head[4..12].copy_from_slice(&entry.rank.to_le_bytes());
        head[12..20].copy_from_slice(&number.to_le_bytes());
        head[20..24].copy_from_slice(&(entry.key.len() as u32).to_le_bytes());
        head[24..28].copy_from_slice(&(entry.value.len() as u32).to_le_bytes());
        let crc = crc(&head, entry.key, entry.value);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        for part in [&head, entry.key, entry.value] {
            self.file.write_all(part).map_err(failed(&self.folder, "writing a temporary file"))?;
        }
        self.length += (SLIP_BYTES + entry.key.len() + entry.value.len()) as u64;
        Ok(())
    }

    fn closed(self) -> Result<Bundles, BuildError> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        let file = file.map_err(failed(&self.folder, "writing a temporary file"))?;
        Ok(Bundles { folder: self.folder, file, runs: self.runs })
    }
}

fn crc(head: &[u8; SLIP_BYTES], key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&head[4..]), key), value)
}

/// The top slip of a bundle: its key is in memory, its value still on the disk. Fields in the order of comparison.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Top {
    rank: u64,
    key: Vec<u8>,
    /// Of equal keys the last comes first.
    number: Reverse<u64>,
    run: usize,
    /// Where its value begins, and how long it is.
    value: (u64, usize),
    head: [u8; SLIP_BYTES],
}

/// Reads one bundle from top to bottom.
struct RunReader<'a> {
    bundles: &'a Bundles,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl RunReader<'_> {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), BuildError> {
        let folder = &self.bundles.folder;
        let read_failed = |e| failed(folder, "reading a temporary file")(e);
        if at + out.len() as u64 > self.end {
            return Err(BuildError::Spill { folder: folder.clone(), offset: at });
        }
        if out.len() > RUN_BUFFER_BYTES {
            return self.bundles.file.read_exact_at(out, at).map_err(read_failed);
        }
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        if at < self.buffer_at || at + out.len() as u64 > buffer_end {
            let length = (self.end - at).min(RUN_BUFFER_BYTES as u64) as usize;
            self.buffer.resize(length, 0);
            self.bundles.file.read_exact_at(&mut self.buffer, at).map_err(read_failed)?;
            self.buffer_at = at;
        }
        let begin = (at - self.buffer_at) as usize;
        out.copy_from_slice(&self.buffer[begin..begin + out.len()]);
        Ok(())
    }

    fn next(&mut self, run: usize) -> Result<Option<Top>, BuildError> {
        if self.at == self.end {
            return Ok(None);
        }
        let mut head = [0; SLIP_BYTES];
        self.read(self.at, &mut head)?;
        let (key_bytes, value_bytes) = (u32_at(&head, 20) as usize, u32_at(&head, 24) as usize);
        if key_bytes > KEY_BYTES || value_bytes > VALUE_BYTES {
            return Err(BuildError::Spill { folder: self.bundles.folder.clone(), offset: self.at });
        }
        let mut key = vec![0; key_bytes];
        self.read(self.at + SLIP_BYTES as u64, &mut key)?;
        let value_at = self.at + (SLIP_BYTES + key_bytes) as u64;
        self.at = value_at + value_bytes as u64;
        Ok(Some(Top {
            rank: u64_at(&head, 4),
            key,
            number: Reverse(u64_at(&head, 12)),
            run,
            value: (value_at, value_bytes),
            head,
        }))
    }

    fn value(&mut self, top: &Top, value: &mut Vec<u8>) -> Result<(), BuildError> {
        value.resize(top.value.1, 0);
        self.read(top.value.0, value)?;
        if crc(&top.head, &top.key, value) == u32_at(&top.head, 0) {
            return Ok(());
        }
        Err(BuildError::Spill { folder: self.bundles.folder.clone(), offset: top.value.0 })
    }
}

/// Merges some bundles, and says how many entries later ones replaced.
fn merge(
    bundles: &Bundles,
    runs: &[Run],
    take: &mut dyn FnMut(Entry<'_>, u64) -> Result<(), BuildError>,
) -> Result<u64, BuildError> {
    let reader = |run: &Run| RunReader {
        bundles,
        at: run.begin,
        end: run.end,
        buffer: Vec::new(),
        buffer_at: run.begin,
    };
    let mut readers: Vec<RunReader<'_>> = runs.iter().map(reader).collect();
    let mut tops = BinaryHeap::new();
    for (run, reader) in readers.iter_mut().enumerate() {
        tops.extend(reader.next(run)?.map(Reverse));
    }
    let (mut value, mut last, mut replaced) = (Vec::new(), None::<(u64, Vec<u8>)>, 0);
    while let Some(Reverse(top)) = tops.pop() {
        let reader = &mut readers[top.run];
        // Also of one that is replaced: a damaged key may only look like the one before.
        reader.value(&top, &mut value)?;
        if last.as_ref().is_some_and(|(rank, key)| *rank == top.rank && *key == top.key) {
            replaced += 1;
        } else {
            take(Entry { rank: top.rank, key: &top.key, value: &value }, top.number.0)?;
        }
        tops.extend(reader.next(top.run)?.map(Reverse));
        last = Some((top.rank, top.key));
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dealing_gives_the_order_that_comparing_gives() {
        // Ranks that differ everywhere, only below, hardly, and not at all.
        let ranks: [fn(u64) -> u64; 4] =
            [|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), |n| n.reverse_bits() >> 50, |n| n % 3, |_| 7];
        for rank in ranks {
            let bytes: Vec<u8> =
                (0..3_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
            let slip =
                |n: u64| Slip { rank: rank(n), begin: n as usize, key_bytes: 2, value_bytes: 0, number: n };
            let slips: Vec<Slip> = (0..2_900).map(slip).collect();
            let place = |slip: &Slip| (slip.rank, parts(&bytes, slip).0, Reverse(slip.number));
            let mut compared = slips.clone();
            compared.sort_by(|a, b| place(a).cmp(&place(b)));
            let mut dealt = slips;
            deal(&bytes, &mut dealt, u64::BITS);
            assert!(dealt.iter().map(place).eq(compared.iter().map(place)));
        }
    }

    #[test]
    fn every_flipped_bit_of_what_was_spilled_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut floor = Floor::new(folder.path()).unwrap();
        floor.begin();
        for (number, key) in [b"one", b"two"].into_iter().enumerate() {
            floor.write(Entry { rank: number as u64, key, value: b"value" }, number as u64).unwrap();
        }
        floor.end();
        let bundles = floor.closed().unwrap();
        let length = bundles.runs[0].end;
        let mut all = 0;
        merge(&bundles, &bundles.runs, &mut |_, _| {
            all += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(all, 2);
        for bit in 0..8 * length {
            let mut byte = [0];
            bundles.file.read_exact_at(&mut byte, bit / 8).unwrap();
            bundles.file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
            let read = merge(&bundles, &bundles.runs, &mut |_, _| Ok(()));
            assert!(matches!(read, Err(BuildError::Spill { .. })), "bit {bit}: {read:?}");
            bundles.file.write_all_at(&byte, bit / 8).unwrap();
        }
    }
}
