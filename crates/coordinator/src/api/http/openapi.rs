//! The API document as it is given out: what the derived forms do not say by themselves is added here, in one place.
//!
//! A Rust type says "a string" where only some words, or a name, can stand, and knows nothing of what stands before a
//! handler: the door, that a coordinator starts or stops, that one which stands by passes requests on. Clients are
//! generated from the document, and `./test api` sends what it allows and what it does not.

use crate::limits;
use partage_core::cluster::event::EventKind;
use partage_core::cluster::moves::MoveStage;
use partage_core::cluster::serving::Serving;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::{KeyspaceKind, Mode, Ownership, RowValues, Spread};
use partage_core::limits::NAME_BYTES;
use partage_core::node::Health;
use partage_core::node::exchange::DropReason;
use partage_wire::json::{
    ChangeProgress, DrainState, EventActor, PlanOrigin, PlanStatus, ReplicaPhase, ShardStage, Words,
};
use serde_json::{Map, Value, json};

/// What a string, or each string of a list, can be.
enum StringRule {
    /// One of these words.
    Words(Vec<String>),
    /// That matches.
    Pattern(&'static str),
    /// A name, see [`partage_core::base::name`].
    Name,
}

const ADDRESS: &str = r"^[^\s/@?#]+:[0-9]{1,5}$";
const HEX_64: &str = "^[0-9a-fA-F]{64}$";
const HEX_40: &str = "^[0-9a-fA-F]{40}$";
const HEX_32: &str = "^[0-9a-fA-F]{32}$";
const HEX: &str = "^([0-9a-fA-F]{2})*$";
const PLACE: &str = "^[0-9]{1,19}-[0-9]{1,19}$";
const NAME: &str = "^[A-Za-z0-9_:@+-][A-Za-z0-9_.:@+-]*$";

fn of<T: Words>() -> StringRule {
    StringRule::Words(T::WORDS.iter().map(T::word).collect())
}

fn words(words: &[&str]) -> StringRule {
    StringRule::Words(words.iter().map(|word| (*word).to_owned()).collect())
}

/// Every property whose strings are some words or have a form. A variant of a form counts as the form.
fn properties() -> Vec<(&'static str, &'static str, StringRule)> {
    let role = || of::<Role>();
    let state = || of::<ReplicaState>();
    let drop = || of::<DropReason>();
    let kinds = || of::<KeyspaceKind>();
    let hash = || words(&HashFunction::ALL.map(HashFunction::name));
    let mut rules = vec![
        ("DrainStatus", "progress", of::<DrainState>()),
        ("Event", "actor", of::<EventActor>()),
        ("Event", "kind", of::<EventKind>()),
        ("Generation", "transaction", StringRule::Pattern(HEX_40)),
        ("KeyText", "hex", StringRule::Pattern(HEX)),
        ("Keyspace", "kind", kinds()),
        ("Keyspace", "mode", of::<Mode>()),
        ("Keyspace", "ownership", of::<Ownership>()),
        ("Keyspace", "spread", of::<Spread>()),
        ("Keyspace", "values", of::<RowValues>()),
        ("KeyspaceBrief", "kind", kinds()),
        ("KeyspaceBrief", "ownership", of::<Ownership>()),
        ("KeyspaceBrief", "values", of::<RowValues>()),
        ("KeyspaceChanges", "mode", of::<Mode>()),
        ("KeyspaceChanges", "spread", of::<Spread>()),
        ("Move", "stage", of::<MoveStage>()),
        ("Node", "address", StringRule::Pattern(ADDRESS)),
        ("Node", "health", of::<Health>()),
        ("Node", "kinds", kinds()),
        ("Node", "resp_address", StringRule::Pattern(ADDRESS)),
        ("Order", "drop", drop()),
        ("Order", "role", role()),
        ("Order", "state", state()),
        ("Orders", "cluster", StringRule::Pattern(HEX_32)),
        ("Peer", "address", StringRule::Pattern(ADDRESS)),
        ("Peer", "role", role()),
        ("Peer", "state", state()),
        ("Permission", "reason", drop()),
        ("Plan", "origin", of::<PlanOrigin>()),
        ("Plan", "status", of::<PlanStatus>()),
        ("Planned", "progress", of::<ChangeProgress>()),
        ("Register", "address", StringRule::Pattern(ADDRESS)),
        ("Register", "callback", StringRule::Pattern(r"^http://[^\s/@?#]+:[0-9]{1,5}/")),
        ("Register", "check_path", StringRule::Pattern(r"^/[!-~]*$")),
        ("Register", "cluster", StringRule::Pattern(HEX_32)),
        ("Register", "kinds", kinds()),
        ("Register", "resp_address", StringRule::Pattern(ADDRESS)),
        ("Replica", "health", of::<Health>()),
        ("Replica", "phase", of::<ReplicaPhase>()),
        ("Replica", "role", role()),
        ("Replica", "state", state()),
        ("Report", "phase", of::<ReplicaPhase>()),
        ("Shard", "serving", of::<Serving>()),
        ("Shard", "stage", of::<ShardStage>()),
        ("Sharding", "hash", hash()),
        ("Welcome", "cluster", StringRule::Pattern(HEX_32)),
    ];
    for form in ["Beat", "Leave", "Register", "Welcome"] {
        rules.push((form, "token", StringRule::Pattern(HEX_64)));
    }
    for (form, property) in NAMES {
        rules.push((form, property, StringRule::Name));
    }
    rules
}

/// The properties that are names of people's choice.
const NAMES: [(&str, &str); 34] = [
    ("Beat", "node"),
    ("Change", "from_node"),
    ("Change", "node"),
    ("Change", "to_node"),
    ("Child", "nodes"),
    ("Command", "from"),
    ("Command", "keyspace"),
    ("Command", "node"),
    ("Command", "partitions"),
    ("Command", "to"),
    ("Command", "zone"),
    ("Constraint", "excluded"),
    ("Constraint", "labels"),
    ("Constraint", "pinned"),
    ("DrainStatus", "behind"),
    ("DrainStatus", "node"),
    ("Explanation", "keyspace"),
    ("HostedShard", "keyspace"),
    ("Keyspace", "name"),
    ("KeyspaceBrief", "name"),
    ("Known", "keyspace"),
    ("Leave", "node"),
    ("Move", "keyspace"),
    ("Node", "id"),
    ("Node", "labels"),
    ("Peer", "node"),
    ("Plan", "keyspace"),
    ("Presplit", "names"),
    ("Register", "id"),
    ("Register", "labels"),
    ("Register", "rack"),
    ("Register", "zone"),
    ("Replica", "node"),
    ("ReplicaKey", "keyspace"),
];

/// The document with all of that in it.
pub(super) fn complete(document: &utoipa::openapi::OpenApi) -> Value {
    // Strings and lists of them can always be written.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    whole_numbers(&mut document);
    for (form, property, rule) in properties() {
        narrow(&mut document["components"]["schemas"][form], property, &rule);
    }
    let capacity = &mut document["components"]["schemas"]["Register"]["properties"]["capacity"];
    capacity["minimum"] = json!(partage_core::limits::CAPACITIES.start());
    capacity["maximum"] = json!(partage_core::limits::CAPACITIES.end());
    let beat = &mut document["components"]["schemas"]["Beat"]["properties"];
    beat["sequence"]["minimum"] = json!(1);
    beat["busy"]["minimum"] = json!(0);
    beat["busy"]["maximum"] = json!(1);
    for operations in objects(&mut document["paths"]).map(|(_, operations)| operations) {
        for (method, operation) in objects(operations) {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            parameters.into_iter().flatten().for_each(parameter);
            responses(operation, method == "post");
        }
    }
    document
}

fn objects(of: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    of.as_object_mut().into_iter().flat_map(Map::iter_mut)
}

/// An `int64` of the derived forms is a `u64`, whose largest is beyond that.
fn whole_numbers(value: &mut Value) {
    if value["format"] == "int64" && value["minimum"] == 0 {
        value["format"] = json!("uint64");
        value["maximum"] = json!(u64::MAX);
    } else if value["format"] == "int32" && value["minimum"] == 0 {
        value["format"] = json!("uint32");
        value["maximum"] = json!(u32::MAX);
    } else if value["type"] == "integer" && value["minimum"] == 0 && value.get("format").is_none() {
        value["maximum"] = json!(u64::MAX);
    }
    match value {
        Value::Object(of) => of.values_mut().for_each(whole_numbers),
        Value::Array(of) => of.iter_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// Says of every property of that name in the form, or in a variant of it, what its strings can be. Returns how many.
fn narrow(form: &mut Value, property: &str, rule: &StringRule) -> usize {
    let mut count = 0;
    if let Some(found) = form.get_mut("properties").and_then(|all| all.get_mut(property))
        && can_be_text(found)
    {
        rule.apply(found);
        count += 1;
    }
    for variants in ["oneOf", "anyOf", "allOf"] {
        let variants = form.get_mut(variants).and_then(Value::as_array_mut);
        count += variants.into_iter().flatten().map(|one| narrow(one, property, rule)).sum::<usize>();
    }
    count
}

fn can_be_text(schema: &Value) -> bool {
    let is_text = |kind: &Value| {
        kind == "string" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "string"))
    };
    is_text(&schema["type"]) || schema["type"] == "array" && is_text(&schema["items"]["type"])
}

impl StringRule {
    fn apply(&self, schema: &mut Value) {
        if schema["type"] == "array" {
            return self.apply(&mut schema["items"]);
        }
        match self {
            StringRule::Words(words) => {
                let none = schema["type"].is_array().then_some(Value::Null);
                schema["enum"] = words.iter().map(|word| json!(word)).chain(none).collect();
            }
            StringRule::Pattern(pattern) => schema["pattern"] = json!(pattern),
            StringRule::Name => {
                schema["pattern"] = json!(NAME);
                schema["minLength"] = json!(1);
                schema["maxLength"] = json!(NAME_BYTES);
            }
        }
    }
}

/// What may stand in a path, a query or a header.
fn parameter(parameter: &mut Value) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let schema = &mut parameter["schema"];
    match name.as_str() {
        "keyspace" | "node" => StringRule::Name.apply(schema),
        "after" if can_be_text(schema) => StringRule::Pattern(PLACE).apply(schema),
        "key_hex" => StringRule::Pattern(HEX).apply(schema),
        "limit" => (schema["minimum"], schema["maximum"]) = (json!(1), json!(limits::PAGE_MOST)),
        "wait_ms" => schema["maximum"] = json!(limits::WAIT_MS),
        "partage-user" => {
            (schema["minLength"], schema["maxLength"]) = (json!(1), json!(limits::USER_BYTES));
            StringRule::Pattern(r"^[^\x00-\x1f\x7f-\x9f]+$").apply(schema);
        }
        _ => {}
    }
}

/// Every operation can be answered so, before its handler is asked; one that changes something also in other ways.
fn responses(operation: &mut Value, is_change: bool) {
    let error = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } });
    let mut answers = vec![
        ("400", "it cannot be understood, or can never be as given"),
        ("403", "a page of another site asks, or it would change something and is neither marked nor JSON"),
        ("408", "it came too slowly"),
        ("421", "`Host` names another than this listener"),
        ("503", "the coordinator starts or stops, or too much is under way: try again"),
        ("504", "one that stands by got no answer of the one that leads: it may have been done"),
    ];
    if is_change {
        answers.push(("413", "the body is too large"));
    }
    for (status, description) in answers {
        if operation["responses"].get(status).is_none() {
            operation["responses"][status] = json!({ "description": description, "content": error });
        }
    }
    let Some(unavailable) = operation["responses"].get_mut("503") else { return };
    let retry = json!({ "description": "Seconds to wait", "schema": { "type": "integer", "minimum": 0 } });
    unavailable["headers"]["retry-after"] = retry;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::http::documented;

    #[test]
    fn all_that_is_said_of_properties_is_said_of_one_that_there_is() {
        let mut document = serde_json::to_value(documented().1).unwrap();
        for (form, property, rule) in properties() {
            let found = narrow(&mut document["components"]["schemas"][form], property, &rule);
            assert!(found > 0, "{form} has no text {property}");
        }
    }

    #[test]
    fn every_operation_says_how_it_is_refused_and_in_one_shape() {
        let document = complete(&documented().1);
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                let mut wanted = vec!["400", "403", "408", "421", "503"];
                wanted.extend((method == "post").then_some("413"));
                for status in wanted {
                    assert!(responses.contains_key(status), "{method} {path}: {status}");
                }
                for (status, response) in responses.iter().filter(|(status, _)| !status.starts_with('2')) {
                    let is_health = path.starts_with("/health/") && status == "503";
                    let shape = &response["content"]["application/json"]["schema"]["$ref"];
                    assert!(
                        is_health || shape == "#/components/schemas/ErrorBody",
                        "{method} {path}: {status}"
                    );
                }
            }
        }
        let command = &document["components"]["schemas"]["Keyspace"]["properties"];
        assert_eq!(command["ownership"]["enum"], json!(["eventual", "exclusive", "replicated", null]));
        assert_eq!(command["name"]["maxLength"], 255);
    }
}
