//! The coordinator's state machine: everything it knows, and what follows from it. Its driver gathers what
//! happens, calls here, makes [`Outbox::writes`] durable in one transaction, and only then sends anything.
//!
//! ```text
//!  membership          settle + execute        planning            driver
//!  who is there   ──►  next map (commit)  ──►  what next      ──►  durable, then orders, maps, answers
//! ```
//!
//! One call of [`Cluster::decide`] goes through these once, in that order, and says when to call again.
//! Between calls, [`Cluster::register`], [`Cluster::beat`] and the commands of [`admin`] take in what
//! happened. The state in memory is ahead of the disk only between a call and the driver's commit; a
//! driver whose commit fails throws the cluster away and recovers a new one from what is durable.
//!
//! | what is asked                                  | file            |
//! |------------------------------------------------|-----------------|
//! | who is a node, is it alive, may it go          | `membership.rs` |
//! | how a worker registers, and who may speak for it | `session.rs`  |
//! | who was told more than this cluster knows      | `ahead.rs`      |
//! | which beats are answered during a commit       | `meanwhile.rs`  |
//! | next step of moves, splits, merges under way   | `advance.rs`    |
//! | which changes of a plan begin now              | `execute.rs`; which are tried: `change_queue/` |
//! | what stops the planner                         | `guard.rs`; what ends by itself: `calm.rs` |
//! | which shard is to blame when processes die     | `blame.rs`      |
//! | what should change next, and who approves it   | `planning/`    |
//! | what a worker should hold, and since when      | `orders.rs`     |
//! | whether data that no map names may be deleted  | `kept.rs`       |
//! | what outlives its process, and who waits for it | `stored.rs`     |
//! | what does not get on, and what follows         | `overdue.rs`    |
//! | who cannot be reached, and what follows        | `reach.rs`      |
//! | what is stored, and how it comes back          | `record.rs`     |
//! | which shards a node has replicas of             | `hosted.rs`     |
//! | what becomes of a stored state that is damaged | `faults.rs`     |
//! | how much one call does, and when it stops       | `work.rs`       |
//! | which nodes are forgotten                       | `forget.rs`     |
//! | how the memory of a replica stays small        | `observed.rs`, `packed.rs`, `runs.rs` |
//! | how a node is found quickly by its name         | `numbered.rs`   |
//! | how many may register from one address         | `registration_limiter.rs` |
//! | workers of another cluster, which are refused  | `foreign.rs` |
//! | what people and services may ask to be done    | `admin/`       |
//! | why a key is served where it is                | `explain.rs`    |
//! | how everything stands, in counts and tables    | `status.rs`     |
//! | what one node holds                             | `node_detail.rs` |
//! | whether a shard is served, and if not, why     | `serving.rs`    |
//! | what is wrong, and what a person can do        | `problems.rs`   |

pub mod admin;
mod advance;
mod ahead;
mod blame;
mod calm;
mod change_queue;
pub mod check;
pub mod event;
mod execute;
pub mod explain;
mod faults;
mod foreign;
mod forget;
mod guard;
mod hosted;
mod kept;
mod meanwhile;
mod membership;
pub mod moves;
pub mod node_detail;
mod numbered;
mod observed;
mod orders;
mod overdue;
mod packed;
mod planning;
mod problems;
pub mod publication;
mod reach;
mod recall;
mod record;
mod registration_limiter;
mod restored;
mod runs;
pub mod serving;
mod session;
pub mod status;
mod stored;
mod work;

pub use ahead::{LaterMap, LaterMaps, note};
pub use faults::StoredFaults;
pub use kept::Kept;
pub use meanwhile::Pending;
pub use observed::Observed;
pub use packed::PackedMap;
pub use problems::{MAKE_ROOM, Problem};
pub use record::{
    ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, Records, RecoverError, ShardRule, Write,
};
pub use session::{BeatError, RegisterError, WrongToken};
pub use work::{Slice, Work};

use crate::base::id::{Incarnation, PlacementId, PlanId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::event::{About, Actor, Event, EventKind, event};
use crate::keyspace::map::{MapDiff, ShardMap};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::ReplicaKey;
use crate::node::health::Signs;
use crate::placement::Policies;
use crate::plan::Plan;
use crate::plan::brake::Losses;
use crate::plan::poison::Deaths;
use crate::plan::reshard::Tracker;
use crate::plan::throttle::Meter;
use std::collections::{BTreeMap, BTreeSet};

/// What time it is for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// By its monotonic clock: decides.
    pub now: Millis,
    /// Milliseconds of Unix time: is only shown to people.
    pub wall_ms: u64,
}

/// Something that a person should know of. The driver logs it and counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whether a person has to do something.
    pub alarm: bool,
    /// One sentence, naming the thing and, for an alarm, the way out.
    pub text: String,
}

/// What has to leave the cluster: `writes` first, all or nothing, then the rest.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    /// To be made durable.
    pub writes: Vec<Write>,
    /// Nodes whose orders have changed: send [`Cluster::orders_since`] what they have.
    pub orders: BTreeSet<NodeId>,
    /// New maps to publish, in order.
    pub maps: Vec<MapDiff>,
    /// To be logged.
    pub notices: Vec<Notice>,
    /// To be kept for people who ask later what has happened, once the writes are durable.
    pub events: Vec<Event>,
}

/// A keyspace with its map and what is known of it.
#[derive(Debug, Clone)]
pub struct KeyspaceState {
    /// As stored.
    pub record: KeyspaceRecord,
    /// The current map.
    pub map: ShardMap,
    /// Reports of the incarnations that the map names.
    pub observed: PackedMap<PlacementId, Observed>,
    /// Shards with something under way.
    unsettled: BTreeSet<ShardId>,
    /// What of `unsettled` the throttle counts.
    under_way: execute::Counts,
    /// Approved plans before this one were looked at last, and how many have not been since something happened.
    tracked_until: PlanId,
    untracked: usize,
    /// Changes of approved plans that have not begun; not stored.
    change_queue: change_queue::ChangeQueue,
    /// The map by nodes instead of by shards.
    hosted: hosted::Hosted,
    /// Children that prepare, by their parents.
    forming: BTreeMap<ShardId, BTreeSet<ShardId>>,
    /// Shards that something was heard of since they were last looked at.
    awake: BTreeSet<ShardId>,
    /// Those of them that wait for a grant, an announcement or their leader, and that [`Cluster::grant_at_once`] has not
    /// looked at since.
    grantable: BTreeSet<ShardId>,
    /// Where the next decision goes on, when there is more than one decision looks at.
    looked_until: ShardId,
    /// Led shards whose leader has not got its grant yet.
    ungranted: BTreeSet<ShardId>,
    /// Durable shards with a replica in `Load` that their leader may not know of yet; not stored.
    unannounced: BTreeSet<ShardId>,
    /// Durable shards whose followers may begin when their leader serves, and have not been told so yet; not stored.
    unfollowed: BTreeSet<ShardId>,
    /// Durable shards of whose copies some have ended and some have not; not stored.
    half_ended: BTreeSet<ShardId>,
    /// Nodes where a shard could not be loaded, until when it is not tried there again, and why.
    avoid: BTreeMap<(ShardId, NodeId), overdue::Avoided>,
    /// The steps that are waited for; not stored.
    pending_steps: overdue::PendingSteps,
    /// Processes that were restarted soon after they had taken a shard on, and until when it rather goes
    /// elsewhere; not stored.
    crashed: BTreeMap<(ShardId, NodeId), Millis>,
    /// Shards that are placed nowhere new until it is known whether they are to blame; not stored.
    held_back: BTreeMap<ShardId, blame::HeldBack>,
    /// When to look for a better placement.
    plan_due: Millis,
    /// Since when each shard has its present epoch, in milliseconds of Unix time; not stored, so a shard that
    /// is missing here has had it since before this coordinator started.
    since: runs::Runs,
    /// The last step of each replica that is not live; not stored.
    stepped: BTreeMap<PlacementId, moves::Step>,
    /// What could not be placed, in sentences.
    unplaced: Vec<String>,
    /// Why the last plan was refused or could not be made, so that it is told once.
    failing: Option<String>,
    /// Shards that the planner will look at again when they have settled.
    blocked: BTreeSet<ShardId>,
    /// Since when shards are too large, too hot or too small; not stored.
    tracker: Tracker,
    /// What no plan can help, in sentences.
    advice: Vec<String>,
    /// Since when improving it waits for the loads of some of its replicas; not stored.
    unmeasured_since: Option<Millis>,
    /// When replicas, or the lead, were given to their nodes, for the last `poison_window_ms`; not stored.
    taken: BTreeMap<PlacementId, (ShardId, Millis)>,
    /// Replicas of a durable keyspace that were placed, or began anew as followers, under this coordinator, and have not led
    /// since. Not stored.
    never_led: BTreeSet<PlacementId>,
    /// The copies of each shard that are older than the restore of this coordinator's state, as nodes have named them; not
    /// stored.
    named_copies: BTreeMap<ShardId, BTreeMap<(NodeId, PlacementId), restored::Named>>,
    /// Which nodes were back since the coordinator's state was restored, at the last decision.
    back: restored::Heard,
    /// Shards with copies on processes that live and have not served since that, until all nodes have said what they have.
    unproven: BTreeSet<ShardId>,
    /// Those of them of which something has changed since they were last looked at.
    to_compare: BTreeSet<ShardId>,
    /// Copies on processes that live, without which others have gone on since: they count for nothing until they have
    /// loaded.
    overtaken: BTreeSet<PlacementId>,
    /// Of replicas of durable shards that could not be loaded; not stored.
    excused: BTreeMap<PlacementId, stored::Excuse>,
    /// What it carried on each node when its planner last ran; not stored.
    footprint: planning::Footprint,
    /// The bytes that moves may begin to copy; not stored.
    meter: Meter,
    /// When moves that wait for nothing but bytes may begin.
    copies_due: Millis,
}

/// A node with what is known of it.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// As stored.
    pub record: NodeRecord,
    /// What was seen of its current incarnation.
    pub signs: Signs,
    /// Earlier incarnations that may still act, with what was seen of them.
    former: BTreeMap<Incarnation, Signs>,
    /// It has come to this coordinator, as a new process or as one that comes back.
    registered: bool,
    /// The last beat's number.
    sequence: u64,
    /// It has asked to leave.
    pub leaving: bool,
    /// It gets no further lease: see [`overdue`]. Not stored.
    revoked: bool,
    /// It has said that its last lease is over, and got none: see `Cluster::may_lease`.
    has_no_lease: bool,
    /// Share of its capacity that foreground work takes, as it says.
    pub busy: f64,
    /// What it should hold.
    orders: orders::OrderIndex,
    /// A map has named it since this coordinator leads, or it had ended before that. See [`reach`].
    has_held: bool,
    /// When its address is to be checked again.
    check_due: Millis,
    /// Its address has not answered for so long that what it holds moves off: see [`reach`].
    cut_off: bool,
    /// [`Health`] as last told to people.
    told: Health,
    /// Its lease was over when last looked at.
    lapsed: bool,
    /// When it ended, or was recalled as ended.
    ended_at: Millis,
    /// Data that it keeps and no map names; not stored, as it names that again.
    kept: BTreeMap<ReplicaKey, Kept>,
    /// The last of those that was looked at.
    kept_until: Option<ReplicaKey>,
    /// People know that it is drained and may be stopped.
    emptied_told: bool,
    /// People know that it keeps data that nobody can decide about.
    kept_told: bool,
    /// When the coordinator last said that a message for it came without its token.
    wrong_token_told: Option<Millis>,
    /// Its token was lost, and another one is taken for it since. Not stored: the process that registered is refused with its
    /// next beat, and begins anew.
    is_on_trust: bool,
}

/// The cluster as its coordinator sees it.
#[derive(Debug, Clone)]
pub struct Cluster {
    settings: Settings,
    policies: Policies,
    started: Millis,
    last_join: Millis,
    record: ClusterRecord,
    keyspaces: BTreeMap<KeyspaceName, KeyspaceState>,
    nodes: BTreeMap<NodeId, NodeState>,
    plans: BTreeMap<PlanId, Plan>,
    /// What all keyspaces carry on each node; not stored.
    carried: planning::Footprint,
    /// Exclusive keyspaces that were deleted a lease ago or less, and until when their names are not given
    /// out again. Not stored: a restart forgets the last few seconds of it.
    deleted: BTreeMap<KeyspaceName, Millis>,
    /// What was wrong with the stored state that it began with.
    faults: StoredFaults,
    /// What workers were told that it does not know; not stored.
    ahead: LaterMaps,
    /// It began with replicas of which it had heard nothing: those of a coordinator before it.
    inherited: bool,
    /// From then on no lease runs that was granted before this coordinator led.
    leases_before: Millis,
    /// When this coordinator said that it would look again.
    promised: Millis,
    /// When it last decided, or listened during a commit.
    listened: Millis,
    /// Nodes that were given up lately.
    losses: Losses,
    /// Dead nodes that a person has given up by releasing the brake, and that the next decisions declare dead. Not stored: another
    /// coordinator would put the brake on, and the person be asked again.
    written_off: BTreeSet<NodeId>,
    /// Processes that ended lately; not stored.
    deaths: Deaths,
    /// Why nothing but repairs is begun: so many processes have ended lately. Not stored.
    unrest: Option<String>,
    /// Since when the brake is on and everybody is heard; not stored.
    calm_since: Option<Millis>,
    /// Planning waits because too few nodes answer.
    waiting: bool,
    /// Which nodes have been heard since this coordinator started: see [`Cluster::prove`].
    heard: restored::Heard,
    /// The nodes that had not been heard when unproven copies were last compared; not stored.
    unheard: Option<BTreeSet<NodeId>>,
    /// Messages in the name of a node that came without its token; not stored.
    wrong_tokens: u64,
    /// Nodes that died without ever having held a shard and were forgotten, since this coordinator leads; not stored.
    unused_nodes_forgotten: u64,
    /// New processes by where they come from; not stored.
    registration_limiter: registration_limiter::RegistrationLimiter,
    /// Workers of another cluster that asked to register; not stored.
    foreign_workers: foreign::ForeignWorkers,
    /// Why nothing can be stored for now, as the driver says.
    storage_problem: Option<String>,
    /// The keyspace that the last decision had no room for.
    next_in_turn: Option<KeyspaceName>,
    /// What is being planned; not stored.
    round: planning::Round,
    slice: Slice,
    work: Work,
    /// The last decision did so much else that it left planning to this one.
    planning_is_next: bool,
    outbox: Outbox,
}

impl Cluster {
    /// Lets keyspaces name these placement policies, instead of the shipped ones only.
    #[must_use]
    pub fn with_policies(self, policies: Policies) -> Cluster {
        Cluster { policies, ..self }
    }

    /// The settings it runs by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All keyspaces.
    pub fn keyspaces(&self) -> &BTreeMap<KeyspaceName, KeyspaceState> {
        &self.keyspaces
    }

    /// All nodes, dead ones included until they are removed.
    pub fn nodes(&self) -> &BTreeMap<NodeId, NodeState> {
        &self.nodes
    }

    /// All plans that are kept.
    pub fn plans(&self) -> &BTreeMap<PlanId, Plan> {
        &self.plans
    }

    /// What has to leave. The driver makes the writes durable before it does anything else.
    pub fn take_outbox(&mut self) -> Outbox {
        std::mem::take(&mut self.outbox)
    }

    /// Goes once through everything; `transaction` (drawn anew for each call) names what is committed.
    /// Returns when to call again if nothing happens before.
    pub fn decide(&mut self, at: Moment, transaction: TransactionId) -> Millis {
        let before = self.work;
        self.excuse_own_silence(at, at.now.since(self.promised));
        self.listened = at.now;
        self.forget_longest_lease(at);
        let wake = self.update_node_health(at);
        self.recheck_restored_shards(at);
        self.prove();
        let wake =
            wake.min(self.judge_held_back(at)).min(self.watch_unrest(at)).min(self.forget_ended_nodes(at));
        let overdue = self.check_pending_steps(at);
        self.begin_drains(at);
        self.tell_emptied(at);
        let again = self.advance(at, transaction);
        let ready = self.plan_in_turn(at, before);
        if self.work == before && !again && !ready {
            self.pack();
        }
        let wake = wake.min(self.next_plan_due()).min(self.next_copy_due()).min(overdue);
        let wake = wake.min(self.next_look(at));
        self.promised = if again || ready { at.now } else { wake };
        self.promised
    }

    /// What is kept for each replica takes no more room than it must, once nothing is under way. A map is packed in one
    /// piece, so that is done in decisions in which nothing else is, and what is much in several of them.
    fn pack(&mut self) {
        let mut room = limits::ENTRIES_PACKED;
        if self.keyspaces.values().all(|keyspace| keyspace.unsettled.is_empty()) {
            for keyspace in self.keyspaces.values_mut() {
                keyspace.observed.pack(&mut room);
                keyspace.since.pack(&mut room);
                keyspace.hosted.pack(&mut room);
            }
            self.nodes.values_mut().for_each(|node| node.orders.pack(&mut room));
        }
    }

    /// Tells of what is about nothing that has a name.
    fn notice(&mut self, alarm: bool, text: String) {
        let kind = if alarm { EventKind::Alarm } else { EventKind::Notice };
        self.tell(kind, About::all(), alarm, text);
    }

    /// Tells of what the coordinator did by itself.
    fn tell(&mut self, kind: EventKind, about: About, alarm: bool, text: String) {
        self.tell_event(Event { alarm, ..event(kind, about, text) });
    }

    /// Tells of what a node did.
    fn tell_of(&mut self, kind: EventKind, node: &NodeId, text: String) {
        self.tell_event(Event { by: Actor::Node(node.clone()), ..event(kind, About::node(node), text) });
    }

    /// What is logged is kept, too; not all that is kept is logged.
    fn tell_event(&mut self, event: Event) {
        self.outbox.notices.push(Notice { alarm: event.alarm, text: event.text.clone() });
        self.outbox.events.push(event);
    }

    /// Something about the shard may have become possible.
    fn wake_shard(&mut self, replica: &ReplicaKey) {
        if let Some(keyspace) = self.keyspaces.get_mut(&replica.keyspace) {
            keyspace.wake([replica.shard]);
        }
    }
}

#[cfg(test)]
mod tests;
