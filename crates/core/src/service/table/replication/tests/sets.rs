use super::*;

#[test]
fn d1_a_silent_follower_is_asked_out_and_required_until_the_map_has_changed() {
    let mut group = Group::of_three();
    group.cut = set(&[P3]);
    group.write(P1, 1);
    group.pass(600);
    let wish = group.wish(P1).unwrap();
    let (epoch, configuration) = (group.order.epoch, group.order.configuration);
    assert_eq!(wish, Wish { placement: P1, epoch, configuration, in_sync: set(&[P1, P2]) });
    group.pass(5_000);
    assert_eq!(group.ended(1), None);
    assert!(group.count(|effect| matches!(effect, Effect::Wish(_))) >= 10, "the wish is repeated");
    group.order(|order| order.in_sync = set(&[P1, P2]));
    assert!(matches!(group.ended(1), Some(Ok(_))));
}

#[test]
fn a_silent_follower_without_which_no_write_is_admitted_is_asked_out_later() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.pass(600);
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(1_300);
    assert_eq!(group.wish(P1), None, "without it writes would be refused");
    group.pass(700);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1]));
    // Of two that are silent none is asked out sooner: without both of them no write is admitted.
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.pass(1_900);
    assert_eq!(group.wish(P1), None);
    group.pass(700);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1]));
}

#[test]
fn a_follower_that_stores_nothing_is_asked_out() {
    let mut group = Group::of_three();
    group.slow = set(&[P2]);
    group.write(P1, 1);
    group.pass(4_000);
    assert_eq!(group.wish(P1), None);
    group.pass(1_500);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P3]));
}

#[test]
fn d1_a_newcomer_is_required_from_the_wish_on_refused_or_not() {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2]);
    group.pass(100);
    let wish = group.wish(P1).unwrap();
    assert_eq!(wish.in_sync, set(&[P1, P2, P3]));
    group.cut = set(&[P3]);
    group.write(P1, 1);
    group.tell(P1, Event::WishRefused(wish.epoch, wish.configuration));
    assert_eq!(group.ended(1), None, "a copy of the wish may yet be granted");
    // The leader asks for the set as it is: that ends the former wish.
    group.pass(1_500);
    let wish = group.wish(P1).unwrap();
    assert_eq!(wish.in_sync, set(&[P1, P2]));
    group.order(|_| {});
    assert!(matches!(group.ended(1), Some(Ok(_))));
}

#[test]
fn the_same_order_once_more_ends_no_wish() {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2]);
    group.pass(100);
    assert!(group.wish(P1).is_some());
    group.cut = set(&[P3]);
    group.tell(P1, Event::Order(group.order.clone()));
    group.write(P1, 1);
    assert_eq!(group.ended(1), None);
}

#[test]
fn d1_a_leader_that_has_not_begun_asks_for_no_newcomer() {
    let mut group = Group::of_three();
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.slow = set(&[P2]);
    group.lead(P1);
    group.said.clear();
    group.pass(400);
    assert_eq!(group.wish(P1), None, "its first entry is not on the disk of P2");
    group.slow = set(&[]);
    group.sync(P2);
    group.pass(100);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2, P3]));
}

#[test]
fn a_replica_that_is_there_to_be_read_from_is_not_asked_in() {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2]);
    group.said.clear();
    group.order(|order| order.peers[2].may_join = false);
    group.pass(1_000);
    assert_eq!(group.wish(P1), None);
}

#[test]
fn an_only_replica_begins_and_asks_for_others() {
    let mut group = Group::of_three();
    group.cut = set(&[P1, P2]);
    group.order(|order| (order.leader, order.epoch, order.in_sync) = (P3, Epoch(2), set(&[P3])));
    group.pass(1_100);
    assert!(group.heard(P3, &Effect::Began(Epoch(2))));
    group.cut = set(&[]);
    group.tell(P1, Event::Order(group.order.clone()));
    group.pass(300);
    assert_eq!(group.wish(P3).unwrap().in_sync, set(&[P1, P3]));
}

#[test]
fn a_follower_reports_the_silence_of_its_leader() {
    let mut group = Group::of_three();
    group.pass(2_000);
    assert!(!group.heard(P2, &Effect::LeaderSilent(Epoch(1))));
    group.cut = set(&[P1]);
    group.pass(900);
    assert!(!group.heard(P2, &Effect::LeaderSilent(Epoch(1))));
    group.pass(300);
    assert!(group.heard(P2, &Effect::LeaderSilent(Epoch(1))));
    assert!(!group.heard(P1, &Effect::LeaderSilent(Epoch(1))));
}

#[test]
fn o3_an_order_for_another_process_or_an_epoch_of_before_makes_no_leader() {
    let mut group = Group::of_three();
    group.restart(P1);
    let mut order = group.order.clone();
    group.tell(P1, Event::Order(order.clone()));
    assert_eq!(group.replicas[&P1].status().leads, None, "it led under e1 in its former life");
    order.epoch = Epoch(2);
    order.peers[0].incarnation = Incarnation(1);
    group.tell(P1, Event::Order(order));
    assert_eq!(group.replicas[&P1].status().leads, None, "that order is for its former life");
    group.lead(P1);
    group.pass(1_100);
    assert!(group.heard(P1, &Effect::Began(Epoch(2))));
}

/// L1. Each answer of the coordinator is a commit of the map, so what it does not take is asked for less and less often.
#[test]
fn l1_a_newcomer_that_is_not_taken_is_asked_in_again_later_and_later() {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2]);
    let mut asked = Vec::new();
    for at in 0..400 {
        group.pass(50);
        if group.wish(P1).is_some_and(|wish| wish.configuration == group.order.configuration) {
            asked.push(at * 50);
            group.order(|_| {});
        }
    }
    let rests: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.len() >= 4 && rests.windows(2).all(|pair| pair[1] > pair[0]), "{rests:?}");
    group.order(|order| order.in_sync = set(&[P1, P2, P3]));
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(300);
    assert_eq!(group.wish(P1).map(|wish| wish.configuration), Some(group.order.configuration), "at once");
}

/// L1. The coordinator took the process for dead while it lived.
#[test]
fn l1_a_process_that_is_registered_anew_goes_on_with_what_it_has() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    for placement in [P1, P2] {
        group.replicas.get_mut(&placement).unwrap().renamed(Incarnation(2));
    }
    group.order(|order| {
        order.peers.iter_mut().take(2).for_each(|peer| peer.incarnation = Incarnation(2));
        order.epoch = order.epoch.next();
    });
    group.pass(200);
    assert!(group.heard(P1, &Effect::Began(Epoch(2))));
    group.write(P1, 2);
    group.pass(100);
    assert!(matches!(group.ended(2), Some(Ok(_))));
}

/// L1. A process opens a replica anew, and the map still names it the leader, under the epoch that it led by.
#[test]
fn l1_a_leader_that_was_opened_anew_asks_for_a_later_epoch() {
    let mut group = Group::of_three();
    group.restart(P1);
    group.order(|_| {});
    let wish = group.wish(P1).unwrap();
    assert_eq!((wish.epoch, wish.in_sync), (Epoch(1), set(&[P1, P2, P3])));
    assert_eq!(group.replicas[&P1].status().leads, None);
    group.order(|order| order.epoch = order.epoch.next());
    group.pass(1_500);
    assert!(group.heard(P1, &Effect::Began(Epoch(2))));
}

/// D1, T17. What was in flight is committed with the first entry of the next epoch, for which one replica is enough.
#[test]
fn t17_a_write_in_flight_is_not_acknowledged_before_enough_have_it() {
    let mut group = Group::of_three();
    group.cut = set(&[P2, P3]);
    group.write(P1, 1);
    group.pass(600);
    group.order(|order| {
        order.in_sync = set(&[P1]);
        order.epoch = order.epoch.next();
    });
    group.pass(500);
    assert!(group.heard(P1, &Effect::Began(Epoch(2))));
    assert_eq!((group.replicas[&P1].status().committed, group.ended(1)), (3, None));
    group.cut = set(&[]);
    group.order(|_| {});
    group.pass(1_000);
    let wish = group.wish(P1).unwrap().in_sync;
    group.order(|order| order.in_sync = wish);
    assert!(matches!(group.ended(1), Some(Ok(Answer::Written(_)))));
}
