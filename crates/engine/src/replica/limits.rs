//! Every limit of a stored table replica, with its reason.

/// Longest key, in bytes. `lsm-tree` stores lengths of keys in 16 bits, and a row's key has one byte before it that keeps it
/// apart from the rows of the store itself. So it is two bytes less than 64 KiB.
pub const KEY_BYTES: usize = 65_534;

/// Longest value, in bytes: the largest of a table, 1 MiB, and what a table stores before it. A value is in memory as a whole, in
/// the map, in the log and on the network.
pub const VALUE_BYTES: usize = (1 << 20) + 64;

/// A driver flushes a store whose unflushed rows take this much: a run of this size is written in one stretch, and the log
/// of a node need not reach back far.
pub const FLUSH_BYTES: usize = 4 << 20;

/// What a row in the map is taken to cost beside its bytes: two handles of 24 bytes in a tree whose nodes are two thirds full,
/// the allocation of the value, and the count of its users.
pub const ROW_OVERHEAD_BYTES: usize = 112;

/// Most layers of unflushed rows. Each snapshot adds one, and a read looks into each; beyond this number the store merges
/// those that no flush is writing.
pub const LAYERS: usize = 8;

/// Values from this size on lie in files of their own, which compaction does not write anew: the size of a block, as a
/// larger value fills a block alone.
pub const SEPARATED_BYTES: u32 = 4 << 10;

/// Size at which compaction begins another run file. So the part of a store that one step of compaction writes anew stays
/// small, and a bound between two such files is near enough to the middle of a large store.
pub const RUN_FILE_BYTES: u64 = 16 << 20;

/// Size at which another file of separated values is begun.
pub const VALUE_FILE_BYTES: u64 = 64 << 20;

/// Runs of the first level from which on compaction is due: a read may have to look into each of them.
pub const DUE_RUNS: u8 = 4;

/// Most runs of the first level. `lsm-tree` counts them in 8 bits when it writes its list of files, so that 256 runs would be
/// stored as none. A flush compacts first when there are so many.
pub const RUNS: usize = 64;

/// Steps of compaction that a flush takes before it gives up: each step removes runs of the first level, or makes room for
/// one that does.
pub const STEPS_BEFORE_FLUSH: usize = 16;

/// A store with fewer files in its sorted levels is read to find its median; with more the bounds of the files tell it.
pub const MEDIAN_FILES: usize = 8;

/// Memory for blocks of all stores of a node, unless told otherwise.
pub const CACHE_BYTES: u64 = 64 << 20;

/// Files that the stores of a node keep open, unless told otherwise: a quarter of the 4,096 that a process may usually open.
pub const OPEN_FILES: usize = 1_024;
