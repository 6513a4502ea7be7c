//! Every limit of following maps, with its reason.

use std::time::Duration;

/// How long a connection to a coordinator may take to open.
pub const COORDINATOR_CONNECT: Duration = Duration::from_secs(2);

/// A stream that lasted for so long had us: the next backoff is that of a connection that was lost, not one more of a
/// search. A coordinator that ends every stream at once is thereby asked less and less; one that lives for some seconds, as
/// while it is restarted again and again, is not.
pub const LASTING: Duration = Duration::from_secs(1);

/// How long a map may lag behind what a node says there is, before the stream is made anew: a push takes
/// milliseconds, so by then it is lost.
pub const LAG: Duration = Duration::from_millis(500);

/// Least time between two streams that are made anew because of a lag.
pub const REFRESH_PAUSE: Duration = Duration::from_secs(2);

/// Requests for a refresh that wait to be read; more are dropped, as they would say the same.
pub const REFRESHES: usize = 16;

/// How long after a change the maps are written to their file: one write for a burst of changes.
pub const KEEP_AFTER: Duration = Duration::from_secs(2);

/// How long maps are followed after they were last needed, where they are on demand: a client that keeps asking the wrong node,
/// or scans now and then, does not make the node fetch them anew each time; one that has gone costs no connection for ever.
pub const IDLE: Duration = Duration::from_secs(300);
