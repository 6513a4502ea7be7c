//! Times and limits of the machines of a shuffle.

/// Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// An attempt that has ended waits so long for others that are being written, so that they share batches.
    pub linger_ms: u64,
    /// A node that was sent a batch and has answered nothing within this time, no question either, is replaced by a stand-in. One
    /// that answers and has not stored the batch is busy: it is replaced after forty times as long.
    pub stand_in_ms: u64,
    /// What was not answered is sent again after this time. Batches are not: their nodes are asked whether they have them.
    pub resend_ms: u64,
    /// Memory of the batches that are under way from one node to another one, at most, and one batch more. The others wait where
    /// they are.
    pub window_bytes: u64,
    /// The number of these batches.
    pub window_batches: u64,
    /// An attempt that is not stored on enough nodes after this time fails.
    pub give_up_ms: u64,
    /// An attempt whose client has sent nothing for so long fails.
    pub silent_ms: u64,
    /// What records take in memory that a buffer holds at most, with those that are under way. A frame beyond it is not taken.
    pub buffer_bytes: u64,
    /// From so many keys and values on, chunks of a shuffle are sent.
    pub chunk_bytes: u64,
    /// A batch has about so many keys and values at most, or one segment: holders read, divide and pass on batches as a whole,
    /// and a division reads `division_batches` of them. Large against what surrounds a batch.
    pub batch_bytes: u64,
    /// One call of a buffer makes batches of what takes so much memory, and of one batch more: the copies take some tenths of a
    /// millisecond. What else the node has to do waits meanwhile.
    pub sent_at_once: u64,
    /// One key in so many is sampled.
    pub sample_every: u64,
    /// The `k` of sketches.
    pub sketch_k: usize,
    /// Between two reports of a buffer's sample.
    pub sample_ms: u64,
    /// Between two comparisons of what the nodes of a slot have.
    pub inventory_ms: u64,
    /// Batches that are asked for in one message.
    pub fetched_at_once: usize,
    /// Bytes of end marks in one message, which has one at least. The next ones are asked for when it has come.
    pub marks_bytes: u64,
    /// A holder asks the home of a shuffle that it has not heard of for so long.
    pub grace_ms: u64,
    /// Keys that are sampled before the first bounds are made, and before new ones are.
    pub first_sample: u64,
    /// But so many for each range that is wanted, if that is less: so a small shuffle has bounds before most of it is written,
    /// and is not divided when it is sealed. Ranges differ by a sixth of their size then.
    pub small_sample: u64,
    /// But so many for each range that is wanted, if that is more.
    pub range_sample: u64,
    /// Though not more than this, however many ranges are wanted.
    pub most_sample: u64,
    /// What would go out without bounds waits so long for the first ones, if a sample has been reported that may suffice, and the
    /// leader has not answered. Long against the time in which a decision of a leader is synced.
    pub bounds_wait_ms: u64,
    /// A range that has more than so many times the mean weight causes new bounds.
    pub drift: u64,
    /// Versions of the bounds of one shuffle.
    pub versions: u32,
    /// Divisions of one shuffle that are under way.
    pub divisions: usize,
    /// Batches that one division reads at most.
    pub division_batches: u64,
    /// Between two rounds of divisions of a shuffle that is not about to be sealed.
    pub divide_ms: u64,
    /// A division or a count that has not come after this time is asked for from the next replica.
    pub task_ms: u64,
    /// Slots of one shuffle that are counted at a time: enough to keep the threads of many nodes busy that read, few against the
    /// jobs that may wait for them.
    pub counts_at_once: usize,
    /// A leader that asked for end marks lists partitions as lacking after this time.
    pub gather_ms: u64,
    /// A seal of a shuffle of durability `memory` fails the shuffle when nothing more of what it needs has come for so long and
    /// all replicas of a slot say that they lack it: R machines have ended. Long against the time that a machine takes to start
    /// again, whose disk may have it.
    pub lost_ms: u64,
    /// A shuffle that is not sealed and that no client asks for ends after this time.
    pub unsealed_ttl_ms: u64,
    /// A sealed shuffle that no client asks for ends after this time.
    pub sealed_ttl_ms: u64,
    /// Shuffles that have ended and that a node remembers, the last ones.
    pub ended_kept: usize,
    /// Whether the node has an object store.
    pub has_objects: bool,
    /// Slots of shuffles that a node puts into the object store at a time.
    pub offloads_at_once: usize,
    /// After the object store has refused, a node leaves it alone for so long, then for twice as long, and so on.
    pub objects_rest_ms: u64,
    /// A node leaves the object store alone for no longer than this, and orders a deletion without an answer again after it.
    pub longest_objects_rest_ms: u64,
    /// Within this time a leader has looked once for objects of each of its shuffles that have ended.
    pub sweep_ms: u64,
    /// Records of one answer to a reader.
    pub read_records: u64,
    /// A reader asks the next holder after this time.
    pub read_wait_ms: u64,
    /// When all holders have failed, a reader waits so long, then twice as long, and so on.
    pub back_off_ms: u64,
    /// A reader rests no longer than this between rounds.
    pub longest_back_off_ms: u64,
    /// Rounds in which all holders failed, after which a read fails: each answer gives back a tenth of one (R3).
    pub retry_budget: u64,
}

impl Settings {
    /// Keys that are sampled before bounds of so many ranges are made.
    pub fn sample_for(&self, ranges: u32) -> u64 {
        let each = |keys: u64| keys.saturating_mul(ranges.into());
        let for_ranges = each(self.range_sample).min(self.most_sample);
        self.first_sample.min(each(self.small_sample)).max(for_ranges).max(1)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            linger_ms: 5,
            stand_in_ms: 500,
            resend_ms: 250,
            window_bytes: 32 << 20,
            window_batches: 1_024,
            give_up_ms: 60_000,
            silent_ms: 60_000,
            buffer_bytes: 512 << 20,
            chunk_bytes: 64 << 20,
            batch_bytes: 4 << 20,
            sent_at_once: 1 << 20,
            sample_every: 16,
            sketch_k: 1_600,
            sample_ms: 250,
            inventory_ms: 1_000,
            fetched_at_once: 64,
            marks_bytes: 1 << 20,
            grace_ms: 60_000,
            first_sample: 8_192,
            small_sample: 32,
            range_sample: 4,
            most_sample: 100_000,
            bounds_wait_ms: 50,
            drift: 4,
            versions: 64,
            divisions: 16,
            division_batches: 16,
            divide_ms: 1_000,
            task_ms: 30_000,
            counts_at_once: 32,
            gather_ms: 2_000,
            lost_ms: 300_000,
            unsealed_ttl_ms: 600_000,
            sealed_ttl_ms: 3_600_000,
            ended_kept: 4_096,
            has_objects: false,
            offloads_at_once: 2,
            objects_rest_ms: 1_000,
            longest_objects_rest_ms: 60_000,
            sweep_ms: 600_000,
            read_records: 4_096,
            read_wait_ms: 2_000,
            back_off_ms: 50,
            longest_back_off_ms: 5_000,
            retry_budget: 10,
        }
    }
}
