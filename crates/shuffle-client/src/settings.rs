//! How a client behaves: sizes, waits, retries.

use partage_shuffle_wire::transport::Timing;
use std::time::Duration;

/// How a client behaves. The defaults fit a network of one data centre.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Records are sent in frames of about so many bytes at most: the first ones are shorter, and they grow with what the attempt
    /// has. A node divides each frame by ranges, and long ones cost it less for each byte. An attempt holds one frame that is
    /// filled, and one that is sent.
    pub frame_bytes: usize,
    /// How long a node may take for an answer, but that to a seal.
    pub answer: Duration,
    /// How long a node may take to seal: it divides and counts what the shuffle has.
    pub seal: Duration,
    /// When a round over all nodes has failed, the client waits about so long, then twice as long, and so on.
    pub first_rest: Duration,
    /// But no longer than about this.
    pub longest_rest: Duration,
    /// Rounds that may fail before the client gives up; ten answers give one back.
    pub retry_budget: u32,
    /// A node that has failed is asked last for so long.
    pub avoided: Duration,
    /// Connections to each node that are kept for the next calls, when those on them have been answered. More of them are closed.
    pub idle_connections: usize,
    /// One that was not used for so long is closed: soon, as a node has room for so many connections of all its clients.
    pub idle: Duration,
    /// How long connections wait for what.
    pub timing: Timing,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            frame_bytes: 1 << 20,
            answer: Duration::from_secs(20),
            seal: Duration::from_secs(600),
            first_rest: Duration::from_millis(50),
            longest_rest: Duration::from_secs(5),
            retry_budget: 16,
            avoided: Duration::from_secs(2),
            idle_connections: 64,
            idle: Duration::from_secs(5),
            timing: Timing::default(),
        }
    }
}
