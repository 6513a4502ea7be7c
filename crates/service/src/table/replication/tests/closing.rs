//! The end of a log: `Close` in the place of `Begin`.

use super::*;

impl Group {
    /// The shard was split: that replica is its closer, under the next epoch.
    fn close(&mut self, closer: PlacementId) {
        self.order(|order| {
            order.leader = closer;
            order.epoch = order.epoch.next();
            order.closes = true;
            order.peers.iter_mut().for_each(|peer| peer.may_join = false);
        });
    }

    fn closed(&self, at: PlacementId) -> Option<LogPosition> {
        self.replicas[&at].closed()
    }
}

fn at(epoch: u64, index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(epoch), index }
}

#[test]
fn o8_a_closing_entry_ends_the_log_of_each_replica_behind_what_was_acknowledged() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    group.close(P1);
    group.pass(200);
    assert!(group.heard(P1, &Effect::Closed(Epoch(2))) && !group.heard(P1, &Effect::Began(Epoch(2))));
    for replica in [P1, P2, P3] {
        assert_eq!(group.closed(replica), Some(at(2, 3)), "{replica}");
    }
    assert!(matches!(group.ended(1), Some(Ok(Answer::Written(_)))));
}

#[test]
fn o8_a_closing_replica_admits_nothing_and_reads_nothing_that_must_be_fresh() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.close(P1);
    group.write(P1, 1);
    group.read(P1, 2, Consistency::Linearizable);
    group.slow = set(&[]);
    group.sync(P3);
    group.pass(200);
    group.write(P1, 3);
    group.read(P1, 4, Consistency::Linearizable);
    for request in 1..=4 {
        assert_eq!(group.ended(request), Some(Err(Failed::Closed)), "request {request}");
    }
    group.pass(2_000);
    group.read(P2, 5, Consistency::Bounded(1_000));
    group.read(P1, 6, Consistency::Bounded(1_000));
    assert_eq!(group.ended(5), Some(Err(Failed::TooOld)), "the children may have acknowledged more");
    assert_eq!(group.ended(6), Some(Err(Failed::TooOld)));
}

#[test]
fn d1_what_was_in_flight_when_the_shard_closed_is_acknowledged_with_the_closing_entry() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.write(P1, 1);
    group.close(P1);
    assert_eq!((group.ended(1), group.closed(P1)), (None, None));
    group.slow = set(&[]);
    group.sync(P3);
    group.pass(200);
    assert!(matches!(group.ended(1), Some(Ok(Answer::Written(at))) if at.index == 2));
}

#[test]
fn o8_a_later_closer_closes_behind_the_former_and_the_first_that_is_committed_counts() {
    let mut group = Group::of_three();
    group.slow = set(&[P3]);
    group.close(P1);
    group.cut = set(&[P1]);
    group.slow = set(&[]);
    group.order(|order| order.in_sync = set(&[P2, P3]));
    group.sync(P3);
    group.close(P2);
    group.pass(2_000);
    assert_eq!([P2, P3].map(|replica| group.closed(replica)), [Some(at(2, 2)); 2]);
    assert_eq!(group.replicas[&P2].status().end, at(3, 3));
}

#[test]
fn o8_a_closing_entry_that_was_not_committed_is_replaced() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.close(P1);
    assert_eq!(group.closed(P1), None);
    group.cut = set(&[P1]);
    group.order(|order| order.in_sync = set(&[P2, P3]));
    group.close(P3);
    group.pass(2_000);
    group.cut.clear();
    group.order(|_| {});
    group.pass(2_000);
    assert_eq!([P1, P2, P3].map(|replica| group.closed(replica)), [Some(at(3, 2)); 3]);
}

#[test]
fn o8_a_closer_that_restarts_asks_for_a_later_epoch_and_a_silent_member_is_asked_out() {
    let mut group = Group::of_three();
    group.cut = set(&[P3]);
    group.close(P1);
    group.restart(P1);
    group.order(|_| {});
    let wish = group.wish(P1).unwrap();
    assert_eq!((wish.epoch, wish.in_sync), (Epoch(2), set(&[P1, P2, P3])));
    group.close(P1);
    group.pass(2_000);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2]));
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(200);
    assert!(group.heard(P1, &Effect::Closed(Epoch(3))));
}

#[test]
fn o8_a_log_that_has_closed_is_kept_and_is_recovered_as_closed() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    group.close(P1);
    group.pass(200);
    let flushed = group.replicas[&P2].status().end;
    group.disks.get_mut(&P2).unwrap().0.flushed = flushed;
    group.tell(P2, Event::Flushed(flushed));
    group.tell(P2, Event::Trim);
    group.restart(P2);
    assert_eq!(group.closed(P2), Some(at(2, 3)));
}
