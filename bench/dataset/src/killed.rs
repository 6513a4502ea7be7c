//! One of three nodes is killed while all are asked as much as they can answer.
//!
//! Two kinds of client. Some ask the two other nodes, and never a second time: to them the loss must not show at all. The
//! others ask any node, and a client that had a request on a connection that broke asks the next node once: more no server can
//! do for a client whose connection it takes along.

use crate::cluster::{Cluster, Clusters, NODES};
use crate::crowd::{Asker, Seen, asked_around, say_first};
use crate::question::Get;
use crate::{Done, Run};
use bench_gauge::say;
use std::io::Result;

/// Half of them of each kind.
const CONNECTIONS: usize = 30;

/// Kills each node in turn.
pub fn bench(told: &Run) -> Done {
    for cluster in &mut Clusters::start(told)?.clusters {
        for victim in 0..NODES {
            one(cluster, told, victim)?;
            cluster.revive(victim)?;
            cluster.serves(&told.data, 1)?;
        }
    }
    Ok(())
}

fn one(cluster: &mut Cluster, told: &Run, victim: usize) -> Result<()> {
    let question = Get(&told.data);
    let at = cluster.at();
    let asker = |number: usize| {
        let asks_again = asks_any(number as u16);
        let servers = match asks_again {
            true => (0..NODES).map(|turn| at[(number + turn) % NODES]).collect(),
            false => vec![at[(victim + 1 + number % (NODES - 1)) % NODES]],
        };
        Asker { question: &question, servers, depth: 1, asks_again }
    };
    let askers: Vec<Asker<'_>> = (0..CONNECTIONS).map(asker).collect();
    let (seen, killed_at) = asked_around(askers, 3, told.number("--seconds", 6), || {
        cluster.nodes[victim].kill();
        Ok(())
    })?;
    tell(cluster.name, victim, &seen, killed_at);
    Ok(())
}

fn asks_any(asker: u16) -> bool {
    usize::from(asker) >= CONNECTIONS / 2
}

fn tell(name: &str, victim: usize, seen: &Seen, killed_at: u32) {
    for (who, is_any) in
        [("of those who ask the two others", false), ("of those who ask any, once more if need be", true)]
    {
        let failed: Vec<_> = seen.failed.iter().filter(|(_, asker, _)| asks_any(*asker) == is_any).collect();
        let mut before =
            seen.of(|one| asks_any(one.asker) == is_any && (1_000_000..killed_at).contains(&one.at));
        let mut after = seen.of(|one| asks_any(one.asker) == is_any && one.at >= killed_at);
        let again = if is_any { format!(", {} asked again", seen.again) } else { String::new() };
        say(&format!(
            "killed {name:8} node {victim}, {who}: failed {} of {}{again}; before {}; after {}",
            failed.len(),
            failed.len() + after.len(),
            before.line(),
            after.line()
        ));
        say_first(failed.first().copied(), killed_at, "the kill");
    }
}
