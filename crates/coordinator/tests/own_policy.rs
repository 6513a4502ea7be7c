//! A placement policy and a sharder that a user brings (A3), in a coordinator with workers.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use door::{Door, Hand, until};
use partage_coordinator::Config;
use partage_core::base::settings::Settings;
use partage_core::placement::sharder::{BySharder, PolicySharder};
use partage_core::placement::{
    self, NodeIndex, Policies, Policy, Preference, Problem, ProblemError, ShardIndex, Solution, by_name,
};
use serde_json::json;

/// Everything on the node whose name comes last.
struct LastName;

struct Last(Vec<NodeIndex>);

impl Preference for Last {
    fn first(&self, _: ShardIndex, count: usize) -> Vec<NodeIndex> {
        self.0.iter().rev().take(count).copied().collect()
    }
    fn nodes(&self) -> usize {
        self.0.len()
    }
}

impl Policy for LastName {
    fn name(&self) -> &'static str {
        "last_name"
    }
    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        let mut nodes = placement::members(problem);
        nodes.sort_by_key(|node| problem.nodes[*node as usize].name.clone());
        placement::by_preference(self.name(), problem, &Last(nodes))
    }
}

#[tokio::test]
async fn a3_keyspaces_are_placed_by_what_a_user_brings() {
    let sharder = |replicas| PolicySharder::new(by_name("jump").unwrap(), replicas, 0);
    let policies = Policies::default().with(LastName).with(BySharder::new("in_a_row", sharder));
    let settings = Settings { settle_ms: 50, lease_ms: 60_000, dead_after_ms: 60_000, ..Settings::default() };
    let config = Config { settings, policies, ..Config::new("127.0.0.1:0".parse().unwrap()) };
    let door = Door::serving(config).await;
    let mut a = Hand::join(&door, "a").await;
    let mut b = Hand::join(&door, "b").await;

    let create = |name: &str, policy: &str| {
        let keyspace = json!({ "name": name, "sharding": { "type": "key_range" }, "policy": policy });
        let presplit = json!({ "type": "points", "keys": ["c", "g", "n"] });
        json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": presplit })
    };
    let (status, _, told) = door.refused(create("kv", "last_nam")).await;
    assert_eq!(status, 400, "{told}");
    assert!(told.contains("did you mean \"last_name\"") && told.contains("in_a_row"), "{told}");

    door.done(create("last", "last_name")).await;
    door.done(create("row", "in_a_row")).await;
    until(&door, &mut [&mut a, &mut b], |s| s["shards"]["led"] == 8 && s["moves"] == 0).await;
    let nodes = door.read("/v1/nodes").await;
    let held = |at: usize, keyspace: &str| nodes["nodes"][at]["replicas"][keyspace].as_u64().unwrap_or(0);
    assert_eq!((held(0, "last"), held(1, "last")), (0, 4), "{nodes}");
    assert_eq!(held(0, "row") + held(1, "row"), 4, "{nodes}");
    let why = door.read("/v1/explain/last?key=hello").await.to_string();
    assert!(why.contains("last_name"), "{why}");
}
