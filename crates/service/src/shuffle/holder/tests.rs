use super::*;
use crate::shuffle::BufferId;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::Tagged;

fn holder() -> (Holder, NodeId) {
    let [me, other] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
    let place = SlotPlace { epoch: Epoch(1), live: vec![me.clone(), other.clone()], loading: Vec::new() };
    let nodes = vec![me.clone(), other.clone()];
    let map = PoolMap { generation: 1, replicas: 2, places: vec![place], nodes };
    let who = (me, Incarnation(1));
    (Holder::recover(Millis(0), who, Settings::default(), map.into(), Stored::default()), other)
}

#[test]
fn a_batch_that_found_no_room_is_stored_when_it_comes_again() {
    let (mut holder, sender) = holder();
    let writer = Writer::Buffer(BufferId { node: sender.clone(), incarnation: Incarnation(1) });
    let key = BatchKey { stream: Stream { shuffle: ShuffleId(1), slot: PoolSlot(0), writer }, number: 1 };
    let batch = Arc::new(Batch { key: key.clone(), body: Body::Records(Tagged::new()) });
    let comes = Event::Message(sender.clone(), Message::Batch(batch.clone()));
    assert_eq!(holder.handle(Millis(1), comes.clone()), [Effect::Store(batch.clone())]);
    assert_eq!(holder.handle(Millis(2), comes.clone()), [], "it is being stored");
    assert_eq!(holder.handle(Millis(3), Event::NotStored(key.clone())), []);
    assert!(holder.has_nothing_of(ShuffleId(1)));
    assert_eq!(holder.handle(Millis(4), comes), [Effect::Store(batch)]);
    let stored = holder.handle(Millis(5), Event::Stored(key.clone()));
    assert_eq!(stored, [Effect::Send(sender, Message::Stored(key))]);
}
