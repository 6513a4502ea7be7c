//! What was said, in words, for the trace of a run.

use partage_core::node::exchange::{Order, Report};

/// What a worker says of a replica.
pub fn report_words(report: &Report) -> String {
    let replica = &report.replica;
    format!(
        "{}/{} {} {:?} {}",
        replica.keyspace, replica.shard, replica.placement, report.phase, report.epoch
    )
}

/// What it is to do.
pub fn order_words(order: &Order) -> String {
    let (replica, granted) = (&order.replica, if order.granted { "" } else { " not granted" });
    let name = format!("{}/{} {}", replica.keyspace, replica.shard, replica.placement);
    format!("{name} {} {} {}{granted}", order.state, order.role, order.epoch)
}
