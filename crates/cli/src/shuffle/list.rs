//! `partage shuffle list` and `show`: what the leaders of shuffles say of them.

use super::bounds::{hex, text as key_text, told as key_told};
use super::nodes::{ShuffleNodes, failure, shuffle};
use crate::output::{Failure, Output, say, table};
use clap::Args;
use partage_shuffle_client::{HeavyKey, HeavyKeys, ShuffleId, Stage, StartOptions, Status};
use serde_json::{Value, json};

/// `partage shuffle list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only the shuffles of this owner
    #[arg(long, value_name = "NAME", value_parser = owner)]
    owner: Option<String>,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

impl ListArgs {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let of = self.owner.map(|owner| format!("?owner={owner}")).unwrap_or_default();
        let told = self.nodes.get(&format!("/v1/shuffles{of}")).await?;
        let silent: Vec<String> = told["silent"].as_array().into_iter().flatten().map(text).collect();
        if !silent.is_empty() {
            let silent = silent.join(", ");
            say(&format!(
                "warning: shuffles that are led by {silent} are not listed: no answer came from there"
            ));
        }
        if output.is_json() {
            return output.json(&told);
        }
        let names =
            ["shuffle", "stage", "owner", "kind", "whole inputs", "records", "bytes", "ends in", "waits for"];
        let mut rows = table(names);
        for shuffle in told["shuffles"].as_array().into_iter().flatten() {
            let of = |name: &str| text(&shuffle[name]);
            let (first, last) = (["shuffle", "stage", "owner", "kind"], ["winners", "records", "bytes"]);
            let cells = first.into_iter().chain(last).map(of);
            rows.add_row(cells.chain([seconds(&shuffle["ends_in_ms"]), of("waits_for")]));
        }
        output.text(&rows.trim_fmt());
        Ok(())
    }
}

/// The name of an owner, which stands in the path of a request.
fn owner(text: &str) -> Result<String, String> {
    let of = StartOptions { owner: text.to_owned(), ..StartOptions::default() };
    of.check().map(|()| of.owner).map_err(|why| why.to_string())
}

/// `partage shuffle show`
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Handle of the shuffle, or its number
    #[arg(value_parser = shuffle)]
    shuffle: ShuffleId,
    /// Names the keys of a sealed shuffle that have more records than any of so many partitions, 1 to 16384
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u64>,
    #[command(flatten)]
    nodes: ShuffleNodes,
}

/// What programs call a stage.
pub fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Open => "open",
        Stage::Sealed => "sealed",
        Stage::Failed => "failed",
    }
}

impl ShowArgs {
    /// What the leader says: over HTTP, or less of it over a Unix socket.
    async fn told(&self) -> Result<Value, Failure> {
        let id = self.shuffle;
        if !self.nodes.with_ports().is_empty() {
            return self.nodes.get(&format!("/v1/shuffles/{id}")).await;
        }
        let status = self.nodes.connect().await?.status(id).await.map_err(failure)?;
        let Status { stage, winners, records, bytes, version, ranges, waits_for } = status;
        Ok(json!({
            "shuffle": id.to_string(), "stage": stage_name(stage), "winners": winners, "records": records,
            "bytes": bytes, "bounds_version": version, "ranges": ranges,
            "waits_for": (!waits_for.is_empty()).then_some(waits_for),
        }))
    }

    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut told = self.told().await?;
        let heavy = match self.partitions {
            Some(partitions) => {
                let client = self.nodes.connect().await?;
                client.heavy_keys(self.shuffle, partitions).await.map_err(failure)?
            }
            None => HeavyKeys { records: 0, keys: Vec::new() },
        };
        if output.is_json() {
            if let (Some(partitions), Some(told)) = (self.partitions, told.as_object_mut()) {
                told.insert("partitions".to_owned(), json!(partitions));
                told.insert("skewed_keys".to_owned(), skewed(&heavy));
            }
            return output.json(&told);
        }
        let mut shown = lines(&told);
        match self.partitions {
            Some(partitions) => shown.extend(skewed_lines(&heavy, partitions)),
            // To find them takes reads of what lies around the cuts.
            None if told["stage"] == "sealed" && told["records"] != 0 => {
                let more = "`--partitions N` names keys that have more records than one of N partitions";
                shown.push(("skewed keys", more.to_owned()));
            }
            None => {}
        }
        shown.iter().for_each(|(name, value)| output.text(&format!("{name:<15}{value}")));
        Ok(())
    }
}

/// Heavy keys for programs.
fn skewed(heavy: &HeavyKeys) -> Value {
    let one = |key: &HeavyKey| {
        json!({
            "key": key_told(&key.key), "first_rank": key.first, "records": key.records, "share": heavy.share(key),
        })
    };
    heavy.keys.iter().map(one).collect()
}

/// Heavy keys for people.
fn skewed_lines(heavy: &HeavyKeys, partitions: u64) -> Vec<(&'static str, String)> {
    let name = |at: usize| if at == 0 { "skewed keys" } else { "" };
    if heavy.keys.is_empty() {
        return vec![(name(0), format!("none has more records than one of {partitions} partitions"))];
    }
    let one = |(at, key): (usize, &HeavyKey)| {
        let text = key_text(&key.key).map(|text| format!(" ({text})")).unwrap_or_default();
        let share = 100.0 * heavy.share(key);
        (name(at), format!("{}{text}: {} records, {share:.1} %", hex(&key.key), key.records))
    };
    heavy.keys.iter().enumerate().map(one).collect()
}

/// What people are shown of a shuffle.
fn lines(told: &Value) -> Vec<(&'static str, String)> {
    let of = |name: &str| text(&told[name]);
    let mut lines = vec![
        ("shuffle", of("shuffle")),
        ("stage", of("stage")),
        ("whole input", format!("{} partitions", of("winners"))),
        ("records", of("records")),
        ("bytes", of("bytes")),
        ("bounds", format!("version {}, {} ranges", of("bounds_version"), of("ranges"))),
    ];
    if let Some(kind) = told["kind"].as_str() {
        let order: Vec<String> = told["order"].as_array().into_iter().flatten().map(column).collect();
        let by = if order.is_empty() { String::new() } else { format!(", ordered by {}", order.join(", ")) };
        lines.push(("records are", format!("{kind}{by}")));
        if told["combine"].is_string() {
            lines.push(("combined by", of("combine")));
        }
        if told["durability"].is_string() {
            lines.push(("durability", of("durability")));
        }
        lines.push(("owner", of("owner")));
    }
    if !told["ends_in_ms"].is_null() {
        let own = |name: &str, when: &str| match told[name].is_null() {
            true => String::new(),
            false => format!("; {} {when}", seconds(&told[name])),
        };
        let (open, sealed) =
            (own("unsealed_ttl_ms", "until it is sealed"), own("sealed_ttl_ms", "when sealed"));
        let ends = seconds(&told["ends_in_ms"]);
        lines.push(("ends", format!("in {ends}, if no client asks for it{open}{sealed}")));
    }
    if let (Some(attempts), Some(winners)) = (told["attempts"].as_u64(), told["winners"].as_u64()) {
        let losers = attempts.saturating_sub(winners);
        lines.push(("attempts", format!("{attempts} whole, of which {losers} are never read")));
    }
    if let Some(dividing) = told["dividing"].as_u64() {
        lines.push(("dividing", format!("{dividing} slots")));
    }
    if let Some(short) = told["short_slots"].as_u64() {
        lines.push(("lack replicas", format!("{short} slots")));
    }
    lines.extend(stored_lines(&told["stored"]));
    let waits_for = if told["waits_for"].is_null() { "nothing".to_owned() } else { of("waits_for") };
    lines.push(("waits for", waits_for));
    lines
}

/// Where its records are, and what the nodes of the pool do. Nothing, if that is not said.
fn stored_lines(stored: &Value) -> Vec<(&'static str, String)> {
    if stored.is_null() {
        return Vec::new();
    }
    let of = |of: &Value, name: &str| text(&of[name]);
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let (slots, bytes) = (of(stored, "disk_slots"), of(stored, "disk_bytes"));
    let mut lines = vec![("on disks", format!("{slots} slots, {bytes} bytes in all replicas"))];
    let bytes = match stored["object_bytes"].as_u64() {
        Some(bytes) => format!(", {bytes} bytes that are read"),
        None => String::new(),
    };
    lines.push(("object store", format!("{} slots{bytes}", of(stored, "object_slots"))));
    let (mut nodes, mut troubles) = (Vec::new(), Vec::new());
    for node in list(&stored["nodes"]) {
        let roles: Vec<String> = list(&node["roles"]).iter().map(text).collect();
        let (name, slots) = (of(&node, "node"), of(&node, "disk_slots"));
        let (bytes, away) = (of(&node, "disk_bytes"), of(&node, "object_slots"));
        let roles = roles.join(", ");
        nodes.push(format!(
            "{name} ({roles}): {slots} slots, {bytes} bytes on its disk; {away} slots read from the object store"
        ));
        troubles.extend(list(&node["troubles"]).iter().map(|trouble| format!("{name}: {}", text(trouble))));
    }
    let silent: Vec<String> = list(&stored["silent"]).iter().map(text).collect();
    troubles.extend(silent.iter().map(|node| format!("{node}: no answer came from there")));
    for (name, all) in [("nodes", nodes), ("troubles", troubles)] {
        let name = |at: usize| if at == 0 { name } else { "" };
        lines.extend(all.into_iter().enumerate().map(|(at, line)| (name(at), line)));
    }
    lines
}

/// A column by which rows of Arrow are ordered.
fn column(order: &Value) -> String {
    let descends = if order["descends"] == true { " descending" } else { "" };
    let nulls = if order["nulls_first"] == true { " nulls first" } else { "" };
    format!("column {}{descends}{nulls}", text(&order["column"]))
}

/// Milliseconds, rounded up to seconds.
fn seconds(millis: &Value) -> String {
    millis.as_u64().map_or_else(|| text(millis), |millis| format!("{} s", millis.div_ceil(1_000)))
}

/// A value for people.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_of_a_shuffle_is_shown_and_what_it_does_not_say_is_not() {
        let shown = |told: &Value| -> String {
            lines(told).iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
        };
        let whole = shown(&json!({
            "shuffle": "ab", "stage": "open", "winners": 2, "attempts": 3, "records": 7, "bytes": 70,
            "bounds_version": 1, "ranges": 30, "dividing": 0, "short_slots": 4, "waits_for": "a whole attempt of 3",
            "kind": "arrow", "combine": "count", "owner": "etl", "ends_in_ms": 89_001, "sealed_ttl_ms": 7_200_000,
            "durability": "memory",
            "stored": {
                "disk_slots": 9, "disk_bytes": 900, "object_slots": 4, "object_bytes": 66, "silent": ["s3"],
                "nodes": [
                    { "node": "s1", "roles": ["buffer"], "disk_slots": 0, "disk_bytes": 0, "object_slots": 0 },
                    { "node": "s2", "roles": ["buffer", "storage"], "disk_slots": 9, "disk_bytes": 900, "object_slots": 4,
                      "troubles": ["its disk is full"] },
                ],
            },
            "order": [{ "column": 3, "descends": true, "nulls_first": false }, { "column": 0, "nulls_first": true }],
        }));
        for line in [
            "whole input: 2 partitions\n",
            "bounds: version 1, 30 ranges\n",
            "attempts: 3 whole, of which 1 are never read\n",
            "lack replicas: 4 slots\n",
            "waits for: a whole attempt of 3\n",
            "records are: arrow, ordered by column 3 descending, column 0 nulls first\n",
            "combined by: count\n",
            "durability: memory\n",
            "owner: etl\n",
            "ends: in 90 s, if no client asks for it; 7200 s when sealed\n",
            "on disks: 9 slots, 900 bytes in all replicas\nobject store: 4 slots, 66 bytes that are read\n",
            "nodes: s1 (buffer): 0 slots, 0 bytes on its disk; 0 slots read from the object store\n",
            "\n: s2 (buffer, storage): 9 slots, 900 bytes on its disk; 4 slots read from the object store\n",
            "troubles: s2: its disk is full\n: s3: no answer came from there\nwaits for: ",
        ] {
            assert!(whole.contains(line), "{line} is not in {whole}");
        }
        let key = HeavyKey { key: b"a".as_slice().into(), first: 5, records: 30 };
        let heavy = HeavyKeys { records: 40, keys: vec![key] };
        assert_eq!(
            skewed(&heavy),
            json!([{ "key": { "hex": "61", "text": "a" }, "first_rank": 5, "records": 30, "share": 0.75 }])
        );
        assert_eq!(skewed_lines(&heavy, 3), [("skewed keys", "61 (a): 30 records, 75.0 %".to_owned())]);
        let none = skewed_lines(&HeavyKeys { records: 40, keys: Vec::new() }, 3);
        assert_eq!(none[0].1, "none has more records than one of 3 partitions");
        let less = shown(&json!({ "stage": "sealed", "winners": 2 }));
        assert!(!less.contains("attempts") && less.contains("waits for: nothing"), "{less}");
        assert!(!less.contains("on disks"), "{less}");
    }
}
