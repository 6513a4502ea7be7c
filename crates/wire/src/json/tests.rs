//! Requests as people write them, and what is said about those that are wrong.

use super::{Beat, Bounds, Command, CommandRequest, Keyspace, Orders, Plan, Register, parse};
use crate::testing;
use partage_core::cluster::admin;
use partage_core::node::exchange::Registration;
use partage_core::{keyspace, keyspace::sharding, node::CheckBack, node::exchange};
use proptest::prelude::*;
use serde_json::json;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bounds_and_keyspaces_come_in_the_same(
        bounds in testing::bounds(), keyspace in testing::keyspaces(), registration in testing::registrations(),
    ) {
        let form: Bounds = parse(&serde_json::to_vec(&Bounds::from(&bounds)).unwrap()).unwrap();
        prop_assert_eq!(sharding::Bounds::try_from(form), Ok(bounds));
        let form: Keyspace = parse(&serde_json::to_vec(&Keyspace::from(&keyspace)).unwrap()).unwrap();
        prop_assert_eq!(keyspace::Keyspace::try_from(form), Ok(keyspace));
        let form: Register = parse(&serde_json::to_vec(&Register::from(&registration)).unwrap()).unwrap();
        prop_assert_eq!(Registration::try_from(form), Ok(registration));
    }

    #[test]
    fn what_is_answered_can_be_read(orders in testing::orders(), plan in testing::plans()) {
        let form = Orders::from(&orders);
        let read: Orders = serde_json::from_slice(&serde_json::to_vec(&form).unwrap()).unwrap();
        prop_assert_eq!(read, form);
        let form = Plan::from(&plan);
        let read: Plan = serde_json::from_slice(&serde_json::to_vec(&form).unwrap()).unwrap();
        prop_assert_eq!(read, form);
    }
}

fn body(value: &serde_json::Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[test]
fn the_shortest_registration_has_defaults() {
    let form: Register = parse(br#"{"id": "n1", "address": "10.0.0.1:80"}"#).unwrap();
    let registration = Registration::try_from(form).unwrap();
    assert_eq!(registration.spec.capacity, 1.0);
    assert_eq!(registration.spec.check_back, CheckBack::Connect);
    assert_eq!(registration.incarnation, None);
}

#[test]
fn an_unknown_field_names_the_nearest() {
    let error = parse::<Register>(br#"{"id": "n1", "adress": "h:1"}"#).unwrap_err().error;
    assert_eq!((error.kind.as_str(), error.help.as_str()), ("malformed", "did you mean address?"));
    assert!(error.message.contains("line 1 column 21"), "{}", error.message);
    let wrong = json!({"do": {"command": "drain_nod", "node": "n1"}});
    assert_eq!(parse::<CommandRequest>(&body(&wrong)).unwrap_err().error.help, "did you mean drain_node?");
    let wrong = json!({"do": {"command": "undrain_node", "nod": "n1"}});
    assert_eq!(parse::<CommandRequest>(&body(&wrong)).unwrap_err().error.help, "did you mean node?");
    let not_json = parse::<Register>(b"{").unwrap_err().error;
    assert!(not_json.help.starts_with("send a JSON object"), "{not_json:?}");
}

#[test]
fn a_beat_with_reports_is_read_and_a_wrong_one_names_its_field() {
    let beat = |phase: &str, requests: f64| {
        let replica = json!({"keyspace": "users", "shard": 4, "placement": 9});
        let load =
            json!({"requests_per_s": requests, "hot_keys": [{"key": {"hex": "00ff"}, "requests_per_s": 2}]});
        let report = json!({"replica": replica, "phase": phase, "epoch": 3, "load": load});
        let beat = json!({"node": "n1", "incarnation": 7, "token": "0".repeat(64), "sequence": 1, "sent_at_ms": 5, "reports": [report]});
        exchange::Beat::try_from(parse::<Beat>(&body(&beat)).unwrap())
    };
    let read = beat("serving", 1.5).unwrap();
    assert_eq!(read.reports[0].phase, exchange::Phase::Serving);
    let hot = &read.reports[0].load.as_ref().unwrap().profile.hot_keys()[0].key;
    assert_eq!(hot.as_bytes(), [0, 255]);
    assert_eq!(beat("srving", 1.0).unwrap_err().field, "reports[0].phase");
    assert_eq!(beat("serving", -1.0).unwrap_err().field, "reports[0].load.requests_per_s");
}

#[test]
fn commands_are_read() {
    let read = |value: serde_json::Value| {
        let request: CommandRequest = parse(&body(&json!({"do": value}))).map_err(|e| e.error.message)?;
        admin::Command::try_from(request.command).map_err(|malformed| malformed.to_string())
    };
    assert_eq!(read(json!({"command": "release_brake"})), Ok(admin::Command::ReleaseBrake));
    let create = json!({"command": "create_keyspace",
        "keyspace": {"name": "users", "sharding": {"type": "key_range"}},
        "presplit": {"type": "points", "keys": ["g", {"hex": "ff"}]}});
    let Ok(admin::Command::CreateKeyspace { keyspace, presplit, ahead: false }) = read(create) else {
        panic!("it is read")
    };
    assert_eq!(keyspace.replicas, 1);
    let admin::Presplit::Points(keys) = presplit else { panic!("points") };
    assert_eq!(keys.iter().map(|key| key.as_bytes()).collect::<Vec<_>>(), [&b"g"[..], b"\xff"]);
    let split = json!({"command": "split_shard", "keyspace": "users", "shard": 3});
    let at = admin::SplitAt::Middle;
    let expected = admin::Command::SplitShard {
        keyspace: "users".parse().unwrap(),
        shard: partage_core::base::id::ShardId(3),
        at,
    };
    assert_eq!(read(split), Ok(expected));
    let bad = json!({"command": "drain_node", "node": "a/b", "reason": ""});
    assert!(read(bad).unwrap_err().starts_with("node: the node name"));
    let bad = json!({"command": "pin_shard", "keyspace": "u", "shard": 1, "constraint": {"pined": []}});
    assert!(read(bad).unwrap_err().contains("unknown field `pined`"));
}

#[test]
fn an_odd_hex_key_is_refused() {
    let form = |hex: &str| {
        let command = json!({"command": "isolate_key", "keyspace": "u", "key": {"hex": hex}});
        parse::<Command>(&body(&command)).map(admin::Command::try_from).unwrap()
    };
    assert!(form("0a").is_ok());
    for bad in ["0", "0g", "+1", "é"] {
        assert_eq!(form(bad).unwrap_err().field, "hex", "{bad}");
    }
}

#[test]
fn the_forms_have_schemas() {
    use utoipa::PartialSchema;
    let schema = serde_json::to_string(&Command::schema()).unwrap();
    for word in ["create_keyspace", "edit_plan", "max_down"] {
        assert!(schema.contains(word), "{word} in {schema}");
    }
}
