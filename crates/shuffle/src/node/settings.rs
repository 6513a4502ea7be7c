//! The numbers that a node runs by. Each has a default and a reason.

use crate::log::DecisionSettings;
use crate::store::StoreSettings;
use partage_service::shuffle::leader::OwnerQuota;
use partage_service::shuffle::settings::Settings;
use partage_shuffle_wire::transport::ConnectionBounds;

/// Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSettings {
    /// Of the machines.
    pub machines: Settings,
    /// Of the files of batches.
    pub store: StoreSettings,
    /// Of the log of decisions. How many ended shuffles it keeps the machines' settings say.
    pub decisions: DecisionSettings,
    /// Events that wait for the node: some for each client and peer.
    pub inbox_events: usize,
    /// What records in events that wait take in memory: a frame of each of many clients. As much again comes on connections, of
    /// nodes and of clients a half each.
    pub inbox_bytes: u64,
    /// What waits for all other nodes together. The longest frame, and some beside it.
    pub sending_bytes: u64,
    /// Messages of the node to itself that wait; beyond it they are lost, as the network may lose them.
    pub local_messages: usize,
    /// What batches that are being stored take in memory. A batch beyond it is dropped, and its sender sends it again. As much as
    /// the disk writes in the time of some syncs.
    pub storing_bytes: u64,
    /// Bytes of batches that one synced write has at most, or one batch more. As much as the disk writes in the time of a sync.
    pub group_bytes: u64,
    /// Orders that wait for the thread that writes.
    pub storing_orders: usize,
    /// Reads that wait for the threads that read. A reader beyond it hears that the node is busy.
    pub reading_jobs: usize,
    /// Threads that read: one sorts while another one waits for the disk.
    pub reading_threads: usize,
    /// What the records of ranges take in memory that were read and sorted and are kept for the next piece of a reader; one range
    /// always is. Those that are being read have as much together, and one is always read.
    pub range_bytes: u64,
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

    /// The defaults with records of `memory` bytes in all, at least [`LEAST_MEMORY`]. Plans come on top, a part as large as the
    /// least one below, and what is being read and sorted.
    ///
    /// | share | for |
    /// |---|---|
    /// | 8/16 | the buffer: all that clients have sent and is not stored yet |
    /// | 3/16 | batches that are being stored |
    /// | 3/16 | ranges that were read and sorted |
    /// | 1/32 | what waits for the node |
    /// | 1/32 | long frames that come on connections |
    /// | 1/16 | what waits for other nodes |
    ///
    /// A frame, or a packet, that is longer than its share is taken alone.
    pub fn of_memory(memory: u64) -> NodeSettings {
        let part = memory.max(LEAST_MEMORY) / 16;
        let default = NodeSettings::default();
        let machines = Settings {
            buffer_bytes: 8 * part,
            chunk_bytes: default.machines.chunk_bytes.min(part),
            ..default.machines.clone()
        };
        NodeSettings {
            machines,
            storing_bytes: 3 * part,
            range_bytes: 3 * part,
            inbox_bytes: part / 2,
            sending_bytes: part,
            group_bytes: default.group_bytes.min(part),
            plan_bytes: default.plan_bytes.min(part),
            ..default
        }
    }
}

impl Default for NodeSettings {
    fn default() -> NodeSettings {
        NodeSettings {
            machines: Settings::default(),
            store: StoreSettings::default(),
            decisions: DecisionSettings::default(),
            inbox_events: 4_096,
            inbox_bytes: 64 << 20,
            sending_bytes: 256 << 20,
            local_messages: 65_536,
            storing_bytes: 256 << 20,
            group_bytes: 16 << 20,
            storing_orders: 4_096,
            reading_jobs: 256,
            reading_threads: 2,
            range_bytes: 256 << 20,
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

    #[test]
    fn r1_the_parts_of_the_memory_are_no_more_than_it() {
        for memory in [LEAST_MEMORY, 1 << 30, 64 << 30] {
            let settings = NodeSettings::of_memory(memory);
            let parts = settings.machines.buffer_bytes
                + settings.storing_bytes
                + settings.range_bytes
                + 2 * settings.inbox_bytes
                + settings.sending_bytes;
            assert!(parts <= memory && parts >= memory / 32 * 31, "{parts} of {memory}");
            assert!(settings.machines.chunk_bytes <= settings.machines.buffer_bytes / 8);
        }
        assert_eq!(NodeSettings::of_memory(0), NodeSettings::of_memory(LEAST_MEMORY));
    }
}
