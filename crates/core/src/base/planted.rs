//! Planted bugs: each switches one invariant off, so that the simulator can prove that it would notice.
//!
//! Without the feature `planted-bugs`, which nothing but the simulators ask for, [`is`] is a constant `false` and nothing
//! can be planted. With it, nothing is until a test plants a bug for its own thread.

/// An invariant that a simulator switches off. `planted::is(Planted::X)` in a condition is always false outside the simulators:
/// read the condition without it. Bugs of which core knows nothing are planted in the simulator's own service, store and driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Planted {
    /// O2: a leader that is to leave goes on writing under its old epoch while it drains.
    O2,
    /// O4: a worker counts its lease from the answer, not from the question.
    O4,
    /// O5: the next owner does not wait for the last one.
    O5,
    /// O6: a silent node is declared dead before its lease is over.
    O6,
    /// O7: "mine all along" does not ask the lease.
    O7,
    /// O8: children open without waiting for their parents.
    O8,
    /// O10: storage takes what a deposed coordinator commits, and that one does not look at its session.
    O10,
    /// O11: a replica that is to move leaves before the next one is ready.
    O11,
    /// C4: a coordinator does not look at its session before it grants, and hears of no end of it.
    C4,
    /// M2: a table takes a map that is behind the one that it has.
    M2,
    /// M3: maps are published before they are durable.
    M3,
    /// W4: a subscriber that has missed something is sent only what came later.
    W4,
    /// D1: what the owner wrote last is not handed over.
    D1,
    /// D2: a leader answers reads without asking whether it still is the owner.
    D2,
    /// D3: a deletion is not handed over.
    D3,
    /// D4: a node answers for keys beside its ranges.
    D4,
    /// D7: a replica is deleted as soon as it has unloaded.
    D7,
    /// D10: a durable replica acknowledges what it alone has stored.
    AckedByOne,
    /// D10: what a node has damaged, or has no more, is taken for a whole copy.
    NotIntact,
    /// D10: a replica is resumed by what lies on the store of another node.
    OtherStore,
    /// D10: a copy without which others went on is one again as soon as its node is back.
    OvertakenCopy,
    /// D10: the one copy that is left goes on without the others, though it may be gone, too.
    UnheardCopy,
    /// D10: those that go on without a copy do so under the epoch that it has, too.
    EpochOfSurvivors,
    /// D10: replicas that load begin before their leader knows of them.
    Announced,
    /// D10: the parents of a split or merge let go before all copies of the children have their last writes.
    LastWrites,
    /// D10: durable replicas end with their processes, be it the last copy.
    LastCopy,
    /// D7: data is deleted though no replica serves its shard under its epoch or a later one.
    KeptEpoch,
    /// L1: replicas of dead nodes stay in the map.
    L1,
    /// L3: a subscriber that has a map gets no later one.
    L3,
    /// L8: a drain empties nothing.
    L8,
    /// R5: no shard is ever set aside.
    R5,
    /// M7: a change begins on a node that was closed after the plan was made.
    ClosedNode,
    /// R5: a plan is carried out for a shard that was set aside after the plan was made.
    AsideShard,
    /// O3: a coordinator takes the report on a replica from any node and any incarnation.
    AnyReporter,
    /// R6: a coordinator does not excuse the silence of its nodes while it was asleep itself.
    OwnSleep,
    /// R4: the brake allows one loss more.
    BrakeMargin,
    /// W1: a coordinator takes a beat that a later one has overtaken.
    LateBeat,
    /// W1: a worker takes orders that later ones have overtaken.
    OvertakenOrders,
    /// O1: a worker renews its lease from orders that it refuses.
    RefusedLease,
    /// O6: a worker keeps the lease of an incarnation that has ended.
    EndedLease,
    /// O7: "mine all along" does not compare epochs.
    TenureEpoch,
    /// O11: the lead goes to a follower that has not said that it serves.
    UnknownHeir,
    /// L7: a coordinator never tells a worker which replicas are in no map any more.
    Removals,
    /// W4: a coordinator that stands by keeps its history over a gap.
    StandbyGap,
    /// D11: a worker and a coordinator take each other for their own, whichever cluster they are of.
    AnyCluster,
    /// O1: a backup is restored without waiting for the leases of before.
    RestoreWait,
    /// D10: a leader takes an older state for the latest, whatever workers and coordinators know.
    OlderState,
    /// O6: a new leader does not wait for the leases that the last one may have granted.
    FormerLeases,
    /// M2: a coordinator that has never heard of a keyspace makes others forget it.
    Horizon,
    /// M2: a table takes the map of a keyspace for a later one of the keyspace of that name which was deleted before.
    Lives,
    /// O1: the name of an exclusive keyspace is given out again as soon as that is deleted.
    FreeName,
    /// Z1: a coordinator does not compare the token of a message with that of the process that registered.
    AnySession,
    /// O1: a partition is registered again while the one of that name that was unregistered still unloads.
    TwicePartition,
    /// T7: half of the metadata servers count as a majority.
    Majority,
    /// T8: a metadata server answers without a look at the head.
    Head,
    /// T7: a change that waits for long is dropped while its swap may come yet.
    Stale,
    /// T8: a metadata server that is not in the list removes its files while its swap into the list may come yet.
    Leave,
    /// T7: a map that is to be created is dropped while its swap may come yet.
    Creation,
    /// S2: with the session with the coordination service, a dataset node loses all that it knew of its peers.
    S2,
    /// S9: a dataset node publishes nothing again when a new session begins.
    S9,
    /// S10: clients get a version of which any partition is anywhere.
    S10,
    /// S11: of two dataset nodes that took the same seat none yields.
    S11,
    /// S12: a partition is published when its loading begins.
    S12,
    /// S13: a peer answers only for the version that its own clients get.
    S13,
    /// S14: clients get any version that is whole, be it an earlier one.
    S14,
    /// S15: a version goes while a request reads from it.
    S15,
    /// S15: a version goes though peers ask for it.
    Timer,
    /// S16: after an error of a peer the node asks no other.
    S16,
    /// S18: a dataset node under a coordinator lets go of a partition as soon as it hears that another has it.
    S18,
    /// S18: what the settings of a dataset say of replication goes over what a person has set.
    Theirs,
    /// S18: a dataset node that starts while its coordinator is away knows nothing of its orders.
    Forgets,
    /// S19: a version that failed is not tried again.
    S19,
    /// Z5: a dataset node gives its clients what its peers have, whether or not its own source has it.
    AnySource,
    /// D5: a peer answers from the version that it has in front, whichever it is asked for.
    D5,
    /// C3: a head that is no later, but of a keyspace that was created anew, says that a change has failed.
    Anew,
    /// D1: a leader requires a follower no more as soon as it has asked for a set without it.
    EarlyLeaver,
    /// D1: a coordinator grants an in-sync set that was asked for under an earlier configuration.
    OldConfiguration,
    /// D1: a leader asks for newcomers before its first entry is committed.
    EarlyNewcomer,
    /// D1: a coordinator makes a replica the leader that is not in sync.
    OutOfSet,
    /// D1: a follower acknowledges entries that are not on its disk.
    UnsyncedReply,
    /// D1: a follower takes entries without a look at the entry before.
    UncheckedEntry,
    /// O2: a follower takes entries of a leader that was replaced.
    OldEpoch,
    /// D2: a new leader does not wait for the end of its promise.
    PromiseNotWaitedOut,
    /// D2: a process that starts forgets what it has promised before.
    PromiseForgotten,
    /// D2: a leader answers reads whatever was promised to it.
    UnpromisedRead,
    /// D2: a leader sends clocks back whatever was promised to it.
    UnpromisedEcho,
    /// D1: a follower cuts its log behind each append, be it committed.
    CutCommitted,
    /// D1: a leader whose wish for a newcomer is refused requires that one no more, though a copy of the wish may yet be granted.
    RefusedWish,
    /// D2: a leader that has not begun says that it has let go, though leaders before it may not have.
    HastyLetGo,
    /// D2: what a leader publishes for readers lasts longer than its promises.
    LateReaders,
    /// D1: a replica that leads no more takes any committed entry at the place of a write for that write.
    AnyEntry,
    /// L1: a replica that leads no more waits for an entry at the place of a write, though no later entry can be that write.
    AwaitedEntry,
    /// D1: a leader takes the disk of a read replica for that of a member.
    CountedReader,
    /// D1: a leader asks for a read replica to be in sync.
    AskedReader,
    /// D2: a read replica answers linearizable reads.
    ReaderLeads,
    /// L1: a follower that has left the in-sync set again and again is asked in as soon as it answers.
    NoRest,
    /// L1: a leader lets go of the log behind a snapshot that it sends, however far the copy is.
    OverrunCopy,
    /// D1: a follower goes on with the part of a snapshot that it has, whatever the position of the one that comes.
    AnyPartial,
    /// L1: a replicated leader that is to lead under a later epoch drains before it goes on.
    DrainedLeader,
    /// L3: a coordinator tells routers of a node that was forgotten and has come back, and then that it is gone.
    ForgottenNode,
    /// O8: a child of a table opens before its parents' logs have ended.
    EarlyChild,
    /// D1: a child of a table acknowledges what follows on a base that is not on its disk.
    UnstoredBase,
    /// D10: the parents of a table's children are removed before each child has its base.
    DroppedBase,
    /// D1: a child of a table takes a snapshot for whole without what its parent changed while the rows came.
    SkippedAside,
    /// D1: a child of a table knows nothing of what its parents have answered, and does again what is asked for again.
    LostOutcomes,
    /// D2: a replica's promise to a later leader ends when an earlier one says that it has let go.
    AnyLetGo,
    /// T16: a leader of a table that hands over says that its heir is ready while writes are under way.
    HastyHeir,
    /// D3: the clock of a table's shard goes back to that of a leader which is behind, and rows come back whose time had come.
    ExpiryBack,
    /// D1: each replica of a table takes its own clock for that of the shard.
    OwnClock,
    /// D1: a reader of a table's changes compares indexes alone, and skips those of a later epoch.
    FeedByIndex,
    /// X6: a buffer says that an attempt is stored when one node fewer than needed has it.
    AckedBelowR,
    /// X6: batches of a shuffle on disk are said to be stored before they are synced.
    AckedUnsynced,
    /// X7: a shuffle is sealed with each whole attempt of a partition.
    TwoWinners,
    /// D6: a holder stores a batch that it has once more.
    StoredTwice,
    /// D6: a holder serves, counts and divides whether or not batches are missing.
    GapUnnoticed,
    /// X7: records of attempts that did not win are read.
    LoserRead,
    /// D6: what was divided is replaced by two decisions, not by one.
    TwoSteps,
    /// O2: a replica takes the decisions of a leader that was replaced.
    StaleAppend,
    /// X12: a node hands over nothing of what it has stored in the place of another.
    StandInForgotten,
    /// X12: a node that the map names no more drops what it has before its successors have it.
    DroppedEarly,
    /// D6: local copies go when they are to be put into the object store, not when they are durable there.
    DroppedBeforeObject,
    /// X7: a shuffle is sealed though a partition has no whole attempt.
    SealedWithout,
    /// X13: of a slot's replicas only the first one cuts partitions where the order of the range says.
    OwnCut,
    /// R1: a buffer takes a frame whenever its memory has room for it, whatever the share of its shuffle is.
    NoShares,
    /// R1: a batch is sent again to a node that is busy, where the node would be asked whether it has it.
    ResentWhileBusy,
    /// D6: a buffer combines records of equal keys whatever attempts they are of.
    CombinedAcross,
}

impl Planted {
    /// Those that the simulator of metadata servers must catch.
    pub const METADATA: [Planted; 6] =
        [Planted::Majority, Planted::Head, Planted::Stale, Planted::Leave, Planted::Creation, Planted::Anew];

    /// Those that the simulator of replicas of tables must catch.
    pub const REPLICATION: [Planted; 23] = [
        Planted::EarlyLeaver,
        Planted::OldConfiguration,
        Planted::EarlyNewcomer,
        Planted::OutOfSet,
        Planted::UnsyncedReply,
        Planted::UncheckedEntry,
        Planted::OldEpoch,
        Planted::PromiseNotWaitedOut,
        Planted::PromiseForgotten,
        Planted::UnpromisedRead,
        Planted::UnpromisedEcho,
        Planted::CutCommitted,
        Planted::RefusedWish,
        Planted::HastyLetGo,
        Planted::LateReaders,
        Planted::AnyEntry,
        Planted::AwaitedEntry,
        Planted::CountedReader,
        Planted::AskedReader,
        Planted::ReaderLeads,
        Planted::NoRest,
        Planted::OverrunCopy,
        Planted::AnyPartial,
    ];

    /// Those that the simulator of shuffles must catch.
    pub const SHUFFLES: [Planted; 16] = [
        Planted::AckedBelowR,
        Planted::AckedUnsynced,
        Planted::TwoWinners,
        Planted::StoredTwice,
        Planted::GapUnnoticed,
        Planted::LoserRead,
        Planted::TwoSteps,
        Planted::StaleAppend,
        Planted::StandInForgotten,
        Planted::DroppedEarly,
        Planted::DroppedBeforeObject,
        Planted::SealedWithout,
        Planted::OwnCut,
        Planted::NoShares,
        Planted::ResentWhileBusy,
        Planted::CombinedAcross,
    ];

    /// Those that the simulator of dataset nodes must catch.
    pub const DATASETS: [Planted; 16] = [
        Planted::S2,
        Planted::S9,
        Planted::S10,
        Planted::S11,
        Planted::S12,
        Planted::S13,
        Planted::S14,
        Planted::S15,
        Planted::Timer,
        Planted::S16,
        Planted::S18,
        Planted::Theirs,
        Planted::Forgets,
        Planted::S19,
        Planted::AnySource,
        Planted::D5,
    ];

    /// Those that the simulator of the cluster must catch.
    pub const CLUSTER: [Planted; 65] = [
        Planted::O2,
        Planted::O4,
        Planted::O5,
        Planted::O6,
        Planted::O7,
        Planted::O8,
        Planted::O10,
        Planted::O11,
        Planted::C4,
        Planted::M2,
        Planted::M3,
        Planted::W4,
        Planted::D1,
        Planted::D2,
        Planted::D3,
        Planted::D4,
        Planted::D7,
        Planted::AckedByOne,
        Planted::NotIntact,
        Planted::OtherStore,
        Planted::UnheardCopy,
        Planted::EpochOfSurvivors,
        Planted::OvertakenCopy,
        Planted::Announced,
        Planted::LastWrites,
        Planted::LastCopy,
        Planted::KeptEpoch,
        Planted::L1,
        Planted::L3,
        Planted::L8,
        Planted::R5,
        Planted::ClosedNode,
        Planted::AsideShard,
        Planted::AnyReporter,
        Planted::OwnSleep,
        Planted::BrakeMargin,
        Planted::LateBeat,
        Planted::OvertakenOrders,
        Planted::RefusedLease,
        Planted::EndedLease,
        Planted::TenureEpoch,
        Planted::UnknownHeir,
        Planted::Removals,
        Planted::StandbyGap,
        Planted::AnyCluster,
        Planted::RestoreWait,
        Planted::OlderState,
        Planted::FormerLeases,
        Planted::Horizon,
        Planted::Lives,
        Planted::FreeName,
        Planted::TwicePartition,
        Planted::AnySession,
        Planted::EarlyChild,
        Planted::UnstoredBase,
        Planted::DroppedBase,
        Planted::LostOutcomes,
        Planted::SkippedAside,
        Planted::DrainedLeader,
        Planted::ForgottenNode,
        Planted::AnyLetGo,
        Planted::HastyHeir,
        Planted::ExpiryBack,
        Planted::OwnClock,
        Planted::FeedByIndex,
    ];
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants a bug for this thread, or takes it out.
    pub fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }

    /// Whether `bug` is planted on this thread. Without the feature `planted-bugs`, so outside the simulators, always false.
    pub fn is(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::{is, plant};

/// Whether `bug` is planted: always false outside the simulators, so the compiler leaves the condition out.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is(_bug: Planted) -> bool {
    false
}
