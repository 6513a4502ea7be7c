//! What people read, word for word.

use super::{answer_text, explain, node, plan, status};
use partage_wire::json::{Answer, Explanation, Plan, Summary};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn line(change: Value, reason: &str) -> Value {
    json!({ "change": change, "reason": reason, "progress": "waiting" })
}

fn plan_of(status: &str, changes: Value) -> Value {
    let base = json!({ "sequence": 3, "transaction": "00".repeat(20) });
    json!({
        "id": 16, "keyspace": "kv", "base": base, "origin": "drain", "changes": changes, "status": status,
        "made_ms": 1,
    })
}

fn one_of_each() -> Value {
    let child = |begin: &str, end: &str| json!({ "bounds": { "type": "keys", "begin": begin, "end": end }, "nodes": ["n1"] });
    let half = |first: &str, last: &str| json!({ "bounds": { "type": "hashes", "first": first, "last": last }, "nodes": ["n1"] });
    let slot = |slot: u32| json!({ "bounds": { "type": "slot", "slot": slot, "of": 8 }, "nodes": ["n1"] });
    json!([
        line(
            json!({ "type": "add", "shard": 1, "node": "n2" }),
            "add a replica of s1 on n2: it has 0 of 1 replicas"
        ),
        line(
            json!({ "type": "move", "shard": 2, "from_placement": 97, "from_node": "n1", "to_node": "n2" }),
            "move a replica of s2 from n1 to n2: n1 is being drained",
        ),
        line(
            json!({ "type": "move", "shard": 3, "from_placement": 98, "from_node": "n1", "to_node": "n2" }),
            "ada asked for it"
        ),
        line(json!({ "type": "remove", "shard": 4, "placement": 99, "node": "n3" }), "it wants 1"),
        line(
            json!({ "type": "lead", "shard": 5, "placement": 7, "node": "n3" }),
            "n1 leads more than its share"
        ),
        line(
            json!({ "type": "split", "shard": 6, "children": [child("", "g"), child("g", "n"), child("n", "")] }),
            "hot"
        ),
        line(
            json!({
                "type": "split", "shard": 7,
                "children": [half("0000000000000000", "7fffffffffffffff"), half("8000000000000000", "ffffffffffffffff")],
            }),
            "large",
        ),
        line(json!({ "type": "split", "shard": 8, "children": [slot(1), slot(5)] }), "ada asked for it"),
        line(json!({ "type": "merge", "shards": [9, 10], "child": child("a", "c") }), "cold"),
    ])
}

#[test]
fn a_plan_names_the_nodes_the_cuts_and_the_parents() {
    let plan: Plan = from(plan_of("approved", one_of_each()));
    assert_eq!(
        plan::preview(&plan),
        r#"plan 16 of kv by drain, approved: 1 add, 2 moves, 1 remove, 1 change of leader, 3 splits, 1 merge
    0  + s1 on n2                        it has 0 of 1 replicas
    1  → s2 from n1 to n2                n1 is being drained
    2  → s3 from n1 to n2                ada asked for it
    3  - s4 from n3                      it wants 1
    4  ♔ s5 led by n3                    n1 leads more than its share
    5  ⑂ s6 at "g", "n"                  hot
    6  ⑂ s7 at 8000000000000000          large
    7  ⑂ s8 into slot 1 of 8, slot 5 of 8  ada asked for it
    8  ⑃ s9 + s10 into keys from "a" to "c"  cold"#
    );
}

/// Kept by a version that did not keep where the replica was.
#[test]
fn a_plan_of_an_earlier_version_names_a_replica_that_has_gone_by_its_number() {
    let change = json!({ "type": "move", "shard": 3, "from_placement": 98, "to_node": "n2" });
    let plan: Plan = from(plan_of("finished", json!([line(change, "ada asked for it")])));
    assert!(plan::preview(&plan).contains("→ s3 from p98 to n2"), "{}", plan::preview(&plan));
}

#[test]
fn a_dry_run_speaks_of_a_plan_that_there_is_not() {
    let mut suggested = plan_of("suggested", json!([one_of_each()[1]]));
    suggested["origin"] = json!("rebalance");
    let mut refused = plan_of("refused", json!([]));
    refused["refused_because"] = json!("the brake is on: many deaths");
    let mut answer = json!({
        "summary": "drain n1 (2 replicas)", "warnings": [], "dry_run": true,
        "follows": [plan_of("approved", json!([one_of_each()[1]])), suggested, refused],
        "shares": [{ "node": "n1", "before": 2, "after": 0 }, { "node": "n2", "before": 1, "after": 3 }],
        "drains": [
            { "node": "n1", "reason": "disk", "asked_ms": 1, "progress": "moving", "behind": [], "stuck": [], "left": 2 },
            { "node": "n3", "reason": "disk", "asked_ms": 1, "progress": "queued", "behind": ["n1"], "max_down": 1, "stuck": [] },
        ],
    });
    assert_eq!(
        answer_text(&from::<Answer>(answer.clone())),
        "would: drain n1 (2 replicas)
a plan for kv by drain, which would begin at once: 1 move
    0  → s2 from n1 to n2                n1 is being drained
a plan for kv by rebalance, which would wait for approval: 1 move
    0  → s2 from n1 to n2                n1 is being drained
a plan for kv by drain, which would be refused: the brake is on: many deaths: nothing
replicas   n1 2 → 0, n2 1 → 3
drain      n3 (disk): queued until fewer than 1 of n1 are down or drained"
    );
    answer["follows"] = json!([]);
    answer["drains"] = json!([
        { "node": "n1", "reason": "disk", "asked_ms": 1, "progress": "blocked", "left": 2, "behind": [], "stuck": ["why"] },
    ]);
    let blocked = answer_text(&from::<Answer>(answer.clone()));
    assert!(
        blocked.contains("no plan would follow while it is blocked") && blocked.contains("why"),
        "{blocked}"
    );
    answer["drains"] = json!([]);
    answer["shares"] = json!([]);
    assert_eq!(answer_text(&from::<Answer>(answer)), "would: drain n1 (2 replicas)\nno plan would follow");
}

#[test]
fn a_queued_drain_says_what_the_coordinator_says() {
    use partage_core::base::name::NodeId;
    use partage_core::cluster::admin as core;
    let named = |name: &str| NodeId::new(name).unwrap();
    let queued = core::DrainStatus {
        node: named("n3"),
        reason: "disk".to_owned(),
        asked_ms: 1,
        progress: core::DrainProgress::Queued { behind: vec![named("n1"), named("n2")], max_down: 2 },
    };
    let told = queued.to_string();
    assert_eq!(told, "n3: queued until fewer than 2 of n1, n2 are down or drained");
    let line = node::drain_line(&(&queued).into());
    assert_eq!(line, told.replace("n3:", "drain      n3 (disk):"));
}

#[test]
fn a_dry_run_of_a_drain_begins_with_the_plans_that_empty_the_node() {
    let changes = one_of_each();
    let of = |keyspace: &str, origin: &str, change: &Value| {
        let mut plan = plan_of("approved", json!([change]));
        (plan["keyspace"], plan["origin"]) = (json!(keyspace), json!(origin));
        plan
    };
    let add = |node: &str| line(json!({ "type": "add", "shard": 9, "node": node }), "it has none");
    let follows = [
        of("a", "rebalance", &add("n4")),
        of("b", "drain", &changes[4]),
        of("c", "rebalance", &changes[1]),
        of("d", "repair", &add("n4")),
    ];
    let drain = json!({ "node": "n1", "reason": "disk", "asked_ms": 1, "progress": "moving", "left": 2 });
    let mut answer =
        json!({ "summary": "x", "warnings": [], "dry_run": true, "follows": follows, "drains": [drain] });
    let order = |answer: &Value| -> Vec<String> {
        let text = answer_text(&from::<Answer>(answer.clone()));
        let plans = text.lines().filter_map(|line| line.strip_prefix("a plan for "));
        plans.map(|line| line[..1].to_owned()).collect()
    };
    assert_eq!(order(&answer), ["b", "c", "a", "d"]);
    answer["drains"] = json!([]);
    assert_eq!(order(&answer), ["a", "b", "c", "d"], "no node is drained");
}

#[test]
fn a_large_plan_and_a_large_cluster_are_cut_with_the_way_to_all_of_it() {
    let add = |shard: u32| line(json!({ "type": "add", "shard": shard, "node": "n" }), "it has none");
    let plan: Plan = from(plan_of("approved", (0..42).map(add).collect()));
    let text = plan::preview(&plan);
    assert!(text.ends_with("… and 2 more (--json shows all)") && text.contains(": 42 adds\n"), "{text}");
    let share = |node: u32| json!({ "node": format!("n{node}"), "before": 1, "after": 0 });
    let shares: Value = (0..18).map(share).collect();
    let answer: Answer = from(json!({ "summary": "x", "warnings": [], "dry_run": true, "shares": shares }));
    assert!(answer_text(&answer).ends_with("n15 1 → 0 and 2 more nodes (--json shows all)"));
}

fn summary(problems: Value) -> Value {
    let shards = json!({
        "led": 36, "unserved": 12, "silent": 8, "braked": 4, "set_aside": 0, "loading": 0, "unplaced": 0, "forming": 0,
        "closing": 0, "removing": 0,
    });
    let lack = |shard: u32| json!({ "keyspace": "kv", "shard": shard, "have": 1, "want": 2, "why": "no other node may take it" });
    json!({
        "problems": problems, "keyspaces": 2, "shards": shards, "replicas": { "live": 48 },
        "nodes": { "up": 3, "down": 3 }, "drains": [], "set_aside": [], "under_way": [], "moves": 0, "loads": 0,
        "short": 20, "unplaced": (0..20).map(lack).collect::<Value>(),
        "complaints": { "kv": (0..20).map(|at| format!("replica 1 of s{at} has no node: add one")).collect::<Value>() },
        "suggested": (1..9).collect::<Value>(),
    })
}

#[test]
fn the_status_begins_with_what_is_wrong_and_stays_short() {
    let problems = json!([{ "what": "the brake is on", "way_out": "`partage brake release`" }]);
    let lines = status::lines(&from::<Summary>(summary(problems)));
    assert_eq!(
        lines.join("\n"),
        "WRONG      the brake is on
           → `partage brake release`
keyspaces  2
nodes      3 down, 3 up
shards     36 of 48 are served
replicas   48 live
under way  0 moves, 0 loads
short      20 shards have fewer replicas than wanted
waiting    plan 1: `partage plan show 1`, then `partage plan approve 1`
waiting    plan 2: `partage plan show 2`, then `partage plan approve 2`
waiting    plan 3: `partage plan show 3`, then `partage plan approve 3`
waiting    plan 4: `partage plan show 4`, then `partage plan approve 4`
waiting    plan 5: `partage plan show 5`, then `partage plan approve 5`
           … 8 plans wait: `partage plan list`"
    );
}

#[test]
fn the_status_says_until_when_loads_are_awaited() {
    let said = |awaited: Value| {
        let mut form = summary(json!([]));
        form["loads_awaited"] = awaited;
        status::lines(&from::<Summary>(form)).join("\n")
    };
    let one = said(json!({ "kv": 41_200 }));
    assert!(one.contains(
        "\nbalance    kv: nothing is moved before all nodes have reported loads, or in 42 s without"
    ));
    assert!(said(json!({ "kv": 1, "users": 59_000 })).contains("\nbalance    2 keyspaces: "));
    assert!(!said(json!({})).contains("balance"));
}

/// C13: whatever there is much of is cut, with the way to all of it.
#[test]
fn the_status_of_a_cluster_in_which_much_is_wrong_stays_short() {
    let mut form = summary(json!([]));
    let why = |at: u32| json!({ "keyspace": format!("k{at}"), "why": "keyspaces/k/record is damaged" });
    form["quarantine"] = (0..50).map(why).collect();
    form["stored_faults"] = (0..50).map(|at| json!(format!("plans/{at} is damaged and left out"))).collect();
    let stuck: Vec<_> = (0..20).map(|at| format!("no node could take shard s{at}")).collect();
    let drain = |at: u32| {
        json!({
            "node": format!("n{at}"), "reason": "disk", "asked_ms": 1, "progress": "moving", "behind": [],
            "stuck": stuck, "left": 20, "of": 30,
        })
    };
    form["drains"] = (0..50).map(drain).collect();
    let text = status::lines(&from::<Summary>(form)).join("\n");
    assert!(text.lines().count() < 80, "{} lines:\n{text}", text.lines().count());
    for cut in [
        "45 more keyspaces in quarantine",
        "45 more things that were mended",
        "40 more drains",
        "18 more reasons",
    ] {
        assert!(text.contains(cut), "{cut} is not in\n{text}");
    }
}

#[test]
fn the_status_of_a_coordinator_that_has_just_begun_says_so() {
    let mut form = summary(json!([]));
    form["shards"] = json!({
        "led": 0, "unheard": 48, "unserved": 0, "silent": 0, "braked": 0, "set_aside": 0, "loading": 0, "unplaced": 0,
        "forming": 0, "closing": 0, "removing": 0,
    });
    form["nodes"] = json!({ "unknown": 3 });
    let text = status::lines(&from::<Summary>(form)).join("\n");
    let says = "shards     0 of 48 are served, 48 are not known yet: this coordinator has just begun, and has not heard 3 \
                nodes; ask again\n";
    assert!(text.contains(says) && !text.contains("WRONG"), "{text}");
}

#[test]
fn an_explanation_says_since_when_and_what_is_in_the_way_once() {
    let told: Explanation = from(json!({
        "keyspace": "kv", "key": "", "policy": "balanced", "granted": false, "reasons": [null],
        "would_move": [], "under_way": ["it is loaded on n1"], "blocked": ["no replica leads it"],
        "shard": {
            "shard": 1, "stage": "serving", "epoch": 2, "since_ms": u64::MAX, "since_at_least": true, "want": 1,
            "bounds": { "type": "keys", "begin": "", "end": "" },
            "replicas": [{
                "placement": 1, "node": "n1", "health": "up", "role": "follower", "state": "load",
                "phase": "loading",
            }],
        },
    }));
    assert_eq!(
        explain::text(&told),
        r#""" of kv is in shard s1: keys from "" to the end
  epoch 2 for 0 s or more, serving, placed by balanced
  follower on n1: load, loading
  under way:
    - it is loaded on n1
  in the way:
    - no replica leads it"#
    );
}
