//! `partage keyspace show`: every setting of a keyspace, in words, with units.

use super::keyspace::sharding_text;
use partage_core::keyspace::{KeyspaceKind, RowValues};
use partage_wire::json::{Keyspace, PartitionKey};
use std::fmt::Display;

/// Some milliseconds, for people.
fn time(ms: u64) -> String {
    match ms {
        0 => "0".to_owned(),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}

fn bytes(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let steps =
        (1..units.len()).take_while(|step| bytes > 0 && bytes.is_multiple_of(1 << (10 * step))).count();
    format!("{} {}", bytes >> (10 * steps), units[steps])
}

fn names(of: &[String], none: &str) -> String {
    if of.is_empty() { none.to_owned() } else { of.join(", ") }
}

fn partition_key(key: Option<&PartitionKey>) -> String {
    match key {
        None | Some(PartitionKey::Whole {}) => "the whole key".to_owned(),
        Some(PartitionKey::Prefix { bytes }) => format!("its first {bytes} bytes"),
        Some(PartitionKey::UpTo { delimiter }) => format!("what is before {:?}", char::from(*delimiter)),
        Some(PartitionKey::HashTag {}) => "what is in braces".to_owned(),
    }
}

fn or_default(word: Option<&impl Display>) -> String {
    word.map_or_else(|| "default".to_owned(), ToString::to_string)
}

/// One line a setting.
pub fn text(keyspace: &Keyspace) -> String {
    let Keyspace { constraint, throttle, resharding, .. } = keyspace;
    let off = |is_off: bool, text: String| if is_off { "never".to_owned() } else { text };
    let mut lines = vec![
        ("keyspace", keyspace.name.clone()),
        ("kind", or_default(keyspace.kind.as_ref())),
        ("sharding", sharding_text(&keyspace.sharding)),
        ("sharded by", partition_key(keyspace.partition_key.as_ref())),
        ("ownership", or_default(keyspace.ownership.as_ref())),
        ("durable", if keyspace.durable { "yes: its data outlives its processes" } else { "no" }.to_owned()),
        ("replicas", keyspace.replicas.unwrap_or(1).to_string()),
        ("policy", or_default(keyspace.policy.as_ref())),
        ("mode", or_default(keyspace.mode.as_ref())),
        ("spread", or_default(keyspace.spread.as_ref())),
        ("only on", names(&constraint.pinned, "any node")),
        ("never on", names(&constraint.excluded, "none")),
        ("labels", names(&constraint.labels, "none asked for")),
        (
            "moves",
            format!(
                "at most {} at once, {} a node; {} loads at once into a node",
                throttle.moves, throttle.moves_per_node, throttle.loads_per_node
            ),
        ),
        (
            "copying",
            match throttle.bytes_per_s {
                0 => "as fast as it goes".to_owned(),
                rate => format!("at most {} a second", bytes(rate)),
            },
        ),
        ("loading", format!("given up on a node after {}", time(throttle.load_ms))),
    ];
    if keyspace.is_of(KeyspaceKind::Table) {
        let values = keyspace.values.as_ref().filter(|values| !values.is(RowValues::Bytes));
        lines.push(("values", values.map_or_else(|| "any bytes".to_owned(), ToString::to_string)));
        let kept = format!("keeps changes for {}", time(keyspace.feed_ms));
        lines.push(("change feed", if keyspace.feed_ms == 0 { "none".to_owned() } else { kept }));
    }
    if keyspace.durable {
        lines.push(("a dead node", format!("is waited for {}", time(throttle.replace_after_ms))));
    }
    lines.extend([
        ("split above", off(resharding.split_bytes == 0, bytes(resharding.split_bytes))),
        (
            "split at load",
            off(
                resharding.split_requests_per_s == 0.0,
                format!("above {} requests a second", resharding.split_requests_per_s),
            ),
        ),
        ("when it lasts", time(resharding.window_ms)),
        ("a hot key", format!("has {:.0} % of its shard's requests", resharding.hot_key_share * 100.0)),
        ("hot replicas", off(resharding.max_replicas == 0, format!("up to {}", resharding.max_replicas))),
        (
            "shards",
            format!("from {} to {} by splits and merges", resharding.min_shards, resharding.max_shards),
        ),
    ]);
    if let Some(replication) = keyspace.dataset_replication {
        lines.push(("its dataset", format!("said {replication} replicas last")));
    }
    let lines: Vec<_> = lines.into_iter().map(|(what, text)| format!("{what:<15}{text}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_that_fit() {
        assert_eq!([time(0), time(1_500), time(2_000), time(120_000)], ["0", "1500 ms", "2 s", "2 min"]);
        let all = [bytes(0), bytes(1_000), bytes(512 << 20), bytes(1 << 30), bytes(u64::MAX)];
        assert_eq!(all, ["0 bytes", "1000 bytes", "512 MiB", "1 GiB", "18446744073709551615 bytes"]);
    }
}
