use super::*;
use crate::base::id::PlacementId;
use crate::cluster::tests::submit;
use crate::plan::Change;

/// Two shards on "a", and a suggested plan that moves both to "b".
fn test_cluster() -> (AdminTestCluster, PlanId) {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.keyspace("users", HASHES, Presplit::HashRanges(2));
    (1..=2).for_each(|shard| test.put("users", shard, &["a"]));
    let to_b = |shard: u64| {
        let from = test.shard("users", shard).replicas[0].placement;
        Planned::new(Change::Move { shard: ShardId(shard), from, to: node("b") }, "balance")
    };
    let changes = vec![to_b(1), to_b(2)];
    let suggested = Mode::Suggested;
    test.cluster.keyspaces.get_mut(&name("users")).unwrap().record.keyspace.mode = suggested;
    let id = submit(&mut test.cluster, test.at, &name("users"), Origin::Rebalance, changes);
    assert_eq!(test.cluster.plans.by_id[&id].status, Status::Suggested);
    let record = test.cluster.keyspaces.by_name[&name("users")].record.clone();
    test.cluster.outbox.writes.push(Write::Keyspace(record));
    test.flush();
    (test, id)
}

#[test]
fn k15_an_approved_plan_is_carried_out_and_says_by_whom() {
    let (mut test, plan) = test_cluster();
    let answer = test.done(Command::ApprovePlan { plan });
    assert_eq!(answer.plan.unwrap().decided_by.as_deref(), Some("ada"));
    test.refused(Command::ApprovePlan { plan }, Kind::Conflict, "approved already");
    test.rounds(6);
    assert_eq!([test.homes("users", 1), test.homes("users", 2)], [["b"], ["b"]]);
    test.refused(Command::ApprovePlan { plan }, Kind::Refused, "it is finished");
    // It names the nodes that its replicas have left, though the map knows nothing of them any more.
    let shown = test.cluster.shown_plan(plan).unwrap();
    let left: Vec<_> = shown.nodes.values().map(|node| node.as_str()).collect();
    assert_eq!(left, ["a", "a"], "{shown:?}");
    let next_leader = Cluster::recover(test.at, Settings::default(), test.records.clone()).unwrap();
    assert_eq!(next_leader.shown_plan(plan), Some(shown), "nor does the next leader");
    test.refused(Command::ApprovePlan { plan: PlanId(999) }, Kind::NotFound, "no plan-999");
}

#[test]
fn k15_a_rejected_plan_is_over() {
    let (mut test, plan) = test_cluster();
    test.done(Command::RejectPlan { plan });
    test.refused(Command::RejectPlan { plan }, Kind::Refused, "it is rejected");
    test.refused(Command::EditPlan { plan, drop: vec![0] }, Kind::Refused, "it is rejected");
    test.refused(Command::RejectPlan { plan: PlanId(999) }, Kind::NotFound, "no plan-999");
    let before = test.homes("users", 1);
    test.rounds(3);
    assert_eq!(test.homes("users", 1), before);
}

#[test]
fn k15_an_edited_plan_is_a_new_one_in_place_of_the_old() {
    let (mut test, plan) = test_cluster();
    let edit = |drop: &[usize]| Command::EditPlan { plan, drop: drop.to_vec() };
    test.refused(edit(&[2]), Kind::Invalid, "has no change 2");
    test.refused(edit(&[]), Kind::Invalid, "0 of the 2 changes");
    test.refused(edit(&[0, 1, 1]), Kind::Invalid, "2 of the 2 changes");
    let new = test.done(edit(&[0])).plan.unwrap().plan;
    assert_eq!((new.id, new.status, new.changes.len()), (plan.next(), Status::Suggested, 1));
    assert_eq!(new.origin, Origin::Person("ada".into()), "the planner must not supersede it");
    assert_eq!(new.changes[0].change.shards(), [ShardId(2)]);
    assert_eq!(test.cluster.plans.by_id[&plan].status, Status::Superseded);
    test.refused(Command::ApprovePlan { plan }, Kind::Refused, "it is superseded");
    test.done(Command::ApprovePlan { plan: new.id });
    test.rounds(6);
    assert_eq!([test.homes("users", 1), test.homes("users", 2)], [["a"], ["b"]]);
    let next = test.done(Command::AddReplica { keyspace: name("users"), shard: ShardId(1), node: node("c") });
    assert!(next.plan.unwrap().id > new.id, "its number is not given out again");
}

#[test]
fn an_approval_is_refused_when_the_world_has_changed_and_says_which_change() {
    let (mut test, plan) = test_cluster();
    // By hand, without a round, so that nobody has made another plan meanwhile.
    let keyspace = test.cluster.keyspaces.get_mut(&name("users")).unwrap();
    let mut edit = keyspace.map.edit();
    let gone = placement_in(keyspace, 2);
    edit.step(ShardId(2), gone, ReplicaState::Unload).unwrap();
    let diff = edit.commit(TransactionId([9; 20]));
    keyspace.map.apply(&diff).unwrap();
    test.refused(Command::ApprovePlan { plan }, Kind::Refused, "change 1 (move s2");
}

fn placement_in(keyspace: &KeyspaceState, shard: u64) -> PlacementId {
    keyspace.map.shard(ShardId(shard)).unwrap().replicas[0].placement
}

#[test]
fn an_approval_waits_for_the_brake() {
    let (mut test, plan) = test_cluster();
    test.cluster.record.brake = Some("many deaths".into());
    test.refused(Command::ApprovePlan { plan }, Kind::Refused, "the brake is on: many deaths");
}
