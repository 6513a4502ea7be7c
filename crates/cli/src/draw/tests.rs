use super::*;
use serde_json::{Value, json};

/// A shard with replicas: node, role, state.
fn shard(id: u64, stage: &str, replicas: &[(&str, &str, &str)]) -> Shard {
    let replicas = replicas.iter().map(|(node, role, state)| {
        json!({ "placement": 1, "node": node, "health": "up", "role": role, "state": state })
    });
    serde_json::from_value(json!({
        "shard": id, "bounds": { "type": "name", "name": "p" }, "stage": stage, "epoch": 1, "since_ms": 1,
        "since_at_least": false, "want": 1, "replicas": replicas.collect::<Value>(),
    }))
    .unwrap()
}

fn node(id: &str, health: &str) -> Node {
    serde_json::from_value(json!({
        "id": id, "address": "h:1", "incarnation": 1, "since_ms": 1, "health": health, "labels": [],
        "capacity": 1.0, "leaving": false, "busy": 0.0, "replicas": {}, "leaders": 0,
        "requests_per_s": 0.0, "cpu_ms_per_s": 0.0, "size_bytes": 0.0,
    }))
    .unwrap()
}

#[test]
fn every_state_has_its_mark_and_what_is_under_way_its_line() {
    let mut failing = shard(6, "serving", &[("n1", "follower", "load")]);
    failing.replicas[0].failure = Some("disk full".into());
    let shards = [
        shard(1, "serving", &[("n1", "leader", "live"), ("n10", "follower", "live")]),
        shard(2, "serving", &[("n1", "leader", "live"), ("n10", "follower", "load")]),
        shard(3, "serving", &[("n10", "leader", "live"), ("n1", "follower", "unload")]),
        shard(4, "serving", &[("n10", "leader", "live"), ("n1", "follower", "unload_final")]),
        shard(5, "serving", &[]),
        failing,
        shard(7, "closing", &[("n1", "leader", "unload")]),
    ];
    let nodes = [node("n1", "up"), node("n10", "down")];
    assert_eq!(
        grid(&shards, &nodes).painted(),
        "     s1 … s7
n1   ██▒▒ ✗▒
n10  ▓░██     down
         !    nowhere
     █ leads  ▓ follows  ░ loads  ▒ unloads  ✗ fails
under way: 5
  s2 serving: loads [n10]  live [n1]
  s3 serving: live [n10]  unloads [n1]
  s4 serving: live [n10]  drops [n1]
  s6 serving: loads [n1]  fails [n1]: disk full
  s7 closing: unloads [n1]"
    );
}

#[test]
fn many_shards_go_in_blocks_below_one_another() {
    let shards: Vec<Shard> = (1..=97).map(|id| shard(id, "serving", &[("n1", "leader", "live")])).collect();
    assert_eq!(
        grid(&shards, &[node("n1", "up")]).painted(),
        format!(
            "    s1 … s96\nn1  {}\n    s97 … s97\nn1  █\n    █ leads  ▓ follows  ░ loads  ▒ unloads  ✗ fails",
            "█".repeat(96)
        )
    );
    assert_eq!(grid(&[], &[]).painted(), "no shards");
}
