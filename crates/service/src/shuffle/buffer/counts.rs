//! What a buffer has done.

/// What a buffer has done since its process started. Bytes are those of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferCounts {
    /// Records of clients that it has taken.
    pub taken_records: u64,
    /// Keys and values of these records, in bytes, as they came.
    pub taken_bytes: u64,
    /// Records of these that were combined into others of the same key, and so are not sent.
    pub combined_records: u64,
    /// Frames for which there was no room, each time that they came.
    pub held_back: u64,
    /// How often it sent what it held of a shuffle.
    pub flushes: u64,
    /// Divisions that it has begun to write.
    pub divisions: u64,
    /// Records that were sent to nodes that store them: to each of them, and each time.
    pub sent_records: u64,
    /// Keys and values of these records, in bytes, each time.
    pub sent_bytes: u64,
    /// Batches that went to a node which stands in for another one.
    pub stand_ins: u64,
    /// Batches that went to a node once more, as it lacked them or had no room for them.
    pub sent_again: u64,
}
