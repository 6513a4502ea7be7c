//! Every limit of store files, with its reason.

/// Longest key, in bytes: what a URL of a request may hold, and more than any key of a batch job that was seen.
pub const KEY_BYTES: usize = 64 << 10;

/// Longest value, in bytes. A value is held in memory whole while it is built and, when compressed, while it is read;
/// what is larger is a file and belongs in a file store.
pub const VALUE_BYTES: usize = 64 << 20;

/// Least memory a builder works with: room for eight runs, each with a read-ahead
/// and a key, when they are merged.
pub const LEAST_MEMORY_BYTES: usize = 1 << 20;

/// Memory of a builder unless told otherwise: a partition of some gigabytes is then merged in one pass, and eight
/// partitions may be built at a time on a small machine.
pub const MEMORY_BYTES: usize = 64 << 20;

/// A large page of memory, as processors and the kernel have it. Entries wait for sorting in such, if there is room for so much.
pub const HUGE_BYTES: usize = 2 << 20;

/// So few entries are compared; more are first distributed by some bits of their rank. Below it distributing takes longer.
pub const COMPARED_ENTRIES: usize = 48;

/// Memory of a bucket of the sort buffer, into which entries are put by the first bits of their rank: all of it lies in the
/// second cache of a processor's core while it is sorted.
pub const BUCKET_BYTES: usize = 512 << 10;

/// Most buckets: where the next entry of each goes lies in that cache while they are filled.
pub const MOST_BUCKETS: usize = 1_024;

/// The pieces of memory that a bucket gets, each twice the one before: from one that is little even for a thousand buckets with
/// an entry each, to one that is read in one long stretch.
pub const LEAST_PIECE_BYTES: usize = 1 << 10;
/// The longest of these pieces: see [`LEAST_PIECE_BYTES`].
pub const PIECE_BYTES: usize = 16 << 10;

/// Entries are distributed by so many bits of their rank at most: the ends of the bins lie in the first cache.
pub const RADIX_BITS: u32 = 11;

/// Entries are prefetched so many before their turn: writing those between takes longer than a fetch.
pub const PREFETCHED_ENTRIES: usize = 6;

/// What is written to a store file at a time, from a multiple of it: the kernel takes long pieces with less work, and this one
/// stays in the second cache of the core until it has. Pieces of [`HUGE_BYTES`] are mapped in large pages by file systems
/// that keep what is written together; lookups then take 2 to 5 % less, and on a virtual machine whose host takes back
/// memory that is free, loads twice the time.
pub const OUTPUT_BYTES: usize = 256 << 10;

/// Read-ahead of one run in a merge: long enough that a disk is not asked for crumbs.
pub const RUN_BUFFER_BYTES: usize = 64 << 10;

/// Most runs merged at a time, however much memory there is: beyond it a second pass is cheaper than the heap.
pub const MERGED_RUNS: usize = 1_024;

/// Keys on one page of a hashed file, on average. The page table takes 8 bytes a page, so 2 bytes a key; a lookup
/// looks through 4 fingerprints that share a cache line.
pub const PAGE_KEYS: u64 = 4;

/// Most keys on one page. By chance there are never 60 where 4 are the average; so many mean keys that were made to
/// collide, or a fault.
pub const PAGE_MOST_KEYS: usize = 4_096;

/// An ordered file's block is closed before it grows beyond this, uncompressed: one or two reads of a disk, and some
/// 70 keys of 16 bytes with values of 100, so that the sparse index stays below half a byte a key. A larger entry has
/// a block of its own.
pub const BLOCK_BYTES: usize = 8 << 10;

/// Longest block, uncompressed: one entry of the largest size, its lengths, and the table of one entry.
pub const BLOCK_MOST_BYTES: usize = KEY_BYTES + VALUE_BYTES + 64;

/// Size a dictionary is trained to: what zstd's own tool makes, enough for the repeated parts of records.
pub const DICTIONARY_BYTES: u64 = 64 << 10;

/// A dictionary is no larger than this part of all values, so that in a small file it does not cost more than it
/// saves.
pub const DICTIONARY_PART: u64 = 20;

/// A smaller dictionary than this is not trained: zstd's own tables take most of it.
pub const LEAST_DICTIONARY_BYTES: u64 = 1 << 10;

/// Values kept for training, in bytes: zstd wants about a hundred times the dictionary.
pub const SAMPLE_BYTES: usize = 4 << 20;

/// No more than this of one value is used for training.
pub const SAMPLE_VALUE_BYTES: usize = 4 << 10;

/// Fewer samples than this train no dictionary: it would cost more than it saves.
pub const LEAST_SAMPLES: usize = 64;

/// Idle decompressors that a reader keeps. One is about 160 KiB; more threads than this on one partition build theirs
/// anew.
pub const DECODERS: usize = 32;

/// Keys whose pages are fetched together before the first is looked up: enough that the first have come when the last were
/// asked for, and so few that all stays in the cache next to the processor.
pub const TOGETHER: usize = 64;

/// A line of memory, as the processor fetches it.
pub const LINE_BYTES: usize = 64;

/// Lines that are prefetched of any part, be it shorter: those of an entry of 130 bytes.
pub const LEAST_PREFETCHED_LINES: usize = 4;

/// Lines of one entry that are prefetched for a lookup: beyond them the processor sees by itself where it goes.
pub const PREFETCHED_LINES: usize = 8;

/// Highest level of zstd that is taken: above it the tables alone are larger than a builder's memory.
pub const ZSTD_MOST_LEVEL: i32 = 19;
