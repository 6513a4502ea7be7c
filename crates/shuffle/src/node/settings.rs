//! The numbers that a node runs by. Each has a default and a reason.

use super::reading::ReadingSettings;
use super::roles::Roles;
use crate::log::DecisionSettings;
use crate::store::StoreSettings;
use partage_service::shuffle::leader::OwnerQuota;
use partage_service::shuffle::settings::Settings;
use partage_shuffle_wire::transport::ConnectionBounds;
use std::path::PathBuf;

/// Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// What the node does in its pool.
    pub roles: Roles,
    /// Of the machines.
    pub machines: Settings,
    /// Of the files of batches.
    pub store: StoreSettings,
    /// Of the log of decisions. How many ended shuffles it keeps the machines' settings say.
    pub decisions: DecisionSettings,
    /// Events that wait for the node in each of two lanes: some for each client and peer.
    pub inbox_events: usize,
    /// What records in events that wait take in memory: a frame of each of many clients. As much again comes on connections, of
    /// nodes and of clients a half each.
    pub inbox_bytes: u64,
    /// What waits for all other nodes together, besides batches that the buffer holds. The longest frame, and some beside it.
    pub sending_bytes: u64,
    /// Messages of the node to itself that wait; beyond it they are lost, as the network may lose them.
    pub local_messages: usize,
    /// What batches that are being stored take in memory. A batch beyond it is dropped, and its sender sends it again. As much as
    /// the disk writes in the time of some syncs.
    pub storing_bytes: u64,
    /// Bytes of batches that one synced write has at most, or one batch more. As much as the disk writes in the time of a sync.
    pub group_bytes: u64,
    /// The same where several shuffles write: a batch of one waits for a group of others at most. Small against what a disk
    /// writes in some milliseconds; a sync then costs about as much as the write.
    pub shared_group_bytes: u64,
    /// Orders that wait for the thread that writes.
    pub storing_orders: usize,
    /// Reads that wait for the threads that read. A reader beyond it hears that the node is busy.
    pub reading_jobs: usize,
    /// Threads that read: one sorts while another one waits for the disk.
    pub reading_threads: usize,
    /// What ranges take in memory that are being read and sorted, with those that are kept for the next piece of a reader, and
    /// with batches that are being divided: what a division of short records takes beyond a quarter comes on top while it is
    /// handed to the buffer. A range that alone takes more than three quarters of it, or than 256 MiB, is sorted on disk: it
    /// takes its keys and values twice while it is sorted, and 104 bytes for each record.
    pub range_bytes: u64,
    /// What the records of one answer to a reader take in memory, or one record: the reader goes on where it ends.
    pub answer_bytes: u64,
    /// Bytes of files of ranges that were sorted on disk; one is always there, and one that is being made takes twice its bytes.
    /// Those that were not read for longest go, and are sorted again when they are.
    pub sorted_file_bytes: u64,
    /// A range that nobody has read for so long is kept no more.
    pub range_idle_ms: u64,
    /// What another protocol at the address of the node takes in memory: Arrow Flight.
    pub protocol_bytes: u64,
    /// After the disk was full, new attempts are refused for so long, unless a batch has found room.
    pub full_ms: u64,
    /// Attempts of clients of this node at a time.
    pub attempts: usize,
    /// Questions of clients and of other nodes that have no answer yet.
    pub questions: usize,
    /// A question without an answer is forgotten after this time, and a client asks again after half of it.
    pub question_ms: u64,
    /// A client gives up a request after this time.
    pub request_ms: u64,
    /// Plans of sealed shuffles that the node keeps, so that they are read without their leader.
    pub plans: usize,
    /// What these plans take in memory, about; one plan is always kept. Those that were not used for longest go.
    pub plan_bytes: u64,
    /// What each owner of shuffles may have. Each node of a pool should have the same.
    pub owner_quota: OwnerQuota,
    /// Places of damage that the status of the node names, the last ones.
    pub damages: usize,
}

/// The least memory that a node runs with: below it a buffer has no room for the frames of some clients.
pub const LEAST_MEMORY: u64 = 64 << 20;

impl NodeSettings {
    /// What long frames may take that come on connections.
    pub fn connection_bounds(&self) -> ConnectionBounds {
        let half = usize::try_from(self.inbox_bytes / 2).unwrap_or(usize::MAX);
        ConnectionBounds { node_bytes: half, client_bytes: half, ..ConnectionBounds::default() }
    }

    /// The numbers that reading runs by.
    pub(crate) fn reading(&self, folder: PathBuf) -> ReadingSettings {
        ReadingSettings {
            jobs: self.reading_jobs,
            threads: self.reading_threads,
            range_bytes: self.range_bytes,
            answer_bytes: self.answer_bytes,
            file_bytes: self.sorted_file_bytes,
            wait_ms: self.machines.read_wait_ms,
            idle_ms: self.range_idle_ms,
            folder,
        }
    }

    /// The defaults with records of `memory` bytes in all, at least [`LEAST_MEMORY`].
    ///
    /// | share | for |
    /// |---|---|
    /// | 16/32 | the buffer: all that clients have sent and is not stored yet, and what was divided |
    /// | 4/32 | ranges that are read, sorted, or kept for readers, and what is being divided |
    /// | 3/32 | batches that are being stored |
    /// | 1/32 | a group of batches in the form in which it is written, twice for a moment |
    /// | 1/32 | batches that the threads which read have at hand: as a frame, as its content, and as records |
    /// | 1/32 | plans of sealed shuffles |
    /// | 1/32 | what waits for the node |
    /// | 1/32 | long frames that come on connections |
    /// | 2/32 | what waits for other nodes |
    /// | 2/32 | messages, dictionaries and reads of another protocol, Arrow Flight |
    ///
    /// A frame, a packet, a batch, a plan or a record that is longer than its share is taken alone, so a record of 64 MiB comes
    /// on top a few times. So do two answers for each open read of a client, and what does not depend on records: threads, tables
    /// of attempts and batches, the program. All nodes of a pool are meant to have the same memory, as each stores batches of the
    /// size that the others make.
    pub fn of_memory(memory: u64) -> NodeSettings {
        let part = memory.max(LEAST_MEMORY) / 32;
        let default = NodeSettings::default();
        let machines = Settings {
            buffer_bytes: 16 * part,
            chunk_bytes: default.machines.chunk_bytes.min(2 * part),
            batch_bytes: default.machines.batch_bytes.min(part / BATCHES_AT_HAND),
            // Three nodes at a time have room for what they send to one.
            window_bytes: default.machines.window_bytes.min(part),
            ..default.machines.clone()
        };
        let store = StoreSettings { file_bytes: default.store.file_bytes.min(2 * part), ..default.store };
        NodeSettings {
            machines,
            store,
            storing_bytes: 3 * part,
            group_bytes: default.group_bytes.min(part / 2),
            range_bytes: 4 * part,
            answer_bytes: default.answer_bytes.min(part / 4),
            inbox_bytes: part,
            sending_bytes: 2 * part,
            plan_bytes: default.plan_bytes.min(part),
            protocol_bytes: 2 * part,
            ..default
        }
    }
}

/// Two threads that read and one that sorts have a batch each, in three forms; the records of length 0 that count more as
/// records than as bytes are what is left.
const BATCHES_AT_HAND: u64 = 16;

impl Default for NodeSettings {
    fn default() -> NodeSettings {
        NodeSettings {
            roles: Roles::default(),
            machines: Settings::default(),
            store: StoreSettings::default(),
            decisions: DecisionSettings::default(),
            inbox_events: 4_096,
            inbox_bytes: 64 << 20,
            sending_bytes: 256 << 20,
            local_messages: 65_536,
            storing_bytes: 256 << 20,
            group_bytes: 16 << 20,
            shared_group_bytes: 1 << 20,
            storing_orders: 4_096,
            reading_jobs: 256,
            reading_threads: 2,
            range_bytes: 256 << 20,
            answer_bytes: 8 << 20,
            sorted_file_bytes: 64 << 30,
            range_idle_ms: 300_000,
            protocol_bytes: 64 << 20,
            full_ms: 1_000,
            attempts: 65_536,
            questions: 65_536,
            question_ms: 4_000,
            request_ms: 120_000,
            plans: 4_096,
            plan_bytes: 64 << 20,
            owner_quota: OwnerQuota::default(),
            damages: 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::plan::PlanRange;
    use partage_service::shuffle::{PoolSlot, RangeId};

    /// All that depends on records, by the table above.
    fn parts(settings: &NodeSettings) -> u64 {
        let at_hand = 3 * (settings.reading_threads as u64 + 1) * settings.machines.batch_bytes;
        let bounds = settings.connection_bounds();
        settings.machines.buffer_bytes
            + settings.range_bytes
            + settings.storing_bytes
            + 2 * settings.group_bytes
            + at_hand
            + settings.plan_bytes
            + settings.inbox_bytes
            + (bounds.node_bytes + bounds.client_bytes) as u64
            + settings.sending_bytes
            + settings.protocol_bytes
    }

    #[test]
    fn r1_the_parts_of_the_memory_are_no_more_than_it() {
        let doubled = (0..=14).map(|at| LEAST_MEMORY << at);
        for memory in doubled.flat_map(|memory| [memory, memory + 1, memory / 7 * 9, memory / 5 * 8 + 31]) {
            let settings = NodeSettings::of_memory(memory);
            let parts = parts(&settings);
            // What has a size that suffices takes no more of a large memory.
            assert!(parts <= memory && parts >= memory / 32 * 28, "{parts} of {memory}");
            let Settings { buffer_bytes, chunk_bytes, batch_bytes, division_batches, .. } = settings.machines;
            assert!(chunk_bytes <= buffer_bytes / 8 && batch_bytes <= chunk_bytes);
            // Each batch has less than a segment beyond its size, mostly.
            assert!(division_batches * batch_bytes <= settings.range_bytes / 4, "a division of {memory}");
            assert!(settings.answer_bytes <= settings.inbox_bytes && settings.answer_bytes > 0);
        }
        assert_eq!(LEAST_MEMORY << 14, 1 << 40);
        assert_eq!(NodeSettings::of_memory(0), NodeSettings::of_memory(LEAST_MEMORY));
    }

    #[test]
    fn r1_a_sort_on_disk_and_one_in_memory_have_room_side_by_side() {
        let range = |records, bytes| PlanRange {
            id: RangeId(1),
            since: 1,
            begins: Vec::new().into(),
            slot: PoolSlot(1),
            records,
            bytes,
        };
        let settings = NodeSettings::of_memory(1 << 30).reading(PathBuf::new());
        let most = settings.range_bytes - settings.part();
        assert!(!settings.is_large(&range(1, most / 2 - 1_000)));
        assert!(settings.is_large(&range(1, most / 2)), "before and behind the sort");
        assert!(settings.is_large(&range(most / 80, 0)), "records of length 0 count too");
        assert!(settings.is_large(&range(u64::MAX, u64::MAX)));
        let settings = NodeSettings::of_memory(1 << 40).reading(PathBuf::new());
        assert!(
            settings.is_large(&range(1, 256 << 20)),
            "a sort in memory takes no longer than readers wait"
        );
    }
}
