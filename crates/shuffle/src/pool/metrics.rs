//! The metrics of a node of a pool, in the text form of Prometheus.

use super::Running;
use std::fmt::Write as _;

/// All of them.
pub(crate) fn text(running: &Running) -> String {
    let (status, sent) = (running.node.status(), running.transport.counts());
    let served = running.server.counts();
    let gauges: [(&str, &str, u64); 9] = [
        ("buffered_bytes", "Keys and values in the buffer", status.buffered_bytes),
        ("storing_bytes", "Memory of batches that are being stored", status.storing_bytes),
        (
            "reading_bytes",
            "Memory of ranges that are being read or are kept for readers",
            status.reading_bytes,
        ),
        (
            "sorted_file_bytes",
            "Files of ranges that are larger than the memory for them",
            status.sorted_file_bytes,
        ),
        (
            "sending_bytes",
            "Memory of batches and records that wait for other nodes",
            running.transport.waiting_bytes(),
        ),
        ("connections", "Connections for frames that are open", running.server.open() as u64),
        (
            "disk_full",
            "Whether the node takes no new attempts, as its disk is full",
            u64::from(status.is_full),
        ),
        ("unfit_slots", "Slots whose decisions are damaged here", status.unfit.len() as u64),
        ("slots_not_led", "Slots that this node is to lead and may not", status.not_led.len() as u64),
    ];
    let counters: [(&str, &str, u64); 5] = [
        ("frames_sent", "Frames that were sent to other nodes", sent.sent),
        ("sent_bytes", "Bytes of frames that were sent to other nodes", sent.sent_bytes),
        ("frames_received", "Frames that came from other nodes", served.received),
        ("malformed_frames", "Connections that were closed for a malformed frame", served.malformed),
        ("silent_connections", "Connections that were closed as they were silent", served.silent),
    ];
    let mut text = String::new();
    for (kind, metrics) in [("gauge", &gauges[..]), ("counter", &counters[..])] {
        for (name, help, value) in metrics {
            let end = if kind == "counter" { "_total" } else { "" };
            let name = format!("partage_shuffle_{name}{end}");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}");
        }
    }
    text
}
