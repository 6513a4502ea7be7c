use super::*;
use partage_core::base::id::Incarnation;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::partition::CutAt;
use partage_service::shuffle::plan::Placed;
use partage_service::shuffle::record::{Body, Stream, Tagged};
use partage_service::shuffle::{BufferId, Durability, Writer};

fn held(number: u64) -> Arc<Batch> {
    let node = NodeId::new("a").unwrap();
    let writer = Writer::Buffer(BufferId { node, incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot: PoolSlot(0), writer }, number };
    Arc::new(Batch { key, durability: Durability::Disk, body: Body::Records(Tagged::new()) })
}

fn batch(number: u64) -> Packet {
    Packet::Message(Message::Batch(held(number)))
}

/// So many records, of which each takes so much memory.
fn records(count: usize, memory: u64) -> OrderedRecords {
    let of = |value: usize| {
        let value = vec![0; value].into();
        let one = Placed { key: Vec::new().into(), partition: 0, frame: 1, index: 0, value };
        OrderedRecords::of(&vec![one; count]).unwrap()
    };
    let memory = usize::try_from(memory).unwrap();
    // Longer values have longer lengths.
    let found =
        (24..30).map(|around| of(memory - around)).find(|all| all.memory() == (memory * count) as u64);
    found.unwrap()
}

#[tokio::test]
async fn a_batch_that_waits_is_not_added_again_and_one_that_was_sent_may_come_again() {
    let own = Peer { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    let transport = WireTransport::new(own, Timing::default(), Handle::current());
    let to = NodeId::new("b").unwrap();
    let waiting = || lock(&lock(&transport.lanes)[&to].waiting).batches.len();
    for number in [1, 1, 2, 1] {
        transport.send(&to, batch(number));
    }
    assert_eq!(waiting(), 2);
    // The node has no address: what waits is dropped.
    while waiting() > 0 {
        tokio::task::yield_now().await;
    }
    transport.send(&to, batch(1));
    assert_eq!(waiting(), 1);
}

#[tokio::test]
async fn r1_what_waits_for_all_nodes_has_one_bound_and_one_packet_always_may_wait() {
    let own = Peer { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    let transport = WireTransport::bounded(own, Timing::default(), Handle::current(), 4_000);
    let send = |to: &str, memory: u64| {
        transport.send(&NodeId::new(to).unwrap(), Packet::Records(1, Ok(records(1, memory))));
        transport.waiting_bytes()
    };
    // No task runs between these: nothing is sent on.
    assert_eq!(send("b", 10_000), 10_000, "one always may wait");
    assert_eq!(send("b", 100), 10_000);
    assert_eq!(send("c", 600), 10_600);
    assert_eq!(send("c", 250), 10_850);
    let most = "of 2,000 bytes half is for each of two nodes, and an eighth of that for what waits little";
    assert_eq!(send("c", 100), 10_850, "{most}");
}

#[tokio::test]
async fn r1_a_batch_that_its_buffer_holds_takes_no_room_and_is_not_sent_when_the_buffer_lets_it_go() {
    let own = Peer { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    let transport = WireTransport::bounded(own, Timing::default(), Handle::current(), 8);
    let to = NodeId::new("b").unwrap();
    let of_buffer: Vec<Arc<Batch>> = (1..=100).map(held).collect();
    for batch in &of_buffer {
        transport.send(&to, Packet::Message(Message::Batch(Arc::clone(batch))));
    }
    let waiting = || lock(&lock(&transport.lanes)[&to].waiting).batches.len();
    assert_eq!((waiting(), transport.waiting_bytes()), (100, 0));
    transport.send(&to, batch(101));
    transport.send(&to, batch(102));
    assert_eq!(waiting(), 101, "of what nobody else holds one always may wait");
    drop(of_buffer);
    let let_go = Bulk::of(Packet::Message(Message::Batch(Arc::clone(&held(1)))));
    assert!(let_go.packet().is_none());
}

#[test]
fn r1_of_an_answer_go_as_many_records_as_have_room_and_one_at_least() {
    let count = |room: u64| match within(Packet::Records(1, Ok(records(5, 500))), room) {
        Packet::Records(1, Ok(records)) => records.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 499, 500, 1_499, 2_500, u64::MAX].map(count), [1, 1, 1, 2, 5, 5]);
    let none = || Packet::Records(1, Ok(OrderedRecords::default()));
    assert_eq!(within(none(), 0), none());
    let (most, least) = (100 * LEAST_ANSWER_BYTES, LEAST_ANSWER_BYTES);
    assert_eq!(share(most, 0), u64::MAX, "one always may wait");
    assert_eq!(share(most, 10 * least), 40 * least);
    assert_eq!(share(most, 60 * least), least, "many readers get some");
    assert_eq!((share(most, most - 1), share(most, 2 * most)), (1, 0));
}

#[tokio::test]
async fn r1_a_batch_finds_room_beside_much_else_and_its_turn_comes() {
    let own = Peer { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    let transport = WireTransport::bounded(own, Timing::default(), Handle::current(), 80_000);
    let to = NodeId::new("b").unwrap();
    (0..100).for_each(|number| transport.send(&to, Packet::Records(number, Ok(records(1, 1_080)))));
    let before = transport.waiting_bytes();
    assert!(before <= 35_000 && before > 33_000, "{before} of 40,000");
    transport.send(&to, batch(1));
    assert!(transport.waiting_bytes() > before);
    // No task has run between.
    let lanes = lock(&transport.lanes);
    let mut waiting = lock(&lanes[&to].waiting);
    let mut next = || waiting.packets.pop().and_then(Bulk::packet);
    assert!(matches!(next(), Some(Packet::Records(0, _))));
    assert_eq!(next(), Some(batch(1)));
}

#[test]
fn a_batch_that_was_fetched_goes_in_the_stead_of_one_that_the_buffer_may_let_go() {
    let mut waiting = Waiting::default();
    let of = Bulk::of;
    let in_buffer = held(1);
    waiting.add(of(Packet::Message(Message::Batch(Arc::clone(&in_buffer)))));
    assert!(waiting.has(&of(Packet::Message(Message::Batch(Arc::clone(&in_buffer))))), "it waits already");
    assert!(!waiting.has(&of(batch(1))));
    waiting.add(of(batch(1)));
    assert!(waiting.has(&of(batch(1))) && waiting.packets.len() == 2);
    // The one of the buffer is passed over, and the fetched one is sent.
    let next = waiting.next().unwrap();
    assert!(matches!(&next, Bulk::Own(..)) && waiting.next().is_none());
    waiting.is_sent(next.shuffle(), next.key(), next.bytes());
    assert!(waiting.batches.is_empty() && waiting.of.is_empty() && waiting.bytes == 0);
    // One that the buffer has let go keeps no other one out.
    waiting.add(of(Packet::Message(Message::Batch(Arc::clone(&in_buffer)))));
    drop(in_buffer);
    let again = held(1);
    assert!(!waiting.has(&of(Packet::Message(Message::Batch(Arc::clone(&again))))));
}

#[test]
fn r1_a_shuffle_of_which_held_batches_wait_counts_until_all_are_sent() {
    let (mut waiting, first, second) = (Waiting::default(), held(1), held(2));
    for batch in [&first, &second] {
        waiting.add(Bulk::of(Packet::Message(Message::Batch(Arc::clone(batch)))));
    }
    for left in [1, 0] {
        let next = waiting.next().unwrap();
        waiting.is_sent(next.shuffle(), next.key(), next.bytes());
        assert_eq!(waiting.of.len(), left);
    }
}

#[test]
fn a_question_about_a_batch_waits_behind_the_batches_of_its_shuffle() {
    let (mut waiting, first) = (Waiting::default(), held(1));
    let question = Packet::Message(Message::AskStored(first.key.clone(), AskOrder::Behind));
    waiting.add(Bulk::of(Packet::Message(Message::Batch(Arc::clone(&first)))));
    waiting.add(Bulk::of(question.clone()));
    for is_batch in [true, false] {
        let next = waiting.next().unwrap();
        assert_eq!(matches!(next, Bulk::Held(..)), is_batch);
        waiting.is_sent(next.shuffle(), next.key(), next.bytes());
        assert_eq!(next.packet() == Some(question.clone()), !is_batch);
    }
    assert!(waiting.of.is_empty() && waiting.batches.is_empty());
}

#[tokio::test]
async fn a_long_record_has_its_turn_in_a_lane_that_is_never_empty_of_short_ones() {
    let own = Peer { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    let transport = WireTransport::bounded(own, Timing::default(), Handle::current(), 200_000);
    let to = NodeId::new("b").unwrap();
    let send = |memory: u64| {
        let before = transport.waiting_bytes();
        transport.send(&to, Packet::Records(1, Ok(records(1, memory))));
        transport.waiting_bytes() > before
    };
    // No task runs between these: nothing is sent on.
    assert!(send(1_000) && send(1_000));
    assert!(!send(150_000), "it has room only alone");
    assert!(!send(1_000), "short ones wait until it was there");
    {
        let lanes = lock(&transport.lanes);
        let mut waiting = lock(&lanes[&to].waiting);
        while let Some(next) = waiting.next() {
            waiting.is_sent(next.shuffle(), next.key(), next.bytes());
        }
    }
    assert!(send(150_000) && !send(150_000));
}

#[test]
fn r1_of_keys_that_were_found_go_as_many_as_have_room() {
    let cut = CutAt { record: 1, key: Some(vec![7; 468].into()) };
    let found = |count| Packet::Found(1, Found::Cuts(vec![cut.clone(); count]));
    assert_eq!(within(found(5), 1_600), found(3));
    assert_eq!(within(found(5), 0), found(1));
}

#[tokio::test]
async fn who_waits_for_a_slot_hears_only_of_what_is_said_later() {
    let ready = ReadySlots::default();
    ready.say(PoolSlot(3));
    let waits = tokio::spawn({
        let ready = ready.clone();
        async move { ready.next(PoolSlot(3)).await }
    });
    tokio::task::yield_now().await;
    ready.say(PoolSlot(4));
    tokio::task::yield_now().await;
    assert!(!waits.is_finished());
    ready.say(PoolSlot(3));
    waits.await.unwrap();
}
