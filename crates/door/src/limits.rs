//! Every limit of a door, with its reason. Those that operators may change are the defaults of [`crate::Settings`].

use std::time::Duration;

/// How long a connection may be silent before its first byte: a client connects to send a request.
pub const FIRST_BYTE: Duration = Duration::from_secs(10);

/// How long a client may take for the head of a request once it has begun: what a bad mobile line needs.
pub const HEAD: Duration = Duration::from_secs(10);

/// How long a connection may ask nothing between two requests. Above the 60 s for which common clients keep one.
pub const IDLE: Duration = Duration::from_secs(75);

/// Bytes of request bodies in the memory of the process. Half of the 512 MiB that a process may take under attack.
pub const BYTES_IN_FLIGHT: u64 = 256 << 20;

/// The share of [`BYTES_IN_FLIGHT`], one in so many, that is kept for small bodies: heartbeats and commands go on while
/// large bodies take all the rest.
pub const SMALL_SHARE: u64 = 8;

/// Longest body that may use that share.
pub const SMALL_BODY: u64 = 64 << 10;

/// Bytes a second that a body must come with at the least, over each [`BODY_WINDOW`]: a fifth of a modem's rate, so
/// no real client is refused.
pub const BODY_BYTES_S: u64 = 1 << 10;

/// How long a body above [`SMALL_BODY`] that announces its length may take, since the door counts all of it from
/// the first byte on: 64 MiB at 9 Mbit/s.
pub const LARGE_BODY_TIME: Duration = Duration::from_secs(60);

/// Over how long the rate of a body is measured: bad lines stop for seconds.
pub const BODY_WINDOW: Duration = Duration::from_secs(10);

/// Connections that have sent no byte yet, at the most. A client sends its first byte within a round trip: at 10,000
/// new ones a second this is 100 ms. A further one displaces the oldest.
pub const SILENT: usize = 1_024;

/// Places beyond the limit, for one request each: so that a person gets in to see why all others are taken. A quarter of the
/// files of connections where those are few.
pub const RESERVE: usize = 64;

/// How long a connection in the reserve may last.
pub const RESERVE_TIME: Duration = Duration::from_secs(30);

/// Files kept from connections: for the data of the process, its own calls, and its logs.
pub const FILES_KEPT: u64 = 512;

/// The rest between two log lines about one reason of refusal; each says how many there were.
pub const LOG_EVERY: Duration = Duration::from_secs(10);

/// How long an address that is in use is waited for: a killed process may have it a moment longer.
pub const ADDRESS_TIME: Duration = Duration::from_secs(3);

/// How often it is tried meanwhile.
pub const ADDRESS_LOOK: Duration = Duration::from_millis(50);

/// How long a client may take to close a connection that the door ends.
pub const CLOSING: Duration = Duration::from_secs(1);

/// How often the door checks a connection with an open request.
pub const LOOK: Duration = Duration::from_secs(5);

/// Pause after a failed accept: other connections must end first.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The first bytes that tell HTTP/2 from HTTP/1.
pub const PREFACE: &[u8; 3] = b"PRI";

/// Rest between two looks at a connection that has sent less than that; twice as long each time.
pub const PREFACE_REST: Duration = Duration::from_millis(10);

/// Longest answer that hyper itself gives to a malformed request, in bytes.
pub const UNREADABLE_ANSWER: usize = 256;

/// Longest name in an `Origin` or `Host` that a message repeats.
pub const SHOWN: usize = 200;

/// Connections of one listener at a time, whatever an operator says: the door waits for all with one call, which
/// counts to 2³².
pub const UNDER_WAY: u32 = 1 << 24;
