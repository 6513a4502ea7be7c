//! Prometheus metrics: one registry for each coordinator, so that several can run in one process.
//!
//! What happens is counted as it happens. How things stand is read from the cluster when somebody asks, into gauges
//! that are made for that moment: so a keyspace that is deleted is gone from them too.
//!
//! Nothing is labelled by shard: at a million shards that would be the largest set of series of the process. Single
//! shards are asked for through the admin API.

use partage_core::base::name::KeyspaceName;
use partage_core::cluster::status::Summary;
use partage_core::cluster::{Cluster, Moment};
use partage_core::node::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyspaceLabels {
    keyspace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnservedLabels {
    keyspace: String,
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HealthLabels {
    health: String,
}

/// What has happened.
pub struct Metrics {
    alarms: Counter,
    commits: Counter,
    commit_seconds: Histogram,
    batch_calls: Histogram,
    leaders: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            alarms: Counter::default(),
            commits: Counter::default(),
            commit_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            batch_calls: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            leaders: Gauge::default(),
        }
    }
}

/// How things stand at one moment.
pub struct MetricsSnapshot {
    nodes: BTreeMap<Health, usize>,
    keyspaces: BTreeMap<KeyspaceName, KeyspaceSnapshot>,
    draining: usize,
    brake: bool,
    unrest: bool,
    quarantined: usize,
    storage_full: bool,
    wrong_tokens: u64,
    newcomers_refused: u64,
    unused_nodes_forgotten: u64,
}

struct KeyspaceSnapshot {
    summary: Summary,
    unsettled: usize,
    generation: u64,
}

impl MetricsSnapshot {
    /// Takes a pass over all shards.
    pub fn of(cluster: &Cluster, at: Moment) -> MetricsSnapshot {
        let one = |name: &KeyspaceName| {
            let keyspace = &cluster.keyspaces()[name];
            KeyspaceSnapshot {
                summary: cluster.status_of(at, name),
                unsettled: keyspace.unsettled().len(),
                generation: keyspace.map.generation().sequence,
            }
        };
        let mut nodes: BTreeMap<Health, usize> = Health::ALL.into_iter().map(|health| (health, 0)).collect();
        for node in cluster.nodes().values() {
            *nodes.entry(node.signs.health(at.now, cluster.settings())).or_default() += 1;
        }
        MetricsSnapshot {
            nodes,
            keyspaces: cluster.keyspaces().keys().map(|name| (name.clone(), one(name))).collect(),
            draining: cluster.drains(at).len(),
            brake: cluster.brake().is_some(),
            unrest: cluster.unrest().is_some(),
            quarantined: cluster.faults().quarantine.len(),
            storage_full: cluster.storage_problem().is_some(),
            wrong_tokens: cluster.wrong_tokens(),
            newcomers_refused: cluster.newcomers_refused(),
            unused_nodes_forgotten: cluster.unused_nodes_forgotten(),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let nodes = Family::<HealthLabels, Gauge>::default();
        for (health, count) in &self.nodes {
            nodes.get_or_create(&HealthLabels { health: health.to_string() }).set(whole(*count));
        }
        registry.register("nodes", "Nodes by how they look", nodes);
        gauge(registry, "nodes_draining", "Nodes that are being drained", self.draining);
        gauge(registry, "brake", "1 while the brake keeps anything from moving by itself", self.brake.into());
        let help = "1 while so many nodes die or are started anew that nothing but repairs begins by itself";
        gauge(registry, "unrest", help, self.unrest.into());
        let help = "Keyspaces that are neither served nor changed, as their stored state has a fault";
        gauge(registry, "keyspaces_quarantined", help, self.quarantined);
        let help = "1 while nothing can be stored, as the disk is full";
        gauge(registry, "storage_full", help, self.storage_full.into());
        let help = "Messages in the name of a node that came without its token, since this coordinator leads";
        gauge(registry, "wrong_tokens", help, usize::try_from(self.wrong_tokens).unwrap_or(usize::MAX));
        let help = "Registrations refused as their address had sent too many, since this coordinator leads";
        let refused = usize::try_from(self.newcomers_refused).unwrap_or(usize::MAX);
        gauge(registry, "registrations_refused", help, refused);
        let help = "Nodes that died without ever having held a shard and were forgotten, since this coordinator leads";
        let forgotten = usize::try_from(self.unused_nodes_forgotten).unwrap_or(usize::MAX);
        gauge(registry, "unused_nodes_forgotten", help, forgotten);
        self.register_unserved(registry);
        type Read = fn(&KeyspaceSnapshot) -> usize;
        let gauges: [(&str, &str, Read); 10] = [
            ("shards", "Shards of any stage", |one| one.summary.shards.total()),
            ("shards_served", "Shards whose leader serves, on a node that answers", |one| {
                one.summary.shards.led
            }),
            (
                "shards_unheard",
                "Shards of which a coordinator that has just begun does not know yet whether they are served",
                |one| one.summary.shards.unheard,
            ),
            ("shards_short", "Shards with fewer live replicas than they want", |one| one.summary.short),
            ("shards_set_aside", "Shards placed nowhere new until a person releases them", |one| {
                one.summary.set_aside.len()
            }),
            ("shards_unsettled", "Shards with something under way", |one| one.unsettled),
            ("moves", "Moves under way", |one| one.summary.moves),
            ("loads", "First loads and repairs under way", |one| one.summary.loads),
            ("plans_suggested", "Plans that wait for a person", |one| one.summary.suggested.len()),
            ("map_generation", "Sequence of the current map", |one| one.generation as usize),
        ];
        for (name, help, read) in gauges {
            let family = Family::<KeyspaceLabels, Gauge>::default();
            for (keyspace, one) in &self.keyspaces {
                family
                    .get_or_create(&KeyspaceLabels { keyspace: keyspace.to_string() })
                    .set(whole(read(one)));
            }
            registry.register(name, help, family);
        }
    }

    fn register_unserved(&self, registry: &mut Registry) {
        let family = Family::<UnservedLabels, Gauge>::default();
        for (keyspace, one) in &self.keyspaces {
            let counts = &one.summary.shards;
            let parts = [
                ("waiting", counts.waiting),
                ("silent", counts.silent),
                ("braked", counts.braked),
                ("set_aside", counts.set_aside),
                ("loading", counts.loading),
                ("unplaced", counts.unplaced),
            ];
            for (why, count) in parts {
                family
                    .get_or_create(&UnservedLabels { keyspace: keyspace.to_string(), why })
                    .set(whole(count));
            }
        }
        registry.register("shards_unserved", "Shards that should be served and are not, by why", family);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, count: usize) {
    let counted = Gauge::<i64>::default();
    counted.set(whole(count));
    registry.register(name, help, counted);
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Metrics {
    /// A notice was given.
    pub fn noticed(&self, alarm: bool) {
        self.alarms.inc_by(u64::from(alarm));
    }

    /// So many coordinators say that they lead, as the one that counts sees it.
    pub fn leaders(&self, count: usize) {
        self.leaders.set(whole(count));
    }

    /// Something was made durable; the commit took that long.
    pub fn committed(&self, took: Duration) {
        self.commits.inc();
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// A round of decisions stood behind that many calls.
    pub fn decided(&self, calls: usize) {
        self.batch_calls.observe(calls as f64);
    }

    /// The text that Prometheus reads; without gauges while the state of the cluster is unknown.
    pub fn text(
        &self,
        snapshot: Option<&MetricsSnapshot>,
        subscribers: usize,
        term: Option<u64>,
        door: &partage_door::Door,
    ) -> String {
        let mut registry = Registry::with_prefix("partage_coordinator");
        registry.register("alarms", "Notices that ask for a person", self.alarms.clone());
        registry.register("commits", "Durable transactions", self.commits.clone());
        let (help, seconds) = ("How long durable transactions took", self.commit_seconds.clone());
        registry.register_with_unit("commit", help, Unit::Seconds, seconds);
        registry.register("batch_calls", "Calls behind one round of decisions", self.batch_calls.clone());
        let help = "Coordinators that say they lead, as this leader sees it; more than 1 is an alarm";
        registry.register("leaders", help, self.leaders.clone());
        gauge(&mut registry, "subscribers", "Open streams of maps", subscribers);
        let help = "The term at which this coordinator leads; 0 while it stands by";
        gauge(&mut registry, "term", help, usize::try_from(term.unwrap_or(0)).unwrap_or(usize::MAX));
        door.register(&mut registry);
        if let Some(snapshot) = snapshot {
            snapshot.register(&mut registry);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
