//! The metrics of a node of a pool, in the text form of Prometheus.

use super::Running;
use crate::counted::Durations;
use crate::objects::Objects;
use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

/// The text so far.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    // Writing to a string cannot fail.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ =
            writeln!(self.0, "# HELP partage_shuffle_{name} {help}.\n# TYPE partage_shuffle_{name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "partage_shuffle_{name}{labels} {value}");
    }

    fn one(&mut self, (name, help): (&str, &str), kind: &str, value: u64) {
        let end = if kind == "counter" { "_total" } else { "" };
        let name = format!("{name}{end}");
        self.head(&name, kind, help);
        self.line(&name, "", value);
    }

    /// One line for each value of a label.
    fn by_label<'a>(
        &mut self,
        (name, help): (&str, &str),
        kind: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let end = if kind == "counter" { "_total" } else { "" };
        let name = format!("{name}{end}");
        self.head(&name, kind, help);
        for (of, value) in values {
            self.line(&name, &format!("{{{label}=\"{of}\"}}"), value);
        }
    }

    fn durations(&mut self, (name, help): (&str, &str), durations: &Durations) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let (count, sum_ms) = durations.all();
        for (bound_ms, within) in durations.within() {
            self.line(&bucket, &format!("{{le=\"{}\"}}", seconds(bound_ms)), within);
        }
        self.line(&bucket, "{le=\"+Inf\"}", count);
        self.line(&format!("{name}_sum"), "", seconds(sum_ms));
        self.line(&format!("{name}_count"), "", count);
    }
}

/// Milliseconds as seconds, in decimals.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// All of them.
pub(crate) fn text(running: &Running) -> String {
    let mut page = Page::default();
    gauges(&mut page, running);
    traffic(&mut page, running);
    connections(&mut page, running);
    objects(&mut page, running);
    page.0
}

fn gauges(page: &mut Page, running: &Running) {
    let (status, shared) = (running.node.status(), running.node.shared());
    let all = [
        ("buffered_bytes", "Keys and values in the buffer", status.buffered_bytes),
        (
            "disk_bytes",
            "Bytes of batches on the disk, also of those that are not wanted any more",
            running.node.disk_bytes(),
        ),
        (
            "sorted_file_bytes",
            "Files of ranges that are larger than the memory for them",
            status.sorted_file_bytes,
        ),
        (
            "disk_full",
            "Whether the node takes no new attempts, as its disk is full",
            u64::from(status.is_full),
        ),
        ("unfit_slots", "Slots whose decisions are damaged here", status.unfit.len() as u64),
        ("slots_not_led", "Slots that this node is to lead and may not", status.not_led.len() as u64),
    ];
    for (name, help, value) in all {
        page.one((name, help), "gauge", value);
    }
    let parts = [
        ("buffer", status.buffer_memory),
        ("storing", status.storing_bytes),
        ("sending", running.transport.waiting_bytes()),
        ("inbox", shared.inbox.bytes()),
        ("reading", status.reading_bytes),
        ("objects", running.node.objects().map_or(0, Objects::memory_bytes)),
    ];
    let name = ("memory_bytes", "Memory of records, by what the node does with them");
    page.by_label(name, "gauge", "part", parts);
}

/// Records on their way from clients to readers.
fn traffic(page: &mut Page, running: &Running) {
    let (status, shared) = (running.node.status(), running.node.shared());
    let (buffer, counters) = (status.buffer, &shared.counters);
    let ((stored, stored_bytes), (read, read_bytes)) = (counters.stored.get(), running.node.disk_reads());
    let (given, given_bytes) = counters.to_readers.get();
    let hops = [
        ("from_clients", buffer.taken_records, buffer.taken_bytes),
        ("to_holders", buffer.sent_records, buffer.sent_bytes),
        ("stored", stored, stored_bytes),
        ("read", read, read_bytes),
        ("to_readers", given, given_bytes),
    ];
    let records = hops.map(|(hop, records, _)| (hop, records));
    page.by_label(("hop_records", "Records that came so far on their way"), "counter", "hop", records);
    let bytes = hops.map(|(hop, _, bytes)| (hop, bytes));
    page.by_label(("hop_bytes", "Bytes of these records"), "counter", "hop", bytes);
    let not_stored = counters.not_stored.load(Ordering::Relaxed);
    let all = [
        ("flushes", "How often the buffer has sent what it had of a shuffle", buffer.flushes),
        (
            "combined_records",
            "Records of clients that others of the same keys have taken in",
            buffer.combined_records,
        ),
        (
            "held_back_frames",
            "Frames of clients for which there was no room, each time that they came",
            buffer.held_back,
        ),
        ("stand_ins", "Batches that were sent to a node which stands in for another one", buffer.stand_ins),
        ("sent_again_batches", "Batches that were sent to a node once more", buffer.sent_again),
        ("divisions", "Divisions that this node has begun to write", buffer.divisions),
        ("not_stored_batches", "Batches for which there was no room to be stored", not_stored),
    ];
    for (name, help, value) in all {
        page.one((name, help), "counter", value);
    }
    let refused = ("refused_calls", "Calls of clients that were refused, by the word that they got");
    page.by_label(refused, "counter", "reason", counters.refusals());
    let took = ("acknowledgement_seconds", "From the end of an attempt to its acknowledgement");
    page.durations(took, &counters.acknowledged);
}

/// Of a node without an object store there are none.
fn objects(page: &mut Page, running: &Running) {
    let Some(objects) = running.node.objects() else { return };
    let refuses = u64::from(objects.failing().is_some());
    let help = "Whether the object store refused what the node asked for last";
    page.one(("object_store_refuses", help), "gauge", refuses);
    let counts = &objects.counts;
    let all = [
        ("objects_put_bytes", "Bytes that were put into the object store", &counts.put_bytes),
        ("objects_read_bytes", "Bytes that were read from the object store", &counts.read_bytes),
        ("objects_deleted", "Objects that were deleted from the object store", &counts.deleted),
        ("object_store_failures", "Calls that the object store refused", &counts.failures),
    ];
    for (name, help, value) in all {
        page.one((name, help), "counter", value.load(Ordering::Relaxed));
    }
}

fn connections(page: &mut Page, running: &Running) {
    let (sent, served) = (running.transport.counts(), running.server.counts());
    let open = ("connections", "Connections for frames that are open");
    page.one(open, "gauge", running.server.open() as u64);
    let all = [
        ("frames_sent", "Frames that were sent to other nodes", sent.sent),
        ("sent_bytes", "Bytes of frames that were sent to other nodes", sent.sent_bytes),
        ("frames_received", "Frames that came from other nodes", served.received),
        ("malformed_frames", "Connections that were closed for a malformed frame", served.malformed),
        ("silent_connections", "Connections that were closed as they were silent", served.silent),
    ];
    for (name, help, value) in all {
        page.one((name, help), "counter", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_its_buckets_its_sum_and_its_count() {
        let (mut page, durations) = (Page::default(), Durations::default());
        [3, 70_000].iter().for_each(|took_ms| durations.add(*took_ms));
        page.durations(("took_seconds", "how long it took"), &durations);
        for line in [
            "# TYPE partage_shuffle_took_seconds histogram",
            "partage_shuffle_took_seconds_bucket{le=\"0.002\"} 0",
            "partage_shuffle_took_seconds_bucket{le=\"0.005\"} 1",
            "partage_shuffle_took_seconds_bucket{le=\"60.000\"} 1",
            "partage_shuffle_took_seconds_bucket{le=\"+Inf\"} 2",
            "partage_shuffle_took_seconds_sum 70.003",
            "partage_shuffle_took_seconds_count 2",
        ] {
            assert!(page.0.lines().any(|one| one == line), "{line} is not in {}", page.0);
        }
    }

    #[test]
    fn a_counter_by_a_label_has_a_line_for_each_value() {
        let mut page = Page::default();
        page.by_label(("calls", "calls that came"), "counter", "reason", [("one", 1), ("two", 2)]);
        let lines =
            "partage_shuffle_calls_total{reason=\"one\"} 1\npartage_shuffle_calls_total{reason=\"two\"} 2\n";
        assert!(page.0.ends_with(lines), "{}", page.0);
    }
}
