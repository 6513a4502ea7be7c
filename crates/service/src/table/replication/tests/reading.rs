use super::*;

const READ: Option<Result<Answer, Failed>> = Some(Ok(Answer::Read { applied: 1, age_ms: Some(0) }));

#[test]
fn d2_a_leader_answers_reads_while_promises_hold_and_not_a_moment_longer() {
    let mut group = Group::of_three();
    group.read(P1, 1, Consistency::Linearizable);
    assert_eq!(group.ended(1), READ);
    let until = group.replicas[&P1].relies_until().unwrap();
    assert_eq!(until, Millis(10_000 + 970));
    group.cut = set(&[P2]);
    group.now = until - 1;
    group.read(P1, 2, Consistency::Linearizable);
    assert_eq!(group.ended(2), READ);
    group.now = until;
    group.read(P1, 3, Consistency::Linearizable);
    assert_eq!(group.ended(3), None, "it waits");
    group.cut = set(&[]);
    group.pass(100);
    assert_eq!(group.ended(3), READ);
}

#[test]
fn a_read_waits_for_promises_for_a_bounded_time_and_so_many_wait() {
    let mut group = Group::of_three();
    group.settings.reads_waiting = 2;
    group.replicas.values_mut().for_each(|replica| replica.settings.reads_waiting = 2);
    group.cut = set(&[P2]);
    group.now = group.now + 2_000;
    (1..=3).for_each(|request| group.read(P1, request, Consistency::Linearizable));
    assert!(matches!(group.ended(3), Some(Err(Failed::Full(_)))));
    group.pass(1_000);
    assert_eq!(group.ended(1), Some(Err(Failed::NoPromises)));
}

#[test]
fn d2_a_new_leader_waits_for_the_end_of_its_promise() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    group.pass(200);
    group.cut = set(&[P1]);
    group.lead(P2);
    group.now = group.now + 1_000;
    group.tell(P2, Event::Tick);
    assert_eq!(group.replicas[&P2].status().end.index, 2);
    group.now = group.now + 1;
    group.tell(P2, Event::Tick);
    assert_eq!(group.replicas[&P2].status().end.index, 3);
    group.read(P2, 2, Consistency::Linearizable);
    assert_eq!(
        group.ended(2),
        Some(Err(Failed::NotBegun)),
        "nothing is read before the first entry is committed"
    );
}

#[test]
fn d2_a_process_that_starts_has_promised_at_its_start() {
    let mut group = Group::of_three();
    group.cut = set(&[P1]);
    group.restart(P2);
    let started = group.now;
    group.lead(P2);
    group.now = started + 1_000;
    group.tell(P2, Event::Tick);
    assert_eq!(group.replicas[&P2].status().end.index, 1);
    group.now = started + 1_001;
    group.tell(P2, Event::Tick);
    assert_eq!(group.replicas[&P2].status().end.index, 2);
}

#[test]
fn a_leader_that_lets_go_spares_the_next_one_the_wait() {
    let mut group = Group::of_three();
    group.lead(P2);
    // P2 heard the order after P1, which has told it that it has let go.
    assert!(group.heard(P2, &Effect::Began(Epoch(2))));
    // One that had not begun says nothing, as leaders before it may not have let go.
    group.cut = set(&[P2]);
    group.lead(P3);
    group.lead(P1);
    group.tell(P1, Event::Tick);
    assert_eq!(group.replicas[&P1].status().end.epoch, Epoch(2));
    // P2 had begun, and had waited for those before it.
    group.cut = set(&[]);
    group.tell(P2, Event::Order(group.order.clone()));
    assert_eq!(group.replicas[&P1].status().end.epoch, Epoch(4));
}

#[test]
fn a_leader_that_is_refused_before_it_hears_the_order_spares_the_next_one_the_wait_too() {
    let next = |group: &Group| {
        let mut order = group.order.clone();
        order.leader = P2;
        (order.epoch, order.configuration) = (order.epoch.next(), order.configuration.next());
        order
    };
    // The heir refuses what it is sent, and is told at once.
    let mut group = Group::of_three();
    let order = next(&group);
    group.tell(P2, Event::Order(order.clone()));
    group.write(P1, 1);
    assert!(group.heard(P2, &Effect::Began(Epoch(2))));
    // What the leader says then is lost: it says it again when it hears the order.
    let mut group = Group::of_three();
    group.tell(P2, Event::Order(order.clone()));
    let refusal = message::Reply {
        epoch: Epoch(1),
        fence: Epoch(2),
        incarnation: Incarnation(1),
        sent: group.now,
        clock: group.now,
        matched: 0,
        ends: None,
    };
    group.replicas.get_mut(&P1).unwrap().handle(group.now, Event::Message(P2, Message::Reply(refusal)));
    assert!(!group.heard(P2, &Effect::Began(Epoch(2))));
    group.tell(P1, Event::Order(order));
    assert!(group.heard(P2, &Effect::Began(Epoch(2))));
}

#[test]
fn a_lead_is_handed_over_without_a_wait_when_the_heir_has_all() {
    let mut group = Group::of_three();
    group.slow = set(&[P2]);
    group.write(P1, 1);
    group.hand_over(Some(P2));
    group.write(P1, 2);
    assert_eq!(group.ended(2), Some(Err(Failed::HandingOver)));
    assert!(!group.heard(P1, &Effect::HeirIsReady(P2)));
    group.slow = set(&[]);
    group.sync(P2);
    assert!(group.heard(P1, &Effect::HeirIsReady(P2)));
    assert!(matches!(group.ended(1), Some(Ok(_))));
    group.lead(P2);
    group.write(P2, 3);
    assert!(matches!(group.ended(3), Some(Ok(_))));
}

#[test]
fn a_transfer_that_the_coordinator_does_not_end_is_given_up() {
    let mut group = Group::of_three();
    group.hand_over(Some(P3));
    group.pass(1_950);
    group.write(P1, 1);
    assert_eq!(group.ended(1), Some(Err(Failed::HandingOver)));
    group.pass(50);
    assert!(group.heard(P1, &Effect::TransferEnded(P3)));
    group.write(P1, 2);
    assert!(matches!(group.ended(2), Some(Ok(_))));
    // The same order again begins nothing; one that was taken back in between does.
    group.hand_over(Some(P3));
    group.write(P1, 3);
    assert!(matches!(group.ended(3), Some(Ok(_))));
    group.hand_over(None);
    group.hand_over(Some(P3));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
}

#[test]
fn a_transfer_that_the_coordinator_takes_back_ends_at_once() {
    let mut group = Group::of_three();
    group.hand_over(Some(P2));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P2));
    group.hand_over(None);
    assert!(group.heard(P1, &Effect::TransferEnded(P2)));
    assert_eq!(group.replicas[&P1].status().heir_ready, None);
    group.write(P1, 1);
    assert!(matches!(group.ended(1), Some(Ok(_))));
    // Another heir takes the place of the first.
    group.hand_over(Some(P2));
    group.hand_over(Some(P3));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
    // One that may not lead ends that too, and then the one before may begin anew.
    group.hand_over(Some(PlacementId(9)));
    assert_eq!(group.replicas[&P1].status().heir_ready, None);
    group.hand_over(Some(P3));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
}

#[test]
fn a_lead_is_handed_over_anew_to_an_heir_that_has_left_the_set_and_comes_back() {
    let mut group = Group::of_three();
    group.hand_over(Some(P3));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
    group.order(|order| {
        order.hand_over_to = Some(P3);
        order.in_sync.remove(&P3);
    });
    assert!(group.heard(P1, &Effect::TransferEnded(P3)));
    group.order(|order| {
        order.in_sync.insert(P3);
    });
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
}

/// The one that takes the leader's place in a move is not in sync by the map before it leads.
#[test]
fn a_lead_is_handed_over_to_a_replica_that_the_leader_has_asked_into_the_set() {
    let mut group = Group::new(Settings::default(), &[P1, P2, P3], &[P1, P2]);
    let asked = |effect: &Effect| matches!(effect, Effect::Wish(wish) if wish.in_sync.contains(&P3));
    group.pass(1_000);
    assert!(group.said.iter().any(|(from, effect)| *from == P1 && asked(effect)));
    group.hand_over(Some(P3));
    assert_eq!(group.replicas[&P1].status().heir_ready, Some(P3));
    // One that nothing waits for gets no lead.
    let mut group = Group::of_three();
    group.hand_over(Some(PlacementId(9)));
    group.write(P1, 1);
    assert!(matches!(group.ended(1), Some(Ok(_))), "{:?}", group.said);
}

#[test]
fn a_follower_knows_how_old_it_is_by_its_own_clock() {
    let mut group = Group::of_three();
    group.write(P1, 1);
    group.pass(300);
    group.read(P2, 11, Consistency::Bounded(250));
    let Some(Ok(Answer::Read { applied: 2, age_ms: Some(age) })) = group.ended(11) else {
        panic!("{:?}", group.said)
    };
    assert!(age > 0 && age <= 250, "{age}");
    group.cut = set(&[P2]);
    group.pass(500);
    group.cut = set(&[]);
    group.read(P2, 12, Consistency::Bounded(250));
    assert_eq!(group.ended(12), Some(Err(Failed::TooOld)));
    group.read(P2, 13, Consistency::Any);
    assert!(matches!(group.ended(13), Some(Ok(Answer::Read { age_ms: Some(500..), .. }))));
}

#[test]
fn d2_a_leader_that_may_have_been_replaced_makes_no_follower_fresh() {
    let mut group = Group::of_three();
    group.pass(300);
    group.cut = set(&[P2]);
    group.pass(1_500);
    group.read(P3, 1, Consistency::Bounded(500));
    assert_eq!(group.ended(1), Some(Err(Failed::TooOld)), "P1 talks to P3, and P2 may lead by now");
}

#[test]
fn a_client_that_has_seen_more_is_sent_on() {
    let mut group = Group::of_three();
    group.pass(100);
    group.tell(P2, Event::Read(1, Consistency::Any, 2));
    assert_eq!(group.ended(1), Some(Err(Failed::Behind { applied: 1 })));
}

#[test]
fn d2_a_refusal_of_an_append_of_a_former_life_is_no_promise() {
    let mut group = Group::of_three();
    group.restart(P1);
    group.lead(P1);
    group.pass(1_100);
    let until = group.replicas[&P1].relies_until();
    assert!(until.is_some());
    // P1 sent this under e1, by a clock that was far ahead of that of its next process.
    let (before, sent) = (LogPosition::default(), group.now + 100_000);
    let append = Append {
        epoch: Epoch(1),
        before,
        entries: Vec::new(),
        committed: 0,
        is_enough: false,
        sent,
        echo: None,
    };
    for follower in [P2, P3] {
        group.tell(follower, Event::Message(P1, Message::Append(append.clone())));
    }
    assert_eq!(group.replicas[&P1].relies_until(), until);
}
