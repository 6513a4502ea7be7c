use super::*;
use crate::shuffle::bounds::Bounds;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::Tagged;
use crate::shuffle::{Durability, TaskId};

mod offloads;

const SHUFFLE: ShuffleId = ShuffleId(1);

fn holder() -> (Holder, NodeId) {
    let [me, other] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
    let place = SlotPlace { epoch: Epoch(1), live: vec![me.clone(), other.clone()], loading: Vec::new() };
    let nodes = vec![me.clone(), other.clone()];
    let map =
        PoolMap { generation: 1, replicas: 2, places: vec![place], nodes, no_stand_ins: Default::default() };
    let who = (me, Incarnation(1));
    (Holder::recover(Millis(0), who, Settings::default(), map.into(), Stored::default()), other)
}

#[test]
fn a_batch_that_found_no_room_is_stored_when_it_comes_again() {
    let (mut holder, sender) = holder();
    let writer = Writer::Buffer(BufferId { node: sender.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot: PoolSlot(0), writer }, number: 1 };
    let batch = Arc::new(Batch {
        key: key.clone(),
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    });
    let comes = Event::Message(sender.clone(), Message::Batch(batch.clone()));
    assert_eq!(holder.handle(Millis(1), comes.clone()), [Effect::Store(batch.clone())]);
    assert_eq!(holder.handle(Millis(2), comes.clone()), [], "it is being stored");
    let asks = Event::Message(sender.clone(), Message::AskStored(key.clone(), AskOrder::Behind));
    let says = |why| [Effect::Send(sender.clone(), Message::NotStored(key.clone(), why))];
    assert_eq!(holder.handle(Millis(2), asks.clone()), says(WhyNotStored::Soon));
    assert_eq!(holder.handle(Millis(3), Event::NotStored(key.clone())), says(WhyNotStored::Full));
    assert_eq!(holder.handle(Millis(3), asks.clone()), says(WhyNotStored::Unknown));
    let overtakes = Event::Message(sender.clone(), Message::AskStored(key.clone(), AskOrder::Ahead));
    assert_eq!(holder.handle(Millis(3), overtakes), says(WhyNotStored::Soon), "it may be under way");
    assert!(holder.has_nothing_of(ShuffleId(1)));
    assert_eq!(holder.handle(Millis(4), comes), [Effect::Store(batch)]);
    let stored = holder.handle(Millis(5), Event::Stored(key.clone()));
    assert_eq!(stored, [Effect::Send(sender.clone(), Message::Stored(key.clone()))]);
    assert_eq!(holder.handle(Millis(6), asks), stored);
}

#[test]
fn d6_a_replica_that_lacks_what_it_is_to_count_or_to_divide_says_so_unless_its_disk_is_full() {
    let (mut holder, other) = holder();
    let slot = PoolSlot(0);
    let writer = Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: SHUFFLE, slot, writer: writer.clone() }, number: 1 };
    let upto = BTreeMap::from([(writer, 1)]);
    let plan = Plan {
        shuffle: SHUFFLE,
        winners: Arc::default(),
        needed: [(slot, upto.clone())].into(),
        ranges: Vec::new(),
    };
    let (task, tags) = (TaskId { epoch: Epoch(1), number: 1 }, BTreeMap::new());
    let (to, durability) = (Arc::new(Bounds::stashes(1)), Durability::Memory);
    let division = Division { task, shuffle: SHUFFLE, slot, tags, upto, to, durability };
    let orders = [Message::Count(Epoch(1), plan.into(), slot), Message::Divide(division.into())];
    let says = |holder: &mut Holder, now: u64| {
        let order = |order: &Message| Event::Message(other.clone(), order.clone());
        let effects = orders.iter().flat_map(|one| holder.handle(Millis(now), order(one)));
        effects.filter(|effect| *effect == Effect::Send(other.clone(), Message::Lacks(SHUFFLE, slot))).count()
    };
    let task_ms = holder.settings.task_ms;
    assert_eq!(says(&mut holder, 1), 2);
    holder.handle(Millis(2), Event::NotStored(key.clone()));
    assert_eq!(says(&mut holder, 3), 0, "others may give it");
    assert_eq!(says(&mut holder, 2 + task_ms), 2);
    let batch = Batch { key: key.clone(), durability, body: Body::Records(Tagged::new()) };
    let later = 3 + task_ms;
    holder.handle(Millis(later), Event::Message(other.clone(), Message::Batch(batch.into())));
    holder.handle(Millis(later), Event::Stored(key));
    assert_eq!(says(&mut holder, later), 0, "all of it is here");
}

/// A holder that loads slot 0 from the other node.
fn loading() -> (Holder, NodeId) {
    let (mut holder, other) = holder();
    let mut map = holder.map.as_ref().clone();
    map.generation += 1;
    map.places[0] =
        SlotPlace { epoch: Epoch(7), live: vec![other.clone()], loading: vec![holder.me.clone()] };
    holder.handle(Millis(0), Event::Map(map.into()));
    (holder, other)
}

/// What it does when the replica in `Live` has said in a round that it has nothing.
fn round(holder: &mut Holder, other: &NodeId, now: u64) -> Vec<Effect> {
    holder.handle(Millis(now), Event::Tick);
    let has = Inventory::new();
    let says = Message::Inventory { slot: PoolSlot(0), round: holder.round, asks: false, has };
    holder.handle(Millis(now), Event::Message(other.clone(), says))
}

#[test]
fn o2_a_replica_that_loads_anew_is_not_ready_by_what_an_earlier_stay_had_taken() {
    let (mut holder, other) = loading();
    holder.handle(Millis(0), Event::Logged(PoolSlot(0), Epoch(7)));
    assert_eq!(round(&mut holder, &other, 10_000), [Effect::Ready(PoolSlot(0), Epoch(7))]);
    assert_eq!(holder.handle(Millis(10_000), Event::LoadBegins(PoolSlot(0))), []);
    assert_eq!(round(&mut holder, &other, 20_000), []);
    holder.handle(Millis(20_000), Event::Logged(PoolSlot(0), Epoch(7)));
    assert_eq!(round(&mut holder, &other, 30_000), [Effect::Ready(PoolSlot(0), Epoch(7))]);
}

#[test]
fn a_slot_of_a_pool_that_was_deleted_goes_though_nobody_else_has_it() {
    let (mut holder, sender) = holder();
    let writer = Writer::Buffer(BufferId { node: sender.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot: PoolSlot(0), writer }, number: 1 };
    let batch = Arc::new(Batch {
        key: key.clone(),
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    });
    holder.handle(Millis(1), Event::Message(sender, Message::Batch(batch)));
    holder.handle(Millis(1), Event::Stored(key));
    let effects = holder.handle(Millis(2), Event::SlotDeleted(PoolSlot(0)));
    assert_eq!(effects, [Effect::DropSlot(PoolSlot(0))]);
    assert!(holder.slots().is_empty());
}

#[test]
fn d7_a_former_replica_has_the_slot_until_each_replica_in_live_has_all_of_it() {
    let (mut holder, other) = holder();
    let slot = PoolSlot(0);
    assert!(!holder.has_slot(slot) && !holder.has_slots());
    let writer = Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot, writer }, number: 1 };
    let batch = Arc::new(Batch {
        key: key.clone(),
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    });
    holder.handle(Millis(1), Event::Message(other.clone(), Message::Batch(batch)));
    assert!(holder.has_slot(slot) && holder.has_slots(), "it is being stored");
    holder.handle(Millis(1), Event::Stored(key.clone()));
    holder.handle(Millis(1), Event::Logged(slot, Epoch(1)));
    let mut map = holder.map.as_ref().clone();
    map.generation += 1;
    map.replicas = 1;
    map.places[0] = SlotPlace { epoch: Epoch(2), live: vec![other.clone()], loading: Vec::new() };
    holder.handle(Millis(2), Event::Map(map.into()));
    assert_eq!(round(&mut holder, &other, 10_000), [], "the replica has nothing of it");
    assert!(holder.has_slot(slot) && holder.has_slots());
    holder.handle(Millis(20_000), Event::Tick);
    let has = Inventory::from([(key.stream.clone(), Numbers::of_parts(1, BTreeSet::new()).unwrap())]);
    let says = Message::Inventory { slot, round: holder.round, asks: false, has };
    let effects = holder.handle(Millis(20_000), Event::Message(other, says));
    assert_eq!(effects, [Effect::DropSlot(slot)]);
    assert!(!holder.has_slot(slot) && !holder.has_slots());
}

#[test]
fn r1_a_replica_fetches_what_another_one_has_had_for_some_rounds_and_one_that_loads_at_once() {
    let fetched = |holder: &mut Holder, other: &NodeId, now: u64, upto: u64| {
        let writer = Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(1) });
        let stream = Stream { shuffle: SHUFFLE, slot: PoolSlot(0), writer };
        let has = Inventory::from([(stream, Numbers::of_parts(upto, BTreeSet::new()).unwrap())]);
        let says = Message::Inventory { slot: PoolSlot(0), round: 0, asks: false, has };
        let effects = holder.handle(Millis(now), Event::Message(other.clone(), says));
        let fetches = effects.into_iter().filter_map(|effect| match effect {
            Effect::Send(_, Message::Fetch(keys)) => Some(keys),
            _ => None,
        });
        fetches.flatten().map(|key| key.number).collect::<Vec<u64>>()
    };
    let (mut holder, other) = holder();
    assert!(fetched(&mut holder, &other, 10, 2).is_empty(), "they may be on their way");
    assert!(fetched(&mut holder, &other, 2_000, 3).is_empty());
    assert_eq!(fetched(&mut holder, &other, 3_010, 4), [1, 2]);
    assert_eq!(fetched(&mut holder, &other, 5_000, 5), [1, 2], "of which it has heard nothing yet");
    assert_eq!(fetched(&mut holder, &other, 6_010, 5), [1, 2, 3, 4]);
    let (mut holder, other) = loading();
    assert_eq!(fetched(&mut holder, &other, 10, 2), [1, 2]);
}

#[test]
fn a_round_says_what_is_here_of_some_slots_in_each_call_and_of_each_slot_once() {
    let (mut holder, other) = holder();
    let mut map = holder.map.as_ref().clone();
    map.generation += 1;
    map.places = vec![map.places[0].clone(); 3];
    holder.handle(Millis(0), Event::Map(map.into()));
    let writer = Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(1) });
    for shuffle in 0..5_000 {
        for slot in [0, 2].map(PoolSlot) {
            let stream = Stream { shuffle: ShuffleId(shuffle), slot, writer: writer.clone() };
            holder.take_up(&BatchKey { stream, number: 1 }, None);
        }
    }
    let told = |holder: &mut Holder, now: u64| {
        let slot = |effect: Effect| match effect {
            Effect::Send(_, Message::Inventory { slot, asks: true, .. }) => Some(slot.0),
            _ => None,
        };
        holder.handle(Millis(now), Event::Tick).into_iter().filter_map(slot).collect::<Vec<u32>>()
    };
    assert_eq!(
        (told(&mut holder, 10), holder.wake_at()),
        (vec![0], Millis(0)),
        "it is more than one call says"
    );
    // The next round waits for the end of this one, however late that is.
    let late = 10 + 5 * holder.settings.inventory_ms;
    assert_eq!(told(&mut holder, late), [1, 2]);
    assert_eq!(holder.wake_at(), Millis(late + holder.settings.inventory_ms));
    assert!(told(&mut holder, late).is_empty());
}
