//! How long a worker waits for its service.

/// How long callbacks and last requests may take, and how failures are spaced. Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallbackTimeouts {
    /// For `load`: data may be large.
    pub load_ms: u64,
    /// For `serve`, `unload` and `drop`.
    pub callback_ms: u64,
    /// For the last requests.
    pub drain_ms: u64,
    /// Before the second try; doubles with each further one.
    pub retry_ms: u64,
    /// Longest rest between tries.
    pub retry_max_ms: u64,
}

impl Default for CallbackTimeouts {
    fn default() -> CallbackTimeouts {
        CallbackTimeouts {
            load_ms: 600_000,
            callback_ms: 10_000,
            drain_ms: 10_000,
            retry_ms: 200,
            retry_max_ms: 10_000,
        }
    }
}
