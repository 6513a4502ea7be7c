//! Where the decision loop's outputs go: to routers, to the log, to the metrics.

use crate::clock::Clock;
use crate::lead::decision_loop::Observer;
use crate::publish::Publisher;
use crate::publish::events::EventLog;
use crate::publish::metrics::{Metrics, MetricsSnapshot};
use partage_core::base::time::Millis;
use partage_core::cluster::event::{About, Event, EventKind, event};
use partage_core::cluster::{Cluster, Problem};
use partage_core::keyspace::map::MapDiff;
use partage_door::Door;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The coordinator's observer of its decision loop.
pub struct Notifier {
    publisher: Arc<Publisher>,
    clock: Clock,
    metrics: Metrics,
    events: EventLog,
    /// Whose numbers are shown, too.
    door: Door,
    /// Whether something was said since settings and addresses were last published.
    dirty: AtomicBool,
    /// What is wrong with who leads.
    leaders: Mutex<Vec<Problem>>,
}

impl Notifier {
    /// Publishes maps with `publisher`.
    pub fn new(publisher: Arc<Publisher>, clock: Clock, door: Door) -> Notifier {
        Notifier {
            publisher,
            clock,
            metrics: Metrics::default(),
            events: EventLog::default(),
            door,
            dirty: AtomicBool::new(false),
            leaders: Mutex::default(),
        }
    }

    /// What happened lately.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Raises an alarm of this coordinator's own.
    pub fn alarm(&self, text: &str) {
        self.notice(true, text);
        self.happened(&[Event { alarm: true, ..event(EventKind::Alarm, About::all(), text.to_owned()) }]);
    }

    /// So many coordinators say that they lead, and that is what is wrong with it.
    pub fn leaders(&self, count: usize, problems: Vec<Problem>) {
        self.metrics.leaders(count);
        *self.leaders.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }

    /// What is wrong with who leads, as last seen.
    pub fn problems_of_leaders(&self) -> Vec<Problem> {
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The text that Prometheus reads, of a coordinator that leads at `term`, or of one that does not.
    pub fn metrics_text(&self, snapshot: Option<&MetricsSnapshot>, term: Option<u64>) -> String {
        self.metrics.text(snapshot, self.publisher.subscribers(), term, &self.door)
    }
}

impl Observer for Notifier {
    fn maps(&self, cluster: &Cluster, diffs: Vec<MapDiff>) {
        self.publisher.publish(cluster, diffs, self.clock.now());
    }

    fn notice(&self, alarm: bool, text: &str) {
        self.metrics.noticed(alarm);
        self.dirty.store(true, Ordering::Relaxed);
        if alarm {
            tracing::warn!(alarm, "{text}");
        } else {
            tracing::info!("{text}");
        }
    }

    fn happened(&self, events: &[Event]) {
        self.events.add(self.clock.moment().wall_ms, events);
    }

    fn committed(&self, took: Duration) {
        self.metrics.committed(took);
    }

    fn round_ended(&self, cluster: &Cluster, now: Millis, calls: usize) {
        self.metrics.decided(calls);
        // Each change of an address, a health or a setting is also a notice.
        if self.dirty.swap(false, Ordering::Relaxed) {
            self.publisher.refresh(cluster, now);
        }
    }
}
