//! Pure decisions of Partage: what we see goes in, what to do comes out.
//!
//! Nothing here reads a clock, draws a random number, does I/O or awaits. Time ([`base::time::Millis`]) and
//! seeds are arguments; a timer is a returned "call me again by". The same input gives the same bytes
//! out, so the coordinator, `partage simulate` and the simulator that tests both run this very code.
//!
//! # A tour
//!
//! The folders are levels. Each uses the levels before it in this list and none behind it; a test in `tests/house` fails
//! otherwise. A reader who takes them in this order meets every word before it is used.
//!
//! 1. **[`base`]** holds what all others need: the [names](base::name) that people choose, the [ids](base::id) that
//!    the coordinator gives out once, [time](base::time) as an argument, and the [settings](base::settings) of a cluster; also
//!    the bugs that tests of the simulator switch on ([`planted`](base::planted)). Sizes that are refused are in [`limits`].
//! 2. **[`keyspace`]** says what exists: a named set of keys. [`key`](keyspace::key), [`hash`](keyspace::hash) and
//!    [`sharding`](keyspace::sharding) say which shard holds a key, [`lookup`](keyspace::lookup) says it fast. The
//!    [`map`](keyspace::map) has all shards with their replicas, and each replica goes through one
//!    [`lifecycle`](keyspace::lifecycle).
//! 3. **[`node`]** says what the coordinator sees: a worker process as it announces itself. Its heartbeats and its orders are the
//!    [`exchange`](node::exchange); from them follow its [`health`](node::health), its [`lease`](node::lease) and the
//!    [`load`](node::load) of each shard.
//! 4. **[`placement`]** says what the coordinator wants: which nodes should hold the replicas of each shard. Each policy is a
//!    file, and all have one signature.
//! 5. **[`plan`]** says how it gets there: the list of changes from one map towards the next. [`reshard`](plan::reshard)
//!    proposes splits and merges, [`check`](plan::check) says whether a map or a plan is right, [`brake`](plan::brake) and
//!    [`poison`](plan::poison) whether to stop, [`throttle`](plan::throttle) how fast, and [`handover`](plan::handover) what
//!    the next step of a move is. Placement and plan do not know each other.
//! 6. **[`cluster`]**, **[`worker`]** and **[`routing`]** act: they are the state machines of coordinator, worker and router.
//!    None of them uses another; they have only what they exchange in common. Each has a driver in the crate of its process.
//!
//! The state machines of the services (datasets, tables, shuffles) are in `crates/service`, which is as pure.

pub mod base;
pub mod cluster;
pub mod keyspace;
pub mod limits;
pub mod node;
pub mod placement;
pub mod plan;
pub mod routing;
pub mod worker;
