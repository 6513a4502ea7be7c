//! What is counted, for metrics.

use super::peer_queue::Dropped;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($(#[$doc:meta])* $counts:ident, $counters:ident, { $($(#[$of:meta])* $name:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $counts {
            $($(#[$of])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct $counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl $counters {
            pub(super) fn counts(&self) -> $counts {
                $counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// What the connections to other nodes have done since they began.
    SendCounts, SendCounters, {
        /// Frames that were given to a socket.
        sent,
        /// Bytes of these frames, with their headers.
        sent_bytes,
        /// Connections that another node has accepted.
        opened,
        /// Connections that ended, and attempts to open one that failed.
        failed,
        /// Frames that were dropped because as much waited for the node as may.
        dropped_full,
        /// Frames that were dropped because the node was not reached.
        dropped_away,
        /// Frames that were dropped because the node has no address.
        dropped_no_address,
    }
}

counts! {
    /// What a server has done since it began.
    ServerCounts, ServerCounters, {
        /// Connections of nodes that were accepted.
        nodes,
        /// Connections of clients that were accepted.
        clients,
        /// Connections that were refused: for another node, or too many.
        refused,
        /// Connections that were closed for a frame that was not as it must be.
        malformed,
        /// Connections that were closed because nothing was heard, or nothing was taken.
        silent,
        /// Frames of nodes that were handed in.
        received,
    }
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl SendCounters {
    pub(super) fn dropped(&self, why: Dropped) {
        let counter = match why {
            Dropped::Full => &self.dropped_full,
            Dropped::Away => &self.dropped_away,
            Dropped::NoAddress => &self.dropped_no_address,
        };
        add(counter, 1);
    }
}
