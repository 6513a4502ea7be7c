//! `GET /-/metrics`: what requests have been, and how far loading is, for Prometheus.
//!
//! Numbers are counted by threads; a registry is only made for the moment in which they are shown.

use super::refusal::Refusal;
use super::server::House;
use crate::catalogue::{Series, Version};
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
use std::sync::atomic::Ordering;

type Labels = Vec<(&'static str, String)>;

/// All of this node.
pub fn answer(house: &House) -> Result<Response<Bytes>, Refusal> {
    let mut written = String::new();
    encode(&mut written, &registry(house))
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error.to_string()))?;
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
}

fn registry(house: &House) -> Registry {
    let mut registry = Registry::with_prefix("partage_dataset");
    let families = Families::default();
    let mut durations = Vec::new();
    for dataset in house.catalogue.datasets() {
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
    let connections = Gauge::<i64>::default();
    connections.set(house.connections.load(Ordering::Relaxed) as i64);
    registry.register("connections", "Connections of clients and peers", connections);
    let waiting = Gauge::<i64>::default();
    waiting.set((house.settings.waiting - house.waiting.available_permits()) as i64);
    registry.register("waiting", "Requests that wait for peers", waiting);
    registry
}

fn tell(families: &Families, labels: &Labels, version: &Version) {
    let set = |family: &Family<Labels, Gauge>, value: u64| {
        family.get_or_create(labels).set(i64::try_from(value).unwrap_or(i64::MAX));
    };
    let places = version.places();
    let here = places.iter().filter_map(|place| place.here.as_ref());
    set(&families.in_flight, version.in_flight());
    set(&families.partitions, here.clone().count() as u64);
    set(&families.stored, here.map(|reader| reader.describe().file_bytes).sum());
    set(&families.loaded, version.progress().bytes);
    set(&families.to_load, version.progress().bytes_in_all);
    let state = [labels.clone(), vec![("state", version.state().word().to_ascii_lowercase())]].concat();
    families.state.get_or_create(&state).set(1);
}
