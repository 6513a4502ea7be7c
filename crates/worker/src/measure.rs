//! How heavy each replica is: what the worker has counted, and what the service says.

use crate::admission::Shared;
use crate::calls::panicked;
use crate::driver::Event;
use crate::handler::Handler;
use crate::in_flight::InFlight;
use crate::limits;
use futures::FutureExt;
use partage_core::node::exchange::{Phase, ReplicaKey};
use partage_core::node::load::{HOT_KEYS, HotKey, Load, Profile};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc::WeakSender;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Something that only grows, as it was at the last report, and how fast it grew.
struct Rate {
    total: u64,
    /// None until a whole period has been measured.
    per_s: Option<f64>,
}

impl Rate {
    fn from(total: u64) -> Rate {
        Rate { total, per_s: None }
    }

    /// Its growth a second over the period that ends now, and smoothed over those before.
    fn read(&mut self, total: u64, seconds: f64) -> (f64, f64) {
        let newest = (total - std::mem::replace(&mut self.total, total)) as f64 / seconds;
        let before = self.per_s.unwrap_or(newest);
        let smooth = before + limits::LOAD_WEIGHT * (newest - before);
        self.per_s = Some(smooth);
        (newest, smooth)
    }
}

/// What was counted up to the last report.
struct Meter {
    requests: Rate,
    /// Nanoseconds of processor time.
    cpu: Rate,
}

impl Meter {
    /// The meter of a replica that has just come: the period that it came in is not measured. Taken for a whole one it
    /// would say less than is true, and something else would be moved here at once.
    fn begin(in_flight: &InFlight) -> Meter {
        in_flight.heavy().take(HOT_KEYS);
        Meter { requests: Rate::from(in_flight.requests()), cpu: Rate::from(in_flight.cpu()) }
    }

    fn read(&mut self, in_flight: &InFlight, seconds: f64) -> Load {
        let (newest, requests_per_s) = self.requests.read(in_flight.requests(), seconds);
        let (_, nanos_per_s) = self.cpu.read(in_flight.cpu(), seconds);
        let heavy = in_flight.heavy().take(HOT_KEYS);
        let hot = |(key, share)| HotKey { key, requests_per_s: share * newest };
        let profile = Profile::new(heavy.into_iter().map(hot).collect(), None);
        Load { requests_per_s, cpu_ms_per_s: nanos_per_s / 1e6, profile, ..Load::default() }
    }
}

/// Measures every [`limits::LOAD_EVERY`] until the driver is gone.
pub async fn run(shared: Arc<Shared>, handler: Arc<dyn Handler>, events: WeakSender<Event>) {
    let mut meters: BTreeMap<ReplicaKey, Meter> = BTreeMap::new();
    let mut ticks = interval(limits::LOAD_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = ticks.tick().await;
    loop {
        let now = ticks.tick().await;
        let seconds = now.duration_since(last).as_secs_f64().max(0.001);
        last = now;
        let replicas = shared.published.load().replicas.clone();
        meters.retain(|replica, _| replicas.contains_key(replica));
        let until = Instant::now() + limits::REPORT;
        let mut loads = Vec::new();
        for (replica, held) in replicas.iter().filter(|(_, held)| held.phase == Phase::Serving) {
            let Some(meter) = meters.get_mut(replica) else {
                meters.insert(replica.clone(), Meter::begin(&held.in_flight));
                continue;
            };
            let measured = meter.read(&held.in_flight, seconds);
            let said = ask(&*handler, &held.in_flight, until).await;
            let load = said.map_or_else(|| measured.clone(), |said| filled(said, &measured));
            match load.check() {
                Ok(()) => loads.push((replica.clone(), load)),
                Err(error) => tracing::warn!(shard = %replica.shard, %error, "not reported"),
            }
        }
        let Some(events) = events.upgrade() else { return };
        if events.send(Event::Measured(loads)).await.is_err() {
            return;
        }
    }
}

async fn ask(handler: &dyn Handler, in_flight: &InFlight, until: Instant) -> Option<Load> {
    let shard = in_flight.assignment();
    let asked = AssertUnwindSafe(handler.report(&shard)).catch_unwind();
    match timeout_at(until, asked).await {
        Ok(Ok(said)) => said,
        Ok(Err(panic)) => {
            tracing::warn!(shard = %shard.shard(), "report {}", panicked(&*panic));
            None
        }
        Err(_) => {
            tracing::warn!(shard = %shard.shard(), "report has not returned within {:?}", limits::REPORT);
            None
        }
    }
}

fn filled(mut said: Load, measured: &Load) -> Load {
    if said.requests_per_s == 0.0 {
        said.requests_per_s = measured.requests_per_s;
    }
    if said.cpu_ms_per_s == 0.0 {
        said.cpu_ms_per_s = measured.cpu_ms_per_s;
    }
    let hot = match said.profile.hot_keys() {
        [] => measured.profile.hot_keys(),
        hot => hot,
    };
    let hot = hot.iter().take(HOT_KEYS).cloned().collect();
    said.profile = Profile::new(hot, said.profile.median().cloned());
    said
}
