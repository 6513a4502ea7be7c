//! What runs are like: how often things are wished, and how badly they go.

use crate::metadata::requester::Wish;

/// What a run is like.
#[derive(Debug)]
pub struct Weather {
    /// How long there are faults, in milliseconds.
    pub storm_ms: u64,
    /// How long a requester rests between two changes.
    pub pause_ms: u64,
    /// How many of a thousand swaps come long after their requesters have given up.
    pub kept: u64,
    /// How many of a thousand wishes find that for a while no swap comes before that.
    pub jams: u64,
    /// Of each wish, how often it is wished.
    pub wishes: [(Wish, u64); 5],
}

const fn wishes(change: u64, leave: u64, join: u64, delete: u64, know: u64) -> [(Wish, u64); 5] {
    [
        (Wish::Change, change),
        (Wish::Leave, leave),
        (Wish::Join, join),
        (Wish::Delete, delete),
        (Wish::Know, know),
    ]
}

/// In turn by the seed.
pub const WEATHERS: [Weather; 5] = [
    // Many changes.
    Weather { storm_ms: 40_000, pause_ms: 150, kept: 20, jams: 2, wishes: wishes(280, 40, 20, 1, 60) },
    // Few, so that what is left behind is not swept away by the next.
    Weather { storm_ms: 1_200_000, pause_ms: 100_000, kept: 200, jams: 20, wishes: wishes(28, 4, 2, 2, 6) },
    // Few, and the list is short and changes all the time.
    Weather { storm_ms: 900_000, pause_ms: 30_000, kept: 300, jams: 60, wishes: wishes(4, 30, 24, 1, 4) },
    // The keyspace is deleted and created again all the time.
    Weather { storm_ms: 900_000, pause_ms: 8_000, kept: 200, jams: 20, wishes: wishes(20, 4, 4, 12, 6) },
    // The same so quickly that it happens while a requester asks what became of a change.
    Weather { storm_ms: 40_000, pause_ms: 150, kept: 20, jams: 2, wishes: wishes(20, 2, 2, 12, 4) },
];
