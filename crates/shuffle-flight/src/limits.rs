//! The numbers of this crate.

/// The longest message of a client: a batch of any sensible size, and a record of the largest kind. The door counts it against
/// the memory for bodies meanwhile.
pub(crate) const MESSAGE_BYTES: usize = 66 << 20;
/// What the compressed batches of one message may be when they are unpacked.
pub(crate) const UNPACKED_BYTES: u64 = 256 << 20;
/// Rows of one batch: columns of nothing have no bytes that would limit them.
pub(crate) const BATCH_ROWS: usize = 16 << 20;
/// What the records of one frame take in memory, about: as large as what a client of records sends at once, twice.
pub(crate) const FRAME_BYTES: u64 = 512 << 10;
/// Rows that become records at once, at first. How large a row is shows then.
pub(crate) const FIRST_ROWS: usize = 64;
/// Rows that become records at once, at most: other tasks of the thread wait meanwhile.
pub(crate) const MOST_ROWS: usize = 16_384;
/// Endpoints of one flight: some hundred bytes each.
pub(crate) const PARTITIONS: u64 = 65_536;
/// Locations of one endpoint: holders, and others to go to when these are away.
pub(crate) const LOCATIONS: usize = 8;
/// Input partitions that a seal may name.
pub(crate) const INPUTS: u32 = 1 << 20;
/// Bytes of the body of an action: the schema of a start has 128 KiB at most, and the list of a seal is numbers.
pub(crate) const ACTION_BYTES: usize = 16 << 20;
/// Shuffles of which the node keeps what their records are.
pub(crate) const KINDS: usize = 256;
/// Input partitions that are named to people.
pub(crate) const NAMED: usize = 20;
