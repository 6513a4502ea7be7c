//! Entries in memory, and their order.
//!
//! A bucket sort: each entry is appended to the bucket that the first bits of its rank choose as it comes, and each bucket
//! is sorted by itself when the buffer is full. A bucket is so small that all of it lies in the processor's second cache
//! while it is sorted; entries without buckets would have to be fetched from all over the memory, one by one.
//!
//! A bucket has pieces of one [arena](super::arena), each twice as long as the one before up to a limit: so that few entries
//! take little memory, and many are read in long stretches. An entry lies in a piece as
//!
//! ```text
//! rank u64 · number u64 · length of the key u32 · length of the value u32 · key · value
//! ```

use std::cmp::Ordering;
use std::io;

use super::arena::{Arena, Arenas, PREFETCHED_BYTES, prefetch_range};
use super::form::{u32_at, u64_at};
use super::sort::Entry;
use crate::limits::{
    BUCKET_BYTES, COMPARED_ENTRIES, LEAST_PIECE_BYTES, MOST_BUCKETS, PIECE_BYTES, PREFETCHED_ENTRIES,
    RADIX_BITS,
};

/// What stands before the key.
const HEAD_BYTES: usize = 24;

/// Where an entry is, and what decides its place mostly.
#[derive(Debug, Clone, Copy)]
struct EntryRef {
    rank: u64,
    at: usize,
}

/// Entries whose ranks begin alike.
#[derive(Debug, Clone, Default)]
struct Bucket {
    /// Where the next entry goes, and the end of that piece.
    next: usize,
    end: usize,
    /// Where that piece begins.
    begin: usize,
    entries: usize,
    /// The pieces before it, as far as they are filled.
    full: Vec<(usize, usize)>,
}

impl Bucket {
    /// Where its entries lie.
    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        self.full.iter().copied().chain([(self.begin, self.next)])
    }
}

/// A buffer of bounded memory that takes entries in any order and gives them out sorted by rank.
#[derive(Debug)]
pub struct SortBuffer {
    arenas: Arenas,
    /// Taken with the first entry.
    arena: Option<Arena>,
    /// How much of it belongs to buckets.
    used: usize,
    /// Bytes that entries and references to them may take together.
    memory: usize,
    buckets: Vec<Bucket>,
    /// The bits of a rank below those that choose the bucket.
    low_bits: u32,
    /// Entries in the fullest bucket.
    most: usize,
    /// References to the entries of the bucket that is being sorted.
    entry_refs: Vec<EntryRef>,
    spare: Vec<EntryRef>,
}

impl SortBuffer {
    /// `memory`: bytes that entries may take. One that is larger lies there alone.
    pub fn new(memory: usize, arenas: Arenas) -> SortBuffer {
        let buckets = (memory / BUCKET_BYTES).clamp(1, MOST_BUCKETS);
        let bits = buckets.ilog2().max(1);
        SortBuffer {
            arenas,
            arena: None,
            used: 0,
            memory,
            buckets: vec![Bucket::default(); 1 << bits],
            low_bits: u64::BITS - bits,
            most: 0,
            entry_refs: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Adds an entry, or says that there is no room for it beside those that are there.
    pub fn add(&mut self, entry: Entry<'_>, number: u64) -> io::Result<bool> {
        let need = HEAD_BYTES + entry.key.len() + entry.value.len();
        let bucket = (entry.rank >> self.low_bits) as usize;
        let Bucket { next, end, .. } = self.buckets[bucket];
        let at = if end - next >= need {
            self.buckets[bucket].next += need;
            next
        } else if let Some(at) = self.place(bucket, need)? {
            at
        } else {
            return Ok(false);
        };
        self.buckets[bucket].entries += 1;
        self.most = self.most.max(self.buckets[bucket].entries);
        let Some(arena) = &mut self.arena else { return Ok(false) };
        let (head, rest) = arena.bytes_mut()[at..at + need].split_at_mut(HEAD_BYTES);
        head[..8].copy_from_slice(&entry.rank.to_le_bytes());
        head[8..16].copy_from_slice(&number.to_le_bytes());
        head[16..20].copy_from_slice(&(entry.key.len() as u32).to_le_bytes());
        head[20..].copy_from_slice(&(entry.value.len() as u32).to_le_bytes());
        let (key, value) = rest.split_at_mut(entry.key.len());
        key.copy_from_slice(entry.key);
        value.copy_from_slice(entry.value);
        // Where the next entry of this bucket goes.
        prefetch_range::<true>(arena.bytes(), at + need);
        Ok(true)
    }

    /// A place in another piece.
    fn place(&mut self, bucket: usize, need: usize) -> io::Result<Option<usize>> {
        let is_alone = need > PIECE_BYTES / 8;
        let before = self.buckets[bucket].end - self.buckets[bucket].begin;
        let piece = (2 * before).clamp(LEAST_PIECE_BYTES, PIECE_BYTES);
        let bytes = if is_alone { need } else { piece.max(need) };
        // While a bucket is sorted, references to its entries take memory, too.
        let entry_refs = 2 * self.entry_refs.capacity().max(self.most) * size_of::<EntryRef>();
        let room = self.arena.as_ref().map_or(self.memory, Arena::room);
        if self.used + bytes > room || (self.most > 0 && self.used + bytes + entry_refs > self.memory) {
            if self.most > 0 {
                return Ok(None);
            }
            self.clear();
            self.arena = None;
        }
        if self.arena.is_none() {
            self.arena = Some(self.arenas.take(self.memory.max(bytes))?);
        }
        let begin = self.used;
        self.used += bytes;
        let bucket = &mut self.buckets[bucket];
        if is_alone {
            bucket.full.push((begin, begin + need));
        } else {
            bucket.full.push((bucket.begin, bucket.next));
            (bucket.begin, bucket.next, bucket.end) = (begin, begin + need, begin + bytes);
        }
        Ok(Some(begin))
    }

    /// Gives out all entries in order, of equal keys the one with the highest number, and forgets them. Says how many it
    /// left out for that.
    pub fn drain<E>(&mut self, mut take: impl FnMut(Entry<'_>, u64) -> Result<(), E>) -> Result<u64, E> {
        let mut replaced = 0;
        let bytes = self.arena.as_ref().map_or(&[][..], Arena::bytes);
        for (number, bucket) in self.buckets.iter().enumerate() {
            self.entry_refs.clear();
            self.entry_refs.reserve_exact(bucket.entries);
            for (begin, end) in bucket.pieces() {
                let mut at = begin;
                while at < end {
                    self.entry_refs.push(EntryRef { rank: u64_at(bytes, at), at });
                    at += HEAD_BYTES + (u32_at(bytes, at + 16) + u32_at(bytes, at + 20)) as usize;
                }
            }
            self.spare.clone_from(&self.entry_refs);
            radix_sort(bytes, &mut self.entry_refs, &mut self.spare, self.low_bits);
            let before = self.entry_refs.len();
            self.entry_refs.dedup_by(|later, kept| {
                later.rank == kept.rank && parts(bytes, later).0 == parts(bytes, kept).0
            });
            replaced += (before - self.entry_refs.len()) as u64;
            // While these are given out, the next few and the next bucket are prefetched.
            let next = self.buckets.get(number + 1).into_iter().flat_map(Bucket::pieces);
            let mut lines = next.flat_map(|(begin, end)| (begin..end).step_by(PREFETCHED_BYTES));
            for (number, entry_ref) in self.entry_refs.iter().enumerate() {
                let soon = self.entry_refs.get(number + PREFETCHED_ENTRIES).map(|entry_ref| entry_ref.at);
                soon.into_iter().chain(lines.next()).for_each(|at| prefetch_range::<false>(bytes, at));
                let (key, value) = parts(bytes, entry_ref);
                take(Entry { rank: entry_ref.rank, key, value }, u64_at(bytes, entry_ref.at + 8))?;
            }
        }
        self.clear();
        Ok(replaced)
    }

    fn clear(&mut self) {
        for bucket in &mut self.buckets {
            bucket.full.clear();
            (bucket.begin, bucket.next, bucket.end, bucket.entries) = (0, 0, 0, 0);
        }
        (self.used, self.most) = (0, 0);
        drop(self.arena.take_if(|arena| arena.room() > self.memory));
    }

    /// Ends it where its memory is needed for something else: no other builder gets it.
    pub fn discard(mut self) {
        self.arena = None;
    }
}

impl Drop for SortBuffer {
    fn drop(&mut self) {
        // A larger one was for one entry, and goes.
        if let Some(arena) = self.arena.take().filter(|arena| arena.room() == self.memory) {
            self.arenas.give_back(arena);
        }
    }
}

fn parts<'a>(bytes: &'a [u8], entry_ref: &EntryRef) -> (&'a [u8], &'a [u8]) {
    let entry = &bytes[entry_ref.at..];
    let (key_bytes, value_bytes) = (u32_at(entry, 16) as usize, u32_at(entry, 20) as usize);
    entry[HEAD_BYTES..HEAD_BYTES + key_bytes + value_bytes].split_at(key_bytes)
}

/// Sorts references whose ranks differ in the lowest `bits` at most: distributed by the highest of these, into as many bins as
/// there are references, mostly, and each bin that has become large once more; few are compared. `spare` is as long.
fn radix_sort(bytes: &[u8], entry_refs: &mut [EntryRef], spare: &mut [EntryRef], bits: u32) {
    if entry_refs.len() <= COMPARED_ENTRIES || bits == 0 {
        return entry_refs.sort_unstable_by(|a, b| order(bytes, a, b));
    }
    let radix_bits = entry_refs.len().ilog2().min(RADIX_BITS).min(bits);
    let (low, mask) = (bits - radix_bits, (1 << radix_bits) - 1);
    let bin = |entry_ref: &EntryRef| (entry_ref.rank >> low) as usize & mask;
    let mut ends = [0_usize; 1 << RADIX_BITS];
    entry_refs.iter().for_each(|entry_ref| ends[bin(entry_ref)] += 1);
    let (mut sum, mut most) = (0, 0);
    for end in &mut ends[..=mask] {
        most = most.max(*end);
        sum += *end;
        *end = sum - *end;
    }
    for entry_ref in entry_refs.iter() {
        let next = &mut ends[bin(entry_ref)];
        spare[*next] = *entry_ref;
        *next += 1;
    }
    entry_refs.copy_from_slice(spare);
    if most <= COMPARED_ENTRIES {
        // Each is near its place.
        for number in 1..entry_refs.len() {
            let mut at = number;
            while at > 0 && order(bytes, &entry_refs[at - 1], &entry_refs[at]).is_gt() {
                entry_refs.swap(at - 1, at);
                at -= 1;
            }
        }
        return;
    }
    let mut begin = 0;
    for end in &ends[..=mask] {
        radix_sort(bytes, &mut entry_refs[begin..*end], &mut spare[begin..*end], low);
        begin = *end;
    }
}

/// By rank, then by key, and of equal keys the highest number first.
fn order(bytes: &[u8], a: &EntryRef, b: &EntryRef) -> Ordering {
    let keys = || parts(bytes, a).0.cmp(parts(bytes, b).0);
    let numbers = || u64_at(bytes, b.at + 8).cmp(&u64_at(bytes, a.at + 8));
    a.rank.cmp(&b.rank).then_with(keys).then_with(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::convert::Infallible;

    /// Rank, key, value, number.
    type Given = (u64, Vec<u8>, Vec<u8>, u64);

    fn drained(buffer: &mut SortBuffer) -> (u64, Vec<Given>) {
        let mut all = Vec::new();
        let replaced = buffer.drain::<Infallible>(|entry, number| {
            all.push((entry.rank, entry.key.to_vec(), entry.value.to_vec(), number));
            Ok(())
        });
        (replaced.unwrap(), all)
    }

    #[test]
    fn entries_come_out_in_the_order_that_comparing_gives() {
        // Ranks that differ everywhere, only below, hardly, and not at all.
        let ranks: [fn(u64) -> u64; 4] =
            [|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), |n| n.reverse_bits() >> 50, |n| n % 3, |_| 7];
        for rank in ranks {
            for memory in [1 << 20, 8 << 20] {
                let mut buffer = SortBuffer::new(memory, Arenas::default());
                for _ in 0..2 {
                    let mut all = Vec::new();
                    for n in 0..3_000 {
                        // Some are long, some are empty, some keys come twice.
                        let key = (n % 2_900_u64).wrapping_mul(2_654_435_761).to_le_bytes();
                        let key = &key[..(rank(n % 2_900) % 9) as usize];
                        let value = vec![n as u8; if n % 700 == 0 { 9_000 } else { n as usize % 50 }];
                        let rank = rank(n % 2_900);
                        assert!(buffer.add(Entry { rank, key, value: &value }, n).unwrap());
                        all.push((rank, key.to_vec(), value, n));
                    }
                    all.sort_by(|a, b| (a.0, &a.1, Reverse(a.3)).cmp(&(b.0, &b.1, Reverse(b.3))));
                    all.dedup_by(|later, kept| (later.0, &later.1) == (kept.0, &kept.1));
                    let (replaced, drained) = drained(&mut buffer);
                    assert_eq!(replaced as usize, 3_000 - all.len());
                    assert!(drained == all);
                }
            }
        }
    }

    #[test]
    fn it_is_full_when_its_memory_is_and_takes_one_that_is_larger_alone() {
        let arenas = Arenas::default();
        let mut buffer = SortBuffer::new(1 << 20, arenas.clone());
        for rank in [|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), |n| n] {
            let mut bytes = 0;
            let mut entries = 0;
            while buffer
                .add(Entry { rank: rank(entries), key: b"0123456789abcdef", value: &[7; 84] }, 0)
                .unwrap()
            {
                entries += 1;
                bytes += 124;
            }
            // References are counted, too; what is lost in pieces that are not full is little.
            let entry_refs = 2 * buffer.most * size_of::<EntryRef>();
            assert!(bytes + entry_refs > (1 << 20) * 3 / 4, "{bytes} and {entry_refs}");
            assert!(buffer.used + entry_refs < (1 << 20) + (64 << 10), "{} and {entry_refs}", buffer.used);
            let large = vec![1; 3 << 20];
            let large = Entry { rank: 5, key: b"large", value: &large };
            assert!(!buffer.add(large, 9).unwrap());
            assert_eq!(drained(&mut buffer).1.len() as u64, entries);
            assert!(buffer.add(large, 9).unwrap());
            assert!(!buffer.add(large, 10).unwrap());
            assert_eq!(drained(&mut buffer).1.len(), 1);
        }
        let one = Entry { rank: 1, key: b"k", value: b"v" };
        assert!(buffer.add(one, 0).unwrap());
        drop(buffer);
        assert_ne!(arenas.take(1 << 20).unwrap().bytes()[0], 0, "given back, and not zeroed");
    }
}
