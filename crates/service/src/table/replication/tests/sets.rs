use super::super::message::Reply;
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

#[test]
fn t17_a_write_is_answered_in_time_while_its_leader_waits_for_its_own_disk() {
    let mut group = Group::of_three();
    group.slow = set(&[P1]);
    group.cut = set(&[P2, P3]);
    group.write(P1, 1);
    let begun = group.now;
    group.pass(600);
    group.order(|order| {
        order.in_sync = set(&[P1]);
        order.epoch = order.epoch.next();
    });
    assert!(group.replicas[&P1].wake_at() <= begun + group.settings.write_wait_ms, "it is called by then");
    group.pass(group.settings.write_wait_ms);
    assert!(matches!(group.ended(1), Some(Err(Failed::Unknown(_)))), "{:?}", group.ended(1));
}

impl Group {
    /// The coordinator takes the last wish of P1, if it is a new one. As for a cluster's, the epoch counts on when a member
    /// leaves.
    fn grant(&mut self) -> bool {
        let known = self.order.configuration;
        let Some(wish) = self.wish(P1).filter(|wish| wish.configuration == known) else { return false };
        self.order(|order| {
            if !order.in_sync.is_subset(&wish.in_sync) {
                order.epoch = order.epoch.next();
            }
            order.in_sync = wish.in_sync;
        });
        true
    }

    /// For so long the followers of `who` are silent and answer in turns of 700 ms each, the second of them when the first one
    /// answers, and wishes are granted. When they were, since the beginning.
    fn flap(&mut self, who: &[PlacementId], ms: u64) -> Vec<u64> {
        let (began, mut granted) = (self.now, Vec::new());
        while self.now.since(began) < ms {
            let turn = (self.now.since(began) / 700) as usize % 2;
            let silent = who.iter().enumerate().filter(|(at, _)| at % 2 == turn).map(|(_, one)| *one);
            self.cut = silent.collect();
            self.pass(50);
            if self.grant() {
                granted.push(self.now.since(began));
            }
        }
        self.cut.clear();
        granted
    }
}

const HOUR: u64 = 3_600_000;

/// L1. Each change of the set is a commit of the map, an epoch and an entry: what comes and goes must not make more and more of
/// them.
#[test]
fn l1_a_follower_that_comes_and_goes_changes_the_set_less_and_less_often() {
    let mut group = Group::of_three();
    let granted = group.flap(&[P3], HOUR);
    let longest = group.settings.longest_rejoin_delay_ms;
    let within = |ms: u64| granted.iter().filter(|at| **at < ms).count() as u64;
    assert!(within(5_000) >= 4, "the first times it comes back soon: {granted:?}");
    // Out and in, without a rest, and for each doubling of the rest; then once for each of the longest ones.
    let doublings = (longest / group.settings.wish_repeat_ms).ilog2() as u64 + 3;
    assert!(within(2 * longest) <= 2 * doublings, "{granted:?}");
    assert!(within(HOUR) <= 2 * (doublings + HOUR / longest), "{granted:?}");
}

#[test]
fn l1_followers_that_come_and_go_in_turns_change_the_set_less_and_less_often() {
    let mut group = Group::of_three();
    let granted = group.flap(&[P2, P3], HOUR / 4);
    assert!(granted.len() >= 4, "{granted:?}");
    let longest = group.settings.longest_rejoin_delay_ms;
    let doublings = (longest / group.settings.wish_repeat_ms).ilog2() as u64 + 2;
    assert!(granted.len() as u64 <= 4 * (doublings + HOUR / 4 / longest), "{granted:?}");
    let (status, enough) = (group.replicas[&P1].status(), group.order.in_sync.len() >= 2);
    assert!(status.has_begun && enough, "{:?}", group.order);
}

#[test]
fn a_follower_that_is_needed_comes_back_at_once() {
    let mut group = Group::of_three();
    group.flap(&[P3], 60_000);
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(5_000);
    assert!(!group.grant(), "it rests");
    // The other one is lost for the first time: writes wait for that one no longer than they may.
    group.cut = set(&[P2]);
    group.write(P1, 1);
    group.pass(600);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P3]));
    assert!(group.grant());
    group.pass(100);
    assert!(matches!(group.ended(1), Some(Ok(_))));
    // Or the coordinator has left the leader alone.
    let mut group = Group::of_three();
    group.flap(&[P3], 60_000);
    group.cut = set(&[P2]);
    group.pass(300);
    group.order(|order| order.in_sync = set(&[P1]));
    group.pass(200);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P3]));
}

#[test]
fn a_needed_follower_that_comes_and_goes_is_waited_for_longer() {
    let mut group = Group::of_three();
    group.flap(&[P2], 60_000);
    group.cut = set(&[P3]);
    group.pass(600);
    group.grant();
    group.pass(200);
    assert_eq!(group.order.in_sync, set(&[P1, P2]));
    group.cut = set(&[P2, P3]);
    group.pass(7_800);
    assert!(!group.grant());
    group.pass(400);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1]));
}

#[test]
fn a_follower_that_was_good_for_long_has_no_rest() {
    let mut group = Group::of_three();
    group.flap(&[P3], 60_000);
    group.pass(2 * group.settings.longest_rejoin_delay_ms);
    group.grant();
    assert_eq!(group.order.in_sync, set(&[P1, P2, P3]), "it rests no longer than it may");
    for _ in 0..10 {
        group.pass(group.settings.longest_rejoin_delay_ms);
    }
    let granted = group.flap(&[P3], 1_400);
    group.pass(200);
    group.grant();
    assert_eq!((granted.len(), group.order.in_sync.len()), (2, 3), "out, and in at once: {granted:?}");
}

#[test]
fn a_process_that_was_started_anew_has_no_rest() {
    let mut group = Group::of_three();
    group.flap(&[P3], 60_000);
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.pass(1_000);
    assert!(!group.grant(), "it rests");
    group.restart(P3);
    group.order(|_| {});
    group.pass(300);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2, P3]));
    // It may be one that is slow, and was taken for dead: it has left as often as before.
    group.grant();
    group.cut = set(&[P3]);
    group.pass(700);
    group.grant();
    group.cut = set(&[]);
    group.pass(5_000);
    assert!(!group.grant(), "it rests again");
}

/// L1. What followers have replied meanwhile comes in next.
#[test]
fn l1_a_leader_that_was_not_called_in_time_asks_nobody_out() {
    let mut group = Group::of_three();
    for _ in 0..10 {
        group.now = group.now + 3_000;
        group.tell(P1, Event::Tick);
    }
    assert_eq!(group.wish(P1), None);
    group.cut = set(&[P3]);
    group.pass(700);
    assert_eq!(group.wish(P1).unwrap().in_sync, set(&[P1, P2]));
}

/// L1. What its leader has sent meanwhile comes in next.
#[test]
fn l1_a_follower_that_was_not_called_in_time_reports_no_leader() {
    let mut group = Group::of_three();
    for _ in 0..3 {
        group.now = group.now + 3_000;
        group.tell(P2, Event::Tick);
        assert!(group.replicas[&P2].wake_at() <= group.now + 2 * group.settings.append_ms);
    }
    assert!(!group.heard(P2, &Effect::LeaderSilent(Epoch(1))));
    group.cut = set(&[P1]);
    group.pass(1_200);
    assert!(group.heard(P2, &Effect::LeaderSilent(Epoch(1))));
}

/// L1. Each replica hears the orders by which another comes and goes.
#[test]
fn l1_the_next_leader_knows_of_the_rests_of_the_former_one() {
    let mut group = Group::of_three();
    group.flap(&[P3], 60_000);
    group.order(|order| order.in_sync = set(&[P1, P2]));
    group.lead(P2);
    group.pass(5_000);
    assert!(group.replicas[&P2].status().has_begun);
    assert_eq!(group.wish(P2), None, "P3 rests");
    // A leader that is silent again and again, and is taken out of the set for it, rests as any.
    let mut group = Group::of_three();
    for leader in [P2, P1, P2, P1, P2] {
        let former = group.order.leader;
        group.lead(leader);
        group.order(|order| order.in_sync.retain(|member| *member != former));
        group.pass(1_500);
        group.order(|order| order.in_sync.extend([former]));
        group.pass(500);
    }
    group.order(|order| order.in_sync = set(&[P2, P3]));
    group.said.clear();
    group.pass(1_000);
    assert_eq!(group.wish(P2), None, "P1 rests");
    group.pass(3_000);
    assert_eq!(group.wish(P2).unwrap().in_sync, set(&[P1, P2, P3]));
}

/// L1. A reply to an append of some time ago, every 50 ms for two seconds, and what the leader wishes is granted.
fn replies_late(in_sync: &[PlacementId], late_ms: u64) -> Group {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], in_sync);
    group.cut = set(&[P3]);
    group.said.clear();
    for _ in 0..40 {
        let matched = group.replicas[&P1].status().synced;
        let (epoch, incarnation, clock) = (group.order.epoch, Incarnation(1), group.now);
        let sent = group.now - late_ms;
        let reply = Reply { epoch, fence: epoch, incarnation, sent, clock, matched, ends: None };
        group.tell(P1, Event::Message(P3, Message::Reply(reply)));
        group.pass(50);
        group.grant();
    }
    group
}

/// L1. A follower that may stay in the set may join it, and the other way round.
#[test]
fn l1_a_newcomer_may_reply_as_late_as_a_member() {
    for late_ms in [100, 600, 850] {
        for in_sync in [&[P1, P2, P3][..], &[P1, P2]] {
            let group = replies_late(in_sync, late_ms);
            assert_eq!(group.order.in_sync, set(&[P1, P2, P3]), "{late_ms} ms late");
        }
    }
    for in_sync in [&[P1, P2, P3][..], &[P1, P2]] {
        let group = replies_late(in_sync, 1_050);
        assert_eq!(group.order.in_sync, set(&[P1, P2]));
    }
}

/// L1. Its promises are over when they come, so that the leader may acknowledge nothing.
#[test]
fn l1_a_follower_that_replies_too_late_is_asked_out_though_it_is_never_silent() {
    let mut group = replies_late(&[P1, P2, P3], 1_500);
    assert_eq!(group.order.in_sync, set(&[P1, P2]), "and it is not asked in before it replies sooner");
    group.write(P1, 1);
    group.pass(100);
    assert!(matches!(group.ended(1), Some(Ok(_))));
}
