//! Every limit of the worker, with its reason.

use std::time::Duration;

/// Events that wait for the driver: returned callbacks, emptied replicas, calls of the service. At the bound
/// the reporter waits; the driver never waits for any of them, so it always catches up.
pub const EVENTS: usize = 1_024;

/// Events taken in before the gates are published and a beat goes out: one beat for a burst of callbacks.
pub const BATCH: usize = 256;

/// Loads that run at once unless the service says otherwise: enough to keep any disk and network busy, few enough
/// that a node with ten thousand shards does not open as many copies when it starts. Further loads wait.
pub const LOADS: usize = 256;

/// `serve` callbacks that run at once unless the service says otherwise. Wide, as requests wait for them: a service that
/// opens a file or a connection for each stays below the usual 1,024 open files of a process, and ten thousand that take
/// 50 ms each have begun within a second. Further ones wait.
pub const SERVES: usize = 512;

/// Replicas whose former callbacks may still run, beyond those that have a callback now, before the ones that have
/// ended are looked for and forgotten.
pub const ENDING_CALLBACKS: usize = 1_024;

/// Messages on their way to the coordinator. At the bound no beat is made: the connection is stuck, and a later
/// beat says the same and more.
pub const OUTGOING: usize = 4;

/// How long opening a connection may take, the answer to the registration included.
pub const CONNECT: Duration = Duration::from_secs(5);

/// How long the worker does not log again that no coordinator has it, in milliseconds: longer than the next leader takes.
pub const WARN_AGAIN_MS: u64 = 30_000;

/// Beats without an answer, in heartbeats, after which the connection is given up and another one is opened; half of the lease
/// at least, as a coordinator may be waiting for its disk.
pub const SILENT_BEATS: u64 = 4;

/// How often loads are measured and reported: often enough for a hot key to be seen within seconds, rare
/// enough that a worker of 10,000 replicas sends nothing worth mentioning.
pub const LOAD_EVERY: Duration = Duration::from_secs(2);

/// Weight of the newest period in a reported rate; the rest is history. At one half, three quarters of what
/// is reported is from the last two periods.
pub const LOAD_WEIGHT: f64 = 0.5;

/// How long `report` may take for all replicas together.
pub const REPORT: Duration = Duration::from_secs(5);

/// Counters of the sketch of heavy keys, for each replica: any key with more than 1/32 of the requests is
/// seen, and a count is too high by at most 1/32 of the requests.
pub const HEAVY_COUNTERS: usize = 32;

/// Longest key that the sketch counts; longer ones are no hot keys worth isolating.
pub const HEAVY_KEY_BYTES: usize = 1_024;

/// Requests that wait for a gate at the same time. At the bound the worker refuses a request at once, to be sent again: a
/// worker whose owner-to-be hangs must not collect the traffic of minutes.
pub const WAITERS: usize = 10_000;

/// How long [`crate::http`] holds a request whose replica is about to serve. Above the time in which a dead
/// owner's lease runs out with default settings, so that a failover costs a request its patience only.
pub const HOLD: Duration = Duration::from_secs(5);

/// Idle connections kept to each other node, for hops.
pub const HOP_IDLE: usize = 64;

/// How long an answer of another node, or its next part, is waited for before the node is checked: longer than most requests
/// take, so that a cluster at rest is not checked at all.
pub const HOP_QUIET: Duration = Duration::from_secs(1);

/// How long a node may take to answer the check: what a busy machine takes at worst.
pub const HOP_CHECK: Duration = Duration::from_secs(1);

/// Checks without an answer, one after the other, after which a node is silent. With [`HOP_QUIET`] and [`HOP_CHECK`] a request to
/// a stopped node is given up after three seconds, when another node leads its shard with default settings.
pub const HOP_CHECKS: u32 = 2;

/// How long after maps are first asked for a keyspace may still be missing because it has not come yet: a
/// connection and a large map take some hundred milliseconds. Above it, an unknown keyspace is refused at once.
pub const MAPS_FIRST: Duration = Duration::from_secs(2);

/// Replicas that metrics name one by one. A node with more is counted in sums only: thousands of time series
/// from each node are more than Prometheus should be given.
pub const METRIC_REPLICAS: usize = 200;

/// Longest message of a failed callback that is reported.
pub const REASON_BYTES: usize = 1_024;

/// Longest answer that is read to its end before it is sent on: the request is then over for the shard,
/// however slowly the client reads. Longer answers and streams keep the shard until they are out.
pub const BUFFERED_BYTES: usize = 64 << 10;

/// Largest body of a request that [`crate::http`] keeps, to send the request again: the longest value of a table. A request
/// with a larger one, or one of unknown length, is sent once.
pub const KEPT_BODY_BYTES: usize = 1 << 20;

/// Bytes of all such bodies of a service together. A request whose body has no room is sent once: a node whose peers answer
/// nothing must not collect the writes of seconds.
pub const KEPT_BODIES_BYTES: usize = 256 << 20;

/// How long a worker that has left goes on sending clients to where its shards are: routers hear of a change
/// within a tenth of that, and a request on its way arrives.
pub const LINGER: Duration = Duration::from_millis(500);

/// How long a worker that is shut down waits until its requests and `unload` have ended, so that it can say goodbye. Above it
/// the coordinator waits for the lease, as after a crash.
pub const SHUTDOWN: Duration = Duration::from_secs(3);

/// How often a worker that leaves looks whether it still has a coordinator, or a lease.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A node looks so often how much of its disk is used.
pub const DISK_LOOK: Duration = Duration::from_secs(1);

/// How long a coordinator may take to say whether a keyspace is there, and to change it: it commits in milliseconds.
pub const ADMIN_ANSWER: Duration = Duration::from_secs(5);
