//! The task that owns the machine: it takes one input after the other, and carries out what follows.

use super::coordinated::AssignedShards;
use super::effects::EffectExecutor;
use super::loading::{Inspected, LoadFailure, VersionId};
use super::refreshing::{self, Finished, Listed};
use super::{Handle, NodeOptions, keyspace, presence, remembering, trouble, watching};
use crate::catalogue::Catalogue;
use crate::limits::PROGRESS_EVERY;
use crate::local::{self, Store};
use crate::source::Source;
use partage_clock::unix_ms;
use partage_coordination::{Coordination, Key};
use partage_core::keyspace::sharding::Slot;
use partage_service::dataset::node::{Effect, Event, Node as Machine, NodeSettings, Readiness, Stored};
use partage_service::dataset::shards::{self, Wanted};
use partage_service::dataset::{Address, DatasetName, VersionName, Wish};
use partage_wire::dataset::presence::Remembered;
use partage_worker::Worker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

/// A caller that waits until a shard is ready, or cannot be.
type Waiting = oneshot::Sender<Result<(), String>>;

/// What comes to the driver.
#[derive(Debug)]
pub enum Input {
    /// An event for the machine, which gets it unchanged.
    Core(Event),
    /// What a version is, or why that is unknown.
    Inspected(VersionId, Result<Arc<Inspected>, String>),
    /// A load of that number ended.
    LoadEnded(VersionId, u64, Result<(), LoadFailure>),
    /// What the source has of a dataset.
    Listed(Box<Listed>),
    /// What could not be read of the source: a dataset, or all.
    SourceFailed(Option<DatasetName>, String),
    /// A look at the source ended, in which these datasets were looked at.
    Refreshed(BTreeSet<DatasetName>),
    /// A caller wants another look.
    Refresh,
    /// An operator pins a dataset to a version; none: ends the pin.
    Pin(DatasetName, Option<VersionName>),
    /// The coordinator has changed which shards of a dataset are ordered here: [`AssignedShards::slots`].
    Ordered(DatasetName),
    /// A shard was ordered here: the worker waits until it is ready, or cannot be.
    Await(DatasetName, Slot, Waiting),
    /// A coordinator has reconciled the keyspace of a dataset, or none has.
    Keyspace(keyspace::Reconciled),
    /// The node is to leave.
    Leave,
}

/// The event loop of a dataset node: it feeds inputs to the state machine and has the effects carried out.
pub struct Driver {
    machine: Machine,
    executor: EffectExecutor,
    source: Source,
    inputs: mpsc::Sender<Input>,
    /// Whether a look at the source is under way, and whether another is wanted.
    looking: (bool, bool),
    /// Whether the source was ever read.
    has_looked: bool,
    finished: Finished,
    leaving: watch::Sender<bool>,
    helpers: JoinSet<()>,
    /// The shards that are ordered here.
    assigned: Arc<AssignedShards>,
    worker: Arc<OnceLock<Worker>>,
    waiting: Vec<(DatasetName, Slot, Waiting)>,
}

impl Driver {
    /// Makes the machine from what is in the local store, and shows that.
    pub async fn start(
        options: NodeOptions,
        address: Address,
        source: Source,
        (store, scan): (Store, Vec<local::StoredVersion>),
        (catalogue, handle): (Arc<Catalogue>, Handle),
    ) -> Driver {
        let remembered = remembering::read(store.folder());
        let settings = settings(&options, address.clone(), &remembered);
        let stored = stored(&remembered, &scan, store.died());
        let (machine, effects) = Machine::start(settings, stored, catalogue.clock().now());
        let (inputs, assigned, worker) =
            (handle.inputs.clone(), handle.assigned.clone(), handle.worker.clone());
        let executor = EffectExecutor::new(
            address,
            options,
            source.clone(),
            (store, scan),
            remembered,
            (catalogue, handle),
        );
        let (leaving, helpers) = (watch::Sender::new(false), JoinSet::new());
        let (looking, has_looked, waiting) = ((false, false), false, Vec::new());
        let mut driver = Driver {
            machine,
            executor,
            source,
            inputs,
            looking,
            has_looked,
            finished: Finished::new(),
            leaving,
            helpers,
            assigned,
            worker,
            waiting,
        };
        let told = driver.executor.act(effects).await;
        let counted: Vec<Event> =
            driver.executor.readers.keys().map(|id| driver.executor.counted(id)).collect();
        for event in counted.into_iter().chain(told) {
            driver.tell(event).await;
        }
        driver.executor.catalogue.set_awaited(driver.awaited());
        driver
    }

    /// Runs until the node leaves.
    pub async fn run(mut self, mut queue: mpsc::Receiver<Input>, coordination: Arc<dyn Coordination>) {
        let saying = self.join(coordination.clone());
        let check = self.executor.start_store_check();
        let mut refresh = interval(self.executor.options.refresh);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = interval(PROGRESS_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (clock, loader) = (self.executor.catalogue.clock(), self.executor.loader.clone());
        loop {
            let deadline = clock.at(self.machine.deadline());
            tokio::select! {
                input = queue.recv() => match input {
                    None | Some(Input::Leave) => break,
                    Some(input) => self.take(input).await,
                },
                () = loader.is_ready.notified() => self.take_ready().await,
                () = sleep_until(deadline) => self.tell(Event::Tick).await,
                _ = refresh.tick() => self.look(),
                _ = progress.tick() => {
                    self.executor.show_progress();
                    self.executor.repair(&self.machine);
                    self.show_coordinator();
                    self.executor.warnings.tell(&self.machine, &self.executor.catalogue);
                    self.executor.catalogue.driver_metrics().unheard(coordination.refused());
                }
            }
            if self.executor.catalogue.awaited().is_some() {
                self.executor.catalogue.set_awaited(self.awaited());
            }
        }
        drop(check);
        self.tell(Event::Leave).await;
        self.leaving.send_replace(true);
        // The runtime reports its panic.
        let _ = saying.await;
    }

    fn show_coordinator(&self) {
        if let Some(membership) = &self.executor.options.coordinator {
            let health = self.worker.get().map(Worker::health);
            trouble::coordinator(&self.executor.catalogue, &membership.coordinators, health);
        }
    }

    /// What a node that was just started waits for, until it knows what there is: others may have it all.
    fn awaited(&self) -> Option<String> {
        let presence = self.machine.presence();
        if !presence.has_heard() {
            return Some("the coordination service has not answered yet".to_owned());
        }
        if !self.has_looked {
            let troubles = self.executor.catalogue.troubles();
            let why = troubles.source.as_ref().map_or("", |trouble| trouble.reason.as_str());
            let what = format!("the source {} has not been read yet {why}", self.source.url());
            return Some(what.trim_end().to_owned());
        }
        if self.executor.options.coordinator.is_some() && !self.assigned.is_known() {
            return Some("no coordinator has answered yet".to_owned());
        }
        let stable = self.executor.options.stable.as_secs_f32();
        let is_stable = presence.is_stable(self.executor.catalogue.clock().now());
        (!is_stable).then(|| format!("the list of nodes has not been the same for {stable} s yet"))
    }

    /// Begins to publish and to listen.
    fn join(&mut self, coordination: Arc<dyn Coordination>) -> tokio::task::JoinHandle<()> {
        let NodeOptions { cluster, session_ttl, .. } = &self.executor.options;
        let root = Key::new(partage_wire::dataset::presence::root(cluster))
            .expect("names of clusters are segments of keys");
        let is_alone = self.executor.options.is_alone;
        let health = Arc::new(trouble::CoordinationHealth::new(self.executor.catalogue.clone(), is_alone));
        self.helpers.spawn(watching::follow(coordination.clone(), root, health.clone(), self.inputs.clone()));
        let (outbox, inputs) = (self.executor.outbox.clone(), self.inputs.clone());
        tokio::spawn(presence::keep(
            coordination,
            *session_ttl,
            outbox,
            inputs,
            health,
            self.leaving.subscribe(),
        ))
    }

    /// Looks at the source, or once more after the look that goes on.
    fn look(&mut self) {
        if self.looking.0 {
            self.looking.1 = true;
            return;
        }
        self.looking = (true, false);
        // Removes helpers that have ended.
        while self.helpers.try_join_next().is_some() {}
        self.executor.catalogue.driver_metrics().refreshed();
        let names = self.executor.options.datasets.clone();
        let (source, finished, inputs) = (self.source.clone(), self.finished(), self.inputs.clone());
        self.helpers.spawn(refreshing::look(source, names, finished, inputs));
    }

    /// The versions that count as finished, with what clients get: it stays loadable until they get a later one.
    fn finished(&self) -> Finished {
        let mut finished = self.finished.clone();
        for (dataset, state) in self.machine.datasets() {
            if let Some(served) = state.served() {
                finished.entry(dataset.clone()).or_default().insert(served.version.clone());
            }
        }
        finished
    }

    fn looked(&mut self) {
        self.looking.0 = false;
        if self.looking.1 {
            self.look();
        }
    }

    async fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let effects = self.machine.take(self.executor.catalogue.clock().now(), event);
            if effects.contains(&Effect::Look) {
                self.look();
            }
            // What an effect answers at once: that a version went, or is used.
            events.extend(self.executor.act(effects).await);
        }
        self.executor.show_pins();
        self.answer();
    }

    /// Answers the callers whose shards are ready, or have failed.
    fn answer(&mut self) {
        for (dataset, slot, told) in std::mem::take(&mut self.waiting) {
            let is_listed = self.executor.settings.contains_key(&dataset);
            let troubles = self.executor.catalogue.troubles();
            let unread = || troubles.of(dataset.as_str()).filter(|_| !is_listed);
            let answer = match (self.machine.readiness(&dataset, slot), unread()) {
                // The caller waits no more.
                _ if told.is_closed() => continue,
                (Readiness::Failed(reason), _) => Err(reason),
                // The machine takes a dataset for empty that a look did not find; the next look may fail.
                (Readiness::Ready | Readiness::Loading, Some(trouble)) => Err(trouble.reason.clone()),
                (Readiness::Ready, None) => Ok(()),
                (Readiness::Loading, None) => {
                    self.waiting.push((dataset, slot, told));
                    continue;
                }
            };
            // A caller that has stopped waiting needs no answer.
            let _ = told.send(answer);
        }
    }

    async fn order(&mut self, dataset: &DatasetName) {
        let slots = self.assigned.slots(dataset);
        self.tell(Event::ShardsOrdered(dataset.clone(), slots)).await;
    }

    /// Under a coordinator: tells the machine what is ordered of a dataset, and has its keyspace reconciled. `is_read`:
    /// the settings of the dataset were read just now.
    async fn coordinate(&mut self, dataset: &DatasetName, is_read: bool) {
        let Some(membership) = self.executor.options.coordinator.clone() else { return };
        if self.assigned.is_known() {
            self.order(dataset).await;
        }
        if let Some(wanted) = self.keyspace(dataset, is_read) {
            let (coordinators, inputs) = (membership.coordinators, self.inputs.clone());
            self.helpers.spawn(keyspace::reconcile(coordinators, dataset.clone(), wanted, inputs));
        }
    }

    /// What the keyspace of a dataset is to be, as far as that is known.
    fn keyspace(&self, dataset: &DatasetName, is_read: bool) -> Option<Wanted> {
        let state = self.machine.dataset(dataset)?;
        if !state.is_served() {
            return is_read.then_some(Wanted::Gone);
        }
        let layouts = state.versions().filter(|(_, version)| version.failure().is_none());
        let layout = layouts.filter_map(|(_, version)| version.layout()).last()?;
        let said = self.executor.settings.get(dataset).and_then(|settings| settings.spread.replication);
        let said = self.executor.keyspaces.news(dataset, said.filter(|_| is_read));
        let keyspace = shards::keyspace(dataset, layout, self.executor.wanted(dataset));
        let keyspace = keyspace.inspect_err(|error| {
            tracing::error!(%dataset, %error, "no keyspace can be named so: give the dataset another name");
        });
        Some(Wanted::There { keyspace: Box::new(keyspace.ok()?), said })
    }

    /// A coordinator has told of a keyspace.
    fn reconciled(&mut self, reconciled: keyspace::Reconciled) {
        let dataset = reconciled.dataset.clone();
        let Some(state) = self.machine.dataset(&dataset) else { return };
        let serving = state.versions().find(|(name, _)| Some(*name) == state.serving());
        let layout = serving.and_then(|(_, version)| version.layout());
        let min = self.machine.spread(&dataset).replication.min;
        self.executor.keyspaces.take(reconciled, layout, min);
        self.executor.show_options(&dataset);
    }

    /// After a look at the source: datasets of which shards are ordered, and that the look did not find, have no
    /// versions. Of those that it could not read nothing is known.
    async fn list_missing_as_empty(&mut self) {
        for dataset in self.assigned.datasets() {
            let is_read = self.executor.settings.contains_key(&dataset);
            let is_unknown = self.executor.catalogue.troubles().of(dataset.as_str()).is_some();
            if !is_read && !is_unknown {
                self.tell(Event::Listed(dataset, Vec::new())).await;
            }
        }
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Core(event) => self.tell(event).await,
            Input::Inspected((dataset, version), found) => {
                let layout = found.map(|found| {
                    let layout = found.inspection.layout;
                    self.executor.inspected.insert((dataset.clone(), version.clone()), found);
                    layout
                });
                self.tell(Event::Inspected(dataset.clone(), version, layout)).await;
                self.coordinate(&dataset, false).await;
            }
            Input::LoadEnded(id, number, ended) => self.load_ended(id, number, ended).await,
            Input::Listed(listed) => {
                let Listed { dataset, settings, versions, refused, finished } = *listed;
                self.finished.insert(dataset.clone(), finished);
                trouble::refused(&self.executor.catalogue, &dataset, refused);
                let (is_served, guard) = (settings.is_served, settings.guard);
                let spread = self.executor.set(&dataset, settings, &versions).await;
                self.tell(Event::DatasetEnabled(dataset.clone(), is_served)).await;
                self.tell(Event::Spread(dataset.clone(), spread)).await;
                self.tell(Event::Guard(dataset.clone(), guard)).await;
                trouble::source_works(&self.executor.catalogue, Some(&dataset));
                self.executor.retry_repairs(&self.machine, &dataset);
                self.tell(Event::Listed(dataset.clone(), versions)).await;
                self.coordinate(&dataset, true).await;
            }
            Input::SourceFailed(dataset, reason) => {
                trouble::source_failed(&self.executor.catalogue, dataset.as_ref(), &reason);
                if dataset.is_none() {
                    self.looked();
                }
                self.answer();
            }
            Input::Refreshed(names) => {
                self.has_looked = true;
                trouble::source_works(&self.executor.catalogue, None);
                trouble::source_has(&self.executor.catalogue, &names);
                self.finished.retain(|dataset, _| names.contains(dataset));
                self.list_missing_as_empty().await;
                self.looked();
            }
            Input::Refresh => {
                self.tell(Event::TryAgain).await;
                self.look();
            }
            Input::Pin(dataset, version) => {
                self.tell(Event::Pin(dataset, version, unix_ms())).await;
            }
            Input::Ordered(dataset) => self.order(&dataset).await,
            Input::Await(dataset, slot, told) => {
                self.waiting.push((dataset, slot, told));
                self.answer();
            }
            Input::Keyspace(reconciled) => self.reconciled(reconciled),
            Input::Leave => {}
        }
    }

    async fn take_ready(&mut self) {
        for (id, partition, reader) in self.executor.loader.take_ready() {
            self.executor.readers.entry(id.clone()).or_default().insert(partition, reader);
            // Before `Ready`: with its last partition clients may get the version.
            self.tell(self.executor.counted(&id)).await;
            self.tell(Event::Ready(id.0.clone(), id.1.clone(), partition)).await;
            self.executor.repaired(&id, partition);
        }
    }

    async fn load_ended(&mut self, id: VersionId, number: u64, ended: Result<(), LoadFailure>) {
        self.take_ready().await;
        if !self.executor.ended(&id, number, ended.is_ok()) {
            return;
        }
        if let Err(LoadFailure { reason, is_disk_full, changed }) = ended {
            let (dataset, version) = id;
            if let Some(found) = changed {
                tracing::warn!(%dataset, %version, reason, "the source has changed a version");
                return self.tell(Event::Inspected(dataset, version, Ok(found))).await;
            }
            tracing::error!(%dataset, %version, reason, "not loaded; it is tried again");
            if is_disk_full {
                self.tell(Event::DiskFull).await;
            }
            self.tell(Event::LoadFailed(dataset, version, reason)).await;
        }
    }
}

fn settings(options: &NodeOptions, address: Address, remembered: &Remembered) -> NodeSettings {
    let wish = match options.seat {
        Some(seat) => Wish::Configured(seat),
        None => Wish::Any { before: remembered.seat },
    };
    let ms = |time: std::time::Duration| time.as_millis() as u64;
    NodeSettings {
        wish,
        spread: options.spread,
        stable_ms: ms(options.stable),
        keep_ms: ms(options.keep),
        resume_ms: ms(options.resume),
        re_replicate: options.re_replicate,
        is_ordered: options.coordinator.is_some(),
        retry_ms: ms(options.refresh),
        let_go_ms: ms(options.let_go),
        ..NodeSettings::new(address)
    }
}

/// The versions of the local store, in the form in which the machine takes them.
fn stored(
    remembered: &Remembered,
    scan: &[local::StoredVersion],
    died: Vec<(VersionId, u32)>,
) -> BTreeMap<DatasetName, Stored> {
    let mut stored: BTreeMap<DatasetName, Stored> = BTreeMap::new();
    for (dataset, known) in &remembered.datasets {
        let (served, slots) = (known.served.clone(), known.slots.clone());
        let pin = Some(known.pin.clone()).filter(|pin| pin.is_plausible(unix_ms())).unwrap_or_default();
        let known = Stored { served, pin, slots, ..Stored::default() };
        stored.insert(dataset.clone(), known);
    }
    for local::StoredVersion { dataset, version, layout, partitions } in scan {
        let here = partitions.keys().copied().collect();
        stored.entry(dataset.clone()).or_default().versions.insert(version.clone(), (*layout, here));
    }
    for ((dataset, version), times) in died {
        tracing::error!(%dataset, %version, times, "the node was killed while it loaded this version");
        stored.entry(dataset).or_default().died.insert(version, times);
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Membership;
    use crate::node::known::Known;
    use std::net::SocketAddr;
    use std::path::Path;

    async fn driver(folder: &Path) -> (Driver, mpsc::Receiver<Input>) {
        let source = Source::open(&folder.join("source").display().to_string(), &BTreeMap::new()).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let cluster = DatasetName::new("test").unwrap();
        let mut options = NodeOptions::new(cluster, listen, folder.join("node"));
        options.coordinator = Some(Membership {
            coordinators: vec!["127.0.0.1:1".to_owned()],
            id: "n1".to_owned(),
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
        });
        let (inputs, queue) = mpsc::channel(64);
        let (known, assigned) = (Known::default(), Arc::default());
        let handle = Handle { inputs, known, assigned, id: None, worker: Arc::default() };
        let (store, scan) = Store::open(&options.data_dir).unwrap();
        let address = Address::new("127.0.0.1:9599").unwrap();
        let shown = (Arc::new(Catalogue::default()), handle);
        (Driver::start(options, address, source, (store, scan.versions), shown).await, queue)
    }

    /// One look at the source, with all that comes of it.
    async fn look(driver: &mut Driver, queue: &mut mpsc::Receiver<Input>) {
        driver.look();
        while driver.looking.0 {
            let input = queue.recv().await.unwrap();
            driver.take(input).await;
        }
    }

    /// What the caller hears who waits for a shard, if that is known already.
    async fn told(driver: &mut Driver, dataset: &DatasetName, slot: Slot) -> Option<Result<(), String>> {
        let (told, mut answer) = oneshot::channel();
        driver.take(Input::Await(dataset.clone(), slot, told)).await;
        answer.try_recv().ok()
    }

    #[tokio::test]
    async fn k19_no_shard_is_ready_of_a_dataset_that_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let names = folder.path().join("source/names");
        std::fs::create_dir_all(&names).unwrap();
        std::fs::write(names.join(crate::settings::FILE), "no settings").unwrap();
        let (mut driver, mut queue) = driver(folder.path()).await;
        let (dataset, other) = (DatasetName::new("names").unwrap(), DatasetName::new("other").unwrap());
        let slot = Slot::new(0, 2).unwrap();
        driver.take(Input::Core(Event::Mirror { is_whole: true, news: Vec::new() })).await;
        for name in [&dataset, &other] {
            driver.assigned.assign(name, slot);
            driver.take(Input::Ordered(name.clone())).await;
        }
        for time in 0..3 {
            look(&mut driver, &mut queue).await;
            let answer = told(&mut driver, &dataset, slot).await;
            assert!(matches!(answer, Some(Err(_))), "{time}: {answer:?}");
            assert_eq!(told(&mut driver, &other, slot).await, Some(Ok(())), "the source does not have it");
        }
        // The dataset was empty at one look, and cannot be read at the next.
        let others = folder.path().join("source/other");
        std::fs::create_dir_all(&others).unwrap();
        std::fs::write(others.join(crate::settings::FILE), "no settings").unwrap();
        look(&mut driver, &mut queue).await;
        let answer = told(&mut driver, &other, slot).await;
        assert!(matches!(answer, Some(Err(_))), "{answer:?}");
    }
}
