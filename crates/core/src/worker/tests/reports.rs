//! What a service says of a replica between callbacks: that it gets on, that it no longer leads, that it is ill.

use super::*;

fn peer(role: Role, state: ReplicaState) -> Peer {
    let bounds = Bounds::Hashes(HashRange::ALL);
    let (node, address) = (NodeId::new("other").unwrap(), Some("other:1".into()));
    let (shard, placement, incarnation) = (ShardId(1), PlacementId(2), Incarnation(1));
    Peer { shard, placement, bounds, node, incarnation, address, role, state, in_sync: false }
}

/// An order to lead or to follow beside another replica.
fn beside(role: Role, epoch: u64, other: Peer) -> Order {
    Order { peers: vec![other], ..order(ReplicaState::Live, role, epoch, true) }
}

/// It leads, and another replica follows.
fn leading_with_an_heir() -> Fixture {
    let mut fixture = Fixture::leading(17);
    fixture.order(5, beside(Role::Leader, 17, peer(Role::Follower, ReplicaState::Live)));
    fixture
}

fn lay_down(fixture: &mut Fixture, now: u64) -> Result<Vec<Task>, NoSuccessor> {
    fixture.worker.lay_down(Millis(now), &replica(), "the battery is low").map(tasks)
}

fn says_why(fixture: &mut Fixture) -> bool {
    fixture.reported().0 == Phase::failed(1, "the battery is low".to_owned())
}

#[test]
fn b11_a_lead_that_is_laid_down_stays_down_until_an_order_names_another_leader() {
    let mut fixture = leading_with_an_heir();
    assert_eq!(lay_down(&mut fixture, 6), Ok(vec![Task::AwaitRequests]));
    assert!(!matches!(fixture.judge(6, Access::Read), Verdict::Serve(_)), "nobody is let in");
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(7), &replica())), [], "nothing is unloaded");
    assert!(says_why(&mut fixture));
    // The coordinator has not decided yet: the same order, whatever time passes, does not make it lead.
    assert_eq!(fixture.order(8, beside(Role::Leader, 17, peer(Role::Follower, ReplicaState::Live))), []);
    assert_eq!(tasks(fixture.worker.run(Millis(60_000))), []);
    assert!(says_why(&mut fixture));
    let follow = Callback::Serve(Role::Follower, Epoch(18));
    let other = peer(Role::Leader, ReplicaState::Live);
    assert_eq!(fixture.order(60_001, beside(Role::Follower, 18, other)), [Task::Call(follow)]);
    fixture.done(60_002, follow);
    assert_eq!(fixture.reported(), (Phase::Serving, Epoch(18)));
    // And it may lead later.
    let lead = Callback::Serve(Role::Leader, Epoch(19));
    let successor = peer(Role::Follower, ReplicaState::Live);
    assert_eq!(fixture.order(60_003, beside(Role::Leader, 19, successor)), [Task::Call(lead)]);
}

#[test]
fn b11_a_lead_without_an_heir_is_not_laid_down() {
    let mut fixture = Fixture::leading(17);
    assert_eq!(lay_down(&mut fixture, 5), Err(NoSuccessor::Alone));
    fixture.order(6, beside(Role::Leader, 17, peer(Role::Follower, ReplicaState::Load)));
    assert_eq!(lay_down(&mut fixture, 7), Err(NoSuccessor::Alone), "one that loads cannot lead yet");
    let parent = Peer { shard: ShardId(9), ..peer(Role::Follower, ReplicaState::Live) };
    fixture.order(8, beside(Role::Leader, 17, parent));
    assert_eq!(lay_down(&mut fixture, 9), Err(NoSuccessor::Alone), "that is another shard");
    assert!(matches!(fixture.judge(9, Access::Read), Verdict::Serve(_)), "it goes on");
    let mut follower = Fixture::new();
    follower.order(0, beside(Role::Follower, 17, peer(Role::Leader, ReplicaState::Live)));
    assert_eq!(lay_down(&mut follower, 1), Err(NoSuccessor::DoesNotLead));
}

#[test]
fn l1_who_laid_down_a_lead_leads_again_when_nobody_else_is_left() {
    let mut fixture = leading_with_an_heir();
    lay_down(&mut fixture, 6).unwrap();
    fixture.worker.requests_ended(Millis(7), &replica());
    let lead = Callback::Serve(Role::Leader, Epoch(18));
    assert_eq!(fixture.order(8, order(ReplicaState::Live, Role::Leader, 18, true)), [Task::Call(lead)]);
}

#[test]
fn a12_a_report_that_it_is_ill_counts_while_the_role_changes() {
    let mut fixture = Fixture::leading(17);
    assert_eq!(fixture.order(5, order(ReplicaState::Live, Role::Follower, 18, true)), [Task::AwaitRequests]);
    assert_eq!(tasks(fixture.worker.unhealthy(Millis(6), &replica(), "the disk is dead")), []);
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(7), &replica())), [Task::Call(Callback::Unload)]);
    assert_eq!(fixture.done(8, Callback::Unload), [Task::Call(Callback::Load)]);
    assert_eq!(fixture.reported().0, Phase::failed(1, "the disk is dead".to_owned()));

    // Also where the new role has failed, and rests.
    let mut fixture = Fixture::leading(17);
    let serve = Callback::Serve(Role::Follower, Epoch(18));
    fixture.order(5, order(ReplicaState::Live, Role::Follower, 18, true));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(serve)]);
    fixture.worker.returned(Millis(7), &replica(), serve, Err("no".to_owned()));
    assert_eq!(
        tasks(fixture.worker.unhealthy(Millis(8), &replica(), "the disk is dead")),
        [Task::AwaitRequests]
    );
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(9), &replica())), [Task::Call(Callback::Unload)]);
}

#[test]
fn d10_a_load_that_finds_damage_is_reported_so_until_one_succeeds() {
    let mut fixture = Fixture::new();
    fixture.order(0, order(ReplicaState::Live, Role::Follower, 17, true));
    let fails = |fixture: &mut Fixture, now| {
        fixture.worker.returned(Millis(now), &replica(), Callback::Load, Err("no".to_owned()));
        match fixture.reported().0 {
            Phase::Failed(failure) => (failure.attempts, failure.damaged),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fails(&mut fixture, 1), (1, false));
    fixture.worker.damaged(&replica());
    assert!(matches!(fixture.reported().0, Phase::Failed(failure) if !failure.damaged), "no load runs");
    fixture.worker.run(Millis(60_000));
    fixture.worker.damaged(&replica());
    assert_eq!(fails(&mut fixture, 60_001), (2, true));
    fixture.worker.run(Millis(120_000));
    fixture.done(120_001, Callback::Load);
    assert_eq!(fixture.reported().0, Phase::Ready);
}

#[test]
fn b11_a_load_that_gets_on_is_reported_with_the_next_beat() {
    let mut fixture = Fixture::new();
    fixture.order(0, order(ReplicaState::Load, Role::Follower, 17, true));
    fixture.worker.beat(Millis(1));
    let progress = |fixture: &mut Fixture, now| {
        let reports = fixture.worker.beat(Millis(now)).unwrap().reports;
        reports.iter().map(|report| report.progress).collect::<Vec<_>>()
    };
    assert_eq!(progress(&mut fixture, 2), [0u32; 0], "there is nothing new");
    fixture.worker.progressed(Millis(3), &replica());
    fixture.worker.progressed(Millis(4), &replica());
    assert!(!fixture.worker.has_news(), "it hurries no beat");
    assert_eq!((progress(&mut fixture, 5), progress(&mut fixture, 6)), (vec![2], vec![]));
    fixture.done(7, Callback::Load);
    assert_eq!(progress(&mut fixture, 8), [2]);
    fixture.worker.progressed(Millis(9), &replica());
    assert_eq!(progress(&mut fixture, 10), [0u32; 0], "nothing loads any more");
}
