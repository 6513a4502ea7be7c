//! Drawings for the terminal: shards across, nodes down, one mark for each replica.
//!
//! ```text
//!  n1  █▓░█ ▒  █    █ leads   ▓ follows   ░ loads   ▒ unloads   ✗ fails
//! ```
//!
//! The colour of a mark is the load of its shard, from cool to hot, against the hottest shard; where no load is known,
//! what the replica does. Colours are left out when stdout is no terminal, or `NO_COLOR` is set.

use crate::admin::stage_text;
use crate::terminal::Drawing;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::node::Health;
use partage_wire::json::{Node, Replica, Shard, ShardStage};
use std::io::IsTerminal;

/// Shards in one block of the drawing; further blocks go below.
const ACROSS: usize = 96;

/// Draws nodes as rows and shards as columns, in blocks of [`ACROSS`] shards.
pub fn grid(shards: &[Shard], nodes: &[Node]) -> Drawing {
    let mut drawing = Drawing::default();
    if shards.is_empty() {
        drawing.text("no shards");
        return drawing;
    }
    let paint = Paint::of(shards);
    let width = nodes.iter().map(|node| node.id.chars().count()).max().unwrap_or(0);
    for block in shards.chunks(ACROSS) {
        let (first, last) = (block[0].shard, block[block.len() - 1].shard);
        let is_sorted = block.is_sorted_by_key(|shard| shard.shard);
        let order = if is_sorted { "" } else { ", in the order of their keys: --long lists them" };
        drawing.text(&format!("{:width$}  s{first} … s{last}{order}\n", ""));
        for node in nodes {
            drawing.text(&format!("{:width$}  ", node.id));
            block.iter().for_each(|shard| paint.mark(&mut drawing, shard, &node.id));
            let health =
                if node.health.is(Health::Up) { String::new() } else { format!("  {}", node.health) };
            drawing.text(&format!("{health}\n"));
        }
        let unplaced: String = block.iter().map(|s| if s.replicas.is_empty() { '!' } else { ' ' }).collect();
        if unplaced.contains('!') {
            drawing.text(&format!("{:width$}  {unplaced}  nowhere\n", ""));
        }
    }
    drawing.text(&format!("{:width$}  █ leads  ▓ follows  ░ loads  ▒ unloads  ✗ fails", ""));
    drawing.text(&under_way(shards));
    drawing
}

/// One line for each shard with something under way.
fn under_way(shards: &[Shard]) -> String {
    let moving = |shard: &&Shard| {
        !shard.stage.is(ShardStage::Serving) || shard.replicas.iter().any(|r| !r.state.is(ReplicaState::Live))
    };
    let line = |shard: &Shard| {
        let on = |state| {
            let nodes = shard.replicas.iter().filter(|r| r.state.is(state)).map(|r| r.node.as_str());
            nodes.collect::<Vec<_>>().join(", ")
        };
        let parts = [
            (ReplicaState::Load, "loads"),
            (ReplicaState::Live, "live"),
            (ReplicaState::Unload, "unloads"),
            (ReplicaState::UnloadFinal, "drops"),
        ];
        let told = parts.into_iter().map(|(state, word)| (on(state), word));
        let failing = shard.replicas.iter().filter_map(|r| Some((r, r.failure.as_ref()?)));
        let failing = failing.map(|(r, why)| format!("fails [{}]: {why}", r.node));
        let told: Vec<_> = told
            .filter(|(nodes, _)| !nodes.is_empty())
            .map(|(nodes, word)| format!("{word} [{nodes}]"))
            .chain(failing)
            .collect();
        format!("\n  s{} {}: {}", shard.shard, stage_text(shard), told.join("  "))
    };
    let shown: String = shards.iter().filter(moving).take(20).map(line).collect();
    let count = shards.iter().filter(moving).count();
    if count == 0 { String::new() } else { format!("\nunder way: {count}{shown}") }
}

struct Paint {
    colours: bool,
    hottest: f64,
}

impl Paint {
    #[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
    fn of(shards: &[Shard]) -> Paint {
        let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Paint { colours, hottest: shards.iter().map(heat).fold(0.0, f64::max) }
    }

    fn mark(&self, drawing: &mut Drawing, shard: &Shard, node: &str) {
        let Some(replica) = shard.replicas.iter().find(|r| r.node == node) else {
            return drawing.mark(' ', None);
        };
        let mark = symbol(replica);
        drawing.mark(mark, self.colours.then(|| self.colour(mark, shard)));
    }

    fn colour(&self, mark: char, shard: &Shard) -> u8 {
        if self.hottest <= 0.0 {
            return colour(mark);
        }
        // From green over yellow to red, in the 256 colours of terminals.
        let steps = [34, 70, 106, 142, 178, 208, 202, 196];
        let step = (heat(shard) / self.hottest * (steps.len() - 1) as f64).round() as usize;
        steps[step.min(steps.len() - 1)]
    }
}

/// The colour of a mark where no load is known: what fails is red, what is on its way yellow.
fn colour(mark: char) -> u8 {
    match mark {
        '✗' => 196,
        '░' | '▒' => 178,
        '▓' => 38,
        _ => 34,
    }
}

fn symbol(replica: &Replica) -> char {
    if replica.failure.is_some() {
        return '✗';
    }
    match replica.state.known() {
        Some(ReplicaState::Load) => '░',
        Some(ReplicaState::Live) if replica.role.is(Role::Leader) => '█',
        Some(ReplicaState::Live) => '▓',
        Some(ReplicaState::Unload | ReplicaState::UnloadFinal) | None => '▒',
    }
}

fn heat(shard: &Shard) -> f64 {
    shard.replicas.iter().filter_map(|r| r.load.as_ref()).map(|load| load.requests_per_s).sum()
}

#[cfg(test)]
mod tests;
