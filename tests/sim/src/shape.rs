//! What a run is made of: how many take part, for how long, and what may go wrong.

use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;
use crate::store::SESSION;
use partage_core::base::settings::Settings;

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many coordinators there are; one leads.
    pub coordinators: usize,
    /// How many workers there are.
    pub nodes: usize,
    /// How many routers there are.
    pub routers: usize,
    /// How long faults come.
    pub faulty: True,
    /// How long everything then has to become good: restarts hold rebalancing up for a minute (`brake_window_ms`), then the
    /// keyspaces become even, one after the other as each sees what the others carry, and at the end all is at rest.
    pub calm: True,
    /// Up to three workers get stuck, for ever: see [`Stuck`](crate::stuck::Stuck).
    pub stuck: bool,
    /// Whether a person is at hand in every run, or in none; else in a few.
    pub person: Option<bool>,
    /// Three coordinators, and nothing but they and their store have faults: no other process is to notice.
    pub leaders: bool,
    /// There is a keyspace whose data lies on disks, and all processes are killed at once, often.
    pub durable: bool,
    /// There is a table.
    pub replicated: bool,
    /// A person touches the coordination state: see [`crate::touched`].
    pub touched: bool,
}

impl Shape {
    /// One to three coordinators, ten workers, five routers; a minute of faults.
    pub const FULL: Shape = Shape {
        coordinators: 3,
        nodes: 10,
        routers: 5,
        faulty: 60 * SECOND,
        calm: 105 * SECOND,
        stuck: false,
        person: None,
        leaders: false,
        durable: false,
        replicated: false,
        touched: false,
    };

    /// Small and short, for the suite.
    pub const SMALL: Shape = Shape { nodes: 5, routers: 2, faulty: 20 * SECOND, ..Shape::FULL };
}

/// Runs in which a person is at hand, in thousandths.
pub const PERSON: u64 = 50;

/// Runs in which people create and delete a keyspace, in thousandths.
pub const DRAFTS: u64 = 600;

/// Runs with named partitions that people register and unregister, in thousandths.
pub const PARTITIONS: u64 = 300;

/// Runs in which a process without a token speaks for workers, in thousandths.
pub const STRANGERS: u64 = 200;

/// The numbers of a run.
pub fn settings(draw: &mut Draw, shape: Shape) -> Settings {
    let heartbeat_ms = draw.between(150, 500);
    let lease_ms = heartbeat_ms * 2 + draw.between(200, 2_500);
    let dead_after_ms = draw.between(lease_ms / 2, 2 * lease_ms);
    // Where others stand by, both are longer than the next leader takes to be there.
    let spare_ms = if shape.leaders { 3 * SESSION / MS } else { 0 };
    Settings {
        heartbeat_ms,
        lease_ms: lease_ms + spare_ms,
        dead_after_ms: dead_after_ms + spare_ms,
        check_back_ms: 1_000,
        rebalance_ms: 5_000,
        handover_ms: if shape.stuck { 6_000 } else { Settings::default().handover_ms },
        ..Settings::default()
    }
}
