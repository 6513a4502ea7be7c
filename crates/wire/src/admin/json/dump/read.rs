//! A dump that may be damaged: everything that is wrong with it, and what can be read all the same.
//!
//! The strict way ([`TryFrom`]) fails at the first part that is damaged. Here
//! each part is read by itself: keyspaces, shards, replicas, nodes and plans that are whole are kept, and
//! each that is not is named with where it lies, by the names that people know it by.

use super::{
    DumpCluster, DumpKeyspace, DumpMap, DumpNode, DumpReplica, DumpShard, check_format, map_of, rule,
};
use crate::Malformed;
use crate::json::{Keyspace, Plan, nearest};
use partage_core::base::id::ShardId;
use partage_core::cluster::{KeyspaceRecord, Records};
use partage_core::keyspace::map::{Replica, Shard, ShardMap};
use partage_core::{base::suggest, cluster::check, keyspace};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What was read of a dump.
#[derive(Debug, Default)]
pub struct Reading {
    /// What can be made of it.
    pub records: Records,
    /// What cannot be read, and then what must never be; empty = the dump is sound.
    pub problems: Vec<String>,
    /// Something could not be read, so `records` are not all there was.
    pub has_lost: bool,
}

impl Reading {
    /// Reads all that can be read, and checks it.
    pub fn of(bytes: &[u8]) -> Reading {
        let mut reading = Reading::default();
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(document)) => reading.document(document),
            Ok(_) => reading.lose("", Malformed::new("document", "is no JSON object: a dump is one")),
            Err(error) => reading.lose("", Malformed::new("document", error)),
        }
        reading.problems.extend(check::records(&reading.records).iter().map(ToString::to_string));
        reading
    }

    fn lose(&mut self, place: &str, problem: Malformed) {
        self.has_lost = true;
        self.tell(place, problem);
    }

    fn tell(&mut self, place: &str, problem: impl ToString) {
        let comma = if place.is_empty() { "" } else { ", " };
        self.problems.push(format!("{place}{comma}{}", problem.to_string()));
    }

    fn document(&mut self, mut document: Map<String, Value>) {
        let format = document.remove("format").and_then(|format| format.as_u64()).unwrap_or_default();
        if let Err(problem) = check_format(format) {
            self.lose("", problem);
        }
        let cluster = document.remove("cluster").unwrap_or_default();
        if let Some(cluster) = self.part::<DumpCluster>("cluster", cluster)
            && let Some(cluster) = self.kept("cluster", Some(cluster.try_into()))
        {
            self.records.cluster = cluster;
        }
        for keyspace in self.list("", &mut document, "keyspaces") {
            let read = self.keyspace(keyspace);
            self.records.keyspaces.extend(read);
        }
        for node in self.list("", &mut document, "nodes") {
            let place = named("node", node.pointer("/spec/id"));
            let read = self.part::<DumpNode>(&place, node).map(TryInto::try_into);
            let read = self.kept(&place, read);
            self.records.nodes.extend(read);
        }
        for plan in self.list("", &mut document, "plans") {
            let place = named("plan", plan.get("id"));
            let read = self.part::<Plan>(&place, plan).map(TryInto::try_into);
            let read = self.kept(&place, read);
            self.records.plans.extend(read);
        }
        self.left_over("", &document, &["format", "cluster", "keyspaces", "nodes", "plans"]);
    }

    fn keyspace(&mut self, keyspace: Value) -> Option<(KeyspaceRecord, ShardMap)> {
        let place = named("keyspace", keyspace.pointer("/settings/name"));
        let Value::Object(mut fields) = keyspace else {
            self.lose(&place, Malformed::new("keyspace", "is no JSON object"));
            return None;
        };
        let settings = fields.remove("settings").unwrap_or_default();
        let settings = self.part::<Keyspace>(&place, settings).map(keyspace::Keyspace::try_from);
        let settings = self.kept(&place, settings);
        let mut shards = Vec::new();
        if let Some(Value::Object(map)) = fields.get_mut("map") {
            for shard in self.list(&place, map, "shards") {
                let read = self.shard(&place, shard);
                shards.extend(read);
            }
            map.insert("shards".to_owned(), Value::Array(vec![]));
        }
        let settings = settings?;
        // Stands for what was read already; it is only there for the form to be whole.
        fields.insert(
            "settings".to_owned(),
            serde_json::to_value(Keyspace::from(&settings)).unwrap_or_default(),
        );
        let form = self.part::<DumpKeyspace>(&place, Value::Object(fields))?;
        let map: DumpMap = form.map;
        let map = self.kept(&place, Some(map_of(&settings, map, shards)))?;
        let rules = form.rules.into_iter().map(rule).collect::<Result<_, _>>();
        let rules = self.kept(&place, Some(rules))?;
        let (brake, lost) = (form.brake, form.lost.map(Into::into));
        let record = KeyspaceRecord::new(settings, form.created_ms, ShardId(form.first_shard));
        Some((KeyspaceRecord { brake, rules, lost, ..record }, map))
    }

    fn shard(&mut self, place: &str, mut shard: Value) -> Option<Shard> {
        let place = format!("{place}, {}", named("shard", shard.get("shard")));
        let mut replicas: Vec<Replica> = Vec::new();
        if let Value::Object(fields) = &mut shard {
            for replica in self.list(&place, fields, "replicas") {
                let place = format!("{place}, {}", named("replica", replica.get("placement")));
                let read = self.part::<DumpReplica>(&place, replica).map(TryInto::try_into);
                let read = self.kept(&place, read);
                replicas.extend(read);
            }
            fields.insert("replicas".to_owned(), Value::Array(vec![]));
        }
        let form = self.part::<DumpShard>(&place, shard).map(Shard::try_from);
        Some(Shard { replicas: replicas.into(), ..self.kept(&place, form)? })
    }

    /// One piece. An unknown field is an error that names the nearest known one.
    fn part<T: DeserializeOwned + Serialize>(&mut self, place: &str, value: Value) -> Option<T> {
        match serde_json::from_value::<T>(value.clone()) {
            Ok(form) => {
                // Whatever does not come out again was not understood.
                let echo = serde_json::to_value(&form).unwrap_or_default();
                self.compare(place, &value, &echo);
                Some(form)
            }
            Err(error) => {
                let text = error.to_string();
                let hint = nearest(&text).map_or(String::new(), |known| format!(": did you mean {known}?"));
                self.has_lost = true;
                self.tell(place, format!("{text}{hint}"));
                None
            }
        }
    }

    fn compare(&mut self, place: &str, given: &Value, echo: &Value) {
        match (given, echo) {
            (Value::Object(given), Value::Object(echo)) => {
                let known: Vec<&str> = echo.keys().map(String::as_str).collect();
                let unknown =
                    given.iter().filter(|(key, value)| !echo.contains_key(*key) && !value.is_null());
                let unknown: Map<_, _> = unknown.map(|(key, value)| (key.clone(), value.clone())).collect();
                self.left_over(place, &unknown, &known);
                for (key, value) in given {
                    echo.get(key).into_iter().for_each(|echo| self.compare(place, value, echo));
                }
            }
            (Value::Array(given), Value::Array(echo)) => {
                given.iter().zip(echo).for_each(|(given, echo)| self.compare(place, given, echo));
            }
            _ => {}
        }
    }

    fn left_over(&mut self, place: &str, fields: &Map<String, Value>, known: &[&str]) {
        for field in fields.keys() {
            let hint = suggest::close(field, known.iter().copied());
            let hint = hint.map_or(String::new(), |known| format!(": did you mean {known}?"));
            self.tell(place, format!("unknown field `{field}`{hint}"));
        }
    }

    fn list(&mut self, place: &str, fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
        match fields.remove(name) {
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.lose(place, Malformed::new(name, "is no list"));
                vec![]
            }
            None => {
                self.lose(place, Malformed::new(name, "is missing"));
                vec![]
            }
        }
    }

    fn kept<T>(&mut self, place: &str, read: Option<Result<T, Malformed>>) -> Option<T> {
        match read? {
            Ok(form) => Some(form),
            Err(problem) => {
                self.lose(place, problem);
                None
            }
        }
    }
}

/// "shard s7", as far as it can be told.
fn named(what: &str, name: Option<&Value>) -> String {
    let prefix = match what {
        "shard" => "s",
        "replica" => "p",
        _ => "",
    };
    match name {
        Some(Value::Number(number)) => format!("{what} {prefix}{number}"),
        Some(Value::String(name)) => format!("{what} {}", name.chars().take(100).collect::<String>()),
        _ => format!("a {what} without a name"),
    }
}
