//! Poison: a shard that kills whoever serves it.
//!
//! Who falls ill after every dinner suspects what was on all the plates. When a node dies, each shard that it
//! had taken on a short while before is suspected and gets a strike; whatever else it held had shown that a
//! node can live with it. A suspect that an owner survives for the window is cleared. One that collects
//! `poison_deaths` strikes in a row is set aside: placed nowhere new until a person has looked, instead of
//! walking through the fleet (A20, R5). A shard whose load fails on as many nodes is set aside too (L5).
//!
//! | event                                                         | strikes | set aside                       |
//! |---------------------------------------------------------------|---------|---------------------------------|
//! | its node dies within the window after taking it, or its lead, on | +1   | when they reach `poison_deaths` |
//! | it went from one lost node to the next, and the brake would go on | –   | yes                             |
//! | its process is followed by another before it is given up: it has died, the same | +1 | the same          |
//! | the same, and it is the only node: nobody else could show whose fault it is | – |                       |
//! | its node dies later, leaves, or is lost while the brake is on | –       |                                 |
//! | an owner survives the window                                  | 0       |                                 |
//! | its load is given up on `poison_deaths` different nodes       | –       | yes                             |
//! | a person releases it                                          | 0       | no longer                       |
//!
//! Innocent shards that happen to follow a poison one from node to node are scattered by every repair, so few
//! collect strikes with it; in a cluster of two or three nodes some may, which is why a person can release.

use crate::name::NodeId;
use crate::settings::Settings;
use crate::time::Millis;

/// Whether a node that has died at `died` is a witness against a shard that it took on at `taken`.
pub fn is_suspect(taken: Millis, died: Millis, settings: &Settings) -> bool {
    died.since(taken) < settings.poison_window_ms
}

/// Whether a node that still lives at `now` clears a shard that it took on at `taken`.
pub fn is_cleared(taken: Millis, now: Millis, settings: &Settings) -> bool {
    now.since(taken) >= settings.poison_window_ms
}

/// Why a shard with so many `strikes`, the last from `node`, is set aside; none while it is not.
pub fn after_death(strikes: u32, node: &NodeId, settings: &Settings) -> Option<String> {
    (strikes >= settings.poison_deaths).then(|| {
        format!("{strikes} nodes in a row died soon after they had taken it on, the last was {node}")
    })
}

/// Why a shard is set aside that `deaths` nodes have died of one after the other, with no more to spare: one
/// more loss would stop everything (see [`crate::brake`]).
pub fn before_brake(deaths: usize) -> String {
    format!(
        "{deaths} nodes died one after the other, each soon after it had taken the shard on from the last"
    )
}

/// Why a shard that `nodes` could not load is set aside; none while others may still be tried.
pub fn after_failures(nodes: &[&NodeId], reason: &str, settings: &Settings) -> Option<String> {
    (nodes.len() >= settings.poison_deaths as usize)
        .then(|| format!("it could not be loaded on {} nodes, the last said: {reason}", nodes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { poison_deaths: 3, poison_window_ms: 1_000, ..Settings::default() }
    }

    #[test]
    fn the_window_is_exact_and_every_moment_is_either_suspect_or_cleared() {
        for taken in [0, 500, 5_000] {
            for later in 0..3_000 {
                let (taken, now) = (Millis(taken), Millis(taken + later));
                assert_eq!(is_suspect(taken, now, &settings()), later < 1_000);
                assert_ne!(is_suspect(taken, now, &settings()), is_cleared(taken, now, &settings()));
            }
        }
        assert!(is_suspect(Millis(9), Millis(5), &settings()), "given to a node that was dead already");
    }

    #[test]
    fn three_deaths_or_three_nodes_that_cannot_load_are_enough_and_two_are_not() {
        let node = NodeId::new("n7").unwrap();
        assert_eq!(after_death(2, &node, &settings()), None);
        assert!(after_death(3, &node, &settings()).unwrap().contains("n7"));
        let [a, b] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
        assert_eq!(after_failures(&[&a, &b], "no such file", &settings()), None);
        assert!(
            after_failures(&[&a, &b, &node], "no such file", &settings()).unwrap().contains("no such file")
        );
    }
}
