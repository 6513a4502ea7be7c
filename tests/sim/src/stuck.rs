//! Workers that do not get on for ever, while they beat and answer (A12, L4).

use crate::draw::Draw;
use partage_core::worker::{Callback, CallbackTimeouts, LocalReplica};

/// Most workers that are stuck.
const MOST: usize = 3;

/// So many workers of a run are never stuck: people drain two, and one is left that takes shards.
const WELL: usize = 3;

/// How a worker does not get on, from one process to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stuck {
    /// It gets on as any other.
    No,
    /// No load returns, and its worker does not stop waiting for one.
    Loads,
    /// No unload returns, and its worker does not stop waiting for one.
    Unloads,
    /// All but its first process fail to open what an earlier one has stored.
    Opens,
}

impl Stuck {
    /// How the first workers of a run are: one to three are stuck, each in a way of its own, and [`WELL`] are not.
    pub fn drawn(draw: &mut Draw, durable: bool, nodes: usize) -> Vec<Stuck> {
        let most = nodes.saturating_sub(WELL).clamp(1, MOST);
        let kinds: &[Stuck] = if durable {
            &[Stuck::Loads, Stuck::Unloads, Stuck::Opens]
        } else {
            &[Stuck::Loads, Stuck::Unloads]
        };
        let count = draw.between(1, most as u64 + 1);
        (0..count).filter_map(|_| draw.pick(kinds).copied()).collect()
    }

    /// Whether a callback never returns.
    pub fn hangs(self, callback: Callback) -> bool {
        match self {
            Stuck::No | Stuck::Opens => false,
            Stuck::Loads => callback == Callback::Load,
            Stuck::Unloads => callback == Callback::Unload,
        }
    }

    /// Whether a callback fails, in that process of the worker.
    pub fn fails(self, callback: Callback, process: u32, local: Option<&LocalReplica>) -> bool {
        let opens = || callback == Callback::Load && local.is_some_and(LocalReplica::has_data);
        self == Stuck::Opens && process > 1 && opens()
    }

    /// How long its worker waits for callbacks: for ever, where they never return.
    pub fn callback_timeouts(self, usual: CallbackTimeouts) -> CallbackTimeouts {
        match self {
            Stuck::Loads => CallbackTimeouts { load_ms: u64::MAX / 2, ..usual },
            Stuck::Unloads => CallbackTimeouts { callback_ms: u64::MAX / 2, ..usual },
            Stuck::No | Stuck::Opens => usual,
        }
    }
}
