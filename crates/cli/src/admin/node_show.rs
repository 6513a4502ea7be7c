//! `partage node show`: one node, and every shard that has a replica on it (A3).

use super::shard::{bounds_text, since};
use crate::client::ApiClient;
use crate::http::segment;
use crate::output::{Failure, Output, table};
use partage_wire::json::{Drains, HostedShard, NodeDetail, ReplicaPhase};

/// Shards that are asked for.
const MOST: usize = 10_000;

pub async fn show(client: &ApiClient, id: &str, output: &mut Output) -> Result<(), Failure> {
    let node: NodeDetail = client.get(&format!("/v1/nodes/{}?limit={MOST}", segment(id))).await?;
    if output.is_json() {
        return output.json(&node);
    }
    let drain = match node.node.draining {
        Some(_) => {
            client.get::<Drains>("/v1/drains").await?.drains.into_iter().find(|drain| drain.node == id)
        }
        None => None,
    };
    let mut text = facts(&node);
    text.extend(drain.as_ref().map(super::node::drain_line));
    output.text(&text.join("\n"));
    if !node.shards.is_empty() {
        output.text(&shards(&node));
    }
    if node.more {
        output.text(&format!("and more shards than these {}", node.shards.len()));
    }
    Ok(())
}

/// Some milliseconds, for people.
fn ms(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms / 100 % 10)
}

fn facts(detail: &NodeDetail) -> Vec<String> {
    let node = &detail.node;
    let heard = match detail.heard_ms_ago {
        Some(ago) => format!("{} ago", ms(ago)),
        None => "not since this coordinator leads".to_owned(),
    };
    let lease = match detail.lease_left_ms {
        0 => "none runs".to_owned(),
        left => format!("runs {} more", ms(left)),
    };
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let place = [("zone", &node.zone), ("rack", &node.rack)];
    let place: Vec<_> =
        place.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?))).collect();
    let replicas: Vec<_> = node.replicas.iter().map(|(name, count)| format!("{count} of {name}")).collect();
    let kinds: Vec<_> = node.kinds.iter().map(ToString::to_string).collect();
    let because = detail.health_because.as_ref();
    let mut facts = vec![
        format!(
            "node       {}, {}{}",
            node.id,
            node.health,
            if node.leaving { ", wants to leave" } else { "" }
        ),
        format!("address    {}, checked with {}", node.address, detail.check),
        format!("session    incarnation {}, for {}", node.incarnation, since(node.since_ms, false)),
        format!("last beat  {heard}"),
        format!("lease      {lease}"),
        format!("place      {}", or_none(place.join(", "))),
        format!("labels     {}", or_none(node.labels.join(", "))),
        format!("serves     keyspaces of kind {}", kinds.join(", ")),
        format!("capacity   {}, {:.0} % busy", node.capacity, node.busy * 100.0),
        format!(
            "load       {:.0} requests/s, {:.0} ms of processor/s, {:.0} bytes",
            node.requests_per_s, node.cpu_ms_per_s, node.size_bytes
        ),
        format!("replicas   {}; leads {}", or_none(replicas.join(", ")), node.leaders),
    ];
    facts.extend(node.resp_address.iter().map(|at| format!("redis      clients reach it at {at}")));
    if node.disk_full {
        let disk = "full: the node takes no writes and gets nothing new; make room, and it goes on by itself";
        facts.push(format!("disk       {disk}"));
    }
    if node.disk_nearly_full && !node.disk_full {
        let disk = "nearly full: the node gets nothing new; make room before it is full, and takes no writes";
        facts.push(format!("disk       {disk}"));
    }
    if node.disk_stalled {
        let disk =
            "stalled: it stores nothing, so the node takes no writes and gets nothing new; look at the disk";
        facts.push(format!("disk       {disk}"));
    }
    if let Some(why) = because {
        facts.insert(1, format!("           {}: {why}", node.health));
    }
    facts
}

fn shards(detail: &NodeDetail) -> String {
    let mut rows = table(["keyspace", "shard", "role", "state", "holds", "others"]);
    for HostedShard { keyspace, shard } in &detail.shards {
        let (own, others): (Vec<_>, Vec<_>) =
            shard.replicas.iter().partition(|replica| replica.node == detail.node.id);
        let others: Vec<_> = others.iter().map(|replica| replica.node.as_str()).collect();
        for replica in own {
            let state = match (&replica.failure, &replica.phase) {
                (Some(why), _) => format!("{}, failing: {why}", replica.state),
                (None, Some(phase)) if !phase.is(ReplicaPhase::Serving) => {
                    format!("{}, {phase}", replica.state)
                }
                (None, _) => replica.state.to_string(),
            };
            rows.add_row([
                keyspace.clone(),
                format!("s{}", shard.shard),
                replica.role.to_string(),
                state,
                bounds_text(&shard.bounds),
                others.join(", "),
            ]);
        }
    }
    rows.trim_fmt()
}
