//! `GET /-/metrics`: what requests have been, and how far loading is, for Prometheus.
//!
//! Numbers are counted by threads; a registry is only made for the moment in which they are shown.

use super::refusal::Refusal;
use super::server::ServerState;
use crate::catalogue::{Labels, Link, Series, Version};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Answers `/-/metrics`: all metrics of this node, in the form of OpenMetrics.
pub fn answer(server: &ServerState) -> Result<Response<Bytes>, Refusal> {
    let mut written = String::new();
    encode(&mut written, &registry(server))
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error, "ask again"))?;
    let mut response = Response::new(Bytes::from(written));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Histograms that were counted elsewhere.
#[derive(Debug)]
struct Durations(Vec<(Labels, Series)>);

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (labels, series) in &self.0 {
            let seconds = series.nanos as f64 / 1e9;
            let mut encoder = encoder.encode_family(labels)?;
            encoder.encode_histogram::<NoLabelSet>(seconds, series.requests, &series.buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[derive(Default)]
struct Families {
    keys: Family<Labels, Counter>,
    bytes: Family<Labels, Counter>,
    in_flight: Family<Labels, Gauge>,
    partitions: Family<Labels, Gauge>,
    stored: Family<Labels, Gauge>,
    loaded: Family<Labels, Gauge>,
    to_load: Family<Labels, Gauge>,
    state: Family<Labels, Gauge>,
    wanted: Family<Labels, Gauge>,
    damaged: Family<Labels, Gauge>,
    differing: Family<Labels, Gauge>,
    versions: Family<Labels, Gauge>,
}

fn registry(server: &ServerState) -> Registry {
    let mut registry = Registry::with_prefix("partage_dataset");
    let families = Families::default();
    let mut durations = Vec::new();
    for dataset in server.catalogue.datasets() {
        for version in dataset.versions() {
            let labels: Labels =
                vec![("dataset", dataset.name().to_string()), ("version", version.name().to_string())];
            tell(&families, &labels, &version);
            for series in version.meter().series() {
                let mut labels = labels.clone();
                labels.extend([("outcome", series.outcome.to_owned()), ("hop", series.hop.to_owned())]);
                families.keys.get_or_create(&labels).inc_by(series.keys);
                families.bytes.get_or_create(&labels).inc_by(series.bytes);
                durations.push((labels, series));
            }
        }
    }
    registry.register_with_unit(
        "request_duration",
        "Requests by what became of them and who answered",
        Unit::Seconds,
        Durations(durations),
    );
    registry.register("keys", "Keys that were asked for", families.keys);
    registry.register("value_bytes", "Bytes of values that were given", families.bytes);
    registry.register("in_flight", "Requests that have hold of the version now", families.in_flight);
    registry.register("partitions", "Partitions that are on this node", families.partitions);
    registry.register_with_unit(
        "stored",
        "Store files of the version on this node",
        Unit::Bytes,
        families.stored,
    );
    registry.register_with_unit("loaded", "Read from the source so far", Unit::Bytes, families.loaded);
    registry.register_with_unit(
        "to_load",
        "To be read from the source in all",
        Unit::Bytes,
        families.to_load,
    );
    registry.register("state", "1 for the state that the version is in", families.state);
    registry.register("partitions_wanted", "Partitions that belong on this node", families.wanted);
    registry.register("damaged", "Partitions whose store file here is damaged", families.damaged);
    registry.register(
        "peers_differing",
        "Peers that have other files under the name of the version",
        families.differing,
    );
    registry.register("versions", "Versions by their state", families.versions);
    of_the_driver(server, &mut registry);
    let connections = Gauge::<i64>::default();
    connections.set(server.door.connections() as i64);
    registry.register("connections", "Connections of clients and peers", connections);
    server.door.register(&mut registry);
    let waiting = Gauge::<i64>::default();
    waiting.set((server.settings.waiting - server.waiting.available_permits()) as i64);
    registry.register("waiting", "Requests that wait for peers", waiting);
    registry
}

/// What the driver has done, and what does not work.
fn of_the_driver(server: &ServerState, registry: &mut Registry) {
    let driver_metrics = server.catalogue.driver_metrics().clone();
    registry.register("loads", "Loads of a version by what became of them", driver_metrics.loads);
    registry.register_with_unit("read", "Read from the source", Unit::Bytes, driver_metrics.read);
    registry.register("upgrades", "Changes to another version", driver_metrics.upgrades);
    registry.register("damages", "Store files that turned out to be damaged", driver_metrics.damaged);
    registry.register("refreshes", "Looks at the source", driver_metrics.refreshes);
    registry.register(
        "source_errors",
        "Looks that failed, at the source (no dataset) or at a dataset in it",
        driver_metrics.source_errors,
    );
    registry.register(
        "gossip_unheard",
        "Datagrams of gossip that were not heard, by the reason",
        driver_metrics.unheard,
    );
    registry.register(
        "versions_unlisted",
        "Versions that peers have and the source of this node does not list",
        driver_metrics.unlisted,
    );
    registry.register(
        "presence_keys",
        "Keys published in the coordination service",
        driver_metrics.published,
    );
    let troubles = server.catalogue.troubles();
    let failing: Family<Labels, Gauge> = Family::default();
    let of = |name: &str| vec![("dataset", name.to_owned())];
    failing.get_or_create(&of("")).set(i64::from(troubles.source.is_some()));
    for dataset in server.catalogue.datasets() {
        let is_failing = troubles.of(dataset.name().as_str()).is_some();
        failing.get_or_create(&of(dataset.name().as_str())).set(i64::from(is_failing));
    }
    for name in troubles.datasets.keys() {
        failing.get_or_create(&of(name.as_str())).set(1);
    }
    registry.register("source_failing", "1 while the source, or a dataset in it, cannot be read", failing);
    let connected = Gauge::<i64>::default();
    connected.set(i64::from(matches!(troubles.link, Link::Connected | Link::Unused)));
    registry.register("coordination_connected", "0 while the coordination service is away", connected);
    let connected = Gauge::<i64>::default();
    connected.set(i64::from(matches!(troubles.coordinator, Link::Connected | Link::Unused)));
    registry.register("coordinator_connected", "0 while no coordinator has this node registered", connected);
}

fn tell(families: &Families, labels: &Labels, version: &Version) {
    let set = |family: &Family<Labels, Gauge>, value: u64| {
        family.get_or_create(labels).set(i64::try_from(value).unwrap_or(i64::MAX));
    };
    let places = version.places();
    let here = places.iter().filter_map(|place| place.here.as_ref());
    set(&families.in_flight, version.in_flight());
    let here_count = here.clone().count() as u64;
    set(&families.partitions, here_count);
    set(&families.stored, here.map(|reader| reader.describe().file_bytes).sum());
    set(&families.loaded, version.progress().bytes);
    set(&families.to_load, version.progress().bytes_in_all);
    let state =
        [labels.clone(), vec![("state", version.state().kind().word().to_ascii_lowercase())]].concat();
    families.state.get_or_create(&state).set(1);
    let progress = version.progress();
    set(&families.wanted, u64::from(progress.partitions_in_all).max(here_count));
    set(&families.damaged, version.damaged().len() as u64);
    set(&families.differing, version.differing().len() as u64);
    let kind = labels.iter().filter(|(name, _)| *name == "dataset").cloned();
    let kind = kind.chain(state.into_iter().filter(|(name, _)| *name == "state")).collect();
    families.versions.get_or_create(&kind).inc();
}
