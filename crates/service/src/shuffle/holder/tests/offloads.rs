//! What goes to an object store, and when copies go.

use super::*;
use crate::shuffle::RangeId;
use crate::shuffle::plan::PlanRange;

/// A holder with an object store that leads slot 0 and has a batch of it, and the other replica.
fn with_objects() -> (Holder, NodeId, BatchKey) {
    let (mut holder, other) = holder();
    holder.settings.has_objects = true;
    let writer = Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: SHUFFLE, slot: PoolSlot(0), writer }, number: 1 };
    let batch = Arc::new(Batch {
        key: key.clone(),
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    });
    holder.handle(Millis(1), Event::Message(other.clone(), Message::Batch(batch)));
    holder.handle(Millis(1), Event::Stored(key.clone()));
    (holder, other, key)
}

fn plan(key: &BatchKey) -> Arc<Plan> {
    let needed = [(key.stream.slot, [(key.stream.writer.clone(), key.number)].into())].into();
    let range = PlanRange {
        id: RangeId(1),
        since: 0,
        begins: Bytes::default(),
        slot: key.stream.slot,
        records: 1,
        bytes: 1,
    };
    Arc::new(Plan { shuffle: SHUFFLE, winners: Default::default(), needed, ranges: vec![range] })
}

/// The disk fills, and the home says that the shuffle is sealed.
fn fills(holder: &mut Holder, key: &BatchKey, now: u64) -> Vec<Effect> {
    let stored = vec![(SHUFFLE, PoolSlot(0), 10)];
    let asks = holder.handle(Millis(now), Event::MakeRoom(stored));
    assert_eq!(asks, [Effect::Send(holder.me.clone(), Message::Ask(SHUFFLE))]);
    let word = Message::Word(SHUFFLE, Word::Sealed(plan(key)));
    holder.handle(Millis(now), Event::Message(holder.me.clone(), word))
}

fn receipt_of(effects: &[Effect]) -> BatchKey {
    let [Effect::Store(receipt)] = effects else { panic!("{effects:?}") };
    assert!(receipt.key.stream.writer.is_objects());
    receipt.key.clone()
}

#[test]
fn d6_copies_go_when_the_receipt_is_stored_and_the_objects_when_the_shuffle_ends() {
    let (mut holder, other, key) = with_objects();
    let slot = PoolSlot(0);
    assert_eq!(fills(&mut holder, &key, 2), [Effect::Offload(plan(&key), slot)]);
    let receipt =
        receipt_of(&holder.handle(Millis(3), Event::Offloaded(SHUFFLE, slot, OffloadOutcome::Durable)));
    assert!(holder.has(&key), "until the receipt is on the disk");
    assert_eq!(holder.handle(Millis(4), Event::Stored(receipt.clone())), [Effect::DropCopies(SHUFFLE, slot)]);
    assert!(!holder.has(&key) && holder.has(&receipt));
    let fetch = Message::Fetch(vec![key.clone(), key.clone()]);
    let passes = holder.handle(Millis(5), Event::Message(other.clone(), fetch));
    assert_eq!(passes, [Effect::Pass(other.clone(), receipt)], "a replica that lacks it gets the receipt");
    let slice = Slice { plan: plan(&key), range: 0, keys: None, from: 0, to: 1 };
    assert_eq!(holder.handle(Millis(5), Event::Read(7, slice.clone())), [Effect::Read(7, slice)]);
    let over = Message::Word(SHUFFLE, Word::Ended(Ended::Deleted));
    holder.handle(Millis(6), Event::Message(other, over));
    let effects = holder.handle(Millis(6), Event::Tick);
    assert!(effects.contains(&Effect::DeleteObjects(SHUFFLE, slot)), "{effects:?}");
    assert_eq!(holder.handle(Millis(7), Event::ObjectsDeleted(SHUFFLE, slot, false)), []);
    let again = holder.handle(Millis(1_007), Event::Tick);
    assert!(again.contains(&Effect::DeleteObjects(SHUFFLE, slot)), "{again:?}");
    holder.handle(Millis(1_008), Event::ObjectsDeleted(SHUFFLE, slot, true));
    let rest = holder.handle(Millis(200_000), Event::Tick);
    assert!(!rest.contains(&Effect::DeleteObjects(SHUFFLE, slot)), "{rest:?}");
}

#[test]
fn d6_while_the_object_store_refuses_copies_stay_and_it_is_asked_ever_less_often() {
    let (mut holder, _, key) = with_objects();
    let slot = PoolSlot(0);
    assert_eq!(fills(&mut holder, &key, 2), [Effect::Offload(plan(&key), slot)]);
    let (mut now, mut asked) = (2, Vec::new());
    for _ in 0..10 {
        assert_eq!(holder.handle(Millis(now), Event::Offloaded(SHUFFLE, slot, OffloadOutcome::Refused)), []);
        let begun = now;
        while !holder.handle(Millis(now), Event::Tick).contains(&Effect::Offload(plan(&key), slot)) {
            now += 1_000;
        }
        asked.push((now - begun) / 1_000);
    }
    assert_eq!(asked[..4], [1, 2, 4, 8]);
    assert!(asked.iter().all(|seconds| *seconds <= 61), "{asked:?}");
    assert!(holder.has(&key));
}

#[test]
fn a_replica_whose_disk_fills_asks_the_leader_of_the_slot_and_one_that_loads_takes_the_receipt_alone() {
    let (mut holder, other, key) = with_objects();
    let mut map = holder.map.as_ref().clone();
    map.generation += 1;
    map.places[0] =
        SlotPlace { epoch: Epoch(2), live: vec![other.clone()], loading: vec![holder.me.clone()] };
    holder.handle(Millis(2), Event::Map(map.into()));
    let asks = holder.handle(Millis(2), Event::MakeRoom(vec![(SHUFFLE, PoolSlot(0), 10)]));
    assert_eq!(asks, [Effect::Send(other.clone(), Message::MakeRoom(SHUFFLE, PoolSlot(0)))]);
    let receipts = Writer::Objects(BufferId { node: other.clone(), incarnation: Incarnation(4) });
    let receipt = Stream { writer: receipts, ..key.stream.clone() };
    let one = || Numbers::of_parts(1, BTreeSet::new()).unwrap();
    let lacking = Stream {
        writer: Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(2) }),
        ..key.stream.clone()
    };
    let has = Inventory::from([(receipt.clone(), one()), (lacking, one())]);
    let says = Message::Inventory { slot: PoolSlot(0), round: 0, asks: true, has };
    let effects = holder.handle(Millis(3), Event::Message(other.clone(), says));
    let fetch = Message::Fetch(vec![BatchKey { stream: receipt, number: 1 }]);
    assert!(effects.contains(&Effect::Send(other, fetch)), "{effects:?}");
}

#[test]
fn x13_objects_of_a_shuffle_that_nobody_knows_go_when_its_home_says_so() {
    let (mut holder, _, _) = with_objects();
    let (slot, left) = (PoolSlot(0), ShuffleId(9));
    let swept = holder.handle(Millis(2), Event::Tick);
    assert!(swept.contains(&Effect::ListObjects(slot)), "{swept:?}");
    let me = holder.me.clone();
    let asks = holder.handle(Millis(3), Event::ObjectsFound(vec![(left, slot), (left, slot)]));
    assert_eq!(asks, [Effect::Send(me.clone(), Message::Ask(left))]);
    let over = Message::Word(left, Word::Ended(Ended::Unknown));
    holder.handle(Millis(4), Event::Message(me, over));
    let effects = holder.handle(Millis(1_002), Event::Tick);
    assert!(effects.contains(&Effect::DeleteObjects(left, slot)), "{effects:?}");
}

/// A receipt of the other node.
fn receipt_by(other: &NodeId) -> (Arc<Batch>, BufferId) {
    let by = BufferId { node: other.clone(), incarnation: Incarnation(4) };
    let stream = Stream { shuffle: SHUFFLE, slot: PoolSlot(0), writer: Writer::Objects(by.clone()) };
    let key = BatchKey { stream, number: 1 };
    (Arc::new(Batch { key, durability: Durability::Disk, body: Body::Records(Tagged::new()) }), by)
}

/// The receipt comes, and is stored.
fn takes(holder: &mut Holder, other: &NodeId, receipt: &Arc<Batch>, now: u64) -> Vec<Effect> {
    holder.handle(Millis(now), Event::Message(other.clone(), Message::Batch(Arc::clone(receipt))));
    holder.handle(Millis(now), Event::Stored(receipt.key.clone()))
}

#[test]
fn d6_copies_stay_until_a_replica_has_seen_the_objects_of_another_process() {
    let (mut holder, other, key) = with_objects();
    holder.settings.inventory_ms = 1;
    let slot = PoolSlot(0);
    let (receipt, by) = receipt_by(&other);
    let sees = Effect::SeeObjects(SHUFFLE, slot, by.clone());
    let effects = takes(&mut holder, &other, &receipt, 10);
    assert_eq!(effects, [Effect::Send(other.clone(), Message::Stored(receipt.key.clone())), sees.clone()]);
    // It lacks a batch, and has not looked yet.
    let one = || Numbers::of_parts(1, BTreeSet::new()).unwrap();
    let two = Stream {
        writer: Writer::Buffer(BufferId { node: other.clone(), incarnation: Incarnation(2) }),
        ..key.stream.clone()
    };
    let has = Inventory::from([(receipt.key.stream.clone(), one()), (two.clone(), one())]);
    let says = Message::Inventory { slot, round: 0, asks: false, has };
    let hears = Event::Message(other.clone(), says);
    assert_eq!(holder.handle(Millis(10), hears.clone()), []);
    // The folder is not mounted, say.
    assert_eq!(holder.handle(Millis(11), Event::ObjectsSeen(SHUFFLE, slot, by.clone(), false)), []);
    assert!(holder.has(&key) && !holder.is_offloaded(SHUFFLE, slot));
    let fetch = Message::Fetch(vec![BatchKey { stream: two, number: 1 }]);
    assert_eq!(holder.handle(Millis(13), hears), [Effect::Send(other, fetch)]);
    let (mut now, mut rests) = (11, Vec::new());
    for _ in 0..4 {
        let begun = now;
        while !holder.handle(Millis(now), Event::Tick).contains(&sees) {
            now += 100;
        }
        rests.push((now - begun) / 1_000);
        holder.handle(Millis(now), Event::ObjectsSeen(SHUFFLE, slot, by.clone(), false));
    }
    assert!(rests[0] >= 1 && rests[1] >= 2 && rests[2] >= 4 && rests[3] >= 8, "{rests:?}");
    let seen = holder.handle(Millis(now), Event::ObjectsSeen(SHUFFLE, slot, by, true));
    assert_eq!(seen, [Effect::DropCopies(SHUFFLE, slot)]);
    assert!(!holder.has(&key) && holder.is_offloaded(SHUFFLE, slot));
}

#[test]
fn a_batch_that_comes_late_to_a_part_of_the_object_store_goes_again() {
    let (mut holder, other, key) = with_objects();
    let (receipt, by) = receipt_by(&other);
    takes(&mut holder, &other, &receipt, 10);
    holder.handle(Millis(11), Event::ObjectsSeen(SHUFFLE, PoolSlot(0), by, true));
    let batch = Batch { key: key.clone(), ..receipt.as_ref().clone() };
    holder.handle(Millis(12), Event::Message(other.clone(), Message::Batch(Arc::new(batch))));
    let stored = holder.handle(Millis(13), Event::Stored(key.clone()));
    let tells = Effect::Send(other, Message::Stored(key.clone()));
    assert_eq!(stored, [Effect::DropCopies(SHUFFLE, PoolSlot(0)), tells]);
    assert!(!holder.has(&key));
}

#[test]
fn a_receipt_counts_at_a_start_if_there_are_no_copies() {
    for has_copies in [false, true] {
        let (holder, other, key) = with_objects();
        let (receipt, by) = receipt_by(&other);
        let keys = [receipt.key.clone()].into_iter().chain(has_copies.then(|| key.clone()));
        let stored = Stored { batches: keys.map(|key| (key, None)).collect(), ..Stored::default() };
        let (me, settings, map) = (holder.me.clone(), holder.settings.clone(), holder.map.clone());
        let mut holder = Holder::recover(Millis(0), (me, Incarnation(2)), settings, map, stored);
        assert_eq!(holder.is_offloaded(SHUFFLE, PoolSlot(0)), !has_copies);
        let effects = holder.handle(Millis(0), Event::Tick);
        assert_eq!(effects.contains(&Effect::SeeObjects(SHUFFLE, PoolSlot(0), by)), has_copies);
    }
}

#[test]
fn x8_a_replica_that_loads_is_not_ready_by_a_receipt_of_objects_that_it_has_not_seen() {
    let (mut holder, other) = loading();
    holder.settings.has_objects = true;
    let slot = PoolSlot(0);
    holder.handle(Millis(0), Event::Logged(slot, Epoch(7)));
    let (receipt, by) = receipt_by(&other);
    takes(&mut holder, &other, &receipt, 1);
    let says = |holder: &mut Holder, now| {
        holder.handle(Millis(now), Event::Tick);
        let has =
            Inventory::from([(receipt.key.stream.clone(), Numbers::of_parts(1, BTreeSet::new()).unwrap())]);
        let says = Message::Inventory { slot, round: holder.round, asks: false, has };
        holder.handle(Millis(now), Event::Message(other.clone(), says))
    };
    assert_eq!(says(&mut holder, 10_000), []);
    holder.handle(Millis(10_001), Event::ObjectsSeen(SHUFFLE, slot, by, true));
    assert_eq!(says(&mut holder, 20_000), [Effect::Ready(slot, Epoch(7))]);
}

#[test]
fn open_shuffles_and_silent_homes_do_not_hold_up_sealed_ones_and_are_asked_for_once() {
    let (mut holder, other, key) = with_objects();
    let mut map = holder.map.as_ref().clone();
    map.generation += 1;
    map.places.push(map.places[0].clone());
    holder.handle(Millis(1), Event::Map(map.into()));
    let open = (2..2_002).flat_map(|shuffle| [0, 1].map(|slot| (ShuffleId(shuffle), PoolSlot(slot))));
    let open: Vec<(ShuffleId, PoolSlot)> = open.collect();
    for (shuffle, slot) in &open {
        let stream = Stream { shuffle: *shuffle, slot: *slot, ..key.stream.clone() };
        let key = BatchKey { stream, number: 1 };
        let batch = Batch { key: key.clone(), ..receipt_by(&other).0.as_ref().clone() };
        holder.handle(Millis(1), Event::Message(other.clone(), Message::Batch(Arc::new(batch))));
        holder.handle(Millis(1), Event::Stored(key));
    }
    let all = open.iter().map(|(shuffle, slot)| (*shuffle, *slot, 100));
    let stored = all.chain([(SHUFFLE, PoolSlot(0), 10)]).collect();
    let mut effects = holder.handle(Millis(2), Event::MakeRoom(stored));
    let (me, mut asked) = (holder.me.clone(), 0);
    loop {
        let shuffle = match &effects[..] {
            [Effect::Send(to, Message::Ask(shuffle))] if *to == me => *shuffle,
            _ => break,
        };
        asked += 1;
        if shuffle == ShuffleId(7) {
            // Its home is silent.
            let later = holder.handle(Millis(10_000), Event::Tick).into_iter();
            effects = later.filter(|one| matches!(one, Effect::Send(_, Message::Ask(_)))).collect();
            continue;
        }
        let word = match shuffle {
            SHUFFLE => Word::Sealed(plan(&key)),
            _ => Word::Failed(crate::shuffle::Failure::Lost),
        };
        let word = Event::Message(me.clone(), Message::Word(shuffle, word));
        effects = holder.handle(Millis(3), word);
    }
    assert_eq!(effects, [Effect::Offload(plan(&key), PoolSlot(0))], "after {asked} questions");
    assert_eq!(asked, 2_001);
}

#[test]
fn what_cannot_be_read_here_does_not_rest_the_object_store() {
    let (mut holder, _, key) = with_objects();
    let slot = PoolSlot(0);
    assert_eq!(fills(&mut holder, &key, 2), [Effect::Offload(plan(&key), slot)]);
    assert_eq!(holder.handle(Millis(3), Event::Offloaded(SHUFFLE, slot, OffloadOutcome::Unreadable)), []);
    let again = holder.handle(Millis(4), Event::MakeRoom(vec![(SHUFFLE, slot, 10)]));
    assert_eq!(again, [Effect::Offload(plan(&key), slot)]);
}

#[test]
fn x13_objects_of_a_pool_that_was_deleted_go() {
    let (mut holder, _, key) = with_objects();
    let slot = PoolSlot(0);
    fills(&mut holder, &key, 2);
    let receipt =
        receipt_of(&holder.handle(Millis(3), Event::Offloaded(SHUFFLE, slot, OffloadOutcome::Durable)));
    holder.handle(Millis(4), Event::Stored(receipt));
    let effects = holder.handle(Millis(5), Event::SlotDeleted(slot));
    assert_eq!(effects, [Effect::DropSlot(slot), Effect::DeleteObjects(SHUFFLE, slot)]);
}
