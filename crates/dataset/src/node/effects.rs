//! Carries out the machine's effects: keys in the coordination service, loads, the local store, the catalogue.

use super::keyspace::Keyspaces;
use super::known::Known;
use super::loading::{Inspected, LoadRequest, Loader, Loading, VersionId};
use super::presence::Outbox;
use super::remembering;
use super::warnings::Warnings;
use super::{Handle, NodeOptions};
use crate::catalogue::{Catalogue, Dataset, LoadEvent, Neighbours, NodeInfo, Options, Place, State, Version};
use crate::local::{self, Store};
use crate::settings::DatasetSettings;
use crate::source::Source;
use partage_clock::unix_seconds;
use partage_coordination::Key as PublishedKey;
use partage_core::base::time::Millis;
use partage_engine::readonly::Reader;
use partage_service::dataset::node::{
    self as machine, Effect, Event, Key, Layout, RememberedDataset, ShownVersion, Spread, Value,
};
use partage_service::dataset::{Address, DatasetName, Seat, VersionName};
use partage_wire::dataset::presence::{Held, Holding, Presence, Remembered};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The executor of the effects that the state machine of a dataset node asks for.
pub struct EffectExecutor {
    /// Its own address, as others see it.
    me: Address,
    pub options: NodeOptions,
    pub catalogue: Arc<Catalogue>,
    pub outbox: Arc<Outbox>,
    pub loader: Arc<Loader>,
    /// What can be read here.
    pub readers: BTreeMap<VersionId, BTreeMap<u32, Arc<Reader>>>,
    pub inspected: BTreeMap<VersionId, Arc<Inspected>>,
    pub settings: BTreeMap<DatasetName, DatasetSettings>,
    pub keyspaces: Keyspaces,
    pub warnings: Warnings,
    /// The partitions that are published, by version: they share a key.
    held: BTreeMap<VersionId, Held>,
    loads: BTreeMap<VersionId, Loading>,
    /// Partitions whose store file is damaged and that are to be loaded once more.
    pub damaged: BTreeMap<VersionId, BTreeSet<u32>>,
    load_number: u64,
    remembered: Remembered,
    store: Arc<Store>,
    known: Known,
    url: String,
}

impl EffectExecutor {
    pub fn new(
        me: Address,
        options: NodeOptions,
        source: Source,
        (store, scan): (Store, Vec<local::StoredVersion>),
        remembered: Remembered,
        (catalogue, handle): (Arc<Catalogue>, Handle),
    ) -> EffectExecutor {
        let (store, url) = (Arc::new(store), source.url().to_owned());
        let readers = scan.into_iter().map(|stored| ((stored.dataset, stored.version), stored.partitions));
        EffectExecutor {
            me,
            readers: readers.collect(),
            loader: Arc::new(Loader::new(source, store.clone(), options.clone(), handle.inputs)),
            known: handle.known,
            warnings: Warnings::new(&options),
            options,
            catalogue,
            outbox: Arc::default(),
            inspected: BTreeMap::new(),
            settings: BTreeMap::new(),
            keyspaces: Keyspaces::default(),
            held: BTreeMap::new(),
            loads: BTreeMap::new(),
            damaged: BTreeMap::new(),
            load_number: 0,
            remembered,
            store,
            url,
        }
    }

    /// Carries them out in order, and returns what came of it.
    pub async fn act(&mut self, effects: Vec<Effect>) -> Vec<Event> {
        let mut told = Vec::new();
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            if !is_of_partition(&effect) {
                told.extend(self.act_one(effect).await);
                continue;
            }
            // Successive ones of a version cost one write of its key.
            let mut run = vec![effect];
            while let Some(next) = effects.pop_front_if(|next| is_of_partition(next)) {
                run.push(next);
            }
            self.publish_partitions(&run);
        }
        told
    }

    async fn act_one(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Publish(key, value) => self.publish(&key, Some(value)),
            Effect::Withdraw(key) => self.publish(&key, None),
            Effect::Sit(seat) => {
                self.remembered.seat = Some(seat);
                self.remember().await;
            }
            Effect::Neighbours(neighbours) => {
                self.show_neighbours(&neighbours);
                self.meet(&neighbours).await;
            }
            // The driver does that.
            Effect::Look => {}
            Effect::Inspect(dataset, version) => {
                let settings = self.settings_of(&dataset);
                self.loader.clone().inspect((dataset, version), settings);
            }
            Effect::Load { dataset, version, layout, partitions } => {
                self.load((dataset, version), layout, partitions);
            }
            Effect::Cancel(dataset, version) => {
                if self.loads.remove(&(dataset.clone(), version)).is_some() {
                    self.catalogue.driver_metrics().load(&dataset, LoadEvent::Stopped);
                }
            }
            Effect::Show(shown) => self.show(*shown),
            Effect::Remember(RememberedDataset { dataset, served, pin, slots, serving }) => {
                let order = served.as_ref().map_or(0, |served| served.order);
                let known = self.remembered.datasets.entry(dataset.clone()).or_default();
                (known.served, known.pin, known.slots) = (served, pin, slots);
                self.remember().await;
                self.show_order(&dataset, order, serving);
            }
            Effect::Upgrade { dataset, version, order } => self.upgrade(&dataset, order, version.as_str()),
            Effect::Retire { dataset, version, unused_since } => {
                return Some(self.retire((dataset, version), unused_since));
            }
            Effect::LetGo { dataset, version, partitions } => {
                let id = (dataset, version);
                self.let_go(id.clone(), partitions).await;
                return Some(self.counted(&id));
            }
            Effect::Drop(dataset) => {
                tracing::info!(%dataset, "not served any more");
                drop(self.catalogue.remove(dataset.as_str()));
            }
            Effect::Delete(dataset, version) => self.delete((dataset, version)).await,
        }
        None
    }

    /// How many keys of a version are here.
    pub fn counted(&self, id: &VersionId) -> Event {
        let keys = self.readers.get(id).into_iter().flatten().map(|(_, reader)| reader.len()).sum();
        Event::Counted(id.0.clone(), id.1.clone(), keys)
    }

    fn settings_of(&self, dataset: &DatasetName) -> DatasetSettings {
        self.settings.get(dataset).cloned().unwrap_or_default()
    }

    /// Takes up what the source says of a dataset, and returns how it is to be spread.
    pub async fn set(
        &mut self,
        dataset: &DatasetName,
        settings: DatasetSettings,
        versions: &[VersionName],
    ) -> Option<Spread> {
        self.known.list(dataset, versions);
        self.store.forget_marks(dataset, versions);
        let known = self.remembered.datasets.entry(dataset.clone()).or_default();
        let has_changed = known.content_type.as_ref() != Some(&settings.content_type);
        known.content_type = Some(settings.content_type.clone());
        let (said, of_node) = (settings.spread, self.options.spread);
        self.settings.insert(dataset.clone(), settings);
        if has_changed {
            self.remember().await;
        }
        self.show_options(dataset);
        let replication = said.over(of_node.replication);
        let replication = replication
            .inspect_err(|why| tracing::error!(%dataset, %why, "the options of the node itself apply"));
        Some(Spread { replication: replication.ok()?, dealing: said.dealing.unwrap_or(of_node.dealing) })
    }

    // ── The coordination service ────────────────────────────────────────────────────────────────────────

    fn say(&self, presence: &Presence) {
        let (name, value) = presence.encode();
        let root = partage_wire::dataset::presence::root(&self.options.cluster);
        match PublishedKey::new(format!("{root}/{name}")) {
            Ok(key) => {
                let keys = self.outbox.say(key, value.map(Into::into));
                self.catalogue.driver_metrics().published(keys);
            }
            Err(error) => {
                tracing::error!(%error, "not published: give the dataset or version a shorter name")
            }
        }
    }

    fn publish(&self, key: &Key, value: Option<Value>) {
        let me = self.me.clone();
        match (key, value) {
            (Key::Node, Some(Value::Claim(claim))) => self.say(&Presence::Node(me, Some(claim))),
            (Key::Pin(dataset), Some(Value::Pin(pin))) => {
                self.say(&Presence::Pin(dataset.clone(), me, Some(pin)));
            }
            (Key::Node, _) => self.say(&Presence::Node(me, None)),
            (Key::Pin(dataset), _) => self.say(&Presence::Pin(dataset.clone(), me, None)),
            (Key::Partition(..), _) => {}
        }
    }

    /// Publishes partitions: each version once, however many of its partitions have changed.
    fn publish_partitions(&mut self, effects: &[Effect]) {
        let mut changed = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Publish(Key::Partition(dataset, version, partition), Value::Layout(layout)) => {
                    let id = (dataset.clone(), version.clone());
                    let nothing = || Held { layout: *layout, partitions: BTreeSet::new(), keys: None };
                    let held = self.held.entry(id.clone()).or_insert_with(nothing);
                    held.layout = *layout;
                    held.partitions.insert(*partition);
                    changed.insert(id);
                }
                Effect::Withdraw(Key::Partition(dataset, version, partition)) => {
                    let id = (dataset.clone(), version.clone());
                    if let Some(held) = self.held.get_mut(&id) {
                        held.partitions.remove(partition);
                    }
                    changed.insert(id);
                }
                _ => {}
            }
        }
        for id in changed {
            if self.held.get(&id).is_some_and(|held| held.partitions.is_empty()) {
                self.held.remove(&id);
            }
            let readers = self.readers.get(&id);
            if let Some(held) = self.held.get_mut(&id) {
                // Published without the number if a reader is away.
                let of = |partition| readers.and_then(|all| all.get(partition)).map(|reader| reader.len());
                held.keys = held.partitions.iter().map(of).sum();
            }
            let held = self.held.get(&id).cloned();
            let (dataset, version) = id;
            let address = self.me.clone();
            self.say(&Presence::Holding(Holding { dataset, version, address }, held));
        }
    }

    fn show_neighbours(&self, neighbours: &machine::Neighbours) {
        let info = |seat: Option<Seat>, address: &Address| NodeInfo {
            shard_id: seat.map(|seat| seat.to_string()).unwrap_or_default(),
            address: address.as_str().into(),
        };
        let others = neighbours.others.iter().map(|(address, seat)| info(Some(*seat), address)).collect();
        self.catalogue.set_neighbours(Neighbours { me: info(neighbours.seat, &self.me), others });
    }

    /// Remembers the nodes that are there: after a restart this node asks them for the others.
    async fn meet(&mut self, neighbours: &machine::Neighbours) {
        let peers: BTreeSet<_> = neighbours.others.iter().map(|(address, _)| address.clone()).collect();
        // An empty list may mean that the coordination service is away.
        if !peers.is_empty() && self.remembered.peers != peers {
            self.remembered.peers = peers;
            self.remember().await;
        }
    }

    // ── The local store ─────────────────────────────────────────────────────────────────────────────────

    pub fn load(&mut self, id: VersionId, layout: Layout, partitions: BTreeSet<u32>) {
        if let Some(loading) = self.loads.get_mut(&id) {
            return loading.further.extend(partitions);
        }
        self.begin(id, layout, partitions);
    }

    fn begin(&mut self, id: VersionId, layout: Layout, partitions: BTreeSet<u32>) {
        self.load_number += 1;
        let (dataset, version) = &id;
        tracing::info!(%dataset, %version, partitions = partitions.len(), "loading");
        self.catalogue.driver_metrics().load(dataset, LoadEvent::Begun);
        let (settings, known) = (self.settings_of(dataset), self.inspected.get(&id).cloned());
        let damaged = self.damaged.get(&id).into_iter().flatten().copied();
        let replaced = damaged.filter(|partition| partitions.contains(partition)).collect();
        let request = LoadRequest { layout, partitions, replaced };
        let mark = self.store.mark(&id.0, &id.1);
        let loading = self.loader.load(self.load_number, id.clone(), settings, request, known, mark);
        self.loads.insert(id, loading);
    }

    /// A load has ended; returns whether it was its version's current one. After success, further partitions follow.
    pub fn ended(&mut self, id: &VersionId, number: u64, is_done: bool) -> bool {
        if self.loads.get(id).is_none_or(|loading| loading.number != number) {
            return false;
        }
        self.show_progress();
        self.catalogue
            .driver_metrics()
            .load(&id.0, if is_done { LoadEvent::Done } else { LoadEvent::Failed });
        let Some(mut ended) = self.loads.remove(id) else { return false };
        let further = std::mem::take(&mut ended.further);
        if !is_done {
            // The files may be other ones by the next time.
            self.inspected.remove(id);
        } else if !further.is_empty() {
            self.begin(id.clone(), ended.layout, further);
        }
        true
    }

    async fn remember(&self) {
        let (folder, remembered) = (self.store.folder().to_owned(), self.remembered.clone());
        let kept = tokio::task::spawn_blocking(move || remembering::keep(&folder, &remembered)).await;
        if let Ok(Err(error)) = kept {
            tracing::error!(%error, "not remembered: after a restart clients may get an earlier version");
        }
    }

    /// Other nodes have them. Requests that read from them keep their readers.
    async fn let_go(&mut self, id: VersionId, partitions: BTreeSet<u32>) {
        if let Some(readers) = self.readers.get_mut(&id) {
            readers.retain(|partition, _| !partitions.contains(partition));
        }
        partitions.iter().for_each(|partition| self.repaired(&id, *partition));
        let (store, (dataset, version)) = (self.store.clone(), id);
        tracing::info!(%dataset, %version, partitions = partitions.len(), "let go: other nodes have them");
        let removing = move || store.remove_partitions((&dataset, &version), partitions);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(removing).await {
            tracing::error!(%error, "not removed from the local store");
        }
    }

    async fn delete(&mut self, id: VersionId) {
        if self.loads.remove(&id).is_some() {
            self.catalogue.driver_metrics().load(&id.0, LoadEvent::Stopped);
        }
        self.readers.remove(&id);
        self.damaged.remove(&id);
        self.inspected.remove(&id);
        self.known.forget(&id.0, &id.1);
        let (store, (dataset, version)) = (self.store.clone(), id);
        tracing::info!(%dataset, %version, "removed");
        let removed = tokio::task::spawn_blocking(move || store.remove(&dataset, &version)).await;
        if let Ok(Err(error)) = removed {
            tracing::error!(%error, "not removed from the local store");
        }
    }

    // ── The catalogue ───────────────────────────────────────────────────────────────────────────────────

    /// The dataset in the catalogue, which is put there when it is first needed.
    fn dataset(&self, name: &DatasetName) -> Option<Arc<Dataset>> {
        if let Some(known) = self.catalogue.dataset(name.as_str()) {
            return Some(known);
        }
        match Dataset::new(name.clone(), self.options_of(name)) {
            Ok(dataset) => Some(self.catalogue.add(dataset)),
            Err(error) => {
                tracing::error!(%error, "not shown");
                None
            }
        }
    }

    fn options_of(&self, dataset: &DatasetName) -> Options {
        let remembered = self.remembered.datasets.get(dataset).and_then(|known| known.content_type.clone());
        let content_type = remembered.unwrap_or_else(|| self.settings_of(dataset).content_type);
        // Under a coordinator its keyspace says how many.
        let replication = self.keyspaces.replicas(dataset).unwrap_or_else(|| self.wanted(dataset));
        Options { content_type, replication }
    }

    /// Serves a dataset as the source says now, from the next request on.
    pub fn show_options(&self, name: &DatasetName) {
        let Some(dataset) = self.catalogue.dataset(name.as_str()) else { return };
        let options = self.options_of(name);
        if *dataset.options() != options
            && let Err(error) = dataset.set_options(options)
        {
            tracing::error!(%error, "served as before");
        }
    }

    /// How many nodes are to have each of its partitions, as the source and the node say.
    pub fn wanted(&self, dataset: &DatasetName) -> u32 {
        let said = self.settings.get(dataset).and_then(|settings| settings.spread.replication);
        said.unwrap_or(self.options.spread.replication.wanted)
    }

    /// The version in the catalogue, which is put there when it is first needed.
    fn version(&self, (dataset, name): &VersionId, layout: Layout) -> Option<Arc<Version>> {
        let dataset = self.dataset(dataset)?;
        if let Some(known) = dataset.version(name.as_str()) {
            if (known.partitions(), known.partitioner()) == (layout.partitions, layout.partitioner) {
                return Some(known);
            }
            // Shown before its layout was known.
            dataset.retire(name.as_str());
        }
        let source = format!("{}/{}/{name}", self.url, dataset.name());
        let version =
            Version::new(name.clone(), &source, layout.partitions, layout.partitioner, unix_seconds());
        version
            .and_then(|version| dataset.prepare(version))
            .inspect_err(|e| tracing::error!(%e, "not shown"))
            .ok()
    }

    /// Makes what there is of a version visible to requests.
    fn show(&mut self, shown: ShownVersion) {
        let id = (shown.dataset.clone(), shown.version.clone());
        self.known.show(&shown);
        if let Some(machine::Failure { reason, is_unread: true, .. }) = &shown.failure {
            let (dataset, version) = &id;
            tracing::error!(%dataset, %version, reason, "not read; the next refresh tries again");
        }
        let Some(version) = self.version(&id, shown.layout) else { return };
        let readers = self.readers.get(&id).filter(|_| !shown.here.is_empty());
        let here =
            |partition: u32| readers.filter(|_| shown.here.contains(&partition))?.get(&partition).cloned();
        let places = (0..).zip(&shown.peers).map(|(partition, peers)| Place {
            here: here(partition),
            peers: peers.iter().map(|address| Arc::from(address.as_str())).collect(),
        });
        version.arrange(places.collect());
        let state = state(&shown, self.catalogue.clock().now());
        if let (State::Held { reason }, false) = (&state, matches!(version.state(), State::Held { .. })) {
            let (dataset, version) = &id;
            let release = format!("partage dataset release {dataset} {version}");
            tracing::warn!(%dataset, %version, reason, release, "held: clients get it when a person releases it");
        }
        version.set_state(state);
        version.set_partitions_to_load(shown.wanted as u32);
        version.set_differing(shown.differing.iter().map(ToString::to_string).collect());
    }

    /// Shows which versions a person has ordered.
    pub(super) fn show_pins(&self) {
        for dataset in self.catalogue.datasets().iter() {
            let ordered =
                self.remembered.datasets.get(dataset.name()).and_then(|known| known.pin.version.clone());
            if dataset.pinned().as_deref() != ordered.as_ref() {
                dataset.set_pinned(ordered);
            }
        }
    }

    /// Clients get the same version, by a later order.
    fn show_order(&self, dataset: &DatasetName, order: u64, serving: Option<VersionName>) {
        let Some(shown) = self.catalogue.dataset(dataset.as_str()) else { return };
        let Some(now) = shown.read() else { return };
        if serving.as_ref() == Some(now.name())
            && now.order() != order
            && let Err(error) = shown.upgrade_by(order, now.name().as_str())
        {
            tracing::error!(%error, "served as before");
        }
    }

    fn upgrade(&self, dataset: &DatasetName, order: u64, version: &str) {
        tracing::info!(%dataset, version, "clients get it from now on");
        self.catalogue.driver_metrics().upgraded(dataset);
        let Some(shown) = self.dataset(dataset) else { return };
        if let Err(error) = shown.upgrade_by(order, version) {
            tracing::error!(%error, "not upgraded");
        }
        if let Some(version) = shown.version(version) {
            version.set_state(State::Active);
        }
    }

    /// Lets a version go, unless it is used.
    fn retire(&self, (dataset, version): VersionId, unused_since: Millis) -> Event {
        let shown = self.catalogue.dataset(dataset.as_str());
        // The machine knew of a request at that very moment.
        let since = Millis(unused_since.0.saturating_add(1));
        match shown.as_ref().and_then(|shown| shown.retire_unused(version.as_str(), since)) {
            Some(Err(last)) => {
                let known = shown.as_ref().and_then(|shown| shown.version(version.as_str()));
                let is_read = known.is_some_and(|known| known.in_flight() > 0);
                let used = if is_read { self.catalogue.clock().now() } else { last };
                Event::Used(dataset, version, used)
            }
            Some(Ok(_)) | None => Event::Retired(dataset, version),
        }
    }

    /// Shows how far loads are.
    pub fn show_progress(&mut self) {
        for ((dataset, version), loading) in &mut self.loads {
            let snapshot = loading.progress.snapshot();
            // Files that have to be read again are counted again.
            let before = if snapshot.bytes < loading.told_bytes { 0 } else { loading.told_bytes };
            self.catalogue.driver_metrics().read(dataset, snapshot.bytes - before);
            loading.told_bytes = snapshot.bytes;
            let shown = self.catalogue.dataset(dataset.as_str());
            if let Some(version) = shown.and_then(|dataset| dataset.version(version.as_str())) {
                version.set_bytes_loaded(snapshot.bytes, snapshot.bytes_in_all);
            }
        }
    }
}

fn is_of_partition(effect: &Effect) -> bool {
    matches!(effect, Effect::Publish(Key::Partition(..), _) | Effect::Withdraw(Key::Partition(..)))
}

fn state(shown: &ShownVersion, now: Millis) -> State {
    match shown.state {
        machine::State::Active => State::Active,
        machine::State::Removing => State::Removing,
        machine::State::Error => {
            let failure = shown.failure.as_ref();
            let rests_s =
                failure.map_or(0, |failure| failure.retry_at.0.saturating_sub(now.0).div_ceil(1_000));
            let is_superseded = failure.is_some_and(|failure| failure.is_superseded);
            State::Error {
                reason: failure.map_or("unknown", |failure| &failure.reason).to_owned(),
                tries: failure.map_or(0, |failure| failure.times),
                next_try: (rests_s > 0 && !is_superseded).then(|| unix_seconds() + rests_s),
                is_superseded,
            }
        }
        machine::State::Held => State::Held { reason: shown.held.clone().unwrap_or_default() },
        machine::State::Building => State::Building,
    }
}
