use super::*;
use crate::id::PlacementId;
use crate::plan::Change;

/// Two shards on "a", and a suggested plan that moves both to "b".
fn town() -> (Town, PlanId) {
    let mut town = Town::new(&["a", "b", "c"]);
    town.keyspace("users", HASHES, Presplit::HashRanges(2));
    (1..=2).for_each(|shard| town.put("users", shard, &["a"]));
    let to_b = |shard: u64| {
        let from = town.shard("users", shard).replicas[0].placement;
        Planned::new(Change::Move { shard: ShardId(shard), from, to: node("b") }, "balance")
    };
    let changes = vec![to_b(1), to_b(2)];
    let suggested = Mode::Suggested;
    town.cluster.keyspaces.get_mut(&name("users")).unwrap().record.keyspace.mode = suggested;
    let id = town.cluster.submit(town.at, &name("users"), Origin::Rebalance, changes);
    assert_eq!(town.cluster.plans[&id].status, Status::Suggested);
    let record = town.cluster.keyspaces[&name("users")].record.clone();
    town.cluster.outbox.writes.push(Write::Keyspace(record));
    town.flush();
    (town, id)
}

#[test]
fn k15_an_approved_plan_is_carried_out_and_says_by_whom() {
    let (mut town, plan) = town();
    let answer = town.done(Command::ApprovePlan { plan });
    assert_eq!(answer.plan.unwrap().decided_by.as_deref(), Some("ada"));
    town.refused(Command::ApprovePlan { plan }, Kind::Conflict, "approved already");
    town.rounds(6);
    assert_eq!([town.homes("users", 1), town.homes("users", 2)], [["b"], ["b"]]);
    town.refused(Command::ApprovePlan { plan }, Kind::Refused, "it is finished");
    // It names the nodes that its replicas have left, though the map knows nothing of them any more.
    let shown = town.cluster.shown_plan(plan).unwrap();
    let left: Vec<_> = shown.nodes.values().map(|node| node.as_str()).collect();
    assert_eq!(left, ["a", "a"], "{shown:?}");
    let next_leader = Cluster::recover(town.at, Settings::default(), town.records.clone()).unwrap();
    assert_eq!(next_leader.shown_plan(plan), Some(shown), "nor does the next leader");
    town.refused(Command::ApprovePlan { plan: PlanId(999) }, Kind::NotFound, "no plan-999");
}

#[test]
fn k15_a_rejected_plan_is_over() {
    let (mut town, plan) = town();
    town.done(Command::RejectPlan { plan });
    town.refused(Command::RejectPlan { plan }, Kind::Refused, "it is rejected");
    town.refused(Command::EditPlan { plan, drop: vec![0] }, Kind::Refused, "it is rejected");
    town.refused(Command::RejectPlan { plan: PlanId(999) }, Kind::NotFound, "no plan-999");
    let before = town.homes("users", 1);
    town.rounds(3);
    assert_eq!(town.homes("users", 1), before);
}

#[test]
fn k15_an_edited_plan_is_a_new_one_in_place_of_the_old() {
    let (mut town, plan) = town();
    let edit = |drop: &[usize]| Command::EditPlan { plan, drop: drop.to_vec() };
    town.refused(edit(&[2]), Kind::Invalid, "has no change 2");
    town.refused(edit(&[]), Kind::Invalid, "0 of the 2 changes");
    town.refused(edit(&[0, 1, 1]), Kind::Invalid, "2 of the 2 changes");
    let new = town.done(edit(&[0])).plan.unwrap().plan;
    assert_eq!((new.id, new.status, new.changes.len()), (plan.next(), Status::Suggested, 1));
    assert_eq!(new.origin, Origin::Person("ada".into()), "the planner must not supersede it");
    assert_eq!(new.changes[0].change.shards(), [ShardId(2)]);
    assert_eq!(town.cluster.plans[&plan].status, Status::Superseded);
    town.refused(Command::ApprovePlan { plan }, Kind::Refused, "it is superseded");
    town.done(Command::ApprovePlan { plan: new.id });
    town.rounds(6);
    assert_eq!([town.homes("users", 1), town.homes("users", 2)], [["a"], ["b"]]);
    let next = town.done(Command::AddReplica { keyspace: name("users"), shard: ShardId(1), node: node("c") });
    assert!(next.plan.unwrap().id > new.id, "its number is not given out again");
}

#[test]
fn an_approval_is_refused_when_the_world_has_changed_and_says_which_change() {
    let (mut town, plan) = town();
    // By hand, without a round, so that nobody has made another plan meanwhile.
    let keyspace = town.cluster.keyspaces.get_mut(&name("users")).unwrap();
    let mut edit = keyspace.map.edit();
    let gone = town_placement(keyspace, 2);
    edit.step(ShardId(2), gone, ReplicaState::Unload).unwrap();
    let diff = edit.commit(TransactionId([9; 20]));
    keyspace.map.apply(&diff).unwrap();
    town.refused(Command::ApprovePlan { plan }, Kind::Refused, "change 1 (move s2");
}

fn town_placement(keyspace: &KeyspaceState, shard: u64) -> PlacementId {
    keyspace.map.shard(ShardId(shard)).unwrap().replicas[0].placement
}

#[test]
fn an_approval_waits_for_the_brake() {
    let (mut town, plan) = town();
    town.cluster.record.brake = Some("many deaths".into());
    town.refused(Command::ApprovePlan { plan }, Kind::Refused, "the brake is on: many deaths");
}
