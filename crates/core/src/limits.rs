//! Every limit that `core` enforces: its name, its value, and why it is that value.

/// Longest key, in bytes. Room for any path or composite key; small enough that a map of a million
/// boundaries stays in memory whatever a user does.
pub const KEY_BYTES: usize = 4096;

/// What a shard of unknown size counts as when it moves, against `bytes_per_s`: 64 MiB, the size
/// from which data counts in balancing too ([`LOAD_FLOORS`]).
pub const UNKNOWN_BYTES: u64 = 64 << 20;

/// The followers of a replicated shard may have it led by another replica when the coordinator has not heard the leader's node
/// for so many heartbeats: one may be lost on the way.
pub const BEATS_MISSED_BY_LEADER: u64 = 2;

/// Longest name of a keyspace, node, zone, label or partition, in bytes: fits a DNS label path, a file
/// name on every file system, and a metric label.
pub const NAME_BYTES: usize = 255;

/// For how long the status says that shards began without the data of before: as long as a person may take to look.
pub const BEGUN_EMPTY_SHOWN_MS: u64 = 3_600_000;

/// Shards that one change of a map names in the list of events; of the others it says how many they are.
pub const SHARD_EVENTS_AT_ONCE: usize = 16;

/// Most replicas of one shard. Beyond this more replicas cost more than they carry; a read-hot shard
/// should be split or isolated first.
pub const REPLICAS: usize = 64;

/// Most shards in one keyspace: the largest map that is measured (see `bench/`), times four.
pub const SHARDS: usize = 4_000_000;

/// Shards that one decision looks at, one by one: no beat is answered meanwhile, so it is little beside a heartbeat.
pub const SHARDS_RECONCILED: usize = 2_048;

/// Shards of which one batch of beats sees at once whether their leaders may begin, for the same reason.
pub const SHARDS_GRANTED: usize = 2_048;

/// Entries of what is kept for each replica that one decision packs, for the same reason, and the map that it is at.
pub const ENTRIES_PACKED: i64 = 65_536;

/// Changes of plans that begin in one commit, for the same reason.
pub const CHANGES_BEGUN: usize = 2_048;

/// Changes of plans that one decision tries to begin, for the same reason: of those that it has not tried before, of those
/// for which there has come to be room, and of those that wait for anything else, so many each.
pub const CHANGES_TRIED: usize = 2_048;

/// What one decision plans, for the same reason: shards and replicas that are looked at, changes that are written. A
/// quarter of it is the most changes of one plan that the planner makes by itself.
pub const WORK_PLANNED: usize = 32_768;

/// So many shards that a step of planning passes over in one piece, without a close look, are as much work as one that is
/// looked at.
pub const SHARDS_PASSED_OVER: usize = 4;

/// Steps that replicas owe of which one decision sees whether they are overdue, for the same reason.
pub const STEPS_CALLED_IN: usize = 8_192;

/// Changes of approved plans of which one decision sees how far they are; a plan is looked at as a whole.
pub const CHANGES_TRACKED: usize = 8_192;

/// Shards that one decision notes as having news because of their nodes: what it then looks at, ten times.
pub const SHARDS_ENQUEUED: usize = 20_480;

/// Most that a worker may report as one load; more counts as this. So the sum over all replicas of the largest cluster
/// is far from what a number can hold, and each load is far from what a machine can do.
pub const LOAD: f64 = 1e15;

/// Capacities of nodes, for the same reason: their sums and ratios are numbers.
pub const CAPACITIES: std::ops::RangeInclusive<f64> = 1e-6..=1e12;

/// How long a node that has left is remembered, in milliseconds: until a person who looks has seen it.
pub const LEFT_NODE_MS: u64 = 600_000;

/// How long a node that has died is remembered, in milliseconds: a person may be looking into it.
pub const DEAD_NODE_MS: u64 = 3_600_000;

/// How long a node that has died and never held a shard is remembered, in milliseconds: anybody can register such nodes.
pub const UNUSED_NODE_MS: u64 = 60_000;

/// Most nodes that have ended and hold nothing which are remembered, however short ago they ended.
pub const ENDED_NODES: usize = 100;

/// New processes that may register from one address at once: a fleet behind one translated address that starts anew.
pub const NEWCOMERS: u64 = 1_000;

/// After how many milliseconds there is room for one more of them: a hundred workers in a minute, six times over. Of nodes
/// that never beat, no more than those and [`NEWCOMERS`] of one address are remembered at a time.
pub const NEWCOMER_MS: u64 = 100;

/// Addresses whose new processes are counted each for itself: a few hundred kilobytes.
pub const NEWCOMER_ADDRESSES: usize = 4_096;

/// For how long, in milliseconds, the status shows that a worker of another cluster asked to register: such workers try again
/// within seconds.
pub const FOREIGN_SHOWN_MS: u64 = 60_000;

/// Until a coordinator says again, in milliseconds, that it refuses new processes.
pub const NEWCOMERS_TOLD_MS: u64 = 60_000;

/// Most nodes in one cluster: the largest fleet that is measured, times four.
pub const NODES: usize = 40_000;

/// The number of a worker's first beat that a coordinator takes, at the most: more than one each microsecond for a lifetime.
pub const BEATS: u64 = 1 << 52;

/// Until a coordinator says again, in milliseconds, that messages for a node come without its token.
pub const WRONG_TOKEN_TOLD_MS: u64 = 600_000;

/// By how much the number of a beat may be above that of the last one: weeks of beats that were lost on the way.
pub const BEATS_SKIPPED: u64 = 10_000_000;

/// Most keyspaces in one cluster. Each has a planner run of its own.
pub const KEYSPACES: usize = 1_000;

/// Most labels on one node.
pub const LABELS: usize = 64;

/// Most kinds of load of one keyspace. Each costs 8 bytes a shard and a pass over them in planning.
pub const METRICS: usize = 16;

/// `work_stealing`: a node above this many times the average load gives up the excess (A6).
pub const STEAL_ABOVE: f64 = 1.3;

/// `work_stealing`: nodes looked at in random order before all are looked at in turn (A5). With half of
/// the nodes unfit, ten misses in a row are one in a thousand.
pub const STEAL_TRIES: u32 = 10;

/// `ring`: tokens of a node of average capacity. 100 keep the fullest of 100 nodes within about a
/// quarter above the mean.
pub const RING_TOKENS: u32 = 100;

/// `balanced`: a node below this part of its share has just joined and draws replicas (M10).
pub const DRAW_BELOW: f64 = 0.5;

/// Sentences about unplaced replicas shown to a person before the rest is only counted.
pub const COMPLAINTS: usize = 20;

/// Most passes of a placement policy over its own result. One is enough as a rule; a pass that changes
/// nothing is the last.
pub const PASSES: usize = 8;

/// Largest weight of a node in a scheme that goes from hashes to nodes: fine enough for hundredths of a
/// percent, small enough that [`NODES`] of them sum to less than 2^31, as far as jump is defined.
pub const NODE_WEIGHT: u32 = 10_000;

/// Most tokens on one ring: 400 for each of [`NODES`]. They take 24 bytes each, so 384 MB at the most.
pub const TOKENS_ON_RING: u64 = 16_000_000;

/// How far above its share of a measured load (requests, CPU, bytes) a node may stay before anything moves
/// for it: wide, because loads swing and a move costs more than a quarter too much does.
pub const LOAD_TOLERANCE: f64 = 0.25;

/// How far above its share of replicas a node may stay: narrower, because a count does not swing.
pub const COUNT_TOLERANCE: f64 = 0.1;

/// `balanced`: what a step must win where nodes carry other keyspaces too, as a part of the tolerance: so much fuller than the
/// node that gets a replica must be the one that gives it, each taken halfway between before and after. With less, keyspaces
/// answer each other's steps, and what they measure swings by as much.
pub const LOAD_MOVE_PRICE: f64 = 0.4;

/// Mean load of a node below which a metric is not balanced at all, in the order of
/// [`crate::node::load::METRICS`]: 50 requests a second, 2 % of a core, 64 MiB. Below that there is nothing to win.
pub const LOAD_FLOORS: [f64; 3] = [50.0, 20.0, 67_108_864.0];

/// How long a shard is not tried again on a node where it could not be loaded, in milliseconds: long enough
/// for other nodes to have their turn, short enough that a mended node is found before a person waits.
pub const AVOID_MS: u64 = 60_000;

/// The same, in milliseconds, where what the node had stored was damaged: long enough that a disk that damages all it gets is not
/// filled without a pause.
pub const AVOID_DAMAGED_MS: u64 = 2_000;

/// Ended processes that are remembered to tell a shard that kills from a bad release: with fewer nothing is lost, as
/// so many deaths speak for no shard.
pub const DEATHS: usize = 256;

/// How often the address of a node is checked that has just registered, in milliseconds, until it answers: its first
/// shards wait for that, and its service may begin to listen just after it has registered.
pub const FIRST_CHECKS_MS: u64 = 250;

/// How many times the `load_ms` of its keyspace a load may take in all that says again and again that it gets on: four
/// hours by default, a terabyte at 70 MB a second. One that has not ended by then, such as one that copies more slowly
/// than its leader is written to, is tried on another node.
pub const LOAD_STRETCH: u64 = 24;

/// How long a step may take, in milliseconds, before the coordinator names it: longer than a healthy service takes as a rule.
pub const SLOW_MS: u64 = 10_000;

/// Shards of one keyspace that hang on a node before no further one is tried there: one may be the shard's own
/// fault.
pub const HUNG_SHARDS: usize = 2;

/// For so long the map of a keyspace must have been as it is before leadership is spread, in milliseconds: longer than steps of a
/// restart are apart, so that one spread follows it and not several.
pub const LEADS_CALM_MS: u64 = 2_000;

/// How many replicas are looked at for chains when leadership is spread: tens of milliseconds.
pub const LEADS_SEARCHED: usize = 2_000_000;

/// Least time between two runs of the planner over one keyspace that follow from its own plans, in
/// milliseconds, so that a thousand arrivals cause one run and not a thousand. One more for each
/// [`PLAN_PAUSE_SHARDS`] shards.
pub const PLAN_PAUSE_MS: u64 = 20;

/// See [`PLAN_PAUSE_MS`]: a run over a million shards takes about a second, and then waits as long.
pub const PLAN_PAUSE_SHARDS: usize = 1_000;

/// The same for a keyspace of which the loads are measured and whose nodes carry other keyspaces too: wide, as
/// the measured loads say better which node has room.
pub const COUNT_TOLERANCE_BESIDE: f64 = 0.5;

/// `balanced`: replicas are much alike when the heaviest is at most this many times the mean. Then no node is
/// asked for less than whole replicas can give.
pub const ALIKE: f64 = 1.25;

/// How far above its share of replicas a node may stay in a problem that has no metrics at all.
pub const PLAIN_TOLERANCE: f64 = 0.05;

/// `balanced`: nodes looked at for one replica, the coldest first, before it is reported as unplaced. Only
/// reached when thousands of nodes are full or forbidden.
pub const FILL_LOOKS: usize = 4096;

/// `balanced`: candidate steps weighed to make a plan smaller once it works. Some milliseconds.
pub const THIN_EVALUATIONS: u64 = 100_000;

/// Most keys that a what-if looks at. A sample tells as much as all keys do, and ten million fit in memory.
pub const WHATIF_KEYS: usize = 10_000_000;

/// Most events of one what-if: each costs a pass over all keys for every scheme.
pub const WHATIF_EVENTS: usize = 32;

/// Most schemes compared in one what-if: as many as a person can still compare in a table.
pub const WHATIF_SCHEMES: usize = 32;

/// Largest factor by which an event lets keys grow or a key become hot.
pub const WHATIF_FACTOR: f64 = 1_000_000.0;

/// Most sub-keys of a salted key: beyond a hundred, gathering them costs every reader more than the key did.
pub const SALT_WAYS: u32 = 100;

/// Most splits and merges that one plan of the planner asks for: enough to halve every shard of a busy
/// keyspace within minutes, few enough to be read by who approves them.
pub const RESHAPES: usize = 64;

/// Most parts that one slot is cut into, or made from, when the number of shards changes: each of them knows all
/// the others until they serve. More takes two changes in a row.
pub const RESHARD_FACTOR: u32 = 64;

/// `balanced`: candidate steps weighed until a plan works, at least. A tenth of a second. Only an instance
/// that cannot be brought within its tolerance comes to this bound.
pub const SETTLE_EVALUATIONS: u64 = 10_000_000;

/// `balanced`: shards and replicas that are looked at in the time in which a place is found for a replica.
pub const LOOKS_A_PLACE: usize = 4;

/// `balanced`: candidate steps that are weighed in the time in which a shard or a replica is looked at.
pub const EVALUATIONS_A_LOOK: u64 = 4;

/// See [`SETTLE_EVALUATIONS`]; so many more for each replica, which is a second at three million.
pub const SETTLE_EVALUATIONS_PER_REPLICA: u64 = 20;

/// How often it is looked whether loads that a rebalance waits for have been reported: workers measure about
/// as often, so sooner there is nothing new.
pub const LOADS_LOOK_MS: u64 = 2_000;

/// Changes in all the plans that are kept, once they are over: some 30 MiB. Without it the first placement of a
/// million shards would take more memory than the shards, for as long as its plan is remembered.
pub const CHANGES_KEPT: usize = 200_000;

/// How far numbers go on after a loss beyond the highest that is known: far more than any cluster gives out in one go,
/// or while a clock is off by some minutes.
pub const COUNTER_JUMP: u64 = 1_000_000_000;

/// How many numbers a cluster may give out in a millisecond, on average: after a loss they go on from the time of day,
/// counted at this pace, so that what is begun later from the same copy lies above what was begun earlier. Far more
/// than any cluster does, and JavaScript holds the numbers until the year 2255.
pub const NUMBERS_PER_MS: u64 = 1_000;

/// The longest lease that is assumed when not even that is known any more, in milliseconds: longer than anybody
/// sets one.
pub const LOST_LEASE_MS: u64 = 600_000;

/// Nodes that one sentence about a problem names, before the rest is only counted.
pub const NAMES_SHOWN: usize = 6;

/// Reasons for the same kind of problem that the status names.
pub const PROBLEMS_OF_A_KIND: usize = 3;

/// Moves in progress that are listed at a glance; all of them are a question of their own.
pub const MOVES_SHOWN: usize = 20;

/// How long, in milliseconds, a client that has lost its coordinator rests at most before it tries one again, in a fleet of
/// up to 500 ([`crate::node::reconnect`]); and at most between two that it tries in turn. A coordinator that restarts takes
/// about as long to come up.
pub const RECONNECT_MS: u64 = 100;

/// Coordinators of which a client remembers that they said nothing: more than anybody runs.
pub const SILENT_COORDINATORS: usize = 64;

/// A process that looks for a coordinator rests for the time that it has looked, divided by this: so it is late by no more
/// than that when there is one again.
pub const LATE_BY: u64 = 4;

/// Longest rest of a worker for which there is no coordinator, in milliseconds: what one that comes back waits for its
/// workers at most, well within the time after which it would declare them dead.
pub const WORKER_REST_MS: u64 = 2_000;

/// Longest rest of a router for which there is no coordinator, in milliseconds: ten thousand of them then try some
/// thousand times a second.
pub const ROUTER_REST_MS: u64 = 5_000;

/// Longest rest of a node that does not reach another node to which its replicas send, in milliseconds: a follower that comes
/// back waits for so long at most, and nothing but its own shards waits with it.
pub const PEER_REST_MS: u64 = 1_000;

/// For so long a router takes offers of older maps for those of coordinators that lag behind, in milliseconds: three of its
/// longest rests, in which a next leader reads the state and standbys follow it.
pub const MAP_BACK_MS: u64 = 3 * ROUTER_REST_MS;

/// So many workers, and so many routers, are to come to one coordinator in a second when another is lost.
pub const RECONNECT_PACE_PER_S: u64 = RECONNECTS_PER_S / 2;

/// Workers that have lost their coordinator come back within a lease divided by this, however many they are: with the
/// lease of 8 s that clusters of several coordinators have, 3 s go by until another leads, and 2 s of the 5 that are left
/// are spent on not coming all at once.
pub const SPREAD_OF_LEASE: u64 = 4;

/// Over how long routers spread at most that have lost their coordinator, in milliseconds. Their maps serve on
/// meanwhile; what moves is found by the hints of those who had it.
pub const ROUTER_SPREAD_MS: u64 = 2_000;

/// The longest spread that is believed, in milliseconds: that of a lease of four minutes.
pub const SPREAD_MS: u64 = 60_000;

/// Most workers and routers that come to one coordinator within a second, whichever is lost, those that it turns away
/// included: half as many as the beats that it answers in any second of a fleet of 10,000 workers. It holds up to
/// 10,000 workers with a lease of 8 s and as many routers for each coordinator; beyond, it grows with the fleet, and as
/// leases get shorter.
pub const RECONNECTS_PER_S: u64 = 10_000;

/// Replicas that no map names and a node says it keeps, of which a coordinator remembers so many; a node names the
/// others when it registers next. Those that a map names are remembered all.
pub const KEPT_REPLICAS: usize = 65_536;

/// Of those a beat looks at so many: the next goes on from there.
pub const KEPT_AT_ONCE: usize = 64;

/// After so many milliseconds the coordinator tells people of data that a node keeps and that it cannot decide about: longer than
/// it takes others to load the shard and serve it.
pub const KEPT_TOLD_MS: u64 = 120_000;

/// Names of deleted keyspaces that a coordinator remembers, so that data of theirs which comes back later may be
/// deleted. Beyond that the ones that were deleted first are forgotten, and such data is kept.
pub const DELETED_KEYSPACES: usize = 1_000;

/// Clusters that a cluster was restored from, one after the other, whose workers it takes for its own.
pub const CONTINUED_CLUSTERS: usize = 16;

/// Versions that a dataset node believes of one other node that it has, and that the own source does not have: more than
/// a node loads and keeps at a time, of many datasets. Those that the source has are not counted.
pub const ANNOUNCED_VERSIONS: usize = 256;

/// Datasets of which the own source has told nothing and that an operator's order is remembered of: those of a node that
/// was just started, and whose source is away.
pub const ANNOUNCED_DATASETS: usize = 4_096;

/// Bytes of a value of a table.
pub const VALUE_BYTES: usize = 1 << 20;
/// Bytes of a filter of a scan: some dozens of comparisons, and what fits the line of a request when it is percent-encoded.
pub const FILTER_BYTES: usize = 4_096;
/// Parentheses and `not` of a filter within each other: more than people can read, and little of a thread's stack.
pub const FILTER_DEPTH: usize = 32;
/// Operations of one write to a table.
pub const BATCH_OPERATIONS: usize = 1_000;
/// Bytes of keys and values of one write to a table: one row of the largest kind, which with 32 bytes for each operation fits an
/// entry of a log.
pub const BATCH_BYTES: usize = VALUE_BYTES + KEY_BYTES;
/// The longest time to live of a row, in milliseconds: 2^52, some 142,000 years. With it the end of a row is below 2^53, which
/// every client of JSON reads exactly; so one bound holds for all protocols.
pub const TTL_MS: u64 = 1 << 52;
/// Rows whose time has come that one entry removes. More than one entry can write with a time to live, but for batches, so
/// that they do not pile up.
pub const EXPIRED_ROWS_REMOVED: usize = 16;
/// Changes that one entry removes at most beyond twice those that it makes, of a table with a feed: half a second's of a shard
/// under load.
pub const CHANGES_REMOVED: usize = 256;
/// Bytes of values of these: a replica may have to read them from its disk.
pub const CHANGE_BYTES_REMOVED: usize = 4 << 20;
/// Parts of a shard of which it is kept apart up to where changes are removed: as many as were merged into it.
pub const REMOVED_PARTS: usize = 64;
/// The longest time for which a table keeps changes: 7 days.
pub const FEED_KEPT_MS: u64 = 604_800_000;
/// The shortest such time: a reader must be able to come back.
pub const FEED_KEPT_LEAST_MS: u64 = 1_000;
/// For how long a shard keeps the outcome of a write with a request id: 10 minutes.
pub const ANSWER_KEPT_MS: u64 = 600_000;
/// How many outcomes a shard keeps: 100 bytes each.
pub const ANSWERS_KEPT: u64 = 100_000;
/// Outcomes that one entry forgets at most; one entry brings one.
pub const ANSWERS_FORGOTTEN: usize = 4;
/// Bytes of the path of an index: a dozen names.
pub const INDEX_PATH_BYTES: usize = 512;
/// Indexes of one table: each costs a look at the old and the new value of every write.
pub const INDEXES: usize = 16;
/// Bytes of a text that an index has: of longer ones the first bytes. An entry is so little beside most rows.
pub const INDEX_TEXT_BYTES: usize = 256;
/// Rows that one entry of the log adds to an index that is being built, and entries that one removes from an index that is
/// dropped: a millisecond or so, in which other replicas of the thread wait.
pub const INDEX_STEP_ROWS: usize = 512;
/// Bytes of the rows that one entry looks at for an index that is being built, unless the first of them alone has more.
pub const INDEX_STEP_BYTES: usize = 512 << 10;
/// Ranges of a shard that a check tells apart: a difference is named by the range in which it is.
pub const CHECK_RANGES: usize = 1_024;
/// Bytes of the first keys of these ranges.
pub const CHECK_KEY_BYTES: usize = 1 << 20;
/// Bytes of a key that a shuffle samples; of longer ones the first bytes. Enough to tell keys apart, and a sketch of some 5,000
/// keys takes a megabyte or so at most.
pub const SAMPLE_KEY_BYTES: usize = 256;
/// Bytes of a key of a shuffle: what people order by is shorter, and a key stands in bounds and in the memory of a sorter.
pub const SHUFFLE_KEY_BYTES: usize = 64 << 10;
/// Bytes of a record of a shuffle, key and value: it travels whole, and a buffer must hold some.
pub const SHUFFLE_RECORD_BYTES: usize = 64 << 20;
/// Stashes, and ranges, of a shuffle: ten for each of some thousands of followers. Each has an identity, and a key, in the memory
/// of every node that has to do with the shuffle, and the decision to start it is kept and repeated.
pub const SHUFFLE_RANGES: u32 = 65_536;
/// The shortest time to live of a shuffle: a client keeps it alive more often than that, over a network that loses requests.
pub const SHUFFLE_TTL_LEAST_MS: u64 = 10_000;
/// The longest one, thirty days: a shuffle that no client asks for must end without a person.
pub const SHUFFLE_TTL_MOST_MS: u64 = 30 * 24 * 3_600_000;
/// Bytes of the name of a shuffle's owner: it stands in a column of a list.
pub const SHUFFLE_OWNER_BYTES: usize = 64;
/// Bytes of the schema of the rows of a shuffle: some thousand columns. Each replica of the decision to start keeps it.
pub const SHUFFLE_SCHEMA_BYTES: usize = 128 << 10;
/// Columns that the rows of a shuffle are ordered by: no person names more by hand.
pub const SHUFFLE_SORT_COLUMNS: usize = 256;
/// Columns of rows of Arrow that a shuffle combines: the numbers of a row are looked at one by one.
pub const SHUFFLE_COMBINED_COLUMNS: usize = 256;
/// The largest weight of a shuffle; the least is 1. So the smallest share beside one other shuffle is a thousandth of a buffer,
/// which still is some frames.
pub const SHUFFLE_WEIGHT: u16 = 1_000;
/// Bytes of the records of one frame of an attempt, with what each takes in memory besides, so that frames of records of nothing
/// have a limit, too: the largest record, and some beside it. What a frame brings to one range lies together, so a batch has room
/// for it.
pub const SHUFFLE_FRAME_BYTES: usize = 72 << 20;
/// Bytes of a batch, with what stands around its records on its way and on disk. Most have far fewer: what a buffer holds of a
/// shuffle, divided by its slots.
pub const SHUFFLE_BATCH_BYTES: usize = 128 << 20;

/// A disk that has reached a limit is below it again when this share of it less is used: 0.01 is one hundredth of the disk.
pub const DISK_HYSTERESIS: f64 = 0.01;
